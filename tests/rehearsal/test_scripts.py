"""The scripts of rehearsals: each rollout plays a part, answers are those of the rows, and replies go with their requests."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vime.config import DatasetConfig, MethodConfig, RunConfig, ServingConfig
from vime.inside_vllm.forced_tokens import FORCED
from vime.rehearsal.findings import MARK, RehearsalFindings, write_findings
from vime.rehearsal.script import Asked, Rehearsal, ScriptedReply
from vime.rehearsal.scripted_client import UNSCRIPTED_TOKENS, ScriptedClient, ScriptedClients

EOS = 9


def asked(session: str, prompt: str = "Where?") -> Asked:
    return Asked(model="actor", prompt=prompt, session=session, turn=0, max_tokens=8)


def test_attempts_play_the_parts_in_turn_and_keep_them():
    rehearsal = Rehearsal(RunConfig())
    acts = [rehearsal.act(asked(session), ("a", "b")) for session in ("s1", "s2", "s1", "s3", "s2")]
    assert acts == ["a", "b", "a", "a", "b"]


def test_the_answer_is_that_of_the_longest_question_in_the_prompt(tmp_path: Path):
    rows = '{"question": "Who owns it?", "answer": "Ada"}\n{"question": "Who owns it? And why?", "answer": "Ben"}\n'
    (tmp_path / "rows.jsonl").write_text(rows)
    config = RunConfig()
    config.data.train = DatasetConfig(path=str(tmp_path / "rows.jsonl"))
    rehearsal = Rehearsal(config)
    assert [rehearsal.gold_of(f"Say: {text}") for text in ("Who owns it?", "Who owns it? And why?", "Where?")] == [
        "Ada",
        "Ben",
        "unknown",
    ]


class Letters:
    eos_token_id = EOS

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [int(letter) for letter in text]

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(map(str, ids))


@dataclass
class Echo:
    sampling: dict[str, Any] = field(default_factory=dict)

    async def generate(self, token_ids: list[int], *, sampling: dict[str, Any], **options: Any) -> dict[str, Any]:
        return sampling

    async def chat(self, messages: list[Any], *, max_tokens: int, sampling: dict[str, Any], **options: Any) -> dict[str, Any]:
        return {"max_tokens": max_tokens, **sampling}


class OneTwo(Rehearsal):
    def reply(self, asked: Asked) -> ScriptedReply | None:
        replies = {"1": ScriptedReply(text="12"), "2": ScriptedReply(text="12", cut=True, seconds=30.0)}
        return replies.get(asked.prompt)


@pytest.mark.parametrize(
    ("prompt", "most", "forced"),
    [(1, 100, [1, 2, EOS]), (2, 2, [1, 2]), (3, UNSCRIPTED_TOKENS, None)],
    ids=["whole", "cut", "unscripted"],
)
async def test_a_reply_goes_to_the_server_as_tokens_of_the_request(prompt: int, most: int, forced: list[int] | None):
    config = RunConfig(method=MethodConfig(rehearsal=f"{__name__}.OneTwo"), serving=ServingConfig())
    took: list[float] = []
    client = ScriptedClient(Echo(), "actor", Letters(), ScriptedClients(config, OneTwo(config)))
    listener = SimpleNamespace(took=took.append)
    sent = cast(Any, await client.generate([prompt], sampling={"max_tokens": 100}, session_id="s", listener=listener))
    assert sent["max_tokens"] == most and sent.get("extra_args", {}).get(FORCED) == forced
    assert took == ([30.0] if prompt == 2 else [])
    messages = [{"role": "user", "content": "?"}]
    assert cast(Any, await client.chat(messages, max_tokens=100))["max_tokens"] == UNSCRIPTED_TOKENS


def test_findings_are_marked_and_name_what_never_occurred(tmp_path: Path):
    findings = RehearsalFindings(
        experiment="mine",
        counts={"tool": {"search": 3}},
        absent={"tool": ["answer"], "stop reason": ["time_limit"]},
        replaced=["model: small"],
        table="| | x |",
        seconds=12.0,
        peak_gib=1.5,
    )
    text = write_findings(tmp_path, findings)
    assert text == (tmp_path / "rehearsal.md").read_text() and text.count(MARK) == 2
    assert "Never occurred: tool answer, stop reason time_limit." in text and "| tool | search | 3 |" in text
