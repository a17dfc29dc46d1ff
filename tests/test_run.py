"""How the program ends when something outside it fails."""

import errno

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
