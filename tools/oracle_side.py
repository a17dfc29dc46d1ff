"""One side of `oracle.py`: what this checkout recorded, in plain numbers, and recorded batches through this checkout's trainer.

    python tools/oracle_side.py rollouts RUN RECORDED.json
    python tools/oracle_side.py updates RECORDED.json FOLDER [WORD…]

Each checkout has its own, so that only the form of RECORDED.json is common to both: a list of rollouts in the order of their
files, `{"step": 1, "group_index": 0, "reward": 1.0, …, "samples": [{"advantage": 0.5, …, "columns": {"tokens": [5, 9], …}}]}`. Of
`updates`, the words compose the run's configuration, and FOLDER gets the gradients before each optimizer step, the weights after
the last, and metrics.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

OF_ROLLOUT = ("step", "group_index", "rollout_id", "dataset", "row", "reward", "metrics", "stop_reason", "status", "num_retries")
OF_SAMPLE = ("response", "num_prompt_tokens", "response_length", "reward", "metadata", "advantage", "remove_sample")


def rollouts(run: str, target: str) -> None:
    """Writes the records of a run."""
    import numpy as np

    from vime.types import COLUMNS, Column

    dtypes = {**COLUMNS, "trainer_log_probs": np.float32}

    def recorded(sample: dict[str, Any]) -> dict[str, Any]:
        columns = {name: _column(sample[name], dtype) for name, dtype in dtypes.items() if name in sample}
        return {key: sample.get(key) for key in OF_SAMPLE} | {"columns": columns}

    def _column(value: Any, dtype: Any) -> Any:
        return value if isinstance(value, int) else list(Column.read(value, dtype))  # a number stands for all of a column

    found: list[dict[str, Any]] = []
    for path in sorted((Path(run) / "rollouts").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found.append({key: row.get(key) for key in OF_ROLLOUT} | {"samples": list(map(recorded, row["samples"]))})
    Path(target).write_text(json.dumps(found))


def updates(recorded: str, target: str, *words: str) -> None:
    """Trains on the recorded batches, an optimizer step for each step of the run, and writes gradients, weights and metrics."""
    from vime.preflight.compose import compose_run
    from vime.rehearsal.shrink import shrink
    from vime.rehearse import furnish
    from vime.trainer import megatron_setup

    folder = Path(target)
    composed = compose_run([*words, f"output_dir={folder}"])
    config = composed.config
    if config.rehearse:
        shrunk = shrink(config)
        furnish(composed, shrunk)
        config = shrunk.config
    megatron_setup.set_up()
    from safetensors.torch import save_file

    from vime.trainer import parallel
    from vime.trainer.lockstep import LockstepEngine

    parallel.initialize(config.trainer, rank=0, seed=config.seed)
    engine = LockstepEngine(config)
    found: list[dict[str, float]] = []
    for number, batch in enumerate(_batches(Path(recorded))):
        engine.before_step = lambda number=number: save_file(_gradients(engine), folder / f"gradients_{number}.safetensors")
        found.append(engine.train([_sequences(batch)], number))
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in engine.export()}, folder / "weights.safetensors")
    (folder / "metrics.json").write_text(json.dumps(found))


def _batches(recorded: Path) -> list[list[dict[str, Any]]]:
    """The samples of each step that have an advantage."""
    steps: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for rollout in json.loads(recorded.read_text()):
        steps[rollout["step"]] += [sample for sample in rollout["samples"] if sample["advantage"]]
    return [batch for batch in steps.values() if batch]


def _sequences(batch: list[dict[str, Any]]) -> list[Any]:
    from vime.types import Sample

    weight = 1.0 / sum(sum(sample["columns"]["loss_mask"]) for sample in batch)
    return [
        Sample(
            tokens=sample["columns"]["tokens"],
            loss_mask=sample["columns"]["loss_mask"],
            columns={"logprob": sample["columns"]["rollout_log_probs"], "advantage": sample["advantage"], "weight": weight},
        )
        for sample in batch
    ]


def _gradients(engine: Any) -> dict[str, Any]:
    """Megatron's sums in float32, by parameter."""
    parameters: dict[str, Any] = dict(engine.model.named_parameters())
    return {name: parameter.main_grad.detach().clone().contiguous() for name, parameter in parameters.items()}


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder, which has programs of its own
    {"rollouts": rollouts, "updates": updates}[sys.argv[1]](*sys.argv[2:])
