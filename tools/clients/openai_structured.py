"""OpenAI's SDK with structured output: `openai_structured.py parsed|refused`, which a model that is trained refuses."""

import sys
from typing import Any, Literal

from openai import BadRequestError, OpenAI
from pydantic import BaseModel


class Owner(BaseModel):
    """The owner of a thing."""

    owner: Literal["Ada", "Bea"]
    is_sure: bool


client = OpenAI()
asked: Any = {"model": "policy", "max_completion_tokens": 200}
messages: Any = [{"role": "user", "content": "Who owns the mill?"}]
if sys.argv[1] == "parsed":
    chat = client.chat.completions.parse(messages=messages, response_format=Owner, **asked).choices[0].message.parsed
    with client.responses.stream(model="policy", input=messages, text_format=Owner, max_output_tokens=200) as events:
        response = events.until_done().get_final_response().output_parsed
    assert isinstance(chat, Owner) and isinstance(response, Owner), (chat, response)
else:
    try:
        client.chat.completions.parse(messages=messages, response_format=Owner, **asked)
        sys.exit("structured output was not refused")
    except BadRequestError as error:
        assert "samples freely" in error.message, error.message
    assert client.chat.completions.create(messages=messages, **asked).choices[0].message.content
