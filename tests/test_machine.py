"""The share of the machine that is ours, read from control groups as containers and batch systems set them up."""

import os
from pathlib import Path

import pytest

from vime import machine
from vime.config import TrainerConfig
from vime.memory import processes
from vime.preflight.compose import compose_run
from vime.serving import flags
from vime.trainer import parallel

GIB = 2**30
HOST = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
ALLOWED = len(os.sched_getaffinity(0))
NO_LIMIT = 9223372036854771712
"""Value of version 1 that means no limit."""


def system(folder: Path, *, version: int, group: str, files: dict[str, object], root: str = "/", where: str = "mount") -> Path:
    """A /proc and mounted control groups; `files` are by their paths below the mount."""
    mount, proc = folder / where, folder / "proc"
    (proc / "self").mkdir(parents=True)
    mount.mkdir()
    place = str(mount).replace(" ", r"\040")
    if version == 2:
        (proc / "self" / "cgroup").write_text(f"0::{group}\n")
        (proc / "self" / "mountinfo").write_text(f"30 23 0:26 {root} {place} rw shared:4 - cgroup2 cgroup2 rw\n")
    else:
        (proc / "self" / "cgroup").write_text(f"5:cpu,cpuacct:{group}\n4:memory:{group}\n0::/\n")
        (proc / "self" / "mountinfo").write_text(
            f"24 1 0:5 / / rw - ext4 /dev/vda rw\n31 30 0:27 {root} {place} rw shared:9 - cgroup cgroup rw,memory,cpu,cpuacct\n"
        )
    for name, content in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(f"{content}\n")
    (proc / "meminfo").write_text(f"MemTotal: {HOST // 1024} kB\nMemAvailable: {HOST // 2048} kB\n")
    return proc


MEMORY = {
    "version 2, the group itself": (dict(version=2, group="/", files={"memory.max": GIB}), GIB),
    "version 2, a group above": (dict(version=2, group="/a/b", files={"a/memory.max": GIB, "a/b/memory.max": "max"}), GIB),
    "version 2, the smaller of two": (dict(version=2, group="/a/b", files={"a/memory.max": 3 * GIB, "a/b/memory.max": GIB}), GIB),
    "version 2, no limit": (dict(version=2, group="/a", files={"a/memory.max": "max"}), HOST),
    "version 2, a group that is not visible": (dict(version=2, group="/../x", root="/../x", files={"memory.max": GIB}), GIB),
    "version 1": (dict(version=1, group="/slurm/job_7", files={"slurm/job_7/memory.limit_in_bytes": GIB}), GIB),
    "version 1, no limit": (dict(version=1, group="/a", files={"a/memory.limit_in_bytes": NO_LIMIT}), HOST),
    "version 1, docker's own view": (
        dict(version=1, group="/docker/4f", root="/docker/4f", files={"memory.limit_in_bytes": GIB}),
        GIB,
    ),
    "version 1, a limit above what is visible": (
        dict(version=1, group="/", files={"memory.limit_in_bytes": NO_LIMIT, "memory.stat": f"hierarchical_memory_limit {GIB}"}),
        GIB,
    ),
    "more than the host has": (dict(version=2, group="/", files={"memory.max": 2 * HOST}), HOST),
    "a mount with a blank in its path": (dict(version=2, group="/", files={"memory.max": GIB}, where="my mount"), GIB),
    "nothing mounted there": (dict(version=2, group="/gone", files={}), HOST),
}


@pytest.mark.parametrize("case", MEMORY)
def test_memory_is_the_least_that_the_host_and_all_groups_grant(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made, expected = MEMORY[case]
    monkeypatch.setattr(machine, "PROC", system(tmp_path, **made))
    assert machine.memory_bytes() == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": 4 * GIB, "memory.current": 3 * GIB, "memory.stat": f"anon 5\ninactive_file {GIB}"}, 2 * GIB),
        ({"memory.max": 4 * GIB, "memory.current": 5 * GIB, "memory.stat": "inactive_file 0"}, 0),
        ({"memory.max": "max", "memory.current": GIB}, HOST // 2048 * 1024),
    ],
)
def test_available_memory_is_what_the_group_has_left(files, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "PROC", system(tmp_path, version=2, group="/", files=files))
    assert machine.available_memory_bytes() == expected


@pytest.mark.parametrize(
    ("version", "files", "expected"),
    [
        (2, {"cpu.max": "100000 100000"}, 1),
        (2, {"cpu.max": "50000 100000"}, 1),
        (2, {"cpu.max": "max 100000"}, ALLOWED),
        (1, {"cpu.cfs_quota_us": 100000, "cpu.cfs_period_us": 100000}, 1),
        (1, {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100000}, ALLOWED),
        (2, {"cpu.max": f"{(ALLOWED + 3) * 100000} 100000"}, ALLOWED),
    ],
)
def test_cores_are_the_whole_ones_of_a_quota(version: int, files, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "PROC", system(tmp_path, version=version, group="/", files=files))
    assert machine.num_cores() == expected
    assert parallel.num_threads(TrainerConfig(), 1) == expected


def test_a_system_without_proc_has_the_hosts_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "PROC", tmp_path)
    assert (machine.memory_bytes(), machine.core_quota(), machine.num_killed_for_memory()) == (HOST, None, 0)


def test_shares_of_memory_are_those_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "PROC", system(tmp_path, version=2, group="/", files={"memory.max": GIB}))
    config = compose_run(["+method=memagent", "serving.models.actor.gpu_memory_utilization=0.25"]).config
    model = config.serving.models["actor"]
    assert flags.server_arguments(config, "actor", model, number=0)["kv_cache_memory_bytes"] == GIB // 4
    assert processes.server_memory(config, model)["KV cache"] == GIB / 4


def test_threads_of_a_server_share_a_quota_and_are_bound_to_no_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = compose_run(["+method=memagent"]).config
    monkeypatch.setattr(flags, "num_cores", lambda: ALLOWED - 1)
    environment = flags.server_environment(config, config.serving.models["actor"], cpus=[], gpus=[])
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["OMP_NUM_THREADS"] == str(ALLOWED - 1)
