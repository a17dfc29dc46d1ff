"""How the program ends when something outside it fails."""

import errno
import signal
import subprocess
import sys

import pytest

from vime import run


def test_a_full_disk_ends_a_run_with_what_to_do_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/run/metrics.jsonl")

    monkeypatch.setattr(run, "compose_run", fail)
    assert run.run(["+method=memagent"]) == run.FAILED
    error = capsys.readouterr().err
    assert "/run/metrics.jsonl: No space left" in error and "resume=true" in error


def test_another_error_of_the_operating_system_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch):
    def fail(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/run")

    monkeypatch.setattr(run, "compose_run", fail)
    with pytest.raises(PermissionError):
        run.run(["+method=memagent"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_background_job_of_a_script_ends_on_a_signal(number: signal.Signals):
    code = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell without job control starts its background jobs
from vime import run
run.compose_run = lambda *_, **__: (print("started", flush=True), time.sleep(60))
sys.exit(run.run([]))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert process.returncode == run.INTERRUPTED and "interrupted" in error


@pytest.mark.parametrize("words", [["--config-dir", "mine"], ["--config-dir=mine"], ["--lr=3"], ["--multirun", "-x"]])
def test_an_unknown_flag_starts_nothing_and_is_named(words: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        run.main(["+method=memagent", *words])
    flag = next(word for word in words if word != "--multirun")
    assert ended.value.code == run.CONFIG_ERROR and f"flag={flag}\n" in (error := capsys.readouterr().err) and "--cfg" in error
