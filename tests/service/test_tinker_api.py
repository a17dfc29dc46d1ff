"""The routes, in front of a service without a trainer and servers: whose calls are served, and what any body is answered."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from vime.config import ModelConfig, RunConfig, ServiceConfig
from vime.service import tinker_api, wire
from vime.service.checkpoint_store import Checkpoint, Store
from vime.service.tinker_api import KEYS_VARIABLE, PREFIX, TinkerAPI
from vime.service.training_service import SPEC, Answer, ModelSpec
from vime.types import Turn

ME, OTHER = {"X-API-Key": "tml-me"}, {"X-API-Key": "tml-other"}


class FakeModel:
    """A model whose logprobs are all -1."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        self.name, self.spec, self.num_steps = name, spec, 0
        self.steps: list[dict[str, float]] = []

    async def forward_backward(self, data: Any, loss: str, numbers: Any) -> Answer:
        return Answer(logprobs=[-np.ones(len(datum.tokens), np.float32) for datum in data], loss=1.0)

    forward = forward_backward

    async def step(self, optimizer: dict[str, float]) -> dict[str, float]:
        self.steps.append(optimizer)
        return {"grad_norm": 1.0}

    async def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SPEC).write_text(json.dumps({"rank": self.spec.rank, "train_attn": True, "train_mlp": True}))

    save_sampler = save


class FakeService:
    """A service that only remembers its models."""

    def __init__(self) -> None:
        self.config = RunConfig(model=ModelConfig(name="tiny", vocab_size=100), service=ServiceConfig(max_request_bytes=2**20))
        self.max_model_len, self.models = 64, dict[str, FakeModel]()
        self.places = SimpleNamespace(forget=self._forget)
        self.sampled: list[dict[str, Any]] = []

    async def create_model(self, name: str, spec: ModelSpec, *, start: Path | None = None) -> FakeModel:
        self.models[name] = FakeModel(name, spec)
        return self.models[name]

    async def remove_model(self, name: str) -> None:
        del self.models[name]

    @asynccontextmanager
    async def sampler(self, key: str, saved: Path | None) -> AsyncIterator[Any]:
        async def sample(prompt: list[int], sampling: dict[str, Any], *, request_id: str) -> Turn:
            self.sampled.append(sampling)
            return Turn(output_ids=[7], logprobs=[-0.5], finish_reason="length")

        yield SimpleNamespace(sample=sample)

    async def _forget(self, key: str) -> None:
        pass


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[TestClient[Any, Any], FakeService]]:
    service: Any = FakeService()
    async with TestClient(TestServer(TinkerAPI(service, folder).app())) as client:
        yield client, service


async def post(client: TestClient[Any, Any], path: str, body: Any, *, as_: dict[str, str] = ME, status: int = 200) -> Any:
    async with client.post(f"{PREFIX}/{path}", json=body, headers=as_) as response:
        assert response.status == status, await response.text()
        is_json = response.content_type == "application/json"
        return await response.json() if is_json else await response.read()


async def done(client: TestClient[Any, Any], path: str, body: Any, *, as_: dict[str, str] = ME) -> Any:
    """The result of a long call."""
    promise = await post(client, path, body, as_=as_)
    return await post(client, "retrieve_future", {"request_id": promise["request_id"]}, as_=as_)


async def model_of(client: TestClient[Any, Any], *, as_: dict[str, str] = ME) -> str:
    session = (await post(client, "create_session", {"tags": []}, as_=as_))["session_id"]
    body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 8}}
    return (await done(client, "create_model", body, as_=as_))["model_id"]


def training_body(model: str, seq_id: int) -> bytes:
    request = wire._CLASSES["Request"](model_id=model, seq_id=seq_id, loss_fn="cross_entropy")
    datum = request.data.add()
    datum.model_input.add().encoded_text.tokens = np.array([1, 5], np.int32).tobytes()
    targets = datum.loss_fn_inputs.add(key="target_tokens").value
    targets.dense, targets.dtype, targets.shape[:] = np.array([5, 9], np.int64).tobytes(), wire.INT64, [2]
    return request.SerializeToString()


