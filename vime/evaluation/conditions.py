"""The rows of an evaluation's table: which model is asked, with or without the agent, and the row's label.

`single_turn` asks the model once, `scaffold` runs the agent on the model as it is, `trained` on the model after training.
`single_turn@NAME` and `scaffold@NAME` put another model of `serving.models` in the trained one's place: a baseline.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from vime.config import Before, Mode, RunConfig

SINGLE_TURN, SCAFFOLD, TRAINED = "single_turn", "scaffold", "trained"
LABELS = {SINGLE_TURN: "single turn", SCAFFOLD: "untrained scaffold", TRAINED: "trained scaffold"}
"""Rows of every table, in order, as they are shown."""
AT = "@"


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRow:
    """One row; `model` is None for the trained model. Example: `EvaluationRow(way="single_turn", model="gpt")`."""

    way: str
    model: str | None = None

    @classmethod
    def of(cls, name: str) -> "EvaluationRow":
        """The row of a name like `scaffold` or `scaffold@gpt`."""
        way, _, model = name.partition(AT)
        return cls(way=way, model=model or None)


def rows_of(config: RunConfig) -> list[str]:
    """The rows that this run measures.

    An evaluation by itself has one checkpoint: its scaffold is called `scaffold`, or `trained` if only that is asked for.
    """
    rows = config.evaluation.rows
    if config.mode is Mode.eval and SCAFFOLD in rows:
        return [row for row in rows if row != TRAINED]
    return list(rows)


def table_rows(config: RunConfig) -> list[str]:
    """The rows that this run measures for its table; only the trained one without a full evaluation before training."""
    rows = rows_of(config)
    is_before = config.mode is Mode.eval or config.evaluation.before is Before.full
    return rows if is_before else [row for row in rows if row == TRAINED]


def num_item_runs(config: RunConfig, rows: list[str]) -> int | None:
    """Number of runs of all items for these rows; None if the size of a data set is not known before it is read.

    The untrained scaffold is also run once at each of `evaluation.extra_temperatures`.
    """
    settings, sizes = config.evaluation, [dataset.num_items for dataset in config.data.evaluation]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    return sum(known) * (len(rows) * settings.num_runs + len(settings.extra_temperatures) * (SCAFFOLD in rows))


def needs_trained_model(config: RunConfig) -> bool:
    """True if any row asks the trained model, which is then served."""
    return (
        config.mode is not Mode.eval or any(EvaluationRow.of(row).model is None for row in rows_of(config)) or not rows_of(config)
    )


def shown_rows(mode: str, measured: Iterable[str] = ()) -> dict[str, str]:
    """Rows of a table and their names: the usual ones, measured or not, and the baselines that were measured.

    An evaluation by itself does not know whether its checkpoint was trained.
    """
    found = list(dict.fromkeys(measured))
    usual = {SINGLE_TURN: LABELS[SINGLE_TURN], SCAFFOLD: "scaffold"} if mode == Mode.eval.value else dict(LABELS)
    if mode == Mode.eval.value and TRAINED in found:
        usual = {row: label for row, label in {**usual, TRAINED: LABELS[TRAINED]}.items() if row in found}
    return usual | {row: label_of(row) for row in found if row not in usual}


def label_of(row: str) -> str:
    """`scaffold@gpt` is shown as `gpt, scaffold`."""
    parsed = EvaluationRow.of(row)
    if parsed.model is None:
        return LABELS.get(row, row)
    return f"{parsed.model}, {'single turn' if parsed.way == SINGLE_TURN else 'scaffold'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run over one data set.

    Example: `Job(dataset="docs_24", row="trained", run=0, temperature=1.0, label="step20")`; `label` distinguishes evaluations of
    the same row that enter no table, for example by training step.
    """

    dataset: str
    row: str
    run: int
    temperature: float
    label: str = ""

    @property
    def file_name(self) -> str:
        """Name of the JSONL file that holds the finished items."""
        label = f"-{self.label}" if self.label else ""
        return f"{self.dataset}-{self.row}{label}-t{self.temperature:g}-run{self.run}.jsonl"
