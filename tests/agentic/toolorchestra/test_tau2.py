"""The real τ²-bench: domains load, a scripted oracle solves tasks through the engine's worker, wrong writes get 0."""

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentic.toolorchestra import tau2
from agentic.toolorchestra.environment.episode import End
from agentic.toolorchestra.tau2_episode import Tau2Episode
from agentic.toolorchestra.tool_calls import ToolCall, ToolCallReader
from tests.agentic.toolorchestra.converse import converse
from vime.config import MethodConfig, ModelConfig, RolloutConfig, RunConfig, ServedModelConfig, ServingConfig
from vime.errors import ConfigError
from vime.model.load_tokenizer import load_tokenizer
from vime.serving.endpoint import Endpoint
from vime.types import Prompt, Reward, Sample, StopReason, Turn
from vime.workers.worker import RolloutWorker

TINY = Path(__file__).parents[3] / "agentic" / "memagent" / "tiny" / "actor"
ABSENT = tau2.why_absent()
needs_tau2 = pytest.mark.skipif(bool(ABSENT), reason=ABSENT or "present")
BROKEN = {} if ABSENT else {domain: reason for domain, reason in tau2.availability().items() if reason}
NUM_RETAIL = 5
MOCK_TASKS = (
    *("create_task_1", "create_task_1_with_env_assertions", "update_task_1", "update_task_with_message_history"),
    *("update_task_with_initialization_data", "update_task_with_initialization_actions"),
    *("update_task_with_history_and_env_assertions", "impossible_task_1"),
    "create_task_1_nl_eval",
)
BY_HAND = {
    "update_task_with_history_and_env_assertions": [("update_task_status", {"task_id": "task_2", "status": "completed"})],
}
"""Actions that solve tasks which name no actions of their own, only conditions for the end."""
SAYS = "The agent acknowledged the previous context. The agent confirmed the task status was updated successfully."
"""Text that one mock task requires, word by word."""


@lru_cache
def tasks_of(domain: str) -> list[Any]:
    """The base split; reading it takes long."""
    return tau2.load_tasks(domain)


def task_of(domain: str, task_id: str) -> Any:
    """A task of the base split."""
    return next(task for task in tasks_of(domain) if task.id == task_id)


def retail_ids() -> list[str]:
    """The first retail tasks that need no judge and change something."""
    if ABSENT or "retail" in BROKEN:
        return []
    found = [task for task in tasks_of("retail") if not tau2.needs_judge(task) and task.evaluation_criteria.actions]
    return [task.id for task in found[:NUM_RETAIL]]


def scripted_user(task: Any, *, also: tuple[tuple[str, dict[str, Any]], ...] = ()) -> Any:
    """A user of tau2's that says what it wants, does what the task has the user do, and stops when the agent reports the end."""
    base: Any = tau2.tau2_module("user.user_simulator_base").HalfDuplexUser
    data = tau2.tau2_module("data_model.message")

    class Scripted(base):
        def get_init_state(self, message_history: Any = None) -> Any:
            actions = task.evaluation_criteria.actions or []
            waiting = [action for action in actions if action.requestor == "user"]
            waiting += [SimpleNamespace(name=name, arguments=arguments) for name, arguments in also]
            return {"waiting": waiting, "opened": False}

        def generate_next_message(self, message: Any, state: Any) -> Any:
            if state["waiting"]:
                action = state["waiting"].pop(0)
                call = data.ToolCall(id="u", name=action.name, arguments=action.arguments, requestor="user")
                return data.UserMessage(role="user", content=None, tool_calls=[call]), state
            done = "DONE" in (getattr(message, "content", None) or "")
            return data.UserMessage(role="user", content="###STOP###" if done else str(task.user_scenario)), state

        def set_seed(self, seed: int) -> None:
            pass

    return Scripted(instructions=str(task.user_scenario))


def oracle(task: Any, *, wrong: bool = False) -> list[str]:
    """The replies of a perfect agent: the task's own actions one by one, then its message; or all but the actions."""
    actions = [(a.name, a.arguments) for a in task.evaluation_criteria.actions or [] if a.requestor == "assistant"]
    actions = BY_HAND.get(task.id, actions)
    calls = [
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call><|im_end|>"
        for name, arguments in actions
    ]
    if wrong:
        calls = calls[:-1]
    return [*calls, f"DONE. {SAYS} {' '.join(task.evaluation_criteria.communicate_info or [])}<|im_end|>"]


class Oracle:
    """A token client that samples what the session's script says."""

    def __init__(self) -> None:
        self.tokenizer = load_tokenizer(TINY)
        self.scripts: dict[str, list[str]] = {}

    def finish(self, session_id: str) -> None:
        """Sessions are nothing to it."""

    async def generate(self, token_ids: Any, *, session_id: str, **_: Any) -> Any:
        ids = self.tokenizer.encode(self.scripts[session_id].pop(0), add_special_tokens=False)
        logprobs, versions = [-0.5] * len(ids), [4] * len(ids)
        return Turn(output_ids=ids, logprobs=logprobs, weight_versions=versions, finish_reason="stop", seconds=0.5)


async def generate(context: Any, sample: Sample, sampling: Any) -> list[Sample]:
    """The hook: one task with the scripted user and the oracle."""
    domain, task_id, wrong = sample.metadata["domain"], sample.metadata["task_id"], sample.metadata["wrong"]
    task, model = task_of(domain, task_id), context.models["actor"]
    model.client.scripts[context.session_id] = oracle(task, wrong=wrong)
    episode = Tau2Episode(domain, task, user=scripted_user(task))
    done = await converse(model, episode, ToolCallReader(model.tokenizer), max_turns=60, max_tokens=64)
    outcome = await episode.result()
    assert done.end is End.customer_stop and done.num_invalid == 0
    samples = done.conversation.samples(sample, reward=outcome.reward, parts=outcome.parts, calls=done.calls)
    for one in samples:
        one.stop_reason = StopReason.ANSWERED
    return samples


