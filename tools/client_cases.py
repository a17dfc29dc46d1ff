"""The clients that `tools/clients.py` runs: how each is started, its model's replies, and how its task must end."""

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from client_engine import FOLDER, Part, Script, call, thought
from client_environments import (
    AGENT_FRAMEWORK,
    AI_SDK,
    AIDER,
    ANTHROPIC,
    ANTHROPIC_JS,
    AUTOGEN,
    CLAUDE_AGENT_SDK,
    CREWAI,
    DSPY,
    GOOGLE_ADK,
    INSTRUCTOR,
    LANGGRAPH,
    LITELLM,
    LLAMA_INDEX,
    MINI_SWE_AGENT,
    OPENAI,
    OPENAI_AGENTS,
    OPENAI_JS,
    OPENCODE,
    PYDANTIC_AI,
    QWEN_CODE,
    SMOLAGENTS,
    STRANDS,
    Environment,
    NodeEnvironment,
    installed_version,
)
from client_programs import Aider, CodexByUrl, MiniSweAgent, OpenCode, QwenCode

from vime.agent.command import Command, CommandEnd
from vime.agent.harness.claude_code import ClaudeCode
from vime.agent.harness.codex import Codex
from vime.agent.harness.outcome import Harness
from vime.agent.harness.versions import CLAUDE_CODE, CODEX, Pinned
from vime.gateway.session import AgentSession
from vime.rollout.outside_agent import session_environment

SCRIPTS = Path(__file__).resolve().parent / "clients"
CHAT, RESPONSES, MESSAGES = "Chat Completions", "Responses", "Messages"
LOOK_UP = (
    thought("Two things.", "Let me see.", call("owner_of", thing="mill"), call("price_of", thing="mill")),
    thought("And the barn.", call("owner_of", thing="früh 😀 barn")),
    thought("Known.", "Ada owns the mill, which cost 40; Bea owns the barn."),
    thought("By the price.", call("price_of", thing="mill"), call("price_of", thing="früh 😀 barn")),
    thought("40 > 7.", "Ada is."),
)
HAND_OVER = (thought("Not mine.", call("transfer_to_registrar")), *LOOK_UP)
LEDGER, OLD, NEW = "ledger.txt", "mill: Bea\nbarn: Bea\n", "mill: Ada\nbarn: Bea\n"
PROMPT = "In ledger.txt the mill belongs to Bea. Correct that: it is Ada's."


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One client with its task.

    Example: `Case(name="openai, streamed", protocol=CHAT, environment=OPENAI, words=("openai_chat.py", "stream"), script=…)`.
    """

    name: str
    protocol: str
    script: Script
    environment: Environment | NodeEnvironment | None = None
    """The environment of a client that is not one of vime's own harnesses."""
    words: tuple[str, ...] = ()
    """The client's program in `clients/`, and arguments."""
    harness: Harness | None = None
    program: Pinned | None = None
    """The program that the harness starts."""
    constrains: bool = False
    """True if the client's constraints are enforced on the model, as on a frozen one."""
    refuses: bool = False
    """True if its request is refused."""
    max_model_len: int = field(default=16_384)

    def versions(self, *, here: bool) -> str:
        """The packages that run, with their versions; with `here` those in this interpreter's own environment."""
        if self.program is not None:
            return f"{self.program.package} {self.program.version}"
        assert self.environment is not None, self.name
        if not here:
            return self.environment.versions()
        names = [re.split(r"\[|==", package)[0] for package in self.environment.packages]
        return ", ".join(f"{name} {installed_version(sys.executable, name)}" for name in names)

    def command(self, session: AgentSession, folder: Path, *, here: bool) -> Command:
        """The command to start in an empty folder."""
        urls = {"openai_url": session.openai_url, "anthropic_url": session.anthropic_url}
        if self.harness is not None:
            (folder / LEDGER).write_text(OLD)
            return self.harness.command(PROMPT, **urls, secret=session.secret, folder=folder)
        assert self.environment is not None, self.name
        variables = {**session_environment(session), "HOME": str(folder)}
        variables |= self.environment.all_variables
        python = sys.executable if here else self.environment.interpreter_path
        words = [python, str(SCRIPTS / self.words[0]), *self.words[1:]]
        return Command(words=words, environment=variables, folder=folder)

    def problem(self, end: CommandEnd, folder: Path) -> str:
        """The reason why the task did not end well; "" if it did."""
        if self.harness is None:
            return "" if end.exit_code == 0 else f"exit code {end.exit_code}: {end.stderr.strip()[-600:]}"
        outcome = self.harness.outcome(end)
        if not outcome.ended_well:
            return outcome.reason
        found = (folder / LEDGER).read_text()
        return "" if found == NEW else f"{LEDGER} is {found!r}"


