"""Attempts to get out of the sandbox or to use it up: each ends in a result with its reason, and leaves nothing behind."""

import asyncio
import contextlib
import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from vime.agent import sandbox as module
from vime.agent.bounded_program import BoundedProgram
from vime.agent.sandbox import NUM_PLACES, REASONS, Sandbox, SandboxResult, sandbox_problem
from vime.config import SandboxConfig
from vime.errors import SandboxError

pytestmark = pytest.mark.slow

MIB = 2**20
SMALL = SandboxConfig(
    wall_seconds=30,
    cpu_seconds=1,
    memory_bytes=160 * MIB,
    num_processes=8,
    file_bytes=4 * MIB,
    output_characters=2000,
    packages=[],
)
QUICK = SandboxConfig(wall_seconds=1.5, cpu_seconds=30, memory_bytes=160 * MIB, num_processes=8, packages=[])
"""For what does not end by itself and uses nothing up."""


@pytest.fixture(scope="module", autouse=True)
def works() -> None:
    """Fails without a sandbox, which these tests are about."""
    assert sandbox_problem() is None, sandbox_problem()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every test leaves the host without a process that it started; a cancelled call has a moment to end its own."""
    before = started_processes()
    yield
    for _ in range(200):
        left = started_processes() - before
        if not left:
            return
        time.sleep(0.05)
    assert not left


def started_processes() -> set[psutil.Process]:
    """All descendants of this process, and all sandboxed processes of the host with any parent, except those of other workers."""
    this = psutil.Process()
    workers = {*psutil.Process(os.getppid()).children()} - {this}
    inside = {process for process in psutil.process_iter() if is_inside(process) and not is_below(process, workers)}
    return inside | {*this.children(recursive=True)}


def is_inside(process: psutil.Process) -> bool:
    """True if a process of the host is in a sandbox that tests started: it holds our program's text."""
    try:
        return MARK in " ".join(process.cmdline())
    except psutil.Error:
        return False


def is_below(process: psutil.Process, others: set[psutil.Process]) -> bool:
    """True if one of the others started a process."""
    try:
        return bool(others & {*process.parents()})
    except psutil.Error:
        return False


MARK = Path(module.__file__).with_name("launcher.py").read_text()[:60]


async def run(code: str, config: SandboxConfig = SMALL, stdin: str = "") -> SandboxResult:
    """A program in a sandbox."""
    return await Sandbox(config).run(code, stdin=stdin)


async def test_a_program_prints_and_reads():
    result = await run("print(input()[::-1], 6 * 7)", stdin="abc\n")
    assert (result.stdout, result.stderr, result.exit_code, result.reason) == ("cba 42\n", "", 0, "finished")
    assert result.seconds > 0


async def test_an_exception_is_shown_as_python_shows_it_and_without_the_launcher():
    result = await run("def f():\n    return 1 / 0\nf()")
    assert (result.reason, result.exit_code) == ("raised", 1)
    assert "line 2, in f" in result.stderr and "ZeroDivisionError" in result.stderr and "<string>" not in result.stderr


@pytest.mark.parametrize(
    ("code", "exit_code", "reason"),
    [
        ("import sys; sys.exit(3)", 3, "finished"),
        ("import sys; sys.exit('no')", 1, "finished"),
        ("import os; os._exit(5)", 5, "finished"),
        ("raise KeyboardInterrupt", 1, "raised"),
        ("def (", 1, "raised"),
        ("(" * 5000 + ")" * 5000, 1, "raised"),
        ("print('\\ud800')", 1, "raised"),
        ("\x00", 1, "raised"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143, "killed"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "killed"),
        ("import os, signal; os.abort()", 134, "killed"),
        ("import ctypes; ctypes.string_at(0)", 139, "killed"),
    ],
)
async def test_every_end_has_its_exit_code_and_reason(code: str, exit_code: int, reason: str):
    result = await run(code)
    assert (result.exit_code, result.reason) == (exit_code, reason), result.stderr


async def test_installed_packages_can_be_used():
    code = "import numpy, sympy; print(sympy.factorint(2026), numpy.arange(4).sum())"
    result = await run(code, SandboxConfig(packages=["mpmath", "numpy", "sympy", "not_installed_here"]))
    assert result.stdout == "{2: 1, 1013: 1} 6\n", result


async def test_asyncio_threads_and_children_work():
    code = """
import asyncio, multiprocessing, threading
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
asyncio.run(asyncio.sleep(0))
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(abs, [-1, -2]))
"""
    assert (await run(code)).stdout == "thread\n[1, 2]\n"


