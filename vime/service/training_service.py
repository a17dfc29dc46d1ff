"""A training service in this process: models that share one base, each an adapter with an optimizer, and samplers of them.

With `trainer.lora.rank=0` there is one model at a time, all of whose weights are trained, and servers hold one at a time.

    async with open_service(config, folder, say=print) as service:
        model = await service.create_model("mine", ModelSpec(rank=8, seed=0))
        answer = await model.forward_backward([Datum(tokens=…, inputs={"target_tokens": …})], "cross_entropy")
        await model.step({"lr": 1e-4})
        await model.save_sampler(folder / "first")
        async with service.sampler("first", folder / "first") as sampler:
            turn = await sampler.sample(prompt, {"max_tokens": 16, "temperature": 1.0})

The loop is the caller's. Models take turns at the trainer call by call, so that each waits for one call of every other at most.
"""

import asyncio
import json
import logging
import secrets
import shutil
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from vime.algorithm.algorithm import Forward
from vime.config import AlgorithmConfig, LoraTarget, RunConfig
from vime.config.learning import OF_VOCABULARY
from vime.errors import BadRequestError, RankLostError, TrainingError
from vime.files.folders import put_in_place, writing_place
from vime.runtime import running
from vime.service.client_loss import OBJECT, ChosenLoss, ClientLoss
from vime.service.datum import Datum, as_sample, chosen_loss
from vime.service.model_runs import ModelRuns
from vime.service.places import Places, place_names
from vime.service.turns import Turns
from vime.serving.client import TokenClient
from vime.serving.reply import Listener
from vime.serving.scores import Scores
from vime.serving.topology import Serving
from vime.system import Say, trained
from vime.tasks import Watches, together
from vime.trainer.group import TrainerGroup, Update
from vime.types import Integers, Turn
from vime.weights.policy import Policy
from vime.workers.agents import served

logger = logging.getLogger(__name__)

STATE, ADAPTER, MODEL, SPEC, NUM_STEPS = "state", "adapter", "model", "model.json", "num_steps"
"""Parts of a checkpoint: the exact state of the trainer, the adapter in PEFT's format or the whole model in Hugging Face's, and
what the model is, with its steps."""
BASE = "base"
"""The base model's folder, and the key of its samplers, where all weights are trained."""
Turned = AbstractAsyncContextManager[None]
ATTENTION = (LoraTarget.q_proj, LoraTarget.k_proj, LoraTarget.v_proj, LoraTarget.o_proj)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A model that is trained: an adapter of the base, or with rank 0 all weights.

    Example: `ModelSpec(rank=32, seed=7, train_mlp=False)` adapts the matrices of attention alone.
    """

    rank: int
    seed: int = 0
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = False
    """True to adapt the matrices of the vocabulary as well, if `trainer.lora.targets` has any."""

    def targets(self, offered: Sequence[LoraTarget]) -> list[LoraTarget]:
        """The adapted matrices, a part of those that a service offers."""
        parts = [(ATTENTION, self.train_attn), (OF_VOCABULARY, self.train_unembed)]
        return [each for each in offered if next((wanted for part, wanted in parts if each in part), self.train_mlp)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The result of a pass: logprobs of the targets of each datum, [L] or [L, K], and the loss, a sum over all of them."""

    logprobs: list[np.ndarray]
    loss: float = field(default=float("nan"))


