"""Weights for the servers as files, with their digest: bounded safetensors buckets, or an adapter in PEFT's format.

The files are in shared memory or on a shared disk.
"""

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from vime.files.folders import put_in_place, sync, writing_place
from vime.model import adapter_folder
from vime.weights.delta import Buckets, Sent
from vime.weights.payload import WeightDigest, WeightPayload

BUCKET_BYTES = 512 * 2**20
KEPT_VERSIONS = 2
"""A server that restarts during a sync may still read the version before."""


def write_payload(
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    folder: Path,
    version: int,
    bucket_bytes: int = BUCKET_BYTES,
    sent: Sent | None = None,
    is_whole: bool = False,
) -> WeightPayload:
    """Writes one version of the weights; a collective over `tensors`, rank 0 writes and gets the filled payload.

    With what was `sent` before, the version is written as its difference from that where it may be, and noted there. With
    `is_whole` it is neither, for servers that cannot use the difference.

    Tensors are hashed beside the writing. A file appears under its name when it is complete; files of versions before the last
    are removed.
    """
    if dist.get_rank() != 0:
        for _ in tensors:
            pass
        return WeightPayload(version=version)
    return _write_payload(tensors, folder=folder, version=version, bucket_bytes=bucket_bytes, sent=sent, is_whole=is_whole)


def saved_tensors(saved: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a Hugging Face folder."""
    return (each for path in sorted(saved.glob("*.safetensors")) for each in load_file(path).items())


def copy_payload(tensors: Iterable[tuple[str, torch.Tensor]], *, folder: Path, version: int) -> WeightPayload:
    """Writes a model as `write_payload` does; no collective."""
    return _write_payload(tensors, folder=folder, version=version, bucket_bytes=BUCKET_BYTES)


def _write_payload(
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    folder: Path,
    version: int,
    bucket_bytes: int,
    sent: Sent | None = None,
    is_whole: bool = False,
) -> WeightPayload:
    started = time.monotonic()
    base, buckets = sent.base if sent is not None and not is_whole else None, Buckets(version=version)
    payload = WeightPayload(version=version, base=base.version if base is not None else None)
    digest = WeightDigest()
    folder.mkdir(parents=True, exist_ok=True)
    remove_versions(folder, before=version - KEPT_VERSIONS + 1)
    bucket: dict[str, torch.Tensor] = {}
    size = 0

    def write() -> None:
        if sent is None:
            payload.files.append(_write(folder, version, len(payload.files), bucket))
        else:
            payload.files.append(str(buckets.write(bucket, folder=folder, base=base)))

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="weight-digest") as hasher:
        hashed: list[Future[None]] = []
        for name, tensor in tensors:
            if bucket and size + tensor.nbytes > bucket_bytes:
                write()
                bucket, size = {}, 0
            bucket[name] = tensor.detach().contiguous().cpu()
            hashed.append(hasher.submit(digest.update, name, bucket[name]))
            size += tensor.nbytes
            payload.num_bytes += tensor.nbytes
        if bucket:
            write()
        for each in hashed:
            each.result()
    if sent is not None and not is_whole:
        sent.note(buckets)
    if base is not None:
        payload.num_bytes = sum(Path(file).stat().st_size for file in payload.files)
    payload.num_tensors, payload.digest = digest.num_tensors, digest.hexdigest()
    payload.export_seconds = time.monotonic() - started
    return payload


def write_adapter_payload(
    tensors: Iterable[tuple[str, torch.Tensor]], *, folder: Path, name: str, version: int, description: dict[str, Any]
) -> WeightPayload:
    """Writes one version of the adapters of a name as a folder of its own; a collective over `tensors`, rank 0 writes."""
    if dist.get_rank() != 0:
        for _ in tensors:
            pass
        return WeightPayload(version=version, adapter=name)
    return _write_adapter_payload(tensors, folder=folder, name=name, version=version, description=description)


def copy_adapter_payload(saved: Path, *, folder: Path, name: str, version: int) -> WeightPayload:
    """Writes a saved adapter (a folder in PEFT's format) as `write_adapter_payload` does; no collective."""
    tensors, description = load_file(saved / adapter_folder.WEIGHTS), json.loads((saved / adapter_folder.CONFIG).read_text())
    return _write_adapter_payload(tensors.items(), folder=folder, name=name, version=version, description=description)


def _write_adapter_payload(
    tensors: Iterable[tuple[str, torch.Tensor]], *, folder: Path, name: str, version: int, description: dict[str, Any]
) -> WeightPayload:
    started = time.monotonic()
    payload, digest = WeightPayload(version=version, adapter=name), WeightDigest()
    folder.mkdir(parents=True, exist_ok=True)
    remove_versions(folder, before=version - KEPT_VERSIONS + 1, name=name)
    kept = {key: tensor.detach().contiguous().cpu() for key, tensor in tensors}
    for key, tensor in kept.items():
        digest.update(key, tensor)
        payload.num_bytes += tensor.nbytes
    own = folder / f"{name}-v{version}-adapter"
    write_adapter(kept.items(), folder=own, description=description)
    payload.files.append(str(own / adapter_folder.WEIGHTS))
    payload.num_tensors, payload.digest = digest.num_tensors, digest.hexdigest()
    payload.export_seconds = time.monotonic() - started
    return payload


def write_adapter(tensors: Iterable[tuple[str, torch.Tensor]], *, folder: Path, description: dict[str, Any]) -> None:
    """Writes the tensors of an adapter under PEFT's names, and its configuration; the folder appears whole, or not at all."""
    temporary = writing_place(folder)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    kept = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors}
    save_file(kept, temporary / adapter_folder.WEIGHTS, metadata={"format": "pt"})
    sync(temporary / adapter_folder.WEIGHTS)
    (temporary / adapter_folder.CONFIG).write_text(json.dumps(description, indent=2, sort_keys=True) + "\n")
    put_in_place(temporary, folder)


def remove_versions(folder: Path, *, before: int, name: str = "actor") -> None:
    """Removes buckets and adapters of versions below `before`."""
    for path in folder.glob(f"{name}-v*"):
        match = re.match(rf"{re.escape(name)}-v(\d+)-", path.name)
        if match and int(match.group(1)) < before:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _write(folder: Path, version: int, number: int, bucket: dict[str, torch.Tensor]) -> str:
    path = folder / f"actor-v{version}-{number}.safetensors"
    temporary = path.with_suffix(".writing")
    save_file(bucket, temporary)
    temporary.replace(path)
    return str(path)
