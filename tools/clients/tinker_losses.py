"""Losses, gradients and Adam of a service through the tinker SDK, beside ten lines of PyTorch: prints the differences as JSON.

Usage: TINKER_BASE_URL=http://127.0.0.1:8930 TINKER_API_KEY=tml-x python tinker_losses.py MODEL FOLDER

FOLDER is the service's `output_dir`, where the weights of checkpoints are read. The gradient with respect to the logprobs is
compared by a twin with the same weights, which is trained with cross_entropy weighted by the reference's gradient.
"""

import json
import sys
from pathlib import Path

import numpy as np
import tinker  # pyright: ignore[reportMissingImports]
import torch
from safetensors.torch import load_file
from tinker import types  # pyright: ignore[reportMissingImports]

MODEL, FOLDER = sys.argv[1], Path(sys.argv[2])
VOCABULARY, LENGTHS = 300, (40, 23, 1, 57)
NUMBERS = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "cispo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "dro": {"beta": 0.3},
    "gspo": {"clip_low_threshold": 0.98, "clip_high_threshold": 1.03},
}
ADAM = {"learning_rate": 3e-3, "beta1": 0.8, "beta2": 0.97, "eps": 1e-6, "weight_decay": 0.1}
LARGE = 1e6
"""An eps beside which the second moment is nothing: a step is then the gradient times lr / eps."""
service = tinker.ServiceClient()


def reference(name, p, datum, numbers):
    """The loss of one sequence by the formula of the API's documentation."""
    if name == "cross_entropy":
        return -(p * datum["weights"]).sum()
    q, a = datum["logprobs"], datum["advantages"]
    low, high = numbers.get("clip_low_threshold"), numbers.get("clip_high_threshold")
    if name == "gspo":
        marked = datum["sequence_ratio_mask"] != 0
        p = p - p.detach() + ((p.detach() - q)[marked].mean() if marked.any() else 0.0) + q
    ratio = torch.exp(p - q)
    return {
        "importance_sampling": lambda: -ratio * a,
        "ppo": lambda: -torch.min(ratio * a, ratio.clamp(low, high) * a),
        "gspo": lambda: -torch.min(ratio * a, ratio.clamp(low, high) * a),
        "cispo": lambda: -ratio.clamp(low, high).detach() * a * p,
        "dro": lambda: -(p * a - 0.5 * numbers["beta"] * (p - q) ** 2),
    }[name]().sum()


def made(seed):
    """Random tokens, targets, weights and advantages."""
    rng = np.random.default_rng(seed)
    return [
        {
            "tokens": rng.integers(0, VOCABULARY, length),
            "target_tokens": rng.integers(0, VOCABULARY, length),
            "weights": rng.normal(size=length).astype(np.float32),
            "advantages": rng.normal(size=length).astype(np.float32),
            "sequence_ratio_mask": (rng.random(length) < 0.7).astype(np.float32),
        }
        for length in LENGTHS
    ]


def sent(data, *names):
    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(datum["tokens"].tolist()),
            loss_fn_inputs={name: datum[name] for name in ("target_tokens", *names)},
        )
        for datum in data
    ]


def logprobs_of(result):
    return [np.asarray(output["logprobs"].tolist()) for output in result.loss_fn_outputs]


def client_of(seed):
    made_client = service.create_lora_training_client(MODEL, rank=4, seed=seed)
    return made_client.result() if hasattr(made_client, "result") else made_client


