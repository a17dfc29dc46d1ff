"""τ²-bench (sierra-research/tau2-bench 1.0.1) as an `Episode`: its environments, user simulator, limits and evaluation.

The package is optional and not the one of that name in package registries; README.md says how it is installed. Its orchestrator
is stepped from outside: between two replies of ours everything is tau2's own.
"""

import importlib
import importlib.util
import os
import random
from dataclasses import dataclass
from typing import Any

from agentic.toolorchestra.environment.episode import End, Outcome
from agentic.toolorchestra.tau2_scores import BASE_TASKS, MAX_ERRORS, MAX_STEPS
from agentic.toolorchestra.tool_calls import ToolCall
from vime.errors import ConfigError, Problem
from vime.threads import Threads
from vime.types import Message

VERSION = "1.0.1"
COMMIT = "fc0055dc4e0a316c3f83133267fbd6faaa770992"
"""Of the tag v1.0.1. Other versions have other reward bases (retail's communicate checks became assertions for a judge)."""
INSTALL = f'pip install --ignore-requires-python "tau2 @ git+https://github.com/sierra-research/tau2-bench@{COMMIT}"'
NUM_THREADS = 64
"""Episodes of one process that run user and environment at one time; others wait. A user that is asked over the network takes
seconds, so these threads are not asyncio's own, which the engine needs to find its servers."""
DOMAINS = ("mock", *BASE_TASKS)
CONTRADICTORY = {
    ("mock", "update_task_with_user_tools"): "its actions leave the user's notification unread, its assertion wants it read",
}
"""Tasks that nobody can solve in this version, and why: their reward is 0 whatever is done. They are kept, and listed."""
ENDS = {
    "user_stop": End.customer_stop,
    "agent_stop": End.customer_stop,
    "max_steps": End.max_steps,
    "too_many_errors": End.too_many_errors,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A model for the user or the judge, by litellm's names.

    Example: `Endpoint(model="openai/user", arguments={"api_base": "http://127.0.0.1:8003/v1", "api_key": "none"})`.
    """

    model: str
    arguments: dict[str, Any]


def why_absent() -> str:
    """Why the package cannot be used, "" if it can. The registries' tau2 is a chemistry package without `tau2.registry`."""
    if importlib.util.find_spec("tau2") is None:
        return f"the package tau2 is not installed: {INSTALL}"
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # litellm would ask the network for its prices
    try:
        if importlib.util.find_spec("tau2.registry") is None:
            return f"the package tau2 is another one (of chemistry): pip uninstall tau2, then {INSTALL}"
        importlib.import_module("tau2.registry")
        importlib.import_module("loguru").logger.disable("tau2")  # it tells every step
    except ImportError as error:
        return f"the package tau2 lacks {error.name or error}: install it with its dependencies, {INSTALL}"
    return ""


def load_tasks(domain: str, split: str = "base") -> list[Any]:
    """The tasks of a domain's split (base, train or test). Raises ConfigError if the package or its data are missing."""
    registry = _tau2("registry").registry
    try:
        registry.get_env_constructor(domain)()
        return registry.get_tasks_loader(domain)(split)
    except (OSError, ValueError, KeyError, TypeError) as error:
        where = os.environ.get("TAU2_DATA_DIR", "the package's own")
        remedy = f"its data cannot be read ({type(error).__name__}: {error}); TAU2_DATA_DIR is {where}"
        raise ConfigError([Problem(key="tau2 domain", value=domain, remedy=remedy)]) from None


def availability() -> dict[str, str]:
    """What is wrong with each domain's data, "" where they are complete."""
    found: dict[str, str] = {}
    for domain in DOMAINS:
        try:
            num_tasks = len(load_tasks(domain))
            wanted = BASE_TASKS.get(domain, num_tasks)
            found[domain] = "" if num_tasks == wanted else f"{num_tasks} of {wanted} tasks"
        except ConfigError as error:
            found[domain] = error.problems[0].remedy
    return found


def needs_judge(task: Any) -> bool:
    """Whether a task's reward asks a model about sentences."""
    criteria = task.evaluation_criteria
    basis = {getattr(part, "value", part) for part in (criteria.reward_basis or [])} if criteria else set()
    return bool(criteria and criteria.nl_assertions) and "NL_ASSERTION" in basis


def rows(
    *, num_items: int | None, seed: int, domains: list[str], split: str = "base", without_judge: bool = False
) -> list[dict[str, Any]]:
    """Rows for `data.*.generator`: every task of the domains once, shuffled by the seed unless the split is base."""
    found = [
        {"prompt": str(task.user_scenario), "answer": task.id, "domain": domain, "task_id": task.id, "category": "func_call"}
        for domain in domains
        for task in load_tasks(domain, split)
        if not (without_judge and needs_judge(task))
    ]
    if split != "base":
        random.Random(seed).shuffle(found)
    return found[:num_items]


_threads = Threads("tau2", num_threads=NUM_THREADS)


class Tau2Episode:
    """One task. Replies go to tau2's orchestrator, which runs user and environment in a thread until it is our turn again."""

    def __init__(
        self,
        domain: str,
        task: Any,
        *,
        user: Any,
        judge: Endpoint | None = None,
        max_steps: int = MAX_STEPS,
        max_errors: int = MAX_ERRORS,
        seed: int = 300,
    ) -> None:
        """`user` is an `Endpoint`, or a user of tau2's (`HalfDuplexUser`). Raises ConfigError for a task that needs a judge
        where there is none."""
        if judge is None and needs_judge(task):
            remedy = "its reward asks a judge: give one, or leave such tasks out (without_judge)"
            raise ConfigError([Problem(key=f"tau2 {domain} task", value=task.id, remedy=remedy)])
        self._domain, self._task, self._judge, self._seed = domain, task, judge, seed
        self._environment = _tau2("registry").registry.get_env_constructor(domain)()
        self._agent = _make_agent(self._environment)
        self._orchestrator: Any = _tau2("orchestrator.orchestrator").Orchestrator(
            domain=domain,
            agent=self._agent,
            user=self._make_user(user) if isinstance(user, Endpoint) else user,
            environment=self._environment,
            task=task,
            max_steps=max_steps,
            max_errors=max_errors,
            seed=seed,
        )

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Schemas of the agent's tools."""
        return [tool.openai_schema for tool in self._environment.get_tools()]

    @property
    def end(self) -> End | None:
        """None while it goes on."""
        if not self._orchestrator.done:
            return None
        return ENDS.get(self._orchestrator.termination_reason.value, End.too_many_errors)

    async def start(self) -> list[Message]:
        """The policy, what was said before if the task says so, and the user's first message."""
        await _threads.run(self._initialize)
        said = [_message(message) for message in self._orchestrator.trajectory if _is_agents(message)]
        new = await self._until_our_turn()
        system = {"role": "system", "content": self._environment.get_policy()}
        return [system, *said, *new]

    async def step(self, content: str, calls: list[ToolCall]) -> list[Message]:
        """A message to the user, or calls; tau2 takes no empty message, so one of no words says that."""
        data = _tau2("data_model.message")
        words = [
            data.ToolCall(id=f"call_{self._orchestrator.step_count}_{index}", name=call.name, arguments=call.arguments)
            for index, call in enumerate(calls)
        ]
        text = None if words else content.strip() or "(no message)"
        self._agent.reply = data.AssistantMessage(role="assistant", content=text, tool_calls=words or None)
        return await self._until_our_turn(ours=True)

    async def outcome(self) -> Outcome:
        """tau2's reward: the product over the task's basis; 0 unless user or agent ended it."""
        return await _threads.run(self._evaluate)

    def _initialize(self) -> None:
        time, utils = importlib.import_module("time"), _tau2("utils.utils")
        self._orchestrator._run_start_time = utils.get_now()
        self._orchestrator._run_start_perf = time.perf_counter()
        self._orchestrator.initialize()

    async def _until_our_turn(self, *, ours: bool = False) -> list[Message]:
        """What is new for the agent once the orchestrator waits for it; `ours`: the first step is its own."""
        seen = len(self._orchestrator.trajectory)
        role = _tau2("orchestrator.orchestrator").Role
        while not self._orchestrator.done and (ours or self._orchestrator.to_role is not role.AGENT):
            await _threads.run(self._step)
            ours = False
        new = [message for message in self._orchestrator.trajectory[seen:] if _is_agents(message)]
        return [_message(message) for message in new if message.role != "assistant"]

    def _step(self) -> None:
        self._orchestrator.step()
        self._orchestrator._check_termination()  # as its own `run` does after each step

    def _evaluate(self) -> Outcome:
        evaluator = _tau2("evaluator.evaluator")
        if self._judge is not None:
            _set_judge(self._judge)
        found = evaluator.evaluate_simulation(
            simulation=self._orchestrator._finalize(),
            task=self._task,
            evaluation_type=evaluator.EvaluationType.ALL,
            solo_mode=False,
            domain=self._domain,
        )
        parts = {getattr(key, "value", str(key)): float(value) for key, value in (found.reward_breakdown or {}).items()}
        return Outcome(reward=float(found.reward), parts=parts)

    def _make_user(self, endpoint: Endpoint) -> Any:
        try:
            tools = self._environment.get_user_tools(include=getattr(self._task, "user_tools", None)) or None
        except ValueError:
            tools = None  # this domain's user has none
        simulator = _tau2("user.user_simulator").UserSimulator
        return simulator(
            tools=tools, instructions=str(self._task.user_scenario), llm=endpoint.model, llm_args=dict(endpoint.arguments)
        )


def _make_agent(environment: Any) -> Any:
    """An agent of tau2's that says what was put into `reply`."""
    base: Any = _tau2("agent.base_agent").HalfDuplexAgent

    class Replying(base):
        reply: Any = None

        def get_init_state(self, message_history: Any = None) -> Any:
            return None

        def generate_next_message(self, message: Any, state: Any) -> Any:
            assert self.reply is not None, "it is not the agent's turn"
            reply, self.reply = self.reply, None
            return reply, state

        def set_seed(self, seed: int) -> None:
            """Sampling is the trainer's."""

    return Replying(tools=environment.get_tools(), domain_policy=environment.get_policy())


def _set_judge(judge: Endpoint) -> None:
    """tau2 names its judge in module constants."""
    module = _tau2("evaluator.evaluator_nl_assertions")
    module.DEFAULT_LLM_NL_ASSERTIONS, module.DEFAULT_LLM_NL_ASSERTIONS_ARGS = judge.model, dict(judge.arguments)


def _is_agents(message: Any) -> bool:
    """Whether the agent sees a message: not what the user does with tools of their own."""
    if message.role == "tool":
        return message.requestor == "assistant"
    return not (message.role == "user" and message.is_tool_call())


def _message(message: Any) -> Message:
    if message.role == "assistant" and message.is_tool_call():
        calls = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in message.tool_calls]
        return {"role": "assistant", "content": message.content or "", "tool_calls": calls}
    return {"role": message.role, "content": message.content or ""}


def _tau2(module: str) -> Any:
    """A module of the package. Raises ConfigError if it is not there."""
    if reason := why_absent():
        raise ConfigError([Problem(key="tau2", value="absent", remedy=reason)])
    return importlib.import_module(f"tau2.{module}")