class TrainedModel:
    """One model of a service. Its calls run one after the other, and gradients add up from a step to the next."""

    def __init__(self, service: "Service", name: str, spec: ModelSpec, trainer: TrainerGroup, *, owner: str) -> None:
        self.name, self.spec, self.owner = name, spec, owner
        self.num_steps = 0
        self.last: dict[str, float] = {}
        """The metrics of the last optimizer step, as the run of the model has them."""
        self._service, self._trainer = service, trainer
        self._has_gradients = False
        self._stepped_at, self._spent = time.monotonic(), defaultdict[str, float](float)
        """The time of the last step, and sums since then by the names of metrics."""

    async def forward(self, data: Sequence[Datum], loss: str, numbers: Mapping[str, float] | None = None) -> Answer:
        """The logprobs of the targets; nothing changes. Raises BadRequestError for data that the loss cannot read."""
        chosen = chosen_loss(loss, numbers or {}, data)
        columns = []
        for place in range(chosen.num_targets):
            one = [replace(datum, inputs=_with_target(datum.inputs, place)) for datum in data]
            async with self._turn():
                update, _ = await self._handed_over(one, replace(chosen, num_targets=1))
                found = await self._trainer.forward(update, [Forward(column="trained")])
                columns.append([each["trained"] for each in await self._trainer.read(update, found)])
        if np.ndim(data[0].inputs["target_tokens"]) == 1:
            return Answer(logprobs=columns[0])
        return Answer(logprobs=[np.stack(parts, 1) for parts in zip(*columns, strict=True)])

    async def forward_backward(self, data: Sequence[Datum], loss: str, numbers: Mapping[str, float] | None = None) -> Answer:
        """Adds the gradient of a loss. Raises BadRequestError for data that the loss cannot read, and for a loss that is not
        finite, after which no gradients are left.
        """
        chosen = chosen_loss(loss, numbers or {}, data)
        async with self._turn():
            update, algorithm = await self._handed_over(data, chosen)
            self._has_gradients = False  # of a loss that is not finite, none are left
            sums, columns = await self._trainer.forward_backward(update, algorithm, keep=True)
            self._has_gradients = True
            assert columns is not None, "an update that is not finite raises"
            found = [each["trained"] for each in await self._trainer.read(update, columns)]
        self._spent["train/loss"] += sums["train/loss"]
        self._spent["train/num_tokens"] += sum(len(datum.tokens) for datum in data)
        is_table = np.ndim(data[0].inputs["target_tokens"]) == 2
        return Answer(
            logprobs=[each[:, None] if is_table and each.ndim == 1 else each for each in found], loss=sums["train/loss"]
        )

    async def step(self, optimizer: Mapping[str, float]) -> dict[str, float]:
        """One step of AdamW with the gradients since the last one.

        `optimizer` has `lr`, and any of `beta1`, `beta2`, `eps`, `weight_decay`, `clip_grad`; others are the configuration's.
        Raises BadRequestError without gradients, or if their norm is not finite.
        """
        if not self._has_gradients:
            raise BadRequestError("optim_step without gradients: call forward_backward before it")
        async with self._turn():
            self._has_gradients = False
            metrics = await self._trainer.step(optimizer=optimizer, step=self.num_steps)
        self.num_steps += 1
        self._note({name: metrics[name] for name in ("train/grad_norm", "train/lr")})
        return {"grad_norm": metrics["train/grad_norm"], "lr": metrics["train/lr"]}

    async def save(self, folder: Path, files: Mapping[str, str] = MappingProxyType({})) -> None:
        """Writes an exact checkpoint, from which `Service.create_model` goes on, whole or not at all. Raises `CheckpointError`.

        `files` are the names and texts of further files in it.
        """
        await self._save(folder, files, with_state=True)

    async def save_sampler(self, folder: Path, files: Mapping[str, str] = MappingProxyType({})) -> None:
        """Writes the weights alone, for a sampler. Raises `CheckpointError`.

        PEFT and vLLM load the folder `adapter` in it; where all weights are trained, transformers and vLLM load `model`.
        """
        await self._save(folder, files, with_state=False)

    async def load(self, folder: Path, *, optimizer: bool) -> None:
        """Goes on from a checkpoint of the same shape, with the state of the optimizer or a new one; gradients are gone.

        Raises BadRequestError if the checkpoint is of another model.
        """
        saved = self._service.read_spec(folder)
        if replace(saved, seed=self.spec.seed) != self.spec:
            raise BadRequestError(f"the checkpoint is of {asdict(saved)}, this model of {asdict(self.spec)}")
        async with self._service.turn(self.owner):
            await self._service.trainer.remove(self.name)
            self._trainer = await self._service.give_weights(self.name, self.spec, start=folder)
            self._has_gradients = False
            if optimizer:
                await self._trainer.load(folder / STATE)

    async def resume(self, folder: Path) -> None:
        """Takes the optimizer's state, and the number of its steps, from the checkpoint with which this model began."""
        async with self._service.turn(self.owner):
            await self._trainer.load(folder / STATE)
        self.num_steps = json.loads((folder / SPEC).read_text())[NUM_STEPS]

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """A turn at the trainer, whose seconds are noted, and those of the wait for it."""
        asked = time.monotonic()
        async with self._service.turn(self.owner):
            begun = time.monotonic()
            self._spent["time/wait_seconds"] += begun - asked
            try:
                yield
            finally:
                self._spent["time/trainer_seconds"] += time.monotonic() - begun

    def _note(self, metrics: dict[str, float]) -> None:
        """Writes the metrics of a step into the run of the model. A disk that is full costs the line and not the step."""
        now, spent = time.monotonic(), self._spent
        rate = spent["train/num_tokens"] / max(spent["time/trainer_seconds"], 1e-9)
        self.last = metrics | spent | {"time/step_seconds": now - self._stepped_at, "train/tokens_per_second": rate}
        self._stepped_at, self._spent = now, defaultdict(float)
        try:
            self._service.runs.note(self.name, self.num_steps, self.last)
        except OSError as error:
            logger.warning("the metrics of %s are not written: %s", self.name, error)

    async def _save(self, folder: Path, files: Mapping[str, str], *, with_state: bool) -> None:
        temporary = writing_place(folder)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        async with self._service.turn(self.owner):
            if with_state:
                await self._trainer.save(temporary / STATE)
            if self.spec.rank:
                await self._trainer.save_adapter(temporary / ADAPTER)
            else:
                await self._trainer.save_hugging_face(temporary / MODEL)
        about = asdict(self.spec) | {"base": self._service.base, NUM_STEPS: self.num_steps}
        for name, text in {SPEC: json.dumps(about) + "\n", **files}.items():
            (temporary / name).write_text(text)
        put_in_place(temporary, folder)

    async def _handed_over(self, data: Sequence[Datum], chosen: ChosenLoss) -> tuple[Update, ClientLoss]:
        config = self._service.config
        limits = {"vocab_size": config.model.vocab_size, "max_tokens": self._service.max_model_len}
        samples = [as_sample(datum, chosen, where=f"datum {index}", **limits) for index, datum in enumerate(data)]
        algorithm = ClientLoss(replace(config, algorithm=loss_config(config.algorithm, chosen)))
        return await self._trainer.hand_over(algorithm, samples, version=self.num_steps), algorithm


