"""AgentFlow's rollout (arXiv 2510.05592, section 3): plan; then next step, command, tool, memory, verification; then the answer.

Each planner turn is a new conversation of one user message and becomes a training sequence of its own; `method.trained_turns`
says which of these are trained. The metadata of a step's sequence record the work of the frozen roles and the tools.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from agentic.agentflow import executor, planner, verifier
from agentic.agentflow.config import AgentFlowConfig, TrainedTurns
from agentic.agentflow.memory import Memory
from agentic.agentflow.prompts import memory_text
from agentic.agentflow.roles import Role, Roles
from agentic.agentflow.tools.toolbox import PlannerTools
from vime.config import RunConfig
from vime.errors import ContextFullError
from vime.rollout.context import Context, Sampling
from vime.rollout.tool import ToolOutcome
from vime.types import Sample, StopReason, Turn

PLAN = "plan"
FALLBACK_TOOL = "base_generator"
"""Tool that is called where the planner names none or an unknown one."""
CHARACTERS_LOGGED = 1_000
"""Characters of each text that the metadata keep for readers of rollouts."""


class LoopEnd(str, Enum):
    """The reason why no further step was taken."""

    VERIFIED = "verified"
    STEPS_USED_UP = "steps_used_up"
    TOKENS_USED_UP = "tokens_used_up"
    TIME_USED_UP = "time_used_up"


STOP_REASONS = {
    LoopEnd.VERIFIED: StopReason.ANSWERED,
    LoopEnd.STEPS_USED_UP: StopReason.TURN_LIMIT,
    LoopEnd.TOKENS_USED_UP: StopReason.TOKEN_LIMIT,
    LoopEnd.TIME_USED_UP: StopReason.TIME_LIMIT,
}


@dataclass(kw_only=True, slots=True)
class FlowState:
    """The state of one rollout: its settings, models and tools, and its progress so far."""

    method: AgentFlowConfig
    roles: Roles
    context: Context
    toolbox: PlannerTools
    question: str
    analysis: str = ""
    memory: Memory = field(default_factory=Memory)
    notes: list[dict[str, Any]] = field(default_factory=list)
    """The metadata of each planner turn."""
    num_tokens: int = 0
    """Tokens that the planner has sampled; an endpoint that returns no token ids reports their number."""


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """One sample per planner turn; the metadata of the last one hold the final answer."""
    method, toolbox = AgentFlowConfig.of(context.config), toolbox_of(context.config)
    rollout = FlowState(
        method=method,
        roles=Roles(context, toolbox={name: entry["description"] for name, entry in toolbox.metadata().items()}),
        context=context,
        toolbox=toolbox,
        question=method.question_of(sample),
    )
    turn = await planner.plan(rollout.roles, rollout.question)
    rollout.analysis = turn.text.strip()
    if method.plans_itself:
        _keep(rollout, turn, turn=PLAN)
    max_steps = method.max_evaluation_steps if context.evaluation else method.max_steps
    end = LoopEnd.STEPS_USED_UP
    for _ in range(max_steps):
        stopped = await _step(rollout)
        if stopped is not None:
            end = stopped
            break
    answer = await _final_answer(rollout)
    if not rollout.notes:
        raise ContextFullError(
            "the question leaves the planner no room in its context", context.models[method.roles.planner].name
        )
    samples = context.samples(sample)
    for each, about in zip(samples, rollout.notes, strict=True):
        each.metadata |= about
        if about["turn"] == PLAN and method.trained_turns is not TrainedTurns.plan_and_next_step:
            each.loss_mask = [0] * each.response_length
    last = samples[-1]
    last.metadata |= {"final_output": answer, "loop_end": end.value, **grading_metadata(sample, rollout.question)}
    last.metadata["thinks"] = thinks(context, method.roles.generator)
    cut = last.metadata["cut"]
    last.stop_reason = StopReason.TOKEN_LIMIT if cut else STOP_REASONS[end]
    return samples


async def _step(rollout: FlowState) -> LoopEnd | None:
    """Takes one step and returns why the loop ends with it, or None if it goes on."""
    roles, memory = rollout.roles, rollout.memory
    turn = await planner.next_step(roles, rollout.question, analysis=rollout.analysis, memory=memory)
    if turn.finish_reason == "length" and not (turn.output_ids or turn.text):  # the steps so far fill the context
        return LoopEnd.TOKENS_USED_UP
    choice = planner.parse_next_step(turn.text, thinks=thinks(rollout.context, rollout.method.roles.planner))
    found = rollout.toolbox.find(choice.tool_name)
    tool = found or FALLBACK_TOOL
    command = await executor.write_command(roles, rollout.question, choice, tool=tool)
    query = executor.query_of(command)
    result, failed = await _call(rollout, tool, query)
    step = memory.add(tool_name=tool, sub_goal=choice.sub_goal, command=command, result=result)
    verdict = await verifier.verify(roles, rollout.question, analysis=rollout.analysis, memory=memory)
    _keep(
        rollout,
        turn,
        turn="next_step",
        step=step.number,
        parsed=choice.parsed,
        tool_named=choice.tool_name[:CHARACTERS_LOGGED],
        tool=tool,
        unknown_tool=choice.parsed and found is None,
        command=command[:CHARACTERS_LOGGED],
        command_parsed=query is not None,
        result=step.result[:CHARACTERS_LOGGED],
        tool_failed=failed,
        verdict_parsed=verdict.parsed,
        verifier_stop=verdict.stop,
    )
    return _end_after(rollout, verdict)


async def _call(rollout: FlowState, tool: str, query: str | None) -> tuple[str, bool]:
    """The tool's answer or error message, and whether the call failed. Without a query the tool is not called."""
    if query is None:
        return executor.NOT_UNDERSTOOD, False
    called = await rollout.toolbox.call(rollout.context, tool, query)
    if called.outcome is ToolOutcome.ANSWERED:
        return str(called.output), False
    return called.error, True


