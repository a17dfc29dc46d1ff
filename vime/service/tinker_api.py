"""The service over HTTP: the routes of the Tinker API (`/api/v1/…`), as its SDK calls them from version 0.25 on.

Long calls answer at once with an id, by which their result is asked for. Whatever is wrong with a call that has a place in its
model's line fails that call when its turn comes, because the calls behind it would wait for it for ever.
"""

import asyncio
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from vime.errors import BadRequestError
from vime.gateway.session import Limits
from vime.service import wire
from vime.service.agent_sessions import ROUTE, AgentSessions
from vime.service.call_queue import CallQueue, FullError, Planned
from vime.service.checkpoint_store import KINDS, SAMPLER, SCHEME, TRAINING, Checkpoint, Store, num_bytes, spec_of
from vime.service.journal import PROTOBUF, SERVER, USER, Journal
from vime.service.model_runs import run_name
from vime.service.quotas import Quotas
from vime.service.request_fields import json_object, number_of, sample_count, sampling_parameters, text_of
from vime.service.sessions import Refused, Session, Sessions
from vime.service.tinker_calls import TinkerCalls
from vime.service.training_service import Service

logger = logging.getLogger(__name__)

KEYS_VARIABLE = "VIME_SERVICE_KEYS"
"""Environment variable with the API keys of clients, with commas between. Without it every key is taken, each for a client of its
own."""
PREFIX = "/api/v1"
POLL_SECONDS = 8.0
"""Time for which a request for a result is held; the SDK asks again."""
SWEEP_SECONDS = 5.0
SHOWN_DIGITS = 8
"""Digits that are shown of a client's name, which is a digest of its key."""
FLAGS = {"parallel_fwdbwd_chunks": True, "proto_compress_fwdbwd": False, "sample_use_retrieve_futures": False}
"""Answers to the SDK's question for the ways of this service; the others are the simple ones by default."""


