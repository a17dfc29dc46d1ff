"""Streams, home, temporary folders and proxies of other people's machines."""

import asyncio
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import requests

from vime import surroundings
from vime.cluster import nodes
from vime.processes.program import ProgramProcess, ProgramSpec
from vime.serving import flags

SETTLED = "from vime.surroundings import restart_in_utf8, settle; restart_in_utf8(); settle(); import os, sys\n"
PROXY_NAMES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
NO_PROXY_NAMES = ("no_proxy", "NO_PROXY")


def run(program: str, *words: str, shell: str = "", **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a program that settles first, after what a shell does."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHONIO", "PYTHONUTF8"))}
    script = f'{shell}\nexec "$@"'
    command = [
        "sh",
        "-c",
        script,
        "sh",
        sys.executable,
        "-c",
        (SETTLED + program).encode("ascii", "backslashreplace").decode(),
        *words,
    ]
    return subprocess.run(command, env=environment | variables, capture_output=True, timeout=60)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "iso8859-15", "cp437", "utf-8"])
def test_a_terminal_of_any_encoding_shows_what_it_can(encoding: str):
    done = run("print('grün … ×'); print('日本', file=sys.stderr)", PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode(encoding).startswith("gr")


@pytest.mark.parametrize("shell", ["exec >&-", "exec <&- >&- 2>&-", "exec > /dev/full 2>&1", "exec 2>&-"])
def test_output_that_goes_nowhere_ends_nothing(shell: str, tmp_path: Path):
    done = run(
        "print('x' * 100_000, flush=True); print('x', file=sys.stderr)\n"
        "file = open(sys.argv[1], 'w'); os.system('echo lost'); file.write('kept')",
        str(tmp_path / "file"),
        shell=shell,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_text() == "kept"


def test_a_signal_while_a_line_is_written_does_not_write_it_twice():
    done = run(
        "import signal\n"
        "armed = False\n"
        "def interrupt(*_):\n"
        "    if armed: raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGALRM, interrupt)\n"
        "for number in range(3000):\n"
        "    try:\n"
        "        armed = True\n"
        "        signal.setitimer(signal.ITIMER_REAL, 1e-5 * (number % 7 + 1))\n"
        "        sys.stdout.write(f'<{number}>\\n')\n"
        "        armed = False\n"
        "    except KeyboardInterrupt:\n"
        "        armed = False\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)"
    )
    lines = done.stdout.split()
    assert done.returncode == 0 and len(lines) == len(set(lines)) > 0, done.stderr


@pytest.mark.parametrize("variables", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX"}, {"LC_CTYPE": "C"}])
def test_files_are_utf_8_in_any_locale(variables: dict[str, str], tmp_path: Path):
    program = (
        "open(sys.argv[1], 'w').write('…日本'); print(sys.stdout.encoding)\n"
        "os.system(sys.executable + ' -c \"import sys; print(sys.flags.utf8_mode)\"')"
    )
    done = run(program, str(tmp_path / "grün"), PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", **variables)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "grün").read_text(encoding="utf-8") == "…日本"
    assert done.stdout.split() == [b"ascii", b"1"]  # the terminal's own encoding, and UTF-8 for programs that we start


def test_the_terminals_encoding_is_not_handed_on():
    done = run("print(os.environ.get('PYTHONIOENCODING'))", PYTHONIOENCODING="ascii")
    assert done.stdout.split() == [b"None"]


@pytest.mark.parametrize("level", ["1", "2"])
def test_programs_that_a_run_starts_keep_their_docstrings(level: str):
    done = run("os.system(sys.executable + ' -c \"import sys; print(sys.flags.optimize)\"')", PYTHONOPTIMIZE=level)
    assert done.stdout.split() == [b"0"], done.stderr


@pytest.fixture
def no_cached_answers() -> Iterator[None]:
    surroundings._takes_files.cache_clear()
    yield
    surroundings._takes_files.cache_clear()


@pytest.mark.usefixtures("no_cached_answers")
@pytest.mark.parametrize("home", ["/proc", "/tmp/" + "x" * 300, "/dev/null", None])
def test_libraries_keep_their_files_elsewhere_where_home_takes_none(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(surroundings, "private_folder", lambda name: tmp_path / name)
    if home is None:

        def no_account() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", no_account)
    else:
        monkeypatch.setenv("HOME", home)
    found = surroundings._instead_of_home()
    assert {"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME", "VLLM_CACHE_ROOT", "TRITON_HOME"} <= set(found)
    assert all(Path(folder).is_relative_to(tmp_path) for folder in found.values())
    assert ("HOME" in found) == (home is None)
    assert surroundings.cache_folder("kernels").is_relative_to(tmp_path)


@pytest.mark.usefixtures("no_cached_answers")
def test_a_home_that_takes_files_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert surroundings._instead_of_home() == {}
    assert surroundings.cache_folder("view") == tmp_path / ".cache" / "vime" / "view"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert surroundings.cache_folder("view") == tmp_path / "own" / "vime" / "view"


@pytest.mark.usefixtures("no_cached_answers")
def test_what_was_prepared_in_a_home_that_takes_no_files_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("vime/agents", "huggingface"):
        (tmp_path / ".cache" / name).mkdir(parents=True)
    monkeypatch.setattr(surroundings, "_takes_files", lambda folder: not folder.is_relative_to(tmp_path))
    assert surroundings.cache_folder("agents") == tmp_path / ".cache" / "vime" / "agents"
    assert surroundings._instead_of_home()["HF_HOME"] == str(tmp_path / ".cache" / "huggingface")


@pytest.mark.usefixtures("no_cached_answers")
@pytest.mark.parametrize("name", ["x" * 60, "ü" * 40, "a/" * 40, "tmp"])
def test_programs_can_make_sockets_whatever_tmpdir_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    temporary = tmp_path / name
    temporary.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert len(os.fsencode(surroundings.short_folder())) <= surroundings.LONGEST_BASE
    program = "import os, socket, uuid; socket.socket(socket.AF_UNIX).bind(f'{os.environ[\"TMPDIR\"]}/{uuid.uuid4()}')"
    command = [sys.executable, "-m", "vime.processes.launch", f"--owner={os.getpid()}", "--", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_a_name_that_another_has_taken_gives_another_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(surroundings, "short_folder", lambda: tmp_path)
    taken = f"vime-x-{os.getuid()}"
    (tmp_path / taken).write_text("a file")
    (tmp_path / f"{taken}-1").symlink_to(tmp_path)
    (tmp_path / f"{taken}-2").mkdir(mode=0o755)
    assert surroundings.private_folder("x") == surroundings.private_folder("x") == tmp_path / f"{taken}-3"
    assert (tmp_path / f"{taken}-3").stat().st_mode & 0o777 == 0o700


def test_a_private_folder_whose_names_are_all_taken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(surroundings, "short_folder", lambda: tmp_path)
    for number in range(surroundings.NUM_NAMES):
        (tmp_path / f"vime-x-{os.getuid()}{f'-{number}' * bool(number)}").touch()
    with pytest.raises(PermissionError, match="remove them"):
        surroundings.private_folder("x")


@pytest.mark.parametrize("actions", ["error", "error::DeprecationWarning", "default,error"])
def test_warnings_of_libraries_end_nothing(actions: str):
    done = run(
        "import warnings; warnings.warn('old', DeprecationWarning); print(os.environ.get('PYTHONWARNINGS'))",
        PYTHONWARNINGS=actions,
    )
    assert (done.returncode, done.stdout) == (0, b"None\n"), done.stderr


@pytest.fixture
def here() -> Iterator[str]:
    """A server on this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/health"
        server.shutdown()


@pytest.mark.parametrize(
    "given", [{}, {"no_proxy": "example.org"}, {"NO_PROXY": "10.0.0.0/8, .internal"}, {"no_proxy": "", "NO_PROXY": "x"}]
)
def test_clients_of_this_machine_pass_by_every_proxy(given: dict[str, str], here: str, monkeypatch: pytest.MonkeyPatch):
    for name in PROXY_NAMES:
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in NO_PROXY_NAMES:
        monkeypatch.delenv(name, raising=False)
        if name in given:
            monkeypatch.setenv(name, given[name])
    for name, value in surroundings.no_proxy("10.0.0.7").items():
        monkeypatch.setenv(name, value)
        assert {entry.strip() for of in given.values() for entry in of.split(",") if entry} <= set(value.split(","))
    with urllib.request.urlopen(here, timeout=10) as answer:
        assert answer.status == 200
    assert requests.get(here, timeout=10).status_code == httpx.get(here, timeout=10).status_code == 200
    assert urllib.request.proxy_bypass("10.0.0.7:8000")
    assert not urllib.request.proxy_bypass("example.com")


@pytest.mark.parametrize(
    ("variables", "url", "expected"),
    [
        ({"https_proxy": "http://p:1"}, "https://api.example.com/v1", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "http://api.example.com/v1", None),
        ({"all_proxy": "http://p:1"}, "https://api.example.com/v1", "http://p:1"),
        ({"ALL_PROXY": "socks5://p:1"}, "https://api.example.com/v1", None),
        ({"http_proxy": "http://p:1"}, "http://127.0.0.1:8000/v1", None),
        ({"http_proxy": "http://p:1"}, "http://[::1]:8000/v1", None),
        ({"http_proxy": "http://p:1", "no_proxy": ".internal,10.0.0.7"}, "http://judge.internal:8000", None),
        ({"http_proxy": "http://p:1", "no_proxy": "*"}, "http://api.example.com", None),
        ({}, "http://api.example.com", None),
    ],
)
def test_addresses_of_others_take_the_proxy(
    variables: dict[str, str], url: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
):
    for name in (*PROXY_NAMES, *NO_PROXY_NAMES):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert surroundings.proxy_of(url) == expected


def test_programs_of_a_run_know_which_addresses_are_direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in NO_PROXY_NAMES:
        monkeypatch.setenv(name, "example.org")
    seen = launched("import json, os; print(json.dumps(dict(os.environ)))", tmp_path, address="10.0.0.7")[0]
    found = json.loads(seen.splitlines()[0])
    for name in NO_PROXY_NAMES:
        assert {"example.org", "127.0.0.1", "localhost", "10.0.0.7"} <= set(found[name].split(","))


def launched(program: str, folder: Path, *, address: str = "127.0.0.1") -> tuple[str, str]:
    """The log of a program, and what is said of its end."""
    command = [sys.executable, "-c", program]
    process = ProgramProcess(ProgramSpec(name="x", address=address, port=1, command=command, log=str(folder / "x.log")))
    process.launch()

    async def end() -> None:
        while process.exit_code() is None:
            await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(end(), 60))
    return (folder / "x.log").read_text(), process.ending()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            "import os; os.kill(os.getpid(), 9)",
            "exit code 137: a process of it was killed by signal 9, probably because memory ran out",
        ),
        (
            "print(\"Failed core proc(s): {'EngineCore_0': -9}\"); raise SystemExit(1)",
            "exit code 1: a process of it was killed by signal 9",
        ),
        ("print(\"Failed core proc(s): {'EngineCore_0': 1}\"); raise SystemExit(1)", "exit code 1"),
        (
            "print('engine core exited unexpectedly; starting cleanup'); raise SystemExit(1)",
            "exit code 1: a process of it",
        ),
        ("print('encountered a fatal error. engine core exited unexpectedly'); raise SystemExit(1)", "exit code 1"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 15)", "exit code 143"),
    ],
)
def test_a_program_that_was_killed_probably_had_no_memory(program: str, said: str, tmp_path: Path):
    ending = launched(program, tmp_path)[1]
    assert ending.startswith(said)
    assert ("memory" in ending) == (": " in said)


@pytest.mark.parametrize("name", ["my project (v1)", "a:b", "tab\there", "plain"])
def test_libraries_are_preloaded_from_any_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flags, "private_folder", lambda name: tmp_path)
    plain = Path(flags._preloaded().split(os.pathsep)[-1])
    library = tmp_path / name / plain.name
    library.parent.mkdir()
    library.symlink_to(plain)
    for _ in range(2):  # a second run finds the link
        path = flags._whole(library)
    done = subprocess.run(["true"], env={"LD_PRELOAD": path}, capture_output=True, text=True)
    assert done.stderr == ""
    assert plain.name in path
    assert (path == str(library)) == (name == "plain")


@pytest.mark.parametrize("name", ["my project (v1)", "[é]", "a'b", '"$HOME"', "日本; exit 1", "plain"])
def test_ray_starts_an_interpreter_of_any_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    python = tmp_path / name / "python"
    python.parent.mkdir()
    python.symlink_to("/bin/echo")
    monkeypatch.setattr(sys, "executable", str(python))
    started = nodes._started_with({"A": "1"})
    command = started.get("py_executable", sys.executable)
    done = subprocess.run(["bash", "-c", f"exec {command} started"], capture_output=True, text=True)
    assert done.stdout == "started\n", done.stderr
    assert started["env_vars"] == {"A": "1"}
    assert ("py_executable" in started) == (name != "plain")
