"""RULER (arXiv 2404.06654) at a length in tokens: needles, variables and words in generated texts, and questions in long ones.

The texts are those of `agentic.memagent.ruler`, generated from a seed, in our own words. Five tasks need a file: essays in which
needles are hidden (`haystack`, a text), and HotpotQA's rows (`hotpotqa`). `lenient` is the paper's score, the share of the
answers that occur in the reply; `strict` asks for all of them.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from agentic.benchmarks.published import Benchmark, Item, outcome
from agentic.memagent.ruler.hotpotqa import HotpotQA
from agentic.memagent.ruler.item import Item as RulerItem
from agentic.memagent.ruler.item import Task, size_for_tokens
from agentic.memagent.ruler.needles import NEEDLE_TASKS, NeedleTask, VariableTask
from agentic.memagent.ruler.words import CommonWordsTask, FrequentWordsTask
from vime.data.split import Split
from vime.environments.environment import Outcome, Reply, Row
from vime.errors import ConfigError, Problem
from vime.grading.qa import string_match_all, string_match_part
from vime.model.load_tokenizer import load_tokenizer
from vime.rollout.context import Context
from vime.thinking import after_thinking
from vime.types import Message

SELF_CONTAINED = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe")
"""Tasks that need no file."""
IN_TEXT = tuple(name for name, task in NEEDLE_TASKS.items() if task.haystack == "text")
HOTPOTQA = "qa_hotpotqa"
TASKS = (*SELF_CONTAINED, *IN_TEXT, HOTPOTQA)
LARGEST_SIZE = 2**24
ROOM_TOKENS = 256
"""Tokens of the length that are for the question, the chat template and the reply."""
PROMPT = "Read the following text. A question about it comes after it.\n\n{document}\n\n{question} Answer briefly."


class Ruler(Benchmark):
    """Tasks of RULER in texts of `tokens` tokens of a tokenizer, for example `Ruler(tokens=4096, tokenizer="FOLDER")`."""

    def __init__(
        self,
        *,
        tokenizer: str,
        tokens: int = 4096,
        tasks: list[str] | None = None,
        haystack: str | None = None,
        hotpotqa: str | None = None,
    ) -> None:
        """Raises ConfigError for tasks that there are not, and those whose file is not given or not there."""
        has = {**dict.fromkeys(IN_TEXT, ("haystack", haystack)), HOTPOTQA: ("hotpotqa", hotpotqa)}
        self.tasks = tasks or [name for name in TASKS if name not in has or has[name][1]]
        self._tokens, self._tokenizer, self._haystack, self._hotpotqa = tokens, tokenizer, haystack, hotpotqa
        problems: list[Problem] = []
        for name in self.tasks:
            setting, file = has.get(name, ("", ""))
            if name not in TASKS:
                remedy = f"RULER has no such task here: use {', '.join(TASKS)}"
                problems.append(Problem(key="method.settings.tasks", value=name, remedy=remedy))
            elif setting and not (file and Path(file).expanduser().is_file()):
                content = "a text, for example essays" if setting == "haystack" else "HotpotQA's rows"
                remedy = f"the task {name} needs a file with {content}, and this is none"
                problems.append(Problem(key=f"method.settings.{setting}", value=file, remedy=remedy))
        if problems:
            raise ConfigError(problems)

    def rows(self, *, split: Split, num_items: int | None, seed: int) -> Iterable[Row]:
        """Items of each task in turn, by default ten of each. Raises ConfigError if a task has no text as short as this."""
        total = num_items or 10 * len(self.tasks)
        made: dict[str, tuple[Task, int]] = {}
        for number in range(total):
            name = self.tasks[number % len(self.tasks)]
            try:
                made[name] = made.get(name) or self._sized(name, seed)
                item, document = self._item(*made[name], number=number // len(self.tasks))
            except ValueError as error:
                remedy = f"{name} has no text as short as this ({error}): use a greater length or other method.settings.tasks"
                raise ConfigError([Problem(key="method.settings.tokens", value=self._tokens, remedy=remedy)]) from error
            content = {"document": document, "task": name, **item.row()}
            yield {"question": item.question, "answers": item.answers, "item": content}

    def asked(self, item: Item) -> list[Message]:
        """The text with the question behind it."""
        return [{"role": "user", "content": PROMPT.format(document=item["document"], question=item["input"])}]

    async def score(self, reply: Reply, item: Item, context: Context) -> Outcome:
        """The share of the answers that the reply contains; of alternatives, one is enough."""
        said, answers = after_thinking(reply.text, thinks=context.config.model.thinks), item["answers"]
        share = string_match_all(said, answers) if "metric" in item else string_match_part(said, answers)
        return outcome(float(share == 1.0), share)

    def _sized(self, name: str, seed: int) -> tuple[Task, int]:
        """A task, and its size for a text of this length. Raises ValueError if it has no text that short."""
        task, smallest, largest = self._task(name, seed)
        room, tokenizer = self._tokens - ROOM_TOKENS, _tokenizer(self._tokenizer)
        size = size_for_tokens(task, num_tokens=room, tokenizer=tokenizer, smallest=smallest, largest=largest)
        return task, size

    def _item(self, task: Task, size: int, *, number: int) -> tuple[RulerItem, str]:
        """An item with its text, which is shortened where words of other lengths make it too long."""
        while True:
            item = task(number, size)
            document = "".join(item.parts)
            length = len(_tokenizer(self._tokenizer).encode(document, add_special_tokens=False))
            if length <= self._tokens - ROOM_TOKENS:
                return item, document
            size = min(size - 1, int(size * (self._tokens - ROOM_TOKENS) / length))

    def _task(self, name: str, seed: int) -> tuple[Task, int, int]:
        if name == HOTPOTQA:
            questions = HotpotQA.read(Path(str(self._hotpotqa)).expanduser())
            return questions.task(seed=seed), max(len(each.gold) for each in questions.questions), len(questions.pool)
        if name in NEEDLE_TASKS:
            text = Path(str(self._haystack)).expanduser().read_text(encoding="utf-8") if name in IN_TEXT else None
            return NeedleTask(NEEDLE_TASKS[name], seed=seed, text=text), 1, LARGEST_SIZE
        if name == "vt":
            return VariableTask(seed=seed), 1, LARGEST_SIZE
        words: Any = CommonWordsTask(seed=seed) if name == "cwe" else FrequentWordsTask(seed=seed)
        return words, words.smallest, LARGEST_SIZE


@cache
def _tokenizer(checkpoint: str) -> Any:
    return load_tokenizer(checkpoint)
