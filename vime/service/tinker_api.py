"""The service over HTTP: the routes of the Tinker API (`/api/v1/…`), as its SDK calls them from version 0.25 on.

Long calls answer at once with an id, by which their result is asked for. Whatever is wrong with a call that has a place in its
model's line fails that call when its turn comes, because the calls behind it would wait for it for ever.
"""

import asyncio
import hashlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from vime.errors import BadRequestError
from vime.service import wire
from vime.service.call_queue import CallQueue, Failed, FullError, Work
from vime.service.checkpoint_store import KINDS, SAMPLER, SCHEME, TRAINING, Checkpoint, Store, num_bytes, spec_of
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
from vime.service.training_service import Service, TrainedModel
from vime.serving.scores import Scores
from vime.tasks import together
from vime.types import Turn

logger = logging.getLogger(__name__)

KEYS_VARIABLE = "VIME_SERVICE_KEYS"
"""Environment variable with the API keys of clients, with commas between. Without it every key is taken, each for a client of its
own."""
PREFIX = "/api/v1"
POLL_SECONDS = 20.0
"""Time for which a request for a result is held; the SDK gives up after 45 s."""
SWEEP_SECONDS = 5.0
FLAGS = {"parallel_fwdbwd_chunks": True, "proto_compress_fwdbwd": False, "sample_use_retrieve_futures": False}
"""Answers to the SDK's question for the ways of this service; the others are the simple ones by default."""
KEPT_UNNAMED = 8
"""Snapshots of a model for samplers that are kept without a name; older ones are removed."""
IN_FLIGHT = "inflight"


class _Refused(Exception):
    """A request that is answered at once with this status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


@dataclass(kw_only=True, slots=True)
class Session:
    """A client's session: what it has opened is freed with it."""

    id: str
    owner: str
    heard_at: float
    metadata: dict[str, Any] | None = None
    models: dict[str, TrainedModel | None] = field(default_factory=dict)
    """Models by name; None while one is created, or after it could not be."""
    samplers: dict[str, "Sampling"] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class Sampling:
    """The weights of a sampling session: the files of a key, or without them the base model."""

    key: str = ""
    saved: Path | None = None
    path: str | None = None
    snapshot_of: str = ""
    """The model whose weights they are, if they have no name and stay as they are."""


