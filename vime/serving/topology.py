"""The servers of a run as the driver sees them: which there are, where they listen, and how they are started and stopped."""

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from vime.config import RunConfig, ServedModelConfig
from vime.errors import ServerError
from vime.nodes import Nodes
from vime.placement import Place, server_places
from vime.serving.flags import (
    checkpoint_of,
    is_cpu,
    max_model_len_of,
    server_arguments,
    server_command,
    server_environment,
)
from vime.serving.program import ProgramSpec
from vime.serving.router import router_command
from vime.serving.server import ServerActor
from vime.tasks import cancel
from vime.weights import payload_folder

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where one served model is found.

    Example: `Endpoint(name="actor", url="http://127.0.0.1:8000", worker_urls=("http://127.0.0.1:8001",), model="actor",
    tokenizer="/models/tiny", max_model_len=4096, trained=True)`; `url` is the router's, or the only server's.
    """

    name: str
    url: str
    worker_urls: tuple[str, ...]
    model: str
    tokenizer: str
    max_model_len: int
    trained: bool


@dataclass(kw_only=True, slots=True)
class _Program:
    """One launched program and its actor. Routers come last: they start when their servers are ready."""

    spec: ProgramSpec
    model: str
    place: Place
    is_router: bool = False
    actor: Any = None


class Serving:
    """All served models of a run. Each replica and each router has a Ray actor that keeps it alive."""

    def __init__(self, config: RunConfig, run_dir: Path, run_id: str, nodes: Nodes | None = None) -> None:
        """Without `nodes`, all servers run on this machine. Ray must be running before `start`."""
        self.payload_folder = payload_folder(run_id)
        self._config = config
        self._run_dir = run_dir
        self._nodes = nodes
        self._programs: list[_Program] = []
        self._endpoints: dict[str, Endpoint] = {}

    def start(self) -> None:
        """Starts all servers side by side and returns at once; raises ServerError if a chosen port is in use."""
        (self._run_dir / "logs").mkdir(parents=True, exist_ok=True)
        if self._nodes is None:
            self._nodes = Nodes(self._config)
            self._nodes.reserve()
        places = server_places(self._config)
        for name, model in self._config.serving.models.items():
            self._plan(name, model, places)
        for program in self._programs:
            options = self._nodes.options(program.place)
            program.actor = ServerActor.options(max_concurrency=1000, **options).remote(program.spec)
            if not program.is_router:
                program.actor.start.remote()

    async def ready(self, on_progress: Callable[[str], None] | None = None) -> None:
        """Waits until every server is healthy, then for the routers; raises ServerError with the log's end if one is not."""
        limit = self._config.serving.start_timeout_seconds + 60.0
        servers = [program for program in self._programs if not program.is_router]
        waiting = {asyncio.create_task(_wait_ready(program, limit)): program.spec.name for program in servers}
        num_ready, tasks = 0, set(waiting)
        try:
            while tasks:
                if on_progress is not None:
                    on_progress(f"{num_ready} of {len(servers)} servers ready")
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    await task
                num_ready += len(done)
        finally:
            await cancel(tasks)
        routers = [program for program in self._programs if program.is_router]
        await asyncio.gather(*[program.actor.start.remote() for program in routers])
        await asyncio.gather(*[_wait_ready(program, limit) for program in routers])

    def endpoints(self) -> dict[str, Endpoint]:
        """The served models by name; known once `start` has returned."""
        return dict(self._endpoints)

    def trained_endpoint(self) -> Endpoint:
        """The model whose weights are synced."""
        trained = [endpoint for endpoint in self._endpoints.values() if endpoint.trained]
        assert len(trained) == 1, f"{len(trained)} trained models"
        return trained[0]

    async def sleep(self, *, keep_weights: bool) -> None:
        """Gives the servers' GPUs to the trainer; the trained model's weights are dropped unless they are to be kept."""
        servers = [program for program in self._programs if not program.is_router]
        levels = [2 if self._endpoints[program.model].trained and not keep_weights else 1 for program in servers]
        await asyncio.gather(*[program.actor.sleep.remote(level) for program, level in zip(servers, levels)])

    async def wake(self) -> None:
        """Takes the GPUs back."""
        await asyncio.gather(*[program.actor.wake.remote() for program in self._programs if not program.is_router])

    def actors(self, name: str) -> dict[str, Any]:
        """The actors of a model's servers by their names (`actor-0`), without its router; empty for external servers."""
        return {p.spec.name: p.actor for p in self._programs if p.model == name and not p.is_router}

    async def events(self) -> list[dict[str, Any]]:
        """What went wrong with servers and routers since the last call, oldest first: {time, server, event, detail}."""
        found = await asyncio.gather(*[program.actor.events.remote() for program in self._programs])
        return sorted((event for events in found for event in events), key=lambda event: event["time"])

    async def stop(self) -> None:
        """Ends all servers and routers."""
        programs, self._programs = [program for program in self._programs if program.actor is not None], []
        results = await asyncio.gather(*[program.actor.stop.remote() for program in programs], return_exceptions=True)
        for program, result in zip(programs, results):
            if isinstance(result, BaseException):
                logger.warning("%s did not stop cleanly: %s", program.spec.name, result)
            ray.kill(program.actor)
        shutil.rmtree(self.payload_folder, ignore_errors=True)

    def _plan(self, name: str, model: ServedModelConfig, places: dict[str, list[Place]]) -> None:
        urls: tuple[str, ...]
        if model.urls:
            urls = tuple(url.rstrip("/") for url in model.urls)
        else:
            urls = tuple(self._plan_server(name, model, index, places) for index in range(model.num_replicas))
        self._endpoints[name] = Endpoint(
            name=name,
            url=urls[0] if len(urls) == 1 else self._plan_router(name, urls),
            worker_urls=urls,
            model=name,
            tokenizer=checkpoint_of(self._config, model),
            max_model_len=max_model_len_of(self._config, model),
            trained=model.trained,
        )

    def _plan_server(self, name: str, model: ServedModelConfig, index: int, places: dict[str, list[Place]]) -> str:
        assert self._nodes is not None
        place = places[name][index]
        port = self._nodes.take_port(place.node, model.port + index if model.port else 0, f"serving.models.{name}.port")
        arguments = server_arguments(self._config, name, model, index=index, port=port)
        cpus: list[int] = []
        if is_cpu(self._config):
            before = sum(program.place.node == place.node and not program.is_router for program in self._programs)
            cpus = _cpus(before, sum(other.node == place.node for of_model in places.values() for other in of_model))
        environment = server_environment(self._config, model, cpus=cpus, gpus=self._nodes.gpus(place))
        return self._add(f"{name}-{index}", name, place, port, server_command(arguments), environment)

    def _plan_router(self, name: str, urls: tuple[str, ...]) -> str:
        assert self._nodes is not None
        config, place = self._config, Place(node=0)
        port, prometheus_port = (self._nodes.take_port(0, 0, f"serving.models.{name} (router)") for _ in range(2))
        command = router_command(
            config.serving, host=config.cluster.host, port=port, prometheus_port=prometheus_port, worker_urls=list(urls)
        )
        return self._add(f"{name}-router", name, place, port, command, {}, is_router=True)

    def _add(
        self,
        name: str,
        model: str,
        place: Place,
        port: int,
        command: list[str],
        environment: dict[str, str | None],
        is_router: bool = False,
    ) -> str:
        assert self._nodes is not None
        serving = self._config.serving
        spec = ProgramSpec(
            name=name,
            url=f"http://{self._nodes.host(place.node)}:{port}",
            command=command,
            log=str((self._run_dir / "logs" / f"{name}.log").resolve()),
            environment=environment,
            remove=[str(self.payload_folder)],
            health_path="/liveness" if is_router else "/health",  # a router is not healthy while one of its servers is down
            start_timeout_seconds=serving.start_timeout_seconds,
            health_interval_seconds=serving.health_interval_seconds,
            health_failures=serving.health_failures,
            max_restarts=serving.max_restarts,
        )
        self._programs.append(_Program(spec=spec, model=model, place=place, is_router=is_router))
        return spec.url


async def _wait_ready(program: _Program, limit_seconds: float) -> None:
    try:
        await asyncio.wait_for(program.actor.ready.remote(), limit_seconds)
    except ServerError as error:
        raise ServerError(str(getattr(error, "cause", error))) from None  # without Ray's remote traceback
    except asyncio.TimeoutError:
        raise ServerError(f"{program.spec.name} was not ready after {limit_seconds:.0f} s; see {program.spec.log}") from None


def _cpus(position: int, num_servers: int) -> list[int]:
    """Cores of one of several servers on this machine; none said for a single one, which vLLM places best itself."""
    if num_servers == 1:
        return []
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // num_servers)
    first = position * share % len(cores)
    return cores[first : first + share]
