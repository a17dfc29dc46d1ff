"""The proof that the layers compute with the weights that were sent.

Before an update every weight is erased (`erase.py`); the layers of a shadow begin erased. Some columns or rows of every passing
tensor are kept, and after the update they are compared with each layer. A linear layer is multiplied with one-hot vectors, which
gives columns of its weight without any rounding, even where vLLM holds the weight repacked. An embedding gives rows, an expert
its output, and a norm or a bias is read. On a GPU all of this is queued before anything waits for the device.
"""

import math
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from vime.inside_vllm.expert_proof import check_experts
from vime.inside_vllm.stacked_experts import of_single_experts
from vime.inside_vllm.tensor_shard import Kind, TensorShard, find_shard
from vime.inside_vllm.value_sample import INTEGER_TOLERANCE, PendingCheck, ValueSample, difference, faults, is_exact
from vime.weights.quantize import SCALE

NUM_COLUMNS = 8
"""Number of columns of each linear weight that are compared; of an embedding, 8 times as many rows. Reading them back costs about
as much as 8 tokens."""
NUM_VALUES = 4096
"""Number of elements that are compared of a norm or a bias."""
NUM_EXPERT_COLUMNS = 2


class Proof:
    """Checks each update: call `begin`, then `note` for each tensor, then `check`.

    On a CPU vLLM's products share memory, so none may be computed beside another. Where a model generates meanwhile, `multiply`
    is called between two of its steps, and `check` may then follow beside it.
    """

    def __init__(self) -> None:
        self._samples: dict[str, ValueSample] = {}
        self._scales: dict[str, torch.Tensor] = {}
        """The scales of integers, [outputs, 1], by the names of their weights."""
        self._products: dict[int, torch.Tensor] = {}
        self._unread: list[str] = []
        self._round = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Forgets the last update and chooses other columns to compare."""
        self._samples, self._scales, self._unread, self._products = {}, {}, [], {}
        self._round += 1

    def note(self, model: Any, name: str, tensor: torch.Tensor) -> None:
        """Keeps some values of a tensor that goes to the model's loader (from several threads at once)."""
        for of_one, part in of_single_experts(name, tensor):
            self._note(model, of_one, part)

    def _note(self, model: Any, name: str, tensor: torch.Tensor) -> None:
        shard = find_shard(model, name, tensor.shape)
        if shard is None:
            with self._lock:
                self._unread.append(name)
            return
        part = tensor[shard.rows, shard.columns] if tensor.dim() > 1 else tensor[shard.rows]
        if name.endswith(SCALE):
            with self._lock:
                self._scales[name.removesuffix(SCALE)] = part.clone()
        along = 1 if shard.kind is Kind.linear or shard.part in ("gate_proj", "up_proj") else 0
        if shard.kind is Kind.values:
            part = part.reshape(-1)
        if shard.kind is Kind.expert and tensor.dim() == 1:  # its output has all of its biases
            along, indices = 0, torch.arange(len(part), device=tensor.device)
        else:
            indices = self._indices(shard, part.shape[along]).to(tensor.device, non_blocking=True)
        sample = ValueSample(shard=shard, indices=indices, values=part.index_select(along, indices).clone())
        with self._lock:
            self._samples[name] = sample

    @torch.no_grad()
    def multiply(self, model: Any) -> float:
        """Asks the linear layers for the columns that `check` compares; returns the seconds that it took."""
        started = time.monotonic()
        for of_layer in self._of_kind(Kind.linear):
            shard = of_layer[0][1].shard
            columns = shard.columns.stop - shard.columns.start
            self._products[id(shard.module)] = _product(shard.module, of_layer[0][1].indices, columns)
        for _, sample, head in self._tied(model):
            size = sample.values.shape[1]
            self._products.setdefault(id(head), _product(head, _first_columns(size), size))
        return time.monotonic() - started

    @torch.no_grad()
    def check(self, model: Any) -> dict[str, Any]:
        """Compares the layers with the weights that were sent.

        Returns `num_read`, the `unread` tensors, a line for each `wrong` one, and the `seconds` that it took.
        """
        started = time.monotonic()
        self._samples = {name: self._in_units(name, sample) for name, sample in self._samples.items()}
        if not self._products:
            self.multiply(model)
        found: list[str | PendingCheck] = []
        for name, sample in self._samples.items():
            if sample.shard.kind in (Kind.rows, Kind.values):
                exact = sample.shard.kind is Kind.values or is_exact(sample.shard.module)
                found.append(_compare(name, sample, _read_rows(sample), exact=exact))
        for of_layer in self._of_kind(Kind.linear):
            found += _check_linear(of_layer, self._products[id(of_layer[0][1].shard.module)])
        unread = list(self._unread)
        for of_layer in self._of_kind(Kind.expert):
            if of_layer[0][1].shard.module.quant_method.is_monolithic:  # its kernel routes by itself
                unread += [name for name, _ in of_layer]
            else:
                found += check_experts(of_layer)
        for name, sample, head in self._tied(model):
            found.append(_check_tied_head(name, sample, head, self._products[id(head)]))
        found += self._check_forgotten(model)
        found += [_nothing_sent(name) for name in self._scales if name not in self._samples]  # of integers, which no NaN marks
        wrong = [line for line in found if isinstance(line, str)]
        wrong += faults(check for check in found if isinstance(check, PendingCheck))
        seconds = time.monotonic() - started
        return {"num_read": len(self._samples), "unread": sorted(unread), "wrong": sorted(wrong), "seconds": seconds}

    def _in_units(self, name: str, sample: ValueSample) -> ValueSample:
        """A sample of integers times their scales, NaN if these were not sent."""
        if sample.values.dtype is not torch.int8:
            return sample
        scales = self._scales.get(name)
        values = sample.values.float() * (math.nan if scales is None else scales)
        return replace(sample, values=values, tolerance=INTEGER_TOLERANCE)

    def _indices(self, shard: TensorShard, size: int) -> torch.Tensor:
        """The chosen columns, rows or elements: others in each update, the same for all parts of one layer."""
        limits = {Kind.linear: NUM_COLUMNS, Kind.rows: 8 * NUM_COLUMNS, Kind.values: NUM_VALUES}
        limit = limits.get(shard.kind, 8 * NUM_COLUMNS if shard.part == "down_proj" else NUM_EXPERT_COLUMNS)
        generator = torch.Generator().manual_seed(1000003 * self._round + size)
        return torch.randperm(size, generator=generator)[:limit].sort().values

    def _of_kind(self, kind: Kind) -> Iterable[list[tuple[str, ValueSample]]]:
        """Names and samples of the tensors of this kind, for each layer."""
        found: dict[int, list[tuple[str, ValueSample]]] = {}
        for name, sample in self._samples.items():
            if sample.shard.kind is kind:
                found.setdefault(id(sample.shard.module), []).append((name, sample))
        return found.values()

    def _tied(self, model: Any) -> Iterable[tuple[str, ValueSample, Any]]:
        """Heads for which no tensor is sent, because they compute with the embedding's, whose name and sample come with them."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        own = {id(sample.shard.module) for sample in self._samples.values()}
        rows = [(name, sample) for name, sample in self._samples.items() if sample.shard.kind is Kind.rows]
        for head in (module for module in model.modules() if isinstance(module, ParallelLMHead) and id(module) not in own):
            yield from ((name, sample, head) for name, sample in rows if sample.shard.module.weight is head.weight)

    def _check_forgotten(self, model: Any) -> Iterable[str | PendingCheck]:
        """Layers and parts of fused biases for which nothing was sent, by vLLM's names; they are as `erase` has left them."""
        modules = [sample.shard.module for sample in self._samples.values()]
        sent, weights = {id(module) for module in modules}, {id(getattr(module, "weight", None)) for module in modules}
        for (_, parameter_name), samples in self._fused_values().items():
            held = getattr(samples[0].shard.module, parameter_name)
            held = held.reshape(len(held), -1)[:, 0]  # scales have two dimensions
            forgotten = torch.ones(len(held), dtype=torch.bool, device=held.device)
            for shard in (sample.shard for sample in samples):
                forgotten[shard.offset : shard.offset + shard.rows.stop - shard.rows.start] = False
            erased = (held.isnan() & forgotten).any()
            yield _forgotten(f"{samples[0].shard.module.prefix}.{parameter_name}", erased)
        for name, module in model.named_modules():
            if id(module) in sent or (hasattr(module, "weight") and id(module.weight) in weights):  # a tied head
                continue
            if getattr(getattr(module, "cpu_linear", None), "is_erased", False):
                yield _nothing_sent(name)
            for parameter_name, parameter in module.named_parameters(recurse=False):
                if parameter.numel() and parameter.is_floating_point():
                    yield _forgotten(f"{name}.{parameter_name}", parameter.reshape(-1)[0].isnan())

    def _fused_values(self) -> dict[tuple[int, str], list[ValueSample]]:
        """Samples of biases of linear layers, by layer."""
        found: dict[tuple[int, str], list[ValueSample]] = {}
        for sample in self._samples.values():
            if sample.shard.kind is Kind.values and hasattr(sample.shard.module, "output_partition_sizes"):
                found.setdefault((id(sample.shard.module), sample.shard.parameter), []).append(sample)
        return found


