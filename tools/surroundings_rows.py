"""The surroundings of `tools/surroundings.py`: how each is made, and how a run in them is to end."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

NO_PORT = "127.0.0.1:9"
"""Address on which nothing listens, neither a proxy nor Ray."""
PROXIES = {
    name: f"http://{NO_PORT}" for names in ("http_proxy", "https_proxy", "all_proxy") for name in (names, names.upper())
} | {"no_proxy": None, "NO_PROXY": None}
TWO_REPLICAS = ["serving.models.actor.num_replicas=2", "serving.models.actor.gpu_memory_utilization=0.01"]
CONTAINER_BYTES, CONTAINER_MICROSECONDS = 6 * 2**30, 100_000
"""Memory of the container, and of each tenth of a second the processor time: that of one core."""


class End(Enum):
    """The way in which a run is to end."""

    trains = "trains"
    """The run trains one step, with exit code 0."""
    plans = "plans"
    """The plan is shown."""
    refuses = "refuses"
    """Exit code 2, with a sentence that says why, and nothing started."""


def anywhere() -> str:
    """Condition of surroundings that can be made on every machine."""
    return ""


def as_root() -> str:
    """Condition of surroundings that need root, for mounts or control groups."""
    return "" if os.geteuid() == 0 else "needs root"


def with_unshare() -> str:
    """Condition of surroundings with a user without an account."""
    made = (
        subprocess.run(["unshare", "--user", "--map-user=12345", "true"], capture_output=True)
        if shutil.which("unshare")
        else None
    )
    return "" if made is not None and made.returncode == 0 else "needs user namespaces"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Surroundings of a run. `{folder}` in any text is a folder of the row's own.

    Example: `Row(name="HOME that cannot be written", environment={"HOME": "/proc"})`.
    """

    name: str
    end: End = End.trains
    says: str = ""
    """A regular expression that must match in the run's output."""
    words: list[str] = field(default_factory=list)
    environment: dict[str, str | None] = field(default_factory=dict)
    """Variables to set; None removes one."""
    shell: str = ""
    """Commands that a shell runs first, in the process that becomes the program; for surroundings that variables do not make."""
    start_folder: str = "{folder}"
    python: str = sys.executable
    needs: Callable[[], str] = anywhere
    """The reason why this machine cannot have such surroundings; empty if it can."""


def mounted(commands: str) -> str:
    """Shell words after which the program sees other mounts than the rest of the machine."""
    return f'[ -n "$APART" ] || APART=1 exec unshare --mount sh -c "$0" "$0" "$@"; unset APART; {commands}'


@contextmanager
def container() -> Iterator[str]:
    """A control group with little memory and one core's time; yields the shell words that enter it."""
    parent = Path("/sys/fs/cgroup")
    is_first = (parent / "memory").is_dir()
    folders = [parent / kind / "vime_surroundings" for kind in ("memory", "cpu")] if is_first else [parent / "vime_surroundings"]
    try:
        for folder in folders:
            folder.mkdir(exist_ok=True)
        memory, cpu = folders[0], folders[-1]
        if is_first:
            (memory / "memory.limit_in_bytes").write_text(str(CONTAINER_BYTES))
            (cpu / "cpu.cfs_quota_us").write_text(str(CONTAINER_MICROSECONDS))
        else:
            (memory / "memory.max").write_text(str(CONTAINER_BYTES))
            (cpu / "cpu.max").write_text(f"{CONTAINER_MICROSECONDS} {CONTAINER_MICROSECONDS}")
        yield "; ".join(f"echo $$ > {folder}/cgroup.procs" for folder in folders)
    finally:
        for folder in folders:
            if folder.is_dir():
                folder.rmdir()


@contextmanager
def listener() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


