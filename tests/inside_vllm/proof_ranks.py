"""Two tensor-parallel vLLM workers without engines around them: they load, and write what the proof says, case by case.

    python proof_ranks.py PORT CHECKPOINT FOLDER

They are forked from one process that has imported vLLM; rank i writes a line of JSON for each case into `rank{i}.jsonl`.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model

from tests.trainer.forked import fork_ranks
from vime.inside_vllm import exchange, shadow, transfer
from vime.inside_vllm.plugin import register

LAYER = "model.layers.1.self_attn"
QUERY, KEY, VALUE, OUTPUT = (f"{LAYER}.{part}_proj.weight" for part in "qkvo")
CASES: list[dict[str, str | None]] = [{}, {KEY: VALUE, VALUE: KEY}, {QUERY: None}, {OUTPUT: None}, {"lm_head.weight": None}]
"""Tensors that the loader gets in place of others; None is nothing."""


def run(rank: int, port: int, checkpoint: Path, folder: Path) -> None:
    """Runs the cases."""
    torch.set_num_threads(1)
    torch.accelerator.empty_cache = lambda: None  # as vLLM's CPU worker does
    register()
    exchange.install()
    arguments: dict[str, Any] = {
        "tensor_parallel_size": 2,
        "kv_cache_memory_bytes": 1 << 24,
        "block_size": 32,
        "max_model_len": 256,
    }
    made = EngineArgs(model=str(checkpoint), load_format="dummy", dtype="bfloat16", enforce_eager=True, **arguments)
    config = made.create_engine_config()
    config.parallel_config.rank = rank
    with set_current_vllm_config(config), (folder / f"rank{rank}.jsonl").open("w") as file:
        init_distributed_environment(2, rank, f"tcp://127.0.0.1:{port}", rank, "gloo")
        initialize_model_parallel(2)
        model: Any = get_model(vllm_config=config)
        engine = transfer.FileEngine(config.weight_transfer_config, config, torch.device("cpu"), model)
        kind, load = type(model), type(model).load_weights
        for case, in_pause in [(case, in_pause) for in_pause in (False, True) for case in CASES]:
            kind.load_weights = lambda model, weights, case=case: load(
                model, ((to, w) for name, w in weights if (to := case.get(name, name)) is not None)
            )
            transfer.can_shadow = (lambda *_, **__: False) if in_pause else shadow.can_shadow
            engine.expect_files([str(checkpoint / "model.safetensors")])
            while (report := engine.weight_report())["pending"]:
                time.sleep(0.01)
            assert report["is_loaded"] is not in_pause
            engine.start_weight_update()
            engine.receive_weights(transfer.FileUpdateInfo(files=[str(checkpoint / "model.safetensors")]))
            engine.finish_weight_update()
            file.write(json.dumps(engine.prove()) + "\n")


if __name__ == "__main__":
    port, checkpoint, folder = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    sys.exit(fork_ranks(2, lambda rank: run(rank, port, checkpoint, folder)))
