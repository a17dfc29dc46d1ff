"""A sequence of turns and tokens of the environment becomes a sample with exact masks, logprobs and versions."""

import random

import pytest

from vime.trajectory.sequence import TokenSequence
from vime.types import Sample, Turn


def turn_of(rng: random.Random, length: int) -> Turn:
    ids = [rng.randrange(100) for _ in range(length)]
    logprobs, versions = [-rng.randrange(1, 64) / 64 for _ in ids], sorted(rng.randrange(9) for _ in ids)
    return Turn(output_ids=ids, logprobs=logprobs, weight_versions=versions, finish_reason="stop")


@pytest.mark.parametrize("seed", range(20))
def test_every_sampled_token_is_trained_with_its_logprob_and_version_and_no_other(seed: int):
    rng = random.Random(seed)
    prompt = [rng.randrange(100) for _ in range(rng.randrange(1, 5))]
    sequence, expected = TokenSequence.begin(prompt), list[tuple[int, int, float, int]]()
    for number in range(rng.randrange(1, 6)):
        if number:
            between = [rng.randrange(100) for _ in range(rng.randrange(3))]
            sequence.add_environment(between)
            expected += [(token, 0, 0.0, expected[-1][3]) for token in between]
        turn = turn_of(rng, rng.randrange(0 if number else 1, 5))
        sequence.add_turn(turn)
        expected += [(token, 1, *about) for token, *about in zip(turn.output_ids, turn.logprobs, turn.weight_versions)]
    sequence.add_environment([7, 7])  # nothing was sampled after these
    while not expected[-1][1]:
        expected.pop()
    sample = sequence.sample(Sample(rollout_id=4), "text", kind="main")
    sample.to_columns()
    sample.validate()
    assert sample.tokens == [*prompt, *(token for token, _, _, _ in expected)]
    found = zip(sample.tokens[len(prompt) :], sample.loss_mask, sample.rollout_log_probs, sample.weight_versions)
    assert list(found) == expected
    assert (sample.response, sample.metadata, sample.rollout_id) == ("text", {"kind": "main"}, 4)


def test_a_prompt_continues_a_sequence_only_if_it_begins_with_all_of_it():
    sequence = TokenSequence.begin([1, 2])
    sequence.add_turn(Turn(output_ids=[3], logprobs=[-0.5], weight_versions=[0]))
    assert sequence.continues_in([1, 2, 3]) and sequence.continues_in([1, 2, 3, 4])
    assert not sequence.continues_in([1, 2]) and not sequence.continues_in([1, 2, 4, 3])
