"""What travels from trainer to servers: the payload's description and its digest.

The digest is over the Hugging Face tensors before a server loads them (servers fuse and repack), and does not depend on
the order in which they arrive.
"""

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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


class WeightDigest:
    """Digest of named tensors in any order; equal digests mean equal names, dtypes, shapes and bytes."""

    def __init__(self) -> None:
        self._digests: dict[str, bytes] = {}

    def update(self, name: str, tensor: "torch.Tensor") -> None:
        """Adds one tensor (any device; a name given twice is an error)."""
        import torch  # not at the top: the driver passes payloads on and needs no torch

        assert name not in self._digests, f"weight {name!r} arrived twice"
        data = tensor.detach().contiguous().cpu()
        digest = hashlib.blake2b(f"{name} {data.dtype} {tuple(data.shape)}".encode(), digest_size=16)
        digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
        self._digests[name] = digest.digest()

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
