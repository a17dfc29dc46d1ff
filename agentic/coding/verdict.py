"""Judges a patch: applied in a fresh workspace, tests and configuration restored, hidden tests run, and what they said is heard.

verdict = await judge(task, patch, open_workspace=fresh_workspaces(WorkspaceConfig()), config=GradingConfig())
# Verdict(solved=True, reason="solved", mended=1.0, kept=1.0, applied="apply", …)
"""

import json
import random
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from agentic.coding.canary import with_canaries
from agentic.coding.grading import GradingConfig, OpenWorkspace
from agentic.coding.hearing import Heard, hear
from agentic.coding.patch import changed_paths
from agentic.coding.runner.channel import NONCE_BYTES
from agentic.coding.task import Task
from vime.agent.bubblewrap import PACKAGES, interpreter
from vime.agent.workspace.contract import TREE, WorkspaceLike
from vime.agent.workspace.results import Applied, CommandResult
from vime.errors import SandboxError

NOT_PLACED = "tests_not_placed"
OUTPUT_BYTES = 16 * 2**20
RESTORE_SECONDS = 60.0
TEST_MODULES = ("test_*.py", "*_test.py")
_PYTHON = ("-I", "-S", "-B", "-X", "utf8", "-c")
_START = f"import sys; sys.path.append({PACKAGES!r}); from agentic.coding.runner.{{}} import main; main()"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The worth of a patch.

    Example: `Verdict(solved=False, reason="tests_failed", mended=0.5, kept=1.0, applied="apply", touched=("tests/test_a.py",),
    accusations=(), failed=("tests/test_a.py::test_two",), seconds=0.6)`.
    """

    solved: bool
    reason: str
    """`solved`, `tests_failed`, `not_run`, `tampered`, `ended_early`, the reason of a limit (`time_limit`, …), `no_patch`,
    `patch_failed`, `patch_refused`, or `tests_not_placed` if the patch blocks the paths of hidden tests."""
    mended: float = 0.0
    """Share of the fail-to-pass tests that pass."""
    kept: float = 0.0
    """Share of the pass-to-pass tests that pass; 1 if there are none."""
    applied: str = ""
    """The way in which the patch was applied: `apply`, `3way`, `patch`, `empty`, `refused` or `failed`."""
    touched: tuple[str, ...] = ()
    """Tests and configuration that the patch changed, and that were restored."""
    accusations: tuple[str, ...] = ()
    """Attempts of the patched program against the program that judges it."""
    failed: tuple[str, ...] = ()
    """Up to ten tests that should have passed."""
    passed: tuple[str, ...] = ()
    """All tests that passed, except canaries."""
    seconds: float = 0.0

    def score(self, config: GradingConfig) -> float:
        """The reward: 1 if solved, otherwise 0, or with partial credit the mended share if everything is kept."""
        partial = config.partial_credit and self.kept == 1.0 and self.reason == "tests_failed"
        return 1.0 if self.solved else self.mended if partial else 0.0


async def judge(task: Task, patch: str, *, open_workspace: OpenWorkspace, config: GradingConfig) -> Verdict:
    """Judges a patch of a task; without lists of tests in the task it is solved if all tests pass.

    Bytes of the patch that are not UTF-8 are surrogates in it (`patch.decode(errors="surrogateescape")`). Raises SandboxError if
    the workspace failed, ConfigError if the repository is missing: neither is the patch's fault.
    """
    started = time.monotonic()
    async with open_workspace(task) as box:
        applied = await box.apply(patch.encode(errors="surrogateescape")) if patch.strip() else Applied(step="empty")
        if not applied.succeeded:
            return Verdict(solved=False, reason=f"patch_{applied.step}", applied=applied.step, seconds=time.monotonic() - started)
        touched = await _restore(box, task)
        nonce, chance = secrets.token_hex(NONCE_BYTES // 2), random.Random(secrets.randbits(64))
        try:
            modules = await _place_tests(box, task)
        except OSError:  # the patch has put a file where a folder belongs, or the like
            seconds = time.monotonic() - started
            return Verdict(solved=False, reason=NOT_PLACED, applied=applied.step, touched=touched, seconds=seconds)
        guarded = {path: with_canaries(source, path, chance=chance) for path, source in modules.items()}
        canaries = frozenset(name for module in guarded.values() for name in module.ids)
        sources = {path: module.source for path, module in guarded.items()}
        end = await _run(box, task, nonce=nonce, sources=sources, canaries=canaries, seconds=config.seconds)
    heard = hear(end.stdout, nonce=nonce)
    if not (heard.began or heard.blocked):  # no code of the repository has run, so this is nobody's doing
        raise SandboxError(f"hidden tests could not be started: {end.reason}, {end.stderr.strip()[-300:]}")
    if any(heard.passed(name) for name in canaries):
        heard.accuse(["makes a test pass that must fail"])
    return _verdict(task, heard, end, canaries=canaries, applied=applied.step, touched=touched, started=started)


async def _restore(box: WorkspaceLike, task: Task) -> tuple[str, ...]:
    """Restores protected paths except those that the reference solution changes as well, and returns them."""
    given = {"root": TREE, "editable": sorted(changed_paths(task.patch))}
    end = await _python(box, "restore", json.dumps(given).encode(), seconds=RESTORE_SECONDS)
    if not end.succeeded:
        raise SandboxError(f"protected paths could not be restored: {end.reason}, {end.stderr.strip()[-300:]}")
    report = json.loads(end.stdout)
    return (*report["restored"], *report["removed"])


async def _place_tests(box: WorkspaceLike, task: Task) -> dict[str, str]:
    """Brings the hidden tests into the tree, and returns the sources of the test modules by path."""
    if task.test_patch.strip():
        applied = await box.apply(task.test_patch)
        if not applied.succeeded:
            raise FileExistsError(f"the hidden tests cannot be applied: {applied.message}")
    modules = {name.partition("::")[0] for name in task.test_ids}
    modules |= {path for path in task.tests if any(fnmatchcase(PurePosixPath(path).name, pattern) for pattern in TEST_MODULES)}
    for path, text in task.tests.items():
        if path not in modules:
            await box.write(path, text)
    return {
        path: task.tests[path] if path in task.tests else (await box.read(path)).decode(errors="replace")
        for path in sorted(modules)
    }


async def _run(
    box: WorkspaceLike, task: Task, *, nonce: str, sources: Mapping[str, str], canaries: frozenset[str], seconds: float
) -> CommandResult:
    wanted = [*task.test_ids, *canaries] if task.test_ids else []
    given = {"root": TREE, "sources": dict(sources), "wanted": wanted}
    return await _python(box, "main", nonce.encode() + json.dumps(given).encode(), seconds=seconds)


async def _python(box: WorkspaceLike, module: str, given: bytes, *, seconds: float) -> CommandResult:
    command = [interpreter(), *_PYTHON, _START.format(module)]
    return await box.run(command, stdin=given, seconds=seconds, output_bytes=OUTPUT_BYTES)


def _verdict(
    task: Task,
    heard: Heard,
    end: CommandResult,
    *,
    canaries: frozenset[str],
    applied: str,
    touched: tuple[str, ...],
    started: float,
) -> Verdict:
    wanted = task.test_ids or tuple(name for name in heard.outcomes if name not in canaries)
    failed = tuple(name for name in wanted if not heard.passed(name))
    # tests are said to have been run, but what must fail beside them has not been
    silent = heard.ended and heard.silent(canaries)
    if heard.accusations or (silent and not failed):
        reason = "tampered"
    elif heard.blocked:
        reason = NOT_PLACED
    elif not heard.ended:
        reason = "ended_early" if end.reason == "finished" else end.reason
    elif not heard.outcomes or (failed and heard.not_collected):
        reason = "not_run"
    else:
        reason = "tests_failed" if failed else "solved"
    trusted = reason != "tampered" and not silent
    return Verdict(
        solved=reason == "solved",
        reason=reason,
        mended=_share(task.fail_to_pass, heard) * trusted if task.fail_to_pass else float(reason == "solved"),
        kept=_share(task.pass_to_pass, heard) * trusted,
        applied=applied,
        touched=touched,
        accusations=tuple(heard.accusations),
        failed=failed[:10],
        passed=tuple(name for name in heard.outcomes if heard.passed(name) and name not in canaries),
        seconds=time.monotonic() - started,
    )


def _share(names: tuple[str, ...], heard: Heard) -> float:
    return sum(map(heard.passed, names)) / len(names) if names else 1.0
