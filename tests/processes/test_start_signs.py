"""A start is limited by silence: a log or a download that grows is a sign of life, and what was said last is the cause."""

from pathlib import Path

import pytest

from vime.processes import start_signs
from vime.processes.start_signs import StartSigns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [1000.0]
    monkeypatch.setattr(start_signs.time, "monotonic", lambda: now[0])
    return now


def test_silence_counts_from_the_last_line(tmp_path: Path, clock: list[float]):
    log = tmp_path / "log"
    signs = StartSigns(str(log), hub_id=None)
    clock[0] += 50
    assert signs.silent_seconds() == 50
    log.write_text("Loading safetensors checkpoint shards: 10%\r")
    assert signs.silent_seconds() == 0
    clock[0] += 70
    assert signs.silent_seconds() == 70
    with log.open("a") as file:
        file.write("Loading safetensors checkpoint shards: 20%\r")
    assert signs.silent_seconds() == 0


def test_a_download_that_grows_is_a_sign(tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    blobs = tmp_path / "models--org--model" / "blobs"
    signs = StartSigns(str(tmp_path / "log"), hub_id="org/model")
    clock[0] += 200
    assert signs.silent_seconds() == 200
    blobs.mkdir(parents=True)
    (blobs / "abc.incomplete").write_bytes(b"1")
    clock[0] += 6
    assert signs.silent_seconds() == 0
    clock[0] += 6
    assert signs.silent_seconds() == 6
    with (blobs / "abc.incomplete").open("r+b") as file:
        file.truncate(3 * 2**29)
    clock[0] += 6
    assert signs.silent_seconds() == 0
    assert "fetched 1.5 GiB of its checkpoint" in signs.describe()


def test_what_it_said_last_is_told(tmp_path: Path):
    log = tmp_path / "log"
    signs = StartSigns(str(log), hub_id=None)
    assert signs.describe() == "its log ends with: (there is no log)"
    log.write_text("INFO compiling\nCapturing CUDA graphs:  12%\rCapturing CUDA graphs:  24%\r\n \n")
    assert signs.describe() == "its log ends with: Capturing CUDA graphs:  24%"
