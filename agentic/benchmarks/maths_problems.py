r"""Problems of mathematics with a short answer: GSM8K, MATH-500, AIME 2024 and 2025.

Chat models are asked to reason and to put the answer into `\boxed{}`, as the authors of Qwen2.5-Math (arXiv 2409.12122) and
DeepSeek-R1 (arXiv 2501.12948) evaluate. `strict` takes the answer from the box, `lenient` also a reply without one, from its
last line or, in GSM8K, its last number. As in the programs of MATH's and Qwen2.5-Math's authors, neither percent signs nor words
behind a number make an answer wrong.
"""

import re

from agentic.benchmarks.published import Item, PublishedBenchmark, Source, outcome, text_of
from vime.environments.environment import Outcome, Reply
from vime.grading.answer import has_box
from vime.grading.grade import Grade, grade
from vime.rollout.context import Context
from vime.thinking import after_thinking
from vime.types import Message

INSTRUCTION = r"Please reason step by step, and put your final answer within \boxed{}."
ANSWER_TAGS = re.compile(r"When ready, output the final answer enclosed in <answer> and </answer> tags\..*", re.DOTALL)
"""Text that AgentFlow's files have behind a problem."""
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
PERCENT = re.compile(r"\\?%")
WORDS_BEHIND = re.compile(
    r"(?<=.)(?:~|\s|\\[ ,;:!])*\\(?:text|mbox|textrm|mathrm)\s*\{(?!\s*(?:hundred|thousand|[mbtr]+illion|dozen))[^{}]*\}$"
)
ONLY_TEXT = re.compile(r"\\(?:text|mbox|textrm|mathrm)\s*\{([^{}]*)\}")


class MathsProblems(PublishedBenchmark):
    """Problems with the fields `problem` (or `question`, `query`) and `answer`."""

    def __init__(self, *, folder: str = "data", hub: bool = False, instruction: str = INSTRUCTION) -> None:
        super().__init__(folder=folder, hub=hub)
        self._instruction = instruction

    def asked(self, item: Item) -> list[Message]:
        """The problem with the instruction behind it."""
        problem = ANSWER_TAGS.sub("", text_of(item, "problem", "Problem", "query", "question")).strip()
        return [{"role": "user", "content": f"{problem}\n{self._instruction}".strip()}]

    def answer(self, item: Item) -> str:
        """The reference answer."""
        return str(item["answer"] if "answer" in item else item["Answer"]).strip()

    async def score(self, reply: Reply, item: Item, context: Context) -> Outcome:
        """1 if the answer equals the reference as a formula (`vime.grading.maths`)."""
        thinks, gold = context.config.model.thinks, self.answer(item)
        boxed = has_box(reply.text, thinks=thinks)
        said = reply.text if boxed else self.unboxed(after_thinking(reply.text, thinks=thinks))
        found = await grade("maths", said, [gold], thinks=thinks and boxed)
        if not found.score and (bare := self._bare(found)) not in ("", found.prediction):
            found = await grade("maths", bare, [gold])
        return outcome(found.score * boxed, found.score, boxed=float(boxed))

    def _bare(self, found: Grade) -> str:
        """A wrong answer without percent signs and, if it could not be read, without the words behind it or its frame of text."""
        bare = PERCENT.sub("", found.prediction)
        if found.decided_by == "nobody":
            bare = ONLY_TEXT.sub(r"\1", bare) if ONLY_TEXT.fullmatch(bare) else WORDS_BEHIND.sub("", bare)
        return bare

    def unboxed(self, said: str) -> str:
        """The part of a reply without a box that is graded, for the lenient score."""
        return said


class Gsm8k(MathsProblems):
    """GSM8K (arXiv 2110.14168): 1,319 problems for schools, whose answers end with `#### NUMBER`."""

    source = Source(
        files=("gsm8k.jsonl", "gsm8k_test.jsonl", "gsm8k/test.jsonl", "gsm8k.parquet"),
        hub="openai/gsm8k@cc7b047b6e5bb11b4f1af84efc572db110a51b3c/main/test-00000-of-00001.parquet",
        get="take grade_school_math/data/test.jsonl of github.com/openai/grade-school-math as gsm8k.jsonl",
    )

    def answer(self, item: Item) -> str:
        """The number behind `####`."""
        solution, mark, number = str(item["answer"]).rpartition("####")
        if not mark or not solution:
            raise ValueError("the answer has no ####")
        return number.strip().replace(",", "")

    def unboxed(self, said: str) -> str:
        """The last number."""
        numbers = NUMBER.findall(said)
        return numbers[-1].replace(",", "").removesuffix(".") if numbers else ""


class Math500(MathsProblems):
    """MATH-500: the 500 problems of MATH (arXiv 2103.03874) on which PRM800K's authors evaluate (arXiv 2305.20050)."""

    source = Source(
        files=("math500.jsonl", "math_500.jsonl", "MATH-500/test.jsonl", "math500/test.jsonl", "math500.parquet"),
        hub="HuggingFaceH4/MATH-500/test.jsonl",
        get="take test.jsonl of huggingface.co/datasets/HuggingFaceH4/MATH-500 as math500.jsonl",
    )


class Aime24(MathsProblems):
    """AIME 2024: the 30 problems of both rounds, whose answers are whole numbers from 0 to 999."""

    source = Source(
        files=("aime24.jsonl", "aime24.json", "agentflow_aime24.jsonl", "agentflow_aime24.json", "aime24.parquet"),
        hub="HuggingFaceH4/aime_2024/data/train-00000-of-00001.parquet",
        get="take test/aime24/data/data.json of github.com/lupantech/AgentFlow as agentflow_aime24.json",
    )


class Aime25(MathsProblems):
    """AIME 2025: the 30 problems of both rounds."""

    source = Source(
        files=("aime25.jsonl", "aime25/test.jsonl", "aime25.json", "aime25.parquet"),
        hub="math-ai/aime25@563bb8404243c5f09de6ec262f2db674fe5bce9b/test.jsonl",
        get="take test.jsonl of huggingface.co/datasets/math-ai/aime25 as aime25.jsonl",
    )
