"""Fields of the protocols, compared with the request types of the SDKs: none is ignored without a word."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from anthropic.types import MessageCountTokensParams, MessageCreateParams
from anthropic.types.beta.message_count_tokens_params import MessageCountTokensParams as BetaCountParams
from anthropic.types.beta.message_create_params import MessageCreateParams as BetaCreateParams
from anthropic.types.tool_union_param import ToolUnionParam
from openai.types.chat.completion_create_params import CompletionCreateParams
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_compact_params import ResponseCompactParams
from openai.types.responses.response_create_params import ResponseCreateParams
from openai.types.responses.tool_param import ToolParam

from tests.gateway.scripted import Asked, user
from vime.gateway.fields import CHAT, MESSAGES, RESPONSES, SAMPLING, Fields

SERVERS = {"code_execution", "web_search", "web_fetch", "tool_search_tool_bm25", "tool_search_tool_regex", "browser_toolset"}
SERVERS |= {"computer_toolset", "file_search", "computer", "computer_use_preview", "mcp", "code_interpreter", "image_generation"}
SERVERS |= {"programmatic_tool_calling", "tool_search", "web_search_preview"}
"""Tools that a provider's servers would run, or that answer in pictures: they are left out, with a note."""


def members(union: Any) -> Iterator[Any]:
    """The types of a union of unions."""
    for each in get_args(union):
        yield from members(each) if get_origin(each) is Union else [each]


def fields_of(*types: Any) -> set[str]:
    """The fields of request types, which are dictionaries or unions of these."""
    found: set[str] = set()
    for each in types:
        for one in members(each) if get_origin(each) is Union else [each]:
            found |= get_type_hints(one).keys()
    return found


def kinds_of(union: Any) -> set[str]:
    """The types of tools."""
    found: set[str] = set()
    for member in members(union):
        kind = get_type_hints(member)["type"]
        while get_origin(kind) is not Literal:
            kind = get_args(kind)[0]
        found |= set(get_args(kind))
    return found


@pytest.mark.parametrize(
    ("fields", "types"),
    [
        (CHAT, [CompletionCreateParams]),
        (RESPONSES, [ResponseCreateParams, InputTokenCountParams, ResponseCompactParams]),
        (MESSAGES, [MessageCreateParams, BetaCreateParams, MessageCountTokensParams, BetaCountParams]),
    ],
)
def test_every_field_of_the_sdks_has_its_place(fields: Fields, types: list[Any]):
    found = fields_of(*types)
    assert len(found) > 15
    assert found - fields.known == set()
    parts = [fields.read, fields.about, fields.no_effect, fields.refused, SAMPLING]
    assert sum(map(len, parts)) == len(fields.known), "a field has one place"


@pytest.mark.slow
def test_every_field_of_vllms_server_has_its_place():
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    assert set(ChatCompletionRequest.model_fields) - CHAT.known == set()


def undated(kind: str) -> str:
    return kind.partition("_20")[0]


@pytest.mark.slow
async def test_every_tool_of_the_sdks_is_offered_or_left_out_with_a_note(opened: Callable[..., Asked]):
    for kind in sorted(kinds_of(ToolUnionParam) - {"custom"}):
        asked = opened("</think>\n\nOne.<|im_end|>")
        tool = {"type": kind, "name": "it", "display_width_px": 640, "display_height_px": 480}
        body = {"messages": [user("?")], "max_tokens": 9, "tools": [tool]}
        assert (await asked.send("/v1/messages", body))[0] == 200
        shown = '"name": "it"' in asked.model.tokenizer.decode(asked.model.prompts[0])
        assert shown == (undated(kind) not in SERVERS), kind
        assert shown or any(f"the tool {kind}" in note for note in asked.session.notes)
    for kind in sorted(kinds_of(ToolParam) - {"function", "custom", "namespace"}):
        asked = opened("</think>\n\nOne.<|im_end|>")
        assert (await asked.send("/v1/responses", {"input": "?", "tools": [{"type": kind}]}))[0] == 200
        shown = f'"name": "{kind}"' in asked.model.tokenizer.decode(asked.model.prompts[0])
        assert shown == (undated(kind) not in SERVERS), kind
        assert shown or any(f"the tool {kind}" in note for note in asked.session.notes)


CHAT_BODY: Any = ("/v1/chat/completions", {"messages": [user("?")]})
RESPONSES_BODY: Any = ("/v1/responses", {"input": "?"})
MESSAGES_BODY: Any = ("/v1/messages", {"messages": [user("?")], "max_tokens": 9})
ASKED_FOR = [
    (CHAT_BODY, {"stop_token_ids": [5], "min_tokens": 3, "repetition_penalty": 1.3}, "sampling"),
    (CHAT_BODY, {"bad_words": ["x"], "allowed_token_ids": [1], "ignore_eos": True, "use_beam_search": True}, "sampling"),
    (RESPONSES_BODY, {"temperature": 0.1, "top_p": 0.5}, "sampling"),
    (MESSAGES_BODY, {"temperature": 0.1, "top_k": 5}, "sampling"),
    (CHAT_BODY, {"chat_template_kwargs": {"enable_thinking": False}}, "note"),
    (CHAT_BODY, {"reasoning_effort": "none"}, "note"),
    (CHAT_BODY, {"verbosity": "low"}, "note"),
    (RESPONSES_BODY, {"reasoning": {"effort": "none"}}, "note"),
    (RESPONSES_BODY, {"truncation": "auto"}, "note"),
    (RESPONSES_BODY, {"context_management": [{"type": "compaction"}]}, "note"),
    (MESSAGES_BODY, {"thinking": {"type": "disabled"}}, "note"),
    (MESSAGES_BODY, {"context_management": {"edits": []}}, "note"),
    (MESSAGES_BODY, {"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "note"),
    (CHAT_BODY, {"a_field_of_next_year": 1}, "note"),
    (MESSAGES_BODY, {"a_field_of_next_year": 1}, "note"),
    (CHAT_BODY, {"web_search_options": {"search_context_size": "low"}}, "refused"),
    (CHAT_BODY, {"modalities": ["text", "audio"], "audio": {"voice": "x"}}, "refused"),
    (CHAT_BODY, {"prompt_logprobs": 1}, "refused"),
    (RESPONSES_BODY, {"prompt": {"id": "pmpt_1"}}, "refused"),
    (MESSAGES_BODY, {"thread": {"type": "create"}}, "refused"),
    (CHAT_BODY, {"modalities": ["text"], "user": "me", "metadata": {"x": "y"}, "store": True, "audio": None}, "nothing"),
    (RESPONSES_BODY, {"truncation": "disabled", "include": ["reasoning.encrypted_content"], "prompt_cache_key": "x"}, "nothing"),
    (MESSAGES_BODY, {"metadata": {"user_id": "x"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"}}, "nothing"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ask", "fields", "told"), ASKED_FOR)
async def test_what_a_client_asks_for_is_recorded_noted_or_refused(
    opened: Callable[..., Asked], ask: tuple[str, dict[str, Any]], fields: dict[str, Any], told: str
):
    asked = opened("</think>\n\nOne.<|im_end|>")
    path, body = ask
    status, found = await asked.send(path, {**body, **fields})
    notes = " ".join(asked.session.notes)
    if told == "refused":
        assert status == 400 and next(iter(fields)) in found["error"]["message"] and not asked.model.prompts
    else:
        assert status == 200, found
        assert (set(asked.session.asked_sampling) == set(fields)) == (told == "sampling")
        assert all(f"{key} has no effect" in notes for key in fields) == (told == "note") and bool(notes) == (told == "note")
