"""Builds RULER-HQA, and RULER's needle tasks, at any length: the same questions in documents of growing size.

    python tools/build_ruler.py hotpotqa --source hotpot_dev_distractor_v1.json --sizes 50 100 200 --out data/ruler
    python tools/build_ruler.py hotpotqa --source validation.parquet --sizes 25600 --own-files --out data/ruler
    python tools/build_ruler.py niah_multikey_1 --haystack essays.txt --tokens 8192 32768 --tokenizer Qwen/Qwen2.5-7B-Instruct

`hotpotqa` reads HotpotQA's rows from a .json, .jsonl or .parquet file, in the original layout (context: [[title, sentences], …])
or Hugging Face's (context: {title, sentences}). Its sizes are numbers of paragraphs; `max` takes all paragraphs of the source.
The other tasks are niah_single_1 to 3, niah_multikey_1 to 3, niah_multivalue, niah_multiquery, vt, cwe and fwe; their sizes are
numbers of sentences or words. A run evaluates a file with 'data.evaluation=[{name: docs_50, path:
data/ruler/hotpotqa_50.jsonl}]'.
"""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from agentic.memagent.ruler.files import write_rows
from agentic.memagent.ruler.hotpotqa import HotpotQA
from agentic.memagent.ruler.item import Task, size_for_tokens
from agentic.memagent.ruler.needles import NEEDLE_TASKS, NeedleTask, VariableTask
from agentic.memagent.ruler.words import CommonWordsTask, FrequentWordsTask

HOTPOTQA, VARIABLES, COMMON, FREQUENT = "hotpotqa", "vt", "cwe", "fwe"
TASKS = (HOTPOTQA, *NEEDLE_TASKS, VARIABLES, COMMON, FREQUENT)
LARGEST_SIZE = 2**24
"""Largest size in sentences or words; the source limits the number of paragraphs."""


def make_task(name: str, *, seed: int, source: Path | None, haystack: Path | None) -> tuple[Task, int, int]:
    """The task, with its smallest and its largest size.

    Raises `ValueError` if the task needs a file that was not given.
    """
    if name == HOTPOTQA:
        if source is None:
            raise ValueError("hotpotqa needs HotpotQA's rows: give --source FILE")
        questions = HotpotQA.read(source)
        return questions.task(seed=seed), max(len(question.gold) for question in questions.questions), len(questions.pool)
    if name in NEEDLE_TASKS:
        text = haystack.read_text(encoding="utf-8") if haystack is not None else None
        return NeedleTask(NEEDLE_TASKS[name], seed=seed, text=text), 1, LARGEST_SIZE
    if name == VARIABLES:
        return VariableTask(seed=seed), 1, LARGEST_SIZE
    task = CommonWordsTask(seed=seed) if name == COMMON else FrequentWordsTask(seed=seed)
    return task, task.smallest, LARGEST_SIZE


def sizes_of(given: argparse.Namespace, task: Task, smallest: int, largest: int) -> dict[str, int]:
    """The sizes to build, by the ends of their file names.

    Raises `ValueError` for a size that the task cannot have.
    """
    if given.tokens:
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(given.tokenizer)
        found = {}
        for tokens in given.tokens:
            size = size_for_tokens(task, num_tokens=tokens, tokenizer=tokenizer, smallest=smallest, largest=largest)
            found[f"{tokens}_tokens"] = size
        return found
    sizes = {}
    for text in given.sizes:
        if text != "max" and not text.isdecimal():
            raise ValueError(f"--sizes {text}: give whole numbers, or max")
        sizes[text] = largest if text == "max" else int(text)
    for size in sizes.values():
        if not smallest <= size <= largest:
            raise ValueError(f"size {size}: give {smallest} to {largest} for this task")
    return {str(size): size for size in sizes.values()}


def parse(arguments: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--source", type=Path, help="file with HotpotQA's rows, for the task hotpotqa")
    parser.add_argument("--haystack", type=Path, help="text file, for the needle tasks that hide needles in a text")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument(
        "--sizes", nargs="+", metavar="N", help="sizes in paragraphs, sentences or words; max takes the whole source"
    )
    length.add_argument("--tokens", nargs="+", type=int, metavar="N", help="longest document in tokens of --tokenizer")
    parser.add_argument("--tokenizer", default="Qwen/Qwen2.5-7B-Instruct", help="Hugging Face id or folder of the tokenizer")
    parser.add_argument("--num-items", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--own-files", action="store_true", help="write each document into a file of its own, for millions of tokens"
    )
    parser.add_argument("--out", type=Path, default=Path("data/ruler"))
    return parser, parser.parse_args(arguments)


def main(arguments: list[str] | None = None, console: Console | None = None) -> None:
    """Builds the files of the command line."""
    parser, given = parse(arguments)
    console = console or Console(highlight=False)
    try:
        task, smallest, largest = make_task(given.task, seed=given.seed, source=given.source, haystack=given.haystack)
        available = getattr(task, "num_questions", given.num_items)
        if not 1 <= given.num_items <= available:
            raise ValueError(f"--num-items {given.num_items}: give 1 to {available}")
        sizes = sizes_of(given, task, smallest, largest)
        given.out.mkdir(parents=True, exist_ok=True)
        with Progress(console=console) as progress:
            for name, size in sizes.items():
                path = given.out / f"{given.task}_{name}.jsonl"
                bar = progress.add_task(str(path), total=given.num_items)
                advance = lambda bar=bar: progress.advance(bar)  # noqa: E731
                write_rows(path, task, size=size, num_items=given.num_items, own_files=given.own_files, on_item=advance)
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
