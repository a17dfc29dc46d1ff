"""Sessions for an agent loop of one's own, outside a run: adapters with the interface of vime's and slime's roadmaps.

    adapter = OpenAIAdapter(tokenizer=tokenizer, vllm_url="http://127.0.0.1:8000", tool_parser="hermes")
    runner = web.AppRunner(adapter.app)              # aiohttp; the agent's base URL is that of the server
    adapter.open_session("sample-7")                 # the agent's API key
    ...
    samples = await adapter.finish_session("sample-7", base_sample=sample, reward=1.0)

A thin layer over `vime.gateway`: the same protocols, tree and samples. Within a run `context.session()` does all of this.
"""

from typing import Any

from aiohttp import web

from vime.chat.reply_reader import ReplyReader
from vime.chat.served_model import ServedModel
from vime.config import ServingConfig
from vime.gateway.gateway import Gateway
from vime.gateway.session import AgentSession, Limits
from vime.serving.client import TokenClient
from vime.serving.endpoint import Endpoint
from vime.types import Sample

DEFAULT_MAX_MODEL_LEN = 32_768
BEARER = "Bearer "


class Adapter:
    """Serves sessions of one model, each under its own API key."""

    def __init__(
        self,
        *,
        tokenizer: Any,
        vllm_url: str,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        model: str = "actor",
        max_turns_per_sid: int | None = None,
    ) -> None:
        """`vllm_url` is a server with vLLM's token API (`/inference/v1/generate`), whose model has the name `model`.

        The parsers are vLLM's; their import takes seconds. Raises ValueError for one that does not fit the tokenizer.
        """
        self._tokenizer, self._limits = tokenizer, Limits(num_calls=max_turns_per_sid)
        self._reader = ReplyReader(tokenizer, tool_parser=tool_parser, reasoning_parser=reasoning_parser)
        self._endpoint = Endpoint(
            name=model,
            url=vllm_url.rstrip("/"),
            worker_urls=(vllm_url.rstrip("/"),),
            model=model,
            tokenizer="",
            max_model_len=DEFAULT_MAX_MODEL_LEN,
            trained=True,
        )
        self._client: TokenClient | None = None
        self._gateway = Gateway(prefix="", secret_of=_key_of)
        self._sessions: dict[str, AgentSession] = {}
        self.app = self._gateway.app()

    def open_session(
        self,
        session_id: str,
        *,
        sampling_defaults: dict[str, Any] | None = None,
        max_context_tokens: int = 0,
        apply_chat_template_kwargs: dict[str, Any] | None = None,
    ) -> AgentSession:
        """Lets an agent call the model, with `session_id` as its API key. Raises ValueError if it is open already.

        `sampling_defaults` (vLLM's names) are the sampling parameters, regardless of the agent's request. Must be called in the
        event loop that serves `app`.
        """
        if session_id in self._sessions:
            raise ValueError(f"the session {session_id!r} is open already")
        self._client = self._client or TokenClient(self._endpoint, ServingConfig())
        model = ServedModel(
            client=self._client,
            tokenizer=self._tokenizer,
            max_model_len=max_context_tokens or self._endpoint.max_model_len,
            session=session_id,
            sampling=sampling_defaults or {},
            chat_template_args=apply_chat_template_kwargs or {},
            name=self._endpoint.name,
        )
        session = AgentSession(model=model, reader=self._reader, secret=session_id, limits=self._limits)
        self._gateway.open(session)
        self._sessions[session_id] = session
        return session

    async def finish_session(
        self,
        session_id: str,
        *,
        base_sample: Sample | None = None,
        reward: float | None = None,
        extra_metadata: dict[str, Any] | None = None,
        wait_timeout: float = 5.0,
    ) -> list[Sample]:
        """Ends a session and returns its trainable sequences; none if it was finished before.

        Calls under way are waited for, at most `wait_timeout` seconds. Raises SampleError if the agent made no call.
        """
        session = self._sessions.pop(session_id, None)
        if session is None:
            return []
        await session.idle(wait_timeout)
        self._gateway.close(session)
        samples = session.samples(base_sample or Sample(), **(extra_metadata or {}))
        for sample in samples:
            sample.reward = reward
        return samples

    async def drop_session(self, session_id: str) -> None:
        """Ends a session without samples."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._gateway.close(session)

    async def close(self) -> None:
        """Ends all sessions and closes the connections to the server."""
        for session_id in list(self._sessions):
            await self.drop_session(session_id)
        if self._client is not None:
            await self._client.close()
            self._client = None


class OpenAIAdapter(Adapter):
    """Adapter for agents that speak Chat Completions or Responses; their base URL ends with `/v1`."""


class AnthropicAdapter(Adapter):
    """Adapter for agents that speak Messages; their base URL is that of the server."""


def _key_of(http: web.Request) -> str:
    """The API key of a request: OpenAI's clients send it as a bearer token, Anthropic's also in their own header."""
    bearer = http.headers.get("Authorization", "")
    return bearer.removeprefix(BEARER) if bearer.startswith(BEARER) else http.headers.get("x-api-key", "")