def _forgotten(name: str, is_erased: torch.Tensor) -> PendingCheck:
    return PendingCheck(is_right=~is_erased, fault=partial(_nothing_sent, name))


def _nothing_sent(name: str) -> str:
    return f"{name}: nothing of it was sent"


def _check_linear(of_layer: list[tuple[str, ValueSample]], columns: torch.Tensor) -> Iterable[PendingCheck]:
    """One multiplication for all tensors that are fused in a layer."""
    forgotten = torch.ones(len(columns), dtype=torch.bool, device=columns.device)
    for name, sample in of_layer:
        own = slice(sample.shard.offset, sample.shard.offset + sample.values.shape[0])
        forgotten[own] = False
        yield _compare(name, sample, columns[own], exact=is_exact(sample.shard.module))
    line = f"the layer of {of_layer[0][0]}: a tensor that belongs to it was not sent"
    yield PendingCheck(is_right=~(columns.isnan().any(1) & forgotten).any(), fault=lambda: line)  # padding is zero


def _first_columns(size: int) -> torch.Tensor:
    return torch.arange(min(size, NUM_COLUMNS))


def _check_tied_head(name: str, sample: ValueSample, head: Any, columns: torch.Tensor) -> PendingCheck:
    """The head's first columns, at the rows that were kept of the embedding."""
    indices = _first_columns(sample.values.shape[1])
    read = columns.index_select(0, sample.indices.to(columns.device))
    shown = ValueSample(shard=sample.shard, indices=indices, values=sample.values[:, : len(indices)])
    return _compare(f"{name} (in the head that is tied to it)", shown, read, exact=is_exact(head))


