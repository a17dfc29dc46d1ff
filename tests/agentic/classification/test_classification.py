"""Classification: what is trained of a completion, what an evaluation asks besides, rewards, and settings that cannot be."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import agentic.memagent.config
from agentic.classification.config import ClassificationConfig
from agentic.classification.eval_log import eval_log
from agentic.classification.generate import generate
from agentic.classification.reward import first_label, reward
from tests.completing import context_with
from vime.chat.served_model import ServedModel
from vime.config import RunConfig
from vime.model.load_tokenizer import load_tokenizer
from vime.rollout.context import Context, Sampling
from vime.types import Sample, StopReason, Turn

TOKENIZER = load_tokenizer(Path(agentic.memagent.config.__file__).parent / "tiny/actor")
METHOD = ClassificationConfig(template="The text is {text} . Kind :", labels=["good", "very good", "bad"])


class Scripted:
    """A server that says " bad" to a greedy call, the first choice to a constrained one, and `reply` otherwise."""

    def __init__(self, reply: str) -> None:
        self.reply, self.asked = reply, list[dict[str, Any]]()

    async def generate(self, token_ids: Any, *, sampling: dict[str, Any], **_: Any) -> Turn:
        self.asked.append(sampling)
        text = self.reply if sampling["temperature"] else " bad"
        if "structured_outputs" in sampling:
            text = sampling["structured_outputs"]["choice"][0]
        ids = TOKENIZER.encode(text, add_special_tokens=False)
        numbers = {"logprobs": [-1.0] * len(ids), "weight_versions": [1] * len(ids)}
        return Turn(prompt_ids=list(token_ids), output_ids=ids, finish_reason="stop", message={}, **numbers)


def context_of(server: Scripted, *, evaluation: bool) -> Context:
    model = ServedModel(client=server, tokenizer=TOKENIZER, max_model_len=64, temperature=1.0, top_p=1.0, session="s")
    return context_with({"actor": model}, config=RunConfig(method=METHOD), evaluation=evaluation)


async def classified(reply: str, *, evaluation: bool = False) -> tuple[Sample, dict[str, float], Scripted]:
    server = Scripted(reply)
    context = context_of(server, evaluation=evaluation)
    sample = await generate(
        context, Sample(prompt=[{"role": "user", "content": "good"}], label=["good"]), Sampling(temperature=1.0, top_p=1.0)
    )
    scored = await reward(context, [replace(sample, label=["good"])])
    return sample, {"score": scored.score, **scored.metrics}, server


async def test_the_completion_is_trained_and_the_prompt_is_not():
    sample, metrics, server = await classified(" good")
    prompt = TOKENIZER.encode("The text is good . Kind :", add_special_tokens=False)
    assert sample.tokens[: len(prompt)] == prompt and sample.loss_mask == [1] * (len(sample.tokens) - len(prompt))
    assert sample.response.strip() == "good" and metrics == {"score": 1.0, "strict": 1.0, "lenient": 1.0, "form": 1.0}
    assert sample.stop_reason is StopReason.ANSWERED and len(server.asked) == 1


async def test_an_evaluation_asks_for_the_likeliest_completion_and_class_too():
    sample, metrics, server = await classified(" it is good", evaluation=True)
    assert [asked["temperature"] for asked in server.asked] == [1.0, 0.0, 0.0]
    assert server.asked[-1]["structured_outputs"] == {"choice": [" good", " very good", " bad"]}
    assert metrics == {"score": 0.0, "strict": 0.0, "lenient": 1.0, "form": 0.0, "greedy": 0.0, "likeliest": 1.0}
    assert "good" in sample.response and "bad" not in sample.response, "only the sampled completion is the sample"
    log = eval_log(None, [{"metrics": metrics}, {"metrics": {}}])
    assert log.metrics == {"greedy": 0.0, "likeliest class": 0.5, "replies that are a class": 0.0}


@pytest.mark.parametrize(
    ("text", "label"), [("Very good", "very good"), ("good, not bad", "good"), ("bad", "bad"), ("neither", None), ("", None)]
)
def test_the_first_name_counts_and_the_longer_one_of_two(text: str, label: str | None):
    assert first_label(text, METHOD.labels) == label


def test_settings_that_cannot_be_are_refused():
    wrong = ClassificationConfig(template="no place", labels=["one", "one"])
    assert [problem.key for problem in wrong.problems(RunConfig(method=wrong))] == ["method.labels", "method.template"]
    assert METHOD.problems(RunConfig(method=METHOD)) == []
