"""A critic without what it needs, beside what it replaces, and settings of it that nothing reads are refused by key."""

from pathlib import Path
from typing import Any

import pytest

from vime.config import AlgorithmName, Baseline, CriticPlace, Normalization, RunConfig
from vime.preflight.compose import compose_run
from vime.preflight.rules.critic import FILTER, combinations, unread
from vime.preflight.rules.numbers import value_at
from vime.preflight.rules.objective import essence
from vime.preflight.rules.rollout_settings import compared
from vime.preflight.validation import find_problems

WITH = {"algorithm.critic.place": CriticPlace.model, "algorithm.baseline": Baseline.none}
WITH["algorithm.normalization"] = Normalization.none


def config_of(settings: dict[str, Any]) -> RunConfig:
    config = RunConfig()
    for key, value in settings.items():
        path, _, name = key.rpartition(".")
        setattr(value_at(config, path) if path else config, name, value)
    return config


def keys(settings: dict[str, Any], *, rules: Any = (combinations, unread)) -> set[str]:
    return {problem.key for rule in rules for problem in rule(config_of(settings))}


@pytest.mark.parametrize(
    "wrong",
    [
        {"algorithm.baseline": Baseline.mean},
        {"algorithm.normalization": Normalization.std},
        {"algorithm.advantage": "mine.advantage"},
        {"algorithm.object": "vime.algorithm.policy_gradient.PolicyGradient"},
        {"trainer.lora.rank": 8},
        {"rollout.filter": FILTER},
        {"algorithm.critic.gradient_scale": 0.1},
        {"algorithm.critic.coefficient": 1.0},
        {"algorithm.critic.gae_lambda": 0.9},
        {"algorithm.critic.warmup_steps": 100},
    ],
)
def test_each_contradiction_is_refused_by_its_key(wrong: dict[str, Any]):
    own = {"rollout.num_samples_per_prompt": 1, "algorithm.critic.adaptive_alpha": 0.05}
    assert not keys(WITH | own)
    assert keys(WITH | own | wrong) == set(wrong)


def test_demonstrations_have_no_critic():
    assert keys(WITH | {"algorithm.name": AlgorithmName.sft}) == {"algorithm"}


@pytest.mark.parametrize("place", [CriticPlace.none, CriticPlace.trunk])
def test_settings_of_another_place_are_refused(place: CriticPlace):
    own = {"algorithm.critic.lr": 1e-3, "algorithm.critic.num_epochs_per_batch": 2, "algorithm.critic.warmup_steps": 1}
    assert keys(WITH | {"algorithm.critic.place": place} | own) == set(own)


def test_a_single_rollout_per_prompt_needs_a_critic_or_no_baseline():
    single = {"rollout.num_samples_per_prompt": 1}
    assert keys(single, rules=[compared]) == {"rollout.num_samples_per_prompt"}
    assert not keys(WITH | single, rules=[compared])


def test_an_object_of_the_user_derives_from_the_one_that_reads_values(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text("from vime.algorithm.critic import ActorCritic\n\n\nclass Mine(ActorCritic):\n    pass\n")
    assert not keys(WITH | {"algorithm.object": f"{file}:Mine"})


@pytest.mark.parametrize(
    ("name", "place", "is_refused"),
    [
        (AlgorithmName.ppo, CriticPlace.none, True),
        (AlgorithmName.ppo, CriticPlace.trunk, False),
        (AlgorithmName.reinforce_plus_plus, CriticPlace.model, True),
        (AlgorithmName.custom, CriticPlace.model, False),
        (AlgorithmName.custom, CriticPlace.none, False),
    ],
)
def test_a_name_says_whether_there_is_a_critic(name: AlgorithmName, place: CriticPlace, is_refused: bool):
    found = keys({"algorithm.name": name, "algorithm.critic.place": place}, rules=[essence])
    assert ("algorithm.critic.place" in found) is is_refused


def test_a_run_with_adapters_and_a_critic_is_refused_with_its_reason():
    words = ["+method=memagent", "model=qwen2.5-7b", "algorithm=ppo", "trainer.lora.rank=8", "mode=plan"]
    (problem,) = find_problems(compose_run(words).config)
    assert problem.key == "trainer.lora.rank" and "keeps and saves nothing but adapters" in problem.remedy
