"""ReTool's rehearsal: programs that end, raise and run too long, up to the allowed number, and responses that are cut off."""

import json
from collections import Counter
from collections.abc import Iterable

from agentic.retool.config import ReToolConfig
from vime.config import PromptStyle, RunConfig
from vime.rehearsal.script import Asked, Rehearsal, Row, ScriptedReply

ACTS = ("right", "wrong", "raises", "too_many", "cut", "no_program", "exits")
PROGRAMS = {"right": "print(6 * 7)", "raises": "print(1 / 0)", "exits": "import os\nos._exit(3)"}
STRANDS_TOOL = "execute_python_code"
CALL = "I compute.\n<code>\n```python\n{program}\n```\n</code>"


class ReToolRehearsal(Rehearsal):
    """Prepared problems, and a script of seven acts."""

    @classmethod
    def files(cls, config: RunConfig) -> dict[str, list[Row]]:
        """The training problems and the two evaluation sets as they are prepared."""
        train = [
            {"prompt": [{"role": "user", "content": f"What is {n} + 5?"}], "reward_model": {"ground_truth": str(n + 5)}}
            for n in (2, 3)
        ]
        found = {"dapo_math_17k.jsonl": train}
        for year in (2024, 2025):
            found[f"aime_{year}.jsonl"] = [{"problem": f"What is {n} times {year}?", "answer": str(n * year)} for n in (2, 3)]
        return found

    def reply(self, asked: Asked) -> ScriptedReply | None:
        """The next part of the response."""
        method = ReToolConfig.of(self.config)
        if method.prompt_style is PromptStyle.tiny:
            return None  # its model can play
        act, gold = self.act(asked, ACTS), self.gold_of(asked.prompt)
        if STRANDS_TOOL in asked.prompt:
            return self._strands_reply(asked, act, gold)
        answer = ScriptedReply(text=f"<answer>\n\\boxed{{{'0' if act == 'wrong' else gold}}}\n</answer>")
        if act == "cut":
            return ScriptedReply(text="I reason without an", cut=True)
        offered = "<code>" in asked.prompt.split("<|im_start|>user")[-1]
        if act in ("no_program", "wrong") or not offered or (asked.turn and act != "too_many"):
            return answer
        return ScriptedReply(text=CALL.format(program=PROGRAMS.get(act, PROGRAMS["right"])))

    def _strands_reply(self, asked: Asked, act: str, gold: str) -> ScriptedReply:
        """The reply of the agent of Strands, which calls its tool by a schema."""
        program = PROGRAMS.get(act, PROGRAMS["right"])
        if act == "cut":
            return ScriptedReply(text="I reason without an", cut=True)
        if act in ("no_program", "wrong") or (asked.turn and act != "too_many"):
            return ScriptedReply(text=f"It is \\boxed{{{'0' if act == 'wrong' else gold}}}")
        call = json.dumps({"name": STRANDS_TOOL, "arguments": {"code": program}})
        return ScriptedReply(text=f"<tool_call>\n{call}\n</tool_call>")

    def expected(self) -> dict[str, list[str]]:
        """Ends of programs, and the stop reasons."""
        method = ReToolConfig.of(self.config)
        programs = ["finished", "raised", "ended"] if method.interpreter else []
        if method.name == "strands":
            programs = ["finished"]  # the agent of Strands does not say how programs end
        return {"program": programs, "stop reason": ["answered", "token_limit", *(["turn_limit"] if programs else [])]}

    def occurred(self, rollout: Row) -> Iterable[tuple[str, str]]:
        """The rollout's programs and its answer."""
        calls = Counter[str](rollout["samples"][-1]["metadata"].get("calls", {}) if rollout["samples"] else {})
        yield from (("program", name) for name in calls.elements())
        yield "answer", "right" if rollout["metrics"].get("strict") else "wrong"
