"""The long calls of the Tinker API: each is read into a `Planned` call of the queue, when it arrives and again after a restart.

The state of a model is saved beside its calls, at an optimizer step after which the work since the last saved state has taken
`SAVED_SHARE` times as long as saving it: saving costs a fixed share of the work on models of any size, and what a service has to
repeat that starts again is bounded by the same. Gradients are never saved, they come from repeated calls. A model that has loaded
a checkpoint is saved at once, since its client may remove the checkpoint.
"""

import logging
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError

from vime.errors import BadRequestError, VimeError
from vime.files import folders
from vime.service import wire
from vime.service.call_queue import CallQueue, Interrupted, Planned, Work
from vime.service.checkpoint_store import SAMPLER, TRAINING, Checkpoint, Store, file_of, read
from vime.service.journal import JSON, PROTOBUF, USER, Entry, Journal
from vime.service.quotas import Quotas
from vime.service.request_fields import (
    adam_options,
    check_optimizer,
    json_object,
    model_spec,
    number_of,
    prompt_tokens,
    real_of,
    sample_count,
    sampling_parameters,
    text_of,
)
from vime.service.sessions import Refused, Sampling, Session, Sessions
from vime.service.training_service import ModelSpec, Service, TrainedModel
from vime.serving.scores import Scores
from vime.tasks import together
from vime.types import Turn

logger = logging.getLogger(__name__)

SAVED_SHARE = 20.0
KEPT_UNNAMED = 8
"""Snapshots of a model for samplers that are kept without a name; older ones are removed."""
IN_FLIGHT = "inflight"


@dataclass(kw_only=True, slots=True)
class Progress:
    """Seconds of a model's training calls since its state was saved, and those that saving took; at first it is saved at once."""

    worked: float = 0.0
    saving: float = 0.0


