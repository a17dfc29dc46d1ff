"""The checks of a bare CUDA machine, on the CPU at tiny size and without the packages that such a machine lacks."""

import json
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tools" / "gpu_check.py"
ABSENT = ("ray", "vllm", "hydra", "omegaconf", "datasets", "aiohttp", "wandb", "rich", "orjson", "faiss", "einops")
BARE = f"""
import runpy, sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {ABSENT} else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def bare(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a Python that has none of the absent packages."""
    return subprocess.run([sys.executable, "-W", "ignore", "-c", BARE + code, *words], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.long
def test_all_checks_pass_on_the_cpu_without_those_packages(tmp_path: Path) -> None:
    run = (
        "from vime.trainer import megatron_setup; megatron_setup.set_up(); import vime.trainer.checkpoint, vime.weights.export\n"
    )
    run += f"sys.argv[0] = {str(PROGRAM)!r}; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    found = bare(run, "--device", "cpu", "--json", str(tmp_path / "findings.json"))
    assert found.returncode == 0, found.stdout + found.stderr
    written = json.loads((tmp_path / "findings.json").read_text())
    assert {one["check"] for one in written["findings"]} == {
        "logits",
        "head",
        "step",
        "repeat",
        "checkpoint",
        "offload",
        "activations",
        "speed",
        "adapters",
    }
    assert all(one["passed"] for one in written["findings"]) and written["machine"]["device"] == "CPU"
    assert "qwen3_moe bfloat16" in found.stdout


def test_a_check_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    program = runpy.run_path(str(PROGRAM))
    from gpu_checks import capacity, exactness
    from gpu_checks.finding import measured, table

    def broken(setting: Any) -> Any:
        yield measured("logits", "one", 1.0, unit="")
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(exactness, "logits", broken)
    monkeypatch.setattr(exactness, "release", lambda setting: None)
    monkeypatch.setattr(capacity, "speed", lambda setting: [measured("speed", "two", 2.0, unit="tokens/s")])
    findings = [one for found in program["run"](None, ["logits", "speed"]) for one in found]
    assert [(one.check, one.passed) for one in findings] == [("logits", True), ("logits", False), ("speed", True)]
    assert "! logits" in table(findings) and "illegal memory access" in table(findings)


def test_findings_of_another_machine_are_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    from gpu_checks.finding import at_most, read_json, write_json

    findings = [at_most("logits", "one", 0.5, 1.0)]
    write_json(findings, {"device": "one"}, tmp_path / "findings.json")
    assert read_json(tmp_path / "findings.json", {"device": "one"}) == findings
    assert read_json(tmp_path / "findings.json", {"device": "other"}) == []


def test_wheels_are_imported_from_a_folder(tmp_path: Path) -> None:
    program = runpy.run_path(str(PROGRAM))
    with zipfile.ZipFile(tmp_path / "one-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("one/__init__.py", "VALUE = 1")
    assert (program["unpack"](tmp_path, tmp_path / "target") / "one" / "__init__.py").read_text() == "VALUE = 1"
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="holds no wheels"):
        program["unpack"](tmp_path / "empty", tmp_path / "target")
