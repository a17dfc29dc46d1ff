"""Contradicting options are refused by key, and an algorithm is what its name says."""

from typing import Any

import pytest

from vime.config import (
    PROBABILITY_MASKS,
    AlgorithmName,
    Baseline,
    Comparison,
    CorrectionConfig,
    CorrectionMode,
    KLPlace,
    Normalization,
    OldLogprobs,
    RatioLevel,
    RunConfig,
    Surrogate,
    TurnCredit,
)
from vime.preflight.compose import compose_run
from vime.preflight.rules.objective import (
    NAMED,
    NUMBERS_OF,
    bounds,
    choices_of,
    combinations,
    essence,
    staleness,
    unread_numbers,
)
from vime.preflight.validation import find_problems

CLUSTERS = ("one_node", "two_nodes")

TRUNCATE = CorrectionConfig(mode=CorrectionMode.truncate)
WRONG: dict[str, dict[str, Any]] = {
    "algorithm.old_logprobs": {"correction": TRUNCATE},
    "algorithm.normalization": {"baseline": Baseline.none},
    "algorithm.dual_clip": {"dual_clip": 3.0, "surrogate": Surrogate.cispo},
    "algorithm.kl_unbiased": {"kl_unbiased": True, "kl_place": KLPlace.reward},
    "algorithm.clip_high": {"clip_low": 0.3},
    "algorithm.correction.high": {"correction": CorrectionConfig(low=3.0)},
    "algorithm.overlong_buffer_tokens": {"overlong_max_tokens": 10, "overlong_buffer_tokens": 11},
    "algorithm.ratio": {"name": AlgorithmName.gspo, "ratio": RatioLevel.token},
    "algorithm.whitening": {"name": AlgorithmName.reinforce_plus_plus},
    "algorithm.baseline": {"baseline": Baseline.leave_one_out},  # of GRPO, the default
}


def keys_of(**settings: Any) -> set[str]:
    config = RunConfig()
    config.rollout.num_logprobs = 20
    for name, value in settings.items():
        setattr(config.algorithm, name, value)
    return {problem.key for rule in (essence, bounds, combinations, unread_numbers) for problem in rule(config)}


CUSTOM: dict[str, Any] = {"name": AlgorithmName.custom}
RUNNING: dict[str, Any] = {"baseline": Baseline.running, "normalization": Normalization.none}
CENTERED: dict[str, Any] = {"surrogate": Surrogate.cispo, "score_centering": True}
WRONG_WITH_NEW_SURROGATES: list[tuple[str, dict[str, Any]]] = [
    *(("old_logprobs", {"surrogate": mask, "old_logprobs": OldLogprobs.trainer}) for mask in PROBABILITY_MASKS),
    *(("correction.mode", {"surrogate": mask, "correction": TRUNCATE}) for mask in PROBABILITY_MASKS),
    ("correction.veto", {"surrogate": Surrogate.ipo, "correction": CorrectionConfig(veto=1e-4)}),
    *(("ratio", {"surrogate": each, "ratio": RatioLevel.sequence}) for each in (*PROBABILITY_MASKS, Surrogate.gmpo)),
    ("overlong_max_tokens", {"normalization": Normalization.mean, "overlong_max_tokens": 10}),
    ("normalization", {"normalization": Normalization.mean, "baseline": Baseline.none}),
    *(("score_centering", {"surrogate": each, "score_centering": True}) for each in Surrogate if each is not Surrogate.cispo),
    ("score_centering", CENTERED | {"loss": "mine.loss"}),
    ("score_centering", CENTERED | {"ratio": RatioLevel.sequence}),
    ("old_logprobs", CENTERED | {"old_logprobs": OldLogprobs.trainer}),
    ("turn_discount", {"turn_discount": 0.9}),
    ("turn_weight", {"turn_weight": 2.0}),
    ("turn_weight", {"turn_weight": 2.0, "turn_credit": TurnCredit.returns}),
    ("baseline", {"baseline": Baseline.leave_one_out, "turn_credit": TurnCredit.returns}),
    ("normalization", {"normalization": Normalization.mean, "turn_credit": TurnCredit.states}),
    ("kl_place", {"kl_coefficient": 0.1, "kl_place": KLPlace.reward, "turn_credit": TurnCredit.states}),
    ("turn_credit", {"advantage": "mine.advantage", "turn_credit": TurnCredit.states}),
    ("normalization", {"baseline": Baseline.running}),
    ("baseline_decay", {"baseline_decay": 0.5}),
    ("nested_seats", {"nested_seats": ["solver"]}),
    ("nested_seats", {"nested_seats": ["solver"], "comparison": Comparison.seat, **RUNNING}),
    ("comparison", {"comparison": Comparison.seat, "advantage": "mine.advantage"}),
    ("comparison", RUNNING | {"comparison": Comparison.seat, "baseline": Baseline.none}),
    ("tau_positive", {"tau_positive": 2.0}),
    ("max_divergence", {"max_divergence": 0.3}),
    ("max_divergence", {"surrogate": Surrogate.sapo, "max_divergence": 0.3}),
    ("clip_high", {"surrogate": Surrogate.ipo, "clip_high": 0.3}),
    ("dual_clip", {"surrogate": Surrogate.gmpo, "dual_clip": 3.0}),
]


