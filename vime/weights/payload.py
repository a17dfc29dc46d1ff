"""A version of the weights on its way from trainer to servers: its description and its digest.

The digest is over the Hugging Face tensors before a server loads them (servers fuse and repack), and does not depend on
the order in which they arrive.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SYNC_TIMEOUT_SECONDS = 600.0
"""Time limit of each call of a weight sync; loading hundreds of gigabytes from a disk takes minutes."""
NO_VERSION = -1
"""Version of weights that no sync has sent: random ones, or the checkpoint's."""
RANDOM_WEIGHTS = "random"
"""The version that a server reports in its answers before it has received weights."""
EXCHANGE_PATH = "/exchange_weights"
"""Takes `{"weight_version": "7", "keep_cache": false}`, and answers with the `seconds` for which the engine stood still."""
ADAPTER = "adapter"
"""The extra argument of a request, with the name of the adapter that it is computed with; an empty name is the base model."""
AWAITS_ADAPTER = "VIME_AWAITS_ADAPTER"
"""Environment variable of a server whose weights are adapters, without which it must not answer: their names, with commas
between. A request that names none is computed with the first."""
NUM_SYNCED_SERVERS = "VIME_NUM_SYNCED_SERVERS"
"""Environment variable of a server: how many servers the run has that load each version at the same time."""


class LacksBase(Exception):
    """A server cannot make a version of its difference from another, and needs the whole one."""


@dataclass(kw_only=True, slots=True)
class WeightPayload:
    """One version of the weights, ready to be fetched.

    Example: `WeightPayload(version=3, files=["/dev/shm/vime-1a2b/actor-v3-0.safetensors"], num_tensors=27, num_bytes=1900544,
    digest="9f…", export_seconds=0.02)`; each file is one bucket.
    """

    version: int
    adapter: str = ""
    """Name of the adapter that it is, alone; empty for weights of the model."""
    base: int | None = None
    """The version that the files are differences from (`vime.weights.delta`); None if they are whole."""
    files: list[str] = field(default_factory=list)
    num_tensors: int = 0
    num_bytes: int = 0
    digest: str = ""
    export_seconds: float = 0.0

    @property
    def label(self) -> str:
        """The version as a server notes it with its tokens, `7`, or of an adapter `actor:7`."""
        return f"{self.adapter}:{self.version}" if self.adapter else str(self.version)


def version_in(label: str, adapter: str | None) -> int:
    """The version in the label of a token, or of an adapter in it; 0 where no sync has come, `NO_VERSION` for random weights."""
    if adapter:
        versions = dict(part.split(":") for part in label.split() if ":" in part)
        return int(versions.get(adapter, NO_VERSION))
    return NO_VERSION if label == RANDOM_WEIGHTS else int(label) if label.isdigit() else 0


def payload_folder(run_id: str) -> Path:
    """Folder of a run's payloads in shared memory; it is removed with the run, even after a kill -9."""
    return Path("/dev/shm") / f"vime-{run_id}"


class WeightDigest:
    """Digest of named tensors in any order; equal digests mean equal names, dtypes, shapes and (but for chance, 2^-64) bytes.

    Bytes in host memory are hashed by XXH3 (128 bits). Those in a GPU's are summed by the GPU where they are
    (`vime.weights.words`), which sees every lost, changed or moved word. So the digests of one tensor in both places differ.
    """

    def __init__(self) -> None:
        self._digests: dict[str, bytes | None] = {}
        """Digests by name; None while the device computes it."""
        self._sums: Any = None
        self._described: list[tuple[str, str]] = []
        """Names and descriptions of the tensors in `_sums`."""

    def update(self, name: str, tensor: "torch.Tensor") -> None:
        """Adds one tensor (on the host, or all on one device; a name given twice is an error)."""
        assert name not in self._digests, f"weight {name!r} arrived twice"
        described = f"{name} {tensor.dtype} {tuple(tensor.shape)}"
        if tensor.device.type == "cpu":
            self._digests[name] = _digest(described, fingerprint(tensor.detach()))
            return
        from vime.weights.words import WordSums

        self._sums = self._sums or WordSums()
        self._sums.add(tensor.detach())
        self._digests[name] = None
        self._described.append((name, described))

    @property
    def num_tensors(self) -> int:
        """The number of tensors that were added."""
        return len(self._digests)

    def hexdigest(self) -> str:
        """The digest of all tensors added so far; waits for the device."""
        if self._described:
            for (name, described), number in zip(self._described, self._sums.found(), strict=True):
                self._digests[name] = _digest(described, number)
            self._described = []
        total = hashlib.blake2b(digest_size=16)
        for name in sorted(self._digests):
            total.update(self._digests[name] or b"")
        return total.hexdigest()


def fingerprint(tensor: "torch.Tensor") -> int:
    """A number for the bytes of one tensor in host memory."""
    import torch  # not at the top: the driver passes payloads on and needs no torch
    import xxhash

    return xxhash.xxh3_128(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data).intdigest()


def _digest(described: str, number: int) -> bytes:
    return hashlib.blake2b(f"{described} {number}".encode(), digest_size=16).digest()
