"""The servers of a run as the driver sees them: which there are, where they listen, and how they are started and stopped."""

import asyncio
import logging
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from vime.config import RunConfig, ServedModelConfig
from vime.errors import ServerError
from vime.serving.flags import (
    checkpoint_of,
    is_cpu,
    max_model_len_of,
    server_arguments,
    server_command,
    server_environment,
)
from vime.serving.router import router_command
from vime.serving.server import ProgramSpec, ServerActor

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
    is_router: bool = False
    actor: Any = None


@dataclass(kw_only=True, slots=True)
class _Ports:
    """Free ports of this machine, none given twice."""

    host: str
    taken: set[int] = field(default_factory=set)

    def take(self, wanted: int, key: str) -> int:
        """`wanted`, or a free one if that is 0; raises ServerError if it is in use."""
        while True:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self.host, wanted))
                except OSError as error:
                    raise ServerError(
                        f"{key}: port {wanted} on {self.host} is not free ({error}); choose another, or 0"
                    ) from error
                port = probe.getsockname()[1]
            if port not in self.taken:
                self.taken.add(port)
                return port
            if wanted:
                raise ServerError(f"{key}: port {wanted} is given to another server of this run; choose another, or 0")


class Serving:
    """All served models of a run. Each replica and each router has a Ray actor that keeps it alive."""

    def __init__(self, config: RunConfig, run_dir: Path, run_id: str) -> None:
        self.payload_folder = Path("/dev/shm") / f"vime-{run_id}"
        """Where weight payloads in shared memory belong: it is removed with the run, also after a kill -9."""
        self._config = config
        self._run_dir = run_dir
        self._programs: list[_Program] = []
        self._endpoints: dict[str, Endpoint] = {}

    def start(self) -> None:
        """Starts all servers side by side and returns at once; raises ServerError if a chosen port is in use."""
        (self._run_dir / "logs").mkdir(parents=True, exist_ok=True)
        ports = _Ports(host=self._config.cluster.host)
        num_local = sum(0 if model.urls else model.num_replicas for model in self._config.serving.models.values())
        for name, model in self._config.serving.models.items():
            self._plan(name, model, ports, num_local)
        for program in self._programs:
            program.actor = ServerActor.options(num_cpus=0, max_concurrency=1000).remote(program.spec)
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
            for task in tasks:
                task.cancel()
        routers = [program for program in self._programs if program.is_router]
        await asyncio.gather(*[program.actor.start.remote() for program in routers])
        await asyncio.gather(*[_wait_ready(program, limit) for program in routers])

    def endpoints(self) -> dict[str, Endpoint]:
        """The served models by name; known once `start` has returned."""
        return dict(self._endpoints)

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

    def _plan(self, name: str, model: ServedModelConfig, ports: _Ports, num_local: int) -> None:
        urls: tuple[str, ...]
        if model.urls:
            urls = tuple(url.rstrip("/") for url in model.urls)
        else:
            urls = tuple(self._plan_server(name, model, index, ports, num_local) for index in range(model.num_replicas))
        self._endpoints[name] = Endpoint(
            name=name,
            url=urls[0] if len(urls) == 1 else self._plan_router(name, urls, ports),
            worker_urls=urls,
            model=name,
            tokenizer=checkpoint_of(self._config, model),
            max_model_len=max_model_len_of(self._config, model),
            trained=model.trained,
        )

    def _plan_server(self, name: str, model: ServedModelConfig, index: int, ports: _Ports, num_local: int) -> str:
        config = self._config
        position = sum(not program.is_router for program in self._programs)
        port = ports.take(model.port + index if model.port else 0, f"serving.models.{name}.port")
        arguments = server_arguments(config, name, model, index=index, port=port)
        environment = server_environment(
            config, model, cpus=_cpus(position, num_local) if is_cpu(config) else [], gpus=self._gpus(model, position)
        )
        return self._add(f"{name}-{index}", name, port, server_command(arguments), environment)

    def _plan_router(self, name: str, urls: tuple[str, ...], ports: _Ports) -> str:
        config = self._config
        port, prometheus_port = (ports.take(0, f"serving.models.{name} (router)") for _ in range(2))
        command = router_command(
            config.serving, host=config.cluster.host, port=port, prometheus_port=prometheus_port, worker_urls=list(urls)
        )
        return self._add(f"{name}-router", name, port, command, {}, is_router=True)

    def _add(
        self, name: str, model: str, port: int, command: list[str], environment: dict[str, str | None], is_router: bool = False
    ) -> str:
        host, serving = self._config.cluster.host, self._config.serving
        spec = ProgramSpec(
            name=name,
            url=f"http://{ray.util.get_node_ip_address() if host == '0.0.0.0' else host}:{port}",
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
        self._programs.append(_Program(spec=spec, model=model, is_router=is_router))
        return spec.url

    def _gpus(self, model: ServedModelConfig, position: int) -> list[int]:
        """GPUs of the server at `position`: from the first on where they are shared, after the trainer's where they are not."""
        cluster = self._config.cluster
        if is_cpu(self._config):
            return []
        first = 0 if cluster.colocated or cluster.num_nodes > 1 else cluster.num_trainer_gpus
        size = model.tensor_parallel_size
        return [(first + position * size + rank) % cluster.gpus_per_node for rank in range(size)]


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