async def reward(context: Any, samples: list[Sample]) -> Reward:
    return Reward(score=samples[-1].metadata["reward"])


@pytest.fixture(scope="module")
def worker() -> RolloutWorker:
    config = RunConfig(
        model=ModelConfig(checkpoint=str(TINY)),
        method=MethodConfig(name="test", generate=f"{__file__}:generate", reward=f"{__file__}:reward"),
        rollout=RolloutConfig(max_retries=0),
        serving=ServingConfig(models={"actor": ServedModelConfig(trained=True)}),
    )
    endpoint = Endpoint(
        name="actor", url="http://none", worker_urls=(), model="actor", tokenizer=str(TINY), max_model_len=10**6, trained=True
    )
    client: Any = Oracle()
    make: Callable[..., Any] = lambda endpoint, serving: client  # noqa: E731
    return RolloutWorker(config, {"actor": endpoint}, make_client=make)


async def rewarded(worker: RolloutWorker, domain: str, task_id: str, *, wrong: bool = False) -> float:
    """The reward of one rollout, whose samples must pass the engine's checks."""
    metadata = {"domain": domain, "task_id": task_id, "wrong": wrong}
    prompt = Prompt(index=0, row=0, messages=[{"role": "user", "content": "-"}], ground_truth=[], metadata=metadata)
    group = await worker.run_group(prompt=prompt, slot=0, num_rollouts=1, version=4)
    (rollout,) = group.rollouts
    assert rollout.stop_reason is StopReason.ANSWERED, rollout.error
    for sample in rollout.samples:
        sample.validate()
        assert {lp for lp, mask in zip(sample.rollout_log_probs, sample.loss_mask) if mask} == {-0.5}
        assert {lp for lp, mask in zip(sample.rollout_log_probs, sample.loss_mask) if not mask} <= {0.0}
    num_replies = sum(rollout.samples[-1].metadata["calls"].values()) + 1
    assert num_replies == 1 or sum(sample.loss_mask.count(0) for sample in rollout.samples) > 0
    return rollout.reward


@needs_tau2
def test_the_domains_load_and_what_is_missing_is_named():
    assert not {"mock", "retail", "telecom"} & set(BROKEN), BROKEN
    assert [len(tau2.load_tasks(domain)) for domain in ("mock", "retail", "telecom")] == [10, 114, 114]
    assert len(tau2.rows(num_items=None, seed=0, domains=["retail"], without_judge=True)) == 74
    train = {row["task_id"] for row in tau2.rows(num_items=None, seed=0, domains=["retail"], split="train")}
    test = {row["task_id"] for row in tau2.rows(num_items=None, seed=0, domains=["retail"], split="test")}
    assert len(train) == 74 and len(test) == 40 and not train & test
    if "airline" in BROKEN:
        assert "airline" in BROKEN["airline"] and "db.json" in BROKEN["airline"]


@needs_tau2
@pytest.mark.parametrize("task_id", MOCK_TASKS)
async def test_the_oracle_solves_the_mock_tasks(worker: RolloutWorker, task_id: str):
    assert await rewarded(worker, "mock", task_id) == 1.0


@needs_tau2
@pytest.mark.parametrize("task_id", retail_ids())
async def test_the_oracle_solves_retail_tasks_and_without_its_last_write_it_does_not(worker: RolloutWorker, task_id: str):
    assert await rewarded(worker, "retail", task_id) == 1.0
    environment = tau2.tau2_module("registry").registry.get_env_constructor("retail")()
    last = [action for action in task_of("retail", task_id).evaluation_criteria.actions if action.requestor == "assistant"][-1]
    if environment._is_mutating_tool(last.name):
        assert await rewarded(worker, "retail", task_id, wrong=True) == 0.0


@needs_tau2
async def test_leaving_the_write_out_gets_0(worker: RolloutWorker):
    assert await rewarded(worker, "mock", "create_task_1", wrong=True) == 0.0


@needs_tau2
async def test_steps_that_run_out_get_0():
    task = task_of("mock", "create_task_1")
    episode = Tau2Episode("mock", task, user=scripted_user(task), max_steps=4)
    await episode.start()
    while episode.end is None:
        await episode.step("What else?", [])
    assert episode.end is End.max_steps
    assert (await episode.result()).reward == 0.0


@needs_tau2
@pytest.mark.parametrize("dismisses", [False, True])
async def test_the_contradictory_task_cannot_be_solved_whatever_the_user_does(dismisses: bool):
    """Its actions leave the user's notification unread, and its assertion wants it read."""
    task = task_of("mock", "update_task_with_user_tools")
    dismiss = ("dismiss_notification", {"notification_id": "notif_1"})
    user = scripted_user(task, also=(("check_notifications", {}), *((dismiss,) if dismisses else ())))
    episode = Tau2Episode("mock", task, user=user)
    await episode.start()
    await episode.step("", [ToolCall(name="update_task_status", arguments={"task_id": "task_1", "status": "completed"})])
    await episode.step("DONE", [])
    outcome = await episode.result()
    assert outcome.parts == {"DB": float(not dismisses), "ENV_ASSERTION": float(dismisses), "ACTION": 1.0}
    assert outcome.reward == 0.0


@needs_tau2
def test_a_task_that_needs_a_judge_is_refused_without_one():
    task = next(task for task in tasks_of("retail") if tau2.needs_judge(task))
    with pytest.raises(ConfigError, match="judge"):
        Tau2Episode("retail", task, user=scripted_user(task))


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="sierra-research/tau2-bench"):
        tau2.load_tasks("mock")
