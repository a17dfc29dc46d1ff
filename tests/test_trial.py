"""`mode=try` on a real server: an agent is shown turn by turn, and one that raises ends with its line and without a trainer.

With scripted replies there is no server.

A client that is listened to answers as its own, and tells what was new of each prompt.
"""

import asyncio
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vime.config import TRY, Mode, RunConfig, ServingConfig, TrialConfig, TrialEngine
from vime.errors import ConfigError
from vime.inside_vllm.forced_tokens import FORCED
from vime.model.load_tokenizer import load_tokenizer
from vime.preflight.rules.method import trial
from vime.rehearsal.script import Asked, Rehearsal, ScriptedReply, WrittenScript
from vime.rehearsal.scripted_client import UNSCRIPTED, ScriptedClients
from vime.report.transcript import ShownCall
from vime.serving.endpoint import Endpoint
from vime.trial import HeardClient
from vime.types import Turn

TINY = Path(__file__).parent.parent / "agentic" / "memagent" / "tiny" / "actor"

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


@pytest.mark.long
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


def shown_in_the_guide(name: str) -> str:
    """A file of the section "An agent with tools" of `agentic/README.md`."""
    text = (Path(__file__).parent.parent / "agentic" / "README.md").read_text().split("## An agent with tools")[1]
    blocks = [textwrap.dedent(block).strip("\n") for block in re.findall(r"(?:(?:^ {4}.*)?\n)+", text, re.M)]
    (found,) = [block for block in blocks if block.startswith(f"# {name}\n")]
    return found.split("\n", 1)[1] + "\n"


def scripted(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "vime.run", "mode=try", "trial.engine=scripted", f"output_dir={folder / 'run'}", *words]
    path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, env=environment)


@pytest.mark.slow
def test_an_agent_with_a_tool_is_tried_with_written_replies_and_no_server(tmp_path: Path) -> None:
    for name in ("shop.py", "replies.jsonl"):
        (tmp_path / name).write_text(shown_in_the_guide(name))
    (tmp_path / "questions.jsonl").write_text('{"question": "What does a harp cost?", "answer": "37"}\n')
    words = ["method.generate=shop.py:generate", "method.reward=shop.py:reward", "data.train.path=questions.jsonl"]
    words += ["model.tool_parser=hermes", "trial.replies=replies.jsonl"]
    shown = scripted(tmp_path, *words)
    assert shown.returncode == 0 and "reward: 1" in shown.stdout, shown.stdout + shown.stderr
    assert "I look it up." in shown.stdout and '"name": "price"' in shown.stdout
    assert not list((tmp_path / "run" / "logs").glob("actor*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["+method=agentflow"], pytest.param(["+method=memagent", "method.rehearsal=null"], marks=pytest.mark.long)]
)
def test_a_method_is_tried_with_the_replies_of_its_rehearsal_or_its_demonstrations(tmp_path: Path, words: list[str]) -> None:
    shown = scripted(tmp_path, *words)
    assert shown.returncode == 0 and "call 2: actor" in shown.stdout, shown.stdout + shown.stderr


def replies_of(folder: Path, *lines: str, **trial: str) -> RunConfig:
    (folder / "replies.jsonl").write_text("\n".join(lines))
    return RunConfig(mode=TRY, trial=TrialConfig(engine=TrialEngine.scripted, replies=str(folder / "replies.jsonl"), **trial))


def test_each_call_of_a_model_takes_its_next_line(tmp_path: Path) -> None:
    script = WrittenScript(replies_of(tmp_path, '"one"', "", '{"text": "two", "cut": true}', '{"error": "lost"}'))
    asked = Asked(model="actor", prompt="?", session="s", turn=0, max_tokens=8)
    assert [script.reply(asked) for _ in range(3)] == [
        ScriptedReply(text="one"),
        ScriptedReply(text="two", cut=True),
        ScriptedReply(text="", error="lost"),
    ]
    assert "has 3 replies of actor: add one more" in script.reply(asked).error


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is no reply"),
        ("7", "line 2 is no reply"),
        ('{"txt": "a"}', "unknown field txt"),
        ('{"text": "a", "model": "judge"}', "judge"),
    ],
)
def test_a_line_that_is_no_reply_is_named(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        WrittenScript(replies_of(tmp_path, '"one"', line))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trial": TrialConfig(replies="a.jsonl")}, "trial.engine=scripted only"),
        ({"mode": Mode.train}, "is for mode=try"),
        ({"rehearse": True}, "leave one out"),
        ({}, "trial.replies=FILE"),
    ],
)
def test_scripted_replies_that_cannot_be_are_refused_before_anything_starts(changes: dict[str, Any], words: str) -> None:
    config = replace(RunConfig(mode=TRY, trial=TrialConfig(engine=TrialEngine.scripted)), **changes)
    (problem,) = trial(config)
    assert words in problem.remedy


async def test_a_player_ends_a_reply_at_its_limit_its_stop_text_or_its_end() -> None:
    tokenizer = load_tokenizer(str(TINY))
    player = ScriptedClients(RunConfig(), Rehearsal(RunConfig()), has_servers=False)(endpoint(), ServingConfig()).client
    ids = [*tokenizer.encode("The owner of Halin is Jorg.", add_special_tokens=False), tokenizer.eos_token_id]

    async def said(**sampling: Any) -> Turn:
        options = {"max_tokens": 64, "extra_args": {FORCED: ids}, **sampling}
        return await player.generate([1, 2], sampling=options, session_id="s", request_id="r", minimum_version=3)

    whole, cut, stopped = await said(), await said(max_tokens=3), await said(stop=["Halin"])
    assert (list(whole.output_ids), whole.finish_reason, set(whole.weight_versions)) == (ids, "stop", {3})
    assert (list(cut.output_ids), cut.finish_reason) == (ids[:3], "length")
    assert stopped.finish_reason == "stop" and tokenizer.decode(stopped.output_ids).endswith("Halin")
    assert UNSCRIPTED in tokenizer.decode((await said(extra_args={})).output_ids, skip_special_tokens=True)


def endpoint() -> Endpoint:
    return Endpoint(name="actor", url="", worker_urls=(), model="actor", tokenizer=str(TINY), max_model_len=512, trained=True)


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
