"""vLLM is asked once for its arguments, and the answer is kept."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from vime.serving import known_flags as module
from vime.serving.known_flags import known_flags


def test_the_answer_is_kept_for_the_installed_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, stdout='a line of vLLM\n{"block_size": null}\n')

    monkeypatch.setattr(module.subprocess, "run", run)
    assert known_flags(tmp_path) == {"block_size": None} == known_flags(tmp_path)
    assert len(asked) == 1 and len(list(tmp_path.iterdir())) == 1


def test_without_an_answer_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(module.subprocess, "run", run)
    assert known_flags(tmp_path) is None and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_parser_knows_the_arguments_that_vime_gives(tmp_path: Path) -> None:
    found = known_flags(tmp_path)
    assert found is not None and {"block_size", "max_model_len", "no_enable_prefix_caching", "dtype"} <= set(found)
    assert "bfloat16" in (found["dtype"] or [])
