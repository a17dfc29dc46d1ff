"""A client that is listened to answers as its own, and tells what was new of each prompt."""

from typing import Any

from vime.report.transcript import ShownCall
from vime.rollout.heard import HeardClient
from vime.types import Turn


class Letters:
    """A tokenizer whose ids are letters."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(map(chr, ids))


class Client:
    """Answers z."""

    calls = "its calls"

    async def generate(self, token_ids: Any, **options: Any) -> Turn:
        return Turn(output_ids=[ord("z")], finish_reason="stop")

    async def chat(self, messages: Any, **options: Any) -> Turn:
        return Turn(message={"role": "assistant", "content": "yes"}, usage=(5, 1))


async def test_each_call_tells_only_what_the_model_has_not_seen() -> None:
    heard: list[ShownCall] = []
    client = HeardClient(Client(), "actor", Letters(), heard.append)
    for text in ("abc", "abczd", "xbc"):
        assert (await client.generate([ord(letter) for letter in text], session_id="s")).finish_reason == "stop"
    assert [(call.prompt, call.num_known_tokens, call.num_prompt_tokens) for call in heard] == [
        ("abc", 0, 3),
        ("d", 4, 5),
        ("xbc", 0, 3),
    ]
    assert {call.reply for call in heard} == {"z"} and client.calls == "its calls"


async def test_a_call_behind_a_chat_api_is_told_by_its_messages() -> None:
    heard: list[ShownCall] = []
    await HeardClient(Client(), "judge", None, heard.append).chat([{"role": "user", "content": "Is 4 right?"}])
    assert heard[0].prompt == "user: Is 4 right?" and heard[0].num_prompt_tokens is None and "yes" in heard[0].reply
