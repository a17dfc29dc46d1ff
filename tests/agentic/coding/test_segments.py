"""A rollout with two sub-agents and one summary, computed by hand: its segments, advantages, weights and metrics."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import agentic.coding
from agentic.coding.agent import CodingAgent
from agentic.coding.agent_result import Ending
from agentic.coding.config import CodingLimits
from agentic.coding.prompts import FULL
from tests.agentic.coding.scripted import MemoryBox, Reply, message_of
from vime.algorithm.batch import build_updates
from vime.algorithm.policy_gradient import PolicyGradient
from vime.chat.agent_clock import AgentClock
from vime.chat.request import ChatAnswer, ChatRequest, Usage
from vime.config import Aggregation, AlgorithmConfig, Credit, MethodConfig, Normalization, RunConfig
from vime.model.load_tokenizer import load_tokenizer
from vime.orchestration.batch_metrics import batch_metrics
from vime.trajectory.dialogue import Dialogue
from vime.trajectory.template import ChatTemplate
from vime.trajectory.trajectory import Trajectory
from vime.types import Group, Prompt, Rollout, Sample, StopReason, Turn

ACTOR = Path(agentic.coding.__file__).parent / "tiny" / "actor"
LOOK: Reply = ("shell", {"command": "ls"})
SUBMIT: Reply = ("submit", {})
BRANCHED: list[tuple[int, Reply, str]] = [
    (5, ("explore", {"question": "one?"}), "main"),
    (3, "in a.py", "subagent"),
    (5, ("explore", {"question": "two?"}), "main"),
    (7, "in b.py", "subagent"),
    (4, LOOK, "main"),
    (6, "a.py is wrong", "main"),  # the summary
    (10, SUBMIT, "compacted"),
]
"""Sampled tokens, reply and segment of each call."""


@dataclass(kw_only=True)
class TreeSession:
    """Answers with given replies of given lengths, and keeps them in a tree; the logprob of a token is the number of its call."""

    replies: list[tuple[int, Reply, str]]
    over: str = ""
    num_calls: int = 0
    trajectory: Trajectory = field(default_factory=Trajectory)
    dialogue: Dialogue = field(default_factory=lambda: Dialogue(ChatTemplate(load_tokenizer(ACTOR), {})))

    async def ask(self, request: ChatRequest) -> ChatAnswer:
        """The next reply; the conversation is too long with the third result of a tool."""
        size, reply, _ = self.replies[self.num_calls]
        self.num_calls += 1
        prompt = self.dialogue.prompt(request.messages, request.tools)
        turn = Turn(
            output_ids=[5] * size, logprobs=[-float(self.num_calls)] * size, weight_versions=[1] * size, finish_reason="stop"
        )
        message: Any = message_of(reply, self.num_calls)
        call = self.trajectory.begin(prompt, model="actor", tokenizer=load_tokenizer(ACTOR))
        call.finish(turn)
        self.dialogue.answered(call, prompt, message, ended=True)
        usage = Usage(prompt_tokens=100 * (reply is LOOK), completion_tokens=size)
        return ChatAnswer(message=message, finish_reason="stop", stop_text="", turn=turn, usage=usage)


async def rollout(number: int, reward: float, replies: list[tuple[int, Reply, str]]) -> Rollout:
    session: Any = TreeSession(replies=replies)
    box: Any = MemoryBox(commands={"ls": "a.py"})
    agent = CodingAgent(session=session, box=box, clock=AgentClock(), limits=CodingLimits(context_tokens=50), wording=FULL)
    assert (await agent.solve("It fails.")).ending is Ending.SUBMITTED and session.num_calls == len(replies)
    samples = session.trajectory.samples(Sample(rollout_id=number))
    return Rollout(rollout_id=number, group_index=0, samples=samples, reward=reward, stop_reason=StopReason.ANSWERED)


def weights(group: Group, aggregation: Aggregation, credit: Credit) -> tuple[list[list[float]], list[float]]:
    """Weight and advantage of the tokens of each sequence, and what both rollouts add up to in the loss."""
    config = AlgorithmConfig(normalization=Normalization.none, aggregation=aggregation)
    run = RunConfig(algorithm=config, method=MethodConfig(credit=credit))
    (update,), _ = build_updates(PolicyGradient(run), [group])
    found = [[sample.columns["weight"], sample.columns["advantage"]] for sample in update]
    parts = [sample.columns["weight"] * sample.columns["advantage"] * sum(sample.loss_mask) for sample in update]
    return found, [sum(part for part in parts if part > 0), sum(part for part in parts if part < 0)]


async def test_a_rollout_with_two_sub_agents_and_a_summary_counts_as_computed_by_hand():
    branched, linear = await rollout(7, 1.0, BRANCHED), await rollout(8, 0.0, [(10, SUBMIT, "main")])
    segments = {sample.metadata["kind"]: [] for sample in branched.samples}
    for sample in branched.samples:
        segments[sample.metadata["kind"]].append(sample.num_trained_tokens)
    assert segments == {"main": [20], "subagent": [3, 7], "compacted": [10]}  # 5 + 5 + 4 + 6 = 20
    assert {sample.rollout_id for sample in branched.samples} == {7}
    trained = [
        logprob
        for sample in branched.samples
        for logprob, mask in zip(sample.rollout_log_probs, sample.loss_mask, strict=True)
        if mask
    ]
    assert sorted(trained) == sorted(-float(call) for call, (size, _, _) in enumerate(BRANCHED, start=1) for _ in range(size))

    prompt = Prompt(index=0, row=0, messages=[{"role": "user", "content": "?"}], ground_truth=[])
    group = Group(prompt=prompt, rollouts=[branched, linear])
    # rewards 1 and 0 have the mean 0.5; 50 tokens in all, 40 and 10 of the rollouts; sequences in the order of their last replies
    found, sums = weights(group, Aggregation.token, Credit.share)
    assert found == [pytest.approx([1 / 50, 0.5])] * 4 + [pytest.approx([1 / 50, -0.5])]
    assert sums == pytest.approx([0.4, -0.1])
    found, sums = weights(group, Aggregation.rollout, Credit.share)
    assert found == [pytest.approx([1 / 80, 0.5])] * 4 + [pytest.approx([1 / 20, -0.5])]
    assert sums == pytest.approx([0.25, -0.25])
    found, sums = weights(group, Aggregation.sample, Credit.split)
    assert sorted(weight for weight, _ in found[:4]) == pytest.approx([1 / 100, 1 / 50, 1 / 35, 1 / 15])
    assert [advantage for _, advantage in found] == pytest.approx([0.125] * 4 + [-0.5])
    assert sums == pytest.approx([0.1, -0.1])

    metrics = batch_metrics([group], version=1)
    assert metrics["reward/mean"] == 0.5 and metrics["rollout/sequences_mean"] == 2.5  # four sequences and one
    assert metrics["rollout/response_tokens_mean"] == 25.0
    assert metrics["rollout/staleness_max"] == 0.0
