"""The ranks of `test_teachers.py`: two steps, and then the answers of all teachers that are weights in the trainer.

python teacher_ranks.py JOB.json
"""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from vime.trainer import megatron_setup

megatron_setup.set_up()

import numpy as np  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from tests.trainer.forked import fork_ranks  # noqa: E402
from tests.trainer.own_ranks import NUM_LIKELIEST, VOCABULARY, make_groups  # noqa: E402
from tests.trainer.ranks import LOGITS_IN_CHUNK, load_fixtures, meet  # noqa: E402
from vime.algorithm.algorithm import Question  # noqa: E402
from vime.algorithm.batch import build_updates  # noqa: E402
from vime.algorithm.choice import algorithm_of  # noqa: E402
from vime.algorithm.distillation import HINT, teachers_in_trainer  # noqa: E402
from vime.cluster.layout import world_size  # noqa: E402
from vime.config import DistillationConfig, RunConfig, TeacherConfig, TeacherPlace, TeacherTerm, TopKOf  # noqa: E402
from vime.trainer import logprob, parallel  # noqa: E402
from vime.trainer.lockstep import LockstepEngine  # noqa: E402
from vime.types import Group  # noqa: E402

DECAY = 0.5
OF_STUDENT = {"present": 0.0, "average": DECAY, "first": 1.0}


def with_teachers(config: RunConfig, checkpoint: Path, *, top_k_of: TopKOf = TopKOf.teacher) -> RunConfig:
    """A run with a teacher of every kind, each of a data set of its name."""
    config.rollout.num_logprobs = NUM_LIKELIEST
    config.algorithm.distillation = DistillationConfig(term=TeacherTerm.loss, top_k=NUM_LIKELIEST, top_k_of=top_k_of)
    config.algorithm.distillation.teachers = {
        "solver": TeacherConfig(place=TeacherPlace.trainer, checkpoint=str(checkpoint), datasets=["solver"])
    }
    for name, decay in OF_STUDENT.items():
        teacher = TeacherConfig(place=TeacherPlace.trainer, decay=decay, datasets=[name], hint="mine.py:hint")
        config.algorithm.distillation.teachers[name] = teacher
    return config


def hinted(teacher: str) -> list[Group]:
    """Groups of the data set of a teacher, as workers hand them over: with the tokens that the teacher alone reads, or none, and
    with those that the sampler has recorded."""
    generator, groups = random.Random(teacher), make_groups(7)
    for group in groups:
        group.prompt = replace(group.prompt, dataset=teacher)
        for sample in (sample for rollout in group.rollouts for sample in rollout.samples):
            hint = [generator.randrange(VOCABULARY) for _ in range(generator.choice([0, 3, 17]))]
            recorded = [generator.sample(range(VOCABULARY), NUM_LIKELIEST) for _ in sample.loss_mask]
            sample.columns = {HINT: hint, "top_ids": np.array(recorded, np.int32)}
    return groups


def question_of(algorithm: Any, teacher: str) -> Question:
    """The question to a teacher about its groups."""
    (question,) = algorithm.questions(hinted(teacher))
    assert question.need == teachers_in_trainer(algorithm.config.distillation)[teacher]
    return question


def main(rank: int, job: dict[str, Any]) -> None:
    """Writes the weights after each step and the columns of each teacher, by layout."""
    fixtures, folder = load_fixtures(), Path(job["folder"])
    logprob.LOGITS_IN_CHUNK = LOGITS_IN_CHUNK
    for layout, trainer in job["layouts"].items():
        config = fixtures.build_config(Path(job["model"]), max_tokens_per_micro_batch=60, lr=1e-2, **trainer)
        with_teachers(config, Path(job["teacher"]))
        if rank >= world_size(config.trainer):
            continue
        place = folder / layout
        parallel.initialize(config.trainer, rank=rank, store=meet(rank, place), seed=0)
        engine = LockstepEngine(config)
        weights = [exported(engine)]
        for step in range(2):
            engine.train(build_updates(engine.algorithm, make_groups(step))[0], step)
            weights.append(exported(engine))
        found = {}
        for top_k_of in TopKOf:
            algorithm = algorithm_of(with_teachers(config, Path(job["teacher"]), top_k_of=top_k_of))
            for name in config.algorithm.distillation.teachers:
                answers = engine.answer(question_of(algorithm, name), version=2)
                answered = [{key: values.tolist() for key, values in each.items()} for each in answers]
                found[f"{name} {top_k_of.value}"] = answered
        assert all((tensor == weights[-1][name]).all() for name, tensor in exported(engine).items())
        if rank == 0:
            for step, each in enumerate(weights):
                save_file(each, place / f"{step}.safetensors")
            (place / "found.json").write_text(json.dumps(found))
        parallel.shutdown()


def exported(engine: Any) -> dict[str, Any]:
    """A copy of all weights."""
    return {key: tensor.detach().clone().contiguous() for key, tensor in engine.export()}


if __name__ == "__main__":
    shared = json.loads(Path(sys.argv[1]).read_text())
    sys.exit(fork_ranks(2, lambda rank: main(rank, shared)))