def _scripts(
    environment: Environment | NodeEnvironment,
    protocol: str,
    file: str,
    kinds: dict[str, str],
    replies: tuple[str, ...],
    *,
    by_order: bool = False,
) -> list[Case]:
    """A case for each way to call a script."""
    script = (Part(replies=replies, by_order=by_order),)
    return [
        Case(name=name, protocol=protocol, environment=environment, words=(file, *words.split()), script=script)
        for name, words in kinds.items()
    ]


def _structured(name: str, word: str, replies: tuple[str, ...]) -> Case:
    script = (Part(replies=replies),)
    words = ("openai_structured.py", word)
    return Case(
        name=name,
        protocol=f"{CHAT}, {RESPONSES}" if word == "parsed" else CHAT,
        environment=OPENAI,
        words=words,
        script=script,
        constrains=name.endswith("held to it"),
        refuses=word == "refused",
    )


CLAUDE_REPLIES = (
    thought("Look first.", call("Bash", command=f"cat {LEDGER}"), call("Read", file_path=f"{FOLDER}/{LEDGER}")),
    thought("Now.", call("Edit", file_path=f"{FOLDER}/{LEDGER}", old_string="mill: Bea", new_string="mill: Ada")),
    thought("Done.", "The mill is Ada's."),
)
HELPER_PROMPT = "Read ledger.txt and say whose the mill is."
CLAUDE_WITH_HELPER = (
    Part(
        marker=PROMPT,
        replies=(
            thought("Ask.", call("Agent", description="Look", prompt=HELPER_PROMPT, subagent_type="general-purpose")),
            *CLAUDE_REPLIES,
        ),
    ),
    Part(
        marker=HELPER_PROMPT, replies=(thought("See.", call("Bash", command=f"cat {LEDGER}")), thought("Seen.", "It is Bea's."))
    ),
)
CODEX_REPLIES = (
    thought("Look first.", "I look.", call("exec_command", cmd=f"cat {LEDGER}"), call("exec_command", cmd="ls")),
    thought("Now.", call("exec_command", cmd=f"sed -i 's/mill: Bea/mill: Ada/' {LEDGER}")),
    thought("Done.", "The mill is Ada's."),
)
SUMMARY = "The mill was corrected; look once more."
CODEX_COMPACTED = (
    Part(marker="CONTEXT CHECKPOINT COMPACTION", replies=(thought("Sum up.", SUMMARY),) * 3),
    Part(
        marker=SUMMARY,
        replies=(thought("Look.", call("exec_command", cmd=f"cat {LEDGER}")), thought("Done.", "The mill is Ada's.")),
    ),
    Part(replies=(thought("Look first.", call("exec_command", cmd=f"cat {LEDGER}; seq 1 400")), CODEX_REPLIES[1])),
)
"""Numbers that fill a window of 7,000 tokens before a third turn, so Codex asks for a summary and continues with it."""


CODEX_COMPACTED_BY_URL = (
    Part(marker="Sum up this conversation", replies=(thought("Sum up.", SUMMARY),) * 3),
    *CODEX_COMPACTED[1:],
)


def _typed(tool: str) -> tuple[str, ...]:
    """The look-up whose answers are calls of a tool."""
    first = call(tool, answer="Ada owns the mill, which cost 40; Bea owns the barn.", is_sure=True)
    return (*LOOK_UP[:2], thought("Known.", first), LOOK_UP[3], thought("40 > 7.", call(tool, answer="Ada is.", is_sure=True)))


