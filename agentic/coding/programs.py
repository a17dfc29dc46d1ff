"""Programs as the agent: Claude Code, Codex or one of yours is started in the workspace, and finds its session there.

# my_agent.py, for method.agent=my_agent.py:program
def program(method):
    return Program(harness=MyHarness(turns=method.limits.turns), binds={"/opt/my-agent": "/opt/my-agent"})
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from agentic.coding.agent_result import AgentResult, Ending
from agentic.coding.config import CodingConfig
from vime.agent.command import CommandEnd
from vime.agent.harness.claude_code import ClaudeCode
from vime.agent.harness.codex import Codex
from vime.agent.harness.outcome import Harness
from vime.agent.harness.versions import BY_NAME
from vime.agent.workspace.contract import HOME, WorkspaceLike
from vime.agent.workspace.results import CommandResult
from vime.errors import SampleError
from vime.gateway.session import AgentSession
from vime.hooks import load_hook
from vime.rollout.context import Context
from vime.types import StopReason

TASK = (
    "Solve this problem in the repository in your working folder by changing its code, not its tests:\n\n{statement}\n\n"
    "There is no network. Hidden tests will judge your work."
)
ERROR_CHARACTERS = 2_000
CLAUDE_CODE_TOOLS = "Bash,Read,Edit,Write"
TIME_REASONS = ("time_limit", "life_limit")
SESSION_ENDINGS = {
    StopReason.TURN_LIMIT: Ending.TURNS_USED_UP,
    StopReason.TOKEN_LIMIT: Ending.TOKENS_USED_UP,
    StopReason.TIME_LIMIT: Ending.TIME_USED_UP,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A program that can be the agent. Example: `Program(harness=Codex(), binds={"/opt/codex": "/opt/codex"})`."""

    harness: Harness
    """The harness that starts it and reads its end."""
    binds: Mapping[str, str] = field(default_factory=dict)
    """Paths of this machine that it may read in the workspace, with their places there."""


def program_of(method: CodingConfig) -> Program:
    """The configured program. Raises ConfigError if it is not installed, ImportError if its function cannot be imported."""
    if method.agent not in BY_NAME:
        make: Callable[[CodingConfig], Program] = load_hook(method.agent)
        return make(method)
    pinned, limits = BY_NAME[method.agent], method.limits
    pinned.installed()
    harness: Harness = Codex(context_window=limits.context_tokens)
    if method.agent == "claude_code":
        harness = ClaudeCode(tools=CLAUDE_CODE_TOOLS, max_turns=limits.turns, max_output_tokens=limits.turn_tokens)
    return Program(harness=harness, binds={str(pinned.folder): str(pinned.folder)})


async def run_program(
    context: Context, method: CodingConfig, program: Program, session: AgentSession, box: WorkspaceLike, statement: str
) -> AgentResult:
    """Starts the program, and waits until it ends or its time is used up.

    Raises SampleError if it never called its model, so that the rollout is run again.
    """
    async with context.reachable(session, box) as url:
        command = program.harness.command(
            TASK.format(statement=statement),
            openai_url=f"{url}/v1",
            anthropic_url=url,
            secret=session.secret,
            folder=Path(PurePosixPath(HOME)),
        )
        for path, text in command.files.items():
            await box.write(path, text)
        seconds = max(1.0, method.limits.seconds - context.clock.seconds)
        end = await box.run(command.words, seconds=seconds, environment=command.environment, queues=False)
    if not session.counts["calls"]:
        words = f"{end.reason}, exit code {end.exit_code}: {(end.stderr or end.stdout).strip()[-ERROR_CHARACTERS:]}"
        raise SampleError(f"method.agent={method.agent} ended without a call to its model ({words})")
    outcome = program.harness.outcome(CommandEnd(exit_code=end.exit_code, stdout=end.stdout, stderr=end.stderr))
    about = {"turns": session.counts["calls"], "program_end": end.reason, "outcome": outcome.reason, "answer": outcome.answer}
    return AgentResult(ending=_ending(end, session.stop_reason, ended_well=outcome.ended_well), about=about)


def _ending(end: CommandResult, session_end: StopReason, *, ended_well: bool) -> Ending:
    if end.reason in TIME_REASONS:
        return Ending.TIME_USED_UP
    return SESSION_ENDINGS.get(session_end, Ending.NO_CALL if ended_well else Ending.PROGRAM_FAILED)
