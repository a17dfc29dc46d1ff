"""Cases of the benchmark of whole steps: what both sides sample is the same, and lengths are kept. Nothing about durations."""

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import get_json_schema

sys.path.append(str(Path(__file__).parents[2] / "tools"))

import bench_step
import step_case
from bench_rows import Result
from step_agents import generate
from step_ours import Source, Step

from tests.completing import context_with
from vime.chat.served_model import ServedModel
from vime.config import RunConfig
from vime.model.load_tokenizer import load_tokenizer
from vime.rollout.context import Sampling
from vime.types import Sample, Turn, rollout_id_of


@pytest.fixture
def tools_case() -> step_case.StepCase:
    return step_case.draw_case("1M", step_case.TOOLS, num_prompts=2, num_samples=4, num_steps=3, tokens=20)


class RandomServer:
    """Samples any tokens but control tokens, as the benchmark's model does."""

    async def generate(self, token_ids: Any, *, sampling: dict[str, Any], **named: Any) -> Turn:
        count = sampling["max_tokens"]
        ids = random.Random(len(token_ids)).choices(range(7, 1024), k=count)
        return Turn(output_ids=ids, logprobs=[-7.0] * count, weight_versions=[0] * count, finish_reason="length", seconds=0.5)


def test_a_case_is_the_same_whenever_it_is_drawn_and_every_call_fits_into_its_reply(tools_case: step_case.StepCase):
    again = step_case.draw_case("1M", step_case.TOOLS, num_prompts=2, num_samples=4, num_steps=3, tokens=20)
    assert again == tools_case
    assert len(tools_case.replies) == 8 and len(tools_case.prompts) == len(set(tools_case.prompts)) == 6
    assert len({len(lengths) for lengths in tools_case.replies}) > 1, "agents are ragged"
    tokenizer = load_tokenizer(step_case.TOKENIZER)
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "99 9"}}\n</tool_call><|im_end|>'
    assert len(tokenizer.encode(call)) <= step_case.CALL_TOKENS
    assert all(length >= step_case.CALL_TOKENS for lengths in tools_case.replies for length in lengths[:-1])


def test_the_tool_that_our_agents_show_is_what_transformers_makes_of_the_function():
    assert get_json_schema(step_case.search) == step_case.TOOL
    assert list(get_json_schema(step_case.search)["function"]) == list(step_case.TOOL["function"]), (
        "the template renders the order"
    )
    assert step_case.search("3 1") == step_case.search("3 1") != step_case.search("3 2")


def test_the_model_of_a_case_never_ends_a_reply_and_its_checkpoint_is_kept(tools_case: step_case.StepCase, tmp_path: Path):
    import torch
    from transformers import AutoModelForCausalLM

    step_case.write_case(tools_case, tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer: Any = load_tokenizer(tmp_path)
    with torch.inference_mode():
        ids = torch.randint(0, 1024, (4, 64), generator=torch.Generator().manual_seed(0))
        probabilities = model(ids).logits.softmax(-1)
    assert probabilities[..., sorted(tokenizer.added_tokens_decoder)].max() < 1e-9
    assert probabilities.max() < 0.5, "other tokens are sampled at random"
    written = (tmp_path / "model.safetensors").stat().st_mtime_ns
    step_case.write_case(tools_case, tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == written
    assert step_case.read_case(tmp_path) == tools_case


def test_our_agents_sample_what_the_case_says_and_put_the_tools_answers_between(tools_case: step_case.StepCase):
    tokenizer: Any = load_tokenizer(step_case.TOKENIZER)
    source = Source(tools_case, first=0)
    prompts = [source.next() for _ in range(4)]
    assert [prompt.metadata["first"] for prompt in prompts] == [0, 4, 0, 4]
    for rollout, lengths in enumerate(tools_case.replies):
        prompt = prompts[rollout // 4]
        about: Any = {"max_model_len": 4096, "temperature": 1.0, "top_p": 1.0, "session": "s"}
        model = ServedModel(client=RandomServer(), tokenizer=tokenizer, **about)
        context = context_with({"actor": model}, config=RunConfig())
        number = rollout_id_of(prompt.index, rollout % 4)
        sample = Sample(
            group_index=prompt.index, rollout_id=number, prompt=prompt.messages, label=[], metadata=dict(prompt.metadata)
        )
        samples = asyncio.run(generate(context, sample, Sampling(temperature=1.0, top_p=1.0)))
        assert len(samples) == 1, "the conversation did not fork"
        assert sum(samples[0].loss_mask) == sum(lengths)
        answers = [step_case.search(step_case.query_of(rollout, turn)) for turn in range(len(lengths) - 1)]
        said = tokenizer.decode(list(samples[0].tokens))
        assert all(answer in said for answer in answers)


def test_a_missed_goal_is_named_with_its_cause_and_its_bound(tools_case: step_case.StepCase):
    metrics = {"time/generation_seconds": 3.0, "time/training_seconds": 1.0, "time/sync_seconds": 0.5, "train/seconds": 1.0}
    metrics |= {"time/generation_share": 0.6, "train/tokens_per_second": 8000.0, "server/num_faults": 0.0}
    ours = Step(wall=5.0, cpu={"trainer": 2.0, "server": 5.0, "worker": 1.0, "driver and Ray": 1.0}, metrics=metrics)
    trl = {"wall": 4.0, "cpu": 7.0, "generation": 2.0}
    measured = bench_step.Measured(synchronous=[ours], ahead=[ours], trl=[trl], idle=[0.1], rate=1e11)
    result = Result(title="steps")
    bench_step.report(result, tools_case, "float32", measured)
    by_clock, by_cpu = result.rows[:2]
    assert by_clock.ratio == pytest.approx(4 / 5) and by_cpu.ratio == pytest.approx(7 / 9)
    shares, missed = result.notes
    assert "generation 60%" in shares and "server 56%" in shares and "10% of a core" in shares
    assert "0.80 of the goal 1.5" in missed and "Cause: generation, TRL is quicker there" in missed
    assert f"with TRL's time for its quicker phases {4 / (2 + 1.5):.2f}" in missed


def test_an_environment_without_trl_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setattr(sys, "argv", ["bench_step.py", "--trl-python", "/bin/false"])
    with pytest.raises(SystemExit):
        bench_step.main()
    assert "no TRL there" in capsys.readouterr().err
