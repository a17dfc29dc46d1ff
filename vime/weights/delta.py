"""Buckets of weights as differences from the version before: exclusive or, compressed by Zstandard.

In bfloat16 at a small learning rate most weights keep all of their bits from one version to the next. The trainer holds the
buckets that it sent last, and a server those that it received; both have them byte for byte, so the new ones are too. A server
that holds another version, or finds a difference damaged, says so and is sent the whole version.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from backports import zstd
from safetensors import safe_open
from safetensors.torch import load, save, save_file

from vime.weights.payload import LacksBase

DELTA = ".delta"
"""The end of a file with a difference; that of a whole bucket is `.safetensors`."""
BASE, VERSION, CHANGES = "base", "version", "changes"
OPTIONS: dict[int, int] = {zstd.CompressionParameter.compression_level: 1, zstd.CompressionParameter.checksum_flag: 1}


@dataclass(kw_only=True, slots=True)
class Buckets:
    """The buckets of one version, as bytes. Example: `Buckets(version=7, data=[b"\\x40\\x00…"])`."""

    version: int
    data: list[bytes] = field(default_factory=list)

    def write(self, tensors: dict[str, torch.Tensor], *, folder: Path, base: "Buckets | None") -> Path:
        """Adds a bucket and writes it, with a `base` as the difference from its bucket of the same number; returns the file."""
        # One entry of a fixed length: the bytes of a version are the same whenever it is written, and as many as of any other.
        number, about = len(self.data), {VERSION: f"{self.version:012d}"}
        self.data.append(save(tensors, metadata=about))
        path = folder / f"actor-v{self.version}-{number}{DELTA if base is not None else '.safetensors'}"
        temporary = path.with_suffix(".writing")
        if base is None:
            temporary.write_bytes(self.data[-1])
        else:
            changes = torch.frombuffer(bytearray(difference(self.data[-1], base.data[number])), dtype=torch.uint8)
            save_file({CHANGES: changes}, temporary, metadata=about | {BASE: str(base.version)})
        temporary.replace(path)
        return path


class Sent:
    """The last version that the trainer has sent, on its first rank; every `num_deltas` + 1st version is sent whole."""

    def __init__(self, num_deltas: int) -> None:
        self._num_deltas, self._num_since = num_deltas, 0
        self._last: Buckets | None = None

    @property
    def base(self) -> Buckets | None:
        """The version from which the next one is sent as a difference; None if it is to be sent whole."""
        return self._last if self._num_since < self._num_deltas else None

    def note(self, buckets: Buckets) -> None:
        """Notes what was sent."""
        self._num_since = self._num_since + 1 if self.base is not None else 0
        self._last = buckets


def difference(new: bytes, base: bytes) -> bytes:
    """The compressed difference of two buckets of one size, with a checksum."""
    assert len(new) == len(base), "the tensors of a bucket are the same in all versions"
    return zstd.compress(np.bitwise_xor(_numbers(new), _numbers(base)).tobytes(), options=OPTIONS)


def applied(changes: bytes, base: bytes) -> bytes:
    """The bucket that differs from `base` by compressed changes. Raises `LacksBase` if these are damaged."""
    try:
        found = zstd.decompress(changes)
    except zstd.ZstdError as error:
        raise LacksBase(f"a difference is damaged ({error})") from error
    if len(found) != len(base):
        raise LacksBase(f"a difference is of {len(found)} bytes, the bucket has {len(base)}")
    return np.bitwise_xor(_numbers(found), _numbers(base)).tobytes()


Tensors = list[tuple[str, torch.Tensor]]


def read_bucket(file: str, held: Buckets | None, received: Buckets | None) -> tuple[Tensors, Buckets | None]:
    """The tensors of a bucket's file, and the buckets received with it, where the next version may be a difference from them.

    `held` is the version that the server has. Raises `LacksBase` for a difference from another one, or one that is damaged.
    """
    with safe_open(file, framework="pt", device="cpu") as bucket:
        about: dict[str, Any] = bucket.metadata() or {}
        if VERSION not in about:
            return [(name, bucket.get_tensor(name)) for name in bucket.keys()], None  # noqa: SIM118 (it is no dictionary)
        received = received or Buckets(version=int(about[VERSION]))
        if (base := about.get(BASE)) is None:
            received.data.append(Path(file).read_bytes())
        elif held is None or held.version != int(base):
            has = "none that can be changed" if held is None else f"version {held.version}"
            raise LacksBase(f"version {received.version} comes as its difference from version {base}, and the server has {has}")
        else:
            changes = bucket.get_tensor(CHANGES).numpy().tobytes()
            received.data.append(applied(changes, held.data[len(received.data)]))
    return list(load(received.data[-1]).items()), received


def _numbers(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)
