"""Tasksets of verifiers (version 0.4, `import verifiers.v1`) for a bridge; this file runs in their Python (`side.py`).

An environment of verifiers runs as it is: each of its agents has the endpoint of its seat. `DirectHarness` asks the model from
the environment's own process; verifiers' harnesses start a program for each turn, and can be chosen as well (`harness: "null"`).
"""

import httpx  # pyright: ignore[reportMissingImports]
import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from verifiers.v1.dialects.chat import message_to_wire  # pyright: ignore[reportMissingImports]
from verifiers.v1.types import SamplingConfig  # pyright: ignore[reportMissingImports]

__all__ = ["DirectHarness"]

NO_KEY = "VIME_NO_KEY"
"""A variable that is not set: the URL of a session holds its secret."""
NOWHERE = "http://127.0.0.1:9"
"""The endpoint of agents that have none of their own; there are none."""


class DirectHarnessConfig(vf.HarnessConfig):
    """Settings of `DirectHarness`: those of every harness."""


class DirectHarness(vf.Harness[DirectHarnessConfig]):
    """One chat completion a turn, without tools, from the process of the environment."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        """Asks for the reply of one turn."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        messages += (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [message_to_wire(each) for each in prompt or []]
        )
        async with httpx.AsyncClient(timeout=None, trust_env=False) as http:
            asked = {"model": ctx.model, "messages": messages}
            answer = await http.post(f"{endpoint}/chat/completions", json=asked, headers={"Authorization": f"Bearer {secret}"})
        if answer.status_code != 200:
            return vf.ProgramResult(exit_code=1, stdout="", stderr=answer.text[:2000])
        return vf.ProgramResult(exit_code=0, stdout=answer.json()["choices"][0]["message"]["content"] or "", stderr="")


class Verifiers:
    """The environment of a taskset, for example `Verifiers("kuhn_poker")`."""

    def __init__(self, taskset, environment="", config=None, tasks=None, agents=None, harness="verifiers_tasks"):
        """`environment` pairs one of verifiers with the taskset, which otherwise brings its own or has one agent.

        `config` and `tasks` are fields of `EnvConfig` and of the taskset's configuration, `agents` those of each agent's; an
        agent with a `client` of its own there has no seat.
        """
        self.taskset, self.harness = taskset, harness
        self.agents = agents or {}
        self.fields = {"id": environment, **(config or {}), "taskset": {"id": taskset, **(tasks or {})}}
        self.kind = vf.env_config_type(taskset, environment)
        named = [name for name, field in self.kind.model_fields.items() if isinstance(field.default, vf.AgentConfig)]
        self.seats = [name for name in named if "client" not in self.agents.get(name, {})]

    def rows(self, seed):
        """The tasks, in the order of the taskset."""
        for task in vf.load_environment(self._config()).taskset:
            data = task.data.model_dump(mode="json")
            asks = {"question": data["prompt"]} if isinstance(data["prompt"], str) else {}
            yield {**asks, "key": f"{self.taskset} {task.key}", "task": data}

    async def run(self, row, seats):
        """One episode. An error in any trace is raised: it is no result of an agent."""
        environment = vf.load_environment(self._config(seats))
        kind = type(environment.taskset).task_type()
        task = kind(kind.data_type().model_validate(row["task"]), environment.config.taskset.task)
        context = vf.ModelContext(client=_client(NOWHERE), model="none", sampling=SamplingConfig())
        async with environment.serving():
            (slot,) = environment.slots(task)
            episode = await environment.run_slot(slot, context, None)
        for error in [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]:
            raise RuntimeError(f"{error.type}: {error.message}")
        rewards, metrics, is_cut = {}, {}, False
        for trace in episode.traces:
            name = trace.agent.name
            rewards[name] = rewards.get(name, 0.0) + trace.reward
            metrics.update({f"{name}_{key}": value for key, value in trace.metrics.items()})
            is_cut = is_cut or trace.is_truncated
        ours = {name: value for name, value in rewards.items() if name in seats}
        return {"rewards": ours, "metrics": metrics, "end": "token_limit" if is_cut else None}

    def _config(self, seats=None):
        agents = {}
        for name in self.seats:
            agent = {"harness": {"id": self.harness}, "runtime": {"type": "subprocess"}}
            if seats is not None:
                seat = seats[name]
                agent["client"] = {"type": "eval", "base_url": seat.base_url, "api_key_var": NO_KEY}
                agent["model"], agent["sampling"] = seat.model, {"max_tokens": seat.max_tokens}
            agents[name] = {**agent, **self.agents.get(name, {})}
        rest = {name: about for name, about in self.agents.items() if name not in agents}
        return self.kind.model_validate({**self.fields, **rest, **agents})


def _client(url):
    return vf.EvalClientConfig(base_url=url, api_key_var=NO_KEY)
