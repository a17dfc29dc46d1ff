"""Stand-ins for served models and the retrieval service, and contexts and rows that use them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraConfig
from agentic.toolorchestra.generate import generate
from agentic.toolorchestra.settings import ExpertConfig, LimitsConfig, ToolsConfig
from tests.completing import context_with
from vime.agent.sandbox import sandbox_problem
from vime.chat.served_model import ServedModel
from vime.chat.trace import Trace
from vime.config import RunConfig, SandboxConfig
from vime.errors import ServerError
from vime.model.load_tokenizer import load_tokenizer
from vime.retrieval.retriever import Passage
from vime.rollout.context import Context, Sampling
from vime.types import Sample, Turn

TOKENIZER: Any = load_tokenizer(Path(__file__).parents[3] / "agentic" / "memagent" / "tiny" / "actor")
EXPERTS = {
    "cheap": ExpertConfig(
        model="small", dollars_per_million_input_tokens=1.0, dollars_per_million_output_tokens=2.0, seconds=1.0
    ),
    "dear": ExpertConfig(
        model="large", dollars_per_million_input_tokens=10.0, dollars_per_million_output_tokens=30.0, seconds=9.0
    ),
}
BOTH = ["cheap", "dear"]


def call(name: str, **arguments: str) -> str:
    """A reply that calls a tool."""
    import json

    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call><|im_end|>'


class Server:
    """Samples what `reply` says to the prompt's text, and keeps its own count of tokens."""

    def __init__(self, reply: Callable[[str], str], *, seconds: float = 0.5) -> None:
        """Every reply takes `seconds`, as the client measures it."""
        self.reply, self.seconds = reply, seconds
        self.prompts: list[str] = []
        self.prompt_ids: list[list[int]] = []
        self.sampled: list[list[int]] = []

    @property
    def tokens(self) -> tuple[int, int]:
        """Read and written."""
        return sum(map(len, self.prompt_ids)), sum(map(len, self.sampled))

    async def generate(self, token_ids: Any, *, sampling: dict[str, Any], **_: Any) -> Any:
        text = str(TOKENIZER.decode(token_ids, skip_special_tokens=False))
        reply = self.reply(text)
        if reply == "sleep":
            await asyncio.sleep(30)
        ids = TOKENIZER.encode(reply, add_special_tokens=False)
        cut = ids[: sampling["max_tokens"]]
        self.prompts.append(text)
        self.prompt_ids.append(token_ids)
        self.sampled.append(cut)
        finish = "stop" if len(cut) == len(ids) else "length"
        logprobs, versions = [-0.5] * len(cut), [3] * len(cut)
        return Turn(output_ids=cut, logprobs=logprobs, weight_versions=versions, finish_reason=finish, seconds=self.seconds)


def script(*replies: str) -> Server:
    """Says these one after another."""
    left = list(replies)
    return Server(lambda _: left.pop(0))


def broken(_: str) -> str:
    """A server that is gone."""
    raise ServerError("connection refused")


class Library:
    """Finds the same passage for every query, or raises."""

    def __init__(self, found: str | Exception = "It is 1843.") -> None:
        self.found = found
        self.queries: list[str] = []

    async def search(self, query: str, topk: int | None = None) -> list[Passage]:
        if isinstance(self.found, Exception):
            raise self.found
        self.queries.append(query)
        return [Passage(id="1", title="Notes", text=self.found, score=1.0)]


def context_of(
    actor: Server,
    small: Server,
    large: Server,
    *,
    library: Library | None = None,
    limits: LimitsConfig | None = None,
    max_model_len: int = 8192,
    **settings: Any,
) -> Context:
    """A context whose models are stand-ins."""
    tools = ToolsConfig(search=BOTH, enhance_reasoning=BOTH, answer=BOTH, call_expert=BOTH)
    method = ToolOrchestraConfig(
        **{"experts": EXPERTS, "tools": tools, "limits": limits or LimitsConfig(context_tokens=8192), **settings}
    )
    trace = Trace()
    servers: dict[str, Any] = {"actor": actor, "small": small, "large": large}
    models = {
        name: ServedModel(
            client=client,
            tokenizer=TOKENIZER,
            max_model_len=max_model_len,
            temperature=1.0,
            top_p=1.0,
            session="s",
            name=name,
            trace=trace,
        )
        for name, client in servers.items()
    }
    sandbox = SandboxConfig(allow_unsandboxed=sandbox_problem() is not None)
    retriever: Any = library or Library()
    config = RunConfig(method=method, sandbox=sandbox)
    return context_with(models, config=config, retriever=retriever, trace=trace)


def question(text: str = "When was the first program written?", label: str = "1843") -> Sample:
    """A row of the question-answering mode."""
    return Sample(prompt=[{"role": "user", "content": text}], label=[label], metadata={"category": "qa"}, rollout_id=1)


def task_sample(task: dict[str, Any], opening: str) -> Sample:
    """A row of the built-in shop."""
    return Sample(prompt=[{"role": "user", "content": opening}], label=["x"], metadata={"task": task}, rollout_id=1)


async def play(context: Context, sample: Sample) -> list[Sample]:
    """A rollout whose sequences are valid."""
    samples = await generate(context, sample, Sampling(temperature=1.0, top_p=1.0))
    for kept in samples:
        kept.validate()
    return samples


def trained(sample: Sample) -> str:
    """The trained part of a sequence, as text."""
    response = sample.tokens[-sample.response_length :]
    return TOKENIZER.decode([token for token, mask in zip(response, sample.loss_mask) if mask], skip_special_tokens=False)


def untrained(sample: Sample) -> str:
    """The untrained part of the response, as text."""
    response = sample.tokens[-sample.response_length :]
    return TOKENIZER.decode([token for token, mask in zip(response, sample.loss_mask) if not mask], skip_special_tokens=False)