class Sampler:
    """Samples with the weights of one model, or with the base model, while `Service.sampler` keeps it in its place."""

    def __init__(self, client: TokenClient, turn: Callable[[], Turned], *, version: int, max_model_len: int) -> None:
        """`version` is the oldest that may answer; each request is made in a `turn`."""
        self._client, self._turn, self._version, self._max_model_len = client, turn, version, max_model_len

    async def sample(
        self, prompt: Integers, sampling: dict[str, Any], *, request_id: str = "", listener: Listener | None = None
    ) -> Turn:
        """A reply behind the prompt; `sampling` has vLLM's names, and without `max_tokens` the reply may fill the context.

        `request_id` differs between requests, and is drawn where it is not given. `listener` receives tokens as they arrive.
        Raises BadRequestError, ServerError.
        """
        given = {"max_tokens": self._max_model_len - len(prompt)} | sampling
        session = f"service-{request_id or secrets.token_hex(8)}"
        try:
            async with self._turn():
                return await self._client.generate(
                    prompt,
                    sampling=given,
                    session_id=session,
                    request_id=session,
                    minimum_version=self._version,
                    listener=listener,
                )
        finally:
            self._client.finish(session)

    async def score(self, tokens: Integers, *, num_likeliest: int = 0, request_id: str) -> Scores:
        """The logprobs of tokens but the first, at temperature 1, and the likeliest ones. Raises BadRequestError, ServerError."""
        session = f"service-{request_id}"
        try:
            async with self._turn():
                return await self._client.score(
                    tokens,
                    num_likeliest=num_likeliest,
                    session_id=session,
                    request_id=session,
                    minimum_version=self._version,
                )
        finally:
            self._client.finish(session)


