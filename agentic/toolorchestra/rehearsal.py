"""ToolOrchestra's rehearsal: every tool with every expert that it offers, both modes, the judge, and every ending.

Without the package tau2 its tasks are played in the built-in shop, whose customer answers by a script.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentic.toolorchestra.config import TAU2_ROWS, TRAINING_ROWS, ToolOrchestraConfig
from agentic.toolorchestra.experts import CallEnd
from agentic.toolorchestra.offer import ALIAS, ANSWER, CALL_EXPERT
from agentic.toolorchestra.orchestrator import Ending
from agentic.toolorchestra.tau2 import why_absent
from vime.config import DatasetConfig, PromptStyle, RunConfig
from vime.rehearsal.script import Asked, Rehearsal, Row, ScriptedReply

SHOP_ROWS = "agentic.toolorchestra.tiny.task.generate_rows"
SOLVING = "You orchestrate tools and experts"
SERVING = "You serve a customer as the policy says"
JUDGING = "You check answers strictly."
ASKED = {"Write one search query": "query", "Then write one Python program": "program", "Put the final answer alone": "answer"}
"""Words of an expert's prompt, and the kind of its task; in any other prompt for advice, or to serve the customer."""
ACTS = (
    *("every_tool", "judged_right", "wrong", "no_call", "malformed", "wrong_alias", "turns", "cut", "time", "silent_expert"),
    *("program_fails", "judged_wrong", "judge_unreadable", "broken_expert"),
)
SERVICE_ACTS = ("serve", "expert_serves", "steps", "errors", "turn_cut", "serve_time")
ANSWERS = {
    "judged_right": "what one also calls {gold}",
    "judged_wrong": "none of these",
    "judge_unreadable": "no idea",
    "wrong": "0",
}
PROGRAM = "```python\nprint(6 * 7)\n```"
PASSAGES = ("Ada Lovelace wrote the first program, which computes numbers of Bernoulli.", "Bonn has the older bridge of the two.")