async def test_nobody_sees_what_is_another_clients(tmp_path: Path):
    async with served(tmp_path) as (client, service):
        model = await model_of(client)
        saved = await done(client, "save_weights", {"model_id": model, "seq_id": 1, "path": "mine"})
        assert saved["path"] == f"tinker://{model}/weights/mine"
        await post(client, "get_info", {"model_id": model}, as_=OTHER, status=404)
        await post(client, "optim_step", {"model_id": model, "seq_id": 2, "adam_params": {}}, as_=OTHER, status=404)
        await post(client, "session_heartbeat", {"session_id": model.split(":")[0]}, as_=OTHER, status=410)
        await post(client, "retrieve_future", {"request_id": f"{model}:1"}, as_=OTHER, status=410)
        await post(client, "weights_info", {"tinker_path": saved["path"]}, as_=OTHER, status=400)
        for headers, number in ((ME, 1), (OTHER, 0)):
            async with client.get(f"{PREFIX}/checkpoints", headers=headers) as response:
                assert len((await response.json())["checkpoints"]) == number
        async with client.delete(f"{PREFIX}/training_runs/{model}/checkpoints/weights/mine", headers=OTHER) as response:
            assert response.status == 400
        async with client.delete(f"{PREFIX}/training_runs/{model}/checkpoints/weights/mine", headers=ME) as response:
            assert response.status == 200
        assert service.models[model].steps == []


async def test_with_keys_no_other_key_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(KEYS_VARIABLE, "tml-me,tml-you")
    async with served(tmp_path) as (client, _):
        await post(client, "create_session", {})
        await post(client, "create_session", {}, as_=OTHER, status=401)
        await post(client, "create_session", {}, as_={}, status=401)


async def test_options_of_a_step_are_all_honoured(tmp_path: Path):
    async with served(tmp_path) as (client, service):
        model = await model_of(client)
        given = {"learning_rate": 0.1, "beta1": 0.2, "beta2": 0.3, "eps": 0.4, "weight_decay": 0.5, "grad_clip_norm": 0.6}
        await done(client, "optim_step", {"model_id": model, "seq_id": 1, "adam_params": given})
        await done(client, "optim_step", {"model_id": model, "seq_id": 2, "adam_params": {}})
        names = ("lr", "beta1", "beta2", "eps", "weight_decay", "clip_grad")
        assert service.models[model].steps[0] == dict(zip(names, given.values(), strict=True))
        assert service.models[model].steps[1] == dict(zip(names, (1e-4, 0.9, 0.95, 1e-12, 0.0, 0.0), strict=True))


async def test_a_wrong_call_fails_at_its_turn_and_the_line_goes_on(tmp_path: Path):
    async with served(tmp_path) as (client, service):
        model = await model_of(client)
        for number, wrong in enumerate(({"learning_rate": -1}, {"beta1": 1.0}, {"momentum": 0.9}, {"eps": "small"}), 1):
            failed = await done(client, "optim_step", {"model_id": model, "seq_id": number, "adam_params": wrong})
            assert failed["category"] == "user" and next(iter(wrong)) in failed["error"]
        await done(client, "optim_step", {"model_id": model, "seq_id": 5, "adam_params": {}})
        assert len(service.models[model].steps) == 1


async def test_sampling_parameters_are_vllms(tmp_path: Path):
    async with served(tmp_path) as (client, service):
        model = await model_of(client)
        session = model.split(":")[0]
        about = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}
        sampler = (await post(client, "create_sampling_session", about))["sampling_session_id"]
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
        given = {"max_tokens": 3, "temperature": 0.5, "top_k": 4, "top_p": 0.9, "seed": 11, "stop": [5]}
        body = {"sampling_session_id": sampler, "seq_id": 1, "prompt": prompt, "num_samples": 2, "sampling_params": given}
        promise = await post(client, "asample", body)
        assert len(set(promise["sample_sequence_ids"])) == 2
        answer = await post(client, "retrieve_future", {"request_id": promise["request_id"]})
        assert len(wire._CLASSES["SampleResponse"].FromString(answer).sequences) == 2
        expected = {"max_tokens": 3, "temperature": 0.5, "top_k": 4, "top_p": 0.9, "stop_token_ids": [5]}
        assert sorted(service.sampled, key=lambda each: each["seed"]) == [expected | {"seed": 11}, expected | {"seed": 12}]
        for name in ("record_stability_info", "prompt_alt_tokens_k"):
            refused = await post(client, "asample", body | {"seq_id": 2, name: 1}, status=400)
            assert name in refused["error"]


async def test_weights_without_a_name_are_removed_when_many_newer_ones_are_there(tmp_path: Path):
    async with served(tmp_path) as (client, _):
        model = await model_of(client)
        for number in range(1, 12):
            await done(
                client, "save_weights_for_sampler", {"model_id": model, "seq_id": number, "sampling_session_seq_id": number}
            )
        await done(client, "save_weights_for_sampler", {"model_id": model, "seq_id": 12, "path": "named"})
        kept = sorted(int(folder.name.rpartition("_")[2]) for folder in (tmp_path / "unnamed").iterdir())
        assert kept == list(range(12 - tinker_api.KEPT_UNNAMED, 12))


