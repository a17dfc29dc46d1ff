"""Agents that know nothing of vime: functions with a client, and programs with a URL."""

import asyncio
import re
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.qwen3_tokenizer import qwen3_tokenizer
from vime.agent.entry import entry_problems
from vime.chat.served_model import ServedModel
from vime.chat.trace import Trace
from vime.config import Constraints, MethodConfig, RolloutConfig, RunConfig, SessionConfig
from vime.errors import ContextFullError, SampleError
from vime.gateway.session_manager import SessionManager
from vime.rollout.context import Context, Sampling
from vime.rollout.outside_agent import load_generate
from vime.types import Rollout, Sample, StopReason, Turn
from vime.workers.isolation import Hooks, run_rollout

GUIDE = Path(__file__).resolve().parents[2] / "agentic" / "README.md"
pytestmark = pytest.mark.slow
"""They import the clients."""

AGENTS = """
import json, os, sys, threading

async def solve(openai_client, sample):
    for _ in range(2):
        answer = await openai_client.chat.completions.create(model="", messages=[{"role": "user", "content": sample.question}])
    return answer.choices[0].message.content

def solve_in_a_thread(anthropic_client, sample):
    asked = {"model": "", "max_tokens": 9, "messages": [{"role": "user", "content": sample.question}]}
    return {"output": anthropic_client.messages.create(**asked).content[0].text, "calls": 1}

together = threading.Barrier(12)

def waits_for_others(openai_client, sample):
    together.wait(60)
    asked = {"model": "", "messages": [{"role": "user", "content": sample.question}]}
    return openai_client.chat.completions.create(**asked).choices[0].message.content

async def never_calls(openai_client, sample):
    return "42"

async def solve_in_json(openai_client, sample):
    asked = {"model": "", "messages": [{"role": "user", "content": sample.question}]}
    answer = await openai_client.chat.completions.create(**asked, response_format={"type": "json_object"})
    return {"output": json.loads(answer.choices[0].message.content)}

async def sends_an_image(openai_client, sample):
    part = {"type": "image_url", "image_url": {"url": "x"}}
    for _ in range(2):
        try:
            await openai_client.chat.completions.create(model="", messages=[{"role": "user", "content": [part]}])
        except Exception:
            pass

async def wrong(openai_client):
    pass

if __name__ == "__main__":
    from urllib.request import Request, urlopen
    assert json.load(open(os.environ["VIME_SAMPLE"])) == {"prompt": "2 + 2?", "question": "2 + 2?", "hint": "a sum"}
    body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": sys.argv[1]}]}
    if sys.argv[1] == "an image":
        body["messages"][0]["content"] = [{"type": "image_url", "image_url": {"url": "x"}}]
    if sys.argv[1] == "a list":
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}}
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    answer = json.load(urlopen(Request(url, json.dumps(body).encode(), head)))
    print(answer["choices"][0]["message"]["content"], *sys.argv[2:])
    sys.exit(len(sys.argv) - 3)
"""


class Client:
    """Answers "four" to everything."""

    def __init__(self, tokenizer: Any) -> None:
        self.ids = tokenizer.encode("four<|im_end|>", add_special_tokens=False)

    async def generate(self, token_ids: Any, **options: Any) -> Turn:
        size = len(self.ids)
        return Turn(output_ids=self.ids, logprobs=[-1.0] * size, weight_versions=[1] * size, finish_reason="stop")


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    file = tmp_path / "agents.py"
    file.write_text(AGENTS)
    return file


SAMPLE = Sample(prompt="2 + 2?", label=["four"], metadata={"hint": "a sum"})
SAMPLING = Sampling(temperature=1.0, top_p=1.0)


def context_of(sessions: SessionManager, **session: Any) -> Context:
    tokenizer = qwen3_tokenizer()
    model = ServedModel(
        client=Client(tokenizer),
        tokenizer=tokenizer,
        max_model_len=1000,
        temperature=1.0,
        top_p=1.0,
        session="s",
    )
    config = RunConfig(method=MethodConfig(session=SessionConfig(**session)))
    models: Any = {"actor": model}
    return Context(config=config, evaluation=False, session_id="s", models=models, sessions=sessions, trajectory=model.trajectory)


