"""Trainer and server give the same logprobs to the same sampled tokens, whole batches long, with a tied head.

With a head of its own the tokens of the whole run in `test_end_to_end.py` are compared.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from vime.data.dataset import to_prompt
from vime.preflight.compose import compose_run
from vime.system import training
from vime.types import Sample

pytestmark = pytest.mark.slow
TEMPERATURE = 0.8


async def sample_and_compare(config: Any, folder: Path) -> list[float]:
    """Largest difference of each sample: first with a cold prefix cache, then, for the same prompts, with a cached one."""
    prompts = [to_prompt({"prompt": f"Question {i}: {'why ' * 40}?"}, index=i, row_number=i, dataset="d") for i in range(12)]
    differences = []
    async with training(config, folder, say=lambda text: None) as system:
        await system.sync(0)
        await system.sync(1)
        for first_slot in (0, 100):
            calls = [
                system.agents.workers.run_group(prompt=prompt, slot=first_slot + prompt.index, num_rollouts=4, version=1)
                for prompt in prompts
            ]
            groups = await asyncio.gather(*calls)
            samples: list[Sample] = [s for group in groups for rollout in group.rollouts for s in rollout.samples]
            assert len(samples) == 48 and all(version == 1 for s in samples for version in s.weight_versions)
            lengths = [s.response_length for s in samples]
            expected = await system.trainer.logprobs([s.tokens for s in samples], lengths, TEMPERATURE)
            pairs = zip(samples, expected, strict=True)
            differences += [max(abs(a - b) for a, b in zip(s.rollout_log_probs, ours, strict=True)) for s, ours in pairs]
    return differences


async def generate(context, sample, sampling):
    await context.models["actor"].chat(sample.prompt, max_tokens=40)
    return context.samples(sample)


async def reward(context, samples):
    return 0.0


def test_trainer_and_server_agree_over_a_whole_batch(checkpoints: dict[str, Path], ray_cluster: None, tmp_path: Path):
    from tests.served_stack import TIED_SHAPE

    overrides = [
        "+method=memagent",
        f"model.checkpoint={checkpoints['tied']}",
        *(f"model.{key}={value}" for key, value in TIED_SHAPE.items()),
        f"method.generate={__file__}:generate",
        f"method.reward={__file__}:reward",
        f"rollout.temperature={TEMPERATURE}",
        "serving.models.actor.max_model_len=1024",
    ]
    differences = asyncio.run(sample_and_compare(compose_run(overrides).config, tmp_path))
    assert max(differences) < 1e-4
