"""Calls that must be made and forms that a text must have, asked of a model that samples freely, over HTTP."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.scripted import Asked, user
from vime.errors import SampleError
from vime.types import Sample

pytestmark = pytest.mark.slow
"""They import vLLM's parsers."""

SCHEMA = {"type": "object", "properties": {"owner": {"type": "string"}}, "required": ["owner"], "additionalProperties": False}
FUNCTION = {"name": "answer", "description": "Says the owner.", "parameters": SCHEMA}
ELSEWHERE = {"$ref": "http://127.0.0.1:9/schema"}
"""A schema that is never fetched."""
OTHER = {"name": "search", "parameters": {"type": "object", "properties": {}}}
RIGHT_CALL = '<tool_call>\n{"name": "answer", "arguments": {"owner": "Ada"}}\n</tool_call>'
WRONG_CALL = '<tool_call>\n{"name": "search", "arguments": {"owner": "Ada"}}\n</tool_call>'
UNFIT_CALL = '<tool_call>\n{"name": "answer", "arguments": {"owner": 7}}\n</tool_call>'
RIGHT_TEXT = '{"owner": "Ada"}'
Ask = tuple[str, dict[str, Any]]


def chat(**more: Any) -> Ask:
    tools = [{"type": "function", "function": each} for each in (FUNCTION, OTHER)]
    return "/v1/chat/completions", {"messages": [user("Whose?")], **({"tools": tools} if "tool_choice" in more else {}), **more}


def responses(**more: Any) -> Ask:
    tools = [{"type": "function", **each} for each in (FUNCTION, OTHER)]
    return "/v1/responses", {"input": "Whose?", **({"tools": tools} if "tool_choice" in more else {}), **more}


def messages(**more: Any) -> Ask:
    tools = [{"name": each["name"], "input_schema": each["parameters"]} for each in (FUNCTION, OTHER)]
    tools = {"tools": tools} if "tool_choice" in more else {}
    return "/v1/messages", {"messages": [user("Whose?")], "max_tokens": 500, **tools, **more}


