"""Checks that every card of this machine can be used: free memory, matrix products, and sums over all cards with NCCL.

python tools/gpu_cards.py                   # ends with 1 and one line for each thing that is wrong
python tools/gpu_cards.py --device cpu      # two processes with gloo in the place of cards, as in a rehearsal
"""

import argparse
import multiprocessing
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

from vime.cluster.accelerators import driver_version, installed_build, num_gpus, why_no_device
from vime.cluster.ports import free_port
from vime.machine import memory_bytes

SIZE = {"cuda": 8192, "cpu": 256}
"""Rows of the matrices that are multiplied."""
SUM_MIB = {"cuda": 256, "cpu": 1}
REPEATS = 20
FREE_SHARE = 0.9
"""Less free memory than this means that another program uses the card."""
TIMEOUT = timedelta(seconds=120)
"""Time limit for NCCL, which otherwise waits ten minutes for a card that does not answer."""


def main() -> int:
    """Tries all cards at once, prints a line for each, and then the problems. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    device = parser.parse_args().device
    import torch
    from torch.multiprocessing.spawn import spawn

    cuda = torch.version.cuda or "none"
    sys.stdout.write(
        f"driver {driver_version() or 'none'}, {installed_build()} build, torch {torch.__version__} for CUDA {cuda}\n"
    )
    count = torch.cuda.device_count() if device == "cuda" else 2
    wrong = absent(count) if device == "cuda" else []
    if count and not wrong:
        found = multiprocessing.get_context("spawn").SimpleQueue()
        spawn(try_card, args=(count, device, free_port("127.0.0.1", 0), found), nprocs=count)
        cards = sorted((found.get() for _ in range(count)), key=lambda card: card["card"])
        sys.stdout.writelines(f"{line_of(card)}\n" for card in cards)
        wrong = [problem for card in cards for problem in problems(card, count)]
    sys.stdout.writelines(f"wrong: {problem}\n" for problem in wrong)
    if not wrong:
        sys.stdout.write(f"all {count} cards are as they should be\n")
    return 1 if wrong else 0


def absent(count: int) -> list[str]:
    """Reasons why PyTorch sees fewer cards than there are; none if it sees all."""
    if reason := why_no_device(installed_build()):
        return [reason]
    return [f"PyTorch sees {count} cards, and the machine has {num_gpus()}"] if count == 0 or count < num_gpus() else []


def try_card(rank: int, count: int, device: str, port: int, found: Any) -> None:
    """Multiplies on one card and adds over all of them; runs in a process for each."""
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place = torch.device("cuda", rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(place)
    free, total = torch.cuda.mem_get_info() if device == "cuda" else (memory_bytes(), memory_bytes())
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=count, timeout=TIMEOUT)
    ones = torch.ones(SIZE[device], SIZE[device], dtype=torch.bfloat16, device=place)
    seconds, product = timed(lambda: ones @ ones, device)
    part = torch.full((SUM_MIB[device] * 2**18,), float(rank + 1), device=place)
    sum_seconds, _ = timed(lambda: dist.all_reduce(part.clone()), device)
    dist.all_reduce(part)
    card = {
        "card": rank,
        "name": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "free": free,
        "total": total,
        "product": float(product.float().mean()) / SIZE[device],
        "sum": float(part.mean()),
        "flops": 2 * SIZE[device] ** 3 / seconds,
        "bytes_per_second": 2 * (count - 1) / count * SUM_MIB[device] * 2**20 / sum_seconds,
    }
    found.put(card)
    dist.destroy_process_group()


def timed(work: Any, device: str) -> tuple[float, Any]:
    """Seconds that a piece of work takes, and its result."""
    import torch

    def done() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    work()
    done()
    started = time.perf_counter()
    for _ in range(REPEATS):
        result = work()
    done()
    return (time.perf_counter() - started) / REPEATS, result


def problems(card: dict[str, Any], count: int) -> list[str]:
    """Faults of one card."""
    found, name = [], f"card {card['card']}"
    if card["free"] < FREE_SHARE * card["total"]:
        found.append(f"{name} has {card['free'] / 2**30:.1f} of {card['total'] / 2**30:.1f} GiB free: another program uses it")
    if card["product"] != 1.0:
        found.append(f"{name} multiplies wrongly: {card['product']} in place of 1")
    if card["sum"] != count * (count + 1) / 2:
        found.append(f"{name} has {card['sum']} as the sum over {count} cards")
    return found


def line_of(card: dict[str, Any]) -> str:
    """One card, as text."""
    sums = f", sums at {card['bytes_per_second'] / 1e9:.3g} GB/s" if card["bytes_per_second"] else ""
    free = f"{card['free'] / 2**30:.1f} of {card['total'] / 2**30:.1f} GiB free"
    return f"card {card['card']}: {card['name']}, {free}, {card['flops'] / 1e12:.3g} TFLOP/s in bfloat16{sums}"


if __name__ == "__main__":
    sys.exit(main())
