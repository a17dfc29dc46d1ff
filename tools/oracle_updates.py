"""One side of `oracle.py`'s comparison of trainers: recorded batches through the engine of the checkout on `PYTHONPATH`.

    python tools/oracle_updates.py BATCHES.json FOLDER [WORD…]

BATCHES.json lists updates of sequences (`{"tokens": …, "loss_mask": …, "logprobs": …, "advantage": …}`), the words compose the
run's configuration. FOLDER gets the gradients that stand before each optimizer step, the weights after the last, and metrics.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.pop(0)  # this file's folder, which has programs of its own


def main() -> None:
    """Trains and writes."""
    from vime.preflight.compose import compose_run
    from vime.trainer import cpu_shim

    batches, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    config = compose_run(sys.argv[3:]).config
    cpu_shim.install()
    from safetensors.torch import save_file

    from vime.trainer import parallel
    from vime.trainer.lockstep import LockstepEngine

    parallel.initialize(config.trainer, rank=0, address=f"127.0.0.1:{parallel.free_port('127.0.0.1')}", seed=config.seed)
    engine = LockstepEngine(config)
    found = []
    for number, batch in enumerate(batches):
        engine.before_step = lambda number=number: save_file(_gradients(engine), folder / f"gradients_{number}.safetensors")
        found.append(engine.train([_samples(batch)], number))
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in engine.export()}, folder / "weights.safetensors")
    (folder / "metrics.json").write_text(json.dumps(found))


def _samples(batch: list[dict[str, Any]]) -> list[Any]:
    from vime.types import TrainSample

    weight = 1.0 / sum(sum(sequence["loss_mask"]) for sequence in batch)
    return [
        TrainSample(
            tokens=sequence["tokens"],
            loss_mask=sequence["loss_mask"],
            columns={"logprob": sequence["logprobs"], "advantage": sequence["advantage"], "weight": weight},
        )
        for sequence in batch
    ]


def _gradients(engine: Any) -> dict[str, Any]:
    """Megatron's sums in float32, by parameter."""
    parameters: dict[str, Any] = dict(engine.model.named_parameters())
    return {name: parameter.main_grad.detach().clone().contiguous() for name, parameter in parameters.items()}


if __name__ == "__main__":
    main()
