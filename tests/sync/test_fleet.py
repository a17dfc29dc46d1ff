"""Servers join and leave under load: no reply is lost, and each token has the logprob of its version's weights."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.served_stack import HuggingFaceTrainer
from vime.config import ElasticConfig
from vime.errors import ConfigError, ServerError
from vime.processes.program import ProgramSpec
from vime.report.run_directory import LOCK, write_config
from vime.serving.client import TokenClient
from vime.serving.server import Server
from vime.serving.topology import Serving
from vime.sync.colocation import Colocation
from vime.sync.delivery import WeightDelivery
from vime.sync.fleet import Fleet
from vime.sync.wanted_servers import FILE, WantedServers, ask_for_servers
from vime.tasks import Watches
from vime.types import Turn
from vime.weights.payload import WeightPayload
from vime.weights.policy import Policy

MOST, NUM_TOKENS, NUM_SESSIONS, TURNS_OF_A_SESSION = 3, 96, 8, 3
PATIENCE_SECONDS = 240.0


class Trainer(HuggingFaceTrainer):
    """Keeps the weights of every version."""

    def __init__(self, checkpoint: Path, payload_folder: Path) -> None:
        super().__init__(checkpoint, payload_folder)
        self.weights: dict[int, dict[str, torch.Tensor]] = {}

    def step(self) -> None:
        super().step()
        self.weights[self.version] = {name: weight.clone() for name, weight in self.model.state_dict().items()}

    async def export_weights(self, version: int, *, is_whole: bool = False) -> Any:
        assert version == self.version
        return self.export(is_whole=is_whole)

    async def logprobs(self, tokens: list[list[int]], response_lengths: list[int], *, temperature: float = 1.0) -> Any:
        assert temperature == 1.0
        return await super().logprobs(tokens, response_lengths)


class Run:
    """The parts of a training run that are about servers and weights."""

    def __init__(self, config: Any, folder: Path, checkpoint: Path) -> None:
        policy = Policy()
        self.folder, self.policy, self.said = folder, policy, list[str]()
        self.serving = Serving(config, folder, uuid.uuid4().hex[:8], policy=policy, awaits_weights=True)
        trainer: Any = Trainer(checkpoint, self.serving.payload_folder)
        self.trainer = trainer
        self.serving.start()
        colocation = Colocation(self.serving, trainer, shared=False)
        self.delivery = WeightDelivery(config, self.serving, trainer, colocation, policy)
        self.fleet = Fleet(config, folder, self.serving, self.delivery, say=self.said.append, warn=self.said.append)
        self.watches, self.num_changes = Watches(), 0
        self.synced, self.reached = 0, set[float]()
        """The version that all servers have, and the numbers of servers that syncs have reached."""

    @property
    def num_servers(self) -> int:
        return sum(place.takes_requests for place in self.serving.places("actor"))

    async def sync(self) -> None:
        self.trainer.step()
        self.policy.trained_version = self.trainer.version
        async with self.fleet.steady:
            metrics = await self.delivery.sync(self.trainer.version)
        self.synced = self.trainer.version
        self.reached.add(metrics["sync/num_servers"])
        await self.delivery.compared()

    async def becomes(self, number: int) -> None:
        """Asks for a number of servers, and waits until there are as many, all of which have had requests."""
        self.num_changes += abs(number - self.num_servers)
        (self.folder / FILE).write_text(f"{number}\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while sum("has left" in text or "has its weights" in text for text in self.said) < self.num_changes:
                self.watches.check()
                await asyncio.sleep(0.2)
            present = [place for place in self.serving.places("actor") if place.is_present]
            assert len(present) == self.num_servers == number
            while not all([(found := await place.ask("metrics")) and found.num_queued > 1 for place in present]):
                await asyncio.sleep(0.2)


@asynccontextmanager
async def running(config: Any, folder: Path, checkpoint: Path) -> AsyncIterator[Run]:
    run = Run(config, folder, checkpoint)
    try:
        await run.serving.ready()
        run.watches.add(run.serving.watch())
        for place in run.serving.places("actor"):
            run.watches.add(run.delivery.restore(place.spec.name))
        run.watches.add(run.fleet.watch())
        await run.sync()
        yield run
        run.watches.check()
    finally:
        await run.watches.cancel()
        await run.delivery.stop()
        await run.serving.stop()


async def talk(run: Run, client: TokenClient, number: int, done: asyncio.Event, replies: list[Any]) -> None:
    """Sessions of a few turns each, one after another, each turn with the version that the servers have by then."""
    sampling = {"max_tokens": NUM_TOKENS, "temperature": 1.0, "ignore_eos": True}
    for session in itertools.count():
        prompt = [number, session % 300, 7, 9] * 12
        for turn in range(TURNS_OF_A_SESSION):
            wanted, name = run.synced, f"{number}-{session}"
            about = {"session_id": name, "request_id": f"{name}-{turn}", "minimum_version": wanted}
            reply = await client.generate(prompt, sampling=sampling, **about)
            replies.append((prompt, wanted, reply))
            if done.is_set():
                return
            prompt = [*prompt, *reply.output_ids, number]
        client.finish(name)


def largest_difference(trainer: Trainer, replies: list[tuple[list[int], int, Turn]]) -> float:
    """The largest difference of a token's logprob from that of its version's weights, in nats."""
    batches: dict[tuple[int, int], list[tuple[list[int], Turn]]] = {}
    for prompt, _, turn in replies:
        for version in set(turn.weight_versions):
            batches.setdefault((version, len(prompt)), []).append((prompt, turn))
    largest = 0.0
    for (version, length), batch in sorted(batches.items(), key=lambda item: item[0]):
        trainer.model.load_state_dict(trainer.weights[version])
        tokens = torch.tensor([[*prompt, *turn.output_ids] for prompt, turn in batch])
        with torch.no_grad():
            logprobs = trainer.model(tokens).logits[:, length - 1 : -1].log_softmax(2)
        of_version = logprobs.gather(2, tokens[:, length:, None])[:, :, 0]
        ours = torch.tensor([list(turn.logprobs) for _, turn in batch])
        versions = torch.tensor([list(turn.weight_versions) for _, turn in batch])
        largest = max(largest, float((of_version - ours)[versions == version].abs().max()))
    return largest


@pytest.mark.long
@pytest.mark.parametrize("num_cycles", [1, 3])
async def test_nothing_is_lost_and_no_token_is_stale_while_servers_join_and_leave(
    num_cycles: int, ray_cluster: None, checkpoints: dict[str, Path], make_serving_config: Any, tmp_path: Path
):
    config = make_serving_config(checkpoints["untied"], num_replicas=MOST)
    config = replace(config, serving=replace(config.serving, elastic=ElasticConfig(num_at_start=1, drain_seconds=0.2)))
    config.serving.models["actor"].vllm_args.clear()
    async with running(config, tmp_path, checkpoints["untied"]) as run:
        assert run.num_servers == 1
        client, done, replies = TokenClient(run.serving.endpoints()["actor"], config.serving), asyncio.Event(), list[Any]()
        talking = [asyncio.create_task(talk(run, client, number, done, replies)) for number in range(NUM_SESSIONS)]

        async def syncing() -> None:
            while not done.is_set():
                await run.sync()
                await asyncio.sleep(1.0)

        syncs = asyncio.create_task(syncing())
        for _ in range(num_cycles):
            await run.becomes(MOST)
            await run.becomes(1)
        done.set()
        await asyncio.gather(syncs, *talking)
        await client.close()
        assert client.calls.num_failures == 0 and client.calls.num_requests == len(replies)
    assert {1.0, float(MOST)} <= run.reached
    for _, wanted, turn in replies:
        assert len(turn.output_ids) == len(turn.logprobs) == len(turn.weight_versions) == NUM_TOKENS
        assert min(turn.weight_versions) >= wanted
    assert largest_difference(run.trainer, replies) < 5e-4


def folder_of_a_run(folder: Path, config: Any) -> Path:
    write_config(folder, config)
    (folder / LOCK).write_text("process 1 of another-host\n")
    return folder


def test_a_run_reads_a_number_once_each_time_that_it_is_asked_for(make_serving_config: Any, tmp_path: Path):
    config = make_serving_config(tmp_path, num_replicas=MOST)
    config = replace(config, serving=replace(config.serving, elastic=ElasticConfig(num_at_start=1)))
    folder = folder_of_a_run(tmp_path / "run", config)
    wanted = WantedServers(folder)
    assert wanted.news() is None
    for number in (3, 3, 1):
        assert str(number) in ask_for_servers([str(folder), str(number)])
        assert wanted.news() == number
        assert wanted.news() is None
    assert WantedServers(folder).news() == 1, "a run that is resumed has as many again"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ([], "a run and a number"),
        (["RUN", "many"], "a run and a number"),
        (["RUN", "0"], "from 1 to 3"),
        (["RUN", "4"], "from 1 to 3"),
        (["nowhere", "2"], "no folder of a run"),
    ],
)
def test_a_number_that_a_run_cannot_have_is_refused(words: list[str], remedy: str, make_serving_config: Any, tmp_path: Path):
    config = make_serving_config(tmp_path, num_replicas=MOST)
    config = replace(config, serving=replace(config.serving, elastic=ElasticConfig(num_at_start=1)))
    folder = folder_of_a_run(tmp_path / "run", config)
    with pytest.raises(ConfigError, match=remedy):
        ask_for_servers([str(folder) if word == "RUN" else word for word in words])
    assert WantedServers(folder).news() is None


def test_a_run_that_has_ended_or_whose_number_is_fixed_is_asked_for_none(make_serving_config: Any, tmp_path: Path):
    config = make_serving_config(tmp_path, num_replicas=MOST)
    with pytest.raises(ConfigError, match="its number of servers is fixed"):
        ask_for_servers([str(folder_of_a_run(tmp_path / "fixed", config)), "2"])
    config = replace(config, serving=replace(config.serving, elastic=ElasticConfig(num_at_start=1)))
    folder = folder_of_a_run(tmp_path / "ended", config)
    (folder / LOCK).unlink()
    with pytest.raises(ConfigError, match="has ended"):
        ask_for_servers([str(folder), "2"])


class Place:
    """A place whose server starts, or does not."""

    def __init__(self, number: int, *, is_present: bool, fails: bool = False) -> None:
        self.spec, self.is_present, self._fails = SimpleNamespace(name=f"actor-{number}"), is_present, fails

    async def join(self, limit_seconds: float) -> None:
        if self._fails:
            raise ServerError(f"{self.spec.name} did not join: no memory")
        self.is_present = True


class Places:
    """The places of a model, and those that its router has been told."""

    def __init__(self, *places: Place) -> None:
        self._places, self.admitted = list(places), list[str]()

    def trained_endpoint(self) -> Any:
        return SimpleNamespace(name="actor")

    def places(self, name: str) -> list[Place]:
        return self._places

    async def admit(self, name: str, server: Place) -> None:
        self.admitted.append(server.spec.name)


async def test_a_server_that_does_not_start_is_left_out_and_the_run_goes_on(make_serving_config: Any, tmp_path: Path):
    places: Any = Places(Place(0, is_present=True), Place(1, is_present=False, fails=True), Place(2, is_present=False))
    delivery: Any = SimpleNamespace()
    warned = list[str]()
    fleet = Fleet(make_serving_config(tmp_path), tmp_path, places, delivery, say=list[str]().append, warn=warned.append)
    await fleet.become(3)
    assert places.admitted == ["actor-2"]
    assert warned == ["actor-1 did not join: no memory"]
    await fleet.become(4)
    assert "from 1 to 3 are possible" in warned[-1]


async def test_a_server_that_never_joined_is_no_error_of_a_sync(make_serving_config: Any, tmp_path: Path):
    spec = ProgramSpec(name="actor-1", address="127.0.0.1", port=0, command=[], log=str(tmp_path / "log"))
    for is_joining in (True, False):
        server = Server(spec, is_joining=is_joining)
        server._give_up("died: no memory")
        payload = WeightPayload(version=3)
        if is_joining:
            assert await server.sync(payload) == {} and await server.begin_update(4) == 0
        else:
            with pytest.raises(ServerError, match="no memory"):
                await server.sync(payload)
        with pytest.raises(ServerError, match="no memory"):
            await server.ready()
