"""A run that would be scored on items that it trains on is refused, whatever the method and whatever else differs."""

from dataclasses import replace
from typing import Any

import pytest

from agentic.agentflow.instructions import DAPO_AFTER, DAPO_BEFORE
from vime.config import RunConfig
from vime.data.dataset import to_prompt
from vime.data.overlap import check_overlap
from vime.data.source import RowSource
from vime.errors import ConfigError
from vime.evaluation.protocol import load_prompts
from vime.preflight.compose import compose_run
from vime.types import Prompt

METHODS = ("agentflow", "coding", "memagent", "toolorchestra")


@pytest.fixture(scope="module", params=METHODS)
def config(request: pytest.FixtureRequest) -> RunConfig:
    return compose_run([f"+method={request.param}"]).config


def test_the_laptop_tasks_share_nothing_and_refuse_an_item_put_in_on_purpose(config: RunConfig):
    evaluation = load_prompts(config)
    check_overlap(config, RowSource(config).prompts(), evaluation)
    chosen = config.data.evaluation[-1].name
    trained = [*RowSource(config).prompts(), replace(evaluation[chosen][0], dataset="train", index=9)]
    with pytest.raises(ConfigError) as refused:
        check_overlap(config, trained, evaluation)
    refusals = {str(problem.value): problem for problem in refused.value.problems}
    assert chosen in refusals
    remedy = refusals[chosen].remedy
    assert f" of its {len(evaluation[chosen])} items" in remedy and config.data.train.name in remedy and "another split" in remedy
    assert config.method.identities(evaluation[chosen][0])[0][:60] in remedy


ONE_ITEM_IN_TWO_LAYOUTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a question with another document": (
        "memagent",
        {
            "prompt": [{"role": "user", "content": "Who  owns Halin?"}],
            "context": "A",
            "extra_info": {"question": "Who owns Halin?"},
        },
        {"input": "who owns halin?", "context": "B", "answers": ["Ada"]},
    ),
    "a problem with an instruction around it": (
        "agentflow",
        {"prompt": [{"role": "user", "content": f"{DAPO_BEFORE}\n\nWhat is 2 + 2?\n\n{DAPO_AFTER}"}]},
        {"prompt": "What is 2 + 2?", "benchmark": "aime24"},
    ),
    "a task of tau2-bench in another split": (
        "toolorchestra",
        {"prompt": "I call.", "domain": "airline", "task_id": "7", "category": "func_call", "split": "train"},
        {"prompt": "I call.", "domain": "airline", "task_id": "7", "category": "func_call", "split": "base"},
    ),
    "a repository's task under another name": (
        "coding",
        {"problem_statement": "gcd is wrong", "instance_id": "exercism__gcd"},
        {"problem_statement": "GCD is  wrong", "instance_id": "quixbugs__gcd"},
    ),
}


@pytest.mark.parametrize("case", ONE_ITEM_IN_TWO_LAYOUTS)
def test_an_item_is_recognized_in_another_layout(case: str):
    method, trained, scored = ONE_ITEM_IN_TWO_LAYOUTS[case]
    config = compose_run([f"+method={method}"]).config
    name = config.data.evaluation[0].name
    with pytest.raises(ConfigError, match="1 of its 1 items"):
        check_overlap(config, [prompt_of(trained, "train")], {name: [prompt_of(scored, name)]})


def test_tasks_of_tau2_whose_users_say_the_same_are_different_items():
    config = compose_run(["+method=toolorchestra"]).config
    rows = [{"prompt": "I call.", "domain": "telecom", "task_id": number} for number in ("1", "2")]
    name = config.data.evaluation[0].name
    check_overlap(config, [prompt_of(rows[0], "train")], {name: [prompt_of(rows[1], name)]})


def prompt_of(row: dict[str, Any], dataset: str) -> Prompt:
    return to_prompt(row, index=0, row_number=0, dataset=dataset)
