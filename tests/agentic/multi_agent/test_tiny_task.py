"""The tiny mazes: ways, splits, demonstrations of all roles, tokenizer, and what the shipped model does."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

import agentic.multi_agent
from agentic.multi_agent.generate import judgment_of
from agentic.multi_agent.prompts import TINY
from agentic.multi_agent.tiny import demonstrations, task
from agentic.multi_agent.tiny.model import build_tokenizer
from tests.agentic.tiny_models import greedy
from vime.data.split import split_of
from vime.grading.boxed import last_boxed, strip_string
from vime.model.load_tokenizer import load_tokenizer
from vime.tiny.demonstration import Exchange, encode_exchange

ACTOR = Path(agentic.multi_agent.__file__).parent / "tiny" / "actor"
PERFECT = demonstrations.Shares(walks=1.0, rewrites=1.0, selects=1.0)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(ACTOR)


def is_right(maze: task.Maze, solution: str) -> bool:
    return strip_string(last_boxed(solution) or "") == strip_string(maze.answer)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_one_door_of_four_leads_to_the_thing_and_no_fact_names_both(seed: int):
    maze = task.sample_maze(random.Random(seed), split="eval")
    leads = dict(fact.removesuffix(".").split(task.STEP) for fact in maze.facts)
    ends = {}
    for door in task.DOORS:
        place = door
        while place in leads:
            place = leads[place]
        ends[door] = place
    assert [door for door, end in ends.items() if end == maze.thing] == [maze.door]
    assert len(set(ends.values())) == len(task.DOORS)
    assert not any(door in fact and thing in fact for fact in maze.facts for door in task.DOORS for thing in ends.values())
    assert maze.answer.startswith(maze.door) and maze.answer.endswith(maze.thing)


def test_the_evaluation_seeks_things_that_training_does_not():
    rows = {split: task.generate_rows(split=split, num_items=200, seed=1) for split in ("train", "eval")}
    for split, found in rows.items():
        assert {split_of(row["thing"]) for row in found} == {split}
        assert len({row["question"] for row in found}) == len(found)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_with_perfect_skill_what_one_solver_finds_reaches_the_end(seed: int):
    rng = random.Random(seed)
    maze = task.sample_maze(rng, split="train")
    solved = [demonstrations.solve(maze, rng, shares=PERFECT) for _ in range(4)]
    rewritten = [demonstrations.rewrite(maze, solved, rng, shares=PERFECT) for _ in range(3)]
    if any(is_right(maze, solution) for solution in solved):
        assert all(is_right(maze, solution) for solution in rewritten)
    else:
        tried = {demonstrations.door_of(solution) for solution in solved}
        assert not tried & {demonstrations.door_of(solution) for solution in rewritten}
    named = judgment_of(demonstrations.select(maze, rewritten, rng, shares=PERFECT), num_solutions=3)
    assert named is not None
    assert is_right(maze, rewritten[named]) == any(is_right(maze, solution) for solution in rewritten)


def test_the_habits_are_right_only_part_of_the_time():
    rng, found = random.Random(0), []
    for _ in range(400):
        maze = task.sample_maze(rng, split="train")
        solved = [demonstrations.solve(maze, rng, shares=demonstrations.HABITS) for _ in range(4)]
        rewritten = [demonstrations.rewrite(maze, solved, rng, shares=demonstrations.HABITS) for _ in range(3)]
        named = judgment_of(demonstrations.select(maze, rewritten, rng, shares=demonstrations.HABITS), num_solutions=3) or 0
        found.append((is_right(maze, solved[0]), is_right(maze, rewritten[named])))
    assert 0.08 < sum(first for first, _ in found) / 400 < 0.25
    assert 0.15 < sum(last for _, last in found) / 400 < 0.5


def test_the_shipped_tokenizer_is_the_one_that_the_code_makes(tokenizer: PreTrainedTokenizerBase):
    assert build_tokenizer().get_vocab() == tokenizer.get_vocab()
    for name in (*task.DOORS, *task.ROOMS, *task.THINGS):
        assert len(tokenizer.encode(f" {name}", add_special_tokens=False)) == 1
    rng = random.Random(3)
    for exchange in demonstrations.sample_exchanges(rng, shares=PERFECT):
        assert tokenizer.decode(tokenizer.encode(exchange.prompt, add_special_tokens=False)) == exchange.prompt


def test_the_shipped_model_names_the_solution_that_has_found_the_thing(tokenizer: PreTrainedTokenizerBase):
    rng, prompts, right = random.Random(5), [], []
    for _ in range(12):
        maze = task.sample_maze(rng, split="train")
        doors = [maze.door, *[door for door in task.DOORS if door != maze.door][:2]]
        rng.shuffle(doors)
        solutions = [demonstrations.walk(maze, door, rng, is_right=True) for door in doors]
        text, index = TINY.prompt("selector", maze.text, solutions), doors.index(maze.door) + 1
        said = f"Found {maze.thing} by {maze.door}:"
        prompts.append(encode_exchange(Exchange(prompt=text, reply=said + f"{index}"), tokenizer=tokenizer))
        end = len(prompts[-1].loss_mask) - 2
        prompts[-1].loss_mask = [0] * end + [1, 1]
        right.append(str(index))
    replies = greedy(ACTOR, tokenizer, prompts)
    assert sum(reply.startswith(index) for reply, index in zip(replies, right, strict=True)) >= 9, (replies, right)
