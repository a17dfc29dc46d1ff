"""Ends of the program when something outside it fails."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vime import run
from vime.preflight.search_path import CONF, MARKER


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
@pytest.mark.slow
def test_a_background_job_of_a_script_ends_on_a_signal(number: signal.Signals):
    code = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell without job control starts its background jobs
from vime import run
from vime.preflight.search_path import CONF, MARKER
run.compose_run = lambda *_, **__: (print("started", flush=True), time.sleep(60))
sys.exit(run.run([]))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    wanted = run.TERMINATED if number is signal.SIGTERM else run.INTERRUPTED
    assert process.returncode == wanted and "interrupted" in error


@pytest.mark.slow
def test_a_run_that_is_terminated_twice_ends_in_order():
    code = """
import sys, time
from vime import run
def body(*_, **__):
    try:
        print("started", flush=True)
        time.sleep(60)
    finally:
        print("ending", flush=True)
        sys.stdin.readline()
        print("ended", flush=True)
run.compose_run = body
sys.exit(run.run([]))
"""
    piped: Any = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **piped) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        process.terminate()
        assert process.stdout.readline() == "ending\n"
        process.terminate()
        output, error = process.communicate("\n", timeout=60)
    assert (process.returncode, output) == (run.TERMINATED, "ended\n") and "interrupted" in error


@pytest.mark.parametrize("words", [["--run"], ["--lr=3"], ["--multirun", "-x"], ["--experimental-rerun=a.pickle"]])
def test_an_unknown_flag_starts_nothing_and_is_named(words: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        run.main(["+method=memagent", *words])
    flag = next(word for word in words if word != "--multirun")
    assert ended.value.code == run.CONFIG_ERROR and f"  {flag}\n" in (error := capsys.readouterr().err) and "--cfg" in error


@pytest.mark.parametrize("flag", ["--config-path=mine", "-cp", "--config-name=mine", "-cn"])
def test_a_flag_that_would_replace_the_options_is_refused_with_the_one_to_use(flag: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        run.main(["+method=memagent", flag])
    assert ended.value.code == run.CONFIG_ERROR and "--config-dir DIR" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--config-dir", "mine"], ["--config-dir=mine"], ["-cd", "mine"]])
def test_a_folder_of_options_is_searched_by_runs_sweeps_and_what_shows_them(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "trial.yaml").write_text("# @package _global_\nname: trial_of_mine\nseed: 17\n")
    monkeypatch.chdir(tmp_path)
    for others in (["mode=plan", "+method=memagent"], ["--cfg", "job"], ["--info", "config"]):
        with pytest.raises(SystemExit) as ended:
            run.main([*others, "+experiment=trial", *words])
        assert ended.value.code == 0 and "trial_of_mine" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run.main(["--help", *words])
    assert "experiment=trial" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--config-dir"], ["--config-dir="], ["--config-dir", "nowhere"]])
def test_a_folder_of_options_that_is_not_there_starts_nothing(words: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        run.main(["+method=memagent", *words])
    assert ended.value.code == run.CONFIG_ERROR and "folder" in capsys.readouterr().err


def test_the_shell_completes_the_options_of_the_folder_it_is_in(tmp_path: Path):
    (tmp_path / "conf" / "method").mkdir(parents=True)
    (tmp_path / "conf" / MARKER).touch()
    (tmp_path / "conf" / "method" / "my_agent.yaml").touch()
    environment = {**os.environ, "PYTHONPATH": str(CONF.parent), "COMP_LINE": "vime +method=m", "COMP_POINT": "14"}
    command = [sys.executable, "-m", "vime.run", "-sc", "query=bash"]
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert set(shown.stdout.split()) == {"+method=memagent", "+method=multi_agent", "+method=my_agent"}, shown.stderr


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (
            ["trainer.lr=fast"],
            "trainer.lr=fast\n      is not a number: use a number (more than 0), for example trainer.lr=0.0005\n",
        ),
        (["resume=true", "name=never"], "resume=true\n      no folder in "),
        (["data.train.num_items=null"], "data.train.num_items=null\n      a generator needs"),
        (["trainer.tensor_parallel_size=3"], "and model.intermediate_size=256: use 1 or 2\n"),
        (["algorithm=grpp"], "; did you mean algorithm=grpo? Available: "),
        (["--config-dir"], "  --config-dir\n      has no folder: use --config-dir DIR\n"),
    ],
)
def test_a_refusal_writes_the_setting_as_the_command_line_has_it_and_a_value_that_fits(
    words: list[str], written: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        run.main(["mode=plan", "+method=memagent", *words])
    assert ended.value.code == run.CONFIG_ERROR and written in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--resolve"], ["--package", "model"], ["--cfg", "job", "--info"], ["--cfg", "job", "-m"]])
def test_flags_that_show_nothing_or_do_not_go_together_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        run.main(["+method=memagent", *words])
    assert ended.value.code == run.CONFIG_ERROR and "use one of --cfg" in capsys.readouterr().err


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_closed_terminal_interrupts_a_run_in_order_but_not_under_nohup(before: signal.Handlers):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGHUP, before)
    try:
        run.take_signals()
        if before is signal.SIG_IGN:
            signal.raise_signal(signal.SIGHUP)
            return
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        for again in (signal.SIGHUP, signal.SIGTERM):  # a shell and its terminal both say so
            signal.raise_signal(again)
        assert run.interrupted() == run.TERMINATED
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_a_current_folder_that_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SystemExit) as ended:
        run.main(["+method=memagent", "mode=plan"])
    assert ended.value.code == run.CONFIG_ERROR
    assert "the current folder cannot be found" in capsys.readouterr().err
