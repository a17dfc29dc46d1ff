"""Workspaces a second that can be made, changed by a shell, diffed and removed, and the needs of many at a time.

    python tools/bench_workspace.py [--seconds 10] [--rounds 3] [--at-once 4] [--alive 256] [--json PATH] [--markdown PATH]

They alternate with the plain ways without any confinement: a copy of the tree (`cp -a`) and a `git worktree`, each changed by a
shell, diffed by git and removed. All sides get the same repository and the same number at a time, by default two per core, like
the commands of a run: while one waits for the kernel, which takes several milliseconds to put a process into a control group,
another uses the core. `--alive` workspaces are then open at once, and a shell has answered in each. Their memory is measured
twice, before and while they are open: that of the machine (MemTotal - MemAvailable), which other programs change as well, and the
memory known to be theirs: their processes (proportional set size), files in memory, and the kernel's own.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from bench_rows import Result, add_options, finish

from vime.agent.workspace import Prepared, Workspace, prepare, workspace_problem
from vime.config import WorkspaceConfig

NUM_FOLDERS, FILES_PER_FOLDER, LINES = 20, 10, 40
CHANGE = "echo changed >> folder3/module7.py; echo made > made.txt"
EXPECTED = (b"+changed", b"+made")
SETTLE_SECONDS = 2.0
Side = Callable[[], Awaitable[bytes]]
"""Makes a tree, changes and diffs it, removes it, and returns the patch."""


def main() -> None:
    """Measures, prints the table, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="how often the sides take turns")
    parser.add_argument("--at-once", type=int, default=2 * (os.cpu_count() or 1), help="as many are made at a time")
    parser.add_argument("--alive", type=int, default=256, help="workspaces that are open at once")
    add_options(parser)
    given = parser.parse_args()
    if problem := workspace_problem():
        raise SystemExit(problem)
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(repository(), cache_folder=folder)
        result = asyncio.run(measure(prepared, Path(folder), given))
    finish(result, given)


def repository() -> dict[str, str]:
    """The files of a repository."""
    text = "".join(f"def function{line}(value):\n    return value + {line}\n" for line in range(LINES))
    paths = [f"folder{folder}/module{file}.py" for folder in range(NUM_FOLDERS) for file in range(FILES_PER_FOLDER)]
    return {path: f"# {path}\n{text}" for path in paths}


async def measure(prepared: Prepared, folder: Path, given: argparse.Namespace) -> Result:
    """Rows: ours beside each reference, then the number alive at once beside the goal."""
    num_files = NUM_FOLDERS * FILES_PER_FOLDER
    result = Result(title=f"Workspaces on a repository of {num_files} files", columns=("workspace", "reference"))
    config = WorkspaceConfig(num_workspaces=max(64, given.alive), num_commands=64)
    sides = {
        "workspace": lambda: in_workspace(prepared, config),
        "copy": lambda: in_copy(prepared, folder),
        "worktree": lambda: in_worktree(repositories, folder),
    }
    repositories: asyncio.Queue[Path] = asyncio.Queue()  # worktrees of one repository cannot be made and removed at the same time
    for number in range(given.at_once):
        await output("cp", "-a", str(prepared.tree), str(folder / f"repository{number}"))
        repositories.put_nowait(folder / f"repository{number}")
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(given.rounds):
        for name, side in sides.items():
            rates[name].append(await rate(side, given.seconds, given.at_once))
    ours = statistics.median(rates["workspace"])
    for name, case in (("copy", "a copy (cp -a), not confined"), ("worktree", "a git worktree, not confined")):
        reference = statistics.median(rates[name])
        result.add("workspace", f"beside {case}", ours=ours, reference=reference, unit="made, changed, diffed, removed a second")
    spread = ", ".join(f"{name} {min(found):.1f} to {max(found):.1f}" for name, found in rates.items())
    result.notes.append(
        f"{given.at_once} at a time; lowest and highest of {given.rounds} rounds of {given.seconds:g} s: {spread}"
    )
    found = await alive(prepared, config, given.alive)
    result.notes.append(
        f"{given.alive} alive at once: all open and answering after {found.seconds:.1f} s; the machine's memory grew by "
        f"{found.machine_bytes / 2**20:.0f} MiB, of which their processes {found.process_bytes / 2**20:.0f} MiB and the kernel's "
        f"and files {found.kernel_bytes / 2**20:.0f} MiB"
    )
    known = (found.process_bytes + max(0, found.kernel_bytes)) / 2**20  # the kernel's changes by other programs as well
    result.add("workspace", f"{given.alive} alive at once, beside 2 GiB", ours=known, reference=2048.0, unit="MiB")
    return result


