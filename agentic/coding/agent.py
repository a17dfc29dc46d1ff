"""A small coding agent in the usual form: it asks the model, carries out the tools that the reply calls, and asks again.

When its conversation is too long, the model writes a summary and continues with it in a new conversation. The tool `explore` asks
a sub-agent, which has a conversation of its own and may only read. So one rollout becomes several sequences, which the session
distinguishes (`main`, `compacted`, `subagent`).
"""

from collections import Counter
from dataclasses import dataclass, field

from agentic.coding import tools
from agentic.coding.agent_result import AgentResult, Ending
from agentic.coding.config import CodingLimits
from agentic.coding.prompts import Wording
from agentic.coding.tools import RepositoryTools
from vime.agent.workspace.contract import WorkspaceLike
from vime.chat.agent_clock import AgentClock
from vime.chat.request import CONTEXT_FULL, ChatAnswer, ChatRequest, Refused
from vime.gateway.session import AgentSession
from vime.trajectory.messages import calls_of
from vime.types import Message


@dataclass(kw_only=True, slots=True)
class Role:
    """One conversation of the agent: what it begins with, its tools, and how long it may be."""

    system: str
    task: str
    toolbox: RepositoryTools
    offered: list[dict]
    max_turns: int


@dataclass(kw_only=True, slots=True)
class CodingAgent:
    """Works on one problem in one workspace; `solve` may be called once."""

    session: AgentSession
    box: WorkspaceLike
    clock: AgentClock
    limits: CodingLimits
    wording: Wording
    num_turns: int = 0
    num_summaries: int = 0
    used: Counter[str] = field(default_factory=Counter)
    """Calls by tool, including those of sub-agents."""

    async def solve(self, statement: str) -> AgentResult:
        """Changes the repository until the agent submits, or a limit is reached."""
        offered = tools.ALL if self.limits.explorer_turns else [tool for tool in tools.ALL if tool is not tools.EXPLORE]
        role = self._role(self.wording.system, self.wording.task.format(statement=statement), offered, self.limits.turns)
        role.toolbox.explore = self._explore
        ending, _ = await self._work(role)
        return AgentResult(
            ending=ending, about={"turns": self.num_turns, "summaries": self.num_summaries, "tool_calls": dict(self.used)}
        )

    def _role(self, system: str, task: str, offered: list[dict], max_turns: int) -> Role:
        names = tuple(tool["function"]["name"] for tool in offered)
        box = RepositoryTools(
            box=self.box,
            offered=names,
            command_seconds=self.limits.command_seconds,
            result_characters=self.limits.result_characters,
            used=self.used,
        )
        return Role(system=system, task=task, toolbox=box, offered=offered, max_turns=max_turns)

    async def _explore(self, question: str) -> str:
        """The answer of a sub-agent."""
        task = self.wording.question.format(question=question)
        ending, answer = await self._work(self._role(self.wording.explorer, task, tools.LOOKING, self.limits.explorer_turns))
        return answer if ending is Ending.NO_CALL else f"no answer: {ending.value}"

    async def _work(self, role: Role) -> tuple[Ending, str]:
        """Plays a conversation to its end; returns its ending and the text of its last reply."""
        messages = _opening(role.system, role.task)
        for _ in range(role.max_turns):
            if self.clock.seconds >= self.limits.seconds:
                return Ending.TIME_USED_UP, ""
            answer = await self._ask(messages, role)
            if answer is None:
                return Ending.TOKENS_USED_UP, ""
            messages.append(answer.message)
            calls = calls_of(answer.message)
            if not calls:
                cut = answer.finish_reason == "length"
                return Ending.TOKENS_USED_UP if cut else Ending.NO_CALL, answer.message.get("content") or ""
            messages += await role.toolbox.results(calls)
            if role.toolbox.is_submitted:
                return Ending.SUBMITTED, ""
            if answer.usage.prompt_tokens + answer.usage.completion_tokens > self.limits.context_tokens:
                summary = await self._ask([*messages, _user(self.wording.summarize)], role)
                if summary is None:
                    return Ending.TOKENS_USED_UP, ""
                self.num_summaries += 1
                text = summary.message.get("content") or ""
                messages = _opening(role.system, self.wording.resumed.format(task=role.task, summary=text))
        return Ending.TURNS_USED_UP, ""

    async def _ask(self, messages: list[Message], role: Role) -> ChatAnswer | None:
        """The model's reply, or None if the context is full or the session has reached a limit."""
        self.num_turns += 1
        try:
            return await self.session.ask(ChatRequest(messages=messages, tools=role.offered, max_tokens=self.limits.turn_tokens))
        except Refused as refused:
            if refused.code != CONTEXT_FULL and not self.session.over:
                raise
            return None


def _opening(system: str, task: str) -> list[Message]:
    return [{"role": "system", "content": system}, _user(task)]


def _user(content: str) -> Message:
    return {"role": "user", "content": content}