class TinkerAPI:
    """The routes, in front of one service."""

    def __init__(self, service: Service, folder: Path) -> None:
        """Checkpoints are kept below `folder`."""
        self._service, self._calls = service, CallQueue()
        self._store, self._unnamed = Store(folder / "checkpoints"), folder / "unnamed"
        self._sessions: dict[str, Session] = {}
        self._keys = [key for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key]
        self._sweeper: asyncio.Task[None] | None = None
        model = service.config.model
        self.names = [model.name, model.checkpoint, *service.config.service.model_names]

    def app(self) -> web.Application:
        """The application, which ends its sessions when it is cleaned up."""
        app = web.Application(middlewares=[self._answered], client_max_size=self._service.config.service.max_request_bytes)
        posts: dict[str, Callable[[web.Request, str], Awaitable[Any]]] = {
            "client/config": self._flags,
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "sessions/{id}/finish": self._finish_session,
            "telemetry": self._telemetry,
            "create_model": self._create_model,
            "get_info": self._get_info,
            "unload_model": self._unload_model,
            "forward_backward": self._train,
            "optim_step": self._optim_step,
            "save_weights": self._save_weights,
            "save_weights_for_sampler": self._save_for_sampler,
            "load_weights": self._load_weights,
            "create_sampling_session": self._create_sampling_session,
            "asample": self._sample,
            "retrieve_future": self._retrieve,
            "cancel_future": self._cancel,
            "weights_info": self._weights_info,
        }
        gets: dict[str, Callable[[web.Request, str], Awaitable[Any]]] = {
            "healthz": self._health,
            "get_server_capabilities": self._capabilities,
            "samplers/{id}": self._sampler,
            "sessions": self._list_sessions,
            "sessions/{id}": self._session,
            "training_runs": self._runs,
            "training_runs/{model}": self._run,
            "training_runs/{model}/checkpoints": self._checkpoints_of_run,
            "checkpoints": self._checkpoints,
        }
        for path, handler in posts.items():
            app.router.add_post(f"{PREFIX}/{path}", self._handled(handler))
        for path, handler in gets.items():
            app.router.add_get(f"{PREFIX}/{path}", self._handled(handler))
        app.router.add_delete(f"{PREFIX}/training_runs/{{model}}/checkpoints/{{id:.+}}", self._handled(self._delete_checkpoint))
        app.on_startup.append(self._start)
        app.on_cleanup.append(self._stop)
        return app

    # Requests

    def _handled(self, handler: Callable[[web.Request, str], Awaitable[Any]]) -> Callable[[web.Request], Awaitable[Any]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            found = await handler(request, self._owner(request))
            return found if isinstance(found, web.StreamResponse) else _json(found)

        return handle

    @web.middleware
    async def _answered(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Turns errors into answers that say what is wrong; nothing that a client sends is an error of the server."""
        try:
            return await handler(request)
        except _Refused as refused:
            return _json({"error": refused.text, "detail": refused.text}, status=refused.status)
        except BadRequestError as error:
            return _json({"error": str(error), "detail": str(error)}, status=400)
        except FullError as full:  # the SDK makes the call again at this status; at others its number would be missing for ever
            return _json({"error": str(full), "detail": str(full)}, status=429)
        except web.HTTPRequestEntityTooLarge:
            limit = self._service.config.service.max_request_bytes
            text = f"the request is larger than {limit} bytes (service.max_request_bytes)"
            return _json({"error": text, "detail": text}, status=413)
        except web.HTTPException as error:
            text = f"{request.method} {request.path}: {error.reason}; this service has no such call"
            return _json({"error": text, "detail": text}, status=error.status)
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.path)
            return _json({"error": f"{type(error).__name__} in the service", "detail": "see its log"}, status=500)

    def _owner(self, request: web.Request) -> str:
        """The client that a request is of, by its key. Raises _Refused without a key that is known."""
        key = request.headers.get("X-API-Key") or request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not key or (self._keys and not any(secrets.compare_digest(key.encode(), each.encode()) for each in self._keys)):
            raise _Refused(401, "the API key is not known here: set TINKER_API_KEY to one of VIME_SERVICE_KEYS")
        return hashlib.blake2b(key.encode(), digest_size=12).hexdigest()

    def _session_of(self, id: str, owner: str) -> Session:
        session = self._sessions.get(id)
        if session is None or session.owner != owner:
            raise _Refused(410, f"the session {id} is over, or was never there: create another one")
        session.heard_at = time.monotonic()
        return session

    def _with_model(self, name: str, owner: str) -> Session:
        """The session of a model. Raises _Refused if this owner has no such model."""
        session = self._sessions.get(name.split(":")[0])
        if session is None or session.owner != owner or name not in session.models:
            raise _Refused(404, f"there is no model {name}")
        session.heard_at = time.monotonic()
        return session

    def _in_line(
        self, name: str, number: int | None, owner: str, work: Callable[[TrainedModel], Awaitable[Any]]
    ) -> dict[str, Any]:
        """Queues a call of a model, which gets the model when its turn comes."""
        session = self._with_model(name, owner)
        if number is None:
            raise BadRequestError("seq_id is missing: the SDK numbers the calls of a model from 1 on")

        async def run() -> Any:
            if (model := session.models.get(name)) is None:
                raise BadRequestError(f"there is no model {name}: it could not be created, or it was unloaded")
            return await work(model)

        return {"request_id": self._calls.in_line(name, number, run, owner=owner), "model_id": name}

    # Sessions

    async def _flags(self, request: web.Request, owner: str) -> dict[str, Any]:
        return FLAGS

    async def _telemetry(self, request: web.Request, owner: str) -> dict[str, Any]:
        return {"status": "accepted"}  # and dropped

    async def _health(self, request: web.Request, owner: str) -> dict[str, Any]:
        return {"status": "ok"}

    async def _capabilities(self, request: web.Request, owner: str) -> dict[str, Any]:
        about = {"max_context_length": self._service.max_model_len, "trainable": True, "sampleable": True}
        return {"supported_models": [{"model_name": name, **about} for name in dict.fromkeys(self.names)]}

    async def _create_session(self, request: web.Request, owner: str) -> dict[str, Any]:
        body = await _body(request)
        metadata = body.get("user_metadata")
        session = Session(id=secrets.token_hex(8), owner=owner, heard_at=time.monotonic(), metadata=metadata)
        self._sessions[session.id] = session
        return {"type": "create_session", "session_id": session.id}

    async def _heartbeat(self, request: web.Request, owner: str) -> dict[str, Any]:
        self._session_of(text_of(await _body(request), "session_id"), owner)
        return {"type": "session_heartbeat"}

    async def _finish_session(self, request: web.Request, owner: str) -> dict[str, Any]:
        await self._end(self._session_of(request.match_info["id"], owner))
        return {}

    async def _list_sessions(self, request: web.Request, owner: str) -> dict[str, Any]:
        return {"sessions": [session.id for session in self._sessions.values() if session.owner == owner]}

    async def _session(self, request: web.Request, owner: str) -> dict[str, Any]:
        session = self._session_of(request.match_info["id"], owner)
        return {"training_run_ids": list(session.models), "sampler_ids": list(session.samplers)}

    # Models

    async def _create_model(self, request: web.Request, owner: str) -> dict[str, Any]:
        body = await _body(request)
        session, name = self._named(body, owner)
        self._check_base(text_of(body, "base_model"))
        check_optimizer(body)
        spec = model_spec(body)

        async def work() -> dict[str, Any]:
            session.models[name] = await self._service.create_model(name, spec)
            return {"type": "create_model", "model_id": name}

        return self._created(session, name, work)

    async def _load_weights(self, request: web.Request, owner: str) -> dict[str, Any]:
        body = await _body(request)
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
            return self._in_line(text_of(body, "model_id"), number_of(body, "seq_id"), owner, load)
        session, name = self._named(body, owner)
        if body.get("base_model"):
            self._check_base(text_of(body, "base_model"))

        async def work() -> dict[str, Any]:
            folder = found()
            spec = self._service.read_spec(folder)
            model = session.models[name] = await self._service.create_model(name, spec, start=folder)
            return await load(model) if with_optimizer else {"type": "load_weights", "path": path, "model_id": name}

        return self._created(session, name, work)

    def _named(self, body: dict[str, Any], owner: str) -> tuple[Session, str]:
        """The session of a new model, and the model's name, which the SDK derives as well."""
        session = self._session_of(text_of(body, "session_id"), owner)
        return session, f"{session.id}:train:{number_of(body, 'model_seq_id', needed=True)}"

    def _created(self, session: Session, name: str, work: Work) -> dict[str, Any]:
        session.models.setdefault(name, None)
        self._calls.begin(name, first=0)
        return {"request_id": self._calls.in_line(name, 0, work, owner=session.owner), "model_id": name}

    def _check_base(self, name: str) -> None:
        if name not in self.names:
            raise BadRequestError(f"base_model={name} is not served here: use {', '.join(dict.fromkeys(self.names))}")

    async def _get_info(self, request: web.Request, owner: str) -> dict[str, Any]:
        name = text_of(await _body(request), "model_id")
        model = self._with_model(name, owner).models[name]
        if model is None:
            raise _Refused(404, f"there is no model {name}: it could not be created, or it was unloaded")
        base = self._service.config.model
        about = {"arch": base.family.value, "model_name": base.name, "tokenizer_id": base.checkpoint}
        lora = {"is_lora": True, "lora_rank": model.spec.rank}
        return {"type": "get_info", "model_id": name, "model_name": base.name, "model_data": about, **lora}

    async def _unload_model(self, request: web.Request, owner: str) -> dict[str, Any]:
        body = await _body(request)
        name = text_of(body, "model_id")
        session = self._with_model(name, owner)

        async def work(model: TrainedModel) -> dict[str, Any]:
            session.models[name] = None
            await self._service.remove_model(name)
            return {"type": "unload_model", "model_id": name}

        return self._in_line(name, number_of(body, "seq_id"), owner, work)

    # Training

    async def _train(self, request: web.Request, owner: str) -> dict[str, Any]:
        if request.content_type != wire.CONTENT_TYPE:
            raise _Refused(415, f"forward_backward takes {wire.CONTENT_TYPE}, as tinker sends it from version 0.25 on")
        message = wire.read_request(await request.read())

        async def work(model: TrainedModel) -> bytes:
            data, numbers = wire.data_of(message), wire.loss_numbers(message)
            if message.forward_only:
                answer = await model.forward(data, message.loss_fn, numbers)
                return wire.training_answer(answer.logprobs, {})
            answer = await model.forward_backward(data, message.loss_fn, numbers)
            return wire.training_answer(answer.logprobs, {"loss:sum": answer.loss})

        return self._in_line(message.model_id, message.seq_id, owner, work)

    async def _optim_step(self, request: web.Request, owner: str) -> dict[str, Any]:
        body = await _body(request)

        async def work(model: TrainedModel) -> dict[str, Any]:
            return {"metrics": await model.step(adam_options(body))}

        return self._in_line(text_of(body, "model_id"), number_of(body, "seq_id"), owner, work)

    # Weights

    async def _save_weights(self, request: web.Request, owner: str) -> dict[str, Any]:
        body = await _body(request)

        async def work(model: TrainedModel) -> dict[str, Any]:
            name = body.get("path") or f"{model.num_steps:06d}"
            return {"type": "save_weights", "path": await self._saved(model, TRAINING, name, body, owner)}

        return self._in_line(text_of(body, "model_id"), number_of(body, "seq_id"), owner, work)

    async def _save_for_sampler(self, request: web.Request, owner: str) -> dict[str, Any]:
        body = await _body(request)
        name = text_of(body, "model_id")
        session, kind = self._with_model(name, owner), body.get("kind", "snapshot")
        if kind not in ("snapshot", IN_FLIGHT):
            raise BadRequestError(f"kind={kind}: use snapshot or {IN_FLIGHT}")

        async def work(model: TrainedModel) -> dict[str, Any]:
            if body.get("path"):
                return {"type": "save_weights_for_sampler", "path": await self._saved(model, SAMPLER, body["path"], body, owner)}
            number = number_of(body, "sampling_session_seq_id", needed=True)
            id = f"{session.id}:sample:{number}"
            key = f"{IN_FLIGHT}:{model.name}" if kind == IN_FLIGHT else id
            folder = self._unnamed / key.replace(":", "_")
            await model.save_sampler(folder)
            session.samplers[id] = Sampling(key=key, saved=folder, snapshot_of="" if kind == IN_FLIGHT else model.name)
            self._remove_old(session, model.name)
            if kind == IN_FLIGHT:
                await self._service.renew(key, folder)
            return {"type": "save_weights_for_sampler", "sampling_session_id": id}

        return self._in_line(name, number_of(body, "seq_id"), owner, work)

    def _remove_old(self, session: Session, of: str) -> None:
        """Removes the oldest weights of a model that have no name."""
        unnamed = [each for each in session.samplers.values() if each.snapshot_of == of]
        for each in unnamed[:-KEPT_UNNAMED]:
            shutil.rmtree(str(each.saved), ignore_errors=True)

    async def _saved(self, model: TrainedModel, kind: str, name: Any, body: dict[str, Any], owner: str) -> str:
        """Saves a checkpoint under a name, and returns its path. Raises BadRequestError for one that may not be replaced."""
        folder = self._store.place(model.name, kind, str(name))
        if folder.exists() and not (kind == SAMPLER or body.get("overwrite")):
            raise BadRequestError(f"the checkpoint {name} exists: give another name, or overwrite=True")
        seconds = real_of(body, "ttl_seconds", 0.0, least=0.0)
        checkpoint = Checkpoint(
            model=model.name,
            kind=kind,
            name=str(name),
            owner=owner,
            saved_at=time.time(),
            expires_at=time.time() + seconds if seconds else None,
            metadata=body.get("user_metadata"),
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        if kind == TRAINING:
            await model.save(folder)
        else:
            await model.save_sampler(folder)
        self._store.note(checkpoint)
        return checkpoint.path

    async def _weights_info(self, request: web.Request, owner: str) -> dict[str, Any]:
        _, folder = self._store.find(text_of(await _body(request), "tinker_path"), owner=owner)
        spec = spec_of(folder)
        parts = {"train_attn": spec["train_attn"], "train_mlp": spec["train_mlp"], "train_unembed": False}
        return {"base_model": self._service.config.model.name, "is_lora": True, "lora_rank": spec["rank"], **parts}

    async def _runs(self, request: web.Request, owner: str) -> dict[str, Any]:
        models = dict.fromkeys(
            [
                *(name for session in self._sessions.values() if session.owner == owner for name in session.models),
                *(checkpoint.model for checkpoint, _ in self._store.all(owner=owner)),
            ]
        )
        offset, limit = _query(request, "offset", 0), _query(request, "limit", 20)
        shown = [self._described(name, owner) for name in list(models)[offset : offset + limit]]
        return {"training_runs": shown, "cursor": {"offset": offset, "limit": limit, "total_count": len(models)}}

    async def _run(self, request: web.Request, owner: str) -> dict[str, Any]:
        return self._described(request.match_info["model"], owner)

    def _described(self, name: str, owner: str) -> dict[str, Any]:
        """A training run, as the SDK reads it. Raises _Refused if this owner has none of this name."""
        saved = self._store.all(owner=owner, model=name)
        session = self._sessions.get(name.split(":")[0])
        is_here = session is not None and session.owner == owner and name in session.models
        if not saved and not is_here:
            raise _Refused(404, f"there is no training run {name}")
        model = session.models[name] if is_here and session is not None else None
        rank = model.spec.rank if model is not None else spec_of(saved[-1][1])["rank"] if saved else None
        last = {kind: [_checkpoint(*each) for each in saved if each[0].kind == kind][-1:] for kind in KINDS}
        return {
            "training_run_id": name,
            "base_model": self._service.config.model.name,
            "model_owner": owner,
            "is_lora": True,
            "lora_rank": rank,
            "last_request_time": _time(saved[-1][0].saved_at if saved else time.time()),
            "last_checkpoint": last[TRAINING][0] if last[TRAINING] else None,
            "last_sampler_checkpoint": last[SAMPLER][0] if last[SAMPLER] else None,
        }

    async def _checkpoints_of_run(self, request: web.Request, owner: str) -> dict[str, Any]:
        return {"checkpoints": [_checkpoint(*each) for each in self._store.all(owner=owner, model=request.match_info["model"])]}

    async def _checkpoints(self, request: web.Request, owner: str) -> dict[str, Any]:
        found, offset, limit = self._store.all(owner=owner), _query(request, "offset", 0), _query(request, "limit", 100)
        cursor = {"offset": offset, "limit": limit, "total_count": len(found)}
        return {"checkpoints": [_checkpoint(*each) for each in found[offset : offset + limit]], "cursor": cursor}

    async def _delete_checkpoint(self, request: web.Request, owner: str) -> dict[str, Any]:
        self._store.remove(f"{SCHEME}{request.match_info['model']}/{request.match_info['id']}", owner=owner)
        return {}

    # Sampling

    async def _create_sampling_session(self, request: web.Request, owner: str) -> dict[str, Any]:
        body = await _body(request)
        session = self._session_of(text_of(body, "session_id"), owner)
        id = f"{session.id}:sample:{number_of(body, 'sampling_session_seq_id', needed=True)}"
        session.samplers.setdefault(id, self._sampling(body, owner))
        return {"type": "create_sampling_session", "sampling_session_id": id}

    def _sampling(self, body: dict[str, Any], owner: str) -> Sampling:
        """The weights that a request names. Raises BadRequestError if they are not here."""
        if path := body.get("model_path"):
            checkpoint, folder = self._store.find(str(path), owner=owner)
            return Sampling(key=f"{checkpoint.path} of {checkpoint.saved_at}", saved=folder, path=checkpoint.path)
        self._check_base(text_of(body, "base_model"))
        return Sampling()

    async def _sampler(self, request: web.Request, owner: str) -> dict[str, Any]:
        id = request.match_info["id"]
        session = self._sessions.get(id.split(":")[0])
        if session is None or session.owner != owner or id not in session.samplers:
            raise _Refused(404, f"there is no sampler {id}")
        return {"sampler_id": id, "base_model": self._service.config.model.name, "model_path": session.samplers[id].path}

    async def _sample(self, request: web.Request, owner: str) -> dict[str, Any]:
        body = await _body(request)
        if id := body.get("sampling_session_id"):
            session = self._session_of(str(id).split(":")[0], owner)
            if id not in session.samplers:
                raise _Refused(404, f"there is no sampler {id}")
            sampling, number = session.samplers[id], number_of(body, "seq_id", needed=True)
            request_id = f"{id}:{number}"
        else:
            sampling, request_id = self._sampling(body, owner), f"sample:{secrets.token_hex(8)}"
        parameters, num_samples = sampling_parameters(body), sample_count(body)
        prompt = prompt_tokens(body, vocab_size=self._service.config.model.vocab_size)
        num_likeliest = number_of(body, "topk_prompt_logprobs") or 0
        scored = num_likeliest if body.get("prompt_logprobs") or num_likeliest else None
        ask = partial(self._sampled, sampling, prompt, parameters, num_samples, request_id, scored)
        self._calls.alone(request_id, ask, owner=owner)
        return {"request_id": request_id, "sample_sequence_ids": [f"{request_id}:{index}" for index in range(num_samples)]}

    async def _sampled(
        self,
        sampling: Sampling,
        prompt: list[int],
        parameters: dict[str, Any],
        num_samples: int,
        request_id: str,
        scored: int | None,
    ) -> bytes:
        """Samples, and with `scored` the logprobs of the prompt, with as many of the likeliest tokens at each of its places."""
        num_top = parameters.get("logprobs", 0)
        async with self._service.sampler(sampling.key, sampling.saved) as sampler:

            async def one(index: int) -> Turn:
                seed = {"seed": parameters["seed"] + index} if "seed" in parameters else {}
                return await sampler.sample(prompt, parameters | seed, request_id=f"{request_id}:{index}")

            async def scores() -> Scores | None:
                if scored is None:
                    return None
                return await sampler.score(prompt, num_likeliest=scored, request_id=f"{request_id}:prompt")

            *turns, found = await together([*[one(index) for index in range(num_samples)], scores()])
        return wire.sample_answer(turns, num_top=num_top, prompt=found)

    # Results

    async def _retrieve(self, request: web.Request, owner: str) -> Any:
        request_id = text_of(await _body(request), "request_id")
        if (call := self._calls.get(request_id, owner=owner)) is None:
            raise _Refused(410, f"there is no call {request_id}, or its result is gone: make it again")
        done, _ = await asyncio.wait([call.result], timeout=POLL_SECONDS)
        if not done:
            return _json({"type": "try_again", "request_id": request_id, "queue_state": "active"}, status=408)
        call.was_fetched = True
        try:
            result = call.result.result()
        except Failed as failed:
            return {"error": failed.text, "category": failed.category}
        return web.Response(body=result, content_type=wire.CONTENT_TYPE) if isinstance(result, bytes) else result

    async def _cancel(self, request: web.Request, owner: str) -> dict[str, Any]:
        request_id = text_of(await _body(request), "request_id")
        if self._calls.get(request_id, owner=owner) is not None:
            await self._calls.abandon(request_id)
        return {}

    # The life of the application

    async def _start(self, app: web.Application) -> None:
        shutil.rmtree(self._unnamed, ignore_errors=True)  # of a service that was killed: its sessions are over
        self._sweeper = asyncio.create_task(self._sweep())

    async def _stop(self, app: web.Application) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._calls.close()

    async def _sweep(self) -> None:
        """Ends the sessions of clients that are gone, and removes checkpoints whose time is over."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            limit = time.monotonic() - self._service.config.service.session_timeout_seconds
            try:
                for session in [each for each in self._sessions.values() if each.heard_at < limit]:
                    logger.info("the session %s is silent: its %d models are freed", session.id, len(session.models))
                    await self._end(session)
                await asyncio.to_thread(self._store.remove_expired)
            except Exception:  # the next round tries again: without it, nothing would ever be freed
                logger.exception("silent sessions and expired checkpoints could not be removed")

    async def _end(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is None:
            return  # it is being ended
        for name in session.models:
            await self._calls.end(name)
            if name in self._service.models:
                await self._service.remove_model(name)
        for sampling in session.samplers.values():
            await self._service.places.forget(sampling.key)
            if sampling.saved is not None and sampling.path is None:
                shutil.rmtree(sampling.saved, ignore_errors=True)


async def _body(request: web.Request) -> dict[str, Any]:
    return json_object(await request.read())


def _query(request: web.Request, name: str, default: int) -> int:
    value = request.query.get(name, str(default))
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise BadRequestError(f"{name}={value}: a whole number of at least 0 is needed")
    return int(value)


def _checkpoint(checkpoint: Checkpoint, folder: Path) -> dict[str, Any]:
    """A checkpoint, as the SDK reads it."""
    return {
        "checkpoint_id": f"{checkpoint.kind}/{checkpoint.name}",
        "checkpoint_type": KINDS[checkpoint.kind],
        "time": _time(checkpoint.saved_at),
        "tinker_path": checkpoint.path,
        "size_bytes": num_bytes(folder),
        "user_metadata": checkpoint.metadata,
        "expires_at": _time(checkpoint.expires_at) if checkpoint.expires_at is not None else None,
    }


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json", status=status)
