"""Agents that do not use vime's interface: a function that takes a client of its model, or a program that gets the model's URL.

`load_generate` makes an agent's `generate` of whatever `method.generate` names (`vime.agent.entry`). All of the agent's calls to
its model are trained. The value that it returns or prints is `output` in the samples' metadata, for the reward.
"""

import inspect
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

from vime.agent.command import Command, CommandEnd, run_command
from vime.agent.entry import client_of, filled, words_of
from vime.errors import MalformedError, SampleError
from vime.gateway.session import AgentSession
from vime.hooks import load_hook
from vime.rollout.context import Context, Sampling
from vime.threads import Threads
from vime.types import Sample, StopReason

Generate = Callable[[Context, Sample, Sampling], Awaitable[Sample | list[Sample]]]
OUTPUT_CHARACTERS = 10_000
"""Characters of a program's output that the metadata keep, from its end."""
ERROR_CHARACTERS = 2_000
_threads = Threads("agents", num_threads=256)
"""Threads of blocking agents. These wait for servers, and asyncio's own threads must stay free to find servers again."""


def load_generate(path: str) -> Generate:
    """The `generate` of an agent: the function itself, or a wrapper that serves the model to it over HTTP."""
    words = words_of(path)
    if words is not None:
        return _program(words)
    function = load_hook(path)
    return _with_client(function, client_of(function)) if client_of(function) else function


def calls_over_http(path: str) -> bool:
    """True if all that an agent samples goes through a session."""
    return bool(path) and (words_of(path) is not None or bool(client_of(load_hook(path))))


def session_environment(session: AgentSession) -> dict[str, str]:
    """The variables by which clients find their model: those of the SDKs, and the ones of litellm, CrewAI and Codex."""
    urls = {
        **dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE", "HOSTED_VLLM_API_BASE"), session.openai_url),
        **dict.fromkeys(("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"), session.anthropic_url),
    }
    keys = ("OPENAI_API_KEY", "CODEX_API_KEY", "HOSTED_VLLM_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
    names = ("OPENAI_MODEL", "OPENAI_MODEL_NAME", "ANTHROPIC_MODEL")
    return urls | dict.fromkeys(keys, session.secret) | dict.fromkeys(names, session.model_name)


def row_of(sample: Sample) -> dict[str, Any]:
    """The fields of a row that are passed to a program: all but the label."""
    return {**sample.metadata, "prompt": sample.prompt, "question": sample.question}


def _with_client(function: Callable[..., Any], name: str) -> Generate:
    is_async = inspect.iscoroutinefunction(function)

    async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
        async with context.session() as session:
            client = _client(name, session, is_async=is_async)
            try:
                output = await (function(client, sample) if is_async else _threads.run(function, client, sample))
            except Exception:  # whatever it made of the refusal that ended its session
                if session.stop_reason is StopReason.ANSWERED:
                    raise
                output = None
            finally:
                closing = client.close()
                if inspect.isawaitable(closing):
                    await closing
        return session.samples(sample, **(output if isinstance(output, dict) else {"output": output}))

    return generate


def _client(name: str, session: AgentSession, *, is_async: bool) -> Any:
    """A client that waits as long as its rollout does, and takes no proxy."""
    if name == "openai_client":
        import openai as package

        url, sync_class, async_class = session.openai_url, package.OpenAI, package.AsyncOpenAI
    else:
        import anthropic as package

        url, sync_class, async_class = session.anthropic_url, package.Anthropic, package.AsyncAnthropic
    http = package.DefaultAsyncHttpxClient if is_async else package.DefaultHttpxClient
    make: Any = async_class if is_async else sync_class
    return make(base_url=url, api_key=session.secret, timeout=None, http_client=http(trust_env=False))


def _program(words: list[str]) -> Generate:
    async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
        row = row_of(sample)
        with tempfile.TemporaryDirectory(prefix="vime-agent-") as folder:
            file = Path(folder, "sample.json")
            file.write_bytes(orjson.dumps(row, default=str))
            async with context.session() as session:
                environment = session_environment(session) | {"VIME_SAMPLE": str(file), "TMPDIR": folder}
                end = await run_command(Command(words=filled(words, row), folder=Path.cwd(), environment=environment))
        failed = end.exit_code != 0 and session.stop_reason is StopReason.ANSWERED
        if failed and session.failure is None:
            after = f"after {session.counts['calls']} calls of {session.model_name}"
            said = f"{words[0]} ended with status {end.exit_code} {after}: {_printed(end)}"
            if session.malformed:
                raise MalformedError(f"{said} (of the replies before it: {session.malformed})")
            raise SampleError(f"{said} ({session.why_refused})" if session.refusal else said)
        output, stderr = end.stdout[-OUTPUT_CHARACTERS:], end.stderr[-ERROR_CHARACTERS:]
        try:
            return session.samples(sample, output=output, stderr=stderr, exit_code=end.exit_code)
        except SampleError as error:  # the program may have said why
            raise SampleError(f"{error} {words[0]} ended with status {end.exit_code} and printed: {_printed(end)}") from error

    return generate


def _printed(end: CommandEnd) -> str:
    """The last characters of a program's output, which usually show why it ended."""
    texts = [text[-ERROR_CHARACTERS:].strip() for text in (end.stdout, end.stderr)]
    return "\n".join(filter(None, texts)) or "nothing"
