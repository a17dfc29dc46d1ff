"""The served models of a run as the driver sees them: where they are now, and how they are started and stopped."""

import asyncio
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from vime.cluster.nodes import Nodes
from vime.config import ChatConfig, ModelAPI, RunConfig
from vime.errors import ServerError
from vime.processes.secret import given_secret, run_secret
from vime.serving.endpoint import Endpoint
from vime.serving.external import until_answering
from vime.serving.flags import checkpoint_of, max_model_len_of
from vime.serving.fleet import Fleet, ask, reach
from vime.serving.programs import Planned, Planner
from vime.serving.server_metrics import ServerMetrics, summarize
from vime.tasks import cancel
from vime.weights.payload import WeightPayload, payload_folder

__all__ = ["Endpoint", "Serving"]

POLL_SECONDS = 0.5
START_MARGIN_SECONDS = 60.0
"""For what comes before a server's own start: Ray makes its actor."""


class Serving:
    """All served models of a run, by name."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        run_id: str,
        nodes: Nodes | None = None,
        *,
        awaits_weights: bool = False,
        secret: str | None = None,
    ) -> None:
        """Without `nodes`, all servers run on this machine; without `secret`, they have one where they need it.

        Ray must be running before `start`. With `awaits_weights` a sync must come before the trained model is asked: until then
        its servers have random weights.
        """
        self.payload_folder = payload_folder(run_id)
        self.secret = secret or run_secret(config.cluster.host)
        self._config, self._run_dir, self._run_id = config, run_dir, run_id
        self._nodes = nodes
        self._awaits_weights = awaits_weights
        self._started: Fleet | None = None
        self._metrics_before: dict[str, ServerMetrics] = {}

    def start(self) -> None:
        """Starts all servers side by side and returns at once; raises ServerError if a chosen port is in use."""
        (self._run_dir / "logs").mkdir(parents=True, exist_ok=True)
        if self._nodes is None:
            self._nodes = Nodes(self._config)
            self._nodes.reserve()
        planner = Planner(
            self._config,
            self._nodes,
            run_dir=self._run_dir,
            payload_folder=self.payload_folder,
            secret=self.secret,
            awaits_weights=self._awaits_weights,
        )
        fleet = Fleet(self._config.serving, self._nodes, planner, run_id=self._run_id)
        for name in self._config.serving.models:
            fleet.add(name)
        fleet.start()
        self._started = fleet

    async def ready(self, on_progress: Callable[[str], None] | None = None) -> None:
        """Waits until every server is healthy, then for the routers; raises ServerError with the log's end if one is not."""
        limit = self._config.serving.max_start_seconds + START_MARGIN_SECONDS
        fleet = self._fleet
        waiting = {asyncio.create_task(fleet.wait_ready(program, limit)) for program in fleet.servers()}
        external = [endpoint for name, endpoint in self.endpoints().items() if self._config.serving.models[name].urls]
        waiting |= {asyncio.create_task(until_answering(endpoint, timeout_seconds=limit)) for endpoint in external}
        num_ready, total = 0, len(waiting)
        try:
            while waiting:
                if on_progress is not None:
                    on_progress(f"{num_ready} of {total} servers ready")
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    await task
                num_ready += len(done)
        finally:
            await cancel(waiting)
        await fleet.start_routers(limit)

    async def watch(self) -> None:
        """Sees to it that lost actors are made again, on another node if theirs is lost; until it is cancelled."""
        await self._fleet.watch()

    def endpoints(self) -> dict[str, Endpoint]:
        """The served models by name, where they are now; known once `start` has returned."""
        return {name: self._endpoint(name) for name in self._config.serving.models}

    def trained_endpoint(self, *, only: Collection[str] | None = None) -> Endpoint:
        """The model whose weights are synced; with `only`, those of its servers (`actor-0`)."""
        trained = [name for name, model in self._config.serving.models.items() if model.trained]
        assert len(trained) == 1, f"{len(trained)} trained models"
        return self._endpoint(trained[0], only=only)

    def actors(self, name: str) -> dict[str, Any]:
        """The actors of a model's servers by their names (`actor-0`), without its router; empty for external servers."""
        return {program.spec.name: program.actor for program in self._fleet.of(name) if not program.is_router}

    def program(self, name: str) -> Planned:
        """A server or a router by its name (`actor-0`, `actor-router`)."""
        return next(program for program in self._fleet.programs if program.spec.name == name)

    def workers(self, name: str) -> dict[str, tuple[str, int]]:
        """Address and number of vLLM workers of a model's servers, by their names."""
        servers = [(program, program.group) for program in self._fleet.of(name)]
        return {p.spec.name: (p.url, group.settings.tensor_parallel_size) for p, group in servers if group is not None}

    def expect(self, version: int, payload: WeightPayload | None = None) -> None:
        """Notes what servers of the trained model hold from now on, for actors that are made again.

        Raises ServerError if no server of a model is left.
        """
        self._fleet.expect(self.trained_endpoint().name, version, payload)
        for name in self._config.serving.models:
            lost = [program.lost for program in self._fleet.programs if program.model == name and program.lost]
            if lost and not self.actors(name):
                raise ServerError(f"no server of {name} is left: {'; '.join(lost)}")

    async def sleep(self, *, keep_weights: bool) -> None:
        """Gives the servers' GPUs to the trainer; the trained model's weights are dropped unless they are to be kept."""
        servers, models = self._fleet.servers(), self._config.serving.models
        levels = [2 if models[program.model].trained and not keep_weights else 1 for program in servers]
        self._fleet.asleep = True
        await reach([program.actor.sleep.remote(level) for program, level in zip(servers, levels)])

    async def wake(self) -> None:
        """The servers that sleep take the GPUs' memory that they do not have yet, and generate."""
        await reach([program.actor.wake.remote() for program in self._fleet.servers()])

    async def may_start(self) -> None:
        """The trainer has left the GPUs: servers that are down, and actors that are made again, may launch there."""
        self._fleet.asleep = False
        await reach([program.actor.may_start.remote() for program in self._fleet.servers()])

    async def until_one_is_ready(self, *, deadline: float) -> None:
        """Waits until a server of the trained model is up and holds the version that it should, by the monotonic clock.

        Raises ServerError with what happened to each of them if none is in time, or if one was given up.
        """
        name = self.trained_endpoint().name
        while True:
            actors = self.actors(name)
            found = dict(zip(actors, await reach([actor.trouble.remote() for actor in actors.values()]), strict=True))
            if "" in found.values():
                return
            if time.monotonic() > deadline:
                reasons = "; ".join(f"{server}: {trouble or 'its actor is gone'}" for server, trouble in found.items())
                raise ServerError(f"no server of {name} came back in time (serving.recovery_timeout_seconds): {reasons}")
            await asyncio.sleep(POLL_SECONDS)

    async def events(self) -> list[dict[str, Any]]:
        """What went wrong with servers and routers since the last call, oldest first: {time, server, event, detail}."""
        return await self._fleet.events()

    async def metrics(self) -> dict[str, float]:
        """`serving/<name>/<metric>` of the models served by this run: what their servers did since the last call."""
        metrics: dict[str, float] = {}
        for name in self._config.serving.models:
            servers = [program for program in self._fleet.of(name) if not program.is_router]
            found = await asyncio.gather(*[ask(program, "metrics") for program in servers])
            changes: list[ServerMetrics] = []
            for program, now in zip(servers, found):
                if now is not None:
                    changes.append(now.since(self._metrics_before.get(program.spec.name)))
                    self._metrics_before[program.spec.name] = now
            metrics |= {f"serving/{name}/{key}": value for key, value in summarize(changes).items()} if changes else {}
        return metrics

    async def stop(self) -> None:
        """Ends all servers and routers."""
        if self._started is not None:
            await self._started.stop()
        shutil.rmtree(self.payload_folder, ignore_errors=True)

    @property
    def _fleet(self) -> Fleet:
        assert self._started is not None, "start comes first"
        return self._started

    def _endpoint(self, name: str, *, only: Collection[str] | None = None) -> Endpoint:
        model, programs = self._config.serving.models[name], self._fleet.of(name)
        servers = [program for program in programs if not program.is_router and (only is None or program.spec.name in only)]
        urls = tuple(url.rstrip("/") for url in model.urls) or tuple(server.url for server in servers)
        front = programs[-1] if programs else None
        url = front.url if front is not None else urls[0] if urls else ""
        return Endpoint(
            name=name,
            url=url,
            worker_urls=urls,
            model=model.served_name or name,
            tokenizer=checkpoint_of(self._config, model),
            max_model_len=max_model_len_of(self._config, model),
            trained=model.trained,
            actor_name=self._fleet.actor_name(front) if front is not None else "",
            worker_actor_names=tuple(self._fleet.actor_name(server) for server in servers),
            chat=self._share(model.chat) if model.api is ModelAPI.chat else None,
            secret=given_secret() if model.urls else self.secret,
        )

    def _share(self, chat: ChatConfig) -> ChatConfig:
        """What one rollout worker may ask of an endpoint."""
        workers, per_minute = self._config.rollout.num_workers, chat.max_requests_per_minute
        return replace(
            chat,
            max_requests_per_minute=per_minute / workers if per_minute is not None else None,
            max_concurrent_requests=max(1, chat.max_concurrent_requests // workers),
        )
