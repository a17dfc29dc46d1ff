"""The rehearsal of classification: right and wrong labels, a label in other words, and completions that are cut off."""

from collections.abc import Iterable
from pathlib import Path

from agentic.classification.config import ClassificationConfig
from vime.config import RunConfig
from vime.rehearsal.script import Asked, Rehearsal, Row, ScriptedReply

ACTS = ("right", "wrong", "no_label", "cut")


class ClassificationRehearsal(Rehearsal):
    """Two texts for each file, and a script of four acts."""

    @classmethod
    def files(cls, config: RunConfig) -> dict[str, list[Row]]:
        """Prepared rows, with the first two labels."""
        labels = ClassificationConfig.of(config).labels[:2]
        paths = [Path(dataset.path).name for dataset in (config.data.train, *config.data.evaluation) if dataset.path]
        return {
            name: [{"question": f"{name}: text number {n}", "answer": label} for n, label in enumerate(labels)] for name in paths
        }

    def reply(self, asked: Asked) -> ScriptedReply:
        """A completion, by the act of the rollout."""
        act, gold, labels = self.act(asked, ACTS), self.gold_of(asked.prompt), ClassificationConfig.of(self.config).labels
        wrong = next((label for label in labels if label != gold), "nothing")
        texts = {"right": f" {gold}", "wrong": f" {wrong}", "no_label": " x"}
        return ScriptedReply(text=texts.get(act, " y"), cut=act == "cut")

    def expected(self) -> dict[str, list[str]]:
        """The kinds of completions and the stop reasons."""
        return {"completion": ["right", "wrong label", "no label"], "stop reason": ["answered", "token_limit"]}

    def occurred(self, rollout: Row) -> Iterable[tuple[str, str]]:
        """The rollout's completion."""
        metrics = rollout["metrics"]
        yield "completion", "right" if metrics.get("strict") else "wrong label" if metrics.get("form") else "no label"