class Service:
    """The trainer and the servers of a service, and the models that are there now."""

    def __init__(self, config: RunConfig, folder: Path, trainer: TrainerGroup, serving: Serving, policy: Policy) -> None:
        """The `folder` is the service's; `save_base` writes the base model there if all weights are trained."""
        self.config, self.trainer, self.base = config, trainer, config.model.checkpoint
        self.trains_all = not config.trainer.lora.rank
        self._part, self._base_folder = MODEL if self.trains_all else ADAPTER, folder / BASE
        self.runs = ModelRuns(config, folder)
        self.lost = asyncio.Event()
        """Set when a rank of the trainer has died: nothing can be trained any more."""
        self._turns, self._replies = Turns(), Turns()
        self.models: dict[str, TrainedModel] = {}
        self.places = Places(config, serving, trainer, policy)
        self.max_model_len = serving.trained_endpoint().max_model_len

    @asynccontextmanager
    async def turn(self, owner: str = "") -> AsyncIterator[None]:
        """The trainer for one call of an owner; among those who wait, that owner is next whose last call is longest ago.

        Raises BadRequestError in place of the trainer's error about a loss or a gradient that is not finite.
        """
        async with self._turns.turn(owner):
            try:
                yield
            except RankLostError:
                self.lost.set()
                raise
            except TrainingError as error:
                raise BadRequestError(str(error)) from error

    async def create_model(self, name: str, spec: ModelSpec, *, start: Path | None = None, owner: str = "") -> TrainedModel:
        """A new model; with `start`, one that begins with the weights of a checkpoint. Raises BadRequestError."""
        spec = self._offered(spec)
        async with self.turn(owner):
            if (number := len(self.models)) >= (1 if self.trains_all else self.config.service.max_models):
                limit = "all weights are trained" if self.trains_all else "service.max_models"
                raise BadRequestError(f"there are {number} models already ({limit}): end one of them first")
            trainer = await self.give_weights(name, spec, start=start)
            targets = spec.targets(self.config.trainer.lora.targets)
            self.runs.begin(name, seed=spec.seed, rank=spec.rank, targets=targets)
            self.models[name] = TrainedModel(self, name, spec, trainer, owner=owner)
        return self.models[name]

    async def remove_model(self, name: str) -> None:
        """Frees a model; what was saved of it stays."""
        async with self.turn(self.models[name].owner):
            self.runs.end(name, step=self.models.pop(name).num_steps)
            await self.trainer.remove(name)

    async def give_weights(self, name: str, spec: ModelSpec, *, start: Path | None) -> TrainerGroup:
        """Gives the trainer the weights of a model, new ones or those of a checkpoint; it is the caller's turn."""
        own = replace(self.config, seed=spec.seed)
        if self.trains_all:
            trainer = await self.trainer.add(name, own)
            if start is not None:
                await trainer.load(start / STATE, optimizer=False)
            return trainer
        lora, begin = self.config.trainer.lora, str(start / ADAPTER) if start is not None else None
        lora = replace(lora, rank=spec.rank, targets=spec.targets(lora.targets), start=begin)
        return await self.trainer.add(name, replace(own, trainer=replace(own.trainer, lora=lora)))

    def _offered(self, spec: ModelSpec) -> ModelSpec:
        """A model as this service trains it. Raises BadRequestError if it cannot."""
        lora = self.config.trainer.lora
        if self.trains_all:
            if spec.rank:
                raise BadRequestError(f"rank={spec.rank}: this service trains all weights (trainer.lora.rank=0), use rank=0")
            if not (spec.train_attn and spec.train_mlp):
                raise BadRequestError("rank=0 trains all weights: leave train_attn and train_mlp true")
            return replace(spec, train_unembed=True)
        if not 1 <= spec.rank <= lora.rank:
            raise BadRequestError(f"rank={spec.rank}: this service trains adapters of rank 1 to {lora.rank} (trainer.lora.rank)")
        spec = replace(spec, train_unembed=spec.train_unembed and any(each in OF_VOCABULARY for each in lora.targets))
        if not spec.targets(lora.targets):
            raise BadRequestError("train_attn=false and train_mlp=false leave nothing to train")
        return spec

    def read_spec(self, folder: Path) -> ModelSpec:
        """The model of a checkpoint. Raises BadRequestError if it has another base."""
        found = json.loads((folder / SPEC).read_text())
        if (base := found.pop("base")) != self.base:
            raise BadRequestError(f"the checkpoint is of the base model {base}, this service has {self.base}")
        found.pop(NUM_STEPS, None)
        return ModelSpec(**found)

    @asynccontextmanager
    async def sampler(self, key: str, saved: Path | None, *, owner: str = "") -> AsyncIterator[Sampler]:
        """A sampler of what `save_sampler` or `save` has written; without it, of the base model.

        With `service.deterministic`, the requests of all samplers are computed one by one.

        The same key means the same weights. Raises WeightSyncError or ServerError if they reach no server.
        """
        if saved is None and self.trains_all:
            key, saved = BASE, self._base_folder
        keeping = self.places.base() if saved is None else self.places.held(key, saved / self._part)
        turn = partial(self._replies.turn, owner) if self.config.service.deterministic else nullcontext
        async with keeping as (client, version):
            yield Sampler(client, turn, version=version, max_model_len=self.max_model_len)

    async def renew(self, key: str, saved: Path) -> None:
        """Gives the samplers of a key, also those at work, other weights."""
        await self.places.renew(key, saved / self._part)

    async def save_base(self) -> None:
        """Writes the base model's weights and gives them to the servers, if all weights are trained; comes first of all."""
        if not self.trains_all:
            return
        await self.trainer.save_hugging_face(self._base_folder / MODEL)
        async with self.sampler(BASE, None):
            pass