class TinkerAPI:
    """The routes, in front of one service."""

    def __init__(self, service: Service, folder: Path, journal: Journal) -> None:
        """Checkpoints are kept below `folder`; what stands in the journal goes on."""
        self._service = service
        self._store, self._sessions, self._queue = Store(folder / "checkpoints"), Sessions(journal), CallQueue(journal)
        self._quotas, self._agents = Quotas(service.config.service, self._store), AgentSessions(service)
        self._calls = TinkerCalls(service, self._sessions, journal, self._store, self._quotas, folder)
        self._keys = [key for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key]
        self._sweeper: asyncio.Task[None] | None = None
        self.names = self._calls.names

    @property
    def num_finished(self) -> int:
        """The number of long calls that have an outcome since the start."""
        return self._queue.num_finished

    def app(self) -> web.Application:
        """The application, which ends its sessions when it is cleaned up."""
        app = web.Application(middlewares=[self._answered], client_max_size=self._service.config.service.max_request_bytes)
        posts: dict[str, Callable[[web.Request, str], Awaitable[Any]]] = {
            "client/config": self._flags,
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "sessions/{id}/finish": self._finish_session,
            "telemetry": self._telemetry,
            "get_info": self._get_info,
            "create_sampling_session": self._create_sampling_session,
            "retrieve_future": self._retrieve,
            "cancel_future": self._cancel,
            "weights_info": self._weights_info,
            "agents": self._open_agent,
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
            "agents/{id}": self._agent,
        }
        posts |= {route: partial(self._long, route) for route in self._calls.routes}
        for path, handler in posts.items():
            app.router.add_post(f"{PREFIX}/{path}", self._handled(handler))
        for path, handler in gets.items():
            app.router.add_get(f"{PREFIX}/{path}", self._handled(handler))
        app.router.add_delete(f"{PREFIX}/training_runs/{{model}}/checkpoints/{{id:.+}}", self._handled(self._delete_checkpoint))
        app.router.add_delete(f"{PREFIX}/agents/{{id}}", self._handled(self._close_agent))
        app.add_subapp(ROUTE, self._agents.app())
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
        except Refused as refused:
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
        """The client that a request is of, by its key. Raises Refused without a key that is known."""
        key = request.headers.get("X-API-Key") or request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not key or (self._keys and not any(secrets.compare_digest(key.encode(), each.encode()) for each in self._keys)):
            raise Refused(401, "the API key is not known here: set TINKER_API_KEY to one of VIME_SERVICE_KEYS")
        return hashlib.blake2b(key.encode(), digest_size=12).hexdigest()

    async def _long(self, route: str, request: web.Request, owner: str) -> dict[str, Any]:
        """Queues a long call, and answers with the id of its result."""
        if route == "forward_backward" and request.content_type != wire.CONTENT_TYPE:
            raise Refused(415, f"forward_backward takes {wire.CONTENT_TYPE}, as tinker sends it from version 0.25 on")
        body = await request.read()
        plan = self._calls.plan(route, body, owner)
        if not self._queue.knows(plan.id):
            self._check_quotas(plan, owner)
        if plan.line and plan.number == 0:  # the call that creates the model
            self._sessions.of(plan.line.split(":")[0], owner).models.setdefault(plan.line, None)
            self._queue.begin(plan.line, first=0)
        id = self._queue.add(plan, owner=owner, route=route, body=body)
        return {"request_id": id, **({"model_id": plan.line} if plan.line else {"sample_sequence_ids": _sequences(id, body)})}

    def _check_quotas(self, plan: Planned, owner: str) -> None:
        if plan.line and plan.number == 0:
            own = [session for session in self._sessions if session.owner == owner]
            models = [(name, model) for session in own for name, model in session.models.items()]
            is_there = [model is not None or self._queue.is_open(f"{name}:0") for name, model in models]  # or is being created
            self._quotas.check_models(sum(is_there))
        self._quotas.take_tokens(owner, plan.num_tokens)

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
        return {"type": "create_session", "session_id": self._sessions.create(owner, body.get("user_metadata")).id}

    async def _heartbeat(self, request: web.Request, owner: str) -> dict[str, Any]:
        self._sessions.of(text_of(await _body(request), "session_id"), owner)
        return {"type": "session_heartbeat"}

    async def _finish_session(self, request: web.Request, owner: str) -> dict[str, Any]:
        await self._end(self._sessions.of(request.match_info["id"], owner))
        return {}

    async def _list_sessions(self, request: web.Request, owner: str) -> dict[str, Any]:
        return {"sessions": [session.id for session in self._sessions if session.owner == owner]}

    async def _session(self, request: web.Request, owner: str) -> dict[str, Any]:
        session = self._sessions.of(request.match_info["id"], owner)
        return {"training_run_ids": list(session.models), "sampler_ids": list(session.samplers)}

    async def _get_info(self, request: web.Request, owner: str) -> dict[str, Any]:
        name = text_of(await _body(request), "model_id")
        model = self._sessions.of_model(name, owner).models[name]
        if model is None:
            raise Refused(404, f"there is no model {name}: it could not be created, or it was unloaded")
        base = self._service.config.model
        about = {"arch": base.family.value, "model_name": base.name, "tokenizer_id": base.checkpoint}
        lora = {"is_lora": model.spec.rank > 0, "lora_rank": model.spec.rank}
        return {"type": "get_info", "model_id": name, "model_name": base.name, "model_data": about, **lora}

    async def _weights_info(self, request: web.Request, owner: str) -> dict[str, Any]:
        _, folder = self._store.find(text_of(await _body(request), "tinker_path"), owner=owner)
        spec = spec_of(folder)
        parts = {name: spec.get(name, False) for name in ("train_attn", "train_mlp", "train_unembed")}
        return {"base_model": self._service.config.model.name, "is_lora": spec["rank"] > 0, "lora_rank": spec["rank"], **parts}

    async def _runs(self, request: web.Request, owner: str) -> dict[str, Any]:
        models = dict.fromkeys(
            [
                *(name for session in self._sessions if session.owner == owner for name in session.models),
                *(checkpoint.model for checkpoint, _ in self._store.all(owner=owner)),
            ]
        )
        offset, limit = _query(request, "offset", 0), _query(request, "limit", 20)
        shown = [self._described(name, owner) for name in list(models)[offset : offset + limit]]
        return {"training_runs": shown, "cursor": {"offset": offset, "limit": limit, "total_count": len(models)}}

    async def _run(self, request: web.Request, owner: str) -> dict[str, Any]:
        return self._described(request.match_info["model"], owner)

    def _described(self, name: str, owner: str) -> dict[str, Any]:
        """A training run, as the SDK reads it. Raises Refused if this owner has none of this name."""
        saved = self._store.all(owner=owner, model=name)
        session = self._sessions.find(name.split(":")[0], owner)
        is_here = session is not None and name in session.models
        if not saved and not is_here:
            raise Refused(404, f"there is no training run {name}")
        model = session.models[name] if is_here and session is not None else None
        rank = model.spec.rank if model is not None else spec_of(saved[-1][1])["rank"] if saved else None
        last = {kind: [_checkpoint(*each) for each in saved if each[0].kind == kind][-1:] for kind in KINDS}
        return {
            "training_run_id": name,
            "base_model": self._service.config.model.name,
            "model_owner": owner,
            "is_lora": rank != 0,
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
        session = self._sessions.of(text_of(body, "session_id"), owner)
        id = f"{session.id}:sample:{number_of(body, 'sampling_session_seq_id', needed=True)}"
        if id not in session.samplers:
            self._sessions.add_sampler(session, id, self._calls.sampling(body, owner))
        return {"type": "create_sampling_session", "sampling_session_id": id}

    async def _sampler(self, request: web.Request, owner: str) -> dict[str, Any]:
        id = request.match_info["id"]
        path = self._sessions.sampler(id, owner).path
        return {"sampler_id": id, "base_model": self._service.config.model.name, "model_path": path}

    async def _open_agent(self, request: web.Request, owner: str) -> dict[str, Any]:
        body = await _body(request)
        named = self._calls.sampling(body, owner) if "sampling_session_id" not in body else None
        weights = partial(self._sessions.sampler, text_of(body, "sampling_session_id"), owner) if named is None else lambda: named
        weights()  # which refuses what is not there

        def sampling():  # the weights of a sampling session may be newer each time
            present = weights()
            return self._service.sampler(present.key, present.folder, owner=owner)

        limits = Limits(num_calls=number_of(body, "num_calls"), num_tokens=number_of(body, "num_tokens"))
        about = {"parameters": sampling_parameters(body), "limits": limits, "base": str(request.url.origin())}
        take_tokens = partial(self._quotas.take_tokens, owner)
        id, session = await self._agents.open(owner, sampling, take_tokens=take_tokens, **about)
        urls = {"openai_url": session.openai_url, "anthropic_url": session.anthropic_url}
        return {"agent_id": id, "api_key": session.secret, **urls}

    async def _agent(self, request: web.Request, owner: str) -> dict[str, Any]:
        id = request.match_info["id"]
        return {"agent_id": id, "sequences": [asdict(each) for each in self._agents.sequences(id, owner)]}

    async def _close_agent(self, request: web.Request, owner: str) -> dict[str, Any]:
        self._agents.close(request.match_info["id"], owner)
        return {}

    # Results

    async def _retrieve(self, request: web.Request, owner: str) -> Any:
        request_id = text_of(await _body(request), "request_id")
        if (session := self._sessions.find(request_id.split(":")[0], owner)) is not None:
            session.heard_at = time.monotonic()
        try:
            found = await self._queue.outcome(request_id, owner=owner, seconds=POLL_SECONDS)
        except LookupError:
            raise Refused(410, f"there is no call {request_id}, or its result is gone: make it again") from None
        if found is None:
            return _json({"type": "try_again", "request_id": request_id, "queue_state": "active"}, status=408)
        if found.kind in (USER, SERVER):
            return {"error": found.data.decode(), "category": found.kind}
        return web.Response(body=found.data, content_type=wire.CONTENT_TYPE if found.kind == PROTOBUF else "application/json")

    async def _cancel(self, request: web.Request, owner: str) -> dict[str, Any]:
        await self._queue.abandon(text_of(await _body(request), "request_id"), owner=owner)
        return {}

    # The life of the application

    async def _start(self, app: web.Application) -> None:
        await self._calls.restore(self._queue)
        self._sweeper = asyncio.create_task(self._sweep())

    async def _stop(self, app: web.Application) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._queue.close()

    async def _sweep(self) -> None:
        """Ends the sessions of clients that are gone, and removes checkpoints whose time is over."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            limit = time.monotonic() - self._service.config.service.session_timeout_seconds
            try:
                for session in [each for each in self._sessions if each.heard_at < limit]:
                    logger.info("the session %s is silent: its %d models are freed", session.id, len(session.models))
                    await self._end(session)
                self._agents.close_silent(limit)
                kept = await asyncio.to_thread(self._store.remove_expired)
                self._service.runs.write_status(self._status(kept))
            except Exception:  # the next round tries again: without it, nothing would ever be freed
                logger.exception("silent sessions and expired checkpoints could not be removed, or the status not be written")

    def _status(self, saved: dict[str, list[Checkpoint]]) -> dict[str, Any]:
        """The state of this moment, for the viewer: models with their calls and checkpoints, places, samples."""
        num_open = self._queue.num_open()
        models = [
            {
                "name": name,
                "run": run_name(name),
                "client": session.owner[:SHOWN_DIGITS],
                "rank": model.spec.rank,
                "num_steps": model.num_steps,
                "num_open_calls": num_open[name],
                "checkpoints": [checkpoint.path for checkpoint in saved.get(name, [])],
                **{key.partition("/")[2]: value for key, value in model.last.items()},
            }
            for session in self._sessions
            for name, model in session.models.items()
            if model is not None
        ]
        others = {"num_sessions": len(list(self._sessions)), "num_open_samples": num_open[""]}
        return {"models": models, "places": self._service.places.shown(), **others}

    async def _end(self, session: Session) -> None:
        if self._sessions.pop(session.id) is None:
            return  # it is being ended
        for name in session.models:
            await self._queue.end(name)
        await self._calls.remove(session)
        self._queue.forget(session.id, owner=session.owner)


async def _body(request: web.Request) -> dict[str, Any]:
    return json_object(await request.read())


def _query(request: web.Request, name: str, default: int) -> int:
    value = request.query.get(name, str(default))
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise BadRequestError(f"{name}={value}: a whole number of at least 0 is needed")
    return int(value)


def _sequences(id: str, body: bytes) -> list[str]:
    return [f"{id}:{index}" for index in range(sample_count(json_object(body)))]


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