NAMED = {
    "chat": chat(tool_choice={"type": "function", "function": {"name": "answer"}}),
    "responses": responses(tool_choice={"type": "function", "name": "answer"}),
    "messages": messages(tool_choice={"type": "tool", "name": "answer"}),
}
REQUIRED = {
    "chat": chat(tool_choice="required"),
    "responses": responses(tool_choice="required"),
    "messages": messages(tool_choice={"type": "any"}),
}
WRONG_FORMS: list[dict[str, Any]] = [
    {"structured_outputs": 5},
    {"structured_outputs": {"choice": "yes"}},
    {"structured_outputs": {"choice": [1]}},
    {"structured_outputs": {"regex": ["x"]}},
    {"guided_json": 5},
    {"response_format": {"type": "json_schema", "json_schema": 5}},
]
FORMS = {
    "chat": chat(response_format={"type": "json_schema", "json_schema": {"name": "owner", "schema": SCHEMA}}),
    "responses": responses(text={"format": {"type": "json_schema", "name": "owner", "schema": SCHEMA}}),
    "messages": messages(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}),
}
ROWS = [
    *[(f"{name} {protocol}", ask, reply, malformed) for name, asks, cases in (
        ("named", NAMED, ((RIGHT_CALL, 0), ("Ada.", 1), (WRONG_CALL, 1), (UNFIT_CALL, 1))),
        ("required", REQUIRED, ((RIGHT_CALL, 0), ("Ada.", 1), (WRONG_CALL, 0), (UNFIT_CALL, 1))),
        ("form", FORMS, ((RIGHT_TEXT, 0), ("Ada.", 1), ('{"owner": 7}', 1), ("", 1), ('```json\n{"owner": "Ada"}\n```', 1))),
    ) for protocol, ask in asks.items() for reply, malformed in cases],
    *[(f"{next(iter(form))} of vLLM", chat(**fields), reply, malformed) for form, reply, malformed in (
        ({"choice": ["yes", "no"]}, "yes", 0),
        ({"choice": ["yes", "no"]}, "yes!", 1),
        ({"regex": "[a-z]+"}, "yes", 0),
        ({"regex": "[a-z]+"}, "Yes", 1),
        ({"regex": "(a+)+b"}, "a" * 100, 1),
        ({"regex": "("}, "yes", 0),
        ({"json": SCHEMA}, RIGHT_TEXT, 0),
        ({"json": SCHEMA}, "[]", 1),
        ({"json": '{"type": "array"}'}, "[]", 0),
        ({"grammar": "root ::= x"}, "yes", 0),
    ) for fields in ({"structured_outputs": form}, {f"guided_{kind}": value for kind, value in form.items()})],
    ("object of vLLM", chat(structured_outputs={"json_object": True}), "[]", 1),
    ("object", chat(response_format={"type": "json_object"}), '{"x": 1}', 0),
    ("object", chat(response_format={"type": "json_object"}), "[1]", 1),
    ("elsewhere", chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": ELSEWHERE}}), "1", 0),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("name", "ask", "reply", "malformed"), ROWS)
async def test_the_model_samples_freely_and_its_client_gets_what_comes(
    opened: Callable[..., Asked], name: str, ask: Ask, reply: str, malformed: int, stream: bool
):
    asked = opened(f"<think>\nHm.\n</think>\n\n{reply}<|im_end|>")
    path, body = ask
    status, found = await asked.send(path, {**body, "stream": stream})
    assert status == 200, found
    assert asked.model.constraints == [None] and asked.session.counts["malformed"] == malformed
    assert bool(asked.session.malformed) == bool(malformed)
    assert any("samples freely" in note for note in asked.session.notes)
    (sample,) = asked.audit()
    assert sum(sample.loss_mask) == len(asked.model.turns[0].output_ids)


async def test_the_prompt_is_that_of_a_free_choice(opened: Callable[..., Asked]):
    for forced, free in ((REQUIRED["chat"], chat(tool_choice="auto")), (FORMS["chat"], chat())):
        asked = opened(*["</think>\n\nAda.<|im_end|>"] * 2)
        for path, body in (forced, free):
            await asked.send(path, body)
        assert asked.model.prompts[0] == asked.model.prompts[1]


async def test_a_reply_that_can_be_read_makes_up_for_those_before_it(opened: Callable[..., Asked]):
    asked = opened("</think>\n\nAda.<|im_end|>", "</think>\n\nAda.<|im_end|>", f"</think>\n\n{RIGHT_CALL}<|im_end|>")
    await asked.send(*REQUIRED["chat"])
    await asked.send(*chat())  # which asks for nothing, and says nothing of the first
    assert "calls no tool" in asked.session.malformed
    await asked.send(*REQUIRED["messages"])
    assert asked.session.malformed == "" and asked.session.counts["malformed"] == 1


@pytest.mark.parametrize("form", WRONG_FORMS)
async def test_a_form_that_is_none_is_refused(opened: Callable[..., Asked], form: dict[str, Any]):
    asked = opened()
    status, body = await asked.send(*chat(**form))
    assert status == 400 and body["error"]["message"] and not asked.model.prompts


@pytest.mark.parametrize("ask", [*NAMED.values(), *REQUIRED.values(), *FORMS.values()])
async def test_where_they_are_refused_who_asked_is_told_so(opened: Callable[..., Asked], ask: Ask):
    asked = opened(refuses=True)
    for _ in range(2):
        status, body = await asked.send(*ask)
        assert status == 400 and "this model is being trained" in body["error"]["message"]
    assert asked.session.counts["refused"] == 2
    with pytest.raises(SampleError, match=r"2 calls were refused, the last one because: (tool_choice|response_format)"):
        asked.session.samples(Sample())