class Handler(http.server.BaseHTTPRequestHandler):
    """Counts who comes."""

    seen = 0

    def do_GET(self) -> None:
        type(self).seen += 1
        self.send_response(200)
        self.end_headers()


@pytest.fixture
def host_server() -> Iterator[int]:
    """A server on this machine, which a program must not reach."""
    Handler.seen = 0
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    assert Handler.seen == 0


NETWORK = {
    "a server of this machine": "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:PORT').status)",
    "an address": "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)",
    "a name": "import socket; print(socket.getaddrinfo('localhost.localdomain', 80))",
    "a datagram": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "raw packets": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "a unix socket": "import socket; socket.socket(socket.AF_UNIX).connect('/run/docker.sock')",
}


@pytest.mark.parametrize("attempt", NETWORK)
async def test_no_network(attempt: str, host_server: int):
    result = await run(NETWORK[attempt].replace("PORT", str(host_server)))
    assert (result.reason, result.stdout) == ("raised", ""), result


HOST_FILES = {
    "the passwords": "print(open('/etc/passwd').read())",
    "this repository": "print(open('REPOSITORY/pyproject.toml').read())",
    "a home": "import os; print(os.listdir('HOME/.ssh'))",
    "the host's processes": "import os; print(os.listdir('/proc'))",
    "the parent's environment": "print(open('/proc/1/environ').read())",
    "the host's root through /proc": "print(open('/proc/1/root/etc/passwd').read())",
    "memory of the parent": "print(open('/proc/1/mem', 'rb').read(1))",
    "kernel settings": "open('/proc/sys/kernel/core_pattern', 'w').write('|/tmp/x')",
    "control groups": "open('/sys/fs/cgroup/release_agent', 'w')",
    "a symbolic link to a host file": "import os; os.symlink('/etc/shadow', '/tmp/link'); print(open('/tmp/link').read())",
    "a climb out of /tmp": "print(open('/tmp/../../../../etc/hostname').read())",
    "a disk": "import os; os.mknod('/tmp/disk', 0o060600, os.makedev(8, 0)); print(open('/tmp/disk', 'rb').read(1))",
    "a shell": "import subprocess; print(subprocess.run(['/bin/sh', '-c', 'id'], capture_output=True).stdout)",
    "writing beside the interpreter": "import os; open(os.path.join(os.path.dirname(os.__file__), 'evil.py'), 'w')",
    "writing to the root": "open('/evil', 'w')",
    "writing to /dev": "open('/dev/evil', 'w')",
    "changing the program": "open('/program.py', 'w')",
    "becoming root": "import os; os.setuid(0)",
    "another root": "import os; os.chroot('/tmp')",
    "a mount": "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); "
    "assert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0, os.strerror(ctypes.get_errno())",
    "a new user namespace": "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); "
    "assert libc.unshare(0x10000000) == 0, os.strerror(ctypes.get_errno())",
    "tracing": "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); "
    "assert libc.ptrace(16, 1, 0, 0) == 0, os.strerror(ctypes.get_errno())",
    "memory without a limit": "import os; os.memfd_create('x')",
    "more memory by its own leave": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "open files of the host": "import os; os.fstat(3)",
}


@pytest.mark.parametrize("attempt", HOST_FILES)
async def test_nothing_of_the_host_is_seen_or_changed(attempt: str):
    here = str(Path(__file__).resolve().parents[2])
    code = HOST_FILES[attempt].replace("REPOSITORY", here).replace("HOME", str(Path.home()))
    result = await run(code)
    assert (result.reason, result.exit_code, result.stdout) == ("raised", 1, ""), result


