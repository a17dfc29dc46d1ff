"""Steps of a training loop through the tinker SDK, one for each line of its input: prints their times as a line of JSON.

Usage: TINKER_BASE_URL=… TINKER_API_KEY=… python tinker_step.py MODEL PROMPTS.json MAX_TOKENS
"""

import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np
import tinker  # pyright: ignore[reportMissingImports]
from tinker import types  # pyright: ignore[reportMissingImports]

MODEL, MAX_TOKENS = sys.argv[1], int(sys.argv[3])
PROMPTS = json.loads(Path(sys.argv[2]).read_text())
service = tinker.ServiceClient()
client = service.create_lora_training_client(MODEL, rank=32, seed=0)
client = client.result() if hasattr(client, "result") else client


def datum(prompt, sequence):
    tokens = [*prompt, *sequence.tokens]
    before = [0.0] * (len(prompt) - 1)
    advantage = 1.0 if sequence.tokens[0] % 2 else -1.0
    inputs = {
        "target_tokens": np.array(tokens[1:]),
        "logprobs": np.array([*before, *sequence.logprobs], np.float32),
        "advantages": np.array([*before, *[advantage] * len(sequence.tokens)], np.float32),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def step():
    times = [time.monotonic()]
    sampler = client.save_weights_and_get_sampling_client()
    sampler = sampler.result() if hasattr(sampler, "result") else sampler
    sampler.sample(types.ModelInput.from_ints(PROMPTS[0]), 1, types.SamplingParams(max_tokens=1)).result()  # it is loaded then
    times.append(time.monotonic())
    parameters = types.SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0)
    futures = [sampler.sample(types.ModelInput.from_ints(prompt), 1, parameters) for prompt in PROMPTS]
    sequences = [future.result().sequences[0] for future in futures]
    times.append(time.monotonic())
    data = [datum(prompt, sequence) for prompt, sequence in zip(PROMPTS, sequences)]
    trained, stepped = (
        client.forward_backward(data, "importance_sampling"),
        client.optim_step(types.AdamParams(learning_rate=1e-5)),
    )
    trained.result()
    times.append(time.monotonic())
    stepped.result()
    times.append(time.monotonic())
    return [after - before for before, after in itertools.pairwise(times)]


for _ in sys.stdin:
    cpu = time.process_time()
    parts = step()
    print(json.dumps({"parts": parts, "cpu": time.process_time() - cpu}), flush=True)