class ToolOrchestraRehearsal(Rehearsal):
    """Prepared questions, tasks of the shop, and scripts of both modes."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._turns: Counter[str] = Counter()
        self._uses: Counter[tuple[str, str]] = Counter()

    @classmethod
    def files(cls, config: RunConfig) -> dict[str, list[Row]]:
        """The training questions and the two evaluation sets as they are prepared, and passages."""
        train = [
            {
                "problem": f"What is {number} + 5?",
                "answer": str(number + 5),
                "eid": f"generalthought____{number}",
                "category": "qa",
            }
            for number in (2, 3)
        ]
        hle = [
            {"id": str(n), "question": f"Find x, if x + {n} is 9.", "answer": str(9 - n), "image": "", "category": "Math"}
            for n in (2, 3)
        ]
        frames = [{"question": f"Who was first, number {n}?", "answer": name} for n, name in enumerate(("Ada", "Grace"))]
        corpus = Path(config.retrieval.corpus or "passages.jsonl").name
        passages = [{"id": str(n), "title": "", "text": text * 2} for n, text in enumerate(PASSAGES)]
        return {"toolorchestra_train.jsonl": train, "hle_text.jsonl": hle, "frames.jsonl": frames, corpus: passages}

    @classmethod
    def adapt(cls, config: RunConfig) -> list[str]:
        """Tasks of the built-in shop in place of those of tau2, if that is not installed."""
        if not why_absent():
            return []
        names = [dataset.name for position, dataset in enumerate(config.data.evaluation) if _in_the_shop(dataset, seed=position)]
        train = config.data.train
        if train.generator == TRAINING_ROWS and train.generator_args.pop("tau2_domains", None):
            names.append(f"{train.name}, of which the questions are left")
        return [f"data: tasks of the built-in shop in {', '.join(names)}, because tau2-bench is not installed"] if names else []

    def reply(self, asked: Asked) -> ScriptedReply | None:
        """Replies of orchestrator, experts and judge, by the act of the rollout."""
        if ToolOrchestraConfig.of(self.config).prompt_style is PromptStyle.tiny:
            return None  # its models can play
        gold = self.gold_of(asked.prompt)
        if SERVING in asked.prompt:
            return self._serve(asked, self.act(asked, SERVICE_ACTS))
        if SOLVING in asked.prompt:
            return self._solve(asked, self.act(asked, ACTS))
        act = self._acts.get(asked.session) or self.act(asked, ACTS)  # a baseline that is asked once begins here
        if JUDGING in asked.prompt:
            return ScriptedReply(
                text="They differ." if act == "judge_unreadable" else f"Compared.\nVERDICT: {act != 'judged_wrong'}"
            )
        if act == "broken_expert" and _asked_for(asked.prompt) != "answer":
            return ScriptedReply(text="", error="the expert's server answered 503")
        return ScriptedReply(text=self._expert(asked, act, gold))

    def expected(self) -> dict[str, list[str]]:
        """Tools, experts and their models, how calls of them end, the endings, the judge and the stop reasons."""
        method = ToolOrchestraConfig.of(self.config)
        offered = {tool: getattr(method.tools, tool) for tool in ALIAS}
        if not method.tools.call_expert_for_questions and not self._serves():
            offered.pop(CALL_EXPERT)
        aliases = [alias for names in offered.values() for alias in names]
        found = {
            "tool": [tool for tool, names in offered.items() if names],
            "expert": aliases,
            "expert's call": [end.value for end in CallEnd],
        }
        found["expert's model"] = sorted({method.experts[alias].model for alias in aliases})
        never = set() if self._serves() else {Ending.CUSTOMER_STOP, Ending.TOO_MANY_ERRORS}
        steps_last = any(steps <= turns for steps, turns in self._limits_of_service())
        never |= set() if steps_last else {Ending.MAX_STEPS}
        found["ending"] = [end.value for end in Ending if end not in never]
        if method.shaping.judge:
            found["judge"] = ["accepts", "refuses", "unreadable"]
        return found | {"stop reason": ["answered", "malformed", "turn_limit", "token_limit", "time_limit"]}

    def occurred(self, rollout: Row) -> Iterable[tuple[str, str]]:
        """The rollout's calls with their experts, its ending, its program's end, and its judge."""
        about = rollout["samples"][-1]["metadata"] if rollout["samples"] else {}
        for call in about.get("expert_calls", ()):
            yield "expert", call["alias"]
            yield "expert's model", call["model"]
            yield "expert's call", call["end"]
        yield from (("tool", name) for name, times in about.get("tool_calls", {}).items() for _ in range(times))
        if about.get("ending"):
            yield "ending", about["ending"]
        counts = rollout.get("counts", {})
        ends = [name.removeprefix("sandbox_") for name in counts if name.startswith("sandbox_") and name != "sandbox_calls"]
        yield from (("program", end) for end in ends)
        if counts.get("judge_unreadable"):
            yield "judge", "unreadable"
        elif counts.get("judge_calls") or counts.get("judge_cache_hits"):
            yield "judge", "accepts" if counts.get("judge_accepted") else "refuses"

    def _serves(self) -> bool:
        return any(_has_customers(dataset) for dataset in self.config.data.evaluation)

    def _limits_of_service(self) -> Iterator[tuple[int, int]]:
        """Most steps of a conversation and turns of a rollout, in training and in the evaluation, where customers are served."""
        limits = ToolOrchestraConfig.of(self.config).limits
        if _has_customers(self.config.data.train):
            yield limits.environment_steps, limits.turns
        if self._serves():
            yield limits.evaluation_environment_steps, limits.evaluation_turns

    def _solve(self, asked: Asked, act: str) -> ScriptedReply:
        """The orchestrator's next call in the question-answering mode."""
        number, limits = self._next_turn(asked), ToolOrchestraConfig.of(self.config).limits
        offered = offered_in(asked.prompt)
        others = [(tool, alias) for tool, aliases in offered.items() if tool != ANSWER for alias in aliases]
        fixed = {"no_call": "I know it without any tool.", "malformed": "<tool_call>\n{broken\n</tool_call>", "cut": "I wonder"}
        if act in fixed:
            return ScriptedReply(text=fixed[act], cut=act == "cut")
        if act == "wrong_alias" and number == 0:
            return ScriptedReply(text=call_text(ANSWER, {ALIAS[ANSWER]: "nobody"}))
        num_calls = {"every_tool": len(others), "silent_expert": 3, "broken_expert": 1, "program_fails": 2}.get(act, 0)
        goes_on = act in ("turns", "time") or number < num_calls
        if not goes_on or not others:
            return ScriptedReply(text=self._call(ANSWER, offered[ANSWER]))
        if act == "program_fails":
            others = [pair for pair in others if pair[0] == "enhance_reasoning"] or others
        tool, alias = others[0] if act == "silent_expert" else min(others, key=lambda pair: self._uses[pair])
        self._uses[tool, alias] += 1
        extra = {"query": "Is it so?"} if tool == CALL_EXPERT else {}
        return ScriptedReply(
            text=call_text(tool, {ALIAS[tool]: alias, **extra}), seconds=limits.seconds if act == "time" else 0.0
        )

    def _serve(self, asked: Asked, act: str) -> ScriptedReply:
        """The orchestrator's next turn with a customer."""
        number, limits = self._next_turn(asked), ToolOrchestraConfig.of(self.config).limits
        orders = re.findall(r"order is (\d{4})", asked.prompt) or ["0000"]
        look_up = call_text("get_order", {"order_id": orders[0]})
        if act == "turn_cut":
            return ScriptedReply(text="I look at the", cut=True)
        if act == "errors":
            return ScriptedReply(text=call_text("get_order", {"order_id": "none"}))
        if act in ("steps", "serve_time"):
            return ScriptedReply(text=look_up, seconds=limits.seconds if act == "serve_time" else 0.0)
        aliases = offered_in(asked.prompt).get(CALL_EXPERT, [])
        if act == "expert_serves" and number < len(aliases):
            return ScriptedReply(text=call_text(CALL_EXPERT, {ALIAS[CALL_EXPERT]: aliases[number]}))
        return ScriptedReply(text=look_up if number == 0 else "That is not possible.")

    def _expert(self, asked: Asked, act: str, gold: str) -> str:
        """The reply of an expert that is asked for a query, a program, an answer or advice, or that serves the customer."""
        kind = _asked_for(asked.prompt)
        if act == "silent_expert" and kind != "answer":
            return ""
        if kind == "query":
            return "<query>older bridge</query>" if act != "wrong" else "I have none."
        if kind == "program":
            return (
                "I write none."
                if act == "program_fails" and self._turns[asked.session] == 1
                else PROGRAM.replace("6 * 7", "1 / 0" if act == "program_fails" else "6 * 7")
            )
        if kind == "answer":
            return f"<answer>{ANSWERS.get(act, '{gold}').format(gold=gold)}</answer>"
        orders = re.findall(r"order is (\d{4})", asked.prompt)
        return call_text("get_order", {"order_id": orders[0]}) if orders else "I advise to compute it."

    def _call(self, tool: str, aliases: list[str]) -> str:
        """The call of the expert that has been called least."""
        alias = min(aliases, key=lambda name: self._uses[tool, name])
        self._uses[tool, alias] += 1
        return call_text(tool, {ALIAS[tool]: alias})

    def _next_turn(self, asked: Asked) -> int:
        self._turns[asked.session] += 1
        return self._turns[asked.session] - 1


