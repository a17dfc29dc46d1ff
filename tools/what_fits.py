"""Models beside GPUs: whether all weights or adapters (LoRA) can be trained there, by the plan's memory of rank and weight sync.

    python tools/what_fits.py [--out results/what_fits]

Every number is that of `mode=plan` for MemAgent's recipe with activations recomputed; nothing is run, and no GPU is needed.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from vime.memory.processes import GIB, reserved_bytes, trainer_memory
from vime.memory.sync import sync_memory
from vime.preflight.compose import compose_run
from vime.surroundings import settle

MODELS = ("qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b")
ONE_RANK = ("cluster=one_gpu", "trainer.tensor_parallel_size=1", "trainer.expert_parallel_size=1")
ONE_SERVER = ("serving.models.actor.tensor_parallel_size=1",)
CARDS: dict[str, tuple[str, ...]] = {
    "1 × 24 GB": (*ONE_RANK, *ONE_SERVER, "cluster.gpu_memory_gib=22.4"),
    "1 × 80 GB": (*ONE_RANK, *ONE_SERVER),
    "8 × 80 GB": ("cluster=one_node",),
}
ADAPTERS = ("trainer.lora.rank=16", "serving.lora=adapter")
ATTENTION = "trainer.lora.targets=[q_proj,k_proj,v_proj,o_proj]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The memory of one case in GiB of each GPU.

    Example: `Fit(model="qwen3-8b", weights="LoRA 16", cards="1 × 80 GB", card=79.6, rank=24.5, reserve=4.0, sync=66.1)`.
    """

    model: str
    weights: str
    cards: str
    card: float
    rank: float
    """A trainer rank's own memory."""
    reserve: float
    """Memory kept beside it, for contexts, libraries and sleeping servers."""
    sync: float
    """The most that trainer and servers hold at once while weights are synced."""

    @property
    def fits(self) -> bool:
        """True if both moments leave room."""
        return max(self.rank + self.reserve, self.sync) <= self.card


def fit_of(model: str, cards: str, *, by_lora: bool) -> Fit:
    """The plan of one case."""
    words = ["+method=memagent", f"model={model}", *CARDS[cards], "trainer.recompute=true", "mode=plan"]
    if by_lora:
        words += [*ADAPTERS, *([ATTENTION] if "a3b" in model else [])]
    config = compose_run(words).config
    moments = [sum(held.values()) for held in sync_memory(config).values()]
    return Fit(
        model=model,
        weights=f"LoRA {config.trainer.lora.rank}" if by_lora else "all",
        cards=cards,
        card=config.cluster.gpu_memory_gib,
        rank=sum(trainer_memory(config).values()) / GIB,
        reserve=reserved_bytes(config) / GIB,
        sync=max(moments, default=0.0) / GIB,
    )


def table(fits: list[Fit]) -> str:
    """The page."""
    lines = [
        "# What fits where",
        "",
        "Written by `python tools/what_fits.py --out results/what_fits`. GiB of each GPU, as `mode=plan` computes them for",
        "MemAgent's recipe with recomputed activations, trainer and servers on the same GPUs; nothing was run. A case fits if",
        "a trainer rank with its reserve (first number), and trainer and servers together at a weight sync (second), leave room",
        "on the card, of 22.4 and 79.6 GiB. LoRA adapts all matrices of a layer, of the mixture of experts those of attention,",
        "and servers get the adapters alone.",
        "",
        f"| model | trained | {' | '.join(CARDS)} |",
        f"|---|---|{'---|' * len(CARDS)}",
    ]
    for model, weights in dict.fromkeys((fit.model, fit.weights) for fit in fits):
        own = [fit for fit in fits if (fit.model, fit.weights) == (model, weights)]
        cells = [f"{'yes' if fit.fits else 'no'}: {fit.rank + fit.reserve:.1f}, {fit.sync:.1f}" for fit in own]
        lines.append(f"| {' | '.join([model, weights, *cells])} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Prints the table, or writes it."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="path of the page without its ending; rows go to .json")
    given = parser.parse_args()
    fits = [fit_of(model, cards, by_lora=by_lora) for model in MODELS for by_lora in (False, True) for cards in CARDS]
    if given.out is None:
        Console().print(table(fits), markup=False)
        return
    given.out.with_suffix(".md").write_text(table(fits))
    given.out.with_suffix(".json").write_text(json.dumps([asdict(fit) | {"fits": fit.fits} for fit in fits], indent=1) + "\n")


if __name__ == "__main__":
    main()
