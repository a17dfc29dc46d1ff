"""Speculative decoding on this machine: its distribution, its logprobs and its speed, beside a server without it.

    python tools/speculation.py [--checkpoint FOLDER] [--prompts 192] [--rounds 5] [--section results/precision.md] [--json PATH]

Servers of one model, as a run starts them, take turns: one without speculation and one for each kind of draft (n-grams, a frozen
draft model, the first half of the layers). The draft model is the model itself with noise of 3 % of each tensor's standard
deviation, and the first layers are served as a draft model of their own: as in a run, but without syncs. Every reply is read
again by Hugging Face in float32: for an honest sampler the mean of logprob + entropy over sampled tokens is 0.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from bench_generation import Load, ask, seconds_of, task_prompts
from bench_rows import Result, add_options, finish, save_section
from rollout_case import TINY

from vime.preflight.compose import compose_run
from vime.runtime import Runtime
from vime.workers.agents import launched

NONE, NGRAM, DRAFT, LAYERS = "actor", "ngram", "draft", "layers"
NAMES = {NONE: "none", NGRAM: "n-grams", DRAFT: "draft model", LAYERS: "first layers"}
SECTION = "Speculative decoding"
MAX_TOKENS, NOISE = 64, 0.03
COUNTS = (1, 64)
"""Requests at a time."""


@dataclass(kw_only=True, slots=True)
class Checked:
    """Hugging Face's reading of the replies of one server.

    Example: `Checked(name="ngram", excess=[-0.3, 0.2], errors=[1e-6, 2e-6], num_greedy=12288, num_equal=12288)`.
    """

    name: str
    excess: list[float] = field(default_factory=list)
    """Logprob plus entropy of each sampled token."""
    errors: list[float] = field(default_factory=list)
    """Distance of the returned logprob from Hugging Face's."""
    num_greedy: int = 0
    num_equal: int = 0
    """Greedy tokens, and those among them that are Hugging Face's likeliest."""

    def row(self) -> str:
        """A line of the table."""
        mean = sum(self.excess) / len(self.excess)
        spread = (sum((value - mean) ** 2 for value in self.excess) / len(self.excess)) ** 0.5 / len(self.excess) ** 0.5
        cells = [
            NAMES[self.name],
            f"{mean:+.4f} ± {spread:.4f}",
            f"{len(self.excess):,}",
            f"{max(self.errors):.1e}",
            f"{self.num_equal:,} of {self.num_greedy:,}",
        ]
        return f"| {' | '.join(cells)} |"


def write_drafts(checkpoint: Path, folder: Path) -> None:
    """The model with noise (`draft`), and its first half of layers (`layers`), as checkpoints."""
    import torch
    from safetensors.torch import load_file, save_file

    from vime.inside_vllm.early_exit import is_drafts

    torch.manual_seed(0)
    tensors: dict[str, Any] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        tensors |= load_file(file)
    shape = json.loads((checkpoint / "config.json").read_text())
    num_layers = max(1, shape["num_hidden_layers"] // 2)
    noisy = {name: tensor + NOISE * tensor.float().std() * torch.randn_like(tensor) for name, tensor in tensors.items()}
    first = {name: tensor for name, tensor in tensors.items() if is_drafts(name, num_layers=num_layers)}
    shorter = shape | {"num_hidden_layers": num_layers}
    if "layer_types" in shape:
        shorter["layer_types"] = shape["layer_types"][:num_layers]
    for name, made, config in ((DRAFT, noisy, shape), (LAYERS, first, shorter)):
        shutil.copytree(checkpoint, folder / name, ignore=shutil.ignore_patterns("*.safetensors*"))
        save_file(made, folder / name / "model.safetensors", metadata={"format": "pt"})
        (folder / name / "config.json").write_text(json.dumps(config))


def configuration(checkpoint: Path, folder: Path, *, num_tokens: int) -> Any:
    """A server for each kind of draft."""
    drafts = {
        NGRAM: "{method: ngram, num_tokens: %d}",
        DRAFT: f"{{method: draft_model, checkpoint: {folder / DRAFT}, num_tokens: %d}}",
        LAYERS: f"{{method: draft_model, checkpoint: {folder / LAYERS}, num_tokens: %d}}",
    }
    common = f"checkpoint: {checkpoint}, max_model_len: 1024, gpu_memory_utilization: 0.02"
    words = [
        f"+serving.models.{name}={{{common}, sampling: {{temperature: 1.0}}, speculative: {draft % num_tokens}}}"
        for name, draft in drafts.items()
    ]
    return compose_run(
        [
            "+method=memagent",
            f"model.checkpoint={checkpoint}",
            "trainer.precision=float32",
            "serving.models.actor.gpu_memory_utilization=0.02",
            *words,
        ]
    ).config


async def check(session: aiohttp.ClientSession, url: str, name: str, prompts: list[list[int]], model: Any) -> Checked:
    """Sampled and greedy replies of one server, read again by Hugging Face."""
    import torch

    found = Checked(name=name)
    for temperature in (1.0, 0.0):
        load = Load(name="replies", prompts=prompts, max_tokens=MAX_TOKENS, temperature=temperature)
        replies = await asyncio.gather(*[ask(session, url, body) for body in load.requests()])
        for prompt, reply in zip(prompts, replies, strict=True):
            (choice,) = reply["choices"]
            tokens, returned = choice["token_ids"], [entry["logprob"] for entry in choice["logprobs"]["content"]]
            with torch.no_grad():
                logprobs = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            if temperature == 0:
                found.num_greedy += len(tokens)
                found.num_equal += int((logprobs.argmax(-1) == torch.tensor(tokens)).sum())
                continue
            own = logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0]
            found.excess += (own - (logprobs.exp() * logprobs).sum(-1)).tolist()
            found.errors += (own - torch.tensor(returned)).abs().tolist()
    return found


