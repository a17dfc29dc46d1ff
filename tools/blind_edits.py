"""Scores scripts that make the commonest edits without reading anything, on the held-out tasks of the laptop task.

    python tools/blind_edits.py [--num-items 200] [--json PATH] [--markdown PATH]

A script knows which bugs are planted in training, and changes the line of the named function, without reading it, by one
substitution; the last script makes all those that do not contradict each other. Their patches are judged as those of an agent: in
a fresh workspace by the hidden tests.
"""

import argparse
import asyncio
import json
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from bench_rows import Result, circumstances

from agentic.coding.grading import GradingConfig, fresh_workspaces
from agentic.coding.repository import prepare_repository
from agentic.coding.task import STATEMENT, Task
from agentic.coding.tiny import task as tiny_task
from agentic.coding.verdict import judge
from vime.agent.workspace import Workspace
from vime.config import WorkspaceConfig

EDITS = {
    "`result =` becomes `return`": "s/result = /return /",
    "`<` and `>` are exchanged": "y/<>/></",
    "the end of a range grows by 1": r"s/range(\([a-z]*\))/range(\1 + 1)/",
    "operands of `-` are exchanged": r"s/return \([a-z]*\) - \([a-z]*\)$/return \2 - \1/",
    "`+` becomes `*`": r"s/ + \([a-z]\)/ * \1/",
    "`-` becomes `+`": "s/ - / + /",
}
"""Commands of sed for a line; the first four can be made together."""
TOGETHER = 4
AT_ONCE = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Blind:
    """The result of one script. Example: `Blind(edit="`<` and `>` are exchanged", solved=0.16)`."""

    edit: str
    solved: float
    """Share of the held-out tasks that it solves."""


def command(name: str, edit: str) -> str:
    """A command line that changes the line after the definition of a function, in any file."""
    return f"sed -i {shlex.quote(f'/def {name}(/{{n;{edit}}}')} src/*.py"


async def solves(task: Task, name: str, edit: str, places: asyncio.Semaphore) -> bool:
    """True if an edit solves a task."""
    async with places:
        prepared = await asyncio.to_thread(prepare_repository, task)
        async with Workspace.open(prepared, WorkspaceConfig()) as box:
            await box.run(command(name, edit))
            patch = (await box.diff()).patch.decode()
        if not patch:
            return False
        verdict = await judge(task, patch, open_workspace=fresh_workspaces(WorkspaceConfig()), config=GradingConfig())
        return verdict.solved


async def measure(num_items: int) -> list[Blind]:
    """All scripts on the held-out tasks."""
    rows = tiny_task.generate_rows(split="eval", num_items=num_items, seed=0)
    tasks = [(Task.of({STATEMENT: row["prompt"], **row}), row["prompt"].split()[0]) for row in rows]
    scripts = EDITS | {"the first four together": ";".join(list(EDITS.values())[:TOGETHER])}
    places, found = asyncio.Semaphore(AT_ONCE), list[Blind]()
    for name, edit in scripts.items():
        solved = await asyncio.gather(*(solves(task, function, edit, places) for task, function in tasks))
        found.append(Blind(edit=name, solved=sum(solved) / num_items))
    return found


def table(found: list[Blind]) -> str:
    """Markdown: one line per script."""
    lines = ["| edit | held-out tasks that it solves, % |", "|---|--:|"]
    return "\n".join([*lines, *(f"| {one.edit} | {100 * one.solved:.1f} |" for one in found)]) + "\n"


def main() -> None:
    """Measures, prints the table, and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-items", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    page = Result(title="Edits without reading")
    found = asyncio.run(measure(options.num_items))
    sys.stdout.write(table(found))
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    if options.markdown:
        facts = "\n".join(f"- {fact}" for fact in circumstances(page))
        options.markdown.write_text(f"# {page.title}\n\n{facts}\n- {options.num_items} held-out tasks\n\n{table(found)}")


if __name__ == "__main__":
    main()
