"""The fullness of micro-batches, and the evenness with which work is shared, on the sequence lengths of all methods.

    python tools/bench_packing.py [--rollouts 128] [--max-tokens 32768] [--ranks 1 2 8] [--json PATH] [--markdown PATH]

Ours is `vime.trainer.packing.pack`. References: batches of all neighbours that fit when they are padded to the longest, and first
fit in the order given, dealt to ranks round-robin. Ranks work in lockstep: a place is useful if it holds a token, and a rank
whose row is shorter than the longest of the same number waits. Work is estimated in FLOPs of Qwen2.5-7B.
"""

import argparse
import random
import sys
from collections.abc import Callable
from functools import partial

from bench_rows import Result, add_options, finish
from sample_lengths import PAPER

from vime.config import Family, ModelConfig
from vime.trainer.packing import Packing, pack, sequence_flops, useful_share

GOAL_USEFUL, GOAL_IMBALANCE = 97.0, 5.0
SHAPE = ModelConfig(
    name="qwen2.5-7b",
    family=Family["qwen2"],
    num_layers=28,
    hidden_size=3584,
    num_attention_heads=28,
    num_key_value_heads=4,
    head_dim=128,
    intermediate_size=18944,
    vocab_size=152064,
)
Packer = Callable[..., Packing]


def main() -> None:
    """Packs a batch of each method, and one of all, for every number of ranks; ends with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=128, help="of each method (128)")
    parser.add_argument("--max-tokens", type=int, default=32_768, help="of a micro-batch (32768)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 8], help="data-parallel ranks (1 2 8)")
    parser.add_argument("--seed", type=int, default=0)
    add_options(parser)
    arguments = parser.parse_args()
    work = partial(sequence_flops, SHAPE)
    result = Result(title="Packing on the lengths of all methods", columns=("ours", "reference"))
    misses: list[str] = []
    for name, lengths in batches(arguments.rollouts, arguments.seed).items():
        for num_ranks in arguments.ranks:
            case = f"{name}, {len(lengths)} sequences, {num_ranks} rank{'s' if num_ranks > 1 else ''}"
            misses += measure(result, case, lengths, max_tokens=arguments.max_tokens, num_ranks=num_ranks, work=work)
    result.notes += [
        "Every sequence is in exactly one micro-batch, and all ranks have the same number of them; the program stops otherwise.",
        *(misses or [f"Goals met everywhere: at least {GOAL_USEFUL:.0f} % useful, at most {GOAL_IMBALANCE:.0f} % imbalance."]),
    ]
    finish(result, arguments)
    sys.exit(1 if misses else 0)


def batches(num_rollouts: int, seed: int) -> dict[str, list[int]]:
    """Lengths by method, and all methods' in one shuffled batch."""
    by_method = {name: [sum(pair) for pair in draw(num_rollouts, seed)] for name, draw in PAPER.items()}
    together = [length for lengths in by_method.values() for length in lengths]
    random.Random(seed).shuffle(together)
    return by_method | {"all in one batch": together}


def measure(
    result: Result, case: str, lengths: list[int], *, max_tokens: int, num_ranks: int, work: Callable[[int], float]
) -> list[str]:
    """Adds the rows of one batch; returns lines about goals that it misses."""
    ours = pack(lengths, max_tokens=max_tokens, num_ranks=num_ranks, work=work)
    placed = sorted(index for rank in ours for row in rank for index in row)
    assert placed == list(range(len(lengths))), f"{len(placed)} of {len(lengths)} sequences are placed"
    assert len({len(rank) for rank in ours}) == 1, f"micro-batches by rank: {[len(rank) for rank in ours]}"
    in_order = first_fit(lengths, max_tokens, num_ranks)
    useful = 100 * share(ours, lengths)
    padded = 100 * padded_share(lengths, max_tokens, num_ranks)
    result.add("packing", f"{case}: against padded batches", ours=useful, reference=padded, unit="% useful tokens")
    if num_ranks > 1:  # a single rank waits for nobody
        reference = 100 * share(in_order, lengths)
        result.add("packing", f"{case}: against first fit in order", ours=useful, reference=reference, unit="% useful tokens")
    even, even_reference = 100 * evenness(ours, lengths), 100 * evenness(in_order, lengths)
    result.add(
        "packing", f"{case}: by the fullest row, against first fit", ours=even, reference=even_reference, unit="% useful tokens"
    )
    imbalance = spread(ours, lengths, work)
    if num_ranks > 1:
        reference = spread(in_order, lengths, work)
        result.add(
            "packing",
            f"{case}: busiest rank, against first fit",
            ours=imbalance,
            reference=reference,
            unit="% FLOPs above the mean",
        )
    misses = [f"{case}: {even:.1f} % useful, the goal is {GOAL_USEFUL:.0f} %"] if min(useful, even) < GOAL_USEFUL else []
    if imbalance > GOAL_IMBALANCE:
        misses.append(f"{case}: imbalance {imbalance:.1f} %, the goal is at most {GOAL_IMBALANCE:.0f} %")
    return misses


def first_fit(lengths: list[int], max_tokens: int, num_ranks: int) -> Packing:
    """Each sequence into the first row with room, in the order given; rows to ranks round-robin, filled up with empty rows."""
    rows: list[list[int]] = []
    room: list[int] = []
    for index, length in enumerate(lengths):
        number = next((number for number, left in enumerate(room) if left >= length), len(rows))
        if number == len(rows):
            rows.append([])
            room.append(max_tokens)
        rows[number].append(index)
        room[number] -= length
    rows += [[] for _ in range(-len(rows) % num_ranks)]
    return [rows[rank::num_ranks] for rank in range(num_ranks)]


def padded_share(lengths: list[int], max_tokens: int, num_ranks: int) -> float:
    """Useful share of padded batches: neighbours as long as count times longest stays within `max_tokens`."""
    sizes, count, longest = [], 0, 0
    for length in lengths:
        if count and (count + 1) * max(longest, length) > max_tokens:
            sizes.append(count * longest)
            count, longest = 0, 0
        count, longest = count + 1, max(longest, length)
    sizes += [count * longest] + [0] * (-(len(sizes) + 1) % num_ranks)
    return useful_share([sizes[rank::num_ranks] for rank in range(num_ranks)], sum(lengths))


def share(packing: Packing, lengths: list[int]) -> float:
    """Useful share of rows in lockstep."""
    return useful_share(_rows(packing, lengths), sum(lengths))


def evenness(packing: Packing, lengths: list[int]) -> float:
    """Useful share if every row took the time of the fullest one."""
    rows = [tokens for rank in _rows(packing, lengths) for tokens in rank]
    return sum(rows) / (len(rows) * max(rows))


def spread(packing: Packing, lengths: list[int], work: Callable[[int], float]) -> float:
    """Work of the busiest rank above the mean, in per cent."""
    loads = [sum(work(lengths[index]) for row in rank for index in row) for rank in packing]
    return 100 * (max(loads) * len(loads) / sum(loads) - 1)


def _rows(packing: Packing, lengths: list[int]) -> list[list[int]]:
    return [[sum(lengths[index] for index in row) for row in rank] for rank in packing]


if __name__ == "__main__":
    main()
