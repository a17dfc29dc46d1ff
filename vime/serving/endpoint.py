"""Where one served model is found, also after it has moved."""

import asyncio
from dataclasses import dataclass, field, replace

import ray
from ray.exceptions import RayActorError

from vime.config import ChatConfig

LOCATE_SECONDS = 5.0


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
    actor_name: str = ""
    """The Ray actor that keeps what answers at `url` and knows where it is now; empty for what this run did not start."""
    worker_actor_names: tuple[str, ...] = ()
    """Those of the servers, in the order of `worker_urls`."""
    chat: ChatConfig | None = None
    """How to ask an endpoint with OpenAI's chat API; None is vLLM's token API."""
    secret: str | None = field(default=None, repr=False)
    """What requests to it carry (`vime.processes.secret`)."""

    def workers(self) -> "list[Endpoint]":
        """Each server by itself, without the router."""
        names = self.worker_actor_names or ("",) * len(self.worker_urls)
        return [
            replace(self, url=url, worker_urls=(url,), actor_name=name, worker_actor_names=())
            for url, name in zip(self.worker_urls, names, strict=True)
        ]


async def locate(endpoint: Endpoint) -> str | None:
    """The address of an endpoint now: a restart on a taken port or another node changes it. None if nobody can say."""
    if not endpoint.actor_name or not ray.is_initialized():
        return None
    try:
        actor = await asyncio.to_thread(ray.get_actor, endpoint.actor_name)
        return await asyncio.wait_for(actor.url.remote(), LOCATE_SECONDS)
    except (ValueError, RayActorError, asyncio.TimeoutError):  # it is about to be made again
        return None
