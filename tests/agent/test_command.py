"""Agents that are programs of their own."""

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from vime.agent.command import OUTPUT_CHARACTERS, Command, run_command

TREE = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True); import time; time.sleep(600)"


async def test_a_program_gets_its_variables_and_none_of_the_runs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("OPENAI_API_KEY", "of another provider")
    monkeypatch.setenv("CLAUDECODE", "1")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    names = "'X', 'PYTHONPATH', 'OPENAI_API_KEY', 'CLAUDECODE', 'HTTP_PROXY', 'NO_PROXY'"
    show = f"import os; print(os.getcwd(), *map(os.environ.get, ({names})))"
    end = await run_command(Command(words=[sys.executable, "-c", show], folder=tmp_path, environment={"X": "1"}))
    expected = [str(tmp_path), "1", "None", "None", "None", "http://proxy", "127.0.0.1,localhost,::1"]
    assert end.stdout.split() == expected and end.exit_code == 0


@pytest.mark.parametrize("name", ["plain", "with blanks", "a/b", "link"])
async def test_a_program_that_believes_its_environment_works_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    folder = tmp_path / name
    if name == "link":
        folder.symlink_to(tmp_path)
    else:
        folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLDPWD", "/")
    end = await run_command(Command(words=["sh", "-c", "env | grep PWD; pwd"], folder=Path(name)))
    assert end.stdout.splitlines() == [f"PWD={folder}", str(folder)]


async def test_the_end_of_a_long_output_is_kept_and_input_is_closed(tmp_path: Path):
    talk = (
        f"import sys; sys.stdin.read(); print('a' * {2 * OUTPUT_CHARACTERS} + 'end'); print('why', file=sys.stderr); sys.exit(3)"
    )
    end = await run_command(Command(words=[sys.executable, "-c", talk], folder=tmp_path))
    assert len(end.stdout) == OUTPUT_CHARACTERS and end.stdout.endswith("aend\n")
    assert (end.exit_code, end.stderr) == (3, "why\n")


async def test_a_program_that_cannot_be_started_is_named(tmp_path: Path):
    with pytest.raises(OSError, match="no-such-agent"):
        await run_command(Command(words=["no-such-agent"], folder=tmp_path))


@pytest.mark.parametrize("gives_up", [True, False])
async def test_nothing_of_a_program_is_left_when_it_ends_or_is_given_up(tmp_path: Path, gives_up: bool):
    """Its child has left its process group."""
    words = [sys.executable, "-c", TREE if gives_up else TREE.replace("600)", "0.2)")]
    running = asyncio.create_task(run_command(Command(words=words, folder=tmp_path, environment={"MARK": str(tmp_path)})))

    def marked() -> list[int]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("MARK") == str(tmp_path) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found

    limit = time.monotonic() + 30
    while gives_up and len(marked()) < 2 and time.monotonic() < limit:
        await asyncio.sleep(0.05)
    if gives_up:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        assert (await running).exit_code == 0
    while marked() and time.monotonic() < limit:
        await asyncio.sleep(0.05)
    assert os.getpid() not in marked() and not marked()


async def test_a_process_that_hides_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It has cleared its environment, left its parents, and holds the output open."""
    monkeypatch.setattr("vime.agent.command.GONE_SECONDS", 0.5)
    hide = "import subprocess; print(subprocess.Popen(['sleep', '60'], env={}, start_new_session=True).pid, flush=True)"
    end = await asyncio.wait_for(run_command(Command(words=[sys.executable, "-c", hide], folder=tmp_path)), 30)
    psutil.Process(int(end.stdout)).kill()
    assert end.exit_code == 0