FIRST, SECOND = "Ada owns the mill, which cost 40; Bea owns the barn.", "Ada is."
TOOL_CALLS = (
    *LOOK_UP[:2],
    thought("Known.", call("final_answer", answer=FIRST)),
    LOOK_UP[3],
    thought("40 > 7.", call("final_answer", answer=SECOND)),
)
PROGRAMS = (
    "mill, barn = owner_of('mill'), owner_of('früh 😀 barn')\nprint(mill, barn, price_of('mill'))",
    f"final_answer({FIRST!r})",
    "print(price_of('mill'), price_of('früh 😀 barn'))",
    f"final_answer({SECOND!r})",
)
CODE = tuple(thought("So.", f"Thought: I see.\n<code>\n{code}\n</code>") for code in PROGRAMS)
STRUCTURED_CODE = tuple(thought("So.", json.dumps({"thought": "I see.", "code": code})) for code in PROGRAMS)
OBJECTS = tuple(thought("So.", json.dumps({"answer": answer, "is_sure": True})) for answer in (FIRST, SECOND))
ANSWER_CALLS = tuple(thought("So.", call("Answer", answer=answer, is_sure=True)) for answer in (FIRST, SECOND))
DSPY_FIELDS = tuple(
    thought("So.", f"[[ ## reasoning ## ]]\nAs it stands there.\n\n[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]")
    for answer in (FIRST, SECOND)
)


def _step(tool: str, **arguments: str) -> str:
    """A step of dspy's ReAct."""
    fields = {"next_thought": "I look.", "next_tool_name": tool, "next_tool_args": json.dumps(arguments, ensure_ascii=False)}
    return thought(
        "So.", "\n\n".join([*(f"[[ ## {name} ## ]]\n{text}" for name, text in fields.items()), "[[ ## completed ## ]]"])
    )


