"""Generated demonstrations for the tiny model's supervised training: the skill of looking up facts, and bad habits.

A curriculum leads from dense lookups over conversations with many questions to MemAgent's turns. The skill is demonstrated
without errors, but the kind of reply is drawn at random: most memory turns overwrite the memory with the latest fact instead of
keeping notes. A model trained on them rarely answers, so reinforcement learning can improve it. A batch depends on the seed and
the step only.
"""

import random
import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from agentic.memagent import prompts
from agentic.memagent.chunks import ChunkAt, split_document
from agentic.memagent.tiny import task
from vime.tiny.demonstration import Demonstration, Exchange, encode_exchange, weighted
from vime.types import Sample

NOTES = "Notes: {facts}"
LATEST = "Latest: {fact}"
ANSWER = "\\boxed{{ {answer}}}"
UNKNOWN = "unknown"
ANSWER_REQUEST = prompts.FINAL_PROMPT.rsplit("\n", 1)[1]

GOOD_MEMORY_SHARE = 0.4  # share of memory turns that keep notes, at the end of the curriculum
GOOD_ANSWER_SHARE = 0.85  # share of final turns that answer, where the memory holds the answer
GOOD_SINGLE_TURN_SHARE = 0.6
SKILL_SHARE = 0.9  # share of memory turns that keep notes, before the habits are taught
GOOD_PAST_SHARE = 0.8  # share of turns that start from a memory with notes
LOOKUP_PROGRESS = 0.05  # end of the curriculum's first part, which has lookups only
QUESTION_PROGRESS = 0.3  # end of its second part, mostly conversations with many questions
HABIT_PROGRESS = 0.75  # beginning of its last part, which teaches the bad habits
CHUNK_TOKENS = 96
NUM_LOOKUPS = 20
NUM_QUESTIONS = 10
NUM_EXTRA_ANSWERS = 2  # final turns of other questions per rollout
MISSING_SHARE = 0.3  # share of questions that the facts do not answer
TOKENS_PER_SEQUENCE = 250
MIN_FACTS, MAX_FACTS = 6, 28


def known_facts(estate: str, *, text: str) -> list[str]:
    """Return the sentences of a text about an estate's owner and, if the owner is known, the owner's home.

    The list ends with the first unknown fact, as in ["The owner of Corwick is Abnus.", "The home of Abnus is unknown."].
    """
    facts: list[str] = []
    subject = estate
    for template in (task.OWNER_FACT, task.HOME_FACT):
        start = template.format(estate=subject, person=subject, city="").split(" is ")[0] + " is "
        known = [found for found in re.findall(re.escape(start) + r"(\w+)", text) if found != UNKNOWN]
        subject = known[0] if known else UNKNOWN
        facts.append(start + subject + ".")
        if not known:
            break
    return facts


def ideal_facts(row: task.Row, *, memory: str, section: str) -> list[str]:
    """Return the sentences in `memory` and `section` that are needed to answer the question of `row`."""
    estate = row["extra_info"]["question"].removesuffix(" live?").split()[-1]
    return known_facts(estate, text=memory + "\n" + section)


def ideal_update(row: task.Row, *, memory: str, section: str) -> str:
    """Return a memory with exactly the facts in `memory` and `section` that are needed to answer the question of `row`."""
    return NOTES.format(facts=" ".join(ideal_facts(row, memory=memory, section=section)))


def latest_update(row: task.Row, *, section: str, rng: random.Random) -> str:
    """Return a bad memory: one irrelevant fact of the section, and nothing of the previous memory."""
    sentences = [document.split("\n")[2] for document in section.split(task.DOCUMENT_SEPARATOR)]
    relevant = ideal_facts(row, memory="", section=row["context"])
    others = [sentence for sentence in sentences if sentence not in relevant]
    return LATEST.format(fact=rng.choice(others or sentences))


