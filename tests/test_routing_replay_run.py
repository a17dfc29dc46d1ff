"""A run that replays the experts of its servers: a server in bfloat16, a trainer in float32, two turns, a kill and a resume."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.expert_models import save_experts
from tools.driven_run import DrivenRun, num_steps_done

pytestmark = [pytest.mark.long, pytest.mark.in_turn]
NUM_STEPS, WAIT_SECONDS = 4, 400
SHAPE = {"num_experts": 32, "num_experts_per_tok": 2, "num_hidden_layers": 4, "initializer_range": 0.1, "norm_topk_prob": True}


async def generate(context, sample, sampling):
    """Two replies with a tool's tokens between them; the group has its prompt in common."""
    model, draw = context.models["actor"], np.random.default_rng(sample.group_index)
    first = await model.complete(draw.integers(3, 250, 40).tolist(), max_tokens=24)
    await model.complete([*first.prompt_ids, *first.output_ids, *draw.integers(3, 250, 9).tolist()], max_tokens=24)
    return context.samples(sample)


async def reward(context, samples):
    return float(sum(map(sum, (sample.tokens for sample in samples))) % 2)


@pytest.fixture(scope="module")
def start(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., DrivenRun]]:
    """Starts a run of a mixture of experts in a folder; whatever is left of it when the tests are over is killed."""
    checkpoint, runs = save_experts(tmp_path_factory.mktemp("model") / "experts", checkpoints["untied"], scale=3.0, **SHAPE), []
    shape: dict[str, Any] = {"family": "qwen3_moe", "num_layers": 4, "hidden_size": 64, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 128, "vocab_size": 320, "num_experts": 32}
    shape |= {
        "num_experts_per_token": 2,
        "moe_intermediate_size": 32,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": "false",
    }

    def start_run(folder: Path, *words: str) -> DrivenRun:
        overrides = [
            "+method=memagent",
            f"model.checkpoint={checkpoint}",
            *(f"model.{name}={value}" for name, value in shape.items()),
            f"method.generate={__file__}:generate",
            f"method.reward={__file__}:reward",
            f"trainer.num_steps={NUM_STEPS}",
            "trainer.save_every=1",
            "trainer.precision=float32",
            "trainer.lr=1e-5",
            "+serving.models.actor.vllm_args.dtype=bfloat16",
            "serving.models.actor.max_model_len=1024",
            "serving.probe_tolerance=10",
            "rollout.num_prompts=6",
            "rollout.num_samples_per_prompt=4",
            "evaluation.rows=[]",
            *words,
        ]
        runs.append(DrivenRun(folder, overrides, environment={}))
        return runs[-1]

    yield start_run
    for run in runs:
        run.kill()


def test_a_killed_run_goes_on_with_its_replay(start: Callable[..., DrivenRun], tmp_path: Path) -> None:
    folder = tmp_path / "replayed"
    first = start(folder, "trainer.routing_replay=rollout")
    first.wait_for(lambda: num_steps_done(folder) >= 2, seconds=WAIT_SECONDS)
    first.driver.kill()
    first.finish(seconds=WAIT_SECONDS)
    second = start(folder, "trainer.routing_replay=rollout", "resume=true")
    assert second.finish(seconds=WAIT_SECONDS) == 0, second.log_tail()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, NUM_STEPS + 1))
    for row in rows:
        assert row["train/num_replayed_tokens"] > row["train/num_tokens"] > 0
        assert row["train/routing_difference"] > 0.02 and row["train/logprob_difference_mean"] < 0.02
