"""Programs that try to leave a workspace or to use it up: each ends with its reason and leaves nothing behind."""

import asyncio
import http.server
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.agent.workspace.conftest import groups
from tests.agent.workspace.test_box import CONFIG
from vime.agent.workspace import Prepared, Workspace
from vime.agent.workspace import box as module
from vime.agent.workspace.control_group import Parents, parents
from vime.errors import SandboxError

pytestmark = pytest.mark.slow

MIB = 2**20
NO_GROUPS = Parents(memory=None, pids=None, is_v2=False)


@pytest.fixture(params=["control groups", "measured"])
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which memory and processes are bounded, the first where this machine has it."""
    if request.param == "measured":
        monkeypatch.setattr(module, "parents", lambda: NO_GROUPS)
    return request.param


def python(code: str) -> list[str]:
    """A command that runs Python code."""
    return ["python", "-c", textwrap.dedent(code)]


async def works(box: Workspace) -> bool:
    """True if a workspace still does what it is for."""
    return (await box.run("echo $((6 * 7))")).stdout == "42\n" and (await box.diff()).reason == "finished"


async def test_processes_are_bounded(prepared: Prepared, bounds: str):
    bomb = """
        import os, time
        for _ in range(10_000):
            if os.fork() == 0:
                time.sleep(1000)
    """
    async with Workspace.open(prepared, CONFIG) as box:
        end = await box.run(python(bomb))
        assert (end.exit_code, end.reason) == (1, "process_limit"), end
        assert (await box.run("pgrep -c python")).stdout == "1\n"  # the first process
        assert (await box.run(":() { : | : & }; : ; sleep 0.5", seconds=20.0)).reason in ("finished", "killed", "process_limit")
        assert await works(box)


async def test_a_command_for_which_there_is_no_process_says_so(prepared: Prepared):
    if parents().pids is None:
        pytest.skip("without control groups the first process has processes of its own")
    fill = """
        import os, time
        try:
            while True:
                if os.fork() == 0:
                    time.sleep(1000)
        except OSError:
            pass
        open("full", "w").close()
        time.sleep(1000)
    """
    async with Workspace.open(prepared, replace(CONFIG, num_processes=16)) as box:
        filling = asyncio.create_task(box.run(python(fill), queues=False))
        while not await exists(box, "full"):
            await asyncio.sleep(0.05)
        end = await box.run("true")
        assert (end.reason, end.exit_code) == ("process_limit", 126), end
        filling.cancel()


async def exists(box: Workspace, path: str) -> bool:
    """True if there is a file, asked without a process."""
    try:
        await box.read(path)
    except FileNotFoundError:
        return False
    return True


MEMORY = {
    "of a process": "x = bytearray(10 * 2**30)",
    "of several": """
        import os, time
        for _ in range(8):
            if os.fork() == 0:
                x = bytearray(100 * 2**20)
                time.sleep(100)
        for _ in range(8):
            if os.wait()[1]:
                raise SystemExit(1)
    """,
    "that is shared": "import mmap; m = mmap.mmap(-1, 600 * 2**20); [m.write(bytes(2**20)) for _ in range(600)]; input()",
    "in files without names": """
        import os
        files = [os.memfd_create(str(n)) for n in range(100)]
        for file in files:
            for _ in range(10):
                os.write(file, bytes(2**20))
    """,
}


@pytest.mark.parametrize("code", MEMORY.values(), ids=MEMORY)
async def test_memory_is_bounded(code: str, prepared: Prepared, bounds: str):
    async with Workspace.open(prepared, CONFIG) as box:
        end = await box.run(python(code), stdin=b"\n")
        if "memfd" in code and bounds == "measured":
            assert "Operation not permitted" in end.stderr  # where nothing counts it, there is none
        else:
            assert end.reason == "memory_limit", end
        assert await works(box)


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/testbed", "$HOME"])
async def test_disk_is_bounded_in_all_folders_together(place: str, prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        end = await box.run(f"head -c {CONFIG.disk_bytes // 2} /dev/zero > /tmp/half && head -c 1G /dev/zero > {place}/rest")
        assert end.reason == "disk_limit", end
        assert (await box.diff()).reason in ("finished", "output_limit")
        assert (await box.run(f"rm -f {place}/rest")).succeeded and await works(box)


async def test_the_number_of_files_is_bounded(prepared: Prepared):
    async with Workspace.open(prepared, replace(CONFIG, num_files=1000)) as box:
        end = await box.run("mkdir many; for number in $(seq 2000); do : > many/$number || exit 1; done")
        assert end.reason == "disk_limit", end


async def test_nothing_else_can_be_written(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        found = await box.run("find / -xdev -writable -not -type l -not -path '/proc/*' 2> /dev/null; ls -d /run/workspace/git/*")
        allowed = ("/dev/", "/tmp", "/home/agent", "/testbed", "/run/workspace/scratch")
        outside = [path for path in found.stdout.split() if not path.startswith((*allowed, "/run/workspace/git"))]
        assert outside == []
        assert (await box.run("touch /run/workspace/git/x /usr/x /etc/x /x")).exit_code == 1


async def test_a_gigabyte_of_output_is_ended_and_not_kept(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        before = psutil.Process().memory_info().rss
        end = await box.run("head -c 1G /dev/zero; head -c 1G /dev/zero >&2")
        assert end.reason == "output_limit" and len(end.stdout) < 2 * CONFIG.output_bytes
        assert psutil.Process().memory_info().rss - before < 200 * MIB


UNENDING = {
    "ignores signals": "trap '' TERM INT HUP; while true; do sleep 1; done",
    "is stopped": "kill -STOP $$",
    "left its group": "setsid setsid bash -c 'trap \"\" TERM; sleep 1000' & disown; sleep 1000",
    "forks on": "f() { sleep 0.01; f & exit; }; f & sleep 1000",
}


@pytest.mark.parametrize("command", UNENDING.values(), ids=UNENDING)
async def test_whatever_ignores_its_end_is_ended(command: str, prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        kept = asyncio.create_task(box.run("sleep 2000", queues=False))
        assert (await box.run(command, seconds=0.5)).reason == "time_limit"
        assert (await box.run("pgrep -c sleep")).stdout == "1\n"
        kept.cancel()


async def test_the_first_process_cannot_be_ended_or_looked_into(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        await box.run("for number in $(seq 64); do kill -$number 1; done; kill -9 -1")
        looks = "cat /proc/1/environ; cat /proc/1/mem; ls /proc/1/fd; echo 1000 > /proc/1/oom_score_adj; strace -p 1"
        assert (await box.run(f"for number in 1; do {looks}; done 2>&1 | grep -ci denied")).stdout.strip() in ("4", "5")
        assert await works(box)


async def test_links_and_pipes_lead_nowhere(prepared: Prepared, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    async with Workspace.open(prepared, CONFIG) as box:
        await box.run(f"ln -s {secret} out; ln -s /proc/1/mem memory; ln -s /etc/passwd users; mkfifo pipe; ln -s / root")
        for path in ("out", f"root{secret}", str(secret), "../../../.." + str(secret)):
            with pytest.raises(FileNotFoundError):
                await box.read(path)
        for path in ("memory", "pipe", "/dev/zero", "/proc/self/environ", "/proc/1/environ"):
            with pytest.raises(OSError, match=r"Invalid argument|Permission denied"):
                await box.read(path)
        for path in ("users", "root/usr/x", "memory"):
            with pytest.raises(OSError, match=r"Read-only|Invalid|Permission"):
                await box.write(path, "x")
        await box.write("root/tmp/inside", "x")
        assert (await box.run("cat /tmp/inside")).stdout == "x" and secret.read_text() == "of the host"


PATCHES = {
    "upwards": "--- a/../out\n+++ b/../out\n@@ -0,0 +1 @@\n+x\n",
    "absolute": "--- /dev/null\n+++ /tmp/out\n@@ -0,0 +1 @@\n+x\n",
    "into git": "diff --git a/.git/hooks/pre-commit b/.git/hooks/pre-commit\nnew file mode 100755\n"
    "--- /dev/null\n+++ b/.git/hooks/pre-commit\n@@ -0,0 +1 @@\n+x\n",
    "into a git below": "--- /dev/null\n+++ b/d/.GIT/config\n@@ -0,0 +1 @@\n+x\n",
    "through its own link": "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/tmp\n"
    "\\ No newline at end of file\n"
    "diff --git a/l/out b/l/out\nnew file mode 100644\n--- /dev/null\n+++ b/l/out\n@@ -0,0 +1 @@\n+x\n",
    "through a link": "--- /dev/null\n+++ b/link/out\n@@ -0,0 +1 @@\n+x\n",
    "by renaming": "diff --git a/add.py b/../out\nsimilarity index 100%\nrename from add.py\nrename to ../out\n",
    "quoted": '--- "a/\\056\\056/out"\n+++ "b/\\056\\056/out"\n@@ -0,0 +1 @@\n+x\n',
    "quoted by git": 'diff --git "a/\\056\\056/out" "b/\\056\\056/out"\nnew file mode 100644\n',
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
async def test_a_patch_that_would_write_outside_is_refused(patch: str, prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        await box.run("ln -s /tmp link")
        before = (await box.diff()).patch
        assert (await box.apply(patch)).step == "refused"
        assert (await box.run("ls /tmp/out /out")).exit_code == 2 and (await box.diff()).patch == before


async def test_the_host_is_out_of_reach(prepared: Prepared, tmp_path: Path):
    (tmp_path / "secret").write_text("of the host")
    homes = f"ls {Path.home()}/.ssh {Path.home()}/.cache {tmp_path} {prepared.folder} /work /etc/shadow /sys /var/lib"
    async with Workspace.open(prepared, CONFIG) as box, Workspace.open(prepared, CONFIG) as other:
        await other.run("echo other > /tmp/of_another; sleep 1000 &", keep=True)
        assert (await box.run(homes)).stdout == ""
        assert (await box.run("cat /proc/*/cmdline | tr '\\0' ' ' | grep -c -e pytest -e 'sleep 1000'")).stdout == "1\n"  # itself
        assert (await box.run("ls /tmp /dev/shm")).stdout.split() == ["/dev/shm:", "/tmp:"]
        assert (await box.run("env | grep -i -e vime -e pytest -e secret")).stdout == ""


async def test_no_server_of_the_host_is_reached(prepared: Prepared):
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        async with Workspace.open(prepared, CONFIG) as box:
            for host in ("127.0.0.1", "localhost", "10.0.2.2", "192.168.0.1", "1.1.1.1"):
                end = await box.run(f"curl --silent --max-time 2 http://{host}:{server.server_address[1]}/")
                assert end.exit_code in (7, 28), end  # refused, or no answer
    finally:
        server.shutdown()
        server.server_close()


async def test_the_kernel_offers_no_way_out(prepared: Prepared):
    attempts = (
        "unshare -U true",
        "unshare -n true",
        "mount -t tmpfs tmpfs /tmp",
        "umount /proc",
        "chroot / true",
        "nsenter -t 1 -m true",
        "mknod /tmp/device b 8 0",
        "python -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
        "python -c 'import socket; socket.socket(17, socket.SOCK_RAW, 1)'",
        "python -c 'import socket; socket.socket(40, socket.SOCK_STREAM)'",
        "python -c 'import os; os.setuid(0)'",
        "hostname other",
    )
    async with Workspace.open(prepared, CONFIG) as box:
        for attempt in attempts:
            assert (await box.run(attempt)).exit_code != 0, attempt
        calls = "import ctypes; c = ctypes.CDLL(None); print([c.syscall(n, 0, 0, 0, 0) for n in (101, 321, 425, 250, 272, 308)])"
        assert json.loads((await box.run(["python", "-c", calls])).stdout) == [-1] * 6


async def test_a_workspace_that_is_lost_is_the_infrastructures_fault(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        waiting = asyncio.create_task(box.run("sleep 100", queues=False))
        await box.run("true")
        os.kill(box.first_process, signal.SIGKILL)
        with pytest.raises(SandboxError, match="lost"):
            await waiting
        for call in (box.run("true"), box.read("add.py"), box.write("add.py", ""), box.diff(), box.apply("--- a/x\n+++ b/x\n")):
            with pytest.raises(SandboxError, match="lost"):
                await call


async def test_a_cancelled_call_leaves_nothing(prepared: Prepared):
    for seconds in (0.0, 0.01, 0.03, 0.06, 0.1, 0.2):

        async def use() -> None:
            async with Workspace.open(prepared, CONFIG) as box:
                await box.run("sleep 1000 & sleep 1000")

        task = asyncio.create_task(use())
        await asyncio.sleep(seconds)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


OWNER = """
import asyncio, os, signal, sys
from pathlib import Path
from vime.agent.workspace import Prepared, Workspace
from vime.config import WorkspaceConfig

prepared = Prepared(folder=Path(sys.argv[1]), commit="")
config = WorkspaceConfig(num_processes=int(sys.argv[2]))

async def use():
    async with Workspace.open(prepared, config) as box:
        await box.run("setsid sleep 1000 & sleep 1000 & disown", keep=True)
        await box.run("sleep 1000", queues=False)

async def main():
    async with Workspace.open(prepared, config) as box:
        await box.run("true")
    tasks = []
    for _ in range(12):
        tasks.append(asyncio.create_task(use()))
        await asyncio.sleep(0.02)
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_everything_ends_with_an_owner_that_is_killed(prepared: Prepared):
    """Its workspaces are in all stages then, from their first process in the making to commands that run."""
    mark = 23_000 + random.randrange(1000)  # stands in the command lines of bubblewrap and of the first process
    words = [sys.executable, "-c", OWNER, str(prepared.folder), str(mark)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    for _ in range(400):
        lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
        left = [line for line in lines if line and line[-1] in (str(mark + 2), str(mark + 4))]
        if not left:
            break
        time.sleep(0.05)
    assert not left
    module.parents.cache_clear()
    module.parents()  # as the next owner does
    assert groups(int(done.stdout)) == set()
