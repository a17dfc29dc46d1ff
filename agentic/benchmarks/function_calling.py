"""BFCL, the Berkeley function calling leaderboard, version 4 (and 3): single-turn questions about functions in Python.

The categories are `simple_python` (one call of one function), `multiple` (one of several functions), `parallel` and
`parallel_multiple` (several calls), `irrelevance` (no function fits: no call is right), and those of users' questions, `live_*`.
Models that call tools (`model.tool_parser`) get the functions as tools with `calls: tools`; all others with `calls: text` in the
leaderboard's system prompt, and answer `[name(argument=value)]`.
"""

import json
import re
from typing import Any

from agentic.benchmarks.function_calls import Call, calls_in, matches
from agentic.benchmarks.published import FOLDER, Benchmark, Item, Source, outcome
from vime.environments.environment import Observation, Outcome, Reply
from vime.errors import ConfigError, Problem
from vime.rollout.context import Context
from vime.thinking import after_thinking
from vime.types import Message

CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance")
NO_ANSWERS = ("irrelevance", "live_irrelevance")
"""Categories without answers: a call is wrong."""
TASK = """\
You are an expert in composing functions.You are given a question and a set of possible functions. Based on the question, you \
will need to make one or more function/tool calls to achieve the purpose. If none of the functions can be used, point it out. If \
the given question lacks the parameters required by the function, also point it out.

You should only return the function calls in your response.

If you decide to invoke any of the function(s), you MUST put it in the format of [func_name1(params_name1=params_value1, \
params_name2=params_value2...), func_name2(params)].  You SHOULD NOT include any other text in the response.

At each turn, you should try your best to complete the tasks requested by the user within the current turn. Continue to output \
functions to call until you have fulfilled the user's request to the best of your ability. Once you have no more functions to \
call, the system will consider the current turn complete and proceed to the next turn or task.

Here is a list of functions in json format that you can invoke.
{functions}
"""
"""The leaderboard's prompt (bfcl-eval 2026.3.23, Apache-2.0)."""
HINT = " Note that the provided function is in Python 3 syntax."
"""Text that the leaderboard adds to every function's description."""
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


class Bfcl(Benchmark):
    """Some categories of BFCL, one after another."""

    def __init__(
        self,
        *,
        folder: str = "data",
        calls: str = "text",
        categories: list[str] | None = None,
    ) -> None:
        """Raises ConfigError for other categories or another form of calls."""
        self._folder, self.categories, self.calls = folder, list(categories or CATEGORIES), calls
        known = (*CATEGORIES, *LIVE)
        if wrong := [name for name in self.categories if name not in known]:
            remedy = f"there is no such category here: use {', '.join(known)}"
            raise ConfigError([Problem(key="settings.categories", value=wrong, remedy=remedy)])
        if calls not in ("text", "tools"):
            raise ConfigError([Problem(key="method.settings.calls", value=calls, remedy="use text or tools")])

    def items(self) -> list[Item]:
        """The items of all categories with their `category` and allowed answers, `ground_truth`."""
        return [item for category in self.categories for item in self._of(category)]

    def _of(self, category: str) -> list[Item]:
        found = _source(category).read(self._folder, hub=False)
        if category in NO_ANSWERS:
            return [item | {"category": category} for item in found]
        answers = {each["id"]: each["ground_truth"] for each in _source(category, answers=True).read(self._folder, hub=False)}
        if missing := [item["id"] for item in found if item["id"] not in answers]:
            remedy = (
                f"the answers of {category} lack {len(missing)} items, for example {missing[0]}: take both files of one version"
            )
            raise ConfigError([Problem(key=FOLDER, value=self._folder, remedy=remedy)])
        return [item | {"category": category, "ground_truth": answers[item["id"]]} for item in found]

    def asked(self, item: Item) -> list[Message]:
        """The question; without tools below the system prompt with the functions."""
        (turn,) = item["question"]
        if self.calls == "tools":
            return turn
        functions = [each | {"description": each["description"] + HINT} for each in item["function"]]
        system = TASK.format(functions=json.dumps(functions, indent=4))
        if turn[0]["role"] == "system":
            return [{"role": "system", "content": f"{system}\n\n{turn[0]['content']}"}, *turn[1:]]
        return [{"role": "system", "content": system}, *turn]

    def observation(self, item: Item) -> Observation:
        """The question with the functions as tools."""
        tools = [as_tool(each) for each in item["function"]] if self.calls == "tools" else []
        return Observation(content=self.asked(item), tools=tools)

    async def score(self, reply: Reply, item: Item, context: Context) -> Outcome:
        """1 if the calls are allowed ones, or there are none where none is right."""
        try:
            calls = self._calls(reply, item, thinks=context.config.model.thinks)
        except ValueError:
            calls = []
        if item["category"] in NO_ANSWERS:
            return outcome(float(not calls), called=float(bool(calls)))
        return outcome(float(matches(calls, item["function"], item["ground_truth"])), called=float(bool(calls)))

    def _calls(self, reply: Reply, item: Item, *, thinks: bool) -> list[Call]:
        if self.calls == "text":
            return calls_in(after_thinking(reply.text, thinks=thinks))
        names = {tool_name(each["name"]): each["name"] for each in item["function"]}
        found: list[Call] = []
        for each in reply.tool_calls:
            arguments: Any = each["function"]["arguments"]
            arguments = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
            if not isinstance(arguments, dict):
                raise ValueError("the arguments are no object")
            found.append((names.get(each["function"]["name"], each["function"]["name"]), arguments))
        return found


def _source(category: str, *, answers: bool = False) -> Source:
    place = "possible_answer/" if answers else ""
    names = [f"BFCL_v4_{category}.json", f"BFCL_v3_{category.removesuffix('_python')}.json"]
    get = "run `pip download --no-deps bfcl-eval==2026.3.23` and unzip bfcl_eval/data from the wheel"
    return Source(files=tuple(f"{folder}{place}{name}" for folder in ("", "bfcl/") for name in names), get=get)


def tool_name(name: str) -> str:
    """A function's name as OpenAI's form of tools allows it."""
    return re.sub(r"\.", "_", name)


def as_tool(function: dict[str, Any]) -> dict[str, Any]:
    """A published function as a tool in OpenAI's form."""
    about = {"description": function["description"] + HINT, "parameters": _schema(function["parameters"])}
    return {"type": "function", "function": {"name": tool_name(function["name"]), **about}}


def _schema(value: Any) -> Any:
    if isinstance(value, list):
        return [_schema(each) for each in value]
    if not isinstance(value, dict):
        return value
    fixed = {name: _schema(each) for name, each in value.items()}
    if isinstance(kind := value.get("type"), str):
        fixed["type"] = JSON_TYPES.get(kind, kind)
    return fixed