async def measure(options: argparse.Namespace, folder: Path) -> tuple[Result, list[str]]:
    """Speeds as rows, and the table of distributions."""
    import torch
    from transformers import AutoModelForCausalLM

    write_drafts(options.checkpoint, folder)
    config = configuration(options.checkpoint, folder, num_tokens=options.tokens)
    result = Result(title=SECTION, columns=("with it", "none"))
    lines = [
        "| draft | logprob + entropy, mean and standard error | tokens | largest error of a logprob | greedy tokens |",
        "|---|--:|--:|--:|--:|",
    ]
    with Runtime(config, say=lambda text: None) as runtime:
        async with launched(config, folder / "run", runtime, policy=None) as agents:
            await agents.ready(lambda text: None)
            endpoints = agents.serving.endpoints()
            urls = {name: endpoints[name].worker_urls[0] for name in NAMES}
            model = AutoModelForCausalLM.from_pretrained(options.checkpoint, dtype=torch.float32)
            connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(None)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                prompts = task_prompts(options.prompts)
                for name, url in urls.items():
                    lines.append((await check(session, url, name, prompts, model)).row())
                accepted = await agents.serving.metrics()
                for count in COUNTS:
                    for temperature, way in ((0.0, "greedy"), (1.0, "sampled")):
                        await compare(session, urls, prompts[:count], temperature, way, options.rounds, result)
    for name in (NGRAM, DRAFT, LAYERS):
        share = accepted[f"serving/{name}/draft_acceptance_rate"]
        result.notes.append(f"{NAMES[name]}: {share:.0%} of the drafted tokens were accepted in the table of distributions")
    result.notes.append(
        f"{options.tokens} tokens are drafted in a step; medians of {options.rounds} rounds in which servers take turns"
    )
    return result, lines


async def compare(
    session: aiohttp.ClientSession,
    urls: dict[str, str],
    prompts: list[list[int]],
    temperature: float,
    way: str,
    rounds: int,
    result: Result,
) -> None:
    """Tokens per second of each server, round by round."""
    load = Load(name=way, prompts=prompts, max_tokens=MAX_TOKENS, temperature=temperature)
    seconds: dict[str, list[float]] = {name: [] for name in urls}
    for number in range(rounds + 1):  # the first does not count
        for name in list(urls)[:: 1 if number % 2 else -1]:
            seconds[name].append(await seconds_of(session, urls[name], load))
    rates = {name: load.num_counted / median(found[1:]) for name, found in seconds.items()}
    for name in (NGRAM, DRAFT, LAYERS):
        at = "alone" if len(prompts) == 1 else f"{len(prompts)} at once"
        result.add("speculation", f"{NAMES[name]}, {way}, {at}", ours=rates[name], reference=rates[NONE], unit="tokens/s")


def main() -> None:
    """Measures, and shows or writes the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=TINY)
    parser.add_argument("--prompts", type=int, default=192, help="prompts of the distribution, of 64 tokens each")
    parser.add_argument("--tokens", type=int, default=3, help="tokens that are drafted in a step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--section", type=Path, help="page whose section on speculation is written anew")
    add_options(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vime-speculation-") as folder:
        result, lines = asyncio.run(measure(options, Path(folder)))
    finish(result, options)
    sys.stdout.write("\n".join(lines) + "\n")
    if options.section:
        save_section(options.section, result, before="\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