def _product(module: Any, indices: torch.Tensor, size: int) -> torch.Tensor:
    """Columns of the weight with which a layer computes, [outputs, indices]."""
    held = next(module.parameters())
    one_hot = torch.zeros(len(indices), size, dtype=getattr(module, "params_dtype", None) or held.dtype, device=held.device)
    one_hot.scatter_(1, indices.to(held.device, non_blocking=True).unsqueeze(1), 1.0)
    return module.quant_method.apply(module, one_hot, None).t()


def _read_rows(sample: ValueSample) -> torch.Tensor:
    shard = sample.shard
    if shard.kind is Kind.rows:
        return shard.module.quant_method.embedding(shard.module, sample.indices.to(shard.module.weight.device))
    held = getattr(shard.module, shard.parameter)
    count = shard.rows.stop - shard.rows.start
    return held[shard.offset : shard.offset + count].reshape(-1).index_select(0, sample.indices.to(held.device))


def _compare(name: str, sample: ValueSample, read: torch.Tensor, *, exact: bool) -> PendingCheck:
    expected = sample.values.to(read.device, read.dtype)  # files are in host memory
    if exact:
        is_right = (read == expected).all()
    else:
        limit = sample.tolerance * expected.float().abs().max()
        is_right = ((read.float() - expected.float()).abs() <= limit).all()  # which no NaN is
    return PendingCheck(is_right=is_right, fault=lambda: f"{name}: {difference(read, expected)}")