async def test_no_secret_of_the_environment_is_inside(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_SECRET_KEY", "s3cr3t")
    result = await run("import os, sys; print(sorted(os.environ), sys.argv, sys.path)")
    assert "s3cr3t" not in result.stdout and "SECRET" not in result.stdout and "PATH'" not in result.stdout


async def test_two_programs_share_nothing():
    code = "import os; print(os.listdir('/tmp'), os.listdir('/dev/shm')); open('/tmp/a', 'w'); open('/dev/shm/a', 'w')"
    box = Sandbox(SMALL)
    assert [(await box.run(code)).stdout for _ in range(2)] == ["[] []\n"] * 2


LIMITS = {
    "an endless loop": ("while True: pass", "time_limit"),
    "a loop that ignores the warning": (
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        "time_limit",
    ),
    "one large allocation": ("data = bytearray(2**31)", "memory_limit"),
    "a growing list": ("data = []\nwhile True: data.append(bytearray(2**20))", "memory_limit"),
    "a large number": ("print(len(str(9 ** 9 ** 9)))", "time_limit|memory_limit|raised"),
    "memory in many processes": (
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0: break\ndata = b'x' * (60 * 2**20)\ntime.sleep(25)",
        "memory_limit",
    ),
    "too many children": ("import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(60)", "process_limit"),
    "too many threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "process_limit",
    ),
    "endless output": ("while True: print('x' * 1000)", "output_limit"),
    "endless errors": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output_limit"),
    "endless reports": (
        "import os\nwhile True:\n    for n in range(3, 32):\n"
        "        try: os.write(n, b'killed\\n' * 999)\n        except OSError: pass",
        "time_limit|killed",
    ),
    "a large file": ("open('/tmp/x', 'wb').write(bytes(8 * 2**20))", "file_limit"),
    "many files": ("for n in range(20): open(f'/tmp/{n}', 'wb').write(bytes(2 * 2**20))", "file_limit"),
    "a large file in shared memory": ("open('/dev/shm/x', 'wb').write(bytes(8 * 2**20))", "file_limit"),
    "too many open files": ("files = []\nwhile True: files.append(open('/dev/null'))", "file_limit"),
    "very many empty files": (
        "import time\nfor n in range(20000): open(f'/tmp/{n}', 'w').close()\ntime.sleep(15)",
        "file_limit",
    ),
}


@pytest.mark.parametrize("attempt", LIMITS)
async def test_every_limit_has_its_reason(attempt: str):
    code, reason = LIMITS[attempt]
    result = await run(code)
    assert result.reason in reason.split("|") and result.reason in REASONS, result
    assert len(result.stdout) <= SMALL.output_characters and len(result.stderr) <= SMALL.output_characters


WAITS = {
    "sleep": "import time; time.sleep(60)",
    "a fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "a stopped process": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "ignored signals": "import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(60)",
    "a child with its output that outlives it": "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(60)\ntime.sleep(60)",
    "closed output": "import os, time; os.close(1); os.close(2); time.sleep(60)",
    "exit handlers": "import atexit, time; atexit.register(time.sleep, 60)",
    "threads that do not end": "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
}


@pytest.mark.parametrize("attempt", WAITS)
async def test_what_does_not_end_is_ended(attempt: str):
    result = await run(WAITS[attempt], QUICK)
    assert (result.reason, result.exit_code) == ("time_limit", 137), result


ATTACKS = {
    "killing its parent": ("import os, signal; os.kill(os.getppid(), signal.SIGKILL); print('alive')", "alive\n"),
    "killing everybody": (
        "import os, signal, time\nif os.fork() == 0: time.sleep(60)\nos.kill(-1, signal.SIGKILL); print('alive')",
        "alive\n",
    ),
    "children left behind": ("import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)\nprint('done')", "done\n"),
}


@pytest.mark.parametrize("attempt", ATTACKS)
async def test_a_program_can_end_only_what_it_started(attempt: str):
    code, output = ATTACKS[attempt]
    assert (await run(code)).stdout == output


FORGED_ENDS = {
    "at its end": ("", "finished", 0),
    "before it raises": ("raise KeyError", "raised", 1),
    "before it kills itself": ("os.kill(os.getpid(), 9)", "killed", 137),
    "and ends as the kernel ends what computed too long": ("os.kill(os.getpid(), signal.SIGXCPU)", "killed", 152),
}


@pytest.mark.parametrize("end", FORGED_ENDS)
@pytest.mark.parametrize("word", ["time_limit", "memory_limit"])
async def test_a_program_cannot_forge_why_it_ended(word: str, end: str):
    code, reason, exit_code = FORGED_ENDS[end]
    result = await run(
        f"import os, signal\nfor n in range(3, 1024):\n    try: os.write(n, b'\\n {word}\\n')\n    except OSError: pass\n{code}",
        replace(SMALL, cpu_seconds=20),
    )
    assert (result.reason, result.exit_code) == (reason, exit_code), result


async def test_no_file_is_open_but_input_output_and_errors():
    code = """
import os
def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
print([number for number in range(1024) if is_open(number)])
"""
    assert (await run(code)).stdout == "[0, 1, 2]\n"


