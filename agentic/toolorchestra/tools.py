"""The tools of the question-answering mode: search, enhance_reasoning, answer, call_expert."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agentic.toolorchestra import prompts
from agentic.toolorchestra.config import ToolOrchestraConfig
from agentic.toolorchestra.experts import ExpertReply, Experts
from agentic.toolorchestra.offer import ALIAS, ANSWER, CALL_EXPERT, ENHANCE_REASONING, SEARCH
from agentic.toolorchestra.tool_calls import ToolCall
from vime.agent.sandbox import Sandbox
from vime.rollout.context import Context
from vime.rollout.tool import ToolOutcome, run_sandbox, run_tool
from vime.thinking import after_thinking
from vime.types import Message

NO_SEARCH = "[The search service does not take this query]"
Cut = Callable[[str, int], tuple[str, int]]
"""Cuts a text to a limit and returns it with its length, both in characters or both in tokens."""


def first_characters(text: str, limit: int) -> tuple[str, int]:
    """The first characters of a text, and how many they are."""
    return text[:limit], min(len(text), limit)


def first_tokens(text: str, limit: int, *, tokenizer: Any) -> tuple[str, int]:
    """The first tokens of a text, and how many they are."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return (text, len(ids)) if len(ids) <= limit else (tokenizer.decode(ids[:limit]), limit)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolOutput:
    """The result of a call: `text` for the orchestrator, and `answer` if it ends the rollout ("" if the expert gave none).

    Example: `ToolOutput(text="[1] Ada Lovelace: …")`.
    """

    text: str
    answer: str | None = None
    failed: bool = False
    """True if the expert, the search or the program failed."""


@dataclass(kw_only=True, slots=True)
class Findings:
    """Findings of earlier calls, as they are shown to experts."""

    documents: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)

    def text(self, limit: int, cut: Cut = first_characters) -> str:
        """All findings under headings; each of the three parts keeps its newest pieces within a third of the limit."""
        parts = {"Documents": self.documents, "Programs and their output": self.programs, "Attempts": self.attempts}
        kept = {name: _newest(pieces, limit // 3, cut) for name, pieces in parts.items() if pieces}
        return "".join(f"{name}:\n{text}\n\n" for name, text in kept.items())


class QuestionTools:
    """The tools of one rollout."""

    def __init__(self, context: Context, experts: Experts, question: str) -> None:
        self._context, self._experts, self._question = context, experts, question
        method = ToolOrchestraConfig.of(context.config)
        self._limits, self._prompts = method.limits, prompts.SETS[method.prompt_style]
        self._findings = Findings()

    async def call(self, call: ToolCall) -> ToolOutput:
        """Runs a call; a wrong call returns an error text.

        Raises SandboxError if no sandbox starts and ServerError if the search service does not answer, both infrastructure
        failures.
        """
        if call.error or call.name not in self._experts.offered:
            return ToolOutput(text=f"Error: {call.error or f'there is no tool {call.name}'}", failed=True)
        alias, offered = call.arguments.get(ALIAS[call.name]), self._experts.offered[call.name]
        if not isinstance(alias, str) or alias not in offered:
            return ToolOutput(text=f"Error: {call.name} has no model {alias}; there are: {', '.join(offered)}", failed=True)
        if call.name == SEARCH:
            return await self._search(alias)
        if call.name == ENHANCE_REASONING:
            return await self._reason(alias)
        if call.name == ANSWER:
            return await self._answer(alias)
        return await self._advise(alias, str(call.arguments.get("query") or ""))

    async def _search(self, alias: str) -> ToolOutput:
        reply = await self._ask(SEARCH, alias, self._prompts.query)
        if reply.turn is None:
            return ToolOutput(text=reply.text, failed=True)
        query = prompts.tagged(reply.text, "query")
        if query is None:
            self._context.trace.count("query_unreadable")
            query = self._question[: prompts.MAX_QUERY_CHARACTERS]
        retriever = self._context.retriever
        assert retriever is not None, "checked by problems()"
        found = await run_tool(self._context, "retrieval", retriever.search, query, self._limits.documents)
        if found.outcome is not ToolOutcome.ANSWERED:
            self._context.trace.count("retrieval_failed")
            if found.lost is not None:
                raise found.lost
            return ToolOutput(text=NO_SEARCH, failed=True)
        cut = self._limits.document_characters
        documents = [f"{passage.title}: {passage.text}"[:cut] for passage in found.output]
        self._findings.documents += [document for document in documents if document not in self._findings.documents]
        return ToolOutput(text="\n".join(f"[{number}] {text}" for number, text in enumerate(documents, 1)) or "(nothing found)")

    async def _reason(self, alias: str) -> ToolOutput:
        reply = await self._ask(ENHANCE_REASONING, alias, self._prompts.program)
        if reply.turn is None:
            return ToolOutput(text=reply.text, failed=True)
        program = prompts.program_of(reply.text)
        if program is None:
            self._context.trace.count("program_unreadable")
            text = after_thinking(reply.text).strip()[: self._limits.context_characters]
            self._findings.attempts.append(text)
            return ToolOutput(text=text, failed=True)
        result = await run_sandbox(self._context, ENHANCE_REASONING, Sandbox(self._context.config.sandbox).run, program)
        self._context.trace.count(f"sandbox_{result.reason}")
        output = result.text()
        self._findings.programs.append(f"{program.strip()}\n-> {output}")
        return ToolOutput(text=output, failed=result.reason != "finished" or result.exit_code != 0)

    async def _answer(self, alias: str) -> ToolOutput:
        reply = await self._ask(ANSWER, alias, self._prompts.answer)
        if reply.turn is None:
            return ToolOutput(text=reply.text, failed=True)
        answer = prompts.answer_of(reply.text)
        if answer is None:
            self._context.trace.count("answer_unreadable")
        return ToolOutput(text=answer or "", answer=answer or "", failed=answer is None)

    async def _advise(self, alias: str, query: str) -> ToolOutput:
        reply = await self._ask(CALL_EXPERT, alias, self._prompts.advice, query=query)
        if reply.turn is None:
            return ToolOutput(text=reply.text, failed=True)
        text = after_thinking(reply.text).strip()[: self._limits.context_characters]
        self._findings.attempts.append(text)
        return ToolOutput(text=text)

    async def _ask(self, tool: str, alias: str, template: str, **fields: str) -> ExpertReply:
        by_tokens = self._limits.findings_tokens
        cut = partial(first_tokens, tokenizer=self._context.models["actor"].tokenizer) if by_tokens else first_characters
        context = self._findings.text(by_tokens or self._limits.context_characters, cut)
        content = template.format(context=context, question=self._question, **fields)
        messages: list[Message] = [{"role": "user", "content": content}]
        return await self._experts.ask(tool, alias, messages)


def _newest(pieces: list[str], limit: int, cut: Cut) -> str:
    kept: list[str] = []
    left = limit
    for piece in reversed(pieces):
        text, length = cut(piece, limit)
        if kept and length > left:
            break
        kept.insert(0, text)
        left -= length
    return "\n".join(kept)