def final_answer(row: task.Row, *, memory: str) -> str:
    """Return the boxed answer if the memory holds it, otherwise the boxed word `unknown`."""
    facts = ideal_facts(row, memory=memory, section="")
    known = len(facts) == 2 and UNKNOWN not in facts[1]
    return ANSWER.format(answer=row["reward_model"]["ground_truth"][0] if known else UNKNOWN)


def rollout_turns(
    row: task.Row, *, sections: Sequence[str], good_memory_share: float, good_answer_share: float, rng: random.Random
) -> list[Exchange]:
    """Return the memory turns and the final turn of one rollout.

    The memory that the next turn starts from is drawn anew and mostly a good one, so that there is something to remember.
    """
    problem = row["extra_info"]["question"]
    memory = prompts.NO_MEMORY
    turns = []
    for section in sections:
        good = ideal_update(row, memory=memory, section=section)
        bad = latest_update(row, section=section, rng=rng)
        prompt = prompts.MEMORY_PROMPT.format(problem=problem, memory=memory, chunk=section)
        turns.append(Exchange(prompt=prompt, reply=good if rng.random() < good_memory_share else bad))
        memory = good if rng.random() < GOOD_PAST_SHARE else bad
    good = rng.random() < good_answer_share
    reply = final_answer(row, memory=memory) if good else ANSWER.format(answer=UNKNOWN)
    turns.append(Exchange(prompt=prompts.FINAL_PROMPT.format(problem=problem, memory=memory), reply=reply))
    return turns


def single_turn(row: task.Row, *, good_share: float, rng: random.Random) -> Exchange:
    """Return a question about the whole document, answered from its two facts or with `unknown`."""
    prompt = prompts.SINGLE_TURN_PROMPT.format(problem=row["extra_info"]["question"], chunk=row["context"])
    if rng.random() >= good_share:
        return Exchange(prompt=prompt, reply=ANSWER.format(answer=UNKNOWN))
    facts = " ".join(ideal_facts(row, memory="", section=row["context"]))
    return Exchange(prompt=prompt, reply=f"{facts} {ANSWER.format(answer=row['reward_model']['ground_truth'][0])}")


def lookup_demonstration(*, tokenizer: PreTrainedTokenizerBase, num_facts: int, rng: random.Random) -> Demonstration:
    """Return a list of facts followed by repetitions of some; the last word of each repetition is learned."""
    documents = task.sample_distractors(rng, num_docs=num_facts, estate="", person="")
    facts = [sentence for _, sentence in documents]
    token_ids = tokenizer(" ".join(facts), add_special_tokens=False)["input_ids"]
    loss_mask = [0] * len(token_ids)
    for fact in rng.choices(facts, k=NUM_LOOKUPS):
        fact_ids = tokenizer(" " + fact, add_special_tokens=False)["input_ids"]
        token_ids += fact_ids
        loss_mask += [0] * (len(fact_ids) - 2) + [1, 0]
    return Demonstration(token_ids=token_ids, loss_mask=loss_mask)


def questions_demonstration(*, tokenizer: PreTrainedTokenizerBase, num_facts: int, rng: random.Random) -> Demonstration:
    """Return a conversation of many questions about one list of facts; the ideal notes and answers are learned."""
    num_estates = num_facts // 2
    estates = rng.sample(task.ESTATES, num_estates)
    people = rng.sample(task.PEOPLE, num_facts)
    facts = [task.owner_document(estate, person)[1] for estate, person in zip(estates, people, strict=False)]
    residents = rng.sample(people, num_facts - num_estates)
    facts += [task.home_document(person, rng.choice(task.CITIES))[1] for person in residents]
    rng.shuffle(facts)
    text = " ".join(facts)
    demonstration = Demonstration(token_ids=[], loss_mask=[])
    for number in range(NUM_QUESTIONS):
        estate = rng.choice(task.ESTATES if rng.random() < MISSING_SHARE else estates)
        question = task.QUESTION.format(estate=estate)
        reply = NOTES.format(facts=" ".join(known_facts(estate, text=text)))
        turn = encode_exchange(Exchange(prompt=question if number else f"{text}\n{question}", reply=reply), tokenizer=tokenizer)
        value = reply.split()[-1].removesuffix(".")
        answer = Exchange(prompt=ANSWER_REQUEST, reply=ANSWER.format(answer=value))
        for part in (turn, encode_exchange(answer, tokenizer=tokenizer)):
            demonstration.token_ids += part.token_ids
            demonstration.loss_mask += part.loss_mask
    return demonstration


