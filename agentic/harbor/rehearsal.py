"""The rehearsal of Harbor's tasks: an agent that solves, one that does nothing, one that writes its own reward, and others.

Where the tasks of the run are not on this machine there are two small ones; the agent's other tools and endings are those of the
coding agent, whose rehearsal plays them.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentic.coding.prompts import FULL
from agentic.coding.rehearsal import call_text
from agentic.harbor.config import ROWS, HarborConfig
from agentic.harbor.rows import folders_of
from agentic.harbor.rows import rows as rows_of
from vime.config import PromptStyle, RunConfig
from vime.rehearsal.script import Asked, Rehearsal, Row, ScriptedReply

ACTS = ("solves", "explores", "no_call", "submits_nothing", "turns", "rewards_itself", "wrong_calls")
WORDS = ("Oslo", "Bonn")
ASKED = re.compile(r"Write the word (\w+) to answer\.txt")
_FILES = {
    "task.toml": "[agent]\ntimeout_sec = 600.0\n\n[verifier]\ntimeout_sec = 60.0\n",
    "instruction.md": "Write the word {word} to answer.txt in your working folder.\n",
    "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY notes.txt .\n",
    "environment/notes.txt": "There is no answer yet.\n",
    "tests/test.sh": "grep -qsx {word} /app/answer.txt && reward=1\necho ${reward:-0} > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "echo {word} > answer.txt\n",
}


def rows(num_items: int, seed: int, *, folder: str) -> list[dict[str, Any]]:
    """Writes two small tasks to a folder, and returns their rows."""
    for word in WORDS:
        write_task(Path(folder, word.lower()), word)
    return rows_of(num_items, seed, folder=folder)


def write_task(folder: Path, word: str, **files: str) -> Path:
    """Writes a task whose solution is a file with a word; `files` replace some of its own, by path."""
    for name, text in {**{name: text.replace("{word}", word) for name, text in _FILES.items()}, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


class HarborRehearsal(Rehearsal):
    """A script of seven acts."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._turns: Counter[tuple[str, str]] = Counter()

    @classmethod
    def adapt(cls, config: RunConfig) -> list[str]:
        """Two small tasks in place of those of the run, if these are not here."""
        names = list[str]()
        for dataset in (config.data.train, *config.data.evaluation):
            folder = str(dataset.generator_args.get("folder"))
            if dataset.generator == ROWS and not folders_of(folder):
                dataset.generator, dataset.generator_args = f"{__name__}.rows", {"folder": f"{folder}/{dataset.name}"}
                names.append(dataset.name)
        return [f"data: two small tasks in {', '.join(names)}, because its folder is not here"] if names else []

    def reply(self, asked: Asked) -> ScriptedReply | None:
        """The agent's next reply, or that of a sub-agent, by the act of the rollout."""
        method = HarborConfig.of(self.config)
        if method.prompt_style is PromptStyle.tiny:
            return None  # its model can play
        act, found = self.act(asked, ACTS), ASKED.search(asked.prompt)
        word = found[1] if found else "nothing"
        if FULL.explorer[:40] in asked.prompt:
            return ScriptedReply(text=call_text("view", path="notes.txt") if self._next(asked, "sub") == 0 else "In notes.txt.")
        write, submit = call_text("edit", path="answer.txt", old="", new=f"{word}\n"), call_text("submit")
        reward = (
            "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json"
        )
        scripts = {
            "solves": [call_text("shell", command="ls"), call_text("view", path="notes.txt"), write, submit],
            "explores": [call_text("explore", question="Where are notes?"), write, submit],
            "no_call": ["I am done."],
            "submits_nothing": [submit],
            "turns": [call_text("shell", command="true")] * (method.limits.turns + 1),
            "rewards_itself": [call_text("shell", command=reward), submit],
            "wrong_calls": [call_text("fly"), call_text("view", path="nowhere.txt"), submit],
        }
        replies = scripts[act]
        return ScriptedReply(text=replies[min(self._next(asked, "main"), len(replies) - 1)])

    def expected(self) -> dict[str, list[str]]:
        """Tools, endings, stop reasons, and tasks that are solved or not."""
        return {
            "tool": ["shell", "view", "edit", "explore", "submit", "unknown", "invalid"],
            "ending": ["submitted", "no_call", "turns_used_up"],
            "stop reason": ["answered", "turn_limit"],
            "task": ["solved", "not solved"],
        }

    def occurred(self, rollout: Row) -> Iterable[tuple[str, str]]:
        """The rollout's tools and ending, and whether it solved its task."""
        about = rollout["samples"][-1]["metadata"] if rollout["samples"] else {}
        yield from (("tool", name) for name, times in about.get("tool_calls", {}).items() for _ in range(times))
        if "ending" in about:
            yield "ending", about["ending"]
        yield "task", "solved" if rollout["metrics"].get("solved") else "not solved"

    def _next(self, asked: Asked, role: str) -> int:
        self._turns[asked.session, role] += 1
        return self._turns[asked.session, role] - 1
