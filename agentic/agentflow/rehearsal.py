"""AgentFlow's rehearsal: every tool, every way in which the loop ends, and a judge who accepts, refuses and cannot be read."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentic.agentflow.benchmarks import BENCHMARKS
from agentic.agentflow.config import AgentFlowConfig
from agentic.agentflow.generate import LoopEnd
from vime.config import PromptStyle, RunConfig
from vime.rehearsal.script import Asked, Rehearsal, Row, ScriptedReply

STARTS = {
    "plan": "Task: study the question below",
    "next_step": "Task: choose the next step",
    "executor": "Task: write the command that calls a tool",
    "verifier": "Task: judge whether the steps so far",
    "final": "Task: answer the question from the steps",
    "coder": "Write one complete Python program",
    "judge": "You check answers strictly.",
}
"""The words with which the prompt of each role begins; prompts of tools that are models begin with none of them."""
ACTS = (
    "right",
    "judged_right",
    "wrong",
    "steps",
    "judged_wrong",
    "unparsed",
    "unknown_tool",
    "tool_fails",
    "unreadable",
    "cut",
    "time",
)
STEP = "Justification: it is next\nContext: {context}\nSub-Goal: find what is missing\nTool Name: {tool}"
COMMAND = 'Generated Command:\n```python\nexecution = tool.execute(query="""{query}""")\n```'
PROGRAM = "```python\nprint(6 * 7)\n```"
CHOICES = ["A. 0.9", "B. 0.7", "C. 0.5"]
PASSAGES = (
    "Ada Lovelace wrote the first program.",
    "The older of the two bridges is in Bonn.",
    "Seven is the only answer there is.",
)


class AgentFlowRehearsal(Rehearsal):
    """Rows of all benchmarks and training files, and a script of eleven acts."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._steps: Counter[str] = Counter()

    @classmethod
    def files(cls, config: RunConfig) -> dict[str, list[Row]]:
        """The benchmarks as they are published, the two training files as they are prepared, and passages."""
        found = {f"agentflow_{name}.jsonl": [_item(name, number) for number in range(2)] for name in BENCHMARKS}
        kinds = [{"question": "who wrote the first program?", "result": ["Ada Lovelace", "Lovelace"], "source": "nq"}]
        kinds.append({"question": r"Compute $\frac12+\frac12$.", "result": ["1"], "source": "mathhard"})
        found["agentflow_train.jsonl"] = kinds
        maths = [
            {"prompt": [{"role": "user", "content": f"What is {n} + 5?"}], "reward_model": {"ground_truth": str(n + 5)}}
            for n in (2, 3)
        ]
        found["dapo_math_17k.jsonl"] = maths
        corpus = Path(config.retrieval.corpus or "passages.jsonl").name
        return found | {corpus: [{"id": str(n), "title": f"Passage {n}", "text": text} for n, text in enumerate(PASSAGES)]}

    def reply(self, asked: Asked) -> ScriptedReply | None:
        """The reply of each role, by the act of the rollout."""
        method = AgentFlowConfig.of(self.config)
        if method.prompt_style is PromptStyle.tiny:
            return None  # its models can play
        act, gold = self.act(asked, ACTS), self.gold_of(asked.prompt)
        role = next((name for name, start in STARTS.items() if start in asked.prompt), "")
        if role == "plan":
            return ScriptedReply(text="It asks for one fact; a search or a program finds it.")
        if role == "next_step":
            return self._next_step(asked, act, list(method.tools), method.max_seconds)
        if role == "executor":
            return ScriptedReply(
                text="I have no command." if act == "unparsed" else COMMAND.format(query="the older of the two bridges")
            )
        if role == "coder":
            return ScriptedReply(text="I write none." if act == "tool_fails" else PROGRAM)
        if role == "verifier":
            return ScriptedReply(text=self._verdict(asked, act, num_tools=len(method.tools)))
        if role == "judge":
            return ScriptedReply(text="" if act == "unreadable" else f"They are compared.\nVERDICT: {act != 'judged_wrong'}")
        return ScriptedReply(text=_answer(act, gold) if "\\boxed" in asked.prompt else "A general assistant says: Bonn.")

    def expected(self) -> dict[str, list[str]]:
        """Tools, ends of the loop, ways of judging and stop reasons."""
        method = AgentFlowConfig.of(self.config)
        opinions = ["judge accepts", "judge refuses", "judge unreadable"]
        judged = ["by a rule", *(opinions if method.roles.judge and self._asks_judge() else [])]
        steps = ["as asked", "not parsed", "unknown tool", "tool failed", "no command", "no verdict"]
        ends = [end.value for end in LoopEnd]
        stops = ["answered", "turn_limit", "token_limit", "time_limit"]
        return {"tool": list(method.tools), "step": steps, "end of the loop": ends, "grading": judged, "stop reason": stops}

    def occurred(self, rollout: Row) -> Iterable[tuple[str, str]]:
        """The rollout's steps with their tools, the end of its loop, and how it was graded."""
        for about in (sample["metadata"] for sample in rollout["samples"]):
            if about.get("turn") == "next_step" and "tool" in about:
                yield "tool", about["tool"]
                yield "step", _kind_of(about)
                yield from (
                    ("step", name)
                    for name, known in (("no command", "command_parsed"), ("no verdict", "verdict_parsed"))
                    if not about[known]
                )
            if "loop_end" in about:
                yield "end of the loop", about["loop_end"]
        counts, metrics = rollout.get("counts", {}), rollout["metrics"]
        if not metrics.get("judged"):
            yield "grading", "by a rule"
        elif "judge_calls" in counts:
            yield "grading", "judge accepts" if counts.get("judge_accepted") else "judge refuses"
        if counts.get("judge_unreadable"):
            yield "grading", "judge unreadable"

    def _asks_judge(self) -> bool:
        """True if a data set has answers in words, about which rules cannot decide."""
        arguments = [dataset.generator_args for dataset in (self.config.data.train, *self.config.data.evaluation)]
        judged = {name for name, benchmark in BENCHMARKS.items() if benchmark.judged}
        return any("file" in found or found.get("benchmark") in judged for found in arguments)

    def _next_step(self, asked: Asked, act: str, tools: list[str], most_seconds: float) -> ScriptedReply:
        number = self._steps[asked.session]
        self._steps[asked.session] += 1
        if act == "unparsed":
            return ScriptedReply(text="I do not know how to go on.")
        tool = {"unknown_tool": "Oracle", "tool_fails": "python_coder"}.get(act, tools[number % len(tools)])
        text = STEP.format(context="two bridges are compared", tool=tool)
        return ScriptedReply(text=text, cut=act == "cut", seconds=most_seconds if act == "time" else 0.0)

    def _verdict(self, asked: Asked, act: str, *, num_tools: int) -> str:
        if act == "unparsed" and self._steps[asked.session] == 1:
            return "I cannot say."
        goes_on = act in ("steps", "time") or (act == "right" and self._steps[asked.session] < num_tools)
        return f"All is said.\nConclusion: {'CONTINUE' if goes_on else 'STOP'}"


