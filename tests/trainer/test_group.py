"""The driver's side: actors behind awaitable methods, errors that say which rank and what to do."""

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.trainer.own_ranks import make_groups
from vime.algorithm.algorithm import OLD
from vime.algorithm.choice import algorithm_of, critic_of
from vime.algorithm.distillation import HINT
from vime.algorithm.preference import CHOSEN, REJECTED
from vime.batches import Batch, Lesson, lesson_of
from vime.config import AlgorithmName, BadUpdate, CriticPlace, RunConfig, TeacherConfig, TeacherPlace
from vime.errors import CheckpointError, ConfigError, HookError, RankLostError, TrainingError
from vime.loop import answer, hand_over, make_steps, train_critic
from vime.trainer.group import TrainerGroup, rank_environment
from vime.types import Sample

Models = Callable[..., Path]
MakeConfig = Callable[..., RunConfig]
MakeSamples = Callable[..., list[Sample]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def group(
    models: Models, make_config: MakeConfig, ray_cluster: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[TrainerGroup]:
    """Two data-parallel ranks."""
    config = make_config(models("qwen2"), data_parallel_size=2, num_threads=1)
    group = TrainerGroup(config, tmp_path_factory.mktemp("run"), f"test{os.getpid()}")
    group.start()
    await group.ready()
    yield group
    await group.stop()


async def train(group: TrainerGroup, updates: list[list[Sample]], step: int) -> dict[str, float]:
    config, algorithm = group._config, algorithm_of(group._config)
    handed = await hand_over(config, algorithm, group, Lesson(updates=updates), step)
    first = await group.forward_backward(handed[0], algorithm)
    return (await make_steps(config, algorithm, group, handed, first, step, keep=False))[0]


def test_kernels_of_tensor_parallel_ranks_on_gpus_start_in_the_order_of_their_calls() -> None:
    config = RunConfig()
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in rank_environment(config)
    config.trainer.tensor_parallel_size = 2
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in rank_environment(config)
    config.cluster.gpus_per_node = 8
    assert rank_environment(config)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


@pytest.mark.asyncio(loop_scope="module")
async def test_logprobs_come_back_in_the_order_asked_and_equal_the_engines(
    group: TrainerGroup, engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    samples = make_samples(7)
    tokens, lengths = [s.tokens for s in samples], [s.response_length for s in samples]
    found = await group.logprobs(tokens, lengths, 0.8)
    expected = engine(make_config(models("qwen2"))).logprobs(tokens, lengths, 0.8)
    assert [len(values) for values in found] == lengths
    for index, values in enumerate(found):
        assert values == pytest.approx(expected[index], abs=1e-4)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_batch_trains_exports_saves_and_resumes(group: TrainerGroup, make_samples: MakeSamples, tmp_path: Path) -> None:
    before = await group.export_weights(1)
    await group.begin_save(tmp_path / "trainer")
    metrics = await train(group, [make_samples(9), make_samples(5, seed=1)], 0)
    while not await group.is_saved():
        await asyncio.sleep(0.05)
    await group.finish_save()
    assert metrics["train/num_samples"] == 14 and metrics["train/tokens_per_second"] > 0
    after = await group.export_weights(2)
    assert before.digest != after.digest and before.num_bytes == after.num_bytes
    assert all(Path(file).exists() for file in after.files)
    await group.save_hugging_face(tmp_path / "model")
    assert len(load_file(tmp_path / "model" / "model.safetensors")) == after.num_tensors
    await group.load(tmp_path / "trainer")
    assert (await group.export_weights(3)).digest == before.digest


@pytest.mark.asyncio(loop_scope="module")
async def test_errors_of_a_rank_keep_their_type_and_text(group: TrainerGroup, make_samples: MakeSamples, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a complete"):
        await group.load(tmp_path / "nothing")
    bad = make_samples(4)
    bad[0] = bad[0].with_columns(advantage=float("nan"))
    with pytest.raises(TrainingError, match="step 3"):
        await train(group, [bad], 3)


RAISES_AT_FIVE = """
def loss(config, logprobs, old_logprobs, advantages, mask, sequences):
    if (advantages == 5.0).any():
        raise ValueError("an advantage of five")
    return -(logprobs - old_logprobs).exp() * advantages, {}
"""


@pytest.mark.asyncio(loop_scope="module")
async def test_a_loss_that_raises_on_one_rank_names_it_and_leaves_all_ranks_able_to_train(
    group: TrainerGroup, make_samples: MakeSamples, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(RAISES_AT_FIVE)
    config = replace(group._config, algorithm=replace(group._config.algorithm, loss=f"{tmp_path / 'mine.py'}:loss"))
    algorithm, samples, digest = algorithm_of(config), make_samples(6), (await group.export_weights(1)).digest
    update = await group.hand_over(algorithm, [samples[0].with_columns(advantage=5.0), *samples[1:]], version=0)
    for _ in range(2):
        with pytest.raises(HookError, match=r"^algorithm\.loss=.*mine\.py:loss raised ValueError: an advantage of five"):
            await group.forward_backward(update, algorithm)
    assert (await group.export_weights(2)).digest == digest
    moves = group.num_moves
    found = await train(group, [samples], 1)
    assert found["train/grad_norm"] > 0 and group.num_moves == moves + 1


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("lora", [0, pytest.param(4, marks=pytest.mark.long)])
async def test_a_preference_is_learned_from_pairs_that_lie_on_two_ranks(
    models: Models, make_config: MakeConfig, make_samples: MakeSamples, ray_cluster: None, tmp_path: Path, lora: int
) -> None:
    config = make_config(models("qwen2"), data_parallel_size=2, lr=1e-2 if lora else 1e-3)
    config.algorithm.name, config.algorithm.object = AlgorithmName.sft, "vime.algorithm.preference.Preference"
    config.trainer.lora.rank = lora
    group, algorithm = TrainerGroup(config, tmp_path, f"pairs{os.getpid()}"), algorithm_of(config)
    await group.loaded()
    pairs = [
        replace(each, seat=(CHOSEN, REJECTED)[number % 2], pair=number // 2, rollout_id=number // 2, order=number % 2)
        for number, each in enumerate(make_samples(8))
    ]
    pairs = [each.with_columns(advantage=0.0, weight=0.25) for each in pairs]

    async def ask(samples: list[Sample]) -> list[dict[str, Any]]:
        update = await group.hand_over(algorithm, samples, version=0, has_advantages=False)
        return await group.read(update, await group.forward(update, algorithm.needs_before))

    found = []
    for step in range(6):
        lesson = await lesson_of(config, algorithm, Batch(demonstrations=pairs), step, ask)
        updates = await hand_over(config, algorithm, group, lesson, step)
        first = await group.forward_backward(updates[0], algorithm)
        await make_steps(config, algorithm, group, updates, first, step, keep=False)
        found.append(lesson.metrics)
    losses = [metrics["train/preference_loss"] for metrics in found]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6), "the policy is its reference, with adapters too"
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.9 * losses[0]
    assert found[-1]["train/preference_accuracy"] == 1.0
    await group.stop()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_critic_answers_learns_and_is_saved_with_the_policy(
    models: Models, make_config: MakeConfig, ray_cluster: None, tmp_path: Path
) -> None:
    config = make_config(models("qwen2"), data_parallel_size=2)
    config.algorithm.critic.place, config.algorithm.critic.lr = CriticPlace.model, 1e-3
    group, algorithm, critic = TrainerGroup(config, tmp_path, f"critic{os.getpid()}"), algorithm_of(config), critic_of(config)
    await group.loaded()
    digest = (await group.export_weights(1)).digest
    batch = make_groups(0)

    async def ask(samples: list[Sample]) -> list[dict[str, Any]]:
        update = await group.hand_over(algorithm, samples, version=0, has_advantages=False)
        return await group.read(update, await group.forward(update, algorithm.needs_before))

    async def learn(step: int) -> dict[str, float]:
        lesson = await lesson_of(config, algorithm, Batch(groups=batch), step, ask)
        updates = await hand_over(config, algorithm, group, lesson, step)
        metrics, kept = await train_critic(config, critic, group, updates, step)
        assert kept is updates
        return metrics | lesson.metrics

    first = await learn(0)
    assert first["train/value_mean"] == 0.0 and first["train/critic_grad_norm"] > 0
    await group.save(tmp_path / "trainer")
    second = await learn(1)
    assert second["train/value_mean"] != 0.0 and second["train/value_loss"] < first["train/value_loss"]
    await group.load(tmp_path / "trainer")
    again = await learn(1)
    assert {name: value for name, value in again.items() if "seconds" not in name} == {
        name: value for name, value in second.items() if "seconds" not in name
    }
    assert (await group.export_weights(2)).digest == digest, "only the policy is exported, and it has not learned"
    await group.stop()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_teacher_in_the_trainer_gives_the_loss_of_one_whose_logprobs_come_with_the_rollouts(
    models: Models, make_config: MakeConfig, ray_cluster: None, tmp_path: Path
) -> None:
    config = make_config(models("qwen2"), data_parallel_size=2)
    teacher = TeacherConfig(place=TeacherPlace.trainer, checkpoint=str(models("qwen2")))
    config.algorithm.distillation.teachers = {"solver": teacher}
    group, algorithm = TrainerGroup(config, tmp_path, f"taught{os.getpid()}"), algorithm_of(config)
    await group.loaded()
    network = AutoModelForCausalLM.from_pretrained(models("qwen2"), dtype=torch.float32)

    def served(sample: Sample) -> np.ndarray:
        ids, places = torch.tensor(sample.tokens), np.flatnonzero(sample.trained) + len(sample.tokens) - len(sample.loss_mask)
        with torch.no_grad():
            logprobs = network(ids.unsqueeze(0)).logits[0].log_softmax(-1)
        return logprobs[places - 1, ids[places]].numpy()

    found = []
    for is_served in (True, False):
        batch = make_groups(0)
        for sample in (sample for each in batch for rollout in each.rollouts for sample in rollout.samples):
            sample.columns = {"teacher": served(sample)} if is_served else {HINT: np.zeros(0, np.int32)}
        await answer(algorithm, group, Batch(groups=batch), 0)
        lesson = await lesson_of(config, algorithm, Batch(groups=batch), 0, no_questions)
        assert lesson.metrics["train/taught_share"] == 1.0
        (update,) = await hand_over(config, algorithm, group, lesson, 0)
        sums, _ = await group.forward_backward(update, algorithm)
        stepped = await group.step(optimizer={"lr": 0.0})
        found.append([lesson.metrics["train/teacher_kl"], sums["train/loss"], stepped["train/grad_norm"]])
    assert found[0] == pytest.approx(found[1], rel=1e-4) and found[0][2] > 0
    await group.stop()


async def no_questions(samples: list[Sample]) -> list[dict[str, Any]]:
    """The answers for an algorithm that needs nothing before its advantages."""
    raise AssertionError("nothing is needed")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_dead_rank_is_named_and_stop_cleans_up(
    models: Models, make_config: MakeConfig, make_samples: MakeSamples, ray_cluster: None, tmp_path: Path
) -> None:
    group = TrainerGroup(make_config(models("qwen2")), tmp_path, f"dead{os.getpid()}")
    group.start()
    await group.ready()
    payload = await group.export_weights(1)
    os.kill((await group._results("pid", [rank.pid.remote() for rank in group._ranks]))[0], signal.SIGKILL)
    with pytest.raises(RankLostError, match="trainer rank 0 died during train"):
        await train(group, [make_samples(2)], 0)
    await group.stop()
    await group.stop()
    assert not Path(payload.files[0]).exists()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_checkpoint_of_another_shape_fails_at_start_with_the_config_error(
    models: Models, make_config: MakeConfig, ray_cluster: None, tmp_path: Path
) -> None:
    config = make_config(models("qwen2"))
    config.model.num_layers = 9
    group = TrainerGroup(config, tmp_path, f"shape{os.getpid()}")
    group.start()
    with pytest.raises(ConfigError, match=r"model\.num_layers=9"):
        await group.ready()
    await group.stop()


@pytest.mark.asyncio(loop_scope="module")
async def test_logprobs_of_a_pass_come_back_by_sequence_and_a_skipped_update_has_none(
    models: Models, make_config: MakeConfig, make_samples: MakeSamples, ray_cluster: None, tmp_path: Path
) -> None:
    config = make_config(models("qwen2"), data_parallel_size=2, on_bad_update=BadUpdate.skip)
    group, samples = TrainerGroup(config, tmp_path, f"kept{os.getpid()}"), make_samples(5)
    group.start()
    await group.ready()
    algorithm = algorithm_of(config)
    update = await group.hand_over(algorithm, samples, version=0)
    sums, columns = await group.forward_backward(update, algorithm, keep=True)
    assert columns is not None and sums["train/num_tokens"] == sum(sample.num_trained_tokens for sample in samples)
    pairs = zip(await group.read(update, columns), await group.read(update, await group.forward(update, [OLD])))
    for sample, (trained, present) in zip(samples, pairs):
        assert len(trained["trained"]) == sample.num_trained_tokens
        assert trained["trained"].tolist() == pytest.approx(present["old"].tolist(), abs=1e-5)
    bad = await group.hand_over(algorithm, [samples[0].with_columns(advantage=float("nan"))], version=1)
    sums, columns = await group.forward_backward(bad, algorithm, keep=True)
    assert sums["train/num_skipped_updates"] == 1.0 and columns is None
    await group.stop()
