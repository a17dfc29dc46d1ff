"""Two adapters in one run, from the command line to the tokens that were sampled with each version."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vime.errors import ConfigError
from vime.preflight.compose import compose_run

ROOT = Path(__file__).parent.parent
WORDS = [
    "model=tiny",
    "trainer.lora.rank=8",
    "serving.lora=adapter",
    '+adapters.fast="+method=memagent trainer.lr=1e-2"',
    '+adapters.slow="+method=memagent trainer.lr=1e-3 trainer.lora.rank=2 algorithm=rloo seed=7"',
]
SMALL = ["rollout.num_prompts=8", "rollout.num_samples_per_prompt=4", "evaluation.rows=[]", "evaluation.before=none"]
KEPT = ["logger.rollouts=tokens", "trainer.save_every=1", "trainer.keep_checkpoints=100"]


def test_each_adapter_has_the_words_of_the_run_and_its_own(tmp_path: Path) -> None:
    config = compose_run([*WORDS, f"output_dir={tmp_path / 'run'}"]).config
    assert {name: (own.trainer.lr, own.trainer.lora.rank, own.seed) for name, own in config.adapters.items()} == {
        "fast": (1e-2, 8, 0),
        "slow": (1e-3, 2, 7),
    }
    assert config.adapters["slow"].output_dir == str(tmp_path / "run" / "adapters" / "slow")
    assert not config.adapters["slow"].adapters and config.model == config.adapters["fast"].model


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ('+adapters.fast="+method=memagent trainer.lr=fast"', "adapters.fast: trainer.lr"),
        ("+adapters.fast=[1]", "the words of its run as a text"),
        ('+adapters."a b"="+method=memagent"', "adapters"),
    ],
)
def test_a_wrong_word_of_an_adapter_is_named_with_it(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose_run(["model=tiny", word])


@pytest.mark.slow
@pytest.mark.in_turn
def test_two_adapters_are_trained_resumed_and_sampled_with_their_own_versions(tmp_path: Path) -> None:
    def run(*more: str) -> None:
        command = [sys.executable, "-m", "vime.run", *WORDS, *SMALL, *KEPT, f"output_dir={tmp_path / 'run'}", *more]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    moved = []
    run("trainer.num_steps=2")
    run("trainer.num_steps=3", "resume=true")
    assert (tmp_path / "latest").resolve() == (tmp_path / "run").resolve()
    for name, rank in (("fast", 8), ("slow", 2)):
        own = tmp_path / "run" / "adapters" / name
        steps = [json.loads(line)["step"] for line in (own / "metrics.jsonl").read_text().splitlines()]
        assert sorted(set(steps)) == [1, 2, 3]
        assert json.loads((own / "adapter" / "adapter_config.json").read_text())["r"] == rank
        command = [sys.executable, "tools/version_audit.py", str(own), "--json", str(tmp_path / "audit.json"), "--sequences", "6"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        (audited,) = json.loads((tmp_path / "audit.json").read_text())
        assert [one["version"] for one in audited] == [0, 1, 2]
        moved += [one["before"] > 1e-4 for one in audited[1:]]
    assert any(moved), "no version differs from the one before, so nothing was shown"
