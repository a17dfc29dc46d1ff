"""Two ranks of a trainer for each task of a job, forked from one process; started by `test_resharding.py`.

    python checkpoint_ranks.py JOB.json

A task has a layout, a model, and what to do: `load` a checkpoint, take `first_steps` steps, `save`, `export`, take
`last_steps` more. Rank 0 writes the whole state, gathered from both, before and after the last steps.
"""

import importlib.util
import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from vime.trainer import megatron_setup

megatron_setup.set_up()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402

from tests.trainer.forked import fork_ranks  # noqa: E402
from tests.trainer.ranks import meet  # noqa: E402
from vime.errors import CheckpointError  # noqa: E402
from vime.trainer import bridge, names, optimizer_state, parallel  # noqa: E402
from vime.trainer.lockstep import LockstepEngine  # noqa: E402


def load_fixtures() -> Any:
    """The functions of `conftest.py`, which is no importable module."""
    spec = importlib.util.spec_from_file_location("trainer_fixtures", Path(__file__).with_name("conftest.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gather_objects(value: Any, group: Any = None) -> list[Any]:
    """The value of every rank of a group."""
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, value, group=group)
    return gathered


def whole_state(engine: LockstepEngine) -> dict[str, torch.Tensor]:
    """Weights, masters and moments as whole tensors by their Hugging Face names, or those of adapters, and the number of updates.

    Put together from the ranks' memory without anything of Megatron's checkpoints.
    """
    expert_rank = parallel_state.get_expert_model_parallel_rank()
    mapped = bridge._mapped(engine.model, expert_rank=expert_rank, adapters=engine.config.trainer.lora.rank > 0)
    by_tensor = {id(parameter): mapping for mapping, parameter in mapped}
    own_part: dict[str, torch.Tensor] = {}
    for part in optimizer_state.parts(engine.optimizer):
        mapping = by_tensor[id(part.parameter)]
        kinds = {kind: _over_data_ranks(part, kind) for kind in optimizer_state.KINDS}
        for kind, own in (kinds | {"weight": part.parameter.detach().clone()}).items():
            shards = [own]
            if mapping.layout is not names.Layout.replicated and not mapping.is_expert:
                shards = gather_objects(own, parallel_state.get_tensor_model_parallel_group())
            full = names.unshard(mapping.layout, shards, engine.architecture)
            for name, tensor in zip(mapping.names, names.unfuse(mapping.layout, full, engine.architecture)):
                place = "" if mapping.place is None else f" {mapping.place}"
                own_part[f"{kind} {name}{place}"] = tensor.clone()
    state: dict[str, torch.Tensor] = {"steps": torch.tensor(optimizer_state.num_steps(engine.optimizer))}
    for other in gather_objects(own_part):
        state |= other
    if engine.architecture.tie_word_embeddings:
        for kind in (*optimizer_state.KINDS, "weight"):
            copy = state.pop(f"{kind} lm_head.weight", None)
            assert copy is None or torch.equal(copy, state[f"{kind} model.embed_tokens.weight"]), kind
    return state


def _over_data_ranks(part: Any, kind: str) -> torch.Tensor:
    if part.sharers is None:
        return part.tensors[kind].detach().clone()
    pieces = gather_objects((part.start, part.tensors[kind].clone() if part.tensors else None), part.sharers)
    owned = [(start, piece.flatten()) for start, piece in pieces if piece is not None]
    return torch.cat([piece for _, piece in sorted(owned, key=lambda pair: pair[0])]).view(part.parameter.shape)


def damaged_copy(source: Path, target: Path, name: str, rank: int) -> Path:
    """A copy of a checkpoint in which one file has one bit flipped."""
    if rank == 0:
        shutil.copytree(source, target)
        data = bytearray((target / name).read_bytes())
        data[len(data) // 2] ^= 1
        (target / name).write_bytes(data)
    dist.barrier()
    return target


def take_steps(engine: Any, fixtures: Any, first: int, last: int) -> list[dict[str, float]]:
    """Trains on the batches of these steps."""
    return [engine.train([fixtures.build_samples(6, seed=step)], step) for step in range(first, last)]


def run(fixtures: Any, task: dict[str, Any], rank: int) -> dict[str, Any]:
    """One task; its metrics, and the error of a checkpoint that cannot be loaded."""
    folder = Path(task["folder"])
    settings = task["trainer"] | {"max_tokens_per_micro_batch": 200, "num_threads": 1, "weight_decay": 0.1}
    config = fixtures.build_config(Path(task["model"]), lora=task["lora"], **settings)
    parallel.initialize(config.trainer, rank=rank, store=meet(rank, folder.with_suffix(".meeting")), seed=0)
    engine = LockstepEngine(config)
    report: dict[str, Any] = {"error": None}
    if task.get("export"):
        engine.save_hugging_face(folder / "model")
    if task.get("load"):
        source = Path(task["load"])
        if task.get("damage"):
            source = damaged_copy(source, folder / "damaged", task["damage"], rank)
        try:
            engine.load(source)
        except CheckpointError as error:
            report["error"] = str(error)
    elif task["first_steps"]:
        take_steps(engine, fixtures, 0, task["first_steps"])
    if task.get("save"):
        engine.begin_save(folder / "checkpoint")
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
    if task["last_steps"]:
        before = whole_state(engine)
        report["metrics"] = take_steps(engine, fixtures, task["first_steps"], task["first_steps"] + task["last_steps"])
        after = whole_state(engine)
        if rank == 0:
            torch.save({"before": before, "after": after}, folder / "states.pt")
    if task.get("save"):
        engine.finish_save()
    parallel.shutdown()
    return report


def main(rank: int, task: dict[str, Any], folder: Path) -> None:
    """Runs a task and writes what this rank saw."""
    (folder / f"{task['name']}.rank{rank}.json").write_text(json.dumps(run(load_fixtures(), task, rank)))


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    for task in job["tasks"]:
        if fork_ranks(2, partial(main, task=task, folder=Path(job["folder"]))):
            sys.exit(f"a rank has failed: {task['name']}")
