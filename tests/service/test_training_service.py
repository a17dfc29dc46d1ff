"""The service with its real trainer and server: gradients, steps, checkpoints and samplers of several models on one base."""

import asyncio
import itertools
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from anthropic import AsyncAnthropic
from openai import APIStatusError, AsyncOpenAI

from tests.service.test_client_loss import reference
from vime.config import LoraConfig, LoraTarget
from vime.service import wire
from vime.service.client_loss import LOSSES, NUMBERS

pytestmark = [pytest.mark.slow, pytest.mark.in_turn]
VOCAB_SIZE, LENGTHS = 320, (12, 5, 20)
START_SECONDS = 400
ANSWER_SECONDS = 400
"""Longest wait for the outcome of a call."""
LARGE = 1e3
"""An epsilon beside which a step of Adam is proportional to the gradient."""


@pytest.fixture(scope="module")
def url(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service of the `untied` checkpoint in float32, whose server holds two adapters at a time, also of the output head."""
    words = [
        f"trainer.lora.targets=[{','.join(target.value for target in (*LoraConfig().targets, LoraTarget.lm_head))}]",
        "trainer.lora.rank=16",
    ]
    with served(checkpoints["untied"], tmp_path_factory.mktemp("service"), "service.num_samplers=2", *words) as url:
        yield url


@pytest.fixture(scope="module")
def url_of_all_weights(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service of the same checkpoint that trains all weights."""
    with served(checkpoints["untied"], tmp_path_factory.mktemp("service"), "trainer.lora.rank=0") as url:
        yield url


@contextmanager
def served(checkpoint: Path, folder: Path, *words: str) -> Iterator[str]:
    """The address of a service until the end of the block."""
    shape = {"family": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    shape |= {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 1024, "checkpoint": checkpoint}
    given = [f"model.{name}={value}" for name, value in shape.items()]
    given += ["trainer.precision=float32", "service.port=0", *words]
    given += [
        "serving.models.actor.max_model_len=1024",
        "serving.models.actor.gpu_memory_utilization=0.01",
        f"output_dir={folder}",
    ]
    with (folder / "service.log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "vime.service", *given], stderr=log, stdout=log)
        try:
            yield asyncio.run(address_of(process, folder / "service.log"))
        finally:
            process.terminate()
            assert process.wait(60) == 0


async def address_of(process: subprocess.Popen[Any], log: Path) -> str:
    for _ in range(START_SECONDS):
        assert process.poll() is None, log.read_text()
        if found := re.search(r"is served at (http://\S+)", log.read_text()):
            return found[1]
        await asyncio.sleep(1.0)
    raise AssertionError(log.read_text())


class Client:
    """A client of the Tinker API, without its SDK."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url, self._http = f"{url}/api/v1", http
        self.session, self._numbers = "", dict[str, int]()

    async def post(self, path: str, body: Any) -> Any:
        given = {"data": body, "headers": {"Content-Type": wire.CONTENT_TYPE}} if isinstance(body, bytes) else {"json": body}
        async with self._http.post(f"{self._url}/{path}", **given) as response:
            if response.status == 408:  # not done yet: an answer of a future that says so after some seconds
                return await self.post(path, body)
            assert response.status == 200, (path, await response.text())
            return await response.read() if response.content_type == wire.CONTENT_TYPE else await response.json()

    async def get(self, path: str) -> Any:
        async with self._http.get(f"{self._url}/{path}") as response:
            assert response.status == 200, (path, await response.text())
            return await response.json()

    async def delete(self, path: str) -> None:
        async with self._http.delete(f"{self._url}/{path}") as response:
            assert response.status == 200, (path, await response.text())

    async def done(self, path: str, body: Any) -> Any:
        promise = await self.post(path, body)
        async with asyncio.timeout(ANSWER_SECONDS):
            found = await self.post("retrieve_future", {"request_id": promise["request_id"]})
        assert isinstance(found, bytes) or "error" not in found, found
        return found

    async def call(self, route: str, model: str, **fields: Any) -> Any:
        return await self.done(route, {"model_id": model, "seq_id": self.number(model), **fields})

    def number(self, of: str) -> int:
        self._numbers[of] = self._numbers.get(of, 0) + 1
        return self._numbers[of]

    async def model(self, *, rank: int = 8, seed: int = 1, **lora: bool) -> str:
        number = self.number("models")
        about = {"session_id": self.session, "model_seq_id": number, "base_model": "tiny"}
        return (await self.done("create_model", about | {"lora_config": {"rank": rank, "seed": seed, **lora}}))["model_id"]

    async def train(
        self, model: str, data: Sequence[dict[str, Any]], loss: str = "cross_entropy", *, forward_only: bool = False
    ) -> tuple[list[np.ndarray], float]:
        """The logprobs of the targets of each datum, and the loss."""
        request = wire._CLASSES["Request"](model_id=model, seq_id=self.number(model), loss_fn=loss, forward_only=forward_only)
        for datum in data:
            added = request.data.add()
            added.model_input.add().encoded_text.tokens = np.asarray(datum["tokens"], np.int32).tobytes()
            for key, value in datum.items():
                if key != "tokens":
                    dtype = (wire.INT64, np.int64) if key == "target_tokens" else (wire.FLOAT32, np.float32)
                    array = np.asarray(value, dtype[1])
                    tensor = added.loss_fn_inputs.add(key=key).value
                    tensor.dense, tensor.dtype, tensor.shape[:] = array.tobytes(), dtype[0], array.shape
        output = wire._CLASSES["Output"].FromString(await self.done("forward_backward", request.SerializeToString()))
        value = output.loss_fn_outputs[0].fields[0].value
        starts = np.frombuffer(value.offsets, np.int64) // 4
        flat = np.frombuffer(value.data, np.float32)
        logprobs = [flat[start:end].reshape(-1, *value.trailing_shape) for start, end in itertools.pairwise(starts)]
        return logprobs, {each.key: each.value for each in output.metrics}.get("loss:sum", float("nan"))

    async def step(self, model: str, *, lr: float = 1e-3, **options: float) -> dict[str, float]:
        return (await self.call("optim_step", model, adam_params={"learning_rate": lr, **options}))["metrics"]

    async def sampler(self, **weights: str) -> str:
        about = {"session_id": self.session, "sampling_session_seq_id": 1000 + self.number("samplers"), **weights}
        return (await self.post("create_sampling_session", about))["sampling_session_id"]

    async def sample(self, sampler: str, prompt: list[int], **parameters: Any) -> tuple[list[int], list[float]]:
        body = {"sampling_session_id": sampler, "seq_id": self.number(sampler), "sampling_params": parameters}
        answer = await self.done("asample", body | {"prompt": {"chunks": [{"tokens": prompt}]}})
        (sequence,) = wire._CLASSES["SampleResponse"].FromString(answer).sequences
        return np.frombuffer(sequence.tokens, np.int32).tolist(), np.frombuffer(sequence.logprobs, np.float32).tolist()


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(headers={"X-API-Key": "tml-me"}) as http:
        client = Client(url, http)
        client.session = (await client.post("create_session", {}))["session_id"]
        yield client
        for name in list(client._numbers):
            if ":train:" in name:
                await client.call("unload_model", name)


def data_of(seed: int, *, of_policy: bool = False) -> list[dict[str, Any]]:
    """Random sequences; for losses of a policy with logprobs and advantages."""
    generator, data = np.random.default_rng(seed), list[dict[str, Any]]()
    for length in LENGTHS:
        ids = generator.integers(0, 256, length + 1)
        datum: dict[str, Any] = {"tokens": ids[:-1], "target_tokens": ids[1:]}
        if of_policy:
            datum |= {"logprobs": generator.normal(-8, 1, length), "advantages": generator.normal(0, 1, length)}
        else:
            datum |= {"weights": generator.integers(0, 3, length) / 2}
        data.append(datum)
    return data


async def test_the_gradient_of_every_loss_is_that_of_the_reference(url: str):
    async with client_of(url) as client:
        for name in LOSSES:
            data = data_of(1, of_policy=name != "cross_entropy")
            if name == "gspo":
                data = [datum | {"sequence_ratio_mask": np.arange(len(datum["tokens"])) % 3 > 0} for datum in data]
            own, twin = [await client.model(seed=5) for _ in range(2)]
            for model in (own, twin):  # B is zero in a new adapter, and then half of the gradient is, too
                await client.train(model, data_of(2))
                await client.step(model, lr=1e-2)
            if name != "cross_entropy":  # ratios near 1, where some are clipped and some are not
                present, _ = await client.train(own, plain(data), forward_only=True)
                noise = np.random.default_rng(3)
                data = [each | {"logprobs": p + noise.normal(0, 0.2, len(p))} for each, p in zip(data, present, strict=True)]
            logprobs, loss = await client.train(own, data, name)
            leaves = [torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in logprobs]
            expected = reference(name, [as_reference(*pair) for pair in zip(data, leaves, strict=True)], NUMBERS[name])
            assert loss == pytest.approx(float(expected.detach()), rel=1e-4), name
            gradients = torch.autograd.grad(expected, leaves)
            compiled = [
                {"tokens": datum["tokens"], "target_tokens": datum["target_tokens"], "weights": -gradient.numpy()}
                for datum, gradient in zip(data, gradients, strict=True)
            ]
            await client.train(twin, compiled)
            norms = [(await client.step(model, lr=10.0, eps=LARGE))["grad_norm"] for model in (own, twin)]
            assert norms[0] == pytest.approx(norms[1], rel=1e-4), name
            after = [(await client.train(model, plain(data), forward_only=True))[0] for model in (own, twin)]
            moved = max(np.abs(x - y).max() for x, y in zip(after[0], logprobs, strict=True))
            assert moved > 1e-2, name
            for x, y in zip(*after, strict=True):
                np.testing.assert_allclose(x, y, atol=1e-4)
            for model in (own, twin):
                await client.call("unload_model", model)
                del client._numbers[model]


def plain(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: datum[name] for name in ("tokens", "target_tokens")} for datum in data]


def as_reference(datum: dict[str, Any], logprobs: torch.Tensor) -> dict[str, torch.Tensor]:
    names = {"logprobs": "logprob", "advantages": "advantage", "weights": "weight", "sequence_ratio_mask": "sequence_ratio_mask"}
    found = {ours: torch.tensor(np.asarray(datum[name], np.float64)) for name, ours in names.items() if name in datum}
    return found | {"logprobs": logprobs}


async def test_gradients_add_up_and_models_do_not_meet(url: str):
    async with client_of(url) as client:
        parted, whole, other = [await client.model(seed=5) for _ in range(3)]
        first, second = data_of(6), data_of(7)
        await client.train(parted, first)
        await client.train(other, data_of(8))
        await client.step(other, lr=0.1)
        await client.train(parted, second)
        await client.train(whole, [*first, *second])
        norms = [(await client.step(model))["grad_norm"] for model in (parted, whole)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-6)
        found = [(await client.train(model, plain(first), forward_only=True))[0] for model in (parted, whole)]
        for x, y in zip(*found, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-5)
        with pytest.raises(AssertionError, match="without gradients"):
            await client.step(whole)


async def test_several_targets_are_the_sum_of_single_ones(url: str):
    async with client_of(url) as client:
        table, single = [await client.model(seed=5) for _ in range(2)]
        parts = [data_of(9), [datum | {"target_tokens": np.roll(datum["target_tokens"], 1)} for datum in data_of(9)]]
        joined = [
            {"tokens": one["tokens"]} | {name: np.stack([one[name], two[name]], 1) for name in ("target_tokens", "weights")}
            for one, two in zip(*parts, strict=True)
        ]
        found, loss = await client.train(table, joined)
        singles = [await client.train(single, part) for part in parts]
        assert loss == pytest.approx(sum(each[1] for each in singles), rel=1e-5)
        for both, *alone in zip(found, *(each[0] for each in singles), strict=True):
            np.testing.assert_allclose(both, np.stack(alone, 1), atol=1e-5)
        norms = [(await client.step(model))["grad_norm"] for model in (table, single)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)
        again, _ = await client.train(table, joined, forward_only=True)
        assert [each.shape for each in again] == [each.shape for each in found]


PROMPT = [5, 9, 2, 33, 7]
SAMPLING: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "seed": 3, "stop": []}


async def check_agrees(client: Client, model: str, sampled: tuple[list[int], list[float]]) -> None:
    """The trainer's logprobs of what a sampler has sampled are the sampler's."""
    tokens, logprobs = sampled
    whole = [*PROMPT, *tokens]
    (found,), _ = await client.train(model, [{"tokens": whole[:-1], "target_tokens": whole[1:]}], forward_only=True)
    np.testing.assert_allclose(found[len(PROMPT) - 1 :], logprobs, atol=5e-4)


async def test_logprobs_of_a_prompt_are_those_of_the_trainer(url: str):
    async with client_of(url) as client:
        model = await client.model()
        await client.train(model, data_of(50))
        await client.step(model, lr=0.02)
        saved = await client.call("save_weights_for_sampler", model, path="scored")
        base = await client.model()
        for of, weights in ((model, {"model_path": saved["path"]}), (base, {"base_model": "tiny"})):
            asked = {"sampling_params": {"max_tokens": 1}, "prompt_logprobs": True, "topk_prompt_logprobs": 3}
            body = {"sampling_session_id": await client.sampler(**weights), "seq_id": 1, **asked}
            answer = wire._CLASSES["SampleResponse"].FromString(
                await client.done("asample", body | {"prompt": {"chunks": [{"tokens": PROMPT}]}})
            )
            (found,), _ = await client.train(of, [{"tokens": PROMPT[:-1], "target_tokens": PROMPT[1:]}], forward_only=True)
            logprobs = np.frombuffer(answer.prompt_logprobs, np.float32)
            assert np.isnan(logprobs[0])
            np.testing.assert_allclose(logprobs[1:], found, atol=5e-4)
            top = answer.topk_prompt_logprobs
            table = np.frombuffer(top.logprobs, np.float32).reshape(len(PROMPT), 3)
            assert (top.k, top.length) == (3, len(PROMPT)) and (np.diff(table[1:], axis=1) <= 0).all()


async def test_samplers_have_the_weights_that_were_saved_for_them(url: str):
    shapes: list[dict[str, Any]] = [
        {"rank": 8},
        {"rank": 16, "train_mlp": False},
        {"rank": 3, "train_attn": False, "train_unembed": False},
    ]
    async with client_of(url) as client:
        base = await client.model()  # a new adapter changes nothing
        models, samplers = [base], [await client.sampler(base_model="tiny")]
        for number, shape in enumerate(shapes):
            models.append(await client.model(seed=number, **shape))
            await client.train(models[-1], data_of(20 + number))
            await client.step(models[-1], lr=0.02)
            saved = await client.call("save_weights_for_sampler", models[-1], path=f"of-{number}")
            samplers.append(await client.sampler(model_path=saved["path"]))
        for _ in range(2):  # three adapters in two places
            replies = await asyncio.gather(*[client.sample(each, PROMPT, **SAMPLING) for each in samplers])
            for model, reply in zip(models, replies, strict=True):
                await check_agrees(client, model, reply)
        assert len({tuple(logprobs) for _, logprobs in replies}) == len(models)


async def test_a_sampler_in_flight_follows_its_model_and_a_snapshot_does_not(url: str):
    async with client_of(url) as client:
        model = await client.model()
        ids = {}
        for number, kind in enumerate(("snapshot", "inflight")):
            saved = await client.call("save_weights_for_sampler", model, kind=kind, sampling_session_seq_id=number)
            ids[kind] = saved["sampling_session_id"]
        before = {kind: await client.sample(id, PROMPT, **SAMPLING) for kind, id in ids.items()}
        await client.train(model, data_of(30))
        await client.step(model, lr=0.02)
        await client.call("save_weights_for_sampler", model, kind="inflight", sampling_session_seq_id=2)
        assert await client.sample(ids["snapshot"], PROMPT, **SAMPLING) == before["snapshot"]
        await check_agrees(client, model, await client.sample(ids["inflight"], PROMPT, **SAMPLING))


async def test_agents_by_url_follow_a_sampler_in_flight_and_their_sequences_are_what_a_loss_reads(url: str):
    async with client_of(url) as client:
        model = await client.model(seed=4)

        async def newest() -> str:
            about = {"kind": "inflight", "sampling_session_seq_id": client.number("newest")}
            return (await client.call("save_weights_for_sampler", model, **about))["sampling_session_id"]

        agent = await client.post("agents", {"sampling_session_id": await newest(), "sampling_params": {"temperature": 1.0}})
        talk: list[Any] = [{"role": "user", "content": "hello"}]
        async with AsyncOpenAI(base_url=agent["openai_url"], api_key=agent["api_key"], max_retries=0) as openai:
            first = await openai.chat.completions.create(model="any", messages=talk, max_tokens=9)
            await client.train(model, data_of(3))
            await client.step(model, lr=3e-2)
            await newest()
            talk += [first.choices[0].message.to_dict(), {"role": "user", "content": "and now?"}]
            await openai.chat.completions.create(model="any", messages=talk, max_tokens=9)
            async with AsyncAnthropic(base_url=agent["anthropic_url"], api_key="any", max_retries=0) as anthropic:
                await anthropic.messages.create(model="any", messages=[{"role": "user", "content": "ho"}], max_tokens=9)
            found = (await client.get(f"agents/{agent['agent_id']}"))["sequences"]
            assert len({*found[0]["weight_versions"]} - {0}) == 2
            assert sum(sum(each["mask"]) for each in found) <= 27
            data = [{name: each[name] for name in ("tokens", "target_tokens")} for each in found]
            expected, _ = await client.train(model, data, forward_only=True)
            for each, logprobs in zip(found, expected, strict=True):
                versions, mask = np.array(each["weight_versions"]), np.array(each["mask"], bool)
                present = mask & (versions == max(found[0]["weight_versions"]))
                assert present.any()
                np.testing.assert_allclose(np.array(each["logprobs"])[present], logprobs[present], atol=1e-4)
            named = ("tokens", "target_tokens", "logprobs")
            judged = [{name: each[name] for name in named} | {"advantages": each["mask"]} for each in found]
            await client.train(model, judged, "importance_sampling")
            await client.delete(f"agents/{agent['agent_id']}")
            with pytest.raises(APIStatusError, match="session"):
                await openai.chat.completions.create(model="any", messages=talk, max_tokens=9)


async def test_a_model_goes_on_from_its_checkpoint_as_if_nothing_had_been(url: str):
    async with client_of(url) as client:
        model = await client.model(rank=4)
        await client.train(model, data_of(40))
        await client.step(model)
        path = (await client.call("save_weights", model, path="half"))["path"]
        bodies = [{"session_id": client.session, "model_seq_id": 50 + with_state, "path": path} for with_state in range(2)]
        weights, exact = [
            (await client.done("load_weights", body | {"optimizer": bool(place)}))["model_id"]
            for place, body in enumerate(bodies)
        ]
        found = {}
        for each in (model, exact, weights):
            await client.train(each, data_of(41))
            norm = (await client.step(each))["grad_norm"]
            after, _ = await client.train(each, plain(data_of(42)), forward_only=True)
            found[each] = norm, np.concatenate(after)
        assert found[exact][0] == found[model][0] == found[weights][0]
        np.testing.assert_array_equal(found[exact][1], found[model][1])
        assert not np.array_equal(found[weights][1], found[model][1])
        assert (await client.post("weights_info", {"tinker_path": path}))["lora_rank"] == 4
        await client.call("load_weights", model, path=path, optimizer=True)
        await client.train(model, data_of(41))
        await client.step(model)
        after, _ = await client.train(model, plain(data_of(42)), forward_only=True)
        np.testing.assert_array_equal(np.concatenate(after), found[exact][1])


async def test_all_weights_are_trained_saved_sampled_and_taken_up_again(url_of_all_weights: str):
    async with client_of(url_of_all_weights) as client:
        base = await client.sampler(base_model="tiny")
        untrained = await client.sample(base, PROMPT, **SAMPLING)
        with pytest.raises(AssertionError, match="use rank=0"):
            await client.model(rank=4)
        model = await client.model(rank=0)
        await check_agrees(client, model, untrained)
        await client.train(model, data_of(60))
        await client.step(model, lr=1e-3)
        path = (await client.call("save_weights", model, path="half"))["path"]
        with pytest.raises(AssertionError, match="all weights are trained"):
            await client.model(rank=0)
        saved = await client.call("save_weights_for_sampler", model, path="half")
        trained = await client.sampler(model_path=saved["path"])
        reply = await client.sample(trained, PROMPT, **SAMPLING)
        await check_agrees(client, model, reply)
        assert reply[1] != untrained[1]
        assert await client.sample(base, PROMPT, **SAMPLING) == untrained
        assert await client.sample(trained, PROMPT, **SAMPLING) == reply
        found = []
        for with_state in (None, True, False):  # as it is, from the checkpoint, and from its weights alone
            if with_state is not None:
                await client.call("load_weights", model, path=path, optimizer=with_state)
            await client.train(model, data_of(61))
            norm = (await client.step(model, lr=1e-3))["grad_norm"]
            after, _ = await client.train(model, plain(data_of(62)), forward_only=True)
            found.append((norm, np.concatenate(after)))
        assert len({norm for norm, _ in found}) == 1
        np.testing.assert_array_equal(found[0][1], found[1][1])
        assert not np.array_equal(found[0][1], found[2][1])
        assert (await client.post("weights_info", {"tinker_path": path}))["is_lora"] is False
        await client.call("unload_model", model)
        del client._numbers[model]
        await check_agrees(client, await client.model(rank=0), untrained)
