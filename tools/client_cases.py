"""The clients that `tools/clients.py` runs: how each is started, what its model says, and how its task must end."""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from client_engine import FOLDER, Part, Script, call, thought
from client_environments import (
    ANTHROPIC,
    LANGGRAPH,
    OPENAI,
    OPENAI_AGENTS,
    STRANDS,
    Environment,
    installed_version,
)

from vime.agent.command import Command, CommandEnd
from vime.agent.harness.claude_code import ClaudeCode
from vime.agent.harness.codex import Codex
from vime.agent.harness.outcome import Harness
from vime.agent.harness.versions import CLAUDE_CODE, CODEX, Pinned
from vime.gateway.session import AgentSession

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
    environment: Environment | None = None
    """Of a client in Python."""
    words: tuple[str, ...] = ()
    """Its program in `clients/`, and arguments."""
    harness: Harness | None = None
    program: Pinned | None = None
    """What the harness starts."""
    constrains: bool = False
    """Whether the model is held to what the client asks for, as a frozen one is."""
    refuses: bool = False
    """Whether it is refused what it asks for."""
    max_model_len: int = field(default=16_384)

    def versions(self, *, here: bool) -> str:
        """What runs; with `here` in this interpreter's own environment."""
        if self.program is not None:
            return f"{self.program.package} {self.program.version}"
        assert self.environment is not None, self.name
        names = [re.split(r"\[|==", package)[0] for package in self.environment.packages]
        python = sys.executable if here else self.environment.python
        return ", ".join(f"{name} {installed_version(python, name)}" for name in names)

    def command(self, session: AgentSession, folder: Path, *, here: bool) -> Command:
        """What to start in an empty folder."""
        urls = {"openai_url": session.openai_url, "anthropic_url": session.anthropic_url}
        if self.harness is not None:
            (folder / LEDGER).write_text(OLD)
            return self.harness.command(PROMPT, **urls, secret=session.secret, folder=folder)
        assert self.environment is not None, self.name
        python = sys.executable if here else str(self.environment.python)
        variables = {"OPENAI_BASE_URL": session.openai_url, "OPENAI_API_KEY": session.secret}
        variables |= {"ANTHROPIC_BASE_URL": session.anthropic_url, "ANTHROPIC_AUTH_TOKEN": session.secret}
        words = [python, str(SCRIPTS / self.words[0]), *self.words[1:]]
        return Command(words=words, environment=variables, folder=folder)

    def problem(self, end: CommandEnd, folder: Path) -> str:
        """Why the task did not end well; "" if it did."""
        if self.harness is None:
            return "" if end.exit_code == 0 else f"exit code {end.exit_code}: {end.stderr.strip()[-600:]}"
        outcome = self.harness.outcome(end)
        if not outcome.ended_well:
            return outcome.reason
        found = (folder / LEDGER).read_text()
        return "" if found == NEW else f"{LEDGER} is {found!r}"


def _scripts(environment: Environment, protocol: str, file: str, kinds: dict[str, str], replies: tuple[str, ...]) -> list[Case]:
    """A case for each way to call a script."""
    return [
        Case(name=name, protocol=protocol, environment=environment, words=(file, *words.split()), script=(Part(replies=replies),))
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
        constrains=word == "parsed",
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
"""In a window of 7,000 tokens the numbers leave no room for a third turn, so Codex asks for a summary and goes on with that."""
RUN = {"": "run", ", streamed": "stream"}
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
    _structured("openai, structured output in evaluation", "parsed", (JSON,)),
    _structured("openai, structured output refused in training", "refused", (thought("By the deed.", "Ada does."),)),
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
]
