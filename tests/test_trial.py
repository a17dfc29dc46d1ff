"""`mode=try` on a real server: an agent is shown turn by turn, and one that raises ends with its line and without a trainer.

A client that is listened to answers as its own, and tells what was new of each prompt.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vime.report.transcript import ShownCall
from vime.trial import HeardClient
from vime.types import Turn

AGENT = """
import logging

async def generate(context, sample, sampling):
    print("the agent begins")
    logging.getLogger(__name__).info("asking")
    turn = await context.models["actor"].chat(sample.prompt, max_tokens=16)
    if "broken" in sample.metadata:
        turn.text.nothing
    return context.samples(sample)

async def reward(context, samples):
    return 0.25
"""


def try_it(folder: Path, row: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """One prompt of a user's own file through the user's functions."""
    (folder / "mine.py").write_text(AGENT)
    (folder / "questions.jsonl").write_text(row + "\n")
    hooks = ["method.generate=mine.py:generate", "method.reward=mine.py:reward", "data.train.path=questions.jsonl"]
    command = [sys.executable, "-m", "vime.run", *hooks, "mode=try", f"output_dir={folder / 'run'}", *words]
    path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    shown = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": path}
    )
    for text in ("user: Who owns Halin?", "the agent begins", "call 1: actor", "reply:"):
        assert text in shown.stdout, shown.stderr
    assert "INFO vime_hook_mine" in shown.stderr and "Unclosed" not in shown.stderr
    assert (folder / "run" / "rollouts" / "step_000000.jsonl").exists()
    return shown


@pytest.mark.slow
@pytest.mark.in_turn
def test_one_prompt_goes_through_the_users_functions(tmp_path: Path) -> None:
    shown = try_it(tmp_path, '{"question": "Who owns Halin?", "answer": "Boxed"}')
    assert shown.returncode == 0 and "reward: 0.25" in shown.stdout and "(mine.py:9)" not in shown.stdout, shown.stderr
    logs = {path.name for path in (tmp_path / "run" / "logs").iterdir()}
    assert "actor-0.log" in logs and not [name for name in logs if name.startswith("trainer")]


def test_a_function_that_raises_ends_it_with_its_line(served: dict[str, Any], tmp_path: Path) -> None:
    from tests.served_stack import TIED_SHAPE

    stack = served["tied"]
    stack.trainer.step()
    asyncio.run(stack.sync(stack.trainer.export()))
    words = [*(f"model.{key}={value}" for key, value in TIED_SHAPE.items()), "serving.models.actor.max_model_len=1024"]
    words += [f"model.checkpoint={stack.endpoint.tokenizer}", f"serving.models.actor.urls=[{stack.endpoint.url}]"]
    row = '{"question": "Who owns Halin?", "answer": "Boxed", "broken": 1}'
    shown = try_it(tmp_path, row, *words)
    assert shown.returncode == 1 and "(mine.py:9)" in shown.stdout and "reward: 0.25" not in shown.stdout, shown.stderr
    assert not (tmp_path / "run" / "logs" / "actor-0.log").exists()


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
