"""An algorithm of the user is checked before anything starts: the class, its options, their types and ranges."""

from pathlib import Path
from typing import Any

import pytest

from vime.algorithm.batch import build_updates
from vime.algorithm.choice import algorithm_of, second_weights
from vime.algorithm.description import describe
from vime.config import AlgorithmConfig, RunConfig
from vime.errors import HookError
from vime.preflight.compose import compose_run
from vime.preflight.rules.objective import own_object
from vime.types import Group, Prompt, Rollout, Sample, StopReason

MINE = """
from dataclasses import dataclass
from typing import Annotated
from vime.algorithm.algorithm import Algorithm, Columns, average
from vime.config.ranges import Range
from vime.types import ColumnType

@dataclass
class Options:
    decay: Annotated[float, Range(least=0, below=1)] = 0.9
    bound: float | None = None
    extra: bool = False

class Mine(Algorithm):
    Config = Options
    columns = (ColumnType(name="bonus"),)

    @property
    def needs(self):
        return (average(self.options.decay),)

    def advantages(self, groups, known):
        found = {rollout.rollout_id: rollout.reward for group in groups for rollout in group.rollouts}
        if self.options.extra:
            return Columns({"advantage": found, "bonus": found, "other": found})
        return Columns({"advantage": found})

def function():
    pass
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return f"{tmp_path}/mine.py"


def run_of(path: str, **options: Any) -> RunConfig:
    return RunConfig(algorithm=AlgorithmConfig(object=path, options=options))


def test_a_class_gets_its_options_typed(path: str):
    run = run_of(f"{path}:Mine", decay=0.5, bound=3)
    assert own_object(run) == [] and describe(run.algorithm) == f"{path}:Mine with decay 0.5, bound 3"
    options = algorithm_of(run).options
    assert (options.decay, options.bound, options.extra) == (0.5, 3.0, False)
    (need,) = second_weights(run)
    assert need.decay == 0.5


@pytest.mark.parametrize(
    ("name", "options", "key", "words"),
    [
        ("Mine", {"decays": 0.5}, "algorithm.options.decays", "takes decay, bound, extra"),
        ("Mine", {"decay": "slow"}, "algorithm.options.decay", "'slow'"),
        ("Mine", {"decay": 1.0}, "algorithm.options.decay", "must be"),
        ("Other", {}, "algorithm.object", "cannot be imported"),
        ("function", {}, "algorithm.object", "is no algorithm"),
    ],
)
def test_mistakes_name_key_value_and_remedy(path: str, name: str, options: dict[str, Any], key: str, words: str):
    (problem,) = own_object(run_of(f"{path}:{name}", **options))
    assert problem.key == key and words in problem.remedy
    assert problem.value == next(iter(options.values()), f"{path}:{name}")


def test_options_without_an_object_are_refused():
    (problem,) = own_object(RunConfig(algorithm=AlgorithmConfig(options={"decay": 0.5})))
    assert problem.key == "algorithm.options.decay" and "algorithm.object" in problem.remedy


def test_it_is_chosen_on_the_command_line(path: str):
    words = ["+method=memagent", "mode=plan", f"algorithm.object={path}:Mine", "+algorithm.options.decay=0.25"]
    assert algorithm_of(compose_run(words).config).options.decay == 0.25


@pytest.mark.parametrize(("extra", "words"), [(False, "no column 'bonus'"), (True, "the column 'other'")])
def test_columns_are_those_that_it_declares(path: str, extra: bool, words: str):
    sample = Sample(tokens=[1, 2], response_length=1, loss_mask=[1], rollout_log_probs=[-1.0])
    rollout = Rollout(rollout_id=0, group_index=0, samples=[sample], reward=1.0, stop_reason=StopReason.ANSWERED)
    group = Group(prompt=Prompt(index=0, row=0, messages=[], ground_truth=[]), rollouts=[rollout])
    with pytest.raises(HookError, match=words):
        build_updates(algorithm_of(run_of(f"{path}:Mine", extra=extra)), [group])


def test_a_column_may_come_from_the_agent(path: str):
    sample = Sample(tokens=[1, 2], response_length=1, loss_mask=[1], rollout_log_probs=[-1.0], columns={"bonus": [0.25]})
    rollout = Rollout(rollout_id=0, group_index=0, samples=[sample], reward=1.0, stop_reason=StopReason.ANSWERED)
    group = Group(prompt=Prompt(index=0, row=0, messages=[], ground_truth=[]), rollouts=[rollout])
    ((sequence,),), _ = build_updates(algorithm_of(run_of(f"{path}:Mine")), [group])
    assert sequence.columns["bonus"] == [0.25] and sample.columns == {"bonus": [0.25]}
