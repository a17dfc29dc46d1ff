"""A version of the weights on its way from trainer to servers: its description and its digest.

The digest is over the Hugging Face tensors before a server loads them (servers fuse and repack), and does not depend on
the order in which they arrive.
"""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SYNC_TIMEOUT_SECONDS = 600.0
"""Time limit of each call of a weight sync; loading hundreds of gigabytes from a disk takes minutes."""
NO_VERSION = -1
"""Version of weights that no sync has sent: random ones, or the checkpoint's."""
RANDOM_WEIGHTS = "random"
"""The version that a server reports in its answers before it has received weights."""
NUM_SYNCED_SERVERS = "VIME_NUM_SYNCED_SERVERS"
"""Environment variable of a server: how many servers the run has that load each version at the same time."""
CHUNK_WORDS = 2**16
"""Number of words that fit into a core's cache together with their factors."""
BLOCK_CHUNKS = 2**8
"""Number of chunks that one kernel processes on a GPU."""


@dataclass(kw_only=True, slots=True)
class WeightPayload:
    """One version of the weights, ready to be fetched.

    Example: `WeightPayload(version=3, files=["/dev/shm/vime-1a2b/actor-v3-0.safetensors"], num_tensors=27, num_bytes=1900544,
    digest="9f…", export_seconds=0.02)`; each file is one bucket.
    """

    version: int
    files: list[str] = field(default_factory=list)
    num_tensors: int = 0
    num_bytes: int = 0
    digest: str = ""
    export_seconds: float = 0.0


def payload_folder(run_id: str) -> Path:
    """Folder of a run's payloads in shared memory; it is removed with the run, also after a kill -9."""
    return Path("/dev/shm") / f"vime-{run_id}"


class WeightDigest:
    """Digest of named tensors in any order; equal digests mean equal names, dtypes, shapes and (but for chance, 2^-64) bytes.

    Bytes in host memory are hashed by XXH3 (128 bits). Those in a GPU's, as 32-bit words w_i in chunks of `CHUNK_WORDS`, give the
    sum over chunks c of r_c times the sum of r_i w_i modulo 2^64, with fixed random odd r: it sees every lost, changed or moved
    word, and the GPU computes it where the tensor is. So the digests of one tensor in both places differ.
    """

    def __init__(self) -> None:
        self._digests: dict[str, bytes] = {}

    def update(self, name: str, tensor: "torch.Tensor") -> None:
        """Adds one tensor (any device; a name given twice is an error)."""
        assert name not in self._digests, f"weight {name!r} arrived twice"
        described = f"{name} {tensor.dtype} {tuple(tensor.shape)} {fingerprint(tensor.detach())}"
        self._digests[name] = hashlib.blake2b(described.encode(), digest_size=16).digest()

    @property
    def num_tensors(self) -> int:
        """How many tensors were added."""
        return len(self._digests)

    def hexdigest(self) -> str:
        """The digest of all tensors added so far."""
        total = hashlib.blake2b(digest_size=16)
        for name in sorted(self._digests):
            total.update(self._digests[name])
        return total.hexdigest()


def fingerprint(tensor: "torch.Tensor") -> int:
    """A number for the bytes of one tensor, as the class above says."""
    if tensor.device.type != "cpu":
        return sum_of_words(tensor)
    import torch  # not at the top: the driver passes payloads on and needs no torch
    import xxhash

    return xxhash.xxh3_128(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data).intdigest()


def sum_of_words(tensor: "torch.Tensor") -> int:
    """The sum of the class above; suffixes: B bytes, W words of a block, C its chunks, F factors, one per word of a chunk."""
    import torch

    bytes_B = tensor.contiguous().reshape(-1).view(torch.uint8)
    if bytes_B.numel() % 4 or bytes_B.storage_offset() % 4:
        bytes_B = torch.nn.functional.pad(bytes_B, (0, -bytes_B.numel() % 4))
    words_W = bytes_B.view(torch.int32)
    factors_F = _factors(tensor.device)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    block = CHUNK_WORDS * (BLOCK_CHUNKS if tensor.is_cuda else 1)
    for start in range(0, words_W.numel(), block):
        wide_W = words_W[start : start + block].to(torch.int64)
        wide_W = torch.nn.functional.pad(wide_W, (0, -wide_W.numel() % CHUNK_WORDS))
        sums_C = wide_W.view(-1, CHUNK_WORDS).mul_(factors_F).sum(1)
        first = start // CHUNK_WORDS
        numbers_C = torch.arange(first, first + sums_C.numel(), device=tensor.device) % CHUNK_WORDS
        total += sums_C.mul_(factors_F[numbers_C]).sum()
    return int(total)


@lru_cache(maxsize=8)
def _factors(device: "torch.device") -> "torch.Tensor":
    """Random odd numbers, the same on every machine."""
    import torch

    generator = torch.Generator().manual_seed(0x76696D65)
    factors_F = torch.randint(-(2**63), 2**63 - 1, (CHUNK_WORDS,), generator=generator, dtype=torch.int64)
    return factors_F.bitwise_or(1).to(device)
