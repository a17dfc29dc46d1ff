"""Each served model has its own sampling and template arguments; only the trained one has the run's."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agentic.memagent
from vime.chat.served_model import ServedModel
from vime.config import ChatConfig, RunConfig, SamplingConfig, ServedModelConfig
from vime.rollout.context import Context, Sampling
from vime.serving.endpoint import Endpoint
from vime.serving.external import ChatClient
from vime.trajectory.trajectory import Trajectory
from vime.types import RoutedExperts, Sample, Turn
from vime.workers.served import ServedModels

TINY = str(Path(agentic.memagent.__file__).parent / "tiny" / "actor")
POLICY = Sampling(temperature=0.9, top_p=1.0)
WARM = SamplingConfig(temperature=0.6, top_p=0.95, top_k=20, presence_penalty=1.5)
MESSAGES = [{"role": "user", "content": "Is 4 right?"}]


class Recorder:
    """A server of tokens that remembers how it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def generate(self, token_ids: Any, *, sampling: dict[str, Any], **_: Any) -> Any:
        self.asked.append(sampling)
        return Turn(output_ids=[1], logprobs=[-0.1], weight_versions=[0], finish_reason="stop", seconds=0.1)


class ChatRecorder(ChatClient):
    """The same for an endpoint with a chat API."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def chat(self, messages: list[dict[str, Any]], **how: Any) -> Turn:
        self.asked.append(how["sampling"])
        return Turn(message={"role": "assistant", "content": "yes"}, finish_reason="stop")


def served(**models: ServedModelConfig) -> tuple[ServedModels, dict[str, Any]]:
    """The actor and these frozen models on recording servers; those by their names."""
    config = RunConfig()
    config.model.checkpoint = TINY
    config.model.chat_template_args = {"enable_thinking": True}
    config.serving.models |= models
    clients: dict[str, Any] = {name: ChatRecorder() if name == "paid" else Recorder() for name in config.serving.models}
    endpoints = {
        name: Endpoint(
            name=name,
            url="http://nowhere",
            worker_urls=(),
            model=name,
            tokenizer=TINY,
            max_model_len=512,
            trained=name == "actor",
            chat=ChatConfig() if name == "paid" else None,
        )
        for name in clients
    }
    return ServedModels(config, endpoints, make_client=lambda endpoint, _: clients[endpoint.name]), clients


def asked(context: Context, clients: dict[str, Any], name: str) -> dict[str, Any]:
    """The request that a model's server gets when a hook asks it under this name, without the length."""
    before = {client: len(found.asked) for client, found in clients.items()}
    asyncio.run(context.models[name].chat(MESSAGES, max_tokens=4))
    (sampling,) = [how for client, found in clients.items() for how in found.asked[before[client] :]]
    return {key: value for key, value in sampling.items() if key != "max_tokens"}


def test_a_judge_is_greedy_and_only_the_trained_model_samples_as_the_policy_does() -> None:
    models, clients = served(judge=ServedModelConfig(), paid=ServedModelConfig(), customer=ServedModelConfig(sampling=WARM))
    context = models.context("s", sampling=POLICY, version=0)
    assert asked(context, clients, "actor") == {"temperature": 0.9, "top_p": 1.0}
    assert asked(context, clients, "judge") == {"temperature": 0.0, "top_p": 1.0}
    assert asked(context, clients, "paid") == {"temperature": 0.0}
    assert asked(context, clients, "customer") == {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "presence_penalty": 1.5}


def test_what_is_null_is_left_to_the_server() -> None:
    own = SamplingConfig(temperature=None)
    models, clients = served(judge=ServedModelConfig(sampling=own), paid=ServedModelConfig(sampling=own))
    context = models.context("s", sampling=POLICY, version=0)
    assert asked(context, clients, "judge")["temperature"] == 1.0, "vLLM's default"
    assert asked(context, clients, "paid") == {}


@pytest.mark.parametrize("name", ["judge", "paid"])
def test_a_baseline_samples_as_the_evaluation_and_as_itself_under_its_own_name(name: str) -> None:
    models, clients = served(**{name: ServedModelConfig(sampling=WARM)})
    evaluation = Sampling(temperature=0.7, top_p=0.8)
    context = models.context("s", sampling=evaluation, version=0, evaluation=True, baseline=name)
    assert asked(context, clients, "actor") == {"temperature": 0.7, "top_p": 0.8}
    assert asked(context, clients, name)["top_k"] == 20


def test_each_model_tells_its_own_chat_template() -> None:
    models, _ = served(judge=ServedModelConfig(chat_template_args={"enable_thinking": False}), other=ServedModelConfig())
    context = models.context("s", sampling=POLICY, version=0)
    told = {name: model.template_args(None) for name, model in context.models.items()}
    assert told == {"actor": {"enable_thinking": True}, "judge": {"enable_thinking": False}, "other": {}}


class Reporting:
    """A client whose server reports experts from the place that is asked for; keeps these places."""

    def __init__(self) -> None:
        self.asked: list[int | None] = []

    async def generate(self, token_ids: Any, *, experts_from: int | None = None, **_: Any) -> Turn:
        self.asked.append(experts_from)
        num = 0 if experts_from is None else len(token_ids) + 2 - 1 - experts_from
        experts = None if experts_from is None else RoutedExperts(experts_from, np.ones((num, 1, 1), np.uint8))
        return Turn(
            output_ids=[7, 8], logprobs=[-1.0, -1.0], weight_versions=[1, 1], finish_reason="stop", routed_experts=experts
        )


class Plain:
    def decode(self, ids: Any, **_: Any) -> str:
        return str(list(ids))


async def test_a_kept_turn_is_used_again_if_it_has_the_experts_that_the_calls_before_it_lack() -> None:
    def model(trajectory: Trajectory, *, records: bool) -> ServedModel:
        about: dict[str, Any] = {"tokenizer": Plain(), "max_model_len": 99, "trajectory": trajectory, "records_experts": records}
        return ServedModel(client=Reporting(), **about)

    async def converse(of: ServedModel) -> list[int | None]:
        first = await of.complete([1, 2, 3], max_tokens=2)
        await of.complete([*first.prompt_ids, *first.output_ids, 4], max_tokens=2)
        client: Any = of.client
        return client.asked

    without, first = Trajectory(), Trajectory()
    assert await converse(model(without, records=False)) == [None, None]
    assert await converse(model(first, records=True)) == [0, 4]
    assert await converse(model(Trajectory(without.saved()), records=True)) == [0, 4], "its turns have no experts"
    assert await converse(model(Trajectory(first.saved()), records=True)) == []
    later = Trajectory(first.saved()[1:])
    assert await converse(model(later, records=True)) == [0]
    (sample,) = later.samples(Sample())
    sample.validate(routed_experts=True)
    alone = Trajectory(first.saved()[1:])
    single = model(alone, records=True)
    await single.complete([1, 2, 3, 7, 8, 4], max_tokens=2)
    client: Any = single.client
    assert client.asked == [0], "what the first turn had is missing"
