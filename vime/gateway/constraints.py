"""Constraints that clients ask for: calls that must be made, and forms that a text must have.

A trained model still samples freely, unless the run enforces them (`gateway.constraints`). This module then tells whether its
reply meets the constraints.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import regex

from vime.chat.request import ChatRequest
from vime.trajectory.messages import calls_of, parsed, read_json
from vime.types import Message

MATCHING_SECONDS = 1.0
"""Time for a client's regular expression, which may need exponential time; the event loop waits for it."""
SHOWN_CHARACTERS = 200
"""Number of characters that are shown of a text that is not as it was asked for."""


def freely(request: ChatRequest) -> ChatRequest:
    """The request without its constraints: any tool may be called, and none need be."""
    choice = "none" if request.tool_choice == "none" else "auto"
    return replace(request, tool_choice=choice, response_format=None, structured_outputs=None)


def unmet(request: ChatRequest, message: Message) -> str:
    """The reason why a reply is not as its client asked for; "" if it is.

    Example: `the reply calls no tool, and tool_choice=required`.
    """
    if request.is_forced:
        return _unmet_choice(request, message)
    text = (message.get("content") or "").strip()
    if request.response_format is not None:
        schema = (request.response_format.get("json_schema") or {}).get("schema")
        return _unmet_schema(text, schema if schema is not None else {"type": "object"}, what="the text")
    return _unmet_form(request.structured_outputs or {}, text)


def _unmet_choice(request: ChatRequest, message: Message) -> str:
    choice = request.tool_choice
    asked = f"tool_choice={choice if isinstance(choice, str) else choice['function']['name']}"
    calls = [call["function"] for call in calls_of(message)]
    if not calls:
        return f"the reply calls no tool, and {asked}: {_shown(message.get('content') or '')}"
    tools = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in request.tools}
    allowed = tools if isinstance(choice, str) else {choice["function"]["name"]: tools[choice["function"]["name"]]}
    for call in calls:
        if call["name"] not in allowed:
            return f"the reply calls {call['name']!r}, and {asked}"
        arguments = call["arguments"] or "{}"  # a call without any
        wrong = _unmet_schema(arguments, {"type": "object"}, what="the arguments of the call")
        if wrong := wrong or _unmet_schema(arguments, allowed[call["name"]], what="the arguments of the call"):
            return wrong
    return ""


def _unmet_form(form: dict[str, Any], text: str) -> str:
    """The forms of vLLM's `structured_outputs`; grammars and structural tags are not checked."""
    if form.get("json") is not None:
        schema = parsed(form["json"])
        return _unmet_schema(text, schema if isinstance(schema, (dict, bool)) else {}, what="the text")
    if form.get("json_object"):
        return _unmet_schema(text, {"type": "object"}, what="the text")
    if form.get("choice") is not None and text not in form["choice"]:
        return f"the text is none of {form['choice']}: {_shown(text)}"
    if form.get("regex") is not None:
        try:
            found = regex.fullmatch(form["regex"], text, timeout=MATCHING_SECONDS)
        except (regex.error, TimeoutError):  # a dialect of regular expressions that is not read here, or one that takes forever
            return ""
        return "" if found else f"the text does not match {form['regex']!r}: {_shown(text)}"
    return ""


def _unmet_schema(text: str, schema: Any, *, what: str) -> str:
    """The reason why a text is not JSON of a schema. If a schema cannot be used, or refers to others, any JSON will do."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError, best_match
    from jsonschema.validators import extend, validator_for
    from referencing import Registry

    def pattern(validator: Any, expression: str, value: Any, whole: Any) -> Iterator[ValidationError]:
        if isinstance(value, str) and not regex.search(expression, value, timeout=MATCHING_SECONDS):
            yield ValidationError(f"{value!r} does not match {expression!r}")

    try:
        value = read_json(text)
    except ValueError as error:
        return f"{what} is no JSON ({error}): {_shown(text)}"
    try:
        kind: Any = extend(validator_for(schema, default=Draft202012Validator), {"pattern": pattern})
        wrong: Any = best_match(kind(schema, registry=Registry()).iter_errors(value))  # which fetches nothing
    except Exception:  # a client's schema may be anything, and it is not for us to say what it means
        return ""
    return "" if wrong is None else f"{what} does not fit its schema ({_shown(wrong.message)}): {_shown(text)}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…")
