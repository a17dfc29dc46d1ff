"""The servers of one model and the router in front of them, from launch to stop."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ray.exceptions import RayActorError

from vime.config import ServedModelConfig, ServerRole
from vime.errors import ServerError, WeightSyncError
from vime.processes.kept import KeptProgram
from vime.serving.programs import Planner, ServerProgram
from vime.serving.router import replace_worker, router_command
from vime.serving.server_metrics import ServerMetrics, summarize


class Fleet:
    """All programs of one model. A model that others serve has at most a router here."""

    def __init__(self, name: str, model: ServedModelConfig, planner: Planner) -> None:
        """Raises ServerError if a chosen port is in use."""
        self.servers = planner.servers(name, model)
        self.router: KeptProgram | None = None
        self._metrics_before = {server.spec.name: server.counted for server in self.servers if server.counted is not None}
        if len(model.urls) > 1 or len(self.servers) > 1:
            urls = {ServerRole.regular: [url.rstrip("/") for url in model.urls]} if model.urls else by_role(self.servers)
            self.router = planner.router(name, urls)

    @property
    def programs(self) -> list[KeptProgram]:
        """The servers, then the router."""
        return [*self.servers, *([self.router] if self.router is not None else [])]

    def present(self) -> list[ServerProgram]:
        """The servers that are not lost for good."""
        return [server for server in self.servers if not server.lost]

    def front(self) -> KeptProgram | None:
        """The program that requests go to; None if nothing was started, or nothing is left."""
        return next((program for program in reversed(self.programs) if not program.lost), None)

    def start(self) -> None:
        """Makes all actors and has the servers launch that were not taken over; the router waits for `start_router`."""
        created = [program for program in self.programs if program.actor is None]
        for program in created:
            program.create_actor()
        for program in created:
            if program is not self.router:
                program.launch()

    async def start_router(self, limit_seconds: float) -> None:
        """Launches the router if there is one, and waits until it answers."""
        if self.router is not None:
            self.router.launch()
            await self.router.ready(limit_seconds)

    async def watch(self) -> None:
        """Makes lost actors again, and tells the router of servers that moved; until it is cancelled."""
        watching = [server.watch(partial(self._moved, server)) for server in self.servers]
        await asyncio.gather(*watching, *([self.router.watch()] if self.router is not None else []))

    async def metrics(self) -> dict[str, float]:
        """The metrics since the last call, by their short names; empty if no server answers."""
        servers = self.present()
        changes: list[ServerMetrics] = []
        for server, now in zip(servers, await asyncio.gather(*[server.ask("metrics") for server in servers])):
            if now is not None:
                changes.append(now.since(self._metrics_before.get(server.spec.name)))
                self._metrics_before[server.spec.name] = now
        return summarize(changes) if changes else {}

    async def _moved(self, server: ServerProgram, old: str) -> None:
        """Tells the router, if there is one, the new address of a server."""
        router = self.router
        if router is None or router.lost:
            return
        urls, settings = by_role(self.servers), router.spec.settings
        command, starts_again = router_command(settings, urls=urls), ServerRole.prefill in urls
        router.spec = replace(router.spec, command=command)
        router.actor.set_command.remote(command, restart=starts_again)
        if not starts_again:  # a router of prefill and decode servers takes them only when it starts
            limit, secret = settings.start_timeout_seconds, router.spec.secret
            await replace_worker(router.url, old=old, new=server.url, timeout_seconds=limit, secret=secret)


def by_role(servers: Sequence[ServerProgram]) -> dict[ServerRole, list[str]]:
    """Addresses of the servers that are not lost, by their role."""
    urls: dict[ServerRole, list[str]] = {}
    for server in servers:
        if not server.lost:
            urls.setdefault(server.group.role, []).append(server.url)
    return urls


async def reach(calls: list[Any]) -> list[Any]:
    """The answers of actors; None for an actor that is gone, whose place another one takes."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, RayActorError):
            raise plain_error(result)
    return [None if isinstance(result, BaseException) else result for result in results]


def plain_error(error: BaseException) -> BaseException:
    """The error without Ray's wrapping, whose message is a remote traceback."""
    for kind in (WeightSyncError, ServerError):
        if isinstance(error, kind):
            return kind(str(getattr(error, "cause", error)))
    return error
