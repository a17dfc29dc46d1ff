"""The result of a sandboxed program, from its output, its exit status and the launcher's report."""

import signal
from dataclasses import dataclass

from vime.agent.program import Program
from vime.config import SandboxConfig
from vime.errors import SandboxError

REASONS = ("finished", "raised", "time_limit", "memory_limit", "process_limit", "output_limit", "file_limit", "killed")
"""Why a program ended: by itself (see `exit_code`), by an uncaught exception, at a limit, or by a signal."""
_EXCEPTIONS = {240: "raised", 241: "memory_limit", 242: "process_limit", 243: "file_limit"}
"""Reasons by the launcher's exit status; a program that exits with one of them itself gets the same reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxResult:
    """The output and the end of a program.

    Example: `SandboxResult(stdout="", stderr="… ZeroDivisionError: …", exit_code=1, reason="raised", seconds=0.04)`; an exit
    code of 128 + n means signal n.
    """

    stdout: str
    stderr: str
    exit_code: int
    reason: str
    seconds: float

    def text(self) -> str:
        """The output as an agent is shown it, followed by how the program ended unless it succeeded."""
        output = self.stdout.strip()
        if self.reason == "finished" and self.exit_code == 0:
            return output or "(the program printed nothing)"
        return f"{output}\n[{self.reason}, exit code {self.exit_code}] {self.stderr.strip()}".strip()


def result_of(config: SandboxConfig, program: Program, exit_code: int, seconds: float) -> SandboxResult:
    """The result of a program that has ended. Raises SandboxError if it never began."""
    stderr = program.read["stderr"].decode(errors="replace")[-config.output_characters :]
    exit_code = 128 - exit_code if exit_code < 0 else exit_code
    if program.stopped:
        reason, exit_code = program.stopped, 128 + signal.SIGKILL
    elif not program.read["report"]:
        raise SandboxError(f"the sandbox did not start: {stderr.strip()[-500:] or f'exit status {exit_code}'}")
    elif exit_code in _EXCEPTIONS:
        reason, exit_code = _EXCEPTIONS[exit_code], 1
    else:
        reason = _reason(exit_code, used_up=program.may_have_computed(config.cpu_seconds))
    stdout = program.read["stdout"].decode(errors="replace")[: config.output_characters]
    return SandboxResult(stdout=stdout, stderr=stderr, exit_code=exit_code, reason=reason, seconds=seconds)


def _reason(exit_code: int, *, used_up: bool) -> str:
    """The reason by the exit code; a signal of the CPU limit counts as such only if so much time can have been used."""
    if used_up and exit_code in (128 + signal.SIGXCPU, 128 + signal.SIGKILL):
        return "time_limit"
    if exit_code == 128 + signal.SIGXFSZ:
        return "file_limit"
    return "killed" if exit_code > 128 else "finished"