@asynccontextmanager
async def open_service(config: RunConfig, folder: Path, *, say: Say) -> AsyncIterator[Service]:
    """A service whose trainer and servers are there until the end of the block; `folder` gets its logs."""
    policy = Policy()
    own = with_places(config)
    async with (
        running(config, say=say) as runtime,
        served(own, folder, runtime, policy=policy) as serving,
        trained(with_small_adapter(config), folder, runtime) as trainer,
    ):
        await together([serving.ready(say), trainer.loaded()])
        watches = Watches()
        watches.add(serving.watch())
        service = Service(config, folder, trainer, serving, policy)
        try:
            await service.save_base()
            yield service
        finally:
            await watches.cancel()
            await service.places.close()


def with_places(config: RunConfig) -> RunConfig:
    """The configuration of the servers, with a place for each adapter that they hold at the same time.

    Where all weights are trained, it has none.

    If the service is to be deterministic they keep no prefixes, since a prompt whose beginning is known is computed otherwise.
    """
    own = config
    if config.service.deterministic:
        models = {
            name: replace(model, vllm_args={"enable_prefix_caching": False} | model.vllm_args)
            for name, model in config.serving.models.items()
        }
        own = replace(config, serving=replace(config.serving, models=models))
    return replace(own, adapters={name: own for name in place_names(config) if name})


def with_small_adapter(config: RunConfig) -> RunConfig:
    """The configuration of the trainer, whose own adapter holds the base's place and is never trained.

    Where all weights are trained, it has none.
    """
    lora = config.trainer.lora
    lora = replace(lora, rank=1, targets=[LoraTarget.q_proj]) if lora.rank else lora
    trainer, algorithm = replace(config.trainer, lora=lora), loss_config(config.algorithm, ChosenLoss())
    return replace(config, trainer=trainer, algorithm=algorithm, deterministic=config.service.deterministic)


def loss_config(algorithm: AlgorithmConfig, chosen: ChosenLoss) -> AlgorithmConfig:
    """The configuration of an algorithm that is a client's loss."""
    return replace(algorithm, object=OBJECT, options=asdict(chosen))


def _with_target(inputs: Mapping[str, Any], place: int) -> dict[str, Any]:
    """The inputs of one of several targets of each position."""
    if np.ndim(inputs.get("target_tokens", ())) != 2:
        return dict(inputs)
    tables = ("target_tokens", "weights")
    return {name: np.asarray(value)[:, place] if name in tables else value for name, value in inputs.items()}
