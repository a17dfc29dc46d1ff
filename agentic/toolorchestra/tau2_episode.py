"""A task of τ²-bench as an `Episode`: its environment, user simulator, limits and evaluation are the package's own.

The package's orchestrator is stepped from outside, and pauses whenever the agent has to reply.
"""

import importlib
from typing import Any

from agentic.toolorchestra.environment.episode import End, EpisodeResult
from agentic.toolorchestra.settings import EndpointConfig
from agentic.toolorchestra.tau2 import needs_judge, tau2_module
from agentic.toolorchestra.tau2_splits import MAX_ERRORS, MAX_STEPS
from agentic.toolorchestra.tool_calls import ToolCall
from vime.errors import ConfigError, Problem
from vime.threads import Threads
from vime.types import Message

NUM_THREADS = 64
"""Episodes of one process whose user or environment runs at the same time; others wait. A user behind a network takes seconds, so
these threads are separate from asyncio's own, which the engine needs to resolve its servers' addresses."""
ENDS = {
    "user_stop": End.customer_stop,
    "agent_stop": End.customer_stop,
    "max_steps": End.max_steps,
    "too_many_errors": End.too_many_errors,
}
_threads = Threads("tau2", num_threads=NUM_THREADS)


class Tau2Episode:
    """One task. After each reply, tau2's orchestrator runs user and environment in a thread until the agent's next turn."""

    def __init__(
        self,
        domain: str,
        task: Any,
        *,
        user: Any,
        judge: EndpointConfig | None = None,
        max_steps: int = MAX_STEPS,
        max_errors: int = MAX_ERRORS,
        seed: int = 300,
    ) -> None:
        """`user` is an `EndpointConfig`, or one of tau2's users (`HalfDuplexUser`).

        Raises ConfigError if the task needs a judge and there is none.
        """
        if judge is None and needs_judge(task):
            remedy = "its reward asks a judge: use one, or leave such tasks out (without_judge)"
            raise ConfigError([Problem(key=f"tau2 {domain} task", value=task.id, remedy=remedy)])
        self._domain, self._task, self._judge, self._seed = domain, task, judge, seed
        self._environment = tau2_module("registry").registry.get_env_constructor(domain)()
        self._agent = _make_agent(self._environment)
        self._orchestrator: Any = tau2_module("orchestrator.orchestrator").Orchestrator(
            domain=domain,
            agent=self._agent,
            user=self._make_user(user) if isinstance(user, EndpointConfig) else user,
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
        """The reason why the conversation ended, or None while it goes on."""
        if not self._orchestrator.done:
            return None
        return ENDS.get(self._orchestrator.termination_reason.value, End.too_many_errors)

    async def start(self) -> list[Message]:
        """The policy, the task's earlier messages if it has any, and the user's first message."""
        await _threads.run(self._initialize)
        said = [_message(message) for message in self._orchestrator.trajectory if _is_agents(message)]
        new = await self._until_our_turn()
        system = {"role": "system", "content": self._environment.get_policy()}
        return [system, *said, *new]

    async def step(self, content: str, calls: list[ToolCall]) -> list[Message]:
        """Sends a message to the user, or calls; tau2 accepts no empty message, so `(no message)` replaces it."""
        data = tau2_module("data_model.message")
        words = [
            data.ToolCall(id=f"call_{self._orchestrator.step_count}_{index}", name=call.name, arguments=call.arguments)
            for index, call in enumerate(calls)
        ]
        text = None if words else content.strip() or "(no message)"
        self._agent.reply = data.AssistantMessage(role="assistant", content=text, tool_calls=words or None)
        return await self._until_our_turn(ours=True)

    async def result(self) -> EpisodeResult:
        """tau2's reward: the product over the parts of the task's reward basis; 0 unless user or agent ended the conversation."""
        return await _threads.run(self._evaluate)

    def _initialize(self) -> None:
        time, utils = importlib.import_module("time"), tau2_module("utils.utils")
        self._orchestrator._run_start_time = utils.get_now()
        self._orchestrator._run_start_perf = time.perf_counter()
        self._orchestrator.initialize()

    async def _until_our_turn(self, *, ours: bool = False) -> list[Message]:
        """Steps until the agent's next turn and returns the new messages; `ours` if the first step is the agent's."""
        seen = len(self._orchestrator.trajectory)
        role = tau2_module("orchestrator.orchestrator").Role
        while not self._orchestrator.done and (ours or self._orchestrator.to_role is not role.AGENT):
            await _threads.run(self._step)
            ours = False
        new = [message for message in self._orchestrator.trajectory[seen:] if _is_agents(message)]
        return [_message(message) for message in new if message.role != "assistant"]

    def _step(self) -> None:
        self._orchestrator.step()
        self._orchestrator._check_termination()  # as its own `run` does after each step

    def _evaluate(self) -> EpisodeResult:
        evaluator = tau2_module("evaluator.evaluator")
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
        return EpisodeResult(reward=float(found.reward), parts=parts)

    def _make_user(self, endpoint: EndpointConfig) -> Any:
        try:
            tools = self._environment.get_user_tools(include=getattr(self._task, "user_tools", None)) or None
        except ValueError:
            tools = None  # this domain's user has none
        simulator = tau2_module("user.user_simulator").UserSimulator
        return simulator(
            tools=tools, instructions=str(self._task.user_scenario), llm=endpoint.model, llm_args=dict(endpoint.arguments)
        )


def _make_agent(environment: Any) -> Any:
    """An agent for tau2's orchestrator that replies with the content of its attribute `reply`."""
    base: Any = tau2_module("agent.base_agent").HalfDuplexAgent

    class Replying(base):
        reply: Any = None

        def get_init_state(self, message_history: Any = None) -> Any:
            return None

        def generate_next_message(self, message: Any, state: Any) -> Any:
            assert self.reply is not None, "it is not the agent's turn"
            reply, self.reply = self.reply, None
            return reply, state

        def set_seed(self, seed: int) -> None:
            """Ignores the seed, because the trainer sets the sampling."""

    return Replying(tools=environment.get_tools(), domain_policy=environment.get_policy())


def _set_judge(judge: EndpointConfig) -> None:
    """Sets the module constants by which tau2 names its judge."""
    module = tau2_module("evaluator.evaluator_nl_assertions")
    module.DEFAULT_LLM_NL_ASSERTIONS, module.DEFAULT_LLM_NL_ASSERTIONS_ARGS = judge.model, dict(judge.arguments)


def _is_agents(message: Any) -> bool:
    """True if the agent sees a message; it does not see the user's calls of their own tools."""
    if message.role == "tool":
        return message.requestor == "assistant"
    return not (message.role == "user" and message.is_tool_call())


def _message(message: Any) -> Message:
    if message.role == "assistant" and message.is_tool_call():
        calls = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in message.tool_calls]
        return {"role": "assistant", "content": message.content or "", "tool_calls": calls}
    return {"role": message.role, "content": message.content or ""}