async def rate(side: Side, seconds: float, num_at_once: int) -> float:
    """The number of runs of a side a second, with some at a time."""
    await side()
    started, count = time.monotonic(), 0

    async def one_after_another() -> None:
        nonlocal count
        while time.monotonic() - started < seconds:
            patch = await side()
            assert all(text in patch for text in EXPECTED), patch
            count += 1

    await asyncio.gather(*(one_after_another() for _ in range(num_at_once)))
    return count / (time.monotonic() - started)


async def in_workspace(prepared: Prepared, config: WorkspaceConfig) -> bytes:
    """Makes, changes, diffs and removes one workspace."""
    async with Workspace.open(prepared, config) as box:
        end = await box.run(CHANGE)
        assert end.succeeded, end
        return (await box.diff()).patch


async def in_copy(prepared: Prepared, folder: Path) -> bytes:
    """One copy of the tree."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="copy-") as place:
        tree = f"{place}/tree"
        await output("cp", "-a", str(prepared.tree), tree)
        patch = await changed(tree)
        await output("rm", "-rf", tree)
    return patch


async def in_worktree(repositories: "asyncio.Queue[Path]", folder: Path) -> bytes:
    """One worktree of a repository that no other uses meanwhile."""
    repository = await repositories.get()
    with tempfile.TemporaryDirectory(dir=folder, prefix="worktree-") as place:
        tree = f"{place}/tree"
        await output("git", "-C", str(repository), "worktree", "add", "--quiet", "--detach", tree)
        patch = await changed(tree)
        await output("git", "-C", str(repository), "worktree", "remove", "--force", tree)
    repositories.put_nowait(repository)
    return patch


async def changed(tree: str) -> bytes:
    """The patch after the change."""
    await output("bash", "-c", CHANGE, folder=tree)
    return await output("sh", "-c", "git add --all . && exec git diff --cached --binary --full-index HEAD", folder=tree)


async def output(*words: str, folder: str | None = None) -> bytes:
    """The stdout of a program, which must succeed; the trees belong to another user, which git would mind."""
    settings = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    process = await asyncio.create_subprocess_exec(*words, cwd=folder, stdout=subprocess.PIPE, env=os.environ | settings)
    text, _ = await process.communicate()
    assert process.returncode == 0, words
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class Alive:
    """The needs of open workspaces. Example: `Alive(seconds=6.0, machine_bytes=10**9, process_bytes=9**9, kernel_bytes=9**8)`."""

    seconds: float
    """Seconds until all have answered."""
    machine_bytes: int
    process_bytes: int
    kernel_bytes: int


async def alive(prepared: Prepared, config: WorkspaceConfig, number: int) -> Alive:
    """Opens `number` workspaces at once, lets a shell in each answer, and measures."""
    await asyncio.sleep(SETTLE_SECONDS)
    before, started = memory(), time.monotonic()
    async with AsyncExitStack() as stack:
        boxes = [await stack.enter_async_context(Workspace.open(prepared, config)) for _ in range(number)]
        answers = await asyncio.gather(*(box.run("echo $((6 * 7))") for box in boxes))
        assert all(answer.stdout == "42\n" for answer in answers), answers
        seconds = time.monotonic() - started
        await asyncio.sleep(SETTLE_SECONDS)
        grew = {name: size - before[name] for name, size in memory().items()}
        kernel = sum(grew[name] for name in ("Slab:", "KernelStack:", "PageTables:", "Percpu:", "VmallocUsed:", "Shmem:"))
        processes = sum(proportional_memory(process) for box in boxes for process in processes_of(box))
        machine = grew["MemTotal:"] - grew["MemAvailable:"]
    return Alive(seconds=seconds, machine_bytes=machine, process_bytes=processes, kernel_bytes=kernel)


def memory() -> dict[str, int]:
    """The machine's memory in bytes, by the kernel's names."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {name: int(size) * 1024 for name, size, *_ in lines}


def processes_of(box: Workspace) -> tuple[int, int]:
    """The first process inside, and bubblewrap's own above it."""
    return box.first_process, int(Path(f"/proc/{box.first_process}/stat").read_text().rpartition(")")[2].split()[1])


def proportional_memory(process: int) -> int:
    """Bytes of a process; shared ones count in part."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
