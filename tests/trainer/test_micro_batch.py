"""The tensors of a micro-batch: every column at the places at which it is defined, cut where ranks share a row."""

import numpy as np
import pytest
import torch

from vime.config import RunConfig, TrainerConfig
from vime.trainer.micro_batch import MicroBatch, MicroBatches
from vime.trainer.shard import PackedUpdate, RowShare
from vime.types import ColumnType, Defined, Sample
from vime.types.column import IDENTITY, TARGET

EXPERTS = ColumnType(name="experts", dtype="int32", shape=(2,), defined=Defined.everywhere, fill=-1)
SAMPLES = [
    Sample(
        tokens=[1, 5, 9, 2, 7],
        loss_mask=[1, 0, 1],
        columns={"logprob": [-0.1, 0.0, -0.7], "advantage": [0.5, -0.5], "weight": 0.25, "version": [3, 4, 4]},
        rollout_id=6,
    ),
    Sample(tokens=[4, 8, 3], loss_mask=[1, 1, 1], columns={"logprob": [-1.0, -2.0, -3.0], "weight": 0.125}, rollout_id=7),
]
SAMPLES = [each.with_columns(experts=np.repeat(np.asarray(each.tokens)[:, None], 2, 1) * [1, 10]) for each in SAMPLES]


def build(share: RowShare | None = None, samples: list[Sample] = SAMPLES) -> MicroBatch:
    share = share or RowShare()
    config = RunConfig(trainer=TrainerConfig(context_parallel_size=share.context_size))
    columns = [EXPERTS, IDENTITY["rollout_id"], *([TARGET] if "target" in samples[0].columns else [])]
    shard = PackedUpdate(config, samples, version=4, columns=columns).shard(0)
    (batch,) = MicroBatches(shard, only_trained=True, device="cpu", share=share)
    return batch


def test_each_trained_token_has_its_entries_and_the_first_of_a_sequence_is_not_trained() -> None:
    batch = build()
    assert batch.tokens_T.tolist() == [1, 5, 9, 2, 7, 4, 8, 3]
    assert batch.wanted.predict_M.tolist() == [1, 3, 5, 6] and batch.wanted.target_M.tolist() == [9, 7, 8, 3]
    found = {name: values.tolist() for name, values in batch.columns.items()}
    assert found["logprob"] == pytest.approx([-0.1, -0.7, -2.0, -3.0])
    assert found["advantage"] == [0.5, -0.5, 0.0, 0.0] and found["weight"] == [0.25, 0.25, 0.125, 0.125]
    assert found["rollout_id"] == [6, 7]
    assert batch.staleness_N.tolist() == [1, 0, 0, 0] and batch.sequence_N.tolist() == [0, 0, 1, 1]
    assert found["experts"] == [[token, 10 * token] for token in batch.tokens_T.tolist()]


def test_context_parallel_ranks_share_what_is_defined_everywhere_and_know_the_rest() -> None:
    whole = build()
    ranks = [build(RowShare(context_rank=rank, context_size=2)) for rank in range(2)]
    for batch in ranks:
        real = batch.columns["experts"][:, 0] >= 0  # the rest is padding
        assert torch.equal(batch.columns["experts"][real, 0], batch.tokens_T[real].int())
        assert all(torch.equal(batch.columns[name], values) for name, values in whole.columns.items() if name != "experts")
    places = torch.cat([batch.wanted.place_M for batch in ranks if batch.wanted.place_M is not None])
    assert sorted(places.tolist()) == [0, 1, 2, 3]
    held = torch.cat([batch.columns["experts"][:, 0] for batch in ranks])
    assert sorted(held[held >= 0].tolist()) == sorted(whole.tokens_T.tolist())


def test_targets_of_its_own_take_the_place_of_the_next_tokens() -> None:
    samples = [SAMPLES[0].with_columns(target=[11, 12, 13]), SAMPLES[1].with_columns(target=[14, 15, 16])]
    batch = build(samples=samples)
    assert batch.wanted.target_M.tolist() == [11, 13, 15, 16] and batch.tokens_T.tolist() == build().tokens_T.tolist()


def test_a_row_without_sequences_is_one_token_without_loss() -> None:
    config = RunConfig(trainer=TrainerConfig(data_parallel_size=2))
    packed = PackedUpdate(config, SAMPLES[:1], version=4, columns=[EXPERTS, IDENTITY["rollout_id"]])
    batches = [next(iter(MicroBatches(packed.shard(rank), only_trained=True, device="cpu"))) for rank in range(2)]
    empty, whole = sorted(batches, key=lambda batch: batch.tokens_T.numel())
    assert empty.tokens_T.tolist() == [0] and empty.wanted.count == 0 and whole.wanted.count == 2
    assert {name: len(values) for name, values in empty.columns.items() if name != "experts"} == dict.fromkeys(
        ["mask", "logprob", "advantage", "weight", "rollout_id"], 0
    )