DSPY_STEPS = (
    _step("owner_of", thing="mill"),
    _step("finish"),
    DSPY_FIELDS[0],
    _step("price_of", thing="mill"),
    _step("finish"),
    DSPY_FIELDS[1],
)
CREW = (*LOOK_UP[:3], LOOK_UP[3], LOOK_UP[4])
SDK_CALLS = tuple(
    reply.replace('"owner_of"', '"mcp__registry__owner_of"').replace('"price_of"', '"mcp__registry__price_of"')
    for reply in LOOK_UP
)
QWEN_REPLIES = (
    thought("Look first.", "I look.", call("run_shell_command", command=f"cat {LEDGER}", is_background=False)),
    thought("Read it.", call("read_file", file_path=f"{FOLDER}/{LEDGER}")),
    thought("Now.", call("edit", file_path=f"{FOLDER}/{LEDGER}", old_string="mill: Bea", new_string="mill: Ada")),
    thought("Done.", "The mill is Ada's."),
)
OPENCODE_REPLIES = (
    thought("Look first.", "I look.", call("bash", command=f"cat {LEDGER}", description="Looks")),
    thought("Read it.", call("read", filePath=f"{FOLDER}/{LEDGER}")),
    thought("Now.", call("edit", filePath=f"{FOLDER}/{LEDGER}", oldString="mill: Bea", newString="mill: Ada")),
    thought("Done.", "The mill is Ada's."),
)
AIDER_REPLIES = (thought("The whole file.", f"The mill is Ada's.\n\n{LEDGER}\n```\n{NEW}```"),)
MINI_REPLIES = (
    thought("Look first.", "I look.", call("bash", command=f"cat {LEDGER}")),
    thought("Now.", call("bash", command=f"sed -i 's/mill: Bea/mill: Ada/' {LEDGER}")),
    thought("Done.", call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
)
RUN = {"": "run", ", streamed": "stream"}


def _runs(name: str, before: str = "") -> dict[str, str]:
    """A script that takes `run` and `stream`."""
    return {f"{name}{kind}": f"{before} {word}" for kind, word in RUN.items()}


def _by_protocol(
    environment: Environment | NodeEnvironment, file: str, names: dict[str, str], kinds: dict[str, tuple[str, ...]], client: str
) -> list[Case]:
    """The cases of a client that speaks several protocols; `kinds` are its replies by the kind of request."""
    labels = {
        "text": client,
        "run": client,
        "stream": f"{client}, streamed",
        "typed": f"{client}, typed output",
        "object": f"{client}, generateObject",
    }
    return [
        case
        for word, protocol in names.items()
        for kind, replies in kinds.items()
        for case in _scripts(environment, protocol, file, {labels[kind]: f"{word} {kind}"}, replies)
    ]


def _program(
    name: str,
    protocol: str,
    environment: Environment | NodeEnvironment,
    harness: Harness,
    replies: tuple[str, ...],
    *,
    by_order: bool = False,
) -> Case:
    """A coding agent of `client_programs.py`."""
    return Case(
        name=name,
        protocol=protocol,
        environment=environment,
        harness=harness,
        script=(Part(replies=replies, by_order=by_order),),
        max_model_len=65_536,
    )


SYNC = {"sync": "sync", "async": "async", "streamed": "stream"}
JSON = '{"owner": "Ada", "is_sure": true}'
STRANDS_LIMITS = {
    "Strands, a limit of turns": "turns",
    "Strands, a limit of calls": "calls",
    "Strands, throttled": "throttled",
}

CASES = [
    *_scripts(OPENAI, CHAT, "openai_chat.py", {f"openai, {name}": word for name, word in SYNC.items()}, LOOK_UP),
    *_scripts(OPENAI, RESPONSES, "openai_responses.py", {f"openai, {name}": word for name, word in SYNC.items()}, LOOK_UP),
    _structured("openai, structured output, held to it", "parsed", (JSON,)),
    _structured("openai, structured output", "parsed", (thought("So.", JSON),)),
    _structured("openai, structured output, refused", "refused", (thought("By the deed.", "Ada does."),)),
    *_scripts(
        ANTHROPIC, MESSAGES, "anthropic_messages.py", {"anthropic, sync": "sync", "anthropic, streamed": "stream"}, LOOK_UP
    ),
    *_scripts(
        OPENAI_AGENTS,
        CHAT,
        "openai_agents.py",
        {"openai-agents": "chat run", "openai-agents, streamed": "chat stream"},
        HAND_OVER,
    ),
    *_scripts(
        OPENAI_AGENTS,
        RESPONSES,
        "openai_agents.py",
        {"openai-agents": "responses run", "openai-agents, streamed": "responses stream"},
        HAND_OVER,
    ),
    *_scripts(LANGGRAPH, CHAT, "langgraph_graph.py", {"LangGraph": "invoke", "LangGraph, streamed": "stream"}, LOOK_UP),
    *_scripts(STRANDS, CHAT, "strands_agent.py", {"Strands": ""}, LOOK_UP),
    *_scripts(STRANDS, CHAT, "strands_limits.py", STRANDS_LIMITS, LOOK_UP),
    Case(
        name="Strands, a context that overflows",
        protocol=CHAT,
        environment=STRANDS,
        words=("strands_limits.py", "context"),
        script=(Part(replies=LOOK_UP),),
        max_model_len=300,
    ),
    *_scripts(ANTHROPIC, MESSAGES, "anthropic_runner.py", _runs("anthropic's tool runner"), LOOK_UP),
    *_scripts(ANTHROPIC_JS, MESSAGES, "anthropic_runner.cjs", _runs("anthropic's tool runner, JavaScript"), LOOK_UP),
    *_scripts(OPENAI, RESPONSES, "openai_runner.py", _runs("openai's tool runner"), LOOK_UP),
    *_scripts(OPENAI_JS, CHAT, "openai_runner.cjs", _runs("openai's tool runner, JavaScript", "chat"), LOOK_UP),
    *_scripts(OPENAI_JS, RESPONSES, "openai_runner.cjs", _runs("openai's tool runner, JavaScript", "responses"), LOOK_UP),
    *_by_protocol(
        PYDANTIC_AI,
        "pydantic_agent.py",
        {"openai-chat": CHAT, "openai-responses": RESPONSES, "anthropic": MESSAGES},
        {"text": LOOK_UP, "stream": LOOK_UP, "typed": _typed("final_result")},
        "pydantic-ai",
    ),
    *_scripts(SMOLAGENTS, CHAT, "smolagents_agent.py", {"smolagents, ToolCallingAgent": "tools"}, TOOL_CALLS),
    *_scripts(SMOLAGENTS, CHAT, "smolagents_agent.py", {"smolagents, CodeAgent": "code"}, CODE),
    *_scripts(
        SMOLAGENTS, CHAT, "smolagents_agent.py", {"smolagents, CodeAgent with structured output": "structured"}, STRUCTURED_CODE
    ),
    *_by_protocol(
        AI_SDK,
        "ai_sdk.cjs",
        {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES, "compatible": f"{CHAT} (openai-compatible)"},
        {"text": LOOK_UP, "stream": LOOK_UP, "object": OBJECTS},
        "Vercel's AI SDK",
    ),
    *_scripts(LITELLM, CHAT, "litellm_loop.py", _runs("litellm", "openai"), LOOK_UP),
    *_scripts(LITELLM, MESSAGES, "litellm_loop.py", _runs("litellm", "anthropic"), LOOK_UP),
    *_scripts(DSPY, CHAT, "dspy_programs.py", {"dspy, ChainOfThought": "predict"}, DSPY_FIELDS, by_order=True),
    *_scripts(DSPY, CHAT, "dspy_programs.py", {"dspy, ReAct": "react"}, DSPY_STEPS, by_order=True),
    *_scripts(INSTRUCTOR, CHAT, "instructor_extraction.py", {"instructor, tools": "tools"}, ANSWER_CALLS, by_order=True),
    *_scripts(
        INSTRUCTOR,
        CHAT,
        "instructor_extraction.py",
        {"instructor, JSON": "json", "instructor, JSON schema": "json_schema"},
        OBJECTS,
        by_order=True,
    ),
    *_scripts(
        INSTRUCTOR, MESSAGES, "instructor_extraction.py", {"instructor, tools": "anthropic_tools"}, ANSWER_CALLS, by_order=True
    ),
    *_scripts(AUTOGEN, CHAT, "autogen_agent.py", _runs("AutoGen"), LOOK_UP),
    *_scripts(AGENT_FRAMEWORK, CHAT, "agent_framework_agent.py", _runs("Agent Framework", "chat"), LOOK_UP),
    *_scripts(AGENT_FRAMEWORK, RESPONSES, "agent_framework_agent.py", _runs("Agent Framework", "responses"), LOOK_UP),
    *_scripts(GOOGLE_ADK, CHAT, "adk_agent.py", _runs("Google's ADK"), LOOK_UP),
    *_scripts(LLAMA_INDEX, CHAT, "llama_index_agent.py", _runs("LlamaIndex"), LOOK_UP),
    *_scripts(CREWAI, CHAT, "crewai_crew.py", {"crewAI": ""}, CREW, by_order=True),
    *_scripts(CLAUDE_AGENT_SDK, MESSAGES, "claude_sdk_agent.py", {"Claude Agent SDK": ""}, SDK_CALLS),
    _program("Qwen Code", CHAT, QWEN_CODE, QwenCode(protocol="openai"), QWEN_REPLIES),
    _program("Qwen Code", MESSAGES, QWEN_CODE, QwenCode(protocol="anthropic"), QWEN_REPLIES),
    _program("opencode", CHAT, OPENCODE, OpenCode(package="@ai-sdk/openai-compatible"), OPENCODE_REPLIES),
    _program("opencode", RESPONSES, OPENCODE, OpenCode(package="@ai-sdk/openai"), OPENCODE_REPLIES),
    _program("opencode", MESSAGES, OPENCODE, OpenCode(package="@ai-sdk/anthropic"), OPENCODE_REPLIES),
    _program("aider", CHAT, AIDER, Aider(), AIDER_REPLIES, by_order=True),
    _program("mini-swe-agent", CHAT, MINI_SWE_AGENT, MiniSweAgent(), MINI_REPLIES),
    Case(
        name="Claude Code",
        protocol=MESSAGES,
        harness=ClaudeCode(max_turns=8),
        program=CLAUDE_CODE,
        script=(Part(replies=CLAUDE_REPLIES),),
    ),
    Case(
        name="Claude Code with all tools and a sub-agent",
        protocol=MESSAGES,
        harness=ClaudeCode(tools="default", thinks=True),
        program=CLAUDE_CODE,
        script=CLAUDE_WITH_HELPER,
        max_model_len=65_536,
    ),
    Case(name="Codex", protocol=RESPONSES, harness=Codex(), program=CODEX, script=(Part(replies=CODEX_REPLIES),)),
    Case(
        name="Codex with a history that it compacts",
        protocol=RESPONSES,
        harness=Codex(context_window=7_000),
        program=CODEX,
        script=CODEX_COMPACTED,
    ),
    Case(
        name="Codex with only its base URL changed",
        protocol=RESPONSES,
        harness=CodexByUrl(),
        program=CODEX,
        script=(Part(replies=CODEX_REPLIES),),
        max_model_len=65_536,
    ),
    Case(
        name="Codex with only its base URL changed, which compacts",
        protocol=RESPONSES,
        harness=CodexByUrl(context_window=10_500),
        program=CODEX,
        script=CODEX_COMPACTED_BY_URL,
        max_model_len=65_536,
    ),
]
