"""Calls of the tinker SDK against a service, one feature after another: prints the outcome of each as JSON.

Usage: TINKER_BASE_URL=http://127.0.0.1:8930 TINKER_API_KEY=tml-x python tinker_calls.py MODEL
"""

import json
import sys
import traceback
import warnings

import numpy as np
import tinker  # pyright: ignore[reportMissingImports]
import torch
from tinker import types  # pyright: ignore[reportMissingImports]

warnings.simplefilter("ignore")
IDS = [5, 9, 2, 33, 7, 41, 12]


def got(value):
    """A client or a result; newer versions return it in a future."""
    return value.result() if hasattr(value, "result") else value


def datum(**inputs):
    return types.Datum(
        model_input=types.ModelInput.from_ints(IDS[:-1]), loss_fn_inputs={"target_tokens": np.array(IDS[1:]), **inputs}
    )


WEIGHTS = np.ones(len(IDS) - 1, np.float32)
SAMPLED = {"logprobs": -WEIGHTS, "advantages": WEIGHTS}
found = {}


def feature(name):
    def run(function):
        try:
            function()
            found[name] = "works"
        except Exception as error:  # the boundary of a feature: the others are tried all the same
            found[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            traceback.print_exc()
        return function

    return run


def trained(data, loss, numbers=None):
    result = client.forward_backward(data, loss, numbers).result()
    assert len(result.loss_fn_outputs) == len(data)
    logprobs = np.asarray(result.loss_fn_outputs[0]["logprobs"].tolist())
    assert len(logprobs) == len(IDS) - 1 and (logprobs < 0).all(), logprobs
    return result


service = tinker.ServiceClient()
MODEL = sys.argv[1]
client = got(service.create_lora_training_client(MODEL, rank=8, seed=1))


@feature("capabilities, info, tokenizer")
def _():
    assert MODEL in [model.model_name for model in service.get_server_capabilities().supported_models]
    assert got(client.get_info()).model_id == client.model_id
    assert len(client.get_tokenizer().encode("hello"))


@feature("cross_entropy, optim_step")
def _():
    losses = []
    for _ in range(3):
        losses.append(trained([datum(weights=WEIGHTS)] * 2, "cross_entropy").metrics["loss:sum"])
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    assert losses[2] < losses[0], losses


@feature("importance_sampling, ppo, cispo, dro")
def _():
    for loss in ("importance_sampling", "ppo", "cispo", "dro"):
        numbers = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2} if loss == "ppo" else None
        trained([datum(**SAMPLED)], loss, numbers)


@feature("gspo")
def _():
    trained([datum(**SAMPLED, sequence_ratio_mask=WEIGHTS)], "gspo")


@feature("several targets of a position")
def _():
    table = np.stack([IDS[1:], IDS[:-1]], 1)
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints(IDS[:-1]),
            loss_fn_inputs={"target_tokens": table, "weights": np.ones(table.shape, np.float32)},
        )
    ]
    output = client.forward_backward(data, "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    assert list(output.shape) == list(table.shape), output.shape


@feature("forward")
def _():
    assert len(client.forward([datum(weights=WEIGHTS)], "cross_entropy").result().loss_fn_outputs) == 1


@feature("forward_backward_custom")
def _():
    def loss(data, logprobs):
        total = -torch.cat(logprobs).sum()
        return total, {"mine": total.item()}

    assert client.forward_backward_custom([datum(weights=WEIGHTS)], loss).result().metrics["mine"] > 0


@feature("a sampler by its path")
def _():
    path = client.save_weights_for_sampler("first").result().path
    sampler = got(service.create_sampling_client(model_path=path))
    parameters = types.SamplingParams(max_tokens=4, temperature=1.0, seed=3, top_k=5, top_p=0.9, stop=[])
    first, second = [sampler.sample(types.ModelInput.from_ints(IDS), 2, parameters).result().sequences for _ in range(2)]
    assert [list(each.tokens) for each in first] == [list(each.tokens) for each in second]
    assert all(len(each.logprobs) == len(each.tokens) == 4 for each in first)


@feature("a sampler of the present weights, of the base")
def _():
    for sampler in (got(client.save_weights_and_get_sampling_client()), got(service.create_sampling_client(base_model=MODEL))):
        assert sampler.sample(types.ModelInput.from_ints(IDS), 1, types.SamplingParams(max_tokens=2)).result().sequences


@feature("compute_logprobs")
def _():
    sampler = got(service.create_sampling_client(base_model=MODEL))
    logprobs = sampler.compute_logprobs(types.ModelInput.from_ints(IDS)).result()
    assert len(logprobs) == len(IDS) and all(value < 0 for value in list(logprobs)[1:]), logprobs


@feature("save and load, with and without the optimizer")
def _():
    path = client.save_state("half").result().path
    assert got(service.create_training_client_from_state(path)).model_id != client.model_id
    other = got(service.create_training_client_from_state_with_optimizer(path))
    other.forward_backward([datum(weights=WEIGHTS)], "cross_entropy").result()
    other.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    client.load_state(path).result()


@feature("runs and checkpoints")
def _():
    rest = service.create_rest_client()
    assert any(run.training_run_id == client.model_id for run in rest.list_training_runs().result().training_runs)
    checkpoints = rest.list_checkpoints(client.model_id).result().checkpoints
    assert {each.checkpoint_type for each in checkpoints} == {"training", "sampler"}
    rest.delete_checkpoint(client.model_id, checkpoints[0].checkpoint_id).result()


@feature("what is wrong is refused with the reason")
def _():
    for call, reason in (
        (lambda: client.forward_backward([datum(**SAMPLED)], "stable_reinforce").result(), "not public"),
        (lambda: client.forward_backward([datum(advantages=WEIGHTS)], "ppo").result(), "logprobs"),
        (lambda: client.optim_step(types.AdamParams(learning_rate=-1.0)).result(), "learning_rate"),
    ):
        try:
            call()
        except Exception as error:
            assert reason in str(error), error
        else:
            raise AssertionError(f"not refused: {reason}")


print(json.dumps(found), flush=True)
