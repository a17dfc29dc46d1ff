"""The rollout: solvers, then rewriters who read all solutions, then a selector who names one. The calls of a stage run at once.

A rollout ends where a stage leaves no solution to read. Every reply is a sample of its own, whose sampled tokens are trained if
the trained model wrote it; replies of frozen models are samples without tokens to train, for rewards and readers.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace

from agentic.multi_agent.config import MultiAgentConfig, Role
from agentic.multi_agent.prompts import WORDINGS
from vime.chat.conversation import Conversation
from vime.rollout.context import Context, Sampling
from vime.thinking import CLOSE, after_thinking
from vime.trajectory.aside import aside
from vime.types import Sample, StopReason, Turn

JUDGMENT = re.compile(r"Judgment:\s*(\d+)")


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """One sample for each call of the method."""
    return await play(context, sample, MultiAgentConfig.of(context.config).calls())


async def single_turn(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """The single-turn baseline: one solver."""
    return await play(context, sample, {Role.solver: 1})


async def play(context: Context, sample: Sample, calls: Mapping[Role, int]) -> list[Sample]:
    """One sample for each call; `chosen` of the last is the place, among all, of the solution that the rollout answers with."""
    method, samples, places = MultiAgentConfig.of(context.config), list[Sample](), list[int]()
    for role, number in calls.items():
        if role is not Role.solver and not places:
            break
        solutions = [solution_of(samples[place].response, thinking=context.config.model.thinks) or "" for place in places]
        prompt = WORDINGS[method.prompt_style].prompt(role.value, sample.question, solutions)
        replies = await ask(context, sample, role, prompt, num_calls=number)
        texts = [solution_of(reply.response, thinking=context.config.model.thinks) for reply in replies]
        if role is Role.selector:
            named = judgment_of(texts[0] or "", num_solutions=len(places)) if texts else None
            places = [] if named is None else [places[named]]
        else:
            places = [len(samples) + place for place, text in enumerate(texts) if text is not None]
        samples += replies
    samples = samples or [_reply(context, sample, None, Turn(finish_reason="length"), role=Role.solver)]
    about = samples[-1].metadata
    about["chosen"] = places[0] if places else None
    samples[-1].stop_reason = StopReason.ANSWERED if places else StopReason.TOKEN_LIMIT if about["cut"] else StopReason.MALFORMED
    return samples


async def ask(context: Context, sample: Sample, role: Role, prompt: str, *, num_calls: int) -> list[Sample]:
    """The replies of a role to one prompt, sampled at once; none if the prompt leaves no room for a reply."""
    method, messages = MultiAgentConfig.of(context.config), [{"role": "user", "content": prompt}]
    model = context.models[method.model_of(role)]
    talks = [model.conversation(messages) for _ in range(num_calls)]
    if talks and model.shows_tokens and await aside(len(prompt), lambda: talks[0].room) < 1:
        return []
    turns = await asyncio.gather(*(talk.reply(max_tokens=method.max_response_tokens) for talk in talks))
    return [_reply(context, sample, talk, turn, role=role) for talk, turn in zip(talks, turns, strict=True)]


def solution_of(response: str, *, thinking: bool) -> str | None:
    """The text after the thinking of a reply, with `thinking` its only one; None if there is none."""
    if thinking and response.count(CLOSE) > 1:
        return None
    return after_thinking(response, thinks=thinking).strip() or None


def judgment_of(text: str, *, num_solutions: int) -> int | None:
    """The place of the solution that the first judgment in a text names; None if there is no such solution."""
    found = JUDGMENT.search(text)
    return int(found[1]) - 1 if found and 1 <= int(found[1]) <= num_solutions else None


def _reply(context: Context, sample: Sample, talk: Conversation | None, turn: Turn, *, role: Role) -> Sample:
    """Converts a reply to a sample. A reply of a frozen model becomes untrained text after the tokens of the problem."""
    num_tokens = turn.usage[1] if turn.usage else len(turn.output_ids)
    about = {"role": role.value, "cut": turn.finish_reason == "length", "tokens": num_tokens}
    name = MultiAgentConfig.of(context.config).model_of(role)
    if talk is not None and context.config.serving.models[name].trained and turn.output_ids:
        return talk.samples(sample, **about)[0]
    problem = context.models["actor"].render([{"role": "user", "content": sample.question}])
    return replace(sample, prompt=[], tokens=problem, response=turn.text, metadata=about, remove_sample=True)
