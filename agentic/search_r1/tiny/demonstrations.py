"""Generated demonstrations for the supervised training of the tiny search model.

It learns each step well: to ask for the first fact, to write down what it found, to ask for the second with the name from the
first, and to answer. In the last part of the training it learns bad habits: it often guesses an answer, skips the first fact, or
stops after it. So it is right only part of the time, until reinforcement learning changes the habits. Every demonstration has an
encyclopaedia of its own, and two-hop questions are about ships of the training split only. A batch depends on seed and step.
"""

import random
from collections.abc import Iterator
from typing import Literal

from transformers import PreTrainedTokenizerBase

from agentic.search_r1.prompts import INFORMATION, PASSAGE, TINY
from agentic.search_r1.tiny import task
from vime.tiny.demonstration import Demonstration, filled
from vime.trajectory.plain_text import render
from vime.types import Sample

Kind = Literal["sampled", "given"]
Part = tuple[Kind, str]
"""A piece of a rollout after its prompt, and whether the model writes it."""
NUM_RESULTS = 3
SKILL = 0.97
"""Share of right steps in the first part of the curriculum."""
HABITS = {"nothing": 0.4, "person": 0.5, "city": 0.95}
"""Share of right steps in the last part, by the state of knowledge; it teaches the bad habits."""
HABIT_PROGRESS = 0.8
"""The progress at which the last part begins."""
GUESS_SHARE = 0.6
"""Wrong steps that are a guess; the others are a query that finds nothing new."""
LOOKUP_SHARE, DIRECT_SHARE = 0.3, 0.05
"""Demonstrations with one hop only, which are also about ships of the evaluation, and without a search."""
DISORDER_SHARE = 0.25
"""Share of results in which the wanted fact may not come first, and of results with a fact about another name."""
MAX_TURNS = 4
THINK, SEARCH, ANSWER = "<think> {thought} </think>\n", "<search> {query} </search>", "<answer> {answer} </answer>"
START, GUESS = THINK.format(thought="I search."), THINK.format(thought="I guess.")
LOOKUP = "What is the {relation} of {name}?"


def results(facts: task.Facts, *, name: str, relation: str, rng: random.Random) -> str:
    """The results of a query: the facts of a name, mostly with the wanted one first."""
    found = sorted(((name, which, value) for which, value in facts[name].items()), key=lambda fact: fact[1] != relation)
    if rng.random() < DISORDER_SHARE:
        other = rng.choice([*task.SHIPS, *task.PEOPLE])
        which, value = rng.choice(list(facts[other].items()))
        found[-1] = (other, which, value)
    if rng.random() < DISORDER_SHARE:
        rng.shuffle(found)
    lines = [
        PASSAGE.format(number=number, title=title, text=task.FACT.format(relation=which, value=value))
        for number, (title, which, value) in enumerate(found, start=1)
    ]
    return INFORMATION.format(results="\n".join(lines))


def two_hops(question: task.Question, facts: task.Facts, *, has_habits: bool, rng: random.Random) -> Iterator[Part]:
    """One rollout: right steps, and wrong ones now and then."""
    known, thought = "nothing", START
    steps = {
        "nothing": (question.ship, question.role, question.person),
        "person": (question.person, question.place, question.city),
    }
    for _ in range(MAX_TURNS):
        is_right = rng.random() < (HABITS[known] if has_habits else SKILL)
        if is_right and known == "city":
            yield "sampled", thought + ANSWER.format(answer=question.city)
            return
        if not is_right and (known == "city" or rng.random() < GUESS_SHARE):
            yield "sampled", GUESS + ANSWER.format(answer=rng.choice(task.CITIES))
            return
        name, relation, value = steps[known] if is_right else (question.ship, question.place, "")
        yield "sampled", thought + SEARCH.format(query=task.QUERY.format(name=name, relation=relation))
        yield "given", results(facts, name=name, relation=relation if is_right else question.role, rng=rng)
        if is_right:
            known = "person" if known == "nothing" else "city"
            thought = THINK.format(thought=task.FACT.format(relation=relation, value=value))


def one_hop(name: str, relation: str, facts: task.Facts, rng: random.Random) -> list[Part]:
    """One query and its answer."""
    value = facts[name][relation]
    thought = THINK.format(thought=task.FACT.format(relation=relation, value=value))
    return [
        ("sampled", START + SEARCH.format(query=task.QUERY.format(name=name, relation=relation))),
        ("given", results(facts, name=name, relation=relation, rng=rng)),
        ("sampled", thought + ANSWER.format(answer=value)),
    ]


def sample_rollout(rng: random.Random, *, has_habits: bool) -> tuple[str, list[Part]]:
    """A prompt and its continuation, about an encyclopaedia of its own."""
    facts, kind = task.make_facts(rng), rng.random()
    if kind < LOOKUP_SHARE:
        name = rng.choice([*task.SHIPS, *task.PEOPLE])
        relation = rng.choice(list(facts[name]))
        return TINY.search.format(question=LOOKUP.format(relation=relation, name=name)), one_hop(name, relation, facts, rng)
    question = task.sample_question(facts, rng)
    if kind < LOOKUP_SHARE + DIRECT_SHARE:
        answer = GUESS + ANSWER.format(answer=rng.choice(task.CITIES))
        return TINY.direct.format(question=question.text), [("sampled", answer)]
    return TINY.search.format(question=question.text), list(two_hops(question, facts, has_habits=has_habits, rng=rng))


def encode(prompt: str, parts: list[Part], *, tokenizer: PreTrainedTokenizerBase) -> Demonstration:
    """A rollout as tokens, each part tokenized by itself as in `generate`; the model's own text is learned."""
    token_ids = render(tokenizer, [{"role": "user", "content": prompt}])
    loss_mask = [0] * len(token_ids)
    for kind, text in parts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        token_ids += ids
        loss_mask += [int(kind == "sampled")] * len(ids)
    return Demonstration(token_ids=token_ids, loss_mask=loss_mask)


def texts() -> list[str]:
    """Texts that the model reads and writes, from which the vocabulary is made."""
    rng = random.Random("vocabulary")
    found = [sample_rollout(rng, has_habits=rng.random() < 0.5) for _ in range(2000)]
    names = {f" {name}" for name in (*task.SHIPS, *task.PEOPLE, *task.CITIES)}
    return sorted({prompt for prompt, _ in found} | {text for _, parts in found for _, text in parts} | names | {TINY.invalid})


def demonstrations(tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int) -> list[Sample]:
    """Return the batch of one step of num_steps, about num_tokens tokens."""
    has_habits = step / num_steps >= HABIT_PROGRESS
    rng = random.Random(f"search_r1/{seed}/{step}")
    return filled(
        lambda: [encode(*sample_rollout(rng, has_habits=has_habits), tokenizer=tokenizer)],
        num_tokens=num_tokens,
    )
