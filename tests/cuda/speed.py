"""A model of the trainer's step times on H100s, from its counted work; the times are not measured.

    python -m tests.cuda.speed [--write results] [--before COMMIT] [--rows 16]

One rank of each recipe runs its training step at true size on a CUDA device that is not there (`tests/cuda`): every kernel, its
bytes and floating-point operations, every collective and every wait of the host is counted, once with the tree of an earlier
commit and once with this one. The times are arithmetic on these counts and on the assumptions of `CARD`, which the page states.
"""

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
BEFORE = "cdd2c5c"
WITHOUT_KERNEL = (
    "empty",
    "new_empty",
    "_unsafe_view",
    "detach",
    "lift",
    "alias",
    "_local_scalar_dense",
    "resize",
    "set_",
    "record",
)
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm")


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """Assumptions about an H100 and its neighbours."""

    peak_flops: float = 989e12
    """Dense bfloat16 products, from the data sheet; MFU is a share of this."""
    product_share: float = 0.65
    """Share of it that cuBLAS reaches in large products."""
    grouped_share: float = 0.5
    """Share of it that grouped products reach."""
    attention_share: float = 0.35
    """Share of it that flash attention 2 reaches, forward and backward."""
    bytes_per_second: float = 3.35e12 * 0.8
    """80 % of the memory's rate on the data sheet."""
    link_bytes_per_second: float = 450e9 * 0.8
    """80 % of NVLink in one direction."""
    launch_seconds: float = 4e-6
    """The host starts one kernel or collective; kernels that are shorter wait for it."""
    wait_seconds: float = 30e-6
    """A wait of the host: until it has started enough kernels again, the device is idle."""


CARD = Card()


@dataclass(kw_only=True, slots=True)
class Work:
    """Counted work of one rank in one phase. Seconds are those of the device alone, kernel by kernel.

    Example: `Work(launches=41_000, seconds={"product": 1.2, "memory": 0.3}, collectives={"waited": 0.4}, waits=12)`.
    """

    launches: int = 0
    flops: float = 0.0
    """Operations of products and attention, recomputed ones too."""
    bytes: float = 0.0
    """Read and written by all other kernels."""
    seconds: dict[str, float] = field(default_factory=dict)
    collectives: dict[str, float] = field(default_factory=dict)
    """Seconds of those that are waited for at once, and of those that a product runs beside (`beside`)."""
    waits: int = 0

    def minus(self, other: "Work", divisor: int) -> "Work":
        """The excess over another, by `divisor`."""
        return Work(
            launches=(self.launches - other.launches) // divisor,
            flops=(self.flops - other.flops) / divisor,
            bytes=(self.bytes - other.bytes) / divisor,
            seconds={kind: (value - other.seconds.get(kind, 0.0)) / divisor for kind, value in self.seconds.items()},
            collectives={kind: (value - other.collectives.get(kind, 0.0)) / divisor for kind, value in self.collectives.items()},
            waits=(self.waits - other.waits) // divisor,
        )

    def total(self, *, in_one_queue: bool) -> float:
        """Modelled seconds; with one queue the collectives that run beside a product take none of their own."""
        beside = 0.0 if in_one_queue else self.collectives.get("beside", 0.0)
        device = sum(self.seconds.values()) + self.collectives.get("waited", 0.0) + beside
        return max(device, self.launches * CARD.launch_seconds) + self.waits * CARD.wait_seconds


INTRODUCTION = """# A model of the trainer's speed on H100s
Written by `python -m tests.cuda.speed --write results` at commit {commit}. **Nothing here was measured on a GPU, and no README
quotes it**: one rank of each recipe ran its training step at true size on a CUDA device that is not there (`tests/cuda`), where
kernels, their bytes and floating-point operations, collectives and waits of the host were counted; the times are arithmetic on
these counts. The first measurement replaces this page.

- **Products**: 989 TFLOP/s of dense bfloat16, of which cuBLAS reaches {card.product_share:.0%}, grouped products
  {card.grouped_share:.0%}, flash attention {card.attention_share:.0%}. A kernel takes the longer of its operations and its bytes.
- **Memory**: 80 % of 3.35 TB/s. What is compiled, and each fused kernel of PyTorch, reads its arguments and writes its results.
- **Collectives**: 80 % of NVLink's 450 GB/s in one direction, so {links:.0f}, in rings. One that Megatron starts beside a product
  takes no time of its own where ranks have one queue of kernels (`CUDA_DEVICE_MAX_CONNECTIONS=1`, in the rows "after"), and all
  of it elsewhere.
- **Host**: {card.launch_seconds:.0e} s for each kernel or collective; the device works meanwhile, and the longer of both counts.
  Each wait of the host costs {card.wait_seconds:.0e} s.
- **Work**: two sequences a row, a quarter of whose tokens is trained; {rows} rows per rank in an update; no reference model.
  Experts get equally many tokens.
- **Not in it**: Python's time beyond a launch, what a collective takes from a product beside it, imbalance, clocks under load.

MFU is 6 · parameters · tokens and causal attention (`sequence_flops`), without what is computed again, as a share of 989 TFLOP/s.
"Before" is commit {before}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A recipe of `conf/`, with settings of its own. Example: `Recipe(model="qwen2.5-7b", cluster="one_node", ranks=8)`."""

    model: str
    cluster: str
    ranks: int
    words: tuple[str, ...] = ()


