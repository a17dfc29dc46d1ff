"""Sizes and numbers as the plan writes them."""

from vime.memory.processes import GIB


def gib(size: float) -> str:
    """Bytes, for example `1.5 GiB`, or in MiB below one GiB."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.1f} MiB"


def count(number: int) -> str:
    """A number in the largest unit that it reaches, for example `7.6 B`."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)
