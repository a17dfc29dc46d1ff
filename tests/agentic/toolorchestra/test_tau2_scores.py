"""pass^k, means over tasks, and what an incomplete run or missing data do."""

import pytest

from agentic.toolorchestra.tau2_scores import BASE_TASKS, Trial, missing_tasks, pass_hat_k, scores


def test_pass_hat_k_by_hand():
    assert pass_hat_k(4, 3, 1) == 0.75
    assert pass_hat_k(4, 3, 2) == 0.5
    assert pass_hat_k(4, 3, 4) == 0.0
    assert pass_hat_k(4, 4, 4) == 1.0
    for k in (0, 5):
        with pytest.raises(ValueError, match="1 to 4"):
            pass_hat_k(4, 3, k)


def trials(domain: str, task: str, rewards: list[float]) -> list[Trial]:
    """The trials of one task."""
    return [Trial(domain=domain, task_id=task, trial=number, reward=reward) for number, reward in enumerate(rewards)]


def test_the_mean_weighs_every_task_alike():
    found = scores(
        [*trials("retail", "1", [1, 1]), *trials("retail", "2", [1, 0]), *trials("airline", "1", [0, 0])], num_trials=2
    )
    assert found == {
        "airline/pass^1": 0.0,
        "airline/pass^2": 0.0,
        "retail/pass^1": 75.0,
        "retail/pass^2": 50.0,
        "all/pass^1": 50.0,
        "all/pass^2": pytest.approx(100 / 3),
    }


def test_half_a_reward_is_no_pass():
    assert scores(trials("retail", "1", [0.5, 1.0]), num_trials=2)["all/pass^1"] == 50.0


def test_an_incomplete_run_is_not_aggregated():
    with pytest.raises(ValueError, match=r"1 tasks lack some of their 4 trials: retail 1"):
        scores(trials("retail", "1", [1, 1, 1]))
    with pytest.raises(ValueError, match="there are none"):
        scores([])


def test_missing_tasks_are_counted():
    assert sum(BASE_TASKS.values()) == 278
    assert missing_tasks({"retail": 114, "telecom": 114}) == {"airline": 50}
    assert missing_tasks(BASE_TASKS) == {}
