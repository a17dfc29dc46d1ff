"""ToolOrchestra's rollout (arXiv 2511.21689): the orchestrator answers a question with tools and experts, or serves a customer.

Only tokens that the orchestrator sampled are trained, never those of tools, experts and customers. The metadata of the rollout's
last sequence record every call with its price.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agentic.toolorchestra import prompts
from agentic.toolorchestra.config import ToolOrchestraConfig
from agentic.toolorchestra.customer_service import CustomerService, orchestrators_messages, orchestrators_tools
from agentic.toolorchestra.environment.episode import EpisodeResult
from agentic.toolorchestra.episodes import domain_of, is_function_calling, make_episode
from agentic.toolorchestra.experts import Account, Experts
from agentic.toolorchestra.offer import CALL_EXPERT, offer, question_schemas
from agentic.toolorchestra.orchestrator import Ending, Orchestrator
from agentic.toolorchestra.tools import QuestionTools
from vime.rollout.context import Context, Sampling
from vime.types import Message, Sample

ANSWER_CHARACTERS = 4000
"""Characters of the final answer that the metadata keep."""


@dataclass(kw_only=True, slots=True)
class Result:
    """The outcome of one mode, beside the account."""

    orchestrator: Orchestrator
    tools: Counter[str] = field(default_factory=Counter)
    metadata: dict[str, Any] = field(default_factory=dict)


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """One rollout in the mode of its row.

    It is usually one sequence; there are more where the chat template rewrites the history or turns were dropped.
    """
    method, question = ToolOrchestraConfig.of(context.config), sample.question
    account = Account()
    serving = is_function_calling(sample)
    offered = offer(method, question, seed=context.config.seed)
    if not serving and not method.tools.call_expert_for_questions:
        offered.pop(CALL_EXPERT, None)
    experts = Experts(context, offered, account)
    mode = _serve if serving else _solve
    result = await mode(context, sample, experts, account)
    orchestrator = result.orchestrator
    metadata = {
        "question": question,
        "domain": domain_of(sample),
        "ending": orchestrator.ending.value if orchestrator.ending else "",
        "turns": orchestrator.num_turns,
        "invalid_calls": orchestrator.num_invalid,
        "tool_calls": dict(result.tools),
        "response": orchestrator.text[:ANSWER_CHARACTERS],
        "preference": sample.metadata.get("preference"),
        **account.metadata(method.shaping.latency),
        **result.metadata,
    }
    return orchestrator.samples(sample, metadata)


async def _solve(context: Context, sample: Sample, experts: Experts, account: Account) -> Result:
    """The question-answering mode: one tool per turn, until the tool `answer` has given the answer."""
    question, wording = sample.question, prompts.SETS[ToolOrchestraConfig.of(context.config).prompt_style]
    messages: list[Message] = [
        {"role": "system", "content": wording.system},
        {"role": "user", "content": wording.question.format(question=question) + prompts.preference_of(sample.metadata)},
    ]
    orchestrator = Orchestrator(context, messages, question_schemas(experts.offered), account)
    result = Result(orchestrator=orchestrator)
    tools = QuestionTools(context, experts, question)
    answer, num_failed, num_ignored = "", 0, 0
    while orchestrator.ending is None:
        reply = await orchestrator.reply()
        if reply is None or orchestrator.ending is not None:
            break
        if not reply.calls:
            orchestrator.ending = Ending.NO_CALL
            break
        call, num_ignored = reply.calls[0], num_ignored + len(reply.calls) - 1
        output = await tools.call(call)
        result.tools[call.name if call.name in experts.offered else "unknown"] += 1
        num_failed += output.failed
        orchestrator.add([{"role": "tool", "name": call.name, "content": output.text}])
        if output.answer is not None:
            answer, orchestrator.ending = output.answer[:ANSWER_CHARACTERS], Ending.ANSWERED
    result.metadata = {
        "category": "qa",
        "final_output": answer,
        "failed_tools": num_failed,
        "ignored_calls": num_ignored,
        "num_calls": sum(result.tools.values()),
    }
    return result


async def _serve(context: Context, sample: Sample, experts: Experts, account: Account) -> Result:
    """The function-calling mode: the built-in shop or a domain of τ²-bench."""
    episode = make_episode(context, sample)
    method = ToolOrchestraConfig.of(context.config)
    service = CustomerService(context, episode, experts, method.parser)
    opening = await episode.start()
    tools = orchestrators_tools(episode.tools, experts.offered)
    messages = orchestrators_messages(opening, method.prompt_style, preference=prompts.preference_of(sample.metadata))
    orchestrator = Orchestrator(context, messages, tools, account)
    await service.play(orchestrator, opening)
    outcome = await episode.result() if episode.end is not None else EpisodeResult(reward=0.0, parts={})
    calls = Counter(service.calls) + Counter(call.tool for call in account.calls)
    metadata = {
        "category": "func_call",
        "final_output": orchestrator.text[:ANSWER_CHARACTERS],
        "episode_reward": outcome.reward,
        "episode_parts": outcome.parts,
        "transfers": service.num_transfers,
        "num_calls": sum(calls.values()),
    }
    return Result(orchestrator=orchestrator, tools=calls, metadata=metadata)
