"""A run that ends early says why, how far it has come and how to continue it, in its folder and on top of its report."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from vime.config import TRY, RolloutConfig, RunConfig
from vime.errors import InfrastructureError
from vime.files.command_line import setting
from vime.orchestration.tally import Tally
from vime.preflight.compose import compose_run
from vime.preflight.sweep import expand
from vime.report.ending import ending_of, read_ending
from vime.report.run_directory import RunDirectory
from vime.run_output import RunOutput
from vime.types import Group, Prompt, Rollout, StopReason


def test_a_failed_run_has_a_report_with_the_error_on_top(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["+method=memagent", f"output_dir={tmp_path / 'run'}"]
    with pytest.raises(InfrastructureError), RunOutput.open(compose_run(words)):
        raise InfrastructureError("32 of 32 rollouts failed (my_agent.py:8)\nTraceback of <them>")
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.index("InfrastructureError: 32 of 32 rollouts failed (my_agent.py:8)") < page.index("Where it comes from")
    assert "Traceback of &lt;them&gt;" in page and ">failed</span>" in page
    shown = capfd.readouterr().out
    assert "InfrastructureError after 0 of" in shown and "report.html" in shown and "logs" in shown
    with RunOutput.open(compose_run([*words, "resume=true"])):
        assert read_ending(tmp_path / "run") is None, "the run goes on"


def test_the_rollouts_that_failed_are_kept_when_they_end_the_run(tmp_path: Path) -> None:
    tally = Tally(RolloutConfig(num_prompts=1, num_samples_per_prompt=2))
    failed = {
        "stop_reason": StopReason.GENERATE_RAISED,
        "error": "KeyError: 'hint' (my_agent.py:10)",
        "traceback": "at my_agent.py",
    }
    prompt = Prompt(index=0, row=0, messages=[], ground_truth=[])
    group = Group(prompt=prompt, rollouts=[Rollout(rollout_id=number, group_index=0, **failed) for number in range(2)])
    tally.add(group)
    error = tally.problem()
    assert error is not None and error.groups == [group]
    with pytest.raises(InfrastructureError), RunOutput.open(compose_run(["+method=memagent", f"output_dir={tmp_path / 'run'}"])):
        raise error
    kept = RunDirectory(tmp_path / "run").read_rollouts(1)
    assert [(line["stop_reason"], line["traceback"]) for line in kept] == [("generate_raised", "at my_agent.py")] * 2
    tally.take()
    assert tally.problem() is None


def test_an_interrupted_run_names_step_checkpoint_and_command(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step_000010").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".step_000012.writing").mkdir()
    words = ["+method=memagent", "name=a b", "resume=true", "output_dir=elsewhere"]
    ending = ending_of(KeyboardInterrupt(), RunConfig(), tmp_path, overrides=words, step=12)
    first, command = ending.lines()
    assert first == "interrupted after 12 of 100 steps; the last checkpoint is of step 10" and ending.text == ""
    found = shlex.split(command.partition(": ")[2])
    assert found == ["python", "-m", "vime.run", "+method=memagent", "name=a b", "resume=true", f"output_dir={tmp_path}"]


def test_an_error_of_our_own_has_its_traceback_and_a_try_does_not_go_on(tmp_path: Path) -> None:
    try:
        raise AssertionError("3 != 4")
    except AssertionError as error:
        ending = ending_of(error, RunConfig(mode=TRY), tmp_path, overrides=[], step=0)
    assert "Traceback" in ending.text and "3 != 4" in ending.text and ending.lines() == ["AssertionError"]


def test_the_command_of_a_point_of_a_sweep_goes_on_with_its_settings(tmp_path: Path) -> None:
    folder = tmp_path / "my runs, [1]"
    words = ["name='a, b','c d'", "+data.train.generator_args={split: train, kinds: [x, y]}", f"output_dir='{folder}'"]
    for number, point in enumerate(expand(words).points):
        own = [setting("logger.group", folder.name), *point, setting("output_dir", str(folder / str(number)))]
        first = compose_run(own)
        with pytest.raises(KeyboardInterrupt), RunOutput.open(first):
            raise KeyboardInterrupt
        ending = read_ending(folder / str(number))
        assert ending is not None
        again = compose_run(shlex.split(ending.go_on)[3:])
        assert replace(again.config, resume=False) == first.config
        assert again.config.logger.group == folder.name and again.config.name == ("a, b", "c d")[number]
