"""Generated two-hop questions over many documents, in the row format of the HotpotQA set that MemAgent trains on.

A question names an estate. One document names its owner, a later one the city of that owner's home, and all others state such
facts about other estates and people. Every name is one token of the tiny tokenizer. The number of documents sets the length. A
fifth of the estates, chosen by hash, is asked about in the evaluation split only.
"""

import random
from typing import Any

from vime.data.split import Split, split_of

Row = dict[str, Any]

DATA_SOURCE = "memagent_tiny"
QUESTION = "In which city does the proprietor of {estate} live?"
OWNER_FACT = "The owner of {estate} is {person}."
HOME_FACT = "The home of {person} is {city}."
DOCUMENT = "Document {number}:\n{title}\n{sentence}"
DOCUMENT_SEPARATOR = "\n\n"
MIN_DOCS = 2


def _names(first_syllables: str, last_syllables: str) -> tuple[str, ...]:
    """All combinations of a first and a last syllable, in a fixed order."""
    return tuple(first + last for first in first_syllables.split() for last in last_syllables.split())


ESTATES = _names("Xan Bel Cor Dun Fal Gor Hul Jor Kel Lor Mor Nar Pel Ros Syl Tor", "dor wick mere by stead vane gard lund")
PEOPLE = _names("Ab Bra Ca De El Fi Gu Ha Iv Jo Ka Le Mi No Ol Pa", "ra lin nus vio mond ric sha zel")
CITIES = _names("Bar Chel Dra Fen Gri Har Kir Lim", "burg ton polis ford haven ville mouth grad")
MAX_DISTINCT = 2 * min(len(ESTATES), len(PEOPLE)) - 2
"""Most documents that differ; beyond this number, facts are repeated."""


_ESTATES: dict[Split, list[str]] = {split: [name for name in ESTATES if split_of(name) == split] for split in ("train", "eval")}


def estates_of_split(split: Split) -> list[str]:
    """Return the estates that questions of this split are about."""
    return _ESTATES[split]


def owner_document(estate: str, person: str) -> tuple[str, str]:
    """Return title and sentence of the document about the owner of an estate."""
    return "Estate", OWNER_FACT.format(estate=estate, person=person)


def home_document(person: str, city: str) -> tuple[str, str]:
    """Return title and sentence of the document about the home of a person."""
    return "Resident", HOME_FACT.format(person=person, city=city)


def sample_distractors(rng: random.Random, *, num_docs: int, estate: str, person: str) -> list[tuple[str, str]]:
    """Return documents about other estates and people, half of each kind, in random order.

    No subject has two facts. If there are fewer subjects than documents, facts are repeated, in another order each time.
    """
    most = MAX_DISTINCT - MIN_DOCS
    if num_docs > most:
        distinct = sample_distractors(rng, num_docs=most, estate=estate, person=person)
        again = [document for _ in range(num_docs // most) for document in rng.sample(distinct, most)]
        return distinct + again[: num_docs - most]
    other_estates = [name for name in ESTATES if name != estate]
    other_people = [name for name in PEOPLE if name != person]
    num_owner_docs = (num_docs + rng.randrange(2)) // 2
    documents = [owner_document(name, rng.choice(other_people)) for name in rng.sample(other_estates, num_owner_docs)]
    documents += [home_document(name, rng.choice(CITIES)) for name in rng.sample(other_people, num_docs - num_owner_docs)]
    rng.shuffle(documents)
    return documents


def sample_gold_positions(rng: random.Random, num_docs: int) -> tuple[int, int]:
    """Return the positions of the two documents that answer the question, at least a quarter of all documents apart."""
    min_distance = max(1, num_docs // 4)
    first = rng.randrange(num_docs - min_distance)
    return first, rng.randrange(first + min_distance, num_docs)


def _row(*, split: Split, index: int, num_docs: int, seed: int) -> Row:
    question_rng = random.Random(f"{split}/{seed}/{index}")
    estate = question_rng.choice(estates_of_split(split))
    person = question_rng.choice(PEOPLE)
    city = question_rng.choice(CITIES)
    rng = random.Random(f"{split}/{seed}/{index}/{num_docs}")
    documents = sample_distractors(rng, num_docs=num_docs - 2, estate=estate, person=person)
    positions = sample_gold_positions(rng, num_docs)
    documents.insert(positions[0], owner_document(estate, person))
    documents.insert(positions[1], home_document(person, city))
    question = QUESTION.format(estate=estate)
    return {
        "prompt": [{"role": "user", "content": question}],
        "context": DOCUMENT_SEPARATOR.join(
            DOCUMENT.format(number=number, title=title, sentence=sentence)
            for number, (title, sentence) in enumerate(documents, start=1)
        ),
        "data_source": DATA_SOURCE,
        "ability": "memory",
        "reward_model": {"style": "rule", "ground_truth": [city]},
        "extra_info": {
            "index": index,
            "split": split,
            "question": question,
            "num_docs": num_docs,
            "supporting_documents": [position + 1 for position in positions],
        },
    }


def generate_rows(*, split: Split, num_items: int, num_docs: int, seed: int) -> list[Row]:
    """Return num_items questions about num_docs documents each.

    The same split and seed give the same questions and answers at every num_docs.

    Raises:
        ValueError: num_docs is less than MIN_DOCS.
    """
    if num_docs < MIN_DOCS:
        raise ValueError(f"num_docs is {num_docs}, but a question needs {MIN_DOCS} documents")
    return [_row(split=split, index=index, num_docs=num_docs, seed=seed) for index in range(num_items)]
