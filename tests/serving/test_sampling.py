"""Sampling parameters of a frozen model reach vLLM under the names that it knows."""

from dataclasses import fields
from typing import Any

from vime.config import SamplingConfig
from vime.serving.client import TokenClient
from vime.serving.sampling import sampling_parameters

PROMPT = [7, 8, 9] * 5


async def test_a_real_server_takes_every_parameter_and_heeds_it(served: dict[str, Any]):
    stack = served["untied"]
    client = TokenClient(stack.endpoint, stack.config.serving)
    everything = SamplingConfig(
        temperature=1.0, top_p=0.9, top_k=1, min_p=0.1, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0
    )
    assert len(sampling_parameters(everything)) == len(fields(SamplingConfig))
    found: dict[str, list[int]] = {}
    for name, config in {
        "greedy": SamplingConfig(),
        "only the likeliest token": everything,
        "no token twice": SamplingConfig(repetition_penalty=1e6),
    }.items():
        sampling = {**sampling_parameters(config), "max_tokens": 24, "ignore_eos": True}
        generation = await client.generate(PROMPT, sampling=sampling, session_id="s", request_id=name.replace(" ", "-"))
        found[name] = list(generation.output_ids)
    await client.close()
    assert found["only the likeliest token"] == found["greedy"]
    fresh = found["no token twice"]
    assert len(set(fresh)) == len(fresh) and not set(fresh) & set(PROMPT)
