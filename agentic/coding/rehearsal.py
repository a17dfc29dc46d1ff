"""The coding agent's rehearsal: every tool, sub-agents, summaries, and every way in which a rollout ends.

Its repositories are those of the laptop task, in the columns of the public data sets.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentic.coding.agent_result import Ending
from agentic.coding.config import OWN, CodingConfig
from agentic.coding.prompts import FULL
from agentic.coding.tiny.task import generate_rows
from vime.config import PromptStyle, RunConfig
from vime.data.split import Split
from vime.rehearsal.script import Asked, Rehearsal, Row, ScriptedReply

ACTS = (
    "solves",
    "explores",
    "no_call",
    "submits_nothing",
    "turns",
    "cut",
    "time",
    "summarizes",
    "context_full",
    "wrong_calls",
    "edits_tests",
)
PATCHED = re.compile(r"^--- a/(\S+)\n.*?^-    (.*?)\n\+    (.*?)$", re.DOTALL | re.MULTILINE)
PRINTS = "seq 1 {last}"
SUMMARIZED, FULL_CONTEXT = 2000, 4000
"""Last numbers that commands print: three such results outgrow the context, or two leave no room for a reply."""


class CodingRehearsal(Rehearsal):
    """Two generated repositories for each file, and a script of eleven acts."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._turns: Counter[tuple[str, str]] = Counter()
        self._tasks: dict[str, Row] | None = None

    @classmethod
    def files(cls, config: RunConfig) -> dict[str, list[Row]]:
        """Rows of SWE-bench's columns, with the repository's files in them."""
        splits: dict[str | None, Split] = {dataset.path: "eval" for dataset in config.data.evaluation}
        splits[config.data.train.path] = "train"
        return {
            Path(path).name: [_row(row) for row in generate_rows(split=split, num_items=2, seed=0)]
            for path, split in splits.items()
            if path
        }

    def reply(self, asked: Asked) -> ScriptedReply | None:
        """The agent's next reply, or that of a sub-agent, by the act of the rollout."""
        method = CodingConfig.of(self.config)
        if method.prompt_style is PromptStyle.tiny or method.agent != OWN:
            return None  # its model can play; a program is rehearsed by tools/solve_with_programs.py
        act, path, old, new = self.act(asked, ACTS), *self._solution(asked.prompt)
        if FULL.explorer[:40] in asked.prompt:
            looked = self._next(asked, "explorer")
            return ScriptedReply(text=call_text("view", path=path) if looked == 0 else f"The function is in {path}.")
        if FULL.summarize[:40] in asked.prompt[-2000:]:
            return ScriptedReply(text=f"The fault is in {path}; it has still to be edited.")
        if "Reply with a patch" in asked.prompt:
            return ScriptedReply(text=f"```diff\n--- a/{path}\n+++ b/{path}\n@@ -1,1 +1,1 @@\n-{old}\n+{new}\n```")
        number = self._next(asked, "main")
        edit, submit = call_text("edit", path=path, old=old, new=new), call_text("submit")
        scripts = {
            "solves": [call_text("view", path=path, first_line=1), call_text("shell", command="ls"), edit, submit],
            "explores": [call_text("explore", question=f"Where is {path}?"), edit, submit],
            "no_call": ["I am done."],
            "submits_nothing": [submit],
            "turns": [call_text("shell", command="true")] * (method.limits.turns + 1),
            "cut": ["I look at the"],
            "time": [call_text("shell", command="true")] * 2,
            "summarizes": [call_text("shell", command=PRINTS.format(last=SUMMARIZED))] * 3 + [edit, submit],
            "context_full": [call_text("shell", command=PRINTS.format(last=FULL_CONTEXT))] * 9,
            "wrong_calls": [call_text("fly"), call_text("view", path="nowhere.py"), submit],
            "edits_tests": [call_text("edit", path="tests/test_mine.py", old="", new="def test_mine(): pass\n"), edit, submit],
        }
        replies = scripts[act]
        text = replies[min(number, len(replies) - 1)]
        return ScriptedReply(text=text, cut=act == "cut", seconds=method.limits.seconds if act == "time" else 0.0)

    def expected(self) -> dict[str, list[str]]:
        """Tools, kinds of sequences, endings and stop reasons."""
        if CodingConfig.of(self.config).agent != OWN:
            return {}
        endings = [ending.value for ending in Ending if ending is not Ending.PROGRAM_FAILED]
        tools = ["shell", "view", "edit", "explore", "submit", "unknown", "invalid"]
        stops = ["answered", "turn_limit", "token_limit", "time_limit"]
        return {
            "tool": tools,
            "sequence": ["main", "subagent", "compacted"],
            "ending": endings,
            "stop reason": stops,
            "patch": ["resolved", "not resolved"],
        }

    def occurred(self, rollout: Row) -> Iterable[tuple[str, str]]:
        """The rollout's tools, sequences and ending, and whether the hidden tests accept its patch."""
        about = rollout["samples"][-1]["metadata"] if rollout["samples"] else {}
        yield from (("tool", name) for name, times in about.get("tool_calls", {}).items() for _ in range(times))
        yield from (("sequence", name) for name, times in about.get("segments", {}).items() for _ in range(times))
        if "ending" in about:
            yield "ending", about["ending"]
        yield "patch", "resolved" if rollout["metrics"].get("resolved") else "not resolved"

    def _next(self, asked: Asked, role: str) -> int:
        self._turns[asked.session, role] += 1
        return self._turns[asked.session, role] - 1

    def _solution(self, prompt: str) -> tuple[str, str, str]:
        """File, wrong line and right line of the task whose statement is in a prompt."""
        if self._tasks is None:
            found = [row for rows in self._rows() for row in rows]
            self._tasks = {row["problem_statement"]: row for row in found}
        row = next((row for statement, row in self._tasks.items() if statement in prompt), None)
        patch = PATCHED.search(row["patch"]) if row else None
        return (patch[1], patch[2], patch[3]) if patch else ("README.md", "old", "new")

    def _rows(self) -> Iterable[list[Row]]:
        for dataset in (self.config.data.train, *self.config.data.evaluation):
            if dataset.path and Path(dataset.path).suffix == ".jsonl":
                yield [json.loads(line) for line in Path(dataset.path).read_text(encoding="utf-8").splitlines()]


def call_text(tool: str, **arguments: Any) -> str:
    """A call as the model writes it, in the form of the parser `hermes`."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def _row(row: Row) -> Row:
    """A generated row with SWE-bench's name for its problem."""
    return {
        "problem_statement": row["prompt"],
        **{name: value for name, value in row.items() if name not in ("prompt", "kind", "answer")},
    }
