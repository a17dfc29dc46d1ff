"""The faults of `tools/faults.py`: how each is brought about, and which settings let the run notice it soon."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import fault_programs
import fault_replies
import psutil
from driven_run import DrivenRun, num_steps_done

HOOKS = "tools/fault_hooks.py"
STRIKE_AFTER = 2
"""Steps before a process is killed."""
WAIT_SECONDS = 600.0
SMALL_DISK_BYTES = 3 * 2**29
"""A run refuses to start with less than 1 GiB."""
TWO_REPLICAS = ["serving.models.actor.num_replicas=2", "serving.models.actor.gpu_memory_utilization=0.01"]
LONG_REPLIES = [
    "method.generate=tools/fault_replies.py:generate",
    "method.reward=tools/fault_replies.py:reward",
    "+serving.models.actor.vllm_args.middleware=fault_replies.Notes",
    "serving.models.actor.max_model_len=4096",
]
QUICK_TO_NOTICE = ["serving.engine_timeout_seconds=20", "serving.health_interval_seconds=1", "serving.health_failures=3"]
TEACHER = [
    "algorithm=on_policy_distillation",
    "algorithm.distillation.teachers={teacher: {}}",
    "+serving.models.teacher.checkpoint=agentic/memagent/tiny/actor",
    "+serving.models.teacher.max_model_len=2049",
    "+serving.models.teacher.gpu_memory_utilization=0.01",
    "serving.silence_timeout_seconds=10",
]
"""A teacher whose every answer is needed: the untrained model itself."""
SERVER_OF_TEACHER = r"vime\.inside_vllm\.vllm_server .*--served-model-name teacher"
ONE_LARGE_BATCH = ["trainer.num_steps=1", "rollout.num_prompts=32", "rollout.num_samples_per_prompt=2", "rollout.num_workers=1"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One fault.

    Example: `Case(name="server killed", words=[], strike=kill_server, evidence="died")`: `strike` is called after two steps;
    one word of `evidence` must be in the run's output, faults or metrics, else the fault did not happen.
    """

    name: str
    evidence: str | tuple[str, ...]
    words: list[str] = field(default_factory=list)
    method: str = "memagent"
    strike: Callable[[DrivenRun], None] = lambda run: None
    resumes: bool = False
    """The run ends and is started again with `resume=true`."""
    small_disk: bool = False
    """The run folder is on a small disk of its own."""
    undisturbed: list[str] | None = None
    """Words in place of `words` for the same run without the fault, beside which its delay is measured (`fault_delay.py`)."""
    num_given_up: int = 0
    """Prompts that the fault costs, and for which the run draws others."""
    num_steps: int = 5
    num_prompts: int = 4
    damage: Callable[[Path], int] = lambda folder: 0
    """Counts further losses in the run folder; a number other than 0 is bad."""


def kill(pattern: str, number: signal.Signals = signal.SIGKILL) -> Callable[[DrivenRun], None]:
    """Sends a signal to the process of the run whose command line matches."""
    return lambda run: run.find(pattern).send_signal(number)


def kill_driver(run: DrivenRun) -> None:
    """`kill -9` of the program."""
    run.driver.kill()


def kill_engine(run: DrivenRun) -> None:
    """`kill -9` of the process below a server in which vLLM computes."""
    below = run.find("vime.inside_vllm.vllm_server").children()
    next(process for process in below if not any("resource_tracker" in word for word in process.cmdline())).kill()


def fill_disk(run: DrivenRun) -> None:
    """Leaves no byte on the run's disk."""
    with (run.folder.parent / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"\0" * 2**20)
        except OSError:
            pass


def make_room(folder: Path) -> None:
    """Undoes `fill_disk`."""
    (folder.parent / "ballast").unlink(missing_ok=True)


