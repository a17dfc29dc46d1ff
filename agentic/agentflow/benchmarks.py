"""The ten benchmarks of AgentFlow's tables (arXiv 2510.05592, tables 1 and 2), and the rows of their files.

A run evaluates one with `generator: agentic.agentflow.benchmarks.rows` and `generator_args: {benchmark: aime24, folder: …}`. The
folder holds `agentflow_<name>.jsonl`, which tools/prepare_data.py writes, or a public file unchanged: `agentflow_<name>.json`,
`<name>.json` or `<name>/data/data.json`, a list of objects with "query", "answer" and "pid".
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.data.file_formats import read_rows
from vime.errors import ConfigError, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """One test set.

    `num_items` is the number of items in the public file, `num_items_of_paper` that of the paper's table. Example:
    `BENCHMARKS["aime24"]`.
    """

    title: str
    grader: str
    """Kind of grader for `vime.grading.grade.grade`."""
    table: int
    num_items: int
    num_items_of_paper: int

    @property
    def judged(self) -> bool:
        """True if an answer can be right without matching the reference word for word, so that a judge is needed."""
        return self.grader == "qa"


BENCHMARKS: dict[str, Benchmark] = {
    "bamboogle": Benchmark(title="Bamboogle", grader="qa", table=1, num_items=125, num_items_of_paper=125),
    "2wiki": Benchmark(title="2Wiki", grader="qa", table=1, num_items=200, num_items_of_paper=100),
    "hotpotqa": Benchmark(title="HotpotQA", grader="qa", table=1, num_items=100, num_items_of_paper=100),
    "musique": Benchmark(title="MuSiQue", grader="qa", table=1, num_items=200, num_items_of_paper=100),
    "gaia": Benchmark(title="GAIA (text only)", grader="qa", table=1, num_items=127, num_items_of_paper=127),
    "aime24": Benchmark(title="AIME 2024", grader="maths", table=2, num_items=30, num_items_of_paper=30),
    "amc23": Benchmark(title="AMC 2023", grader="maths", table=2, num_items=40, num_items_of_paper=40),
    "gameof24": Benchmark(title="Game of 24", grader="game24", table=2, num_items=300, num_items_of_paper=300),
    "gpqa": Benchmark(title="GPQA", grader="choice", table=2, num_items=300, num_items_of_paper=100),
    "medqa": Benchmark(title="MedQA", grader="choice", table=2, num_items=300, num_items_of_paper=300),
}
_FILES = ("agentflow_{name}.jsonl", "agentflow_{name}.json", "{name}.json", "{name}/data/data.json")


def rows(*, num_items: int | None, seed: int, benchmark: str, folder: str) -> list[dict[str, Any]]:
    """Rows of a benchmark for `vime.data.dataset`: prompt and ground truth, with benchmark, grader and item number as metadata.

    All items in the file's order, or `num_items` of them drawn with `seed`. Raises ConfigError if there is no such benchmark or
    file.
    """
    items = load_items(benchmark, Path(folder).expanduser())
    if num_items is not None and num_items < len(items):
        items = [items[number] for number in sorted(random.Random(seed).sample(range(len(items)), num_items))]
    grader = BENCHMARKS[benchmark].grader
    return [
        {
            "prompt": item["query"],
            "reward_model": {"ground_truth": _references(item, grader)},
            "benchmark": benchmark,
            "grader": grader,
            "item": str(item.get("pid", number)),
        }
        for number, item in enumerate(items)
    ]


def load_items(benchmark: str, folder: Path) -> list[dict[str, Any]]:
    """The items of a benchmark's file, unchanged. Raises ConfigError if there is no such benchmark, file or format."""
    key = "data.generator_args"
    if benchmark not in BENCHMARKS:
        remedy = f"there is no such benchmark: choose from {', '.join(BENCHMARKS)}"
        raise ConfigError([Problem(key=f"{key}.benchmark", value=benchmark, remedy=remedy)])
    files = [folder / pattern.format(name=benchmark) for pattern in _FILES]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        remedy = f"holds none of {', '.join(pattern.format(name=benchmark) for pattern in _FILES)}: write the first with "
        remedy += f"`python tools/prepare_data.py agentflow_{benchmark} --out {folder}`, or put the public file there"
        raise ConfigError([Problem(key=f"{key}.folder", value=str(folder), remedy=remedy)])
    found = read_rows(file, key=f"{key}.folder")
    items = [{**item, "query": item.get("query", item.get("question"))} for item in found]
    if not all(isinstance(item["query"], str) and "answer" in item for item in items):
        remedy = "is not a list of objects with query and answer: fetch the public file again"
        raise ConfigError([Problem(key=f"{key}.folder", value=str(file), remedy=remedy)])
    return items


def _references(item: dict[str, Any], grader: str) -> list[Any]:
    """The accepted answers; if a choice's answer is written without its letter, as in MedQA, the option with its letter."""
    answer = item["answer"]
    found = answer if isinstance(answer, list) else [answer]
    options = [str(option) for option in item.get("options") or item.get("choices") or []] if grader == "choice" else []
    by_text = {option.partition(". ")[2].strip(): option for option in options}
    return [one if one in options else by_text.get(str(one).strip(), one) for one in found]
