"""Common parts of the scripts: two questions, two tools, and the words that the answers must contain."""

import json
import sys
from typing import Any

SYSTEM = "You are terse. Ask your tools."
QUESTIONS = ("Who owns the mill and the früh 😀 barn, and what did the mill cost?", "And who is the richer of the two?")
EXPECTED = ("Ada owns the mill, which cost 40; Bea owns the barn.", "Ada is.")
OWNERS = {"mill": "Ada", "früh 😀 barn": "Bea"}
PRICES = {"mill": 40, "früh 😀 barn": 7}
PARAMETERS = {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"], "additionalProperties": False}
DESCRIPTIONS = {"owner_of": "Who owns a thing.", "price_of": "What a thing cost."}


def owner_of(thing: str) -> str:
    """The owner of a thing."""
    return OWNERS.get(thing, "nobody")


def price_of(thing: str) -> str:
    """The price of a thing."""
    return str(PRICES.get(thing, "unknown"))


def use(name: str, arguments: str | dict[str, Any]) -> str:
    """The result of a tool call."""
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {"owner_of": owner_of, "price_of": price_of}[name](**given)


def finish(answers: list[str]) -> None:
    """Ends the script: with 0 if all answers are as expected."""
    sys.stdout.write("".join(f"{answer}\n" for answer in answers))
    wrong = [answer for answer, expected in zip(answers, EXPECTED, strict=True) if expected not in answer]
    sys.exit(f"wrong answers: {wrong}" if wrong else 0)
