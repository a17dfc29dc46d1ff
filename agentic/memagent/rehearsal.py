"""MemAgent's rehearsal: memories that are kept, empty and cut off; answers that are right, wrong, without a box and cut off."""

import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentic.memagent.prompts import ANSWER_WORDS
from vime.config import PromptStyle, RunConfig
from vime.model.families import family_of
from vime.rehearsal.script import Asked, Rehearsal, Row, ScriptedReply

ACTS = ("right", "wrong", "answer_cut", "no_box", "memory_empty", "memory_cut")
MEMORY, SINGLE = "Updated memory:", "<article>"
TRAINING_PARAGRAPHS = 200
MOST_PARAGRAPHS, MOST_PARAGRAPHS_OF_BYTES = 200, 30
"""Paragraphs of the longest document of a rehearsal, about 28 thousand tokens, with a tokenizer of words and with one of bytes.
Longer documents run the same code and only take more time."""
WORDS = ("river", "north", "founded", "album", "station", "county", "winner", "series", "museum", "bridge", "writer", "league")
WORDS_PER_PARAGRAPH = 120
PLACES = ("Bonn", "Lyon", "Turku", "Gdansk")


class MemAgentRehearsal(Rehearsal):
    """Documents of the published lengths up to 28 thousand tokens, and a script of six acts."""

    @classmethod
    def files(cls, config: RunConfig) -> dict[str, list[Row]]:
        """The training file, the published evaluation files and the longer ones made from them."""
        found = {}
        for position, dataset in enumerate([config.data.train, *config.data.evaluation]):
            if dataset.path is None:
                continue
            name, training = Path(dataset.path).name, position == 0
            num_paragraphs = min(_num_paragraphs(name), _most_paragraphs(config))
            rows = [_row(name, number, num_paragraphs, training=training) for number in range(2)]
            found[name.replace(".parquet", ".jsonl")] = rows
        return found

    @classmethod
    def adapt(cls, config: RunConfig) -> list[str]:
        """Says which documents are shorter than the published ones."""
        most = _most_paragraphs(config)
        datasets = config.data.evaluation
        names = [dataset.name for dataset in datasets if _num_paragraphs(Path(dataset.path or "").name) > most]
        return [f"data: {most} paragraphs in each document of {', '.join(names)}, for the sake of time"] if names else []

    def reply(self, asked: Asked) -> ScriptedReply | None:
        """A memory or an answer, by the act of the rollout."""
        if self.config.model.name == PromptStyle.tiny.value:
            return None  # its model can play
        act, gold = self.act(asked, ACTS), self.gold_of(asked.prompt)
        if MEMORY in asked.prompt:
            if act == "memory_empty":
                return ScriptedReply(text="")
            text = f"The article has named {gold} so far (call {asked.turn})."
            return ScriptedReply(text=text, cut=act == "memory_cut")
        answer = gold if act != "wrong" else "somewhere else"
        if act == "answer_cut":
            return ScriptedReply(text="From the memory it follows that", cut=True)
        if act == "no_box":
            return ScriptedReply(text=f"It is {answer}.")
        return ScriptedReply(text=f"Therefore, {ANSWER_WORDS} {answer}. \\boxed{{{answer}}}")

    def expected(self) -> dict[str, list[str]]:
        """The stop reasons, and the possible outcomes for a memory and an answer."""
        memories = ["kept", "empty", "cut"] if set(self.config.evaluation.rows) - {"single_turn"} else []
        found = {"stop reason": ["answered", "token_limit"], "answer": ["boxed", "without a box"]}
        return {**found, "memory": memories} if memories else found

    def occurred(self, rollout: Row) -> Iterable[tuple[str, str]]:
        """The fate of its memories and its answer."""
        for about in (sample["metadata"] for sample in rollout["samples"]):
            if "memory" in about:
                yield "memory", "empty" if about["empty"] else "cut" if about["cut"] else "kept"
        yield "answer", "boxed" if rollout["metrics"].get("boxed") else "without a box"


def _most_paragraphs(config: RunConfig) -> int:
    return MOST_PARAGRAPHS if family_of(config.model.family).tokenizer is not None else MOST_PARAGRAPHS_OF_BYTES


def _num_paragraphs(name: str) -> int:
    found = re.search(r"_(\d+)$", Path(name).stem)
    return int(found[1]) if found else TRAINING_PARAGRAPHS


def _row(name: str, number: int, num_paragraphs: int, *, training: bool) -> dict[str, Any]:
    """A row in the layout of the published file: that of the training set, or that of the evaluation sets."""
    chance = random.Random(f"{name}/{number}")
    kind, gold = "training" if training else "evaluation", PLACES[2 * training + number]
    question = f"In which city is the older of the two {kind} bridges, number {number}?"
    place = chance.randrange(num_paragraphs)
    paragraphs = [
        f"Document {index + 1}:\nTitle {index}\n"
        + (f"The older bridge is in {gold}. " if index == place else "")
        + " ".join(chance.choices(WORDS, k=WORDS_PER_PARAGRAPH))
        for index in range(num_paragraphs)
    ]
    context = "\n\n".join(paragraphs)
    if not training:
        return {"input": question, "context": context, "answers": [gold], "num_docs": num_paragraphs, "index": number}
    return {
        "prompt": [{"role": "user", "content": question}],
        "context": context,
        "reward_model": {"style": "rule", "ground_truth": [gold]},
        "extra_info": {"index": number, "question": question, "num_docs": num_paragraphs},
    }
