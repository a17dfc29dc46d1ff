"""The routes, in front of a service without a trainer and servers: whose calls are served, and what any body is answered."""

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from service_client import training_body

from vime.config import ModelConfig, RunConfig, ServiceConfig
from vime.files.folders import writing_place
from vime.service import tinker_api, tinker_calls, wire
from vime.service.checkpoint_store import Checkpoint, Store, file_of
from vime.service.journal import Journal
from vime.service.model_runs import ModelRuns, run_name
from vime.service.tinker_api import KEYS_VARIABLE, PREFIX, TinkerAPI
from vime.service.training_service import SPEC, Answer, ModelSpec
from vime.types import Turn
from vime.view.overview import overview
from vime.view.runs import Run

DATA = [{"tokens": [1, 5], "target_tokens": [5, 9]}]
ME, OTHER = {"X-API-Key": "tml-me"}, {"X-API-Key": "tml-other"}


class FakeModel:
    """A model whose logprobs are all -1."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        self.name, self.spec, self.num_steps, self.last = name, spec, 0, dict[str, float]()
        self.steps: list[dict[str, float]] = []
        self.log: list[Any] = []
        """What has changed the weights."""

    async def forward_backward(self, data: Any, loss: str, numbers: Any) -> Answer:
        self.log.append([len(datum.tokens) for datum in data])
        return Answer(logprobs=[-np.ones(len(datum.tokens), np.float32) for datum in data], loss=1.0)

    forward = forward_backward

    async def step(self, optimizer: dict[str, float]) -> dict[str, float]:
        self.steps.append(optimizer)
        self.num_steps += 1
        self.last = {"train/loss": 2.5, "train/lr": optimizer["lr"]}
        self.log.append(optimizer["lr"])
        return {"grad_norm": 1.0}

    async def save(self, folder: Path, files: Any = MappingProxyType({})) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        about = json.dumps({"rank": self.spec.rank, "train_attn": True, "train_mlp": True})
        for name, text in {SPEC: about, "log": json.dumps(self.log), **files}.items():
            (folder / name).write_text(text)

    async def resume(self, folder: Path) -> None:
        self.log = json.loads((folder / "log").read_text())

    save_sampler = save


class FakeService:
    """A service that only remembers its models."""

    def __init__(self, folder: Path) -> None:
        model = ModelConfig(name="tiny", vocab_size=100, checkpoint="agentic/memagent/tiny/actor")
        self.config = RunConfig(model=model, service=ServiceConfig(max_request_bytes=2**20))
        self.max_model_len, self.models, self.lost = 64, dict[str, FakeModel](), asyncio.Event()
        self.places = SimpleNamespace(forget=self._forget, shown=lambda: [{"name": "place0", "holds": "", "num_users": 0}])
        self.runs = ModelRuns(self.config, folder)
        self.sampled: list[dict[str, Any]] = []
        self.samples = asyncio.Event()
        """Samples are taken while it is set."""
        self.samples.set()

    async def create_model(self, name: str, spec: ModelSpec, *, start: Path | None = None, owner: str = "") -> FakeModel:
        self.models[name] = FakeModel(name, spec)
        return self.models[name]

    def read_spec(self, folder: Path) -> ModelSpec:
        return ModelSpec(**json.loads((folder / SPEC).read_text()))

    async def remove_model(self, name: str) -> None:
        del self.models[name]

    @asynccontextmanager
    async def sampler(self, key: str, saved: Path | None, *, owner: str = "") -> AsyncIterator[Any]:
        async def sample(prompt: list[int], sampling: dict[str, Any], *, request_id: str) -> Turn:
            await self.samples.wait()
            self.sampled.append(sampling)
            return Turn(output_ids=[7], logprobs=[-0.5], finish_reason="length")

        yield SimpleNamespace(sample=sample)

    async def _forget(self, key: str) -> None:
        pass


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[TestClient[Any, Any], FakeService]]:
    service: Any = FakeService(folder)
    with closing(Journal(folder)) as journal:
        async with TestClient(TestServer(TinkerAPI(service, folder, journal).app())) as client:
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


async def test_what_is_beyond_a_quota_is_refused_with_its_setting(tmp_path: Path):
    async with served(tmp_path) as (client, service):
        service.config.service.key_models = 1
        session = (await post(client, "create_session", {}))["session_id"]
        body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 8}}
        model = (await post(client, "create_model", body))["model_id"]  # it counts from now on, not from its creation
        session = (await post(client, "create_session", {}))["session_id"]
        body["session_id"] = session
        assert "service.key_models" in (await post(client, "create_model", body, status=400))["error"]
        await post(client, "create_model", body | {"session_id": model.split(":")[0]})  # the same call again
        await model_of(client, as_=OTHER)

        service.config.service.key_tokens_per_minute = 10
        about = {"session_id": model.split(":")[0], "sampling_session_seq_id": 0, "base_model": "tiny"}
        sampler = (await post(client, "create_sampling_session", about))["sampling_session_id"]
        asked = {"prompt": {"chunks": [{"tokens": [1, 2]}]}, "sampling_params": {"max_tokens": 3}, "num_samples": 2}
        body = asked | {"sampling_session_id": sampler}
        await done(client, "asample", body | {"seq_id": 1})  # 8 tokens
        await done(client, "asample", body | {"seq_id": 1})  # the same call again
        assert "service.key_tokens_per_minute" in (await post(client, "asample", body | {"seq_id": 2}, status=429))["error"]
        headers = ME | {"Content-Type": wire.CONTENT_TYPE}
        async with client.post(
            f"{PREFIX}/forward_backward", data=training_body(model, 1, DATA, "cross_entropy"), headers=headers
        ) as response:
            assert response.status == 200  # 2 more
        service.config.service.key_tokens_per_minute = None

        await done(client, "save_weights", {"model_id": model, "seq_id": 2, "path": "first"})
        service.config.service.key_disk_bytes = 10
        failed = await done(client, "save_weights", {"model_id": model, "seq_id": 3, "path": "second"})
        assert failed["category"] == "user" and "service.key_disk_bytes" in failed["error"]
        async with client.delete(f"{PREFIX}/training_runs/{model}/checkpoints/weights/first", headers=ME) as response:
            assert response.status == 200
        assert "path" in await done(client, "save_weights", {"model_id": model, "seq_id": 4, "path": "second"})


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
        assert kept == list(range(12 - tinker_calls.KEPT_UNNAMED, 12))


async def test_weights_without_a_name_stay_until_all_samples_are_taken_from_them(tmp_path: Path):
    async with served(tmp_path) as (client, service):
        model, folders = await model_of(client), tmp_path / "unnamed"
        session = model.partition(":")[0]

        async def save(number: int) -> None:
            body = {"model_id": model, "seq_id": number, "sampling_session_seq_id": number}
            await done(client, "save_weights_for_sampler", body)

        await save(1)
        service.samples.clear()
        prompt = {"chunks": [{"tokens": [1, 2]}]}
        asked = {
            "sampling_session_id": f"{session}:sample:1",
            "seq_id": 1,
            "prompt": prompt,
            "sampling_params": {"max_tokens": 1},
        }
        id = (await post(client, "asample", asked))["request_id"]
        for number in range(2, 12):
            await save(number)
        assert (folders / f"{session}_sample_1").exists() and not (folders / f"{session}_sample_2").exists()
        service.samples.set()
        await post(client, "retrieve_future", {"request_id": id})
        await save(12)
        assert not (folders / f"{session}_sample_1").exists()


async def test_a_checkpoint_whose_time_is_over_goes(tmp_path: Path):
    store = Store(tmp_path)
    for name, end in (("early", 1.0), ("late", 4e9), ("never", None)):
        folder = store.place("m", "weights", name)
        folder.mkdir(parents=True)
        for file, text in file_of(
            Checkpoint(model="m", kind="weights", name=name, owner="me", saved_at=0.0, expires_at=end)
        ).items():
            (folder / file).write_text(text)
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

        monkeypatch.setattr(tinker_api.Store, "remove_expired", lambda _: failing_once() or {})
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


async def test_the_viewer_sees_models_their_queues_and_their_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tinker_api, "SWEEP_SECONDS", 0.01)
    async with served(tmp_path) as (client, _):
        model = await model_of(client)
        await done(client, "optim_step", {"model_id": model, "seq_id": 1, "adam_params": {"learning_rate": 0.5}})
        path = (await done(client, "save_weights", {"model_id": model, "seq_id": 2, "path": "kept"}))["path"]
        await post(client, "optim_step", {"model_id": model, "seq_id": 5, "adam_params": {"learning_rate": 0.5}})
        shown: dict[str, Any] = {}
        async with asyncio.timeout(60):
            while not shown.get("checkpoints") or not shown["num_open_calls"]:
                await asyncio.sleep(0.01)
                found = overview(Run("service", tmp_path))["service"]
                shown = next(iter(found["models"]), {}) if found else {}
        expected = {"name": model, "run": run_name(model), "rank": 8, "num_steps": 1, "loss": 2.5, "lr": 0.5, "num_open_calls": 1}
        assert shown | expected | {"checkpoints": [path]} == shown


async def test_a_service_that_starts_again_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def train(client: TestClient[Any, Any], model: str, number: int) -> None:
        headers = ME | {"Content-Type": wire.CONTENT_TYPE}
        async with client.post(
            f"{PREFIX}/forward_backward", data=training_body(model, number, DATA, "cross_entropy"), headers=headers
        ) as response:
            assert response.status == 200

    def step(model: str, number: int) -> dict[str, Any]:
        return {"model_id": model, "seq_id": number, "adam_params": {"learning_rate": number / 10}}

    async with served(tmp_path) as (client, service):
        model, unloaded = await model_of(client), await model_of(client)
        await done(client, "unload_model", {"model_id": unloaded, "seq_id": 1})
        await train(client, model, 1)
        await done(client, "optim_step", step(model, 2))  # saves the state
        about = {"model_id": model, "seq_id": 3, "sampling_session_seq_id": 1}
        sampler = (await done(client, "save_weights_for_sampler", about))["sampling_session_id"]
        saved = await done(client, "save_weights", {"model_id": model, "seq_id": 4, "path": "mine"})
        monkeypatch.setattr(tinker_calls, "SAVED_SHARE", 1e9)
        await train(client, model, 5)
        await done(client, "optim_step", step(model, 6))
        await train(client, model, 7)
        await post(client, "optim_step", step(model, 9))  # waits for 8
        assert service.models[model].log == [[2], 0.2, [2], 0.6, [2]]
    async with served(tmp_path) as (client, service):
        assert list(service.models) == [model]
        await post(client, "session_heartbeat", {"session_id": model.split(":")[0]})
        await post(client, "optim_step", step(model, 6))
        await done(client, "optim_step", step(model, 8))
        await done(client, "optim_step", step(model, 9))
        assert service.models[model].log == [[2], 0.2, [2], 0.6, [2], 0.8, 0.9]
        again = await done(client, "save_weights", {"model_id": model, "seq_id": 4, "path": "mine"})
        assert again == saved
        body = {"sampling_session_id": sampler, "seq_id": 1, "prompt": {"chunks": [{"tokens": [1]}]}}
        assert await done(client, "asample", body)
        await post(client, f"sessions/{model.split(':')[0]}/finish", {})
    async with served(tmp_path) as (client, service):
        assert not service.models and not list((tmp_path / "models").iterdir())
        await post(client, "get_info", {"model_id": model}, status=404)


async def test_a_checkpoint_is_there_as_a_whole_or_not_at_all(tmp_path: Path):
    store = Store(tmp_path)
    torn = store.place("m", "weights", "torn")
    writing_place(torn).mkdir(parents=True)
    for file, text in file_of(Checkpoint(model="m", kind="weights", name="torn", owner="me", saved_at=0.0)).items():
        (writing_place(torn) / file).write_text(text)
    assert store.all(owner="me") == []
    store.tidy()
    assert not list(torn.parent.iterdir())


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
    names += ["num_calls", "num_tokens"]

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