def compared(name):
    """The relative differences of the loss and of the gradient's norm, and that of logprobs after a step along the gradient."""
    numbers, data, (own, twin) = NUMBERS[name], made(1), (client_of(5), client_of(5))
    for client in (own, twin):  # B is zero in a new adapter, and then half of the gradient is, too
        client.forward_backward(sent(made(2), "weights"), "cross_entropy").result()
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    present = logprobs_of(own.forward(sent(data, "weights"), "cross_entropy").result())
    noise = np.random.default_rng(3)
    data = [d | {"logprobs": (p + noise.normal(0, 0.2, len(p))).astype(np.float32)} for d, p in zip(data, present)]
    names = ("weights",) if name == "cross_entropy" else ("logprobs", "advantages")
    names += ("sequence_ratio_mask",) if name == "gspo" else ()
    result = own.forward_backward(sent(data, *names), name, numbers or None).result()
    leaves = [torch.tensor(p, dtype=torch.float64, requires_grad=True) for p in logprobs_of(result)]
    tensors = [{key: torch.tensor(np.asarray(value, np.float64)) for key, value in d.items()} for d in data]
    expected = torch.stack([reference(name, p, d, numbers) for p, d in zip(leaves, tensors)]).sum()
    gradients = torch.autograd.grad(expected, leaves)
    weighted = [d | {"weights": -g.numpy().astype(np.float32)} for d, g in zip(data, gradients)]
    twin.forward_backward(sent(weighted, "weights"), "cross_entropy").result()
    step = types.AdamParams(learning_rate=10.0, eps=LARGE)
    norms = [client.optim_step(step).result().metrics["grad_norm"] for client in (own, twin)]
    after = [logprobs_of(client.forward(sent(data, "weights"), "cross_entropy").result()) for client in (own, twin)]
    return {
        "the loss, relative": abs(result.metrics["loss:sum"] / float(expected.detach()) - 1),
        "the norm of the gradient, relative": abs(norms[0] / norms[1] - 1),
        "logprobs after a step along the gradient": max(float(np.abs(x - y).max()) for x, y in zip(*after)),
        "for comparison: they moved by": max(float(np.abs(x - y).max()) for x, y in zip(after[0], present)),
    }


def weights(client, name):
    """The weights of a model, by way of a checkpoint."""
    path = client.save_state(name).result().path
    [file] = [each for each in FOLDER.rglob("adapter_model.safetensors") if each.parent.parent.name == name]
    return path, load_file(file)


def adam():
    """The largest difference between the weights and those of PyTorch's AdamW with the same gradients, over four steps."""
    own, probe = client_of(7), client_of(7)
    path, first = weights(own, "adam-0")
    twin = {key: value.clone().requires_grad_() for key, value in first.items()}
    optimizer = torch.optim.AdamW(
        twin.values(), ADAM["learning_rate"], (ADAM["beta1"], ADAM["beta2"]), ADAM["eps"], ADAM["weight_decay"]
    )
    largest = moved = 0.0
    for step in range(1, 5):
        probe.load_state(path).result()
        _, before = weights(probe, f"probe-{step}")
        for client, params in ((own, types.AdamParams(**ADAM)), (probe, types.AdamParams(learning_rate=1e3 * LARGE, eps=LARGE))):
            client.forward_backward(sent(made(step), "weights"), "cross_entropy").result()
            client.optim_step(params).result()
        path, present = weights(own, f"adam-{step}")
        _, after = weights(probe, f"probed-{step}")
        for key, value in twin.items():
            value.grad = (before[key] - after[key]) / 1e3
        optimizer.step()
        largest = max(largest, *(float((present[key] - twin[key]).abs().max()) for key in twin))
        moved = max(moved, *(float((present[key] - first[key]).abs().max()) for key in twin))
    return {"weights after 4 steps": largest, "for comparison: they moved by": moved}


def parted():
    """The largest differences between two calls of forward_backward before a step along the gradient, and one call of both."""
    (two, one), found, norms = (client_of(9), client_of(9)), [], []
    first, second = sent(made(11), "weights"), sent(made(12), "weights")
    _, before = weights(one, "parted-0")
    for name, client, calls in (("two", two, (first, second)), ("one", one, ([*first, *second],))):
        for data in calls:
            client.forward_backward(data, "cross_entropy").result()
        norms.append(client.optim_step(types.AdamParams(learning_rate=10.0, eps=LARGE)).result().metrics["grad_norm"])
        found.append(weights(client, f"parted-{name}")[1])
    return {
        "the norm of the gradient, relative": abs(norms[0] / norms[1] - 1),
        "weights after a step": max(float((found[0][key] - found[1][key]).abs().max()) for key in before),
        "for comparison: they moved by": max(float((found[0][key] - before[key]).abs().max()) for key in before),
    }


rows = {**{name: compared(name) for name in NUMBERS}, "AdamW": adam(), "two calls of forward_backward beside one": parted()}
print(json.dumps(rows, indent=1), flush=True)
