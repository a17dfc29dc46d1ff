"""Tools in other forms than functions with ids: those that clients run by themselves, and functions as they were before tools."""

from collections.abc import Callable
from typing import Any

import pytest
from openai.types.responses import Response

from tests.gateway.scripted import Asked, user

pytestmark = pytest.mark.slow
"""They import vLLM's parsers."""


def call(name: str, arguments: str) -> str:
    return f'<think>\nHm.\n</think>\n\n<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call><|im_end|>'


LAST = "<think>\nSo.\n</think>\n\nDone.<|im_end|>"
LOCAL = {"command": ["ls", "-l"], "timeout_ms": 100}
SHELL = {"commands": ["ls", "pwd"]}
PATCH = {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"}
EXITED = [{"stdout": "a.py", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
TOOLS: list[tuple[dict[str, Any], str, str, dict[str, Any], Any, str]] = [
    (
        {"type": "local_shell"},
        '{"command": ["ls", "-l"], "timeout_ms": 100}',
        "action",
        {**LOCAL, "type": "exec", "env": {}},
        "a.py",
        "a.py",
    ),
    (
        {"type": "shell"},
        '{"commands": ["ls", "pwd"]}',
        "action",
        {**SHELL, "timeout_ms": None, "max_output_length": None},
        EXITED,
        "a.py\nexit code 0",
    ),
    (
        {"type": "shell", "environment": {"type": "local"}},
        '{"commands": ["sleep 9"], "timeout_ms": 5}',
        "action",
        {"commands": ["sleep 9"], "timeout_ms": 5, "max_output_length": None},
        [{"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}],
        "timed out",
    ),
    (
        {"type": "apply_patch"},
        '{"type": "update_file", "path": "a.py", "diff": "@@\\n-a\\n+b"}',
        "operation",
        PATCH,
        None,
        "completed",
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("tool", "arguments", "key", "value", "output", "shown"), TOOLS)
async def test_a_call_of_a_tool_that_the_client_runs_is_an_item_of_its_own_and_its_conversation_goes_on(
    opened: Callable[..., Asked],
    tool: dict[str, Any],
    arguments: str,
    key: str,
    value: dict[str, Any],
    output: Any,
    shown: str,
    stream: bool,
):
    name = tool["type"]
    asked = opened(call(name, arguments), LAST)
    body = {"input": [user("?")], "tools": [tool], "stream": stream, "store": False}
    status, found = await asked.send("/v1/responses", body)
    assert status == 200, found
    if stream:
        done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
        added = [event["item"]["type"] for event in found if event["type"] == "response.output_item.added"]
        assert added == [item["type"] for item in done] and not any("arguments" in event["type"] for event in found)
        found = found[-1]["response"]
        assert found["output"] == done
    Response.model_validate(found)
    item = found["output"][-1]
    assert item["type"] == f"{name}_call" and item[key] == value and item["call_id"]
    result = {"type": f"{name}_call_output", "call_id": item["call_id"], "output": output, "status": "completed"}
    again = {**body, "input": [user("?"), *found["output"], result], "stream": False}
    assert (await asked.send("/v1/responses", again))[1]["output"][-1]["content"][0]["text"].strip() == "Done."
    assert f"<tool_response>\n{shown}\n</tool_response>" in asked.model.tokenizer.decode(asked.model.prompts[-1])
    assert len(asked.audit()) == 1


@pytest.mark.parametrize("arguments", ["{}", '{"commands": "ls"}', '{"commands": [1]}', "[]"])
async def test_arguments_that_are_none_of_the_tool_stay_visible(opened: Callable[..., Asked], arguments: str):
    asked = opened(call("shell", arguments))
    _, found = await asked.send("/v1/responses", {"input": "?", "tools": [{"type": "shell"}]})
    assert arguments.strip("{}[]") in str(found["output"][-1]) and found["output"][-1]["type"] in ("function_call", "message")


async def test_a_shell_on_the_servers_of_its_provider_is_not_offered(opened: Callable[..., Asked]):
    asked = opened(LAST)
    await asked.send("/v1/responses", {"input": "?", "tools": [{"type": "shell", "environment": {"type": "container_auto"}}]})
    assert "commands" not in asked.model.tokenizer.decode(asked.model.prompts[0])
    assert any("the tool shell is not offered" in note for note in asked.session.notes)


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"type": "bash_20250124", "name": "bash"}, ("restart", "command")),
        ({"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}, ("str_replace", "insert_text", "view_range")),
        ({"type": "text_editor_20250124", "name": "str_replace_editor"}, ("undo_edit",)),
        ({"type": "memory_20250818", "name": "memory"}, ("old_path", "/memories")),
        ({"type": "computer_20250124", "name": "computer", "display_width_px": 640, "display_height_px": 480}, ("640 x 480",)),
    ],
)
async def test_tools_that_anthropics_clients_run_have_their_documented_schemas(
    opened: Callable[..., Asked], tool: dict[str, Any], words: tuple[str, ...]
):
    asked = opened(call(tool["name"], '{"command": "ls"}'), LAST)
    body = {"messages": [user("?")], "max_tokens": 99, "tools": [tool]}
    _, found = await asked.send("/v1/messages", body)
    use = found["content"][-1]
    assert (use["type"], use["name"], use["input"]) == ("tool_use", tool["name"], {"command": "ls"})
    shown = asked.model.tokenizer.decode(asked.model.prompts[0])
    assert tool["name"] in shown and all(word in shown for word in words) and not asked.session.notes
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"], "content": "a.py"}]}
    messages = [user("?"), {"role": "assistant", "content": found["content"]}, result]
    await asked.send("/v1/messages", {**body, "messages": messages})
    assert len(asked.audit()) == 1


FUNCTION = {"name": "owner_of", "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [None, "auto", {"name": "owner_of"}])
async def test_functions_in_their_earlier_form_are_tools(opened: Callable[..., Asked], stream: bool, choice: Any):
    asked = opened(*[call("owner_of", '{"thing": "mill"}')] * 2, LAST)
    body: dict[str, Any] = {"functions": [FUNCTION], "stream": stream} | ({} if choice is None else {"function_call": choice})
    messages: list[Any] = [user("?")]
    for _ in range(2):  # the same call twice
        status, found = await asked.send("/v1/chat/completions", {**body, "messages": messages})
        assert status == 200, found
        if stream:
            pieces = [chunk["choices"][0] for chunk in found]
            assert pieces[-1]["finish_reason"] == "function_call"
            parts = [piece["delta"]["function_call"] for piece in pieces if "function_call" in piece["delta"]]
            said = {key: "".join(part.get(key, "") for part in parts) for key in ("name", "arguments")}
        else:
            (answer,) = found["choices"]
            assert answer["finish_reason"] == "function_call" and "tool_calls" not in answer["message"]
            said = answer["message"]["function_call"]
        assert said["name"] == "owner_of" and "mill" in said["arguments"]
        reply = {"role": "assistant", "content": None, "function_call": said}
        messages += [reply, {"role": "function", "name": "owner_of", "content": "Ada"}]
    await asked.send("/v1/chat/completions", {**body, "messages": messages, "stream": False})
    shown = asked.model.tokenizer.decode(asked.model.prompts[-1])
    assert shown.count("<tool_response>\nAda\n</tool_response>") == 2 and '"name": "owner_of"' in shown
    assert asked.session.statistics()["fork_edited"] == 0
    asked.audit()


async def test_functions_that_must_not_be_called_are_not(opened: Callable[..., Asked]):
    asked = opened(call("owner_of", "{}"))
    body = {"messages": [user("?")], "functions": [FUNCTION], "function_call": "none"}
    _, found = await asked.send("/v1/chat/completions", body)
    assert found["choices"][0]["finish_reason"] == "stop" and "function_call" not in found["choices"][0]["message"]


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_allowed_tools_are_those_that_are_offered(opened: Callable[..., Asked], mode: str):
    other = {"name": "burn", "parameters": {"type": "object", "properties": {}}}
    chat = [{"type": "function", "function": each} for each in (FUNCTION, other)]
    allowed = [{"type": "function", "function": {"name": "owner_of"}}]
    choice: dict[str, Any] = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
    flat: dict[str, Any] = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "owner_of"}]}
    tools = [{"type": "function", **each} for each in (FUNCTION, other)]
    for path, body in (
        ("/v1/chat/completions", {"messages": [user("?")], "tools": chat, "tool_choice": choice}),
        ("/v1/responses", {"input": "?", "tools": tools, "tool_choice": flat}),
    ):
        asked = opened(call("owner_of", "{}"))
        assert (await asked.send(path, body))[0] == 200
        shown = asked.model.tokenizer.decode(asked.model.prompts[0])
        assert "owner_of" in shown and "burn" not in shown


async def test_a_conversation_is_compacted_and_goes_on(opened: Callable[..., Asked]):
    asked = opened("<think>\nHm.\n</think>\n\nThe mill is Ada's.<|im_end|>", LAST, LAST)
    items = [user("Whose is the mill?"), {"role": "assistant", "content": "I look."}, user("And?")]
    status, found = await asked.send("/v1/responses/compact", {"model": "m", "input": items, "instructions": "Be terse."})
    assert status == 200 and found["object"] == "response.compaction" and found["usage"]["output_tokens"] > 0
    assert [item.get("role") or item["type"] for item in found["output"]] == ["user", "user", "compaction"]
    _, found = await asked.send("/v1/responses", {"input": [*found["output"], user("So?")]})
    assert found["output"][-1]["content"][0]["text"].strip() == "Done."
    shown = asked.model.tokenizer.decode(asked.model.prompts[-1])
    assert "The mill is Ada's." in shown and "I look." not in shown
    assert (await asked.send("/v1/responses/compact", {"input": "A long text."}))[0] == 200
    asked.audit()