def _end_after(rollout: FlowState, verdict: verifier.Verdict) -> LoopEnd | None:
    if verdict.stop:
        return LoopEnd.VERIFIED
    if rollout.num_tokens >= rollout.method.max_rollout_tokens:
        return LoopEnd.TOKENS_USED_UP
    return LoopEnd.TIME_USED_UP if rollout.context.clock.seconds >= rollout.method.max_seconds else None


async def _final_answer(rollout: FlowState) -> str:
    """The generator's answer from the steps taken."""
    content = rollout.roles.prompts.final.format(
        question=rollout.question, analysis=rollout.analysis, memory=memory_text(rollout.roles.style, rollout.memory)
    )
    return (await rollout.roles.ask(Role.generator, content)).text


def _keep(rollout: FlowState, turn: Turn, /, **metadata: Any) -> None:
    """Notes the facts about a planner turn, unless its prompt left no room for a word."""
    if not (turn.output_ids or turn.text):
        return
    rollout.notes.append({"cut": turn.finish_reason == "length", **metadata})
    rollout.num_tokens += len(turn.output_ids) if turn.usage is None else turn.usage[1]


def thinks(context: Context, name: str) -> bool:
    """True if the replies of a served model begin with thinking, as far as the configuration says."""
    return context.config.model.thinks and context.config.serving.models[name].trained


def grading_metadata(template: Sample, question: str) -> dict[str, Any]:
    """Metadata for the reward and `eval_log`: the question, and the row's fields about grading."""
    kept = ("grader", "digits", "benchmark", "item", "first_tool")
    return {"question": question, **{name: template.metadata[name] for name in kept if name in template.metadata}}


_toolboxes: dict[int, tuple[RunConfig, PlannerTools]] = {}


def toolbox_of(config: RunConfig) -> PlannerTools:
    """The tools of a run: one `PlannerTools` per process, so that its rollouts share the cached answers."""
    if id(config) not in _toolboxes:
        _toolboxes[id(config)] = (config, PlannerTools(AgentFlowConfig.of(config).tools, config))
    return _toolboxes[id(config)][1]
