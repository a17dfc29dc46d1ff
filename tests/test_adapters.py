"""Two adapters in one run, from the command line to the tokens that were sampled with each version."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from vime.errors import ConfigError
from vime.files.provenance import plain
from vime.preflight.compose import compose_run
from vime.serving.topology import Serving

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


def test_servers_have_room_for_the_longest_context_and_each_adapter_has_its_own(tmp_path: Path) -> None:
    lengths = {"long": 2048, "short": 256}
    words = [f'+adapters.{name}="+method=memagent serving.models.actor.max_model_len={each}"' for name, each in lengths.items()]
    config = compose_run([*WORDS[:3], *words, f"output_dir={tmp_path / 'run'}"]).config
    serving = Serving(config, tmp_path, "run")
    serving.plan()
    assert serving.endpoints()["actor"].max_model_len == 2048
    views = {name: serving.of(name, own.serving.models).endpoints()["actor"] for name, own in config.adapters.items()}
    assert {name: (view.adapter, view.max_model_len) for name, view in views.items()} == {
        "long": ("long", 2048),
        "short": ("short", 256),
    }


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


def test_a_run_goes_on_as_long_as_one_of_its_adapters_has_not_finished(tmp_path: Path) -> None:
    words = [*WORDS, f"output_dir={tmp_path / 'run'}", "trainer.num_steps=3", "resume=true"]
    for folder in (tmp_path / "run", *(tmp_path / "run" / "adapters" / name for name in ("fast", "slow"))):
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("mode: train\n")
    for name, steps in (("fast", 3), ("slow", 1)):
        own = compose_run(words).config.adapters[name]
        kept = {key: plain(getattr(own, key)) for key in ("data", "evaluation")}
        (Path(str(own.output_dir)) / "config.yaml").write_text(yaml.safe_dump({"mode": "train"} | kept))
        (Path(str(own.output_dir)) / "summary.json").write_text(json.dumps({"num_steps": steps}))
    assert compose_run(words).config.resume
    (tmp_path / "run" / "adapters" / "slow" / "summary.json").write_text(json.dumps({"num_steps": 3}))
    with pytest.raises(ConfigError, match="has finished"):
        compose_run(words)


@pytest.mark.long
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


BROKEN = """
from pathlib import Path

CALLS = Path(__file__).with_name("calls")


def advantages(config, groups):
    CALLS.write_text(CALLS.read_text() + "." if CALLS.exists() else ".")
    if len(CALLS.read_text()) == 3:
        raise ValueError("the third batch is unlucky")
    return {rollout.rollout_id: rollout.reward - 0.5 for group in groups for rollout in group.rollouts}


async def reward(context, samples):
    raise ValueError("no reward for anyone")
"""


@pytest.mark.long
@pytest.mark.in_turn
def test_an_adapter_that_fails_is_kept_as_it_was_while_the_others_end_and_goes_on_when_the_run_is_resumed(tmp_path: Path) -> None:
    folder, mine = tmp_path / "run", tmp_path / "mine.py"
    mine.write_text(BROKEN)
    words = ["model=tiny", "trainer.lora.rank=4", "serving.lora=adapter", "trainer.num_steps=4", f"output_dir={folder}"]
    words += [
        f'+adapters.{name}="+method=memagent {more}"'
        for name, more in (
            ("good", ""),
            ("unlucky", f"algorithm.advantage={mine}:advantages"),
            ("unrewarded", f"method.reward={mine}:reward"),
        )
    ]

    def run(*more: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "vime.run", *words, *SMALL, "trainer.save_every=100", *more]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
        return done.returncode, done.stdout + done.stderr

    def steps(name: str) -> list[int]:
        lines = (folder / "adapters" / name / "metrics.jsonl").read_text().splitlines()
        return sorted({json.loads(line)["step"] for line in lines})

    code, shown = run()
    assert code == 1 and "2 of 3 adapters stopped before their last step" in shown, shown[-3000:]
    assert steps("good") == [1, 2, 3, 4] and (folder / "adapters" / "good" / "adapter").exists()
    assert "no reward for anyone" in (folder / "adapters" / "unrewarded" / "ended.json").read_text()
    ending = json.loads((folder / "adapters" / "unlucky" / "ended.json").read_text())
    assert "the third batch is unlucky" in ending["text"] and (ending["step"], ending["checkpoint"]) == (2, 2)
    assert not list((folder / "adapters" / "unrewarded").glob("checkpoints/step_*")), "it has not made a step"
    mine.write_text(mine.read_text().replace("raise ValueError", "return float"))
    words[-1] = words[-1].replace(f"method.reward={mine}:reward", "")
    code, shown = run("resume=true")
    assert code == 0, shown[-3000:]
    assert [steps(name) for name in ("good", "unlucky", "unrewarded")] == [[1, 2, 3, 4]] * 3
