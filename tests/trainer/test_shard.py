"""Shards: each rank's arrays hold exactly the samples that the packing gives it, whatever their kind."""

import pickle
import random

import numpy as np
import pytest

from vime.config import AlgorithmConfig, AlgorithmName, RunConfig, TrainerConfig
from vime.errors import SampleError
from vime.trainer.shard import Block, PackedUpdate
from vime.types import TrainSample
from vime.types.column import Column


def ragged(count: int, *, as_columns: bool) -> list[TrainSample]:
    generator = random.Random(0)
    samples = []
    for number in range(count):
        response = generator.randint(1, 40)
        tokens = [generator.randrange(1000) for _ in range(response + generator.randint(1, 60))]
        mask = [int(generator.random() < 0.7) for _ in range(response)]
        logprobs = [-generator.randrange(1, 1000) / 256 for _ in range(response)]
        versions = [generator.randint(3, 5) for _ in range(response)]
        samples.append(
            TrainSample(
                tokens=Column(tokens, np.int32) if as_columns else tokens,
                loss_mask=Column(mask, np.uint8) if as_columns else mask,
                rollout_log_probs=Column(logprobs, np.float32) if as_columns else logprobs,
                weight_versions=Column(versions, np.int32) if as_columns else versions,
                advantage=generator.gauss(0, 1),
                token_weight=generator.random() / count + number,
                version=5,
            )
        )
    return samples


def config(num_ranks: int, name: AlgorithmName = AlgorithmName.grpo) -> RunConfig:
    trainer = TrainerConfig(data_parallel_size=num_ranks, max_tokens_per_micro_batch=200)
    return RunConfig(trainer=trainer, algorithm=AlgorithmConfig(name=name))


@pytest.mark.parametrize("as_columns", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_the_ranks_together_hold_every_sample_once_and_whole(num_ranks: int, as_columns: bool) -> None:
    samples = ragged(50, as_columns=as_columns)
    packed = PackedUpdate(config(num_ranks), samples)
    found, num_rows = {}, set()
    for rank in range(num_ranks):
        shard = pickle.loads(pickle.dumps(packed.shard(rank), protocol=5))
        rows = shard.rows()
        num_rows.add(len(rows))
        assert (shard.update_samples, shard.update_tokens) == (50, sum(len(sample.tokens) for sample in samples))
        for row in rows:
            assert sum(len(sample.tokens) for sample in row.samples) <= 200
            found |= dict(zip(row.indices, row.samples, strict=True))
    assert len(num_rows) == 1
    assert [found[index] for index in range(50)] == samples


def test_more_ranks_than_samples_leave_rows_empty() -> None:
    packed = PackedUpdate(config(3), ragged(2, as_columns=True))
    sizes = sorted(len(row.samples) for rank in range(3) for row in packed.shard(rank).rows())
    assert sizes == [0, 1, 1]


def test_a_block_is_a_few_arrays_however_many_samples_it_has() -> None:
    buffers: list[pickle.PickleBuffer] = []
    shard = PackedUpdate(config(1), ragged(300, as_columns=True)).shard(0)
    pickle.dumps(shard, protocol=5, buffer_callback=buffers.append)
    (block,) = shard.blocks
    assert len(buffers) == 10
    kept = [np.asarray(sample.tokens) for row in shard.rows() for sample in row.samples]
    assert all(np.shares_memory(tokens, block.tokens) for tokens in kept)


def test_large_shards_are_kept_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = PackedUpdate(config(2), ragged(300, as_columns=True))
    whole = packed.shard(1)
    monkeypatch.setattr("vime.trainer.shard.BLOCK_TOKENS", 1000)
    store: list[Block] = []
    kept = packed.shard(1, keep=lambda block: store.append(block) or len(store) - 1)
    assert kept.blocks == list(range(len(store))) and len(store) > 5
    assert all(len(block.tokens) < 1000 + 2 * 200 for block in store)  # a row has at most 200
    assert kept.fetched(lambda numbers: [store[number] for number in numbers]).rows() == whole.rows()


def test_logprobs_are_wanted_of_all_but_demonstrations() -> None:
    sample = TrainSample(tokens=[1, 2, 3], loss_mask=[1, 1], rollout_log_probs=[], advantage=1.0, token_weight=0.5)
    with pytest.raises(SampleError, match="sample 0 of an update has 0 logprobs for 2 response tokens"):
        PackedUpdate(config(1), [sample])
    (row,) = PackedUpdate(config(1, AlgorithmName.sft), [sample]).shard(0).rows()
    assert row.samples[0].rollout_log_probs == [0.0, 0.0]
    assert row.samples[0].weight_versions == [0, 0] and row.samples[0].version == 0
