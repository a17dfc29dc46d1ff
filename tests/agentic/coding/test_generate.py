"""A whole rollout without a server: workspace, session with vLLM's parser, the small agent, patch, and hidden tests."""

import json
from typing import Any

import pytest

from agentic.coding.generate import generate
from agentic.coding.reward import reward
from tests.completing import context_with
from tests.gateway.scripted import Scripted
from tests.qwen3_tokenizer import qwen3_tokenizer
from vime.errors import ContextFullError
from vime.gateway.session_manager import Parsers, SessionManager
from vime.preflight.compose import compose_run
from vime.rollout.context import Sampling
from vime.types import Sample, StopReason

pytestmark = pytest.mark.slow
ROW: dict[str, Any] = {
    "instance_id": "add",
    "problem_statement": "add subtracts.",
    "files": {"pkg/add.py": "def add(a, b):\n    return a - b\n"},
    "tests": {"tests/test_add.py": "from pkg.add import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"},
    "fail_to_pass": ["tests/test_add.py::test_add"],
}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call><|im_end|>"


def text(words: str) -> str:
    return f"{words}<|im_end|>"


class Shown(Scripted):
    """A scripted model with a context as large as a conversation needs."""

    shows_tokens = True
    max_model_len = 16_000


async def play(*replies: str, **limits: int) -> tuple[list[Sample], float, Shown]:
    words = [f"method.limits.{name}={value}" for name, value in limits.items()]
    config = compose_run(["+method=coding", "mode=plan", "method.prompt_style=full", *words]).config
    sessions = SessionManager({"actor": Parsers(tool_parser="hermes")})
    model = Shown(qwen3_tokenizer(), list(replies))
    models: Any = {"actor": model}
    context = context_with(models, config=config, sessions=sessions)
    sample = Sample(prompt=ROW["problem_statement"], metadata=ROW, rollout_id=3)
    samples = await generate(context, sample, Sampling(temperature=1.0, top_p=1.0))
    score = (await reward(context, samples)).score
    await sessions.stop()
    return samples, score, model


async def test_an_agent_with_a_sub_agent_and_a_summary_solves_its_problem_and_every_token_is_trained_once():
    samples, score, model = await play(
        call("explore", question="Where is add?"),
        call("shell", command="grep -rl 'def add' ."),
        text("In pkg/add.py."),
        call("view", path="pkg/add.py"),
        text("add in pkg/add.py has a minus."),
        call("edit", path="pkg/add.py", old="a - b", new="a + b"),
        text("I was asked for a summary again: it is edited."),
        call("submit"),
        turn_tokens=200,
        context_tokens=700,
    )
    metadata = samples[-1].metadata
    assert score == 1.0 and metadata["ending"] == "submitted" and samples[-1].stop_reason is StopReason.ANSWERED
    assert metadata["verdict"]["reason"] == "solved" and "+    return a + b" in metadata["patch"]
    assert metadata["segments"]["main"] == metadata["segments"]["subagent"] == 1 and metadata["segments"]["compacted"] >= 1
    assert sum(metadata["segments"].values()) == len(samples) and {sample.rollout_id for sample in samples} == {3}
    trained = [
        logprob for sample in samples for logprob, mask in zip(sample.rollout_log_probs, sample.loss_mask, strict=True) if mask
    ]
    assert sorted(trained) == sorted(logprob for turn in model.turns for logprob in turn.logprobs)
    assert metadata["tokens"] == len(trained)


async def test_an_agent_that_changes_nothing_earns_nothing_and_one_that_edits_tests_is_counted():
    samples, score, _ = await play(call("submit"), turn_tokens=200, context_tokens=4000)
    assert (score, samples[-1].metadata["patch"], samples[-1].metadata["verdict"]["reason"]) == (0.0, "", "no_patch")
    conftest = "import pytest\n\n\ndef pytest_collection_modifyitems(items):\n    items.clear()\n"
    samples, score, _ = await play(
        call("edit", path="conftest.py", old="", new=conftest), call("submit"), turn_tokens=300, context_tokens=4000
    )
    assert score == 0.0 and samples[-1].metadata["verdict"]["touched"] == ["conftest.py"]


async def test_a_problem_that_does_not_fit_into_the_context_is_said_to_the_engine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Shown, "max_model_len", 20)
    with pytest.raises(ContextFullError, match="no room"):
        await play()
