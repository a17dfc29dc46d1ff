"""Search-R1's rehearsal: searches, answers that are right and wrong, turns that do neither, and every limit."""

from collections.abc import Iterable
from pathlib import Path

from agentic.search_r1.config import SearchR1Config
from vime.config import PromptStyle, RunConfig
from vime.rehearsal.script import Asked, Rehearsal, Row, ScriptedReply

ACTS = ("search_then_right", "wrong", "never_answers", "invalid_then_right", "right_at_once", "turn_cut")
SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wiki", "musique", "bamboogle")
PLACES = ("Bonn", "Lyon")


class SearchR1Rehearsal(Rehearsal):
    """Prepared rows of the seven sets, two passages, and a script of six acts."""

    @classmethod
    def files(cls, config: RunConfig) -> dict[str, list[Row]]:
        """The training set and the seven evaluation sets as they are prepared, and passages."""
        names = {f"search_r1_{name}.jsonl": name for name in ("train", *SETS)}
        found = {file: [_row(name, number) for number in range(2)] for file, name in names.items()}
        corpus = Path(config.retrieval.corpus or "passages.jsonl").name
        texts = [f"The older bridge of pair {number} is in {place}." for number, place in enumerate(PLACES)] * 2
        return found | {corpus: [{"id": str(n), "title": f"Bridges {n}", "text": text} for n, text in enumerate(texts)]}

    def reply(self, asked: Asked) -> ScriptedReply | None:
        """The next turn of the act."""
        if SearchR1Config.of(self.config).prompt_style is PromptStyle.tiny:
            return None  # its model can play
        act, gold = self.act(asked, ACTS), self.gold_of(asked.prompt)
        right = ScriptedReply(text=f"<think> That is it. </think> <answer> {gold} </answer>")
        search = ScriptedReply(text="<think> I look it up. </think> <search> older bridge </search>")
        if act == "right_at_once" or (act != "never_answers" and asked.turn):
            return right
        if act == "wrong":
            return ScriptedReply(text="<think> I guess. </think> <answer> nowhere </answer>")
        if act == "turn_cut":
            return ScriptedReply(text="<think> I think about it for as long as", cut=True)
        return ScriptedReply(text="I do not know the form.") if act == "invalid_then_right" else search

    def expected(self) -> dict[str, list[str]]:
        """Kinds of turns and answers, and the stop reasons."""
        method = SearchR1Config.of(self.config)
        turns = ["search", "gold answer found", "invalid turn"] if method.max_turns else []
        return {"turn": turns, "stop reason": ["answered", "turn_limit"], "answer": ["right", "wrong"]}

    def occurred(self, rollout: Row) -> Iterable[tuple[str, str]]:
        """The rollout's searches, its invalid turns and its answer."""
        about = rollout["samples"][-1]["metadata"] if rollout["samples"] else {}
        yield from (("turn", "search") for _ in about.get("queries", ()))
        yield from (("turn", "gold answer found") for holds in about.get("holds_gold", ()) if holds)
        yield from (("turn", "invalid turn") for _ in range(about.get("invalid_turns", 0)))
        yield "answer", "right" if rollout["metrics"].get("strict") else "wrong"


def _row(name: str, number: int) -> Row:
    return {
        "question": f"{name}: where is the older bridge of pair {number}",
        "answers": [PLACES[number], f"{PLACES[number]} city"],
    }