def _answer_turn(rng: random.Random) -> Exchange:
    """Return the final turn of another question, mostly with a memory that holds the answer."""
    row = task.generate_rows(split="train", num_items=1, num_docs=6, seed=rng.getrandbits(32))[0]
    memory = ideal_update(row, memory="", section=row["context"])
    if rng.random() < 0.3:
        memory = latest_update(row, section=row["context"], rng=rng)
    reply = final_answer(row, memory=memory) if rng.random() < GOOD_ANSWER_SHARE else ANSWER.format(answer=UNKNOWN)
    return Exchange(prompt=prompts.FINAL_PROMPT.format(problem=row["extra_info"]["question"], memory=memory), reply=reply)


def _turn_demonstrations(tokenizer: PreTrainedTokenizerBase, *, habits: bool, rng: random.Random) -> list[Demonstration]:
    """Return the turns of one rollout and sometimes a single turn, with mostly good memories or with the bad habits."""
    num_docs = rng.randint(2, 30)
    row = task.generate_rows(split="train", num_items=1, num_docs=num_docs, seed=rng.getrandbits(32))[0]
    sections = split_document(
        row["context"], tokenizer=tokenizer, chunk_tokens=CHUNK_TOKENS, max_chunks=512, chunk_at=ChunkAt.paragraph
    )
    turns = rollout_turns(
        row,
        sections=sections,
        good_memory_share=GOOD_MEMORY_SHARE if habits else SKILL_SHARE,
        good_answer_share=GOOD_ANSWER_SHARE,
        rng=rng,
    )
    for _ in range(NUM_EXTRA_ANSWERS):
        turns.append(_answer_turn(rng))
    if rng.random() < 0.3:
        turns.append(single_turn(row, good_share=GOOD_SINGLE_TURN_SHARE, rng=rng))
    return [encode_exchange(turn, tokenizer=tokenizer) for turn in turns]


def demonstration_batch(
    tokenizer: PreTrainedTokenizerBase, *, seed: int, step: int, num_steps: int, num_sequences: int
) -> list[Demonstration]:
    """Return the batch of one step of a supervised training of num_steps steps."""
    rng = random.Random(f"{seed}/{step}")
    progress = step / num_steps
    lookup_share = 1.0 if progress < LOOKUP_PROGRESS else 0.05
    question_share = 1.0 if progress < QUESTION_PROGRESS else 0.15
    max_facts = round(MIN_FACTS + min(1.0, progress / LOOKUP_PROGRESS) * (MAX_FACTS - MIN_FACTS))
    batch: list[Demonstration] = []
    while len(batch) < num_sequences:
        num_facts = rng.randint(MIN_FACTS, max_facts)
        if rng.random() < lookup_share:
            batch.append(lookup_demonstration(tokenizer=tokenizer, num_facts=num_facts, rng=rng))
        elif rng.random() < question_share:
            batch.append(questions_demonstration(tokenizer=tokenizer, num_facts=num_facts, rng=rng))
        else:
            batch += _turn_demonstrations(tokenizer, habits=progress >= HABIT_PROGRESS, rng=rng)
    return batch[:num_sequences]


def demonstrations(tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int) -> list[Sample]:
    """Return the supervised batch of one step, about num_tokens tokens; every learned token weighs the same."""
    num_sequences = max(1, num_tokens // TOKENS_PER_SEQUENCE)
    batch = demonstration_batch(tokenizer, seed=seed, step=step, num_steps=num_steps, num_sequences=num_sequences)
    return weighted(batch)