async def test_a_long_traceback_is_cut_and_no_output_limit():
    result = await run(f"import sys; sys.stderr.write('x' * {SMALL.output_characters - 9}); raise ValueError('y' * 9999 + 'end')")
    assert (result.reason, result.exit_code, len(result.stderr)) == ("raised", 1, SMALL.output_characters)
    assert result.stderr.endswith("end\n")


async def test_a_cancelled_call_ends_its_program():
    call = asyncio.create_task(run("import time; time.sleep(60)"))
    await asyncio.sleep(0.5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_many_at_once_keep_their_output_apart():
    box = Sandbox(SMALL)
    results = await asyncio.gather(*(box.run(f"print({number})") for number in range(24)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(24)]


def test_a_killed_owner_takes_its_programs_along():
    code = (
        "import asyncio\nfrom vime.agent.sandbox import Sandbox\nfrom vime.config import SandboxConfig\n"
        "asyncio.run(Sandbox(SandboxConfig(packages=[])).run('import time; time.sleep(60)'))"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).resolve().parents[2])
    family: list[psutil.Process] = []
    while not any(is_program(process) for process in family) and owner.poll() is None:
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(owner.pid).children(recursive=True)
    owner.kill()
    owner.wait()
    assert len(family) >= 3 and not psutil.wait_procs(family, timeout=30)[1]


def is_program(process: psutil.Process) -> bool:
    """True if a process is the program of a sandbox, and not one of those that make the sandbox."""
    with contextlib.suppress(psutil.Error):
        return is_inside(process) and process.name().startswith("python")
    return False


@pytest.mark.parametrize("seconds", [0.0, 0.002, 0.004, 0.008, 0.016, 0.032])
async def test_a_sandbox_that_is_ended_while_it_is_made_leaves_nothing(seconds: float):
    calls = [asyncio.create_task(run("import time; time.sleep(60)")) for _ in range(8)]
    await asyncio.sleep(seconds)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize("end", ["killed before its start", "not started", "finished"])
def test_no_file_stays_open(end: str, monkeypatch: pytest.MonkeyPatch):
    if end == "not started":
        monkeypatch.setattr(module, "sandbox_command", lambda *_, **__: ["/nowhere/bwrap"])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(4):
        program = BoundedProgram(SMALL, sandboxed=True)
        if end == "killed before its start":
            program.kill()
        with contextlib.suppress(SandboxError, FileNotFoundError):
            result = module._run(SMALL, program, "print(1)", "", True)
            assert (end, result.reason) == ("finished", "finished")
    assert len(os.listdir("/proc/self/fd")) == before


async def test_sandboxes_share_places_and_who_gave_up_waiting_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    codes: list[str] = []
    release = threading.Event()

    def fake(config: SandboxConfig, program: BoundedProgram, code: str, *rest: object) -> SandboxResult:
        codes.append(code)
        release.wait(30)
        return SandboxResult(stdout=code, stderr="", exit_code=0, reason="finished", seconds=0.0)

    monkeypatch.setattr(module, "_run", fake)
    calls = [asyncio.create_task(run(f"{number}")) for number in range(NUM_PLACES + 2)]
    await asyncio.sleep(0.1)
    calls[NUM_PLACES].cancel()
    release.set()
    *_, given_up, last = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(given_up, asyncio.CancelledError) and isinstance(last, SandboxResult)
    assert sorted(codes) == sorted(f"{number}" for number in range(NUM_PLACES + 2) if number != NUM_PLACES)


async def test_inside_a_place_a_program_does_not_wait_for_another():
    box = Sandbox(SMALL)

    async def in_a_place(number: int) -> str:
        async with box.place():
            return (await box.run(f"print({number})")).stdout

    found = await asyncio.wait_for(asyncio.gather(*(in_a_place(number) for number in range(2 * NUM_PLACES))), 60)
    assert found == [f"{number}\n" for number in range(2 * NUM_PLACES)]


async def test_without_bubblewrap_nothing_runs_unless_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    sandbox_problem.cache_clear()
    try:
        assert "apt-get install bubblewrap" in str(sandbox_problem())
        with pytest.raises(SandboxError, match="allow_unsandboxed"):
            Sandbox(SMALL)
        allowed = SandboxConfig(wall_seconds=1.5, allow_unsandboxed=True, packages=[])
        assert (await run("print(1)", allowed)).stdout == "1\n"
        assert (await run("import time; time.sleep(60)", allowed)).reason == "time_limit"
        assert os.environ["PATH"] not in (await run("import os; print(os.environ)", allowed)).stdout
    finally:
        sandbox_problem.cache_clear()
