"""Weights for the servers as files: bounded safetensors buckets and their digest, in shared memory or on a shared disk."""

import re
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from vime.weights.payload import WeightDigest, WeightPayload

BUCKET_BYTES = 512 * 2**20
KEPT_VERSIONS = 2
"""A server that restarts during a sync may still read the version before."""


def write_payload(
    tensors: Iterable[tuple[str, torch.Tensor]], *, folder: Path, version: int, bucket_bytes: int = BUCKET_BYTES
) -> WeightPayload:
    """Writes one version of the weights; a collective over `tensors`, rank 0 writes and gets the filled payload.

    Tensors are hashed beside the writing. A file appears under its name when it is complete; files of versions before the last
    are removed.
    """
    started = time.monotonic()
    payload = WeightPayload(version=version)
    digest = WeightDigest()
    writes = dist.get_rank() == 0
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        remove_versions(folder, before=version - KEPT_VERSIONS + 1)
    bucket: dict[str, torch.Tensor] = {}
    size = 0
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="weight-digest") as hasher:
        hashed: list[Future[None]] = []
        for name, tensor in tensors:
            if not writes:
                continue
            if bucket and size + tensor.nbytes > bucket_bytes:
                payload.files.append(_write(folder, version, len(payload.files), bucket))
                bucket, size = {}, 0
            bucket[name] = tensor.detach().contiguous().cpu()
            hashed.append(hasher.submit(digest.update, name, bucket[name]))
            size += tensor.nbytes
            payload.num_bytes += tensor.nbytes
        if bucket:
            payload.files.append(_write(folder, version, len(payload.files), bucket))
        for each in hashed:
            each.result()
    payload.num_tensors, payload.digest = digest.num_tensors, digest.hexdigest()
    payload.export_seconds = time.monotonic() - started
    return payload


def remove_versions(folder: Path, *, before: int) -> None:
    """Removes the buckets of versions below `before`."""
    for path in folder.glob("actor-v*.safetensors"):
        match = re.match(r"actor-v(\d+)-", path.name)
        if match and int(match.group(1)) < before:
            path.unlink(missing_ok=True)


def _write(folder: Path, version: int, number: int, bucket: dict[str, torch.Tensor]) -> str:
    path = folder / f"actor-v{version}-{number}.safetensors"
    temporary = path.with_suffix(".writing")
    save_file(bucket, temporary)
    temporary.replace(path)
    return str(path)
