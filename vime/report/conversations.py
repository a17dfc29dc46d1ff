"""Rows of a tracker's table: prompts, replies and rewards of some rollouts of a step, or items of an evaluation."""

import itertools
from dataclasses import dataclass
from typing import Any

from vime.files.record import PROMPT, REPLY, Recorder
from vime.types import Group, Prompt, Sample

COLUMNS = ["step", "dataset", "row", "reward", "stop_reason", "turns", "error"]
SHOWN_CHARACTERS = 20_000
"""Characters shown of one conversation; the middle of a longer one is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows under `COLUMNS`. Example: `Table(rows=[[12, "train", 7, 1.0, "answered", "user: 2+2?\\n\\nreply: 4", ""]])`."""

    rows: list[list[Any]]


def of_rollouts(step: int, groups: list[Group], recorder: Recorder, *, num_rollouts: int) -> Table:
    """A table of the first rollout of each group, then of the second, and so on, until there are enough."""
    rounds = itertools.zip_longest(*([(group, rollout) for rollout in group.rollouts] for group in groups))
    chosen = itertools.islice((pair for pairs in rounds for pair in pairs if pair is not None), num_rollouts)
    rows = []
    for group, rollout in chosen:
        said = [f"{turn['kind']}: {turn['text']}" for sample in rollout.samples for turn in _turns(sample, recorder)]
        about = [step, group.prompt.dataset, group.prompt.row, rollout.reward, rollout.stop_reason.value]
        rows.append([*about, _conversation(group.prompt.messages, said), rollout.error])
    return Table(rows=rows)


def of_items(step: int, items: list[dict[str, Any]], prompts: list[Prompt], *, num_items: int) -> Table:
    """A table of the first items of an evaluation, with the last reply of each sequence; `prompts` are in the same order."""
    rows = []
    for item, prompt in itertools.islice(zip(items, prompts), num_items):
        said = [f"{REPLY}: {sample['response']}" for sample in item["samples"]]
        about = [step, item["dataset"], item["index"], item["strict"], item["stop_reason"]]
        rows.append([*about, _conversation(prompt.messages, said), item["error"]])
    return Table(rows=rows)


def _turns(sample: Sample, recorder: Recorder) -> list[dict[str, Any]]:
    """The replies and the text between them; only the last reply of a model whose tokens have no texts here."""
    found = recorder.turns(sample)
    return [t for t in found if t["kind"] != PROMPT] if "text" in found[0] else [{"kind": REPLY, "text": sample.response}]


def _conversation(messages: list[dict[str, Any]], said: list[str]) -> str:
    text = "\n\n".join([*(f"{message.get('role', '')}: {message.get('content', '')}" for message in messages), *said])
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters …\n{text[-half:]}"
