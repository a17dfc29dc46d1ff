"""Sums over the 32-bit words of tensors in a GPU's memory, computed where they are: the device's part of `WeightDigest`.

Small tensors are copied side by side into a buffer and summed together, and the host waits for the device only at the end. A
mixture-of-experts model has tens of thousands of tensors, and for each of them a dozen kernels and a wait would take longer than
reading its bytes.

Shape suffixes: B bytes, C chunks, F factors, one per word of a chunk; N tensors.
"""

from functools import lru_cache
from typing import Any

import torch

CHUNK_WORDS = 2**16
"""Number of words that fit into a core's cache together with their factors."""
WORD_BYTES = 4
CHUNK_BYTES = CHUNK_WORDS * WORD_BYTES
BUFFER_CHUNKS = 2**8
"""Number of chunks that are summed at a time on a GPU."""


class WordSums:
    """A number per tensor: the sum over its chunks c of r_c times the sum of r_i w_i modulo 2^64, with fixed random odd r.

    Call `add` for each tensor, on one device, then `found`. The numbers do not depend on which tensors are summed together.
    """

    def __init__(self, buffer_chunks: int = BUFFER_CHUNKS) -> None:
        self._buffer_chunks = buffer_chunks
        self._buffer_B: torch.Tensor | None = None
        self._places: list[int] = []
        """Chunks of each tensor in the buffer."""
        self._sums: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor) -> None:
        """Adds the next tensor, which may change once this has returned and the device's stream has reached this point."""
        num_chunks = -(-tensor.nbytes // CHUNK_BYTES)
        if sum(self._places) + num_chunks > self._buffer_chunks:
            self._sum_buffer()
        if num_chunks > self._buffer_chunks:
            self._sums.append(_sum(tensor, self._buffer_chunks).unsqueeze(0))
            return
        if self._buffer_B is None:
            self._buffer_B = torch.empty(self._buffer_chunks * CHUNK_BYTES, dtype=torch.uint8, device=tensor.device)
        start = sum(self._places) * CHUNK_BYTES
        end = start + tensor.nbytes
        self._buffer_B[start:end].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        self._buffer_B[end : start + num_chunks * CHUNK_BYTES].zero_()
        self._places.append(num_chunks)

    def found(self) -> list[int]:
        """The numbers in the order of `add`; waits for the device once, and frees the buffer."""
        self._sum_buffer()
        self._buffer_B = None
        sums, self._sums = self._sums, []
        return torch.cat(sums).tolist() if sums else []

    def _sum_buffer(self) -> None:
        if not self._places:
            return
        assert self._buffer_B is not None
        device, total = self._buffer_B.device, sum(self._places)
        owners = [number for number, count in enumerate(self._places) for _ in range(count)]
        numbers = [number for count in self._places for number in range(count)]
        owner_C, number_C = (
            torch.tensor([owners, numbers], dtype=torch.int64).view(2, total).to(device, non_blocking=True).unbind()
        )
        sums_C = _chunk_sums(self._buffer_B[: total * CHUNK_BYTES]).mul_(_factors(device)[number_C % CHUNK_WORDS])
        sums_N = torch.zeros(len(self._places), dtype=torch.int64, device=device)
        self._sums.append(sums_N.index_add_(0, owner_C, sums_C))
        self._places = []


def sum_of_words(tensor: torch.Tensor) -> int:
    """The number of one tensor."""
    return int(_sum(tensor, BUFFER_CHUNKS if tensor.is_cuda else 1))


def _sum(tensor: torch.Tensor, block_chunks: int) -> torch.Tensor:
    bytes_B = tensor.contiguous().reshape(-1).view(torch.uint8)
    if bytes_B.numel() % WORD_BYTES or bytes_B.storage_offset() % WORD_BYTES:
        bytes_B = torch.nn.functional.pad(bytes_B, (0, -bytes_B.numel() % WORD_BYTES))
    factors_F, block = _factors(tensor.device), block_chunks * CHUNK_BYTES
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, bytes_B.numel(), block):
        part_B = bytes_B[start : start + block]
        sums_C = _chunk_sums(torch.nn.functional.pad(part_B, (0, -part_B.numel() % CHUNK_BYTES)))
        first = start // CHUNK_BYTES
        numbers_C = torch.arange(first, first + sums_C.numel(), device=tensor.device) % CHUNK_WORDS
        total += sums_C.mul_(factors_F[numbers_C]).sum()
    return total


def _chunk_sums(bytes_B: torch.Tensor) -> torch.Tensor:
    """The sum of each whole chunk: its words times their factors."""
    words = bytes_B.view(torch.int32).view(-1, CHUNK_WORDS).to(torch.int64)
    return words.mul_(_factors(bytes_B.device)).sum(1)


@lru_cache(maxsize=8)
def _factors(device: Any) -> torch.Tensor:
    """Random odd numbers, the same on every machine."""
    generator = torch.Generator().manual_seed(0x76696D65)
    factors_F = torch.randint(-(2**63), 2**63 - 1, (CHUNK_WORDS,), generator=generator, dtype=torch.int64)
    return factors_F.bitwise_or(1).to(device)
