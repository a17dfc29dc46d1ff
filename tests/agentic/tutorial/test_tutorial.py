"""Every step of the tutorial runs by its own words: on one real server of its model, and as a run that is accepted."""

import asyncio
import re
import shlex
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentic.tutorial import own_loop
from agentic.tutorial.evaluation import eval_log
from vime.config import RunConfig
from vime.preflight.compose import compose_run
from vime.preflight.validation import find_problems
from vime.types import COUNTS, Group, Prompt, StopReason

FOLDER = Path(__file__).parents[3] / "agentic" / "tutorial"
STEPS = ["one_call", "first_query", "tool", "turns", "sub_agents", "over_http", "evaluation", "algorithm"]
OWN_LOOP = "own_loop"
"""The last step, which is a script."""
MOST_LINES = 40
NUM_ROLLOUTS = 4


def words_of(step: str) -> list[str]:
    """The words of the command in a step's docstring, behind the name of the program."""
    command = (FOLDER / f"{step}.py").read_text().split("python -m vime.run ")[1].split("\n\n")[0].split('"""')[0]
    return shlex.split(command.replace("\\\n", " "))


def config_of(step: str, *words: str) -> RunConfig:
    """The configuration of a step."""
    return compose_run([*words_of(step), *words]).config


def test_the_readme_has_the_steps_in_order_and_each_is_short():
    rows = re.findall(r"^\| (\d) \| `(\w+)\.py` \|", (FOLDER / "README.md").read_text(), re.M)
    assert rows == [(str(number), step) for number, step in enumerate([*STEPS, OWN_LOOP], start=1)]
    assert {file.stem for file in FOLDER.glob("*.py")} == {*STEPS, OWN_LOOP, "__init__"}
    assert all(len((FOLDER / f"{step}.py").read_text().splitlines()) <= MOST_LINES for step in (*STEPS, OWN_LOOP))


@pytest.mark.parametrize("step", STEPS)
def test_the_command_of_a_step_is_accepted(step: str):
    assert find_problems(config_of(step, "mode=plan")) == []


@dataclass
class ServedTutorial:
    """The tutorial's model on a server."""

    endpoints: dict[str, Any]

    def groups(self, config: RunConfig, num_groups: int = 2) -> list[Group]:
        """Groups of rollouts of a step's agent, for the first rows of its data."""
        from vime.data.dataset import load_rows, to_prompt
        from vime.workers.worker import RolloutWorker

        train = config.data.train
        rows = load_rows(replace(train, num_items=num_groups))
        prompts = [to_prompt(row, index=n, row_number=n, dataset=train.name) for n, row in enumerate(rows)]

        async def run() -> list[Group]:
            worker = RolloutWorker(config, self.endpoints)
            await worker.ready()
            try:
                return await asyncio.gather(*(self._group(worker, prompt) for prompt in prompts))
            finally:
                await worker.close()

        return asyncio.run(run())

    async def _group(self, worker: Any, prompt: Prompt) -> Group:
        return await worker.run_group(prompt=prompt, slot=prompt.index, num_rollouts=NUM_ROLLOUTS, version=0)


@pytest.fixture(scope="module")
def tutorial(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedTutorial]:
    from vime.serving.topology import Serving

    serving = Serving(config_of("tool"), tmp_path_factory.mktemp("tutorial"), uuid.uuid4().hex[:8])
    serving.start()
    try:
        asyncio.run(serving.ready())
        yield ServedTutorial(serving.endpoints())
    finally:
        asyncio.run(serving.stop())


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_step_runs_on_a_server(tutorial: ServedTutorial, step: str):
    config = config_of(step)
    groups = tutorial.groups(config)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert len(rollouts) == 2 * NUM_ROLLOUTS and all(rollout.counting.trained for rollout in rollouts), [
        r.error for r in rollouts
    ]
    assert all(rollout.num_response_tokens for rollout in rollouts)
    calls = sum(rollout.counts.get("tool_calls", 0) for rollout in rollouts)
    assert (calls > 0) == (step in ("tool", "turns", "sub_agents", "evaluation", "algorithm"))
    if step == "first_query":
        assert any(rollout.metrics["calls"] for rollout in rollouts)
    if step == "sub_agents":
        finished = [rollout for rollout in rollouts if rollout.stop_reason is not StopReason.TURN_LIMIT]
        assert finished and all(len(rollout.samples) == 3 for rollout in finished)
    if step == "algorithm":
        check_advantages(config, groups)
    if step == "evaluation":
        context: Any = SimpleNamespace()
        log = eval_log(context, [{"counts": rollout.counts} for rollout in rollouts])
        assert log.metrics["queries_mean"] == calls / len(rollouts)
        assert sum(log.figures["items_by_number_of_queries"]["series"]["share of items"]) == pytest.approx(1)


@pytest.mark.long
@pytest.mark.in_turn
def test_a_loop_of_ones_own_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    asyncio.run(own_loop.main(f"output_dir={tmp_path}"))
    assert re.findall(r"^step (\d), .*'grad_norm': \d", capsys.readouterr().out, re.M) == ["0", "1", "2", "3"]


def check_advantages(config: RunConfig, groups: list[Group]) -> None:
    """The advantages of a group add up to nothing, and a query costs its price."""
    from vime.algorithm.choice import algorithm_of

    found = algorithm_of(config).advantages(groups, []).values["advantage"]
    for group in groups:
        counted = [rollout for rollout in group.rollouts if COUNTS[rollout.stop_reason].in_baseline]
        assert sum(found[rollout.rollout_id] for rollout in counted) == pytest.approx(0, abs=1e-9)
        for one in counted:
            queries = one.counts.get("tool_calls", 0) - counted[0].counts.get("tool_calls", 0)
            difference = one.reward - counted[0].reward - config.algorithm.options["price"] * queries
            assert found[one.rollout_id] - found[counted[0].rollout_id] == pytest.approx(difference)
