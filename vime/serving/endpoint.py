"""Addresses of a run's programs and of the served models, which stay valid after these have moved."""

import asyncio
from dataclasses import dataclass, field, replace

import ray
from ray.exceptions import RayActorError

from vime.config import ChatConfig

LOCATE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """The address of a program, and the actor that knows it.

    Example: `Address(url="http://127.0.0.1:8100", actor_name="vime-1a2b3c4d-retrieval")`.
    """

    url: str
    actor_name: str = ""
    """Name of the Ray actor that keeps the program and knows its address now; empty if the run did not start it."""
    secret: str | None = field(default=None, repr=False)
    """The secret that requests carry (`vime.processes.secret`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint(Address):
    """The address of one served model, which is the router's, or the only server's.

    Example: `Endpoint(name="actor", url="http://127.0.0.1:8000", worker_urls=("http://127.0.0.1:8001",), model="actor",
    tokenizer="/models/tiny", max_model_len=4096, trained=True)`.
    """

    name: str
    worker_urls: tuple[str, ...]
    model: str
    tokenizer: str
    max_model_len: int
    trained: bool
    adapter: str | None = None
    """Name of the trained adapter that requests are computed with, or empty for the base model beside it; None where the servers
    have whole weights."""
    worker_actor_names: tuple[str, ...] = ()
    """Names of the actors of the servers, in the order of `worker_urls`."""
    num_experts: int = 0
    """Experts of a layer, if the servers report to which of them they send each token; otherwise 0."""
    chat: ChatConfig | None = None
    """Settings of OpenAI's chat API; None if the servers have vLLM's token API."""

    @property
    def is_routed(self) -> bool:
        """True if a router is in front of the servers, even if there is only one of them now."""
        return bool(self.worker_urls) and self.url not in self.worker_urls

    def workers(self) -> "list[Endpoint]":
        """One endpoint for each server, without the router."""
        names = self.worker_actor_names or ("",) * len(self.worker_urls)
        return [
            replace(self, url=url, worker_urls=(url,), actor_name=name, worker_actor_names=())
            for url, name in zip(self.worker_urls, names, strict=True)
        ]


async def locate(address: Address) -> str | None:
    """The present address, which a restart on another port or node has changed; None if its actor does not say."""
    if not address.actor_name or not ray.is_initialized():
        return None
    try:
        actor = await asyncio.to_thread(ray.get_actor, address.actor_name)
        return await asyncio.wait_for(actor.url.remote(), LOCATE_SECONDS)
    except (TimeoutError, ValueError, RayActorError):  # it is about to be made again
        return None
