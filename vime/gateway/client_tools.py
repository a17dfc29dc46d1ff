"""Tools that a provider's models know and that a client runs itself; here they are offered to the model as functions.

The schemas are those that Anthropic and OpenAI document for them (bash, text editor, memory, computer; shell and patches).
"""

from typing import Any

from vime.trajectory.messages import parsed

Schema = dict[str, Any]
TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
PAIR = {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2}
TEXTS, NUMBERS = {"type": "array", "items": TEXT}, {"type": "array", "items": NUMBER}


def _schema(required: str, **properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": required.split()}


def _one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


EDITS = {"path": TEXT, "file_text": TEXT, "old_str": TEXT, "new_str": TEXT, "insert_line": NUMBER, "view_range": PAIR}
EDITOR = _schema("command path", command=_one_of("view", "create", "str_replace", "insert"), **EDITS, insert_text=TEXT)
MEMORY = _one_of("view", "create", "str_replace", "insert", "delete", "rename")
MOUSE = ("left_click", "right_click", "middle_click", "double_click", "left_click_drag", "mouse_move", "cursor_position")
KEYS = ("key", "type", "screenshot")
MORE = ("triple_click", "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait")
POINTER = {"coordinate": PAIR, "text": TEXT}
SCREEN = {
    **POINTER,
    "start_coordinate": PAIR,
    "scroll_direction": _one_of("up", "down", "left", "right"),
    "scroll_amount": NUMBER,
    "duration": {"type": "number"},
}
ANTHROPIC: dict[str, tuple[str, Schema]] = {
    "bash": ("Runs a command in a shell that stays open; `restart` opens a new one.", _schema("", command=TEXT, restart=FLAG)),
    "text_editor": ("Shows, makes and changes files.", EDITOR),
    "memory": (
        "Keeps notes in files below /memories.",
        _schema("command", command=MEMORY, **EDITS, insert_text=TEXT, old_path=TEXT, new_path=TEXT),
    ),
    "computer": (
        "Uses mouse and keyboard, and takes screenshots.",
        _schema("action", action=_one_of(*MOUSE, *KEYS, *MORE), **SCREEN),
    ),
}
"""Description and schema by the name of the tool's type, which a date follows."""
DATED: dict[str, Schema] = {
    "text_editor_20241022": _schema(
        "command path", command=_one_of("view", "create", "str_replace", "insert", "undo_edit"), **EDITS
    ),
    "text_editor_20250124": _schema(
        "command path", command=_one_of("view", "create", "str_replace", "insert", "undo_edit"), **EDITS
    ),
    "text_editor_20250429": _schema("command path", command=_one_of("view", "create", "str_replace", "insert"), **EDITS),
    "computer_20241022": _schema("action", action=_one_of(*MOUSE, *KEYS), **POINTER),
    "computer_20251124": _schema("action", action=_one_of(*MOUSE, *KEYS, *MORE, "zoom"), **SCREEN, region=NUMBERS),
}
"""Schemas of earlier and later versions."""

LOCAL_SHELL, SHELL, APPLY_PATCH = "local_shell", "shell", "apply_patch"
OPENAI: dict[str, tuple[str, Schema]] = {
    LOCAL_SHELL: (
        "Runs a program on the user's machine.",
        _schema("command", command=TEXTS, working_directory=TEXT, timeout_ms=NUMBER, env={"type": "object"}, user=TEXT),
    ),
    SHELL: (
        "Runs shell commands, one beside the other.",
        _schema("commands", commands=TEXTS, timeout_ms=NUMBER, max_output_length=NUMBER),
    ),
    APPLY_PATCH: (
        "Makes, changes or deletes one file; `diff` is in the V4A format.",
        _schema("type path", type=_one_of("create_file", "update_file", "delete_file"), path=TEXT, diff=TEXT),
    ),
}
"""Description and schema by the type of the tool, which is its name as well."""
OUTPUTS = {f"{kind}_call_output" for kind in OPENAI}
CALLS = {f"{kind}_call": kind for kind in OPENAI}


def anthropic_function(tool: dict[str, Any]) -> dict[str, Any] | None:
    """The function that represents a client-side tool of Anthropic's; None for another tool.

    Example: `{"type": "bash_20250124", "name": "bash"}`.
    """
    kind, _, date = str(tool.get("type")).rpartition("_")
    if kind not in ANTHROPIC or not date.isdigit():
        return None
    description, schema = ANTHROPIC[kind]
    if kind == "computer":
        description += f" The screen has {tool.get('display_width_px')} x {tool.get('display_height_px')} pixels."
    return {**tool, "description": description, "input_schema": DATED.get(str(tool.get("type")), schema)}


def openai_function(tool: dict[str, Any]) -> dict[str, Any] | None:
    """The function that represents a client-side tool of OpenAI's; None for another tool, and for a shell that runs elsewhere."""
    kind, environment = tool.get("type"), tool.get("environment")
    is_elsewhere = isinstance(environment, dict) and environment.get("type") not in (None, "local")
    if not isinstance(kind, str) or kind not in OPENAI or is_elsewhere:
        return None
    description, schema = OPENAI[kind]
    return {"name": kind, "description": description, "parameters": schema}


def call_item(kind: str, arguments: str) -> dict[str, Any] | None:
    """The fields of an item for a call of such a tool; None if the arguments do not fit the tool."""
    found = parsed(arguments)
    if not isinstance(found, dict):
        return None
    if kind == APPLY_PATCH:
        is_known = found.get("type") in ("create_file", "update_file", "delete_file") and isinstance(found.get("path"), str)
        return {"operation": found} if is_known else None
    words = found.get("command" if kind == LOCAL_SHELL else "commands")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return None
    if kind == LOCAL_SHELL:
        return {"action": {"env": {}, **found, "type": "exec"}}
    return {"action": {"timeout_ms": None, "max_output_length": None, **found}}


def call_arguments(kind: str, item: dict[str, Any]) -> Any:
    """The arguments of the call that an item represents."""
    found = item.get("operation" if kind == APPLY_PATCH else "action")
    if not isinstance(found, dict):
        return {}
    defaults = {"type": "exec"} if kind == LOCAL_SHELL else {}
    left_out = {key for key, value in found.items() if value is None or (key, value) == ("env", {}) or defaults.get(key) == value}
    return {key: value for key, value in found.items() if key not in left_out}


def output_text(item: dict[str, Any]) -> str:
    """A client's account of the end of such a call, as text for the model."""
    output = item.get("output")
    if not isinstance(output, list):
        return str(output or item.get("status") or "")
    texts: list[str] = []
    for part in output:
        if isinstance(part, dict):
            texts += [str(part[name]) for name in ("stdout", "stderr", "text") if part.get(name)]
            outcome = part.get("outcome")
            if isinstance(outcome, dict):
                texts.append("timed out" if outcome.get("type") == "timeout" else f"exit code {outcome.get('exit_code')}")
    return "\n".join(texts)