class TinkerCalls:
    """The calls by their routes, in front of one service."""

    def __init__(
        self, service: Service, sessions: Sessions, journal: Journal, store: Store, quotas: Quotas, folder: Path
    ) -> None:
        """`folder` gets the states of models, and weights of samplers without a name."""
        self._service, self._sessions, self._journal, self._store, self._quotas = service, sessions, journal, store, quotas
        self._states, self._unnamed = folder / "models", folder / "unnamed"
        self._progress: dict[str, Progress] = {}
        model = service.config.model
        self.names = list(dict.fromkeys([model.name, model.checkpoint, *service.config.service.model_names]))
        self._readers: dict[str, Callable[[bytes, str], Planned]] = {
            "create_model": self._create_model,
            "load_weights": self._load_weights,
            "unload_model": self._unload_model,
            "forward_backward": self._train,
            "optim_step": self._optim_step,
            "save_weights": self._save_weights,
            "save_weights_for_sampler": self._save_for_sampler,
            "asample": self._sample,
        }

    @property
    def routes(self) -> list[str]:
        """The routes of long calls."""
        return list(self._readers)

    def plan(self, route: str, body: bytes, owner: str) -> Planned:
        """Reads a call. Raises BadRequestError, Refused for one that has no place in a line; others fail at their turn."""
        return self._readers[route](body, owner)

    async def restore(self, queue: CallQueue) -> None:
        """Brings the models and the calls of the journal back; their calls go on in the background."""
        self._sessions.restore()
        self._store.tidy()
        sessions = {session.id: session for session in self._sessions}
        for line, next, is_over in self._journal.lines():
            session, states = sessions[line.split(":")[0]], self._states_of(line)
            session.models[line] = None
            folders.tidy(states)
            repeated: list[Planned] = []
            if is_over:
                shutil.rmtree(states, ignore_errors=True)
            else:
                done = await self._from_state(session, line)
                entries = [each for each in self._journal.to_repeat(line) if each.number > done]
                repeated = [self._again(each) for each in entries]
            queue.resume(line, next=next, repeated=repeated)
        for entry in self._journal.open_calls():
            queue.restore(entry, self._again(entry), num_bytes=len(self._journal.body(entry.id)))
        used = {sampling.saved for session in self._sessions for sampling in session.samplers.values()}
        for folder in self._unnamed.glob("*"):
            if str(folder) not in used:
                shutil.rmtree(folder)

    async def remove(self, session: Session) -> None:
        """Frees the models and the samplers of a session whose calls have ended."""
        for name in session.models:
            if name in self._service.models:
                await self._service.remove_model(name)
            shutil.rmtree(self._states_of(name), ignore_errors=True)
            self._progress.pop(name, None)
        for sampling in session.samplers.values():
            await self._service.places.forget(sampling.key)
            if sampling.saved is not None and sampling.path is None:
                shutil.rmtree(sampling.saved, ignore_errors=True)

    def sampling(self, body: dict[str, Any], owner: str) -> Sampling:
        """The weights that a request names. Raises BadRequestError if they are not here."""
        if path := body.get("model_path"):
            checkpoint, folder = self._store.find(str(path), owner=owner)
            return Sampling(key=f"{checkpoint.path} of {checkpoint.saved_at}", saved=str(folder), path=checkpoint.path)
        self._check_base(text_of(body, "base_model"))
        return Sampling()

    # The way back

    def _again(self, entry: Entry) -> Planned:
        """The plan of a call in the journal; if it cannot be read any more, one that fails with the reason."""
        try:
            return replace(self.plan(entry.route, self._journal.body(entry.id), entry.owner), id=entry.id)
        except (BadRequestError, Refused) as error:
            return Planned(id=entry.id, line=entry.line, number=entry.number, work=partial(_failing, str(error)))

    async def _from_state(self, session: Session, name: str) -> int:
        """Creates a model with its last saved state; returns the number of the last call that this has, or -1 without one."""
        saved = max((int(each.name) for each in self._states_of(name).glob("*") if each.name.isdigit()), default=-1)
        if saved >= 0:
            folder = self._states_of(name) / f"{saved:08d}"
            try:
                spec = self._service.read_spec(folder)
                model = await self._created(session, name, spec, folder)
                await self._kept(model.resume(folder))
            except VimeError:
                logger.exception("the model %s cannot be restored from %s", name, folder)
        return saved

    async def _save_state(self, name: str, session: Session, number: int, *, now: bool) -> None:
        """Saves the state of a model behind a call, if it is due or has to be `now`."""
        progress, model = self._progress.setdefault(name, Progress()), session.models.get(name)
        if model is None or (progress.worked < SAVED_SHARE * progress.saving and not now):
            return
        started, folder = time.monotonic(), self._states_of(name) / f"{number:08d}"
        await self._kept(model.save(folder))
        self._journal.forget_changes(name, until=number)
        for other in folder.parent.iterdir():
            if other != folder:
                folders.remove(other)
        self._progress[name] = Progress(saving=time.monotonic() - started)

    def _states_of(self, name: str) -> Path:
        return self._states / name.replace(":", "_")

    async def _kept(self, work: Awaitable[Any]) -> Any:
        """The result of work at the trainer. Raises Interrupted if the trainer is lost."""
        try:
            return await work
        except VimeError as error:
            if self._service.lost.is_set() or isinstance(error.__cause__, RayActorError):
                self._service.lost.set()
                raise Interrupted(str(error)) from error
            raise

    # Models

    def _create_model(self, data: bytes, owner: str) -> Planned:
        body = json_object(data)
        session, name = self._named(body, owner)
        self._check_base(text_of(body, "base_model"))
        check_optimizer(body)
        spec = model_spec(body, name=name)

        async def work() -> dict[str, Any]:
            await self._created(session, name, spec, None)
            return {"type": "create_model", "model_id": name}

        return Planned(id=f"{name}:0", line=name, work=work, repeated_after=(JSON,))

    def _load_weights(self, data: bytes, owner: str) -> Planned:
        body = json_object(data)
        check_optimizer(body)
        path, with_optimizer = text_of(body, "path"), bool(body.get("optimizer"))

        def found() -> Path:
            checkpoint, folder = self._store.find(path, owner=owner)
            if checkpoint.kind != TRAINING:
                raise BadRequestError(f"{path} has the weights of a sampler alone: load what save_state has saved")
            return folder

        async def load(model: TrainedModel) -> dict[str, Any]:
            await model.load(found(), optimizer=with_optimizer)
            return {"type": "load_weights", "path": path, "model_id": model.name}

        if body.get("model_id"):
            return self._in_line(text_of(body, "model_id"), body, owner, load, repeated_after=(JSON,), saves_now=True)
        session, name = self._named(body, owner)
        if body.get("base_model"):
            self._check_base(text_of(body, "base_model"))

        async def work() -> dict[str, Any]:
            folder = found()
            model = await self._created(session, name, self._service.read_spec(folder), folder)
            return await load(model) if with_optimizer else {"type": "load_weights", "path": path, "model_id": name}

        then = partial(self._save_state, name, session, 0, now=True)
        return Planned(id=f"{name}:0", line=name, work=work, repeated_after=(JSON,), then=then)

    async def _created(self, session: Session, name: str, spec: ModelSpec, folder: Path | None) -> TrainedModel:
        model = await self._kept(self._service.create_model(name, spec, start=folder, owner=session.owner))
        session.models[name] = model
        return model

    def _unload_model(self, data: bytes, owner: str) -> Planned:
        body = json_object(data)
        name = text_of(body, "model_id")
        session = self._sessions.of_model(name, owner)

        async def work(model: TrainedModel) -> dict[str, Any]:
            await self._service.remove_model(name)
            session.models[name] = None
            return {"type": "unload_model", "model_id": name}

        async def then() -> None:
            shutil.rmtree(self._states_of(name), ignore_errors=True)

        return replace(self._in_line(name, body, owner, work), ends_line=True, then=then)

    def _named(self, body: dict[str, Any], owner: str) -> tuple[Session, str]:
        """The session of a new model, and the model's name, which the SDK derives as well."""
        session = self._sessions.of(text_of(body, "session_id"), owner)
        return session, f"{session.id}:train:{number_of(body, 'model_seq_id', needed=True)}"

    def _check_base(self, name: str) -> None:
        if name not in self.names:
            raise BadRequestError(f"base_model={name} is not served here: use {', '.join(self.names)}")

    def _in_line(
        self,
        name: str,
        body: dict[str, Any],
        owner: str,
        work: Callable[[TrainedModel], Awaitable[Any]],
        *,
        repeated_after: tuple[str, ...] = (),
        saves_now: bool | None = None,
    ) -> Planned:
        """A call of a model, which gets the model when its turn comes.

        With `saves_now` its state is saved afterwards, if that is False only where it is due.
        """
        session, number = self._sessions.of_model(name, owner), number_of(body, "seq_id")
        if number is None:
            raise BadRequestError("seq_id is missing: the SDK numbers the calls of a model from 1 on")

        async def run() -> Any:
            if (model := session.models.get(name)) is None:
                raise BadRequestError(f"there is no model {name}: it could not be created, or it was unloaded")
            started = time.monotonic()
            result = await self._kept(work(model))
            if repeated_after:
                self._progress.setdefault(name, Progress()).worked += time.monotonic() - started
            return result

        then: Work | None = partial(self._save_state, name, session, number, now=saves_now) if saves_now is not None else None
        return Planned(id=f"{name}:{number}", line=name, number=number, work=run, repeated_after=repeated_after, then=then)

    # Training

    def _train(self, data: bytes, owner: str) -> Planned:
        message = wire.read_request(data)
        name, number = message.model_id, message.seq_id
        is_forward = message.forward_only

        async def work(model: TrainedModel) -> bytes:
            asked = wire.read_request(self._journal.body(f"{name}:{number}"))  # so that calls that wait take no memory
            sequences, numbers = wire.data_of(asked), wire.loss_numbers(asked)
            if is_forward:
                answer = await model.forward(sequences, asked.loss_fn, numbers)
                return wire.training_answer(answer.logprobs, {})
            answer = await model.forward_backward(sequences, asked.loss_fn, numbers)
            return wire.training_answer(answer.logprobs, {"loss:sum": answer.loss})

        # after a failure as well, since a loss that is not finite has taken the gradients with it
        plan = self._in_line(name, {"seq_id": number}, owner, work, repeated_after=() if is_forward else (PROTOBUF, USER))
        return replace(plan, num_tokens=wire.num_tokens(message))

    def _optim_step(self, data: bytes, owner: str) -> Planned:
        body = json_object(data)

        async def work(model: TrainedModel) -> dict[str, Any]:
            return {"metrics": await model.step(adam_options(body))}

        return self._in_line(text_of(body, "model_id"), body, owner, work, repeated_after=(JSON, USER), saves_now=False)

    # Weights

    def _save_weights(self, data: bytes, owner: str) -> Planned:
        body = json_object(data)

        async def work(model: TrainedModel) -> dict[str, Any]:
            name = body.get("path") or f"{model.num_steps:06d}"
            return {"type": "save_weights", "path": await self._saved(model, TRAINING, name, body, owner)}

        return self._in_line(text_of(body, "model_id"), body, owner, work)

    def _save_for_sampler(self, data: bytes, owner: str) -> Planned:
        body = json_object(data)
        name = text_of(body, "model_id")
        session, kind = self._sessions.of_model(name, owner), body.get("kind", "snapshot")
        if kind not in ("snapshot", IN_FLIGHT):
            raise BadRequestError(f"kind={kind}: use snapshot or {IN_FLIGHT}")

        async def work(model: TrainedModel) -> dict[str, Any]:
            if body.get("path"):
                return {"type": "save_weights_for_sampler", "path": await self._saved(model, SAMPLER, body["path"], body, owner)}
            id = f"{session.id}:sample:{number_of(body, 'sampling_session_seq_id', needed=True)}"
            key = f"{IN_FLIGHT}:{model.name}" if kind == IN_FLIGHT else id
            folder = self._unnamed / key.replace(":", "_")
            await model.save_sampler(folder)
            of = "" if kind == IN_FLIGHT else model.name
            self._sessions.add_sampler(session, id, Sampling(key=key, saved=str(folder), snapshot_of=of))
            self._remove_old(session, model.name)
            if kind == IN_FLIGHT:
                await self._service.renew(key, folder)
            return {"type": "save_weights_for_sampler", "sampling_session_id": id}

        return self._in_line(name, body, owner, work)

    def _remove_old(self, session: Session, of: str) -> None:
        """Removes the oldest weights of a model that have no name, but for those that samples are still to be taken from."""
        unnamed = [(id, Path(str(each.saved))) for id, each in session.samplers.items() if each.snapshot_of == of]
        old = [(id, folder) for id, folder in unnamed[:-KEPT_UNNAMED] if folder.exists()]
        awaited = {entry.id.rpartition(":")[0] for entry in self._journal.open_calls()} if old else set[str]()
        for id, folder in old:
            if id not in awaited:
                shutil.rmtree(folder, ignore_errors=True)

    async def _saved(self, model: TrainedModel, kind: str, name: Any, body: dict[str, Any], owner: str) -> str:
        """Saves a checkpoint under a name, and returns its path. Raises BadRequestError for one that may not be replaced."""
        folder, call = self._store.place(model.name, kind, str(name)), f"{model.name}:{number_of(body, 'seq_id')}"
        if (found := read(folder)) is not None and found.call == call:
            return found.path  # the service has ended between the checkpoint and the answer
        if folder.exists() and not (kind == SAMPLER or body.get("overwrite")):
            raise BadRequestError(f"the checkpoint {name} exists: give another name, or overwrite=True")
        self._quotas.check_disk(owner)
        seconds = real_of(body, "ttl_seconds", 0.0, least=0.0)
        checkpoint = Checkpoint(
            model=model.name,
            kind=kind,
            name=str(name),
            owner=owner,
            saved_at=time.time(),
            expires_at=time.time() + seconds if seconds else None,
            metadata=body.get("user_metadata"),
            call=call,
        )
        await (model.save if kind == TRAINING else model.save_sampler)(folder, file_of(checkpoint))
        return checkpoint.path

    # Sampling

    def _sample(self, data: bytes, owner: str) -> Planned:
        body = json_object(data)
        if id := body.get("sampling_session_id"):
            sampling = self._sessions.sampler(str(id), owner)
            request_id = f"{id}:{number_of(body, 'seq_id', needed=True)}"
        else:
            sampling, request_id = self.sampling(body, owner), f"sample:{secrets.token_hex(8)}"
        parameters, num_samples = sampling_parameters(body), sample_count(body)
        prompt = prompt_tokens(body, vocab_size=self._service.config.model.vocab_size)
        num_likeliest = number_of(body, "topk_prompt_logprobs") or 0
        scored = num_likeliest if body.get("prompt_logprobs") or num_likeliest else None
        sampled = partial(self._sampled, sampling, prompt, parameters, num_samples, request_id, scored, owner)

        async def work() -> bytes:
            return await self._kept(sampled())

        longest = parameters.get("max_tokens", self._service.max_model_len - len(prompt))
        return Planned(id=request_id, work=work, num_tokens=len(prompt) + num_samples * max(longest, 0))

    async def _sampled(
        self,
        sampling: Sampling,
        prompt: list[int],
        parameters: dict[str, Any],
        num_samples: int,
        request_id: str,
        scored: int | None,
        owner: str,
    ) -> bytes:
        """Samples, and with `scored` the logprobs of the prompt, with as many of the likeliest tokens at each of its places."""
        num_top = parameters.get("logprobs", 0)
        async with self._service.sampler(sampling.key, sampling.folder, owner=owner) as sampler:

            async def one(index: int) -> Turn:
                seed = {"seed": parameters["seed"] + index} if "seed" in parameters else {}
                return await sampler.sample(prompt, parameters | seed, request_id=f"{request_id}:{index}")

            async def scores() -> Scores | None:
                if scored is None:
                    return None
                return await sampler.score(prompt, num_likeliest=scored, request_id=f"{request_id}:prompt")

            *turns, found = await together([*[one(index) for index in range(num_samples)], scores()])
        return wire.sample_answer(turns, num_top=num_top, prompt=found)


async def _failing(reason: str) -> None:
    raise BadRequestError(reason)
