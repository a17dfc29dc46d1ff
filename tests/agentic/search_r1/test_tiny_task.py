"""The tiny search task: its encyclopaedia, its questions, its demonstrations, its tokenizer and the shipped model."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

import agentic.search_r1
from agentic.search_r1.generate import action_of
from agentic.search_r1.prompts import TINY
from agentic.search_r1.reward import WELL_FORMED
from agentic.search_r1.tiny import demonstrations, task
from agentic.search_r1.tiny.model import build_tokenizer
from tests.agentic.tiny_models import greedy
from vime.data.split import split_of
from vime.model.load_tokenizer import load_tokenizer

ACTOR = Path(agentic.search_r1.__file__).parent / "tiny" / "actor"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(ACTOR)


def test_each_answer_follows_from_two_passages_and_from_none_alone():
    texts = {passage["id"]: passage["text"] for passage in task.passages()}
    for split in ("train", "eval"):
        for row in task.generate_rows(split=split, num_items=10_000, seed=0):
            place, role, ship = row["question"].removeprefix("What is the ").removesuffix("?").split(" of ")
            role, place = role.removeprefix("the "), place.removeprefix("the ")
            assert texts[f"{ship}/{role}"] == task.FACT.format(relation=role, value=row["person"])
            assert texts[f"{row['person']}/{place}"] == task.FACT.format(relation=place, value=row["answers"][0])
            assert row["person"] not in row["question"]


def test_the_evaluation_asks_about_ships_and_people_that_training_does_not():
    rows = {split: task.generate_rows(split=split, num_items=10_000, seed=3) for split in ("train", "eval")}
    assert len(rows["eval"]) >= 200
    for split, found in rows.items():
        assert {split_of(row["person"]) for row in found} == {split}
        assert {split_of(row["question"].split()[-1].removesuffix("?")) for row in found} == {split}
        assert len({row["question"] for row in found}) == len(found)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_two_hop_demonstrations_are_about_training_ships_and_right_ones_are_well_formed(seed: int):
    prompt, parts = demonstrations.sample_rollout(random.Random(seed), has_habits=False)
    held_out = [ship for ship in task.SHIPS if split_of(ship) == "eval"]
    assert prompt.count(" of ") < 2 or not any(ship in prompt for ship in held_out)
    text = "".join(piece for _, piece in parts)
    assert WELL_FORMED.fullmatch(text) or "<answer>" not in text
    actions = [action_of(piece)[0] for kind, piece in parts if kind == "sampled"]
    assert set(actions[:-1]) <= {"search"} and actions[-1] in ("search", "answer")


def test_only_what_the_model_writes_is_learned(tokenizer: PreTrainedTokenizerBase):
    rng = random.Random(0)
    for _ in range(50):
        prompt, parts = demonstrations.sample_rollout(rng, has_habits=True)
        demonstration = demonstrations.encode(prompt, parts, tokenizer=tokenizer)
        pairs = zip(demonstration.token_ids, demonstration.loss_mask, strict=True)
        learned = tokenizer.decode([token for token, mask in pairs if mask], skip_special_tokens=False)
        assert learned == "".join(piece for kind, piece in parts if kind == "sampled")


def test_the_shipped_tokenizer_is_the_one_that_the_code_makes(tokenizer: PreTrainedTokenizerBase):
    made = build_tokenizer()
    assert made.get_vocab() == tokenizer.get_vocab()
    for name in (*task.SHIPS, *task.PEOPLE, *task.CITIES):
        assert len(tokenizer.encode(f" {name}", add_special_tokens=False)) == 1
    for text in (TINY.search.format(question="What is the home of Abshi?"), TINY.invalid):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_shipped_model_finds_the_wanted_fact_among_the_results(tokenizer: PreTrainedTokenizerBase):
    rng, people, prompts = random.Random(5), [], []
    for _ in range(12):
        facts = task.make_facts(rng)
        question = task.sample_question(facts, rng)
        search, results = list(demonstrations.two_hops(question, facts, has_habits=False, rng=random.Random(1)))[:2]
        parts = [search, results, ("given", f"<think> The {question.role} is"), ("sampled", f" {question.person}")]
        prompts.append(demonstrations.encode(TINY.search.format(question=question.text), parts, tokenizer=tokenizer))
        end = len(prompts[-1].loss_mask) - 1
        prompts[-1].loss_mask = [0] * end + [1]
        people.append(f" {question.person}.")
    replies = greedy(ACTOR, tokenizer, prompts)
    assert sum(reply.startswith(person) for reply, person in zip(replies, people, strict=True)) >= 10, (replies, people)
