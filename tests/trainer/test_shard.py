"""Shards: each rank's arrays hold exactly the sequences that the packing gives it, whatever their columns."""

import pickle
import random
from typing import Any

import numpy as np
import pytest

from vime.config import RunConfig, TrainerConfig
from vime.errors import SampleError
from vime.trainer.shard import PackedRows, PackedUpdate
from vime.types import Column, ColumnType, Defined, Sample

MINE = (
    ColumnType(name="ids", dtype="int32", shape=(3,), fill=-1),
    ColumnType(name="experts", dtype="uint8", shape=(2, 2), defined=Defined.everywhere, fill=255),
    ColumnType(name="pair", dtype="int64", defined=Defined.sequence),
    ColumnType(name="bonus", fill=0.5),
)


def ragged(count: int, *, as_columns: bool) -> list[Sample]:
    generator = random.Random(0)
    numbers = np.random.default_rng(0)
    samples = []
    for number in range(count):
        response = generator.randint(1, 40)
        tokens = [generator.randrange(1000) for _ in range(response + generator.randint(0, 60))]
        mask = [int(generator.random() < 0.7) for _ in range(response)]
        logprobs = [-generator.randrange(1, 1000) / 256 for _ in range(response)]
        versions = [generator.randint(3, 5) for _ in range(response)]
        sample = Sample(
            tokens=Column(tokens, np.int32) if as_columns else tokens,
            loss_mask=Column(mask, np.uint8) if as_columns else mask,
            columns={
                "logprob": Column(logprobs, np.float32) if as_columns else logprobs,
                "version": Column(versions, np.int32) if as_columns else versions,
                "advantage": float(np.float32(generator.gauss(0, 1))),
                "weight": float(np.float32(generator.random() / count + number)),
                "experts": numbers.integers(0, 9, (len(tokens), 2, 2)),
            },
            pair=number // 2,
        )
        if number % 2:
            sample = sample.with_columns(
                ids=numbers.integers(0, 9, (sample.num_trained_tokens, 3)), advantage=[0.25] * sample.num_trained_tokens
            )
        samples.append(sample)
    return samples


def config(num_ranks: int) -> RunConfig:
    trainer = TrainerConfig(data_parallel_size=num_ranks, max_tokens_per_micro_batch=200)
    return RunConfig(trainer=trainer)


def parts(row: PackedRows) -> dict[int, dict[str, Any]]:
    """The columns of each sequence of a row, whole, by its place in the update."""
    counts = {
        Defined.everywhere: row.num_tokens,
        Defined.response: row.num_response_tokens,
        Defined.sampled: [int(part.sum()) for part in np.split(row.trained, np.cumsum(row.num_response_tokens)[:-1])],
        Defined.sequence: [1] * len(row.indices),
    }
    found: dict[int, dict[str, Any]] = {index: {} for index in row.indices.tolist()}
    for name, kind in row.types.items():
        whole = np.repeat(row.numbers[name], counts[kind.defined], 0) if name in row.numbers else row.columns[name]
        for index, values in zip(found, np.split(whole, np.cumsum(counts[kind.defined])[:-1])):
            found[index][name] = values.tolist()
    return found


def expected(sample: Sample) -> dict[str, Any]:
    """The same of a sequence."""
    num_trained = sample.num_trained_tokens
    return {
        "token": list(sample.tokens),
        "mask": [bool(value) for value in sample.loss_mask],
        "logprob": list(sample.columns["logprob"]),
        "version": list(sample.columns["version"]),
        "advantage": np.broadcast_to(sample.columns["advantage"], (num_trained,)).tolist(),
        "weight": [sample.columns["weight"]] * num_trained,
        "ids": np.asarray(sample.columns["ids"]).tolist() if "ids" in sample.columns else [[-1] * 3] * num_trained,
        "experts": sample.columns["experts"].tolist(),
        "pair": [sample.pair],
        "bonus": [0.5] * num_trained,
    }


