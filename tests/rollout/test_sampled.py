"""What an attempt keeps of its calls: every prompt as it was, in memory that grows with what is new in it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vime.rollout.agent_clock import AgentClock
from vime.rollout.sampled import Call, Sampled
from vime.types import Column, Turn

IDS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


def begun(sampled: Sampled, prompt: list[int]) -> Call:
    call = Call(Column(prompt, np.int32), AgentClock(), None)
    sampled.add(call, tokenizer=None)
    return call


def turn(ids: list[int]) -> Turn:
    return Turn(output_ids=ids, logprobs=[-0.5] * len(ids), weight_versions=[1] * len(ids), finish_reason="stop")


@given(st.lists(st.tuples(st.integers(0, 9), IDS, IDS, st.booleans()), min_size=1, max_size=12))
def test_prompts_are_kept_as_they_were_whichever_calls_they_go_on_from(plan: list[tuple[int, list[int], list[int], bool]]):
    sampled = Sampled()
    calls: list[tuple[Call, list[int], list[int]]] = []
    for number, new, reply, ends in plan:
        _, prompt, said = calls[number % len(calls)] if calls else (None, [], [])
        call = begun(sampled, prompt := [*prompt, *said, *new])
        if ends:
            call.finish(turn(reply))
        calls.append((call, prompt, reply if ends else []))
    assert [list(call.prompt_ids) for call, _, _ in calls] == [prompt for _, prompt, _ in calls]


def test_a_long_conversation_takes_memory_for_its_tokens_once():
    sampled, prompt, calls = Sampled(), [1] * 1000, []
    for _ in range(50):
        calls.append(begun(sampled, prompt))
        calls[-1].finish(turn([2, 3]))
        prompt = [*prompt, 2, 3, 4, 4]
    assert calls[-1].prompt_ids == prompt[:-4]
    assert sum(len(call._rest) for call in calls) == 1000 + 49 * 2
