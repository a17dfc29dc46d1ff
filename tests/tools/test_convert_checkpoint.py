"""Checkpoints between runs and Hugging Face, by the program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from vime.model.load_tokenizer import load_tokenizer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TINY = ROOT / "agentic" / "memagent" / "tiny" / "actor"
PROGRAM = [sys.executable, "-W", "ignore", str(ROOT / "tools" / "convert_checkpoint.py")]


def convert(*words: object) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([*PROGRAM, *map(str, words)], env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with two checkpoints; the newer was made from the shipped model."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": {"checkpoint": str(TINY)}}))
    step = folder / "checkpoints" / "step_000020"
    step.mkdir(parents=True)
    (folder / "checkpoints" / "step_000003" / "trainer").mkdir(parents=True)
    done = convert("from-hugging-face", TINY, step / "trainer", "--precision", "float32")
    assert done.returncode == 0 and "written to" in done.stderr, done.stderr
    return folder


def test_there_and_back_is_bitwise_and_transformers_load_it(run: Path, tmp_path: Path):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, GenerationConfig

    target = tmp_path / "model"
    done = convert("to-hugging-face", run, target)
    assert done.returncode == 0, done.stderr
    before, after = load_file(TINY / "model.safetensors"), load_file(target / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    ids = load_tokenizer(target)("What is the value?", return_tensors="pt")["input_ids"]
    assert ids.tolist() == load_tokenizer(TINY)("What is the value?", return_tensors="pt")["input_ids"].tolist()
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in (TINY, target)]
    with torch.no_grad():
        assert torch.equal(models[0](ids).logits, models[1](ids).logits)
    assert GenerationConfig.from_pretrained(target).eos_token_id == 2
    again = convert("to-hugging-face", run, target)
    assert again.returncode == 2 and "nothing is overwritten" in again.stderr


def test_what_cannot_be_converted_is_said(run: Path, tmp_path: Path):
    file = run / "checkpoints" / "step_000020" / "trainer" / "__0_0.distcp"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    done = convert("to-hugging-face", run / "checkpoints" / "step_000020", tmp_path / "model")
    file.write_bytes(whole)
    assert done.returncode == 1 and "__0_0.distcp has" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "model").exists()
    none = convert("to-hugging-face", tmp_path, tmp_path / "model")
    assert none.returncode == 1 and "is neither a checkpoint" in none.stderr


def test_help_shows_both_ways():
    text = convert("--help").stdout
    assert "to-hugging-face outputs/latest models/trained" in text and "from-hugging-face Qwen" in text