async def run(path: str, *, question: str = "2 + 2?", **session: Any) -> list[Sample]:
    sessions, sample = SessionManager(), replace(SAMPLE, prompt=question)
    try:
        return await load_generate(path)(context_of(sessions, **session), sample, SAMPLING)  # type: ignore[return-value]
    finally:
        await sessions.stop()


async def rollout_of(path: str) -> Rollout:
    """A rollout as a worker runs it, with one retry."""
    sessions, trace = SessionManager(), Trace()

    def make_context(attempt: int) -> Context:
        return replace(context_of(sessions), trace=trace)

    try:
        return await run_rollout(
            hooks=Hooks(generate=load_generate(path), reward=one),
            config=RolloutConfig(max_retries=1),
            make_context=make_context,
            template=replace(SAMPLE, rollout_id=3),
            sampling=SAMPLING,
        )
    finally:
        await sessions.stop()


async def one(context: Context, samples: list[Sample]) -> float:
    return 1.0


async def test_a_function_is_given_a_client_of_its_model(agents: Path):
    samples = await run(f"{agents}:solve")
    assert [sample.response for sample in samples] == ["four", "four"], "equal requests are samples of their own"
    assert all(sample.metadata["output"] == "four" for sample in samples)
    (sample,) = await run(f"{agents}:solve_in_a_thread")
    assert sample.metadata["output"] == "four" and sample.metadata["calls"] == 1


async def test_agents_that_block_do_not_wait_for_each_others_threads(agents: Path):
    found = await asyncio.gather(*[run(f"{agents}:waits_for_others") for _ in range(12)])
    assert [sample.response for samples in found for sample in samples] == ["four"] * 12


async def test_a_program_is_given_the_address_of_its_model_and_its_row_without_the_label(agents: Path):
    (sample,) = await run(f"run {sys.executable} {agents} {{question}} '{{hint}}'")
    assert sample.response == "four" and sample.metadata["output"] == "four a sum\n" and sample.metadata["exit_code"] == 0


async def test_a_limit_ends_the_agent_whatever_it_makes_of_it(agents: Path):
    (sample,) = await run(f"{agents}:solve", num_calls=1)
    assert sample.stop_reason is StopReason.TURN_LIMIT and sample.response == "four"


@pytest.mark.parametrize("agent", ["solve", "solve_in_a_thread"])
async def test_a_first_prompt_that_fills_the_context_is_the_token_limit(agents: Path, agent: str):
    with pytest.raises(ContextFullError, match="no room in the context of actor"):
        await run(f"{agents}:{agent}", question="word " * 2000)


async def test_what_is_no_end_of_an_agent_is_an_error(agents: Path):
    with pytest.raises(SampleError, match="made no call to actor"):
        await run(f"{agents}:never_calls")
    with pytest.raises(SampleError, match=r"row has no field \{answer\}; it has hint, prompt, question"):
        await run(f"run {sys.executable} {agents} {{answer}}")
    with pytest.raises(SampleError, match="ended with status 1 after 1 calls of actor"):
        await run(f"run {sys.executable} {agents} {{question}} more words")
    with pytest.raises(SampleError, match=r"(?s)ended with status 1 after 0 calls of actor: .*No module named 'not_there'"):
        await run(f"run {sys.executable} -c 'import not_there'")
    with pytest.raises(FileNotFoundError):
        await run("run no-such-program")


async def test_an_agent_that_fails_on_a_reply_that_is_not_as_it_asked_for_has_ended(agents: Path):
    for path in (f"{agents}:solve_in_json", f"run {sys.executable} {agents} 'a list' x y"):
        rollout = await rollout_of(path)
        assert rollout.stop_reason is StopReason.MALFORMED and rollout.reward == 0.0 and rollout.num_retries == 0
        (sample,) = rollout.samples
        assert sum(sample.loss_mask) == 2 and "the text is no JSON" in rollout.error
        assert rollout.counts["session_malformed"] == 1
    rollout = await rollout_of(f"run {sys.executable} {agents} 'a list' x")  # it does not mind
    assert rollout.stop_reason is StopReason.ANSWERED and rollout.counts["session_malformed"] == 1
    rollout = await rollout_of(f"run {sys.executable} {agents} {{question}} x y")  # its failure has nothing to do with a reply
    assert rollout.stop_reason is StopReason.GENERATE_RAISED and rollout.num_retries == 1 and not rollout.samples


