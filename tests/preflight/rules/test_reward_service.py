"""The rules for a configuration with a reward service."""

from pathlib import Path

import pytest

from vime.preflight.compose import compose_run
from vime.preflight.plan.models import serving
from vime.preflight.rules.reward_service import key_is_set
from vime.preflight.validation import find_problems

HOOK = "method.reward=vime.reward_service.hook.reward"
URL = "reward_service.url=https://host/score"


def problems(*words: str) -> dict[str, str]:
    return {problem.key: str(problem) for problem in find_problems(compose_run(["+method=memagent", "mode=plan", *words]).config)}


def test_a_complete_one_is_accepted_and_the_plan_shows_it():
    words = [HOOK, URL, "reward_service.api_key_variable=REWARD_KEY", "reward_service.max_requests_per_minute=90"]
    assert problems(*words) == {}
    line = serving(compose_run(["+method=memagent", "mode=plan", *words]).config)[-1]
    assert line.startswith(
        "rewards: a running service, https://host/score, key from REWARD_KEY, 16 rollouts a request, 90 requests"
    )


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ([HOOK], "reward_service.url"),
        ([URL], "reward_service.url"),
        ([HOOK, "reward_service.url=host"], "reward_service.url"),
        ([HOOK, "reward_service.url=https://me:s3cr3t@host/score"], "reward_service.url"),
        ([HOOK, URL, "reward_service.api_key_variable=s3cr3t"], "reward_service.api_key_variable"),
        ([HOOK, URL, "reward_service.request_timeout_seconds=30"], "rollout.reward_timeout_seconds"),
        ([HOOK, URL, "reward_service.max_retries=9"], "rollout.reward_timeout_seconds"),
        ([HOOK, URL, "reward_service.max_pending=3"], "reward_service.max_pending"),
        ([HOOK, URL, "reward_service.max_batch_size=0"], "reward_service.max_batch_size"),
    ],
)
def test_what_cannot_work_is_refused_and_no_secret_is_shown(words: list[str], key: str):
    found = problems(*words)
    assert list(found) == [key] and "s3cr3t" not in found[key]


def test_a_function_of_ones_own_may_ask_the_service(tmp_path: Path):
    (tmp_path / "mine.py").write_text("async def reward(context, samples):\n    return 1.0\n")
    assert problems(f"method.reward={tmp_path}/mine.py:reward", URL) == {}


def test_a_key_that_is_not_set_is_missed_on_the_machine(monkeypatch: pytest.MonkeyPatch):
    config = compose_run(["+method=memagent", HOOK, URL, "reward_service.api_key_variable=REWARD_KEY"]).config
    monkeypatch.delenv("REWARD_KEY", raising=False)
    assert [problem.key for problem in key_is_set(config)] == ["reward_service.api_key_variable"]
    monkeypatch.setenv("REWARD_KEY", "x")
    assert key_is_set(config) == []
