"""One rollout as a page reads it: its line, its samples as a tree of branches, its tokens, and where its time went."""

import codecs
import json
from contextlib import closing
from typing import Any

import numpy as np

from vime.files.record import TRAINER, VERSIONS
from vime.model.pieces import TokenPieces
from vime.report.run_directory import VOCABULARY
from vime.report.trace_file import FIRST_GROUP
from vime.types import COLUMNS, Column
from vime.view.index_entry import read_line
from vime.view.query import Filters, find, place_of
from vime.view.runs import Run

NUMBERS = {**COLUMNS, TRAINER: np.float32}
"""Numbers of each token, which a page asks for sample by sample."""
MAX_SHOWN = 256
"""Rollouts of a group, or evaluations of an item, that are shown together."""


def read_rollout(run: Run, rollout: int) -> dict[str, Any]:
    """The line of an entry as in the file, but without the numbers of its tokens, with its branches and its timeline.

    Raises FileNotFoundError if there is no such entry.
    """
    line = line_of(run, rollout)
    samples = [{key: value for key, value in sample.items() if key not in NUMBERS} for sample in line["samples"]]
    recorded = [[name for name in NUMBERS if name in sample] for sample in line["samples"]]
    return {
        "line": {**line, "samples": samples},
        "recorded": recorded,
        "branches": branches(line["samples"]),
        "timeline": timeline(run, line),
    }


def line_of(run: Run, rollout: int) -> dict[str, Any]:
    """The whole line of an entry. Raises FileNotFoundError if there is no such entry, or if its file has changed since."""
    index, _ = run.indexed()
    with closing(index.connection()) as database:
        place = place_of(database, rollout)
    if place is None:
        raise FileNotFoundError(f"{run.name} has no rollout {rollout}")
    name, start, size = place
    with run.file(name).open("rb") as file:
        file.seek(start)
        return read_line(file.read(size))


def read_tokens(run: Run, rollout: int, sample: int) -> dict[str, Any]:
    """Texts and numbers of the tokens of one sample; None for values that are not recorded.

    `num_prompt` tokens come first; each list of numbers is of those after them. Raises FileNotFoundError if the rollout has no
    such sample.
    """
    line = line_of(run, rollout)
    if not 0 <= sample < len(line["samples"]):
        raise FileNotFoundError(f"rollout {rollout} has no sample {sample}")
    row = line["samples"][sample]
    numbers = {name: _column(row, name) for name in NUMBERS}
    tokens = numbers["tokens"]
    if tokens is not None and isinstance(row.get(VERSIONS), int):
        numbers[VERSIONS] = [row[VERSIONS]] * row["response_length"]
    return {
        **numbers,
        "num_prompt": row.get("num_prompt_tokens"),
        "advantage": row.get("advantage"),
        "texts": None if tokens is None else _texts(run, tokens),
    }


def branches(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The earlier sample with which each sample shares the longest beginning, and the length of this beginning.

    Example: `[{"parent": None, "shared": 0, "unit": "tokens"}, {"parent": 0, "shared": 512, "unit": "tokens"}]`: the second
    continues the first after 512 tokens. Sequences that share less than a whole prompt are not branches of one another. Without
    recorded tokens, characters of the turns are compared instead.
    """
    with_tokens = all("tokens" in sample for sample in samples)
    of_samples = [_beginning(sample, with_tokens) for sample in samples]
    of_prompts = [_prompt_length(sample, with_tokens) for sample in samples]
    found: list[dict[str, Any]] = []
    for number, own in enumerate(of_samples):
        shared = [_num_shared(own, other) for other in of_samples[:number]]
        shared = [num if num >= whole > 0 else 0 for num, whole in zip(shared, of_prompts)]
        best = max(shared, default=0)
        is_branch = best > 0 and number > 0
        found.append(
            {
                "parent": shared.index(best) if is_branch else None,
                "shared": best,
                "unit": "tokens" if with_tokens else "characters",
            }
        )
    return found


def timeline(run: Run, line: dict[str, Any]) -> list[dict[str, Any]]:
    """The spans of a rollout that was traced: name, kind, start and duration in seconds; empty if it was not."""
    if line.get("rollout_id") is None:
        return []
    process = FIRST_GROUP + line["group_index"]
    events: list[dict[str, Any]] = []
    for path in [*sorted(run.path.glob("trace-*.json")), run.path / "trace.json"]:
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:  # one event a line, so that only those of the group are parsed
                mark = f'"pid": {process},'.encode()
                events += [json.loads(text.rstrip(b",\n")) for text in file if mark in text and text.endswith(b",\n")]
    wanted = f"rollout {line['rollout_id']}:"
    tracks = {e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"].startswith(wanted)}
    spans = [event for event in events if event["ph"] == "X" and event["tid"] in tracks]
    begin = min((event["ts"] for event in spans), default=0)
    return [
        {
            "name": event["name"],
            "kind": event["cat"],
            "start": (event["ts"] - begin) / 1e6,
            "seconds": event["dur"] / 1e6,
            "details": event["args"],
        }
        for event in sorted(spans, key=lambda event: event["ts"])
    ]


def side_by_side(run: Run, filters: Filters) -> list[dict[str, Any]]:
    """Entries that pass the filters, oldest first, each with its question, its last reply and its error."""
    index, _ = run.indexed()
    with closing(index.connection()) as database:
        rows = find(database, filters, descending=False, limit=MAX_SHOWN).rows
    found = []
    for row in rows:
        line = line_of(run, row["id"])
        replies = [sample.get("response", "") for sample in line["samples"]]
        turns = [
            turn.get("text", "") for sample in line["samples"] for turn in sample.get("turns", ()) if turn["kind"] == "reply"
        ]
        text = next((reply for reply in reversed(replies) if reply), turns[-1] if turns else "")
        about = {
            "messages": line.get("messages", []),
            "metrics": line.get("metrics", {}),
            "error": line["error"],
            "temperature": line.get("temperature"),
        }
        found.append({**row, **about, "response": text, "num_samples": len(replies)})
    return found


def _beginning(sample: dict[str, Any], with_tokens: bool) -> np.ndarray:
    if with_tokens:
        return Column.read(sample["tokens"], np.int32).array
    text = "".join(turn.get("text", "") for turn in sample.get("turns", ()))
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _prompt_length(sample: dict[str, Any], with_tokens: bool) -> int:
    if with_tokens:
        return sample["num_prompt_tokens"]
    return sum(len(turn.get("text", "")) for turn in sample.get("turns", ()) if turn["kind"] == "prompt")


def _num_shared(first: np.ndarray, second: np.ndarray) -> int:
    size = min(len(first), len(second))
    different = np.flatnonzero(first[:size] != second[:size])
    return int(different[0]) if different.size else size


def _column(row: dict[str, Any], name: str) -> list[Any] | None:
    value = row.get(name)
    if value is None or isinstance(value, int):
        return None
    return Column.read(value, NUMBERS[name]).array.tolist() if NUMBERS[name] != np.float32 else _exact(value)


def _exact(value: Any) -> list[float]:
    """Float32 values as the shortest decimals that represent them, as the file's own numbers would be written."""
    array = Column.read(value, np.float32).array
    return [float(str(number)) for number in array]


def _texts(run: Run, tokens: list[int]) -> list[str] | None:
    """The text of each token; a character that several tokens share belongs to the last of them."""
    try:
        file = run.file(VOCABULARY)
    except FileNotFoundError:
        return None
    pieces = TokenPieces.from_list(json.loads(file.read_text(encoding="utf-8")))
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return [decoder.decode(piece) for piece in pieces.bytes_of(tokens)]