RECIPES = (
    Recipe(model="qwen2.5-1.5b", cluster="one_gpu", ranks=1),
    Recipe(model="qwen2.5-7b", cluster="one_node", ranks=8),
    Recipe(model="qwen2.5-32b", cluster="one_node", ranks=8),
    Recipe(model="qwen3-30b-a3b", cluster="one_node", ranks=8),
)


class Counting:
    """Counts the work of this process's device from `install` on, in `work`."""

    def __init__(self) -> None:
        self.work, self._depth, self._paused = Work(), 0, 0

    def install(self) -> None:
        """After the room was entered and before Megatron is imported."""
        import torch
        import torch.distributed as dist
        from torch._subclasses.fake_tensor import FakeTensorMode

        from tests.cuda import collectives

        dispatch = FakeTensorMode.dispatch

        def counted(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self._depth += 1  # what PyTorch's fake kernels call themselves is no kernel of the device
            try:
                result = dispatch(mode, func, types, args, kwargs or {})
            finally:
                self._depth -= 1
            if not self._depth and not self._paused:
                self._operation(func, args, kwargs or {}, result)
            return result

        FakeTensorMode.dispatch = counted  # type: ignore[method-assign]
        torch.compile = lambda function=None, **_: self._fused(function) if function else self._fused  # type: ignore[assignment]
        torch.nn.functional.scaled_dot_product_attention = self._attention()  # type: ignore[assignment]
        for kind in collectives.TENSORS:
            setattr(dist, kind, self._collective(kind, getattr(dist, kind)))

    def fuse_norms(self) -> None:
        """PyTorch's kernels for RMSNorm, which a build without CUDA puts together from others, are one each way."""
        from vime.trainer import norm

        fused: Any = getattr(norm, "_FusedRMSNorm", None)
        if fused is not None:
            fused.forward, fused.backward = (staticmethod(self._fused(way)) for way in (fused.forward, fused.backward))

    def _add(self, kind: str, *, flops: float = 0.0, rate: float = 1.0, num_bytes: float = 0.0) -> None:
        self.work.launches += 1
        self.work.flops += flops
        self.work.bytes += 0 if flops else num_bytes
        seconds = max(flops / rate, num_bytes / CARD.bytes_per_second)
        self.work.seconds[kind] = self.work.seconds.get(kind, 0.0) + seconds

    def _operation(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        namespace, _, name = func._schema.name.partition("::")
        returned = [value.alias_info for value in func._schema.returns]
        is_view = bool(returned) and all(info is not None and not info.is_write for info in returned)
        tensors = _on_device((args, kwargs))
        if is_view or namespace == "prim" or name.startswith(WITHOUT_KERNEL) or not (tensors or _on_device(result)):
            return
        if name in PRODUCTS:
            rows, columns = _operands(name, args)
            flops = 2.0 * rows.numel() * columns.shape[-1]
            share = CARD.grouped_share if name == "_grouped_mm" else CARD.product_share
            num_bytes = _bytes(tensors) + _bytes(_on_device(result))
            self._add("product", flops=flops, rate=share * CARD.peak_flops, num_bytes=num_bytes)
            return
        written = [
            value
            for argument, value in zip(func._schema.arguments, args)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        num_bytes = _bytes(tensors) + _bytes(_on_device(written) or _on_device(result))
        self._add("memory", num_bytes=num_bytes)

    def _fused(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled function is one kernel that reads its arguments and writes its results."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._paused += 1
            try:
                result = function(*args, **kwargs)
            finally:
                self._paused -= 1
            if not self._paused:
                self._add("memory", num_bytes=_bytes(_on_device((args, kwargs))) + _bytes(_on_device(result)))
            return result

        return call

    def _attention(self) -> Callable[..., Any]:
        import torch

        counting = self

        class Flash(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
                ctx.save_for_backward(query, key, value)
                counting._attended(query, key, 1.0)
                return torch.empty_like(query)

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                query, key, value = ctx.saved_tensors
                counting._attended(query, key, 2.5)
                return tuple(torch.empty_like(tensor) for tensor in (query, key, value))

        return lambda query, key, value, **_: Flash.apply(query, key, value)

    def _attended(self, query: Any, key: Any, times: float) -> None:
        flops = times * 2.0 * query.numel() * key.shape[2]  # two products under a causal mask: half of 2 · 2 · S² · H · D
        self._add("attention", flops=flops, rate=CARD.attention_share * CARD.peak_flops)

    def _collective(self, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            group, size = kwargs.get("group"), 1
            if group is not None and not isinstance(group, list):
                size = group.size()
            largest = max(_bytes([tensor]) for tensor in _on_device((args, kwargs)) or [])
            passes = 2.0 if kind == "all_reduce" else 1.0
            seconds = passes * largest * (size - 1) / size / CARD.link_bytes_per_second
            how = "beside" if kwargs.get("async_op") else "waited"
            self.work.launches += 1
            self.work.collectives[how] = self.work.collectives.get(how, 0.0) + seconds
            return original(*args, **kwargs)

        return call


def _operands(name: str, args: Any) -> tuple[Any, Any]:
    """Left and right factor: 2·left.numel()·right.shape[-1] operations, for grouped rows as well."""
    first = 1 if name.startswith(("addmm", "baddbmm")) else 0
    return args[first], args[first + 1]


def _on_device(values: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree

    found = {id(leaf): leaf for leaf in _pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)}
    return [tensor for tensor in found.values() if tensor.device.type == "cuda"]


def _bytes(tensors: list[Any]) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def count_here(recipe: Recipe) -> dict[str, Any]:
    """Work of a row and of an update, in this process; `PYTHONPATH` chooses the tree."""
    from tests.cuda import room
    from tests.cuda.peaks import write_shape

    counting = Counting()
    counting.install()
    from vime.preflight.compose import compose_run

    words = ["+method=memagent", "mode=plan", f"model={recipe.model}", f"cluster={recipe.cluster}", *recipe.words]
    config = compose_run(words).config
    config.algorithm.kl_coefficient = 0.0
    import vime.trainer.bridge as bridge
    import vime.trainer.engine as engine_module
    from vime.trainer.packing import sequence_flops

    with tempfile.TemporaryDirectory() as folder:
        write_shape(Path(folder), config.model)
        config.model.checkpoint = folder
        bridge.load_hugging_face = lambda *_, **__: None
        engine_module.tokenizer_problems = lambda *_, **__: []
        room.enter(config)
        counting.fuse_norms()
        engine = _engine_class(engine_module)(config)
    length = config.trainer.max_tokens_per_micro_batch // 2
    found: dict[int, Work] = {}
    with room.MODE:
        for number, rows in enumerate((1, 1, 3)):  # the first has states to make
            samples = _samples(length, 2 * rows * config.trainer.data_parallel_size)
            counting.work = Work()
            room.COUNTS.synchronizations.clear()
            engine.train([samples], number)
            counting.work.waits = sum(room.COUNTS.synchronizations.values())
            found[rows] = counting.work
    row = found[3].minus(found[1], 2)
    return {
        "row": dataclasses.asdict(row),
        "update": dataclasses.asdict(found[1].minus(row, 1)),
        "row_tokens": 2 * length * config.trainer.data_parallel_size,
        "row_flops": 2 * sequence_flops(config.model, length) * config.trainer.data_parallel_size,
        "layout": _layout(config.trainer),
        "tensor_parallel": config.trainer.tensor_parallel_size,
    }


def _engine_class(module: Any) -> Any:
    """The engine that trains on whole batches: in an earlier tree, the only one."""
    try:
        from vime.trainer.lockstep import LockstepEngine
    except ImportError:
        return module.Engine
    return LockstepEngine


def _samples(length: int, count: int) -> list[Any]:
    """Sequences of one length, a quarter of whose tokens are trained."""
    from vime.types import Sample

    trained = length // 4
    sample = Sample(
        tokens=[1] * length, loss_mask=[1] * trained, columns={"logprob": [-5.0] * trained, "advantage": 1.0, "weight": 0.01}
    )
    return [sample] * count


def _layout(trainer: Any) -> str:
    sizes = {"TP": "tensor", "DP": "data", "EP": "expert"}
    words = [f"{short} {size}" for short, name in sizes.items() if (size := getattr(trainer, f"{name}_parallel_size")) > 1]
    words += [f"{trainer.max_tokens_per_micro_batch:,} tokens", *(["recomputed"] if trainer.recompute else [])]
    return ", ".join(words)


def count(recipe: Recipe, tree: Path) -> dict[str, Any]:
    """Counts a recipe with the sources of a tree, in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(tree), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.cuda.speed", "--count", json.dumps(dataclasses.asdict(recipe))]
    done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{recipe}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def earlier_tree(folder: Path, commit: str) -> Path:
    """The sources of a commit, with this tree's room beside them."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    shutil.copytree(ROOT / "tests" / "cuda", folder / "tests" / "cuda", dirs_exist_ok=True)
    return folder


def cells(counted: dict[str, Any], recipe: Recipe, rows: int, *, in_one_queue: bool) -> dict[str, Any]:
    """The cells of one recipe under one tree."""
    row, update = Work(**counted["row"]), Work(**counted["update"])
    queue = in_one_queue and counted["tensor_parallel"] > 1
    seconds = rows * row.total(in_one_queue=queue) + update.total(in_one_queue=queue)
    return {
        "layout": counted["layout"],
        "launches": row.launches,
        "waits": row.waits,
        "petaflop": row.flops / 1e15,
        "gigabytes": row.bytes / 1e9,
        "products": row.seconds.get("product", 0.0),
        "attention": row.seconds.get("attention", 0.0),
        "memory": row.seconds.get("memory", 0.0),
        "collectives": row.collectives.get("waited", 0.0) + (0.0 if queue else row.collectives.get("beside", 0.0)),
        "row": row.total(in_one_queue=queue),
        "update": update.total(in_one_queue=queue),
        "tokens": rows * counted["row_tokens"] / seconds,
        "mfu": rows * counted["row_flops"] / (seconds * recipe.ranks * CARD.peak_flops),
    }


def page(results: list[dict[str, Any]], rows: int, commit: str) -> str:
    """`gpu_model.md`."""
    lines = [
        *INTRODUCTION.format(
            commit=commit, before=BEFORE, rows=rows, card=CARD, links=CARD.link_bytes_per_second / 1e9
        ).splitlines(),
        "",
        "| model | layout | tree | launches a row | waits a row | PFLOP a row | GB of other kernels | ms products | ms attention "
        "| ms other kernels | ms collectives | ms a row | ms an update | tokens/s modelled | MFU modelled |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for result in results:
        for tree in ("before", "after"):
            of = result[tree]
            times = (of[name] for name in ("products", "attention", "memory", "collectives", "row", "update"))
            lines.append(
                f"| {result['model']}, {result['ranks']} card{'s' * (result['ranks'] > 1)} | {of['layout']} | {tree} "
                f"| {of['launches']:,} | {of['waits']:,} | {of['petaflop']:.2f} | {of['gigabytes']:,.0f} | "
                + " | ".join(f"{value * 1e3:,.0f}" for value in times)
                + f" | {of['tokens']:,.0f} | {of['mfu']:.1%} |"
            )
    return "\n".join([*lines, ""])


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="folder for gpu_model.md and gpu_model.json; otherwise the page is printed")
    parser.add_argument("--before", default=BEFORE, help=f"commit of the first rows ({BEFORE})")
    parser.add_argument("--rows", type=int, default=16, help="rows per rank of an update (16)")
    parser.add_argument("--count", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count:
        fields = json.loads(options.count)
        found = count_here(Recipe(**fields | {"words": tuple(fields["words"])}))
        sys.stdout.write(json.dumps(found) + "\n")
        return
    results = []
    with tempfile.TemporaryDirectory() as folder:
        earlier = earlier_tree(Path(folder), options.before)
        for recipe in RECIPES:
            before, after = count(recipe, earlier), count(recipe, ROOT)
            results.append(
                {
                    **dataclasses.asdict(recipe),
                    "before": cells(before, recipe, options.rows, in_one_queue=False),
                    "after": cells(after, recipe, options.rows, in_one_queue=True),
                }
            )
            sys.stderr.write(f"{recipe.model}: {results[-1]['before']['mfu']:.3f} -> {results[-1]['after']['mfu']:.3f}\n")
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    text = page(results, options.rows, head.stdout.strip())
    if options.write is None:
        sys.stdout.write(text)
        return
    (options.write / "gpu_model.md").write_text(text)
    (options.write / "gpu_model.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