def _asked_for(prompt: str) -> str:
    """The kind of thing for which an expert is asked: a query, a program or an answer; empty for advice or service."""
    return next((kind for words, kind in ASKED.items() if words in prompt), "")


def offered_in(prompt: str) -> dict[str, list[str]]:
    """The experts that the tools of a prompt offer, by tool; the schemas are JSON, one a line."""
    found: dict[str, list[str]] = {}
    for function in _functions(prompt):
        name = function.get("name")
        if name in ALIAS:
            found[name] = function["parameters"]["properties"][ALIAS[name]]["enum"]
    return found


def _functions(prompt: str) -> Iterator[dict[str, Any]]:
    for line in prompt.splitlines():
        if line.startswith('{"type": "function"'):
            yield json.loads(line)["function"]


def call_text(tool: str, arguments: dict[str, Any]) -> str:
    """A call as the model writes it, in the form of the parser `hermes`."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def _has_customers(dataset: DatasetConfig) -> bool:
    return SHOP_ROWS in str(dataset) or TAU2_ROWS in str(dataset)


def _in_the_shop(dataset: DatasetConfig, *, seed: int) -> bool:
    """True if a data set has tasks of tau2; they are replaced by tasks of the shop."""
    made = {"split": "eval", "kinds": ["shop"]}
    source = dataset.generator_args.get("source") or {}
    if source.get("generator") == TAU2_ROWS:
        dataset.generator_args = {**dataset.generator_args, "source": {"generator": SHOP_ROWS, "generator_args": made}}
    elif dataset.generator == TAU2_ROWS:
        dataset.generator, dataset.generator_args = SHOP_ROWS, made
    else:
        return False
    dataset.seed = seed
    return True
