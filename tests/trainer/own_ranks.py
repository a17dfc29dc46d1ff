"""The ranks of `test_own_algorithms.py`: two batches under algorithms of the user or a teacher, and the gradient of the second.

    python own_ranks.py JOB.json

A step with a rate and an epsilon that are equal and huge moves each weight by minus its gradient, under every layout.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from vime.trainer import megatron_setup

megatron_setup.set_up()

from safetensors.torch import save_file  # noqa: E402

from tests.trainer.forked import fork_ranks  # noqa: E402
from tests.trainer.ranks import LOGITS_IN_CHUNK, load_fixtures, meet  # noqa: E402
from vime.algorithm.batch import build_updates  # noqa: E402
from vime.cluster.layout import world_size  # noqa: E402
from vime.config import DistillationConfig, Divergence, OldLogprobs, TeacherConfig, TeacherTerm  # noqa: E402
from vime.trainer import logprob, parallel  # noqa: E402
from vime.trainer.lockstep import LockstepEngine  # noqa: E402
from vime.types import Group, Prompt, Rollout, Sample, StopReason  # noqa: E402

HUGE = 1e6
NUM_LIKELIEST = 5
VOCABULARY = 160


def make_groups(seed: int) -> list[Group]:
    """Two groups of three rollouts, each of one or two sequences with several turns."""
    generator = random.Random(seed)

    def sample() -> Sample:
        mask = [1, 1, 0, 1, 0, 0, 1, 1, 1][: generator.randint(4, 9)]
        tokens = [generator.randrange(160) for _ in range(len(mask) + generator.randint(2, 12))]
        logprobs = [-generator.uniform(4.5, 5.5) for _ in mask]
        columns = teacher_columns(generator, sum(mask)) if generator.random() < 0.8 else {}
        return Sample(tokens=tokens, response_length=len(mask), loss_mask=mask, rollout_log_probs=logprobs, columns=columns)

    def rollout(number: int) -> Rollout:
        samples = [sample() for _ in range(generator.randint(1, 2))]
        reward, stop = float(number % 3 == 0), StopReason.ANSWERED
        return Rollout(rollout_id=number, group_index=number // 3, samples=samples, reward=reward, stop_reason=stop)

    prompt = Prompt(index=0, row=0, messages=[], ground_truth=[])
    return [Group(prompt=prompt, rollouts=[rollout(3 * index + member) for member in range(3)]) for index in range(2)]


def teacher_columns(generator: random.Random, num_tokens: int) -> dict[str, Any]:
    """What a teacher says of so many tokens."""
    ids = [generator.sample(range(VOCABULARY), NUM_LIKELIEST) for _ in range(num_tokens)]
    likeliest = [sorted((-generator.uniform(2, 5) for _ in range(NUM_LIKELIEST)), reverse=True) for _ in range(num_tokens)]
    own = [-generator.uniform(2, 6) for _ in range(num_tokens)]
    return {"teacher": own, "teacher_ids": ids, "teacher_logprobs": likeliest}


def distillation(divergence: str | None) -> DistillationConfig:
    """A teacher beside the rewards: its advantages, or a divergence over its likeliest tokens."""
    own = DistillationConfig(teachers={"solver": TeacherConfig()}, coefficient=0.7, reward_coefficient=1.0)
    if divergence:
        own.term, own.divergence, own.top_k = TeacherTerm.loss, Divergence(divergence), NUM_LIKELIEST
    return own


def main(rank: int, job: dict[str, Any]) -> None:
    """Writes the weights before and after the second batch, by algorithm and layout."""
    fixtures, folder = load_fixtures(), Path(job["folder"])
    logprob.LOGITS_IN_CHUNK = LOGITS_IN_CHUNK
    for name, algorithm in job["algorithms"].items():
        for layout, trainer in job["layouts"].items():
            config = fixtures.build_config(Path(job["model"]), max_tokens_per_micro_batch=60, **trainer)
            config.algorithm.old_logprobs = OldLogprobs.trainer
            if isinstance(algorithm, dict):
                config.algorithm.distillation = distillation(algorithm["divergence"])
            else:
                config.algorithm.object = algorithm
            if rank >= world_size(config.trainer):
                continue
            place = folder / f"{name}-{layout}"
            parallel.initialize(config.trainer, rank=rank, store=meet(rank, place), seed=0)
            engine = LockstepEngine(config)
            engine.train(build_updates(engine.algorithm, make_groups(0))[0], 0)
            before = {key: tensor.detach().clone() for key, tensor in engine.export()}
            change_to_gradients(engine)
            engine.train(build_updates(engine.algorithm, make_groups(1))[0], 1)
            gradients = {key: (before[key] - tensor.detach()).contiguous() for key, tensor in engine.export()}
            if rank == 0:
                save_file({key: tensor.contiguous() for key, tensor in before.items()}, place / "before.safetensors")
                save_file(gradients, place / "gradients.safetensors")
            parallel.shutdown()


def change_to_gradients(engine: Any) -> None:
    """From now on a step subtracts the gradient; the moments of the first batch, which would be part of it, are forgotten."""
    step, options = engine.step, {"lr": HUGE, "eps": HUGE, "clip_grad": HUGE}
    engine.step = lambda **_: step(optimizer=options)
    for link in getattr(engine.optimizer, "chained_optimizers", [engine.optimizer]):
        for state in link.optimizer.state.values():
            for value in state.values():
                value.zero_()


if __name__ == "__main__":
    shared = json.loads(Path(sys.argv[1]).read_text())
    sys.exit(fork_ranks(2, lambda rank: main(rank, shared)))