@pytest.mark.parametrize("evaluation", [False, True])
@pytest.mark.parametrize("constraints", [Constraints.free, Constraints.refuse])
async def test_the_trained_model_is_held_to_nothing_or_refuses_and_others_are_held(constraints: Constraints, evaluation: bool):
    sessions = SessionManager()
    context = context_of(sessions)
    context.config.gateway.constraints = constraints
    frozen = replace(context.models["actor"].untrained, name="judge")
    context = replace(context, evaluation=evaluation, models={**context.models, "judge": frozen})
    async with context.session() as session, context.session("judge") as other:
        is_free = constraints is Constraints.free
        assert (session.constrains, session.refuses) == (evaluation and not is_free, not evaluation and not is_free)
        assert (other.constrains, other.refuses) == (True, False)
    await sessions.stop()


async def test_who_was_refused_is_told_so(agents: Path):
    told = r"(?s)2 calls were refused, the last one because: messages\[0\].content: parts of type 'image_url' are not supported"
    with pytest.raises(SampleError, match=told):
        await run(f"{agents}:sends_an_image")
    rollout = await rollout_of(f"run {sys.executable} {agents} 'an image'")
    assert rollout.counts["session_refused"] == 1 and "HTTP Error 400" in rollout.error
    assert "1 call was refused because: messages[0].content" in rollout.error
    with pytest.raises(SampleError, match=r"made no call to actor.* ended with status 0 and printed: hello"):
        await run("run echo hello")


def test_what_generate_names_is_checked_before_anything_starts(agents: Path):
    for path in (
        f"{agents}:solve",
        f"{agents}:solve_in_a_thread",
        f"run {sys.executable} x.py",
        "vime.rollout.single_turn.generate",
    ):
        assert entry_problems(path) == []
    for path, words in (
        (f"{agents}:wrong", "define it as async def wrong(openai_client, sample)"),
        (f"{agents}:missing", "cannot be imported"),
        ("run no-such-program x", "there is no program 'no-such-program'"),
        ("run ", "no program is named"),
        ("run 'x", "is no command line"),
    ):
        (problem,) = entry_problems(path)
        assert words in problem.remedy


class Endpoint:
    """A chat API that answers with the fields that it was sent."""

    async def chat(self, messages: Any, *, max_tokens: int, tools: Any, sampling: dict[str, Any]) -> Turn:
        message = {"role": "assistant", "content": f"{len(messages)} {max_tokens} {sampling}"}
        return Turn(message=message, finish_reason="stop", usage=(7, 3))


async def test_a_baseline_behind_a_chat_api_answers_the_same_agent(agents: Path):
    model = ServedModel(client=Endpoint(), name="paid", max_model_len=1000, sampling={"temperature": 0.5}, shows_tokens=False)
    sessions = SessionManager()
    context = Context(config=RunConfig(), evaluation=True, session_id="s", models={"actor": model}, sessions=sessions)
    found = await load_generate(f"{agents}:solve_in_a_thread")(context, Sample(prompt="?"), Sampling(temperature=1.0, top_p=1.0))
    assert isinstance(found, list) and found[0].response == found[0].metadata["output"] == "1 9 {'temperature': 0.5}"
    await sessions.stop()


async def test_the_examples_of_the_guide_run(tmp_path: Path):
    section = GUIDE.read_text().split("## An agent that you already have")[1].split("\n## ")[0]
    for block in re.findall(r"(?:(?:^ {4}.*)?\n)+", section, re.M):
        code = textwrap.dedent(block).strip()
        if code.startswith("# "):
            (tmp_path / code.split()[1]).write_text(code)
    (sample,) = await run(f"{tmp_path / 'solver.py'}:solve")
    assert sample.metadata["output"] == "four" and sum(sample.loss_mask) == 4
    (sample,) = await run(f"run {sys.executable} {tmp_path / 'script.py'}")
    assert sample.metadata["output"] == "four\n"
