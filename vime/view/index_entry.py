"""The index's entry of one line of a run's files, to find it again."""

import re
from dataclasses import dataclass
from typing import Any

from vime.files.record import ENVIRONMENT, REPLY
from vime.files.serialization import from_json

TRAINING, EVALUATION = "training", "evaluation"
TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
TOOL_NAME = re.compile(r'"name"\s*:\s*"([\w.:/-]{1,100})"')


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexEntry:
    """One rollout, of training or of an evaluation.

    Example of an item of an evaluation: `IndexEntry(kind="evaluation", step=60, dataset="docs_20", condition="trained", item=7,
    run=2, label="", group_index=None, rollout_id=None, reward=1.0, advantage=None, stop_reason="answered", failed=False,
    num_turns=4, num_tokens=96, seconds=1.2, tools=("search",), text="…")`.
    """

    kind: str
    step: int
    """The step that trained it; for an evaluation, the number of steps that its weights had been trained."""
    dataset: str
    condition: str
    """The row of the table of scores (`scaffold`, `trained`, …); empty in training."""
    item: int
    """Number of the row in the data set."""
    run: int | None
    label: str
    """The name of an evaluation during training (`step20`); otherwise empty."""
    group_index: int | None
    rollout_id: int | None
    reward: float
    """The reward; for an evaluation, the strict score, 0 to 1."""
    advantage: float | None
    stop_reason: str
    failed: bool
    num_turns: int
    num_tokens: int
    """Tokens of all replies."""
    seconds: float | None
    tools: tuple[str, ...]
    text: str
    """The text that a search looks at: the messages it began with, its replies, the text between them, its error."""


def read_line(data: bytes) -> dict[str, Any]:
    """A line of a file; if the agent failed, `samples` are the model's replies until then, and `unfinished` is true."""
    line = from_json(data)
    return {**line, "samples": line["unfinished"], "unfinished": True} if line.get("unfinished") else line


def entry_of(line: dict[str, Any]) -> IndexEntry:
    """The entry of a line of `rollouts/*.jsonl` or `evaluation/*.jsonl`."""
    is_item = "strict" in line
    samples = line["samples"]
    advantages = [sample["advantage"] for sample in samples if sample.get("advantage") is not None]
    replies = [turn for sample in samples for turn in sample.get("turns", ()) if turn["kind"] == REPLY]
    return IndexEntry(
        kind=EVALUATION if is_item else TRAINING,
        step=line["version"] if is_item else line["step"],
        dataset=line["dataset"],
        condition=line["row"] if is_item else "",
        item=line["index"] if is_item else line["row"],
        run=line["run"] if is_item else None,
        label=line.get("evaluation", ""),
        group_index=line.get("group_index"),
        rollout_id=line.get("rollout_id"),
        reward=line["strict"] if is_item else line["reward"],
        advantage=sum(advantages) / len(advantages) if advantages else None,
        stop_reason=line["stop_reason"],
        failed=bool(line["failed"]) if is_item else line["status"] in ("failed", "aborted"),
        num_turns=len(replies) or len(samples),
        num_tokens=sum(t["num_tokens"] for t in replies) if replies else sum(s.get("response_length", 0) for s in samples),
        seconds=line.get("generation_seconds"),
        tools=tools_of(samples),
        text=text_of(line),
    )


def tools_of(samples: list[dict[str, Any]]) -> tuple[str, ...]:
    """Names of the tools that the replies call, and of those that the agent counted in its `tool_calls`."""
    found: set[str] = set()
    for sample in samples:
        counted = sample["metadata"].get("tool_calls")
        found.update(map(str, counted) if isinstance(counted, dict) else ())
        for text in _replies(sample):
            found.update(name for call in TOOL_CALL.findall(text) for name in TOOL_NAME.findall(call)[:1])
    return tuple(sorted(found))


def text_of(line: dict[str, Any]) -> str:
    """The text that a search looks through."""
    parts = [content for message in line.get("messages", ()) if isinstance(content := message.get("content"), str)]
    for sample in line["samples"]:
        between = [turn.get("text", "") for turn in sample.get("turns", ()) if turn["kind"] in (REPLY, ENVIRONMENT)]
        parts += between or [sample["response"]]
    return "\n".join([*parts, line["error"]])


def _replies(sample: dict[str, Any]) -> list[str]:
    turns = sample.get("turns")
    return [t.get("text", "") for t in turns if t["kind"] == REPLY] if turns else [sample["response"]]