@pytest.mark.parametrize(("name", "settings"), WRONG_WITH_NEW_SURROGATES)
def test_what_makes_no_sense_with_a_surrogate_is_refused_alone(name: str, settings: dict[str, Any]):
    assert keys_of(**CUSTOM, **settings) == {f"algorithm.{name}"}


def test_every_number_of_a_surrogate_may_be_set_with_it_and_is_named_in_the_remedy_of_the_others():
    values = {
        "clip_low": 0.1,
        "clip_high": 0.3,
        "dual_clip": 3.0,
        "tau_positive": 2.0,
        "tau_negative": 2.0,
        "max_divergence": 0.3,
    }
    assert {name for names in NUMBERS_OF.values() for name in names} == set(values)
    assert set(NUMBERS_OF) == set(Surrogate)
    for surrogate, names in NUMBERS_OF.items():
        assert keys_of(**CUSTOM, surrogate=surrogate, **{name: values[name] for name in names}) == set()
    config = RunConfig()
    config.algorithm.surrogate, config.algorithm.tau_negative = Surrogate.ipo, 2.0
    (problem,) = unread_numbers(config)
    assert problem.remedy == (
        "has no effect with algorithm.surrogate=ipo, which reads max_divergence: use the default, 1.05, or "
        "algorithm.surrogate=sapo"
    )
    config.algorithm.loss = "mine.loss"
    assert unread_numbers(config) == []


@pytest.mark.parametrize("name", NAMED)
def test_a_named_algorithm_contradicts_no_rule(name: AlgorithmName):
    config = compose_run([f"algorithm={name.value}", "mode=plan"]).config
    assert [problem for rule in (essence, bounds, combinations, unread_numbers) for problem in rule(config)] == []


@pytest.mark.parametrize("key", WRONG)
def test_what_contradicts_is_refused(key: str):
    assert key in keys_of(**WRONG[key])


def test_what_belongs_together_is_accepted():
    assert keys_of() == set()
    changed = {"ratio": RatioLevel.sequence, "dual_clip": 3.0, "name": AlgorithmName.custom}
    assert keys_of(correction=TRUNCATE, old_logprobs=OldLogprobs.trainer, **changed) == set()
    assert keys_of(name=AlgorithmName.sft, correction=TRUNCATE) == set()


def test_the_files_say_what_the_algorithms_are():
    assert set(AlgorithmName) - set(NAMED) == {
        AlgorithmName.paper,
        AlgorithmName.slime_agentic,
        AlgorithmName.custom,
        AlgorithmName.sft,
    }
    assert len({tuple(choices_of(name).items()) for name in NAMED}) == len(NAMED)
    assert choices_of(AlgorithmName.dr_grpo) == {
        **{"baseline": "mean", "normalization": "none", "whitening": False, "aggregation": "constant"},
    }


@pytest.mark.parametrize("name", NAMED)
def test_every_choice_of_an_algorithm_is_kept_and_its_numbers_are_free(name: AlgorithmName):
    assert choices_of(name)
    for key, value in choices_of(name).items():
        config = compose_run([f"algorithm={name.value}", "mode=plan"]).config
        assert essence(config) == []
        kind: Any = type(old := getattr(config.algorithm, key))
        others = [not value] if kind is bool else [choice for choice in kind if choice is not old]
        for other in others:
            setattr(config.algorithm, key, other)
            (problem,) = essence(config)
            assert problem.key == f"algorithm.{key}" and f"algorithm.{key}={str(value).lower()}" in problem.remedy
        config.algorithm.name = AlgorithmName.custom
        assert essence(config) == []
    config = compose_run(
        [f"algorithm={name.value}", "algorithm.clip_high=0.5", "algorithm.kl_coefficient=0.1", "mode=plan"]
    ).config
    assert essence(config) == []


STALE = "algorithm.correction.mode"


@pytest.mark.parametrize("cluster", ["two_nodes", "one_node"])
def test_tokens_of_older_weights_are_weighed_by_what_sampled_them(cluster: str):
    words = ["+method=memagent", "model=qwen2.5-7b", f"cluster={cluster}", "mode=plan"]
    stale = cluster == "two_nodes"
    for more, refused in [
        ([], False),
        (["algorithm.old_logprobs=trainer"], stale),
        (["algorithm.old_logprobs=trainer", "algorithm.correction.veto=1e-4"], stale),
        (["algorithm.old_logprobs=trainer", f"{STALE}=mask"], False),
        (["algorithm=gspo"], False),
        (["algorithm=gspo", f"{STALE}=none"], stale),
    ]:
        config = compose_run([*words, *more]).config
        found = {problem.key: problem.remedy for problem in staleness(config)}
        assert set(found) == ({STALE} if refused else set()), more
        assert not refused or f"max_staleness={config.rollout.max_staleness}" in found[STALE]


def test_gspo_corrects_exactly_where_tokens_may_be_older_than_the_weights():
    words = ["+method=memagent", "model=qwen2.5-7b", "algorithm=gspo", "mode=plan"]
    modes = {
        name: compose_run([*words, f"cluster={name}"], check=find_problems).config.algorithm.correction.mode for name in CLUSTERS
    }
    assert modes == {"one_node": CorrectionMode.none, "two_nodes": CorrectionMode.truncate}
