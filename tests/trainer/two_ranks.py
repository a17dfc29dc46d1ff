"""One of two ranks of a trainer, started twice by `test_parallel.py`; goes through all layouts in one pair of processes.

    python two_ranks.py RANK JOB.json

The job lists layouts with their ports, the checkpoint, and where results go.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from vime.trainer import cpu_shim

cpu_shim.install()

from vime.trainer import parallel  # noqa: E402
from vime.trainer.engine import Engine  # noqa: E402
from vime.trainer.export import write_payload  # noqa: E402


def load_fixtures() -> Any:
    """The functions of `conftest.py`, which is no importable module."""
    spec = importlib.util.spec_from_file_location("trainer_fixtures", Path(__file__).with_name("conftest.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(fixtures: Any, job: dict[str, Any], layout: dict[str, Any], rank: int) -> dict[str, Any]:
    """Two updates, logprobs, export and a checkpoint under one layout."""
    folder = Path(job["folder"]) / layout["name"]
    config = fixtures.build_config(Path(layout["model"]), max_tokens_per_micro_batch=200, num_threads=1, **layout["trainer"])
    config.algorithm.kl_coefficient, config.algorithm.entropy_coefficient = 0.05, 0.01
    parallel.initialize(config.trainer, rank=rank, address=f"127.0.0.1:{layout['port']}", seed=0)
    engine = Engine(config)
    samples = fixtures.build_samples(13)
    first = engine.train([samples], 0)
    engine.save(folder / "checkpoint")
    second = engine.train([samples[:1]], 1)
    engine.load(folder / "checkpoint")
    again = engine.train([samples[:1]], 1)
    logprobs = engine.logprobs([s.tokens for s in samples], [s.response_length for s in samples], 1.0)
    engine.save_hugging_face(folder / "model")
    payload = write_payload(engine.export(), folder=folder / "weights", version=1, bucket_bytes=30_000)
    parallel.shutdown()
    return {
        "metrics": [first, second, again],
        "logprobs": {str(index): values for index, values in logprobs.items()},
        "digest": payload.digest,
        "num_files": len(payload.files),
    }


def main() -> None:
    """Runs every layout of the job and writes what this rank saw."""
    rank, job = int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    fixtures = load_fixtures()
    results = {layout["name"]: run(fixtures, job, layout, rank) for layout in job["layouts"]}
    (Path(job["folder"]) / f"rank{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
