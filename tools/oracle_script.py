"""Scripted replies for `oracle.py`, the same in every run: a rollout's part follows from its place, not from who asks first."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from agentic.calculator import ANSWER, CALCULATION
from vime.config import RunConfig
from vime.rehearsal.script import Asked, Rehearsal, Row, ScriptedReply

ACTS = ("calculates", "wrong", "never_answers", "no_expression", "no_line")


class Calculator(Rehearsal):
    """Word problems: calculations, answers that are right and wrong, and lines that end a rollout."""

    @classmethod
    def files(cls, config: RunConfig) -> dict[str, list[Row]]:
        """Prepared rows."""
        paths = [Path(dataset.path).name for dataset in (config.data.train, *config.data.evaluation) if dataset.path]
        return {
            name: [{"question": f"{name}: pat had {n} nuts and found 4 . how many ?", "answer": str(n + 4)} for n in (2, 3)]
            for name in paths
        }

    def reply(self, asked: Asked) -> ScriptedReply:
        """The next line, by the act of the rollout."""
        act, gold = self.act(asked, ACTS), self.gold_of(asked.prompt)
        if act == "never_answers" or (act == "calculates" and not asked.turn):
            return ScriptedReply(text=f"{CALCULATION} {gold} + 0 =")
        lines = {"wrong": f"{ANSWER} 1{gold}\n", "no_expression": f"{CALCULATION} nuts =", "no_line": "I count them.\n"}
        return ScriptedReply(text=lines.get(act, f"{ANSWER} {gold}\n"))

    def expected(self) -> dict[str, list[str]]:
        """Calculations, answers and stop reasons."""
        return {"line": ["calculation"], "answer": ["right", "wrong"], "stop reason": ["answered", "turn_limit", "malformed"]}

    def occurred(self, rollout: Row) -> Iterable[tuple[str, str]]:
        """The rollout's calculations and its answer."""
        metrics = rollout["metrics"]
        if metrics.get("calculated"):
            yield "line", "calculation"
        if metrics.get("answered"):
            yield "answer", "right" if metrics["strict"] else "wrong"

    def act(self, asked: Asked, acts: Sequence[str]) -> str:
        """The part by the group's slot and the place in it: a session is named `asdiv_train-SLOT-MEMBER-ab12cd34-ATTEMPT`."""
        _, slot, member, _, _ = asked.session.rsplit("-", 4)
        return acts[(int(slot) * self.config.rollout.num_samples_per_prompt + int(member)) % len(acts)]
