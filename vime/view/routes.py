"""The server's answers under `/api/`: each route by its name, with the parameters that it takes from the address."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import Any

from starlette.datastructures import QueryParams

from vime.view.comparison import changed_items, compare_runs, paired
from vime.view.index_entry import EVALUATION, TRAINING
from vime.view.overview import log_end, metrics_after, overview
from vime.view.progress import progress
from vime.view.query import Filters, find
from vime.view.rollout_page import read_rollout, read_tokens, side_by_side
from vime.view.runs import RUNNING, Run, Runs

PAGE_SIZE = 50
MAX_COMPARED = 24
Words = QueryParams


def list_runs(runs: Runs, words: Words) -> Any:
    """The runs by name, with their states and how far they have come."""
    return {"runs": [{"name": run.name, "state": run.state(), **asdict(progress(run))} for run in runs.all()]}


def changes(runs: Runs, words: Words) -> Any:
    """A text for each run in question that changes when the run does; without any, the same of all that are at work."""
    chosen = _runs(runs, words)
    if chosen:
        return {run.name: run.fingerprint() for run in chosen}
    states = {run: run.state() for run in runs.all()}
    return {run.name: run.fingerprint() if state == RUNNING else state for run, state in states.items()}


def run_overview(runs: Runs, words: Words) -> Any:
    """Everything of the overview but curves."""
    return overview(_run(runs, words))


def metrics(runs: Runs, words: Words) -> Any:
    """Rows of `metrics.jsonl` from a place on."""
    return metrics_after(_run(runs, words), _integer(words, "offset"), _integer(words, "inode"))


def log(runs: Runs, words: Words) -> Any:
    """The end of a log."""
    return {"text": log_end(_run(runs, words), words.get("name", ""))}


def rollouts(runs: Runs, words: Words) -> Any:
    """A page of the rollouts that pass filters; `more` says that files are still being read."""
    run = _run(runs, words)
    index, more = run.indexed()
    filters = Filters.read({name: value for name, value in words.items() if name != "run"})
    with closing(index.connection()) as database:
        page = find(
            database,
            filters,
            sort=words.get("sort", ""),
            descending=words.get("order", "down") != "up",
            limit=PAGE_SIZE,
            offset=PAGE_SIZE * _integer(words, "page"),
        )
    return {**asdict(page), "page_size": PAGE_SIZE, "more": more, "problems": index.problems}


def rollout_facets(runs: Runs, words: Words) -> Any:
    """The values to filter by."""
    return _run(runs, words).facets()


def rollout(runs: Runs, words: Words) -> Any:
    """One rollout, without the numbers of its tokens."""
    return read_rollout(_run(runs, words), _integer(words, "id"))


def tokens(runs: Runs, words: Words) -> Any:
    """The tokens of one sample of a rollout."""
    return read_tokens(_run(runs, words), _integer(words, "id"), _integer(words, "sample"))


def group(runs: Runs, words: Words) -> Any:
    """The rollouts of a group."""
    filters = Filters(kind=TRAINING, group_index=_integer(words, "group"))
    return {"rollouts": side_by_side(_run(runs, words), filters)}


def item(runs: Runs, words: Words) -> Any:
    """All evaluations of an item."""
    filters = Filters(kind=EVALUATION, dataset=words.get("dataset", ""), item=_integer(words, "item"))
    return {"rollouts": side_by_side(_run(runs, words), filters)}


def items(runs: Runs, words: Words) -> Any:
    """The items that two rows of a run score differently."""
    dataset, first, second = (words.get(name, "") for name in ("dataset", "first", "second"))
    return changed_items(_run(runs, words), dataset=dataset, first=first, second=second)


def compare(runs: Runs, words: Words) -> Any:
    """Several runs side by side."""
    return compare_runs(_runs(runs, words)[:MAX_COMPARED])


def paired_differences(runs: Runs, words: Words) -> Any:
    """The differences of several runs to the first, item by item; each interval takes some tenths of a second."""
    chosen = _runs(runs, words)[:MAX_COMPARED]
    return {"paired": [pair for run in chosen[1:] for pair in paired(chosen[0], run)]}


ROUTES: dict[str, Callable[[Runs, Words], Any]] = {
    "runs": list_runs,
    "changes": changes,
    "run": run_overview,
    "metrics": metrics,
    "log": log,
    "rollouts": rollouts,
    "facets": rollout_facets,
    "rollout": rollout,
    "tokens": tokens,
    "group": group,
    "item": item,
    "items": items,
    "compare": compare,
    "paired": paired_differences,
}


def _run(runs: Runs, words: Words) -> Run:
    return runs.get(words.get("run", ""))


def _runs(runs: Runs, words: Words) -> list[Run]:
    return [runs.get(name) for name in dict.fromkeys(words.getlist("run"))]


def _integer(words: Words, name: str) -> int:
    """A number of the address, 0 if it is not there. Raises ValueError, naming it, if it is not a number."""
    word = words.get(name, "0")
    try:
        return int(word)
    except ValueError:
        raise ValueError(f"{name} is no integer: {word!r}") from None
