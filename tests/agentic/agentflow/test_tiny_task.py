"""The tiny AgentFlow task, its tokenizer, its demonstrations and the shipped models."""

import ast
import random
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

import agentic.agentflow
from agentic.agentflow.executor import find_command, query_of
from agentic.agentflow.planner import parse_next_step
from agentic.agentflow.tiny import catalogue, demonstrations
from agentic.agentflow.tiny import prompts as tiny_prompts
from agentic.agentflow.tiny import task as tiny_task
from agentic.agentflow.tiny.model import build_tokenizer
from agentic.agentflow.verifier import parse_verdict
from tests.agentic.tiny_models import greedy
from vime.model.load_tokenizer import load_tokenizer
from vime.tiny.demonstration import encode_exchange

FOLDER = Path(agentic.agentflow.__file__).parent
MODELS = ("tiny/planner", "tiny/frozen")


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(FOLDER / MODELS[0])


def test_rows_are_deterministic_and_depend_on_the_seed():
    rows = tiny_task.generate_rows(split="train", num_items=20, seed=1)
    assert rows == tiny_task.generate_rows(split="train", num_items=20, seed=1)
    assert rows != tiny_task.generate_rows(split="train", num_items=20, seed=2)
    assert {row["extra_info"]["kind"] for row in rows} == set(tiny_task.KINDS)


def test_evaluation_asks_for_sums_and_prices_that_training_never_asks_for():
    subjects: dict[str, set[str]] = {}
    for split in ("train", "eval"):
        tasks = [tiny_task.sample_task(random.Random(f"{split}{i}"), split=split) for i in range(600)]
        subjects[split] = {task.question if task.kind == "sum" else task.lookup_goal for task in tasks}
    assert len(subjects["eval"]) > 100 and not subjects["train"] & subjects["eval"]


def test_the_right_tools_in_the_right_order_solve_every_problem():
    for number in range(300):
        task = tiny_task.sample_task(random.Random(number), split="eval")
        taken: demonstrations.Taken = []
        for tool in task.tools:
            choice = demonstrations.right_choice(task, taken)
            assert choice.tool_name == tool and not demonstrations.is_finished(taken)
            looked_up = catalogue.look_up(choice.sub_goal)
            taken.append((tool, looked_up if tool == tiny_task.LOOKUP else demonstrations.result_of(choice, random.Random(0))))
        assert demonstrations.is_finished(taken)
        assert demonstrations.final_answer(taken) == f"\\boxed{{ {task.answer} }}"
        assert 0 <= task.answer <= tiny_task.LARGEST


@pytest.mark.parametrize("query", ["", "price of lamps", "lamps and books in Corwick", "Compute 3 * lamps"])
def test_the_price_list_knows_one_price_at_a_time(query: str):
    assert catalogue.look_up(query) == catalogue.UNKNOWN


def test_a_long_result_is_an_error_to_a_tiny_model():
    assert (
        tiny_prompts.steps([("price_list", "7"), ("python_coder", "Traceback …" * 9)])
        == "price_list says 7 ; python_coder says error"
    )
    assert tiny_prompts.steps([]) == tiny_prompts.NO_STEPS


@pytest.mark.parametrize("model", MODELS)
def test_the_shipped_tokenizers_are_the_one_that_the_builder_makes(model: str):
    shipped, built = load_tokenizer(FOLDER / model), build_tokenizer()
    assert built.get_vocab() == shipped.get_vocab() and built.chat_template == shipped.chat_template
    for text in (tiny_prompts.EXECUTOR.format(sub_goal="price of lamps in Corwick", tool_name="price_list"), "日本語 😀 12345"):
        assert built(text)["input_ids"] == shipped(text)["input_ids"]
        assert shipped.decode(shipped(text)["input_ids"]) == text


def test_names_and_signs_are_single_tokens():
    for word in (*catalogue.GOODS, *catalogue.TOWNS, *tiny_task.SIGNS):
        assert len(tokenizer()(f" {word}")["input_ids"]) == 1, word


def test_demonstrated_replies_are_what_the_loop_reads():
    rng = random.Random(0)
    for _ in range(50):
        command, program, guess, verdict, answer = demonstrations.frozen_turns(rng, right_share=0.5)
        goal = command.prompt.split("Sub-Goal: ")[1].split("\n")[0]
        assert query_of(find_command(command.reply)) == goal == guess.prompt
        ast.parse(program.reply.strip("`").removeprefix("python\n"))
        assert parse_verdict(verdict.reply).parsed and answer.reply.startswith("\\boxed{")
        for turn in demonstrations.planner_turns(rng, right_share=0.5):
            if turn.prompt.startswith("Next:"):
                assert parse_next_step(turn.reply).parsed


def test_the_planner_is_shown_the_skill_first_and_bad_habits_last():
    def share_of_right_tools(step: int) -> float:
        rng = random.Random(step)
        share = demonstrations.SKILL_SHARE if step < 50 else demonstrations.RIGHT_TOOL_SHARE
        turns = [turn for _ in range(400) for turn in demonstrations.planner_turns(rng, right_share=share)]
        first = [turn for turn in turns if turn.prompt.endswith("Steps: none")]
        right = [
            ("is" in turn.prompt.split()[4:5]) == (tiny_task.PYTHON in turn.reply) for turn in first if "base" not in turn.reply
        ]
        return sum(right) / len(first)

    assert share_of_right_tools(0) > 0.75 and share_of_right_tools(99) < 0.5


@pytest.mark.parametrize("make", [demonstrations.planner_demonstrations, demonstrations.frozen_demonstrations])
def test_a_batch_depends_on_seed_and_step_and_learns_replies_only(make):
    first, again, other = (make(tokenizer(), step, 100, 500, 0) for step in (3, 3, 4))
    assert first == again and first != other
    assert sum(sample.columns["weight"] * sum(sample.loss_mask) for sample in first) == pytest.approx(1.0)
    for sample in first:
        learned = str(tokenizer().decode(sample.tokens[-len(sample.loss_mask) :]))
        assert sample.loss_mask == [1] * len(sample.loss_mask) and learned.endswith("<|im_end|>")


def replies(model: str, turns: list[demonstrations.Exchange]) -> list[str]:
    """The replies of a shipped model to the turns' prompts."""
    return greedy(FOLDER / model, tokenizer(), [encode_exchange(turn, tokenizer=tokenizer()) for turn in turns])


def test_the_shipped_frozen_model_does_its_jobs():
    rng = random.Random(17)
    turns = [turn for _ in range(5) for turn in demonstrations.frozen_turns(rng, right_share=0.8)]
    jobs = [turn for turn in turns if ":" in turn.prompt]  # all but the generator's guesses
    right = [reply == turn.reply for turn, reply in zip(jobs, replies("tiny/frozen", jobs), strict=True)]
    assert len(jobs) == 20 and sum(right) >= 19


def test_the_shipped_planner_writes_sections_and_its_likeliest_first_tool_is_mostly_the_wrong_one():
    tasks = [tiny_task.sample_task(random.Random(number), split="eval", kinds=("bill", "rest")) for number in range(8)]
    prompts = [tiny_prompts.NEXT_STEP.format(question=task.question, memory=tiny_prompts.steps([])) for task in tasks]
    turns = [demonstrations.Exchange(prompt=prompt, reply="x") for prompt in prompts]
    steps = [parse_next_step(reply) for reply in replies("tiny/planner", turns)]
    assert all(step.parsed for step in steps)
    assert sum(step.tool_name == tiny_task.LOOKUP for step in steps) <= 4