async def test_a_checkpoint_whose_time_is_over_goes(tmp_path: Path):
    store = Store(tmp_path)
    for name, end in (("early", 1.0), ("late", 4e9), ("never", None)):
        store.place("m", "weights", name).mkdir(parents=True)
        store.note(Checkpoint(model="m", kind="weights", name=name, owner="me", saved_at=0.0, expires_at=end))
    store.remove_expired()
    assert [checkpoint.name for checkpoint, _ in store.all(owner="me")] == ["late", "never"]


async def test_a_session_that_is_finished_frees_its_models(tmp_path: Path):
    async with served(tmp_path) as (client, service):
        model = await model_of(client)
        session = model.split(":")[0]
        await post(client, f"sessions/{session}/finish", {"reason": {"type": "success"}}, as_=OTHER, status=410)
        await post(client, f"sessions/{session}/finish", {"reason": {"type": "success"}})
        assert not service.models
        await post(client, "session_heartbeat", {"session_id": session}, status=410)


async def test_a_silent_client_is_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tinker_api, "SWEEP_SECONDS", 0.01)
    async with served(tmp_path) as (client, service):
        model, failures = await model_of(client), iter([OSError("a folder that is gone")])

        def failing_once() -> None:
            for error in failures:
                raise error

        monkeypatch.setattr(tinker_api.Store, "remove_expired", lambda _: failing_once())
        await asyncio.sleep(0.05)
        await done(client, "save_weights", {"model_id": model, "seq_id": 1, "path": "kept"})
        service.config.service.session_timeout_seconds = 1e-6
        while service.models:
            await asyncio.sleep(0.01)
        await post(client, "session_heartbeat", {"session_id": model.split(":")[0]}, status=410)
        service.config.service.session_timeout_seconds = 60.0
        session = (await post(client, "create_session", {}))["session_id"]
        info = await post(client, "weights_info", {"tinker_path": f"tinker://{model}/weights/kept"})
        assert (session, info["lora_rank"]) == (session, 8)


async def test_any_body_gets_a_reason_or_an_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    generator = random.Random(0)
    values: list[Any] = [
        None,
        True,
        -1,
        0,
        1,
        2,
        3,
        2**70,
        1.5,
        float("1e400"),
        "",
        "x",
        "tiny",
        "../../etc",
        [],
        [1],
        {},
        {"type": "y"},
    ]
    names = ["session_id", "model_id", "seq_id", "path", "base_model", "lora_config", "rank", "adam_params", "prompt", "chunks"]
    names += ["sampling_params", "num_samples", "request_id", "kind", "ttl_seconds", "optimizer_config", "tinker_path", "stop"]
    names += ["learning_rate", "max_tokens", "model_seq_id", "sampling_session_seq_id", "model_path", "tokens", "user_metadata"]

    def drawn(depth: int) -> Any:
        if depth and generator.random() < 0.5:
            return {generator.choice(names): drawn(depth - 1) for _ in range(generator.randrange(4))}
        return generator.choice(values)

    async with served(tmp_path) as (client, _):
        model = await model_of(client)
        app_routes = {route.resource.canonical for route in client.app.router.routes() if route.resource is not None}
        paths = sorted(path for path in app_routes if "{" not in path)
        known = {"session_id": model.split(":")[0], "model_id": model, "request_id": f"{model}:0"}
        for number in range(2500):
            path, body = generator.choice(paths), {name: drawn(2) for name in generator.sample(names, 5)}
            body |= {name: value for name, value in known.items() if generator.random() < 0.5}
            data = json.dumps(body).encode() if number % 5 else generator.randbytes(generator.randrange(64))
            headers = ME | ({"Content-Type": wire.CONTENT_TYPE} if path.endswith("forward_backward") else {})
            async with client.post(path, data=data, headers=headers) as response:
                text = await response.text()
                assert response.status < 500, (path, body, text)
                assert response.status < 400 or json.loads(text)["error"] or response.status == 408, (path, text)
        assert not [record for record in caplog.records if record.levelname == "ERROR"], "a defect of ours, not of the client"
        async with client.post(f"{PREFIX}/create_session", data=b"x" * 2**21, headers=ME) as response:
            assert response.status == 413
