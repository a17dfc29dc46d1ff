"""`Agents`: the served models of a run, the services that its agents use, and the workers that run the agents."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from vime.config import ModelAPI, RunConfig
from vime.retrieval.deployment import Retrieval
from vime.retrieval.retriever import NAME as RETRIEVAL
from vime.runtime import Runtime
from vime.serving.topology import Serving
from vime.tasks import Watches, stop_within, together
from vime.weights.policy import Policy
from vime.workers.pool import WorkerPool

STOP_SECONDS = 30.0
"""Time limit for each part to stop."""


class Agents:
    """The served models, the services that agents use, and the workers that run the agents."""

    def __init__(
        self, config: RunConfig, serving: Serving, services: list[Retrieval], workers: WorkerPool, *, owns_servers: bool
    ) -> None:
        """Takes parts that were launched; `ready` waits for them, `served` for all but the workers.

        Servers that are not its own are waited for and watched over by somebody else.
        """
        self.serving, self.workers = serving, workers
        self._awaited: list[Serving | Retrieval] = [*([serving] if owns_servers else []), *services]
        self.retrieval = services[0].address() if services else None
        self.watches = Watches()
        """Over servers and services. What fails in them ends the run at the next sync."""
        self._config, self._services = config, services

    async def served(self, say: Callable[[str], None]) -> None:
        """Waits until every server and service answers. Raises ServerError."""
        await together(part.ready(say) for part in self._awaited)

    async def ready(self, say: Callable[[str], None]) -> None:
        """Waits until every server, service and worker answers, and watches over them from then on. Raises ServerError."""
        await together([self.served(say), self.workers.start()])
        for part in self._awaited:
            self.watches.add(part.watch())

    async def metrics(self) -> dict[str, float]:
        """`serving/<name>/<metric>` and `retrieval/<metric>`: the requests since the last call, and the servers' work."""
        metrics = await self.serving.metrics()
        for name, calls in (await self.workers.calls()).items():
            if name == RETRIEVAL:
                metrics |= {f"{name}/{key}": value for key, value in calls.metrics(is_paid=False).items() if "tokens" not in key}
                continue
            is_paid = self._config.serving.models[name].api is ModelAPI.chat
            metrics |= {f"serving/{name}/{key}": value for key, value in calls.metrics(is_paid=is_paid).items()}
        return metrics

    async def events(self) -> list[dict[str, Any]]:
        """Faults of servers, routers and services since the last call: {time, server, event, detail}.

        Raises ServerError if a service was given up.
        """
        return [event for part in (self.serving, *self._services) for event in await part.events()]


@asynccontextmanager
async def served(config: RunConfig, run_dir: Path, runtime: Runtime, *, policy: Policy | None) -> AsyncIterator[Serving]:
    """Servers that are starting, and are stopped at the end of the block; `Serving.ready` waits for them.

    With a `policy` those of the trained model have random weights until the first sync.
    """
    about: dict[str, Any] = {"policy": policy, "awaits_weights": policy is not None}
    serving = Serving(config, run_dir, runtime.run_id, runtime.nodes, **about, secret=runtime.secret, spare=runtime.spare)
    await serving.take_over()
    try:
        serving.start()
        yield serving
    finally:
        await stop_within(serving, seconds=STOP_SECONDS)


@asynccontextmanager
async def launched(
    config: RunConfig, run_dir: Path, runtime: Runtime, *, policy: Policy | None, serving: Serving | None = None
) -> AsyncIterator[Agents]:
    """Agents whose parts are starting, and are stopped at the end of the block; `Agents.ready` waits for them.

    Their servers are their own (`served`), or those of `serving`, which others use as well.
    """
    async with AsyncExitStack() as stack:
        owns_servers = serving is None
        if serving is None:
            serving = await stack.enter_async_context(served(config, run_dir, runtime, policy=policy))
        services = [Retrieval(config, run_dir, runtime.run_id, runtime.nodes)] if config.retrieval.is_there else []
        for part in services:
            stack.push_async_callback(stop_within, part, seconds=STOP_SECONDS)
            part.start()
        retrieval = services[0].address() if services else None
        workers = WorkerPool(config, serving.endpoints(), runtime.nodes, retrieval=retrieval, spare=runtime.spare)
        stack.push_async_callback(stop_within, workers, seconds=STOP_SECONDS)
        agents = Agents(config, serving, services, workers, owns_servers=owns_servers)
        stack.push_async_callback(agents.watches.cancel)
        yield agents
