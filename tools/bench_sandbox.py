"""Short programs per second that the sandbox runs, one after another and one per core at a time.

    python tools/bench_sandbox.py [--seconds 10] [--json PATH]

Beside it the bare interpreter, started as the sandbox starts it: the difference is what the sandbox costs.
"""

import argparse
import asyncio
import json
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vime.agent.bubblewrap import INTERPRETER, interpreter
from vime.agent.sandbox import Sandbox, sandbox_problem
from vime.config import SandboxConfig

PROGRAM = "print(sum(number * number for number in range(1000)))"
ANSWER = "332833500\n"


def main() -> None:
    """Measures, prints the table, and writes the rows."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    arguments.add_argument("--json", type=Path, default=None, help="write the rows there")
    given = arguments.parse_args()
    if problem := sandbox_problem():
        raise SystemExit(problem)
    rows = asyncio.run(measure(given.seconds))
    show(rows)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(rows, indent=1))


async def measure(seconds: float) -> list[dict[str, Any]]:
    """Rows `{benchmark, case, ours, reference, ratio, unit}`; the reference is the bare interpreter."""
    sandbox = Sandbox(SandboxConfig())
    rows = []
    for case, num_at_once in (("one at a time", 1), (f"{os.cpu_count()} at a time", os.cpu_count() or 1)):
        ours = await rate(lambda: in_sandbox(sandbox), seconds, num_at_once)
        reference = await rate(bare, seconds, num_at_once)
        numbers = {"ours": ours, "reference": reference, "ratio": ours / reference}
        rows.append({"benchmark": "sandbox", "case": case, **numbers, "unit": "programs/s"})
    return rows


async def rate(program: Callable[[], Awaitable[None]], seconds: float, num_at_once: int) -> float:
    """Programs per second."""
    await program()
    started, count = time.monotonic(), 0

    async def one_after_another() -> None:
        nonlocal count
        while time.monotonic() - started < seconds:
            await program()
            count += 1

    await asyncio.gather(*(one_after_another() for _ in range(num_at_once)))
    return count / (time.monotonic() - started)


async def in_sandbox(sandbox: Sandbox) -> None:
    """One program."""
    result = await sandbox.run(PROGRAM)
    assert (result.stdout, result.reason) == (ANSWER, "finished"), result


async def bare() -> None:
    """The same program without a sandbox."""
    process = await asyncio.create_subprocess_exec(interpreter(), *INTERPRETER, PROGRAM, stdout=subprocess.PIPE, env={})
    output, _ = await process.communicate()
    assert output.decode() == ANSWER, output


def show(rows: list[dict[str, Any]]) -> None:
    """The table, with the machine's load."""
    table = Table(title=f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    for name in ("case", "sandbox", "bare interpreter", "ratio", "unit"):
        table.add_column(name)
    for row in rows:
        table.add_row(row["case"], f"{row['ours']:.3g}", f"{row['reference']:.3g}", f"{row['ratio']:.2f}", row["unit"])
    Console().print(table)


if __name__ == "__main__":
    main()