ROWS = [
    Row(name="nothing unusual"),
    Row(
        name="TMPDIR of more than 100 bytes",
        environment={"TMPDIR": "{folder}/" + "/".join(["scratch.user.job_1355700"] * 4)},
    ),
    Row(name="TMPDIR that does not exist", environment={"TMPDIR": "/nonexistent/tmp"}),
    Row(name="HOME where nothing can be written", environment={"HOME": "/proc"}),
    Row(
        name="a user without account and HOME",
        environment={"HOME": None, "USER": None, "LOGNAME": None},
        shell='[ $(id -u) = 12345 ] || exec unshare --user --map-user=12345 --map-group=12345 sh -c "$0" "$0" "$@"',
        needs=with_unshare,
    ),
    Row(
        name="interpreter, project and run below a folder with blanks, brackets, quotes and letters of other scripts",
        start_folder='{folder}/my project (v1) [é] "日本" $x & 100%',
        python='{folder}/my project (v1) [é] "日本" $x & 100%/.venv/bin/python',
        words=["output_dir=run"],
    ),
    Row(
        name="an interpreter below a folder with an apostrophe",
        python="{folder}/it's/.venv/bin/python",
        end=End.refuses,
        says="Ray starts no worker by a path with an apostrophe",
    ),
    Row(
        name="a current folder with an apostrophe, a colon and a backslash",
        start_folder="{folder}/it's a:b\\c",
        words=["output_dir=run"],
    ),
    Row(
        name="a proxy where nobody listens, two servers and their router",
        environment=PROXIES,
        words=TWO_REPLICAS,
    ),
    Row(name="output in ASCII", environment={"PYTHONIOENCODING": "ascii"}),
    Row(
        name="a locale that is not UTF-8",
        environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ),
    Row(name="no locale", environment={"LANG": None, "LC_ALL": None, "LC_CTYPE": None, "TERM": None}),
    Row(name="standard input, output and errors closed", shell="exec <&- >&- 2>&-"),
    Row(name="nobody reads the output", shell="exec > /dev/full 2>&1"),
    Row(
        name="cluster.ray_address where nobody listens",
        words=[f"cluster.ray_address={NO_PORT}"],
        end=End.refuses,
        says=r"cluster.ray_address=\S+\n +no Ray answers there .*scripts/ray_up.sh",
    ),
    Row(
        name="cluster.ray_address that takes connections and is silent",
        words=["cluster.ray_address={silent}"],
        end=End.refuses,
        says="no Ray answers there",
    ),
    Row(name="a container with 6 GiB and the time of one core", shell="{container}", needs=as_root),
    Row(name="/dev/shm of 64 MiB", shell=mounted("mount -t tmpfs -o size=64m shm /dev/shm"), needs=as_root),
    Row(
        name="no shared memory",
        shell=mounted("mount -t tmpfs -o ro shm /dev/shm"),
        end=End.refuses,
        says="mount a tmpfs at /dev/shm",
        needs=as_root,
    ),
    Row(
        name="/tmp that cannot be written",
        shell=mounted("mount -t tmpfs -o ro tmp /tmp"),
        environment={"TMPDIR": None},
        start_folder="/var/tmp",
        words=["output_dir={outside}/run"],
        needs=as_root,
    ),
    Row(
        name="a current folder that cannot be written",
        start_folder="/proc",
        end=End.refuses,
        says=r"output_dir=/proc/outputs/\S+\n +the run folder cannot be made",
    ),
    Row(
        name="a run folder elsewhere, from a current folder that cannot be written",
        start_folder="/proc",
        words=["output_dir={folder}/run"],
    ),
    Row(
        name="a current folder that is gone",
        shell="cd {folder} && mkdir gone && cd gone && rmdir ../gone",
        end=End.refuses,
        says="current folder",
    ),
    Row(
        name="a run folder below a file", words=["mode=plan", "output_dir={folder}/a_file/run"], end=End.refuses, says="is a file"
    ),
    Row(
        name="a run folder of 300 letters",
        words=["mode=plan", f"output_dir={'x' * 300}"],
        end=End.refuses,
        says="the run folder cannot be made",
    ),
    Row(name="a run name of 300 letters", words=["mode=plan", f"name={'x' * 300}"], end=End.refuses, says="bytes"),
    Row(
        name="a run folder into which another run writes",
        shell="mkdir -p {folder}/run; exec 9>>{folder}/run/.lock; flock 9",
        words=["output_dir={folder}/run"],
        end=End.refuses,
        says="is writing there: wait until it has ended",
    ),
    Row(
        name="a disk of 64 MiB for the run",
        shell=mounted("mount -t tmpfs -o size=64m disk {folder}"),
        words=["output_dir={folder}/run"],
        start_folder="/var/tmp",
        end=End.refuses,
        says="a run needs at least 1 GiB",
        needs=as_root,
    ),
    Row(name="256 open files", shell="ulimit -n 256"),
    Row(name="umask 077", shell="umask 077"),
    Row(name="one core", shell='[ -n "$BOUND" ] || BOUND=1 exec taskset -c 0 sh -c "$0" "$0" "$@"; unset BOUND'),
    Row(
        name="variables of Python",
        environment={
            "PYTHONWARNINGS": "error",
            "PYTHONOPTIMIZE": "2",
            "PYTHONSAFEPATH": "1",
            "PYTHONSTARTUP": "/nonexistent.py",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
        },
    ),
    Row(name="OMP_NUM_THREADS of another machine", environment={"OMP_NUM_THREADS": "512", "MKL_NUM_THREADS": "512"}),
    Row(
        name="variables of a batch job and of torchrun",
        environment={
            "SLURM_JOB_ID": "1355700",
            "SLURM_NTASKS": "4",
            "SLURM_PROCID": "2",
            "SLURM_CPUS_PER_TASK": "1",
            "MASTER_ADDR": "10.255.255.1",
            "MASTER_PORT": "1",
            "RANK": "3",
            "LOCAL_RANK": "3",
            "WORLD_SIZE": "4",
        },
    ),
    Row(
        name="variables of Ray, vLLM, Hydra and trackers",
        environment={
            "RAY_ADDRESS": NO_PORT,
            "VLLM_PORT": "1",
            "VLLM_HOST_IP": "10.255.255.1",
            "VLLM_USE_V1": "0",
            "HYDRA_FULL_ERROR": "1",
            "WANDB_API_KEY": "x" * 40,
            "WANDB_MODE": "online",
            "CUDA_VISIBLE_DEVICES": "",
        },
    ),
    Row(
        name="a host name that nobody resolves, and no localhost",
        shell=mounted("echo '::1 localhost' > {folder}/hosts; mount --bind {folder}/hosts /etc/hosts"),
        needs=as_root,
    ),
    Row(
        name="a plan without processors to see",
        words=["mode=plan"],
        end=End.plans,
        environment={"CUDA_VISIBLE_DEVICES": ""},
    ),
]
