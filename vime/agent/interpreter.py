"""A Python interpreter with state between calls, in a workspace of its own.

    async with context.workspace(await context.prepared(SOURCE)) as box:
        interpreter = Interpreter(box, seconds=10)
        await interpreter.run("x = 6")
        result = await interpreter.run("x * 7")      # CommandResult(stdout="42\\n", exit_code=0, reason="finished", …)

Each call runs a cell, as in a notebook. A cell that hangs, crashes or needs too much memory is killed, and the next one finds the
names as they were before it. Names, imported modules and files are kept from call to call. Streams, builtins, `sys`, `__main__`,
the environment, the working folder, signal handlers and warnings are reset, and threads and processes end with their cell.
"""

from pathlib import Path

from vime.agent.workspace import WorkspaceLike
from vime.agent.workspace.results import CommandResult

SOURCE: dict[str, str] = {}
"""The empty source of an interpreter's workspace."""
RAISED = 1
"""The exit code of a cell that raised an exception."""
_CELL = Path(__file__).with_name("cell.py").read_text(encoding="utf-8")
_WORDS = ["python", "-W", "ignore", "-c", f"import sys; del sys.path[0]\n{_CELL}"]
"""Command that imports nothing from the working folder, where a cell may have left its own `socket.py`."""
NO_OUTPUT = "(no output)"
_LEFT_OUT = "..."
_ENDED = {
    "time_limit": "ended after {seconds:g} s",
    "memory_limit": "ended because it needed too much memory",
    "output_limit": "ended because it printed too much",
}
"""Messages about a cell that was killed, by its reason."""
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Interpreter:
    """Runs cells of Python one after another in a workspace, which may be an empty one, prepared from `SOURCE`."""

    def __init__(self, box: WorkspaceLike, *, seconds: float, output_bytes: int | None = None) -> None:
        """`seconds` limit each call, and `output_bytes` the part of each stream that is kept (`WorkspaceLike.run`)."""
        self._box, self._seconds, self._output_bytes = box, seconds, output_bytes

    async def run(self, code: str) -> CommandResult:
        """Runs a cell of Python and returns its output and exit code, even if it fails.

        After an exception the exit code is 1 and `stderr` ends with the traceback. Raises SandboxError if the workspace is lost.
        """
        return await self._box.run(
            _WORDS,
            seconds=self._seconds,
            stdin=code.encode(errors="replace"),
            environment=_ENVIRONMENT,
            output_bytes=self._output_bytes,
            keep=True,
        )


def text_of(result: CommandResult, *, seconds: float, most_characters: int) -> str:
    """The output of a cell as shown to a model, with the last line of an error or the reason of its end; long text is shortened.

    Example: `"6\\nZeroDivisionError: division by zero"`, or `"ended after 10 s"`.
    """
    parts = [result.stdout.strip()]
    if result.reason == "finished" and result.exit_code == RAISED:
        parts.append(result.stderr.strip().rpartition("\n")[2])
    elif not result.succeeded:
        parts.append(_ENDED.get(result.reason, "ended before it was complete").format(seconds=seconds))
    text, half = "\n".join(filter(None, parts)), most_characters // 2
    if len(text) > most_characters:
        text = text[:half] + _LEFT_OUT + text[-half:]
    return text or NO_OUTPUT