CASES = [
    Case(name="server killed", strike=kill("vime.inside_vllm.vllm_server"), evidence='"died"'),
    Case(
        name="server stopped (SIGSTOP)",
        words=QUICK_TO_NOTICE,
        strike=kill("vime.inside_vllm.vllm_server", signal.SIGSTOP),
        evidence='"hung"',
    ),
    Case(
        name="server killed inside a reply of 4,000 tokens",
        words=LONG_REPLIES,
        strike=fault_replies.kill_inside_a_reply,
        evidence='"died"',
        damage=fault_replies.damage,
    ),
    Case(
        name="server stopped for 30 s inside a reply of 4,000 tokens",
        words=[*LONG_REPLIES, *QUICK_TO_NOTICE],
        strike=fault_replies.stop_inside_a_reply,
        evidence='"hung"',
        damage=fault_replies.damage,
    ),
    Case(name="router killed", words=TWO_REPLICAS, strike=kill(r"vllm::router|vime\.serving\.vllm_router"), evidence='"died"'),
    Case(name="trainer rank killed", strike=kill("ray::TrainerRank"), resumes=True, evidence="trainer rank 0 died"),
    Case(name="rollout worker killed", strike=kill("ray::RolloutWorker"), evidence="rollout worker"),
    Case(name="driver killed", strike=kill_driver, resumes=True, evidence="used again"),
    Case(
        name="terminal closed (SIGHUP)",
        strike=lambda run: run.driver.send_signal(signal.SIGHUP),
        resumes=True,
        evidence="interrupted",
    ),
    Case(name="engine killed, as the kernel does without memory", strike=kill_engine, evidence="memory ran out"),
    Case(
        name="a prompt kills its worker after 20 s of 60 s",
        words=[f"method.generate={HOOKS}:deadly_prompt", *ONE_LARGE_BATCH],
        undisturbed=[f"method.generate={HOOKS}:slow_groups", *ONE_LARGE_BATCH],
        evidence="rollout/num_prompts_given_up",
        num_given_up=1,
        num_steps=1,
        num_prompts=32,
    ),
    Case(name="generate raises", words=[f"method.generate={HOOKS}:generate_raises"], evidence="rollout/num_retries"),
    Case(
        name="tool hangs",
        words=[f"method.generate={HOOKS}:tool_hangs", "rollout.tool_timeout_seconds=1", "rollout.max_tool_retries=0"],
        evidence="count/tool_timed_out",
    ),
    Case(name="reward raises", words=[f"method.reward={HOOKS}:reward_raises"], evidence="count/reward_retries"),
    Case(
        name="reward hangs",
        words=[f"method.reward={HOOKS}:reward_hangs", "rollout.reward_timeout_seconds=1"],
        evidence="count/reward_retries",
    ),
    Case(
        name="HTTP 500, dropped and cut connections",
        words=["+serving.models.actor.vllm_args.middleware=fault_hooks.Network"],
        evidence="serving/actor/retries",
    ),
    Case(
        name="weight transfer fails halfway",
        words=["+serving.models.actor.vllm_args.worker_extension_cls=fault_hooks.FailsHalfway"],
        evidence='"sync_failed"',
    ),
    Case(
        name="every server gone at a sync",
        words=[*TWO_REPLICAS, "+serving.models.actor.vllm_args.worker_extension_cls=fault_hooks.EndsAtASync"],
        evidence="reached no server",
    ),
    Case(name="teacher killed", words=TEACHER, strike=kill(SERVER_OF_TEACHER), evidence='"died"'),
    Case(
        name="teacher stopped (SIGSTOP)",
        words=[*TEACHER, *QUICK_TO_NOTICE],
        strike=kill(SERVER_OF_TEACHER, signal.SIGSTOP),
        evidence='"hung"',
    ),
    Case(
        name="teacher answers late",
        words=[*TEACHER, "+serving.models.teacher.vllm_args.middleware=fault_hooks.SlowAnswers"],
        evidence="serving/teacher/retries",
    ),
    Case(
        name="teacher answers for fewer tokens",
        words=[*TEACHER, "+serving.models.teacher.vllm_args.middleware=fault_hooks.ShortAnswers"],
        evidence="serving/teacher/retries",
    ),
    Case(
        name="programs killed, hung, printing a gigabyte, forking daemons, taking all memory",
        method="coding",
        words=["method.generate=tools/fault_programs.py:generate"],
        evidence="stop/malformed",
        damage=fault_programs.damage,
    ),
    Case(
        name="workspaces lost",
        method="coding",
        strike=fault_programs.end_a_workspace,
        evidence=("rollout/num_retries", "count/reward_retries"),  # those of agents, and those of hidden tests
    ),
    Case(name="disk full at a checkpoint", strike=fill_disk, resumes=True, small_disk=True, evidence="No space left"),
]


def strike_when_due(case: Case, run: DrivenRun) -> None:
    """Waits for the steps before the fault, then brings it about in the middle of the next one; some come by themselves."""
    if case.num_steps <= STRIKE_AFTER:
        return
    run.wait_for(lambda: num_steps_done(run.folder) >= STRIKE_AFTER, seconds=WAIT_SECONDS)
    run.wait_for(lambda: _has_finished_groups(run.folder), seconds=WAIT_SECONDS)
    case.strike(run)


def can_mount() -> bool:
    """True if a small disk can be made here."""
    return os.geteuid() == 0 and psutil.LINUX


@contextmanager
def folder_for(case: Case, parent: Path) -> Iterator[Path]:
    """The folder in which the case runs; on a small disk of its own if the case is about that."""
    place = parent / re.sub(r"\W+", "_", case.name)
    place.mkdir(parents=True)
    if case.small_disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "vime-faults", place], check=True)
    try:
        yield place / "run"
    finally:
        if case.small_disk:
            subprocess.run(["umount", "-l", place], check=True)


def _has_finished_groups(folder: Path) -> bool:
    newest = max((folder / "journal").glob("step_*.jsonl"), default=None)
    return newest is not None and int(newest.stem.removeprefix("step_")) >= STRIKE_AFTER
