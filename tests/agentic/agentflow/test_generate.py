"""AgentFlow's loop: who is asked what, what is trained, and how it ends. Models are scripts; servers are tested elsewhere."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentic.agentflow.config import AgentFlowConfig, JudgingConfig, PromptStyle, RolesConfig, TrainedTurns
from agentic.agentflow.eval_log import eval_log
from agentic.agentflow.generate import generate
from agentic.agentflow.instructions import DAPO_AFTER, DAPO_BEFORE
from agentic.agentflow.reward import reward
from agentic.agentflow.single_turn import generate as generate_single_turn
from agentic.agentflow.tiny import task
from agentic.agentflow.tiny.model import build_tokenizer
from agentic.agentflow.tools.config import ToolConfig
from agentic.agentflow.tools.tool import Tool
from tests.completing import context_with
from vime.algorithm.advantage import group_advantages
from vime.algorithm.batch import build_updates
from vime.algorithm.policy_gradient import PolicyGradient
from vime.chat.served_model import ServedModel
from vime.chat.trace import Trace
from vime.config import Aggregation, AlgorithmConfig, Credit, MethodConfig, RunConfig
from vime.errors import ContextFullError
from vime.rollout.context import Context, Sampling
from vime.types import Group, Prompt, Rollout, Sample, StopReason, Turn

TOKENIZER = build_tokenizer()
CATALOGUE = "agentic.agentflow.tiny.catalogue.PriceList"
ROW = next(row for row in task.generate_rows(split="train", num_items=50, seed=0) if row["extra_info"]["kind"] == "bill")
QUESTION, GOLD = ROW["prompt"][0]["content"], ROW["reward_model"]["ground_truth"]


@dataclass
class Script:
    """Replies to prompts, and a record of every call: prompt ids, sampled ids and the temperature."""

    reply: Callable[[str], str]
    calls: list[tuple[list[int], list[int], float]] = field(default_factory=list)

    async def generate(self, token_ids: Any, *, sampling: dict[str, Any], **_: Any) -> Turn:
        text = str(TOKENIZER.decode(token_ids)).split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        ids = [*TOKENIZER.encode(self.reply(text), add_special_tokens=False), TOKENIZER.eos_token_id]
        finished, ids = len(ids) <= sampling["max_tokens"], ids[: sampling["max_tokens"]]
        self.calls.append((token_ids, ids, sampling["temperature"]))
        logprobs, versions = [-0.25] * len(ids), [3] * len(ids)
        return Turn(
            output_ids=ids,
            logprobs=logprobs,
            weight_versions=versions,
            finish_reason="stop" if finished else "length",
            seconds=0.5,
        )


def step_of(sub_goal: str, tool: str) -> str:
    return f"Context: none\nSub-Goal: {sub_goal}\nTool Name: {tool}"


def good_planner(prompt: str) -> str:
    """Looks the price up, then computes with a program as the query."""
    if prompt.startswith("Plan:"):
        return "Tools: price_list python_coder"
    words = QUESTION.split()
    if prompt.endswith("none"):
        return step_of(f"price of {words[4]} in {words[-2]}", "price_list")
    return step_of(f"{words[3]} times {prompt.split()[-1]}", "base_generator")


def frozen(prompt: str) -> str:
    """Executor, verifier, generator and the tool base_generator, by the first word of the prompt."""
    if prompt.startswith("Command:"):
        goal = prompt.split("Sub-Goal: ")[1].split("\n")[0]
        return f'execution = tool.execute(query=""" {goal} """)'
    if prompt.startswith("Verify:"):
        return "Conclusion: STOP" if "base_generator says" in prompt else "Conclusion: CONTINUE"
    if prompt.startswith("Answer:"):
        return f"\\boxed{{ {prompt.split()[-1]} }}"
    left, _, right = prompt.split()
    return str(int(left) * int(right))


def never_satisfied(prompt: str) -> str:
    """The same with a verifier that always goes on."""
    return "Conclusion: CONTINUE" if prompt.startswith("Verify:") else frozen(prompt)


def speechless(prompt: str) -> str:
    """The same with an executor that writes no command but other code."""
    return "os.system('x')" if prompt.startswith("Command:") else frozen(prompt)


class Broken(Tool):
    """A tool that always fails."""

    name = "broken"
    description = "Fails."

    async def execute(self, context: Context, query: str) -> str:
        raise RuntimeError("no coal")


def item_of(samples: list[Sample], context: Context) -> dict[str, Any]:
    """A finished item as an evaluation hands it to `eval_log`."""
    found = asyncio.run(reward(context, samples))
    kept = [{"response": sample.response, "metadata": sample.metadata} for sample in samples]
    return {"dataset": "tiny", "strict": found.score, "metrics": found.metrics, "label": GOLD, "samples": kept}


def context_of(planner: Script, base: Script, *, evaluation: bool = False, **settings: Any) -> Context:
    tools = {"base_generator": ToolConfig(model="base"), "price_list": ToolConfig(path=CATALOGUE)}
    method = AgentFlowConfig(
        **{"prompt_style": PromptStyle.tiny, "tools": tools, "roles": RolesConfig(coder=None, judge=None), **settings}
    )
    trace = Trace(keep_spans=True)
    models = {
        name: ServedModel(
            client=client,
            tokenizer=TOKENIZER,
            max_model_len=512,
            temperature=temperature,
            top_p=1.0,
            session="s",
            name=name,
            trace=trace,
        )
        for name, client, temperature in (("actor", planner, 1.0), ("base", base, 0.25))
    }
    config = RunConfig(method=method)
    return context_with(models, config=config, evaluation=evaluation, trace=trace)


def template(rollout_id: int = 0) -> Sample:
    kept = {name: value for name, value in ROW.items() if name not in ("prompt", "reward_model")}
    return Sample(prompt=ROW["prompt"], label=GOLD, metadata=kept, rollout_id=rollout_id)


def run(
    planner: Callable[[str], str] = good_planner, base: Callable[[str], str] = frozen, **settings: Any
) -> tuple[list[Sample], Context, Script, Script]:
    scripts = Script(planner), Script(base)
    context = context_of(*scripts, **settings)
    samples = asyncio.run(generate(context, template(), Sampling(temperature=1.0, top_p=1.0)))
    return samples, context, *scripts


def test_a_rollout_looks_up_computes_verifies_and_answers():
    samples, context, planner, base = run()
    steps = [sample.metadata for sample in samples[1:]]
    assert [sample.metadata["turn"] for sample in samples] == ["plan", "next_step", "next_step"]
    assert [step["tool"] for step in steps] == ["price_list", "base_generator"]
    assert [step["verifier_stop"] for step in steps] == [False, True]
    assert samples[-1].stop_reason is StopReason.ANSWERED and steps[-1]["loop_end"] == "verified"
    assert asyncio.run(reward(context, samples)).score == 1.0
    assert len(planner.calls) == 3 and len(base.calls) == 2 * 2 + 1 + 1  # commands and verdicts, the tool's own call, the answer


def test_every_role_and_tool_samples_as_its_own_model_says():
    _, _, planner, base = run()
    assert {call[2] for call in planner.calls} == {1.0} and {call[2] for call in base.calls} == {0.25}


@pytest.mark.parametrize("trained_turns", list(TrainedTurns))
def test_exactly_the_planners_sampled_tokens_of_the_trained_turns_are_trained(trained_turns: TrainedTurns):
    samples, context, planner, base = run(trained_turns=trained_turns)
    first = 0 if trained_turns is TrainedTurns.plan_and_next_step else 1
    spans = [span for span in context.trace.spans if span.kind == "generation"]
    asked = {"actor": iter(planner.calls), "base": iter(base.calls)}
    turns = iter(samples)
    for span in spans:  # the whole rollout again, call by call, in the order in which it happened
        prompt_ids, sampled_ids, _ = next(asked[span.name])
        assert (span.details["prompt_tokens"], span.details["tokens"]) == (len(prompt_ids), len(sampled_ids))
        if span.name == "actor":
            sample = next(turns)
            sample.validate()
            assert sample.tokens == prompt_ids + sampled_ids and sample.response_length == len(sampled_ids)
            trained = int(samples.index(sample) >= first)
            assert sample.loss_mask == [trained] * len(sampled_ids)
            assert sample.rollout_log_probs == [-0.25] * len(sampled_ids)
    assert next(turns, None) is None and all(next(calls, None) is None for calls in asked.values())
    sampled = sum(len(ids) for _, ids, _ in planner.calls[first:])
    assert sum(sum(sample.loss_mask) for sample in samples) == sampled


@pytest.mark.parametrize("trained_turns", list(TrainedTurns))
def test_credits_over_the_turns_of_a_rollout_sum_to_its_advantage(trained_turns: TrainedTurns):
    rollouts = []
    for number, planner in enumerate((good_planner, lambda prompt: step_of("guess", "base_generator"))):
        samples, context, *_ = run(
            planner, lambda prompt: "1" if prompt == "guess" else frozen(prompt), trained_turns=trained_turns
        )
        for sample in samples:
            sample.rollout_id = number
        score = asyncio.run(reward(context, samples)).score
        reason = samples[-1].stop_reason or StopReason.ANSWERED
        rollouts.append(Rollout(rollout_id=number, group_index=0, samples=samples, reward=score, stop_reason=reason))
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.0]
    group = Group(prompt=Prompt(index=0, row=0, messages=[], ground_truth=[]), rollouts=rollouts)
    config = AlgorithmConfig(aggregation=Aggregation.sample)
    advantages = group_advantages(config, [group])
    updates, _ = build_updates(PolicyGradient(RunConfig(algorithm=config, method=MethodConfig(credit=Credit.split))), [group])
    for rollout in rollouts:
        tokens = [sample.tokens for sample in rollout.samples if any(sample.loss_mask)]
        credits = [sample.columns["advantage"] for update in updates for sample in update if sample.tokens in tokens]
        assert len(credits) == len(tokens) and sum(credits) == pytest.approx(advantages[rollout.rollout_id])


@pytest.mark.parametrize(
    ("reply", "parsed", "unknown"),
    [(step_of("2 times 3", "time_machine"), True, True), ("I think it is 6.", False, False), ("", False, False)],
)
def test_without_a_known_tool_the_generator_takes_over_and_the_loop_goes_on(reply: str, parsed: bool, unknown: bool):
    samples, *_ = run(lambda prompt: reply, never_satisfied)
    step = samples[1].metadata
    assert (step["tool"], step["parsed"], step["unknown_tool"]) == ("base_generator", parsed, unknown)
    assert len(samples) == 1 + 3 and samples[-1].stop_reason is StopReason.TURN_LIMIT


def test_a_command_that_cannot_be_read_is_told_to_the_next_turn_and_counted():
    samples, context, planner, _ = run(base=speechless)
    assert [sample.metadata["command_parsed"] for sample in samples[1:]] == [False, False]
    assert "error" in TOKENIZER.decode(planner.calls[-1][0])
    assert eval_log(context, [item_of(samples, context)]).metrics["command_failure_share"] == 1.0


def test_a_tool_that_fails_is_told_and_counted():
    broken = {"base_generator": ToolConfig(path=f"{__file__}:Broken")}
    samples, context, *_ = run(tools=broken)
    assert samples[1].metadata["tool_failed"] and "no coal" in samples[1].metadata["result"]
    metrics = eval_log(context, [item_of(samples, context)]).metrics
    assert metrics["tool_failure_share"] == 1.0 and metrics["tool_failures/base_generator"] == 1.0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_steps": 1}, StopReason.TURN_LIMIT),
        ({"max_rollout_tokens": 1}, StopReason.TOKEN_LIMIT),
        ({"max_seconds": 1e-9}, StopReason.TIME_LIMIT),
        ({"max_planner_tokens": 3}, StopReason.TOKEN_LIMIT),
    ],
)
def test_every_limit_ends_the_loop_and_still_gives_an_answer(settings: dict[str, Any], reason: StopReason):
    samples, *_ = run(base=never_satisfied, **settings)
    assert samples[-1].stop_reason is reason and samples[-1].metadata["final_output"]


@pytest.mark.parametrize(("seconds", "num_steps"), [(9.0, 3), (11.0, 1)])
def test_the_time_of_a_rollout_is_the_agents_own(seconds: float, num_steps: int):
    scripts = Script(good_planner), Script(never_satisfied)
    context, clock = context_of(*scripts, max_seconds=10.0), SimpleNamespace(seconds=seconds)
    context = replace(context, clock=cast(Any, clock))
    samples = asyncio.run(generate(context, template(), Sampling(temperature=1.0, top_p=1.0)))
    assert len(samples) == 1 + num_steps


def test_evaluation_has_its_own_number_of_steps():
    samples, *_ = run(base=never_satisfied, evaluation=True, max_steps=1, max_evaluation_steps=2)
    assert len(samples) == 1 + 2


@pytest.mark.parametrize("analyst", ["actor", "base"])
def test_a_question_longer_than_the_context_is_a_rollout_that_could_not_begin(analyst: str):
    scripts = Script(good_planner), Script(frozen if analyst == "actor" else planning)
    context = context_of(*scripts, roles=RolesConfig(analyst=analyst, coder=None, judge=None))
    sample = template()
    sample.prompt = [{"role": "user", "content": "many words " * 600}]
    with pytest.raises(ContextFullError, match="no room"):
        asyncio.run(generate(context, sample, Sampling(temperature=1.0, top_p=1.0)))
    assert not scripts[0].calls


def test_the_single_turn_baseline_asks_the_trained_model_once():
    scripts = Script(lambda prompt: "\\boxed{ 5 }"), Script(frozen)
    context = context_of(*scripts)
    sample = asyncio.run(generate_single_turn(context, template(), Sampling(temperature=1.0, top_p=1.0)))
    assert len(scripts[0].calls) == 1 and not scripts[1].calls
    found = asyncio.run(reward(context, [sample]))
    assert found.metrics["boxed"] == 1.0 and found.score == float(GOLD == ["5"])
    assert eval_log(context, [item_of([sample], context)]).metrics == {}


def test_the_eval_log_says_how_the_loop_went():
    samples, context, *_ = run()
    log = eval_log(context, [item_of(samples, context)])
    assert log.metrics["turns_mean"] == 3 and log.metrics["first_tool_right_share"] == 1.0
    assert log.metrics["tool/price_list"] == 0.5 and log.metrics["verifier_stop_share"] == 0.5
    assert log.metrics["loop_end/verified"] == 1.0 and log.metrics["score/tiny"] == 100.0
    assert log.figures["tools"]["x"] == ["base_generator", "price_list"]


def test_a_frozen_analyst_plans_and_its_turn_is_no_sequence():
    samples, context, planner, base = run(roles=RolesConfig(analyst="base", coder=None, judge=None), base=planning)
    assert [sample.metadata["turn"] for sample in samples] == ["next_step", "next_step"]
    assert all(all(sample.loss_mask) for sample in samples) and len(planner.calls) == 2
    assert asyncio.run(reward(context, samples)).score == 1.0
    assert TOKENIZER.decode(base.calls[0][0]).count("Plan:") == 1 and base.calls[0][2] == 0.25


def planning(prompt: str) -> str:
    return good_planner(prompt) if prompt.startswith("Plan:") else frozen(prompt)


@pytest.mark.parametrize("keep_instructions", [False, True])
def test_what_a_data_set_says_about_the_form_of_an_answer_is_left_out_unless_it_is_kept(keep_instructions: bool):
    context = context_of(Script(good_planner), Script(frozen), keep_instructions=keep_instructions)
    sample = template()
    sample.prompt = [{"role": "user", "content": f"{DAPO_BEFORE}\n\n{QUESTION}\n\n{DAPO_AFTER}"}]
    question = AgentFlowConfig.of(context.config).question_of(sample)
    assert question == (sample.question if keep_instructions else QUESTION)
    answer = asyncio.run(generate_single_turn(context, sample, Sampling(temperature=1.0, top_p=1.0)))
    assert answer.metadata["question"] == question


@pytest.mark.parametrize("alone", [False, True])
def test_a_judge_decides_alone_or_where_no_rule_can(alone: bool):
    def judge(prompt: str) -> str:
        return "VERDICT: False" if "VERDICT" in prompt else planning(prompt)

    samples, context, *_ = run(base=judge, judging=JudgingConfig(alone=alone), roles=RolesConfig(coder=None, judge="base"))
    found = asyncio.run(reward(context, samples))
    assert (found.score, found.metrics["judged"]) == ((0.0, 1.0) if alone else (1.0, 0.0))
