"""Counts the memory that a forward pass keeps for its backward pass: each storage once, without the model's parameters."""

from types import TracebackType
from typing import Any

import torch

from vime.trainer.model import Chunks
from vime.trainer.packed_sequences import packed_sequences
from vime.trainer.parallel import device


class SavedTensors:
    """In a `with` block, notes every tensor that autograd saves; `num_bytes` and `by_shape` describe them afterwards.

    Tensors are counted by the memory that they keep alive, which for a view is the whole storage. Example: with h hidden channels
    in bfloat16, a linear layer on a fresh input of T tokens keeps 2·T·h bytes.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.Size, torch.dtype]] = {}
        self._hooks: Any = torch.autograd.graph.saved_tensors_hooks(self._note, lambda tensor: tensor)

    def __enter__(self) -> "SavedTensors":
        self._hooks.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._hooks.__exit__(kind, error, trace)

    @property
    def num_bytes(self) -> int:
        """Bytes of all storages together."""
        return sum(storage.nbytes() for storage, _, _ in self._storages.values())

    def by_shape(self) -> dict[tuple[tuple[int, ...], torch.dtype], int]:
        """The number of bytes kept, by shape and type of the tensor that was seen first in each storage."""
        found: dict[tuple[tuple[int, ...], torch.dtype], int] = {}
        for storage, shape, dtype in self._storages.values():
            found[tuple(shape), dtype] = found.get((tuple(shape), dtype), 0) + storage.nbytes()
        return found

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._own and storage.nbytes():
            self._storages.setdefault(storage.data_ptr(), (storage, tensor.shape, tensor.dtype))
        return tensor.detach()  # an output kept as it is would hold its own graph, and with it the model


def forward(model: Chunks, lengths: list[int]) -> torch.Tensor:
    """Hidden states [T, hidden] of a row of random sequences, longest first, on one rank that has all of their tokens."""
    part, size = model.parts[0], sum(lengths)
    tokens_T = torch.randint(part.vocab_size, (size,), device=device())
    packed = packed_sequences(sorted(lengths, reverse=True), device=device())
    return part(tokens_T.unsqueeze(0), None, None, packed_seq_params=packed)[:, 0]


def kept_bytes(model: Chunks, lengths: list[int]) -> int:
    """Bytes that the forward pass of a row of these lengths keeps for the backward pass, up to the head."""
    with SavedTensors(model) as saved:
        hidden_TH = forward(model, lengths)
    del hidden_TH
    return saved.num_bytes