@pytest.mark.parametrize("as_columns", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_the_ranks_together_hold_every_sequence_once_and_whole(num_ranks: int, as_columns: bool) -> None:
    samples = ragged(50, as_columns=as_columns)
    packed = PackedUpdate(config(num_ranks), samples, columns=MINE)
    found, num_rows = {}, set()
    for rank in range(num_ranks):
        shard = pickle.loads(pickle.dumps(packed.shard(rank), protocol=5))
        rows = shard.rows()
        num_rows.add(len(rows))
        assert (shard.update_samples, shard.update_tokens) == (50, sum(len(sample.tokens) for sample in samples))
        for row in rows:
            assert row.num_tokens.sum() <= 200
            found |= parts(row)
    assert len(num_rows) == 1
    assert [found[index] for index in range(50)] == [expected(sample) for sample in samples]


def test_more_ranks_than_samples_leave_rows_empty() -> None:
    packed = PackedUpdate(config(3), ragged(2, as_columns=True))
    sizes = sorted(len(row.indices) for rank in range(3) for row in packed.shard(rank).rows())
    assert sizes == [0, 1, 1]


def test_a_block_is_a_few_arrays_however_many_samples_it_has() -> None:
    buffers: list[pickle.PickleBuffer] = []
    shard = PackedUpdate(config(1), ragged(300, as_columns=True)).shard(0)
    pickle.dumps(shard, protocol=5, buffer_callback=buffers.append)
    (block,) = shard.blocks
    assert len(buffers) == 9
    assert all(np.shares_memory(row.columns["token"], block.columns["token"]) for row in shard.rows())


def test_a_number_for_all_places_costs_nothing_by_token() -> None:
    samples = [Sample(tokens=[1] * 100, loss_mask=[1] * 90, columns={"logprob": [-1.0] * 90, "weight": 0.1})] * 20
    (block,) = PackedUpdate(config(1), samples, version=7).shard(0).blocks
    assert set(block.columns) == {"token", "mask", "logprob"}
    assert block.numbers["version"].tolist() == [7] * 20 and block.numbers["advantage"].tolist() == [0.0] * 20


def test_large_shards_are_kept_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = PackedUpdate(config(2), ragged(300, as_columns=True))
    whole = packed.shard(1)
    monkeypatch.setattr("vime.trainer.shard.BLOCK_TOKENS", 1000)
    store: list[PackedRows] = []
    kept = packed.shard(1, keep=lambda block: store.append(block) or len(store) - 1)
    assert kept.blocks == list(range(len(store))) and len(store) > 5
    assert all(len(block.columns["token"]) < 1000 + 2 * 200 for block in store)  # a row has at most 200
    again = kept.fetched(lambda numbers: [store[number] for number in numbers])
    assert [parts(row) for row in again.rows()] == [parts(row) for row in whole.rows()]


def test_entries_of_a_column_are_as_many_as_its_places() -> None:
    sample = Sample(tokens=[1, 2, 3], loss_mask=[1, 1], columns={"logprob": []})
    with pytest.raises(SampleError, match="column 'logprob' has 0 entries for 2 response places"):
        PackedUpdate(config(1), [sample]).shard(0)
    with pytest.raises(SampleError, match="has 2 entries for 2 × 3 sampled places"):
        PackedUpdate(config(1), [sample.with_columns(logprob=-1.0, ids=[0, 1])], columns=MINE[:1]).shard(0)


def test_logprobs_are_wanted_of_all_but_demonstrations() -> None:
    sample = Sample(tokens=[1, 2, 3], loss_mask=[1, 1])
    with pytest.raises(SampleError, match="no column 'logprob'"):
        PackedUpdate(config(1), [sample]).shard(0)
    (row,) = PackedUpdate(config(1), [sample], with_logprobs=False).shard(0).rows()
    assert row.numbers["logprob"].tolist() == [0.0] and row.numbers["version"].tolist() == [0]
