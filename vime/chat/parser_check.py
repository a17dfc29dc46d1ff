"""Whether a model's parsers read what its chat template writes: two tool calls are rendered and must be read again.

A parser that does not fit returns no calls, without an error, and an agent would be trained without its tools.
"""

from typing import Any

from jinja2.exceptions import TemplateError

from vime.chat.reading import Reader
from vime.chat.request import ChatRequest
from vime.trajectory.messages import ASSISTANT, calls_of, parsed
from vime.trajectory.template import ChatTemplate
from vime.types import Message

TOOL_NAME = "search"
QUERIES = ("Ada Lovelace", "früh am Morgen")
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": TOOL_NAME,
            "description": "Searches.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
]
QUESTION: Message = {"role": "user", "content": "Who?"}


def unread_calls(tokenizer: Any, template_args: dict[str, Any], reader: Reader) -> str:
    """Why the calls that the template writes cannot be read; "" if they can.

    One call must do where the template takes no more.
    """
    template = ChatTemplate(tokenizer, template_args)
    for queries in (QUERIES, QUERIES[:1]):
        try:
            prompt = template.prompt([QUESTION], TOOLS)
            written = template.reply([QUESTION], _calling(queries), TOOLS)
        except TemplateError as error:
            problem = f"the chat template does not render them ({error})"
            continue
        reading = reader.begin(ChatRequest(messages=[QUESTION], tools=TOOLS), template.encode(prompt, {}))
        reading.whole(tokenizer.encode(written, add_special_tokens=False), stopped=False)
        found = [(call["function"]["name"], parsed(call["function"]["arguments"])) for call in calls_of(reading.message)]
        if found == [(TOOL_NAME, {"query": query}) for query in queries]:
            return ""
        return f"the chat template writes {written!r}, of which the parser reads {found or 'no call'}"
    return problem


def _calling(queries: tuple[str, ...]) -> Message:
    calls = [
        {"id": f"call{place:05}", "type": "function", "function": {"name": TOOL_NAME, "arguments": {"query": query}}}
        for place, query in enumerate(queries)
    ]
    return {"role": ASSISTANT, "content": "", "tool_calls": calls}
