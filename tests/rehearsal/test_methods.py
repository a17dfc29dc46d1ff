"""The script of every method, played by a rollout worker with its hooks: everything occurs that is to occur, without a server."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentic.agentflow.config import AgentFlowConfig
from tests.qwen3_tokenizer import qwen3_tokenizer
from vime.config import ModelAPI, ServingConfig
from vime.data.dataset import load_rows, to_prompt
from vime.inside_vllm.forced_tokens import FORCED
from vime.preflight.compose import compose_run
from vime.rehearsal.findings import STOP
from vime.rehearsal.scripted_client import ScriptedClient, ScriptedClients
from vime.rehearsal.shrink import shrink
from vime.rehearse import write_files
from vime.retrieval.retriever import Passage
from vime.serving.endpoint import Endpoint
from vime.serving.flags import max_model_len_of
from vime.types import Turn
from vime.workers.worker import RolloutWorker

NEVER: dict[str, dict[str, set[str]]] = {
    "memagent_paper_7b": {},
    "search_r1_qwen2.5_3b": {},
    "multi_agent_qwen3_30b_a3b": {},
    "agentflow_paper": {"end of the loop": {"tokens_used_up"}},
    "toolorchestra_paper_8b": {"expert's call": {"timed_out"}},
    "smollm2_sst2": {},
    "retool_paper_32b": {},
    "coding_swe_qwen3_8b": {},
    "harbor": {},
}
"""Events that take more than a rehearsal has: a hundred thousand tokens, a server that is lost, or a quarter of an hour."""
METHODS = {"harbor": ["+method=harbor", "model=qwen3-8b"]}
"""Methods without an experiment, by their command lines."""
WORKSPACES = {"retool_paper_32b", "coding_swe_qwen3_8b", "harbor"}
LONG = {"toolorchestra_paper_8b"}
"""Its rollouts take up to fifty turns."""
NUM_ROLLOUTS = 14


class Server:
    """Samples the forced tokens of a request, up to a text that ends the reply."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    async def generate(self, token_ids: Any, *, sampling: dict[str, Any], **_: Any) -> Turn:
        ids = sampling.get("extra_args", {}).get(FORCED, [])
        assert ids or "structured_outputs" in sampling, "every call is scripted"
        ids, most = ids or [self.tokenizer.eos_token_id], sampling["max_tokens"]
        reason = "stop" if len(ids) <= most and ids[-1] == self.tokenizer.eos_token_id else "length"
        ids = ids[:most]
        for number in range(1, len(ids) + 1):
            if any(text in self.tokenizer.decode(ids[:number]) for text in sampling.get("stop", ())):
                ids, reason = ids[:number], "stop"
                break
        numbers = {"logprobs": [-1.0] * len(ids), "weight_versions": [0] * len(ids)}
        return Turn(output_ids=ids, finish_reason=reason, seconds=0.1, **numbers)

    def finish(self, session: str) -> None:
        """Nothing is counted."""

    async def close(self) -> None:
        """Nothing is open."""


class Library:
    """Finds every passage."""

    async def search(self, query: str, topk: int | None = None) -> list[Passage]:
        return [Passage(id="1", title="Bridges", text="The older bridge of pair 0 is in Bonn.", score=1.0)]


async def played(name: str, folder: Path) -> dict[str, set[str]]:
    """Events that must occur in the rehearsal of an experiment or method and did not in its training rows and its evaluation."""
    words = METHODS.get(name, [f"+experiment={name}"])
    composed = compose_run([*words, "rehearse=true", f"output_dir={folder}"])
    shrunk = shrink(composed.config)
    config, tokenizer = shrunk.config, qwen3_tokenizer()
    write_files(composed.config, shrunk)
    if isinstance(config.method, AgentFlowConfig):
        config.method.tools.pop("wikipedia_search")  # it asks a service
    clients = ScriptedClients(config)

    def make_client(endpoint: Endpoint, serving: ServingConfig) -> ScriptedClient:
        return ScriptedClient(Server(tokenizer), endpoint.name, tokenizer, clients)

    endpoints = {
        model: Endpoint(
            name=model,
            url="",
            worker_urls=("",),
            model=model,
            tokenizer=str(tokenizer.name_or_path),
            max_model_len=max_model_len_of(config, served),
            trained=served.trained,
        )
        for model, served in config.serving.models.items()
        if served.api is ModelAPI.tokens
    }
    worker = RolloutWorker(config, endpoints, make_client=make_client)
    worker._served._retriever = Library()  # pyright: ignore[reportAttributeAccessIssue]
    await worker.ready()
    prompts = [
        to_prompt(row, index=number, row_number=number, dataset=dataset.name)
        for dataset in (config.data.train, *config.data.evaluation)
        for number, row in enumerate(load_rows(dataset))
    ]
    calls = [
        worker.run_group(prompt=prompt, slot=slot, num_rollouts=NUM_ROLLOUTS, version=0) for slot, prompt in enumerate(prompts)
    ]
    groups = await asyncio.gather(*calls)
    await worker.close()
    rehearsal, counts = clients.rehearsal, Counter[tuple[str, str]]()
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        assert not rollout.error, f"{rollout.error}\n{rollout.traceback}"
        samples = [{"metadata": sample.metadata} for sample in rollout.samples]
        row = {"samples": samples, "metrics": rollout.metrics, "counts": rollout.counts}
        counts.update([(STOP, rollout.stop_reason.value), *rehearsal.occurred(row)])
    absent = {kind: {name for name in names if not counts[kind, name]} for kind, names in rehearsal.expected().items()}
    return {kind: names for kind, names in absent.items() if names}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in NEVER])
async def test_everything_that_is_to_occur_does(name: str, tmp_path: Path):
    if name in WORKSPACES:
        from vime.agent.workspace import workspace_problem

        if problem := workspace_problem():
            pytest.skip(problem)
    assert await played(name, tmp_path / "run") == NEVER[name]