def _kind_of(step: dict[str, Any]) -> str:
    if not step["parsed"]:
        return "not parsed"
    if step["unknown_tool"]:
        return "unknown tool"
    return "tool failed" if step["tool_failed"] else "as asked"


def _answer(act: str, gold: str) -> str:
    """The answer of an act: an answer that no rule accepts goes to the judge if the grader has one."""
    answers = {
        "judged_right": f"what is also called {gold}",
        "judged_wrong": "none of these",
        "wrong": "0",
        "unreadable": "something else",
    }
    return f"So it is \\boxed{{{answers.get(act, gold)}}}"


def _item(benchmark: str, number: int) -> Row:
    item: dict[str, Any] = {
        "pid": str(number),
        "image": None,
        "query": f"{benchmark}: how many bridges has city {number}?",
        "answer": "7",
    }
    if benchmark == "gameof24":
        query = f"Using the numbers [1, 1, {number + 1}, 8], create an expression that equals 24."
        return item | {"query": query, "answer": ["(1+1+1)×8" if number == 0 else "(1+2)×8×1"], "question": [1, 8]}
    if benchmark == "gpqa":
        return item | {"choices": CHOICES, "answer": CHOICES[number]}
    if benchmark == "medqa":
        return item | {"options": CHOICES, "answer": CHOICES[number].partition(". ")[2]}
    return item
