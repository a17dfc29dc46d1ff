"""A checkpoint loads under another layout of ranks: bitwise the same state, and the same steps afterwards."""

import importlib.util
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests import chosen
from vime.config import LoraTarget, Precision, RunConfig, TrainerConfig

Models = Callable[..., Path]
FIRST_STEPS, LAST_STEPS = 2, 2
KINDS: dict[str, tuple[str, bool, str]] = {
    "dense": ("qwen3", False, "float32"),
    "bfloat16": ("qwen3", False, "bfloat16"),
    "tied": ("qwen2", True, "float32"),
    "experts": ("qwen3_moe", False, "float32"),
    "linear": ("qwen3_5_text", False, "float32"),
    "sinks": ("gpt_oss", False, "float32"),
    "adapters": ("qwen3", False, "float32"),
}
"""Family, tied embeddings and precision."""
LORA = {"adapters": {"rank": 4, "targets": [target.value for target in LoraTarget]}}
LAYOUTS: dict[str, dict[str, int]] = {
    "single": {},
    "tensor": {"tensor_parallel_size": 2},
    "pipeline": {"pipeline_parallel_size": 2},
    "data": {"data_parallel_size": 2},
    "context": {"context_parallel_size": 2},
    "interleaved": {"pipeline_parallel_size": 2, "virtual_pipeline_parallel_size": 2},
    "expert": {"data_parallel_size": 2, "expert_parallel_size": 2},
}
CHANGES = [
    *[("dense", "tensor", other) for other in ("tensor", "pipeline", "data", "single", "context")],
    *[("dense", other, "tensor") for other in ("pipeline", "data", "single")],
    *[("bfloat16", "tensor", "data"), ("bfloat16", "data", "data"), ("bfloat16", "data", "single")],
    *[("tied", "tensor", "pipeline"), ("tied", "pipeline", "single"), ("tied", "single", "pipeline")],
    *[("experts", "pipeline", "single"), ("experts", "single", "expert"), ("experts", "expert", "pipeline")],
    *[("linear", "tensor", "pipeline"), ("linear", "pipeline", "single"), ("linear", "single", "tensor")],
    *[("sinks", "expert", "pipeline"), ("sinks", "pipeline", "single")],
    *[("tied", "interleaved", "tensor"), ("tied", "single", "interleaved")],
    *[("adapters", "tensor", other) for other in ("tensor", "single", "data")],
    *[("adapters", "data", "pipeline"), ("adapters", "single", "tensor")],
]
CONTAINED = {
    *(("dense", "tensor", "pipeline"), ("dense", "data", "tensor"), ("bfloat16", "data", "data"), ("tied", "pipeline", "single")),
    *(("experts", "single", "expert"), ("linear", "single", "tensor"), ("adapters", "data", "pipeline")),
    *(("tensor", "qwen3", False), ("tensor", "llama", True), ("pipeline", "qwen3_moe", False)),
}
"""Changes and exports whose parts stand in others as well; only the long tests make each."""
EXPORTS = [
    *(
        ("tensor", family, tied)
        for family, tied in (
            ("qwen2", True),
            ("qwen3", False),
            ("llama", True),
            ("qwen3_moe", False),
            ("gemma3_text", True),
            ("qwen3_5_text", False),
            ("gpt_oss", False),
        )
    ),
    *(("pipeline", family, tied) for family, tied in (("qwen2", True), ("qwen3_moe", False))),
]


def load_ranks_script() -> Any:
    """`checkpoint_ranks.py`, whose functions gather a state; used here for one rank."""
    spec = importlib.util.spec_from_file_location("checkpoint_ranks", Path(__file__).with_name("checkpoint_ranks.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Runs:
    """Results of every run of the module, by `<kind>-<layout>` for uninterrupted and `<kind>-<from>-<to>` for resumed ones."""

    def __init__(self, folder: Path, models: Models) -> None:
        self.folder, self._models = folder, models
        self.reports: dict[str, Any] = {}

    def task(self, kind: str, layout: str, source: str | None = None) -> dict[str, Any]:
        """The task of `checkpoint_ranks.py`."""
        family, tied, precision = KINDS[kind]
        name = f"{kind}-{layout}" if source is None else f"{kind}-{source}-{layout}"
        task = {
            "name": name,
            "folder": str(self.folder / name),
            "model": str(self._models(family, tied=tied)),
            "trainer": LAYOUTS[layout] | {"precision": precision},
            "lora": LORA.get(kind),
            "first_steps": FIRST_STEPS,
            "last_steps": LAST_STEPS,
        }
        return task | ({"save": True} if source is None else {"load": str(self.folder / f"{kind}-{source}" / "checkpoint")})

    def states(self, name: str) -> dict[str, dict[str, torch.Tensor]]:
        """Whole tensors before and after the last steps."""
        return torch.load(self.folder / name / "states.pt")


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest,
    models: Models,
    make_config: Callable[..., RunConfig],
    run_ranks: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
    world: None,
) -> Runs:
    """The runs of the chosen tests: those of one rank in this process, the others in a pair of processes each."""
    runs, values = Runs(tmp_path_factory.mktemp("resharding"), models), partial(chosen.values, request.session, request.module)
    changes = values("kind", "source", "target")
    sources = dict.fromkeys([("dense", "tensor"), *(change[:2] for change in changes), *values("kind", "source")])
    for kind in [kind for kind, source in sources if source == "single"]:
        run_single(runs, make_config, runs.task(kind, "single"))
    tasks = [runs.task(kind, source) for kind, source in sources if source != "single"]
    tasks += [runs.task(kind, target, source) for kind, source, target in changes if target != "single"]
    damaged = {"name": "damaged", "folder": str(runs.folder / "damaged"), "damage": "__1_0.distcp"}
    tasks.append(runs.task("dense", "data", "tensor") | damaged | {"first_steps": 0, "last_steps": 0})
    for layout, family, tied in values("layout", "family", "tied"):
        folder, model = runs.folder / f"export-{layout}-{family}", str(models(family, tied=tied))
        export = {"name": folder.name, "folder": str(folder), "model": model, "export": True}
        tasks.append(runs.task("dense", layout) | export | {"save": False, "first_steps": 0, "last_steps": 0})
    run_pair(runs, tasks, run_ranks)
    for kind, source, target in changes:
        if target == "single":
            run_single(runs, make_config, runs.task(kind, "single", source))
    return runs


def run_single(runs: Runs, make_config: Callable[..., RunConfig], task: dict[str, Any]) -> None:
    from vime.trainer.lockstep import LockstepEngine

    script = load_ranks_script()
    fixtures = script.load_fixtures()
    settings = task["trainer"] | {"max_tokens_per_micro_batch": 200, "weight_decay": 0.1}
    config = make_config(Path(task["model"]), lora=task["lora"], **settings)
    engine, folder = LockstepEngine(config), Path(task["folder"])
    if "load" in task:
        engine.load(Path(task["load"]))
    else:
        script.take_steps(engine, fixtures, 0, FIRST_STEPS)
        engine.save(folder / "checkpoint")
    folder.mkdir(exist_ok=True)
    before = script.whole_state(engine)
    metrics = script.take_steps(engine, fixtures, FIRST_STEPS, FIRST_STEPS + LAST_STEPS)
    torch.save({"before": before, "after": script.whole_state(engine)}, folder / "states.pt")
    runs.reports[task["name"]] = [{"metrics": metrics}]


def run_pair(runs: Runs, tasks: list[dict[str, Any]], run_ranks: Callable[..., None]) -> None:
    job = runs.folder / "job.json"
    job.write_text(json.dumps({"folder": str(runs.folder), "tasks": tasks}))
    run_ranks("checkpoint_ranks.py", job)
    for task in tasks:
        paths = sorted(runs.folder.glob(f"{task['name']}.rank?.json"))
        runs.reports[task["name"]] = [json.loads(path.read_text()) for path in paths]


def differing(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
    """Names of tensors that are not bitwise equal."""
    assert a.keys() == b.keys() and len(a) >= 20
    return [name for name in a if a[name].dtype != b[name].dtype or not torch.equal(a[name], b[name])]


@pytest.mark.parametrize(("kind", "source", "target"), chosen.parameters(CHANGES, CONTAINED))
def test_weights_masters_moments_and_step_are_bitwise_the_saved_ones(runs: Runs, kind: str, source: str, target: str) -> None:
    saved, loaded = runs.states(f"{kind}-{source}")["before"], runs.states(f"{kind}-{source}-{target}")["before"]
    assert int(saved["steps"]) == FIRST_STEPS
    assert all(tensor.abs().sum() > 0 for name, tensor in saved.items() if name.startswith("exp_avg_sq"))
    assert not differing(saved, loaded)


@pytest.mark.parametrize(("kind", "source", "target"), chosen.parameters(CHANGES, CONTAINED))
def test_the_next_steps_are_those_of_the_uninterrupted_run(runs: Runs, kind: str, source: str, target: str) -> None:
    whole, resumed = f"{kind}-{source}", f"{kind}-{source}-{target}"
    tolerance = 0.05 if KINDS[kind][2] == "bfloat16" else 2e-4  # layouts add up in another order, there to 8 bits
    for expected, found in zip(runs.reports[whole][0]["metrics"], runs.reports[resumed][0]["metrics"], strict=True):
        for key in ("train/loss", "train/grad_norm", "train/entropy"):
            if source == target:
                assert found[key] == expected[key]
            assert found[key] == pytest.approx(expected[key], rel=tolerance, abs=1e-5), key
    if source == target:
        assert not differing(runs.states(whole)["after"], runs.states(resumed)["after"])


def test_a_file_of_one_rank_that_is_damaged_is_named_on_all(runs: Runs) -> None:
    for report in runs.reports["damaged"]:
        assert "__1_0.distcp is damaged" in report["error"] and "move this checkpoint away" in report["error"]
    assert all(
        not report["error"] for name, both in runs.reports.items() if name != "damaged" for report in both if "error" in report
    )


@pytest.mark.parametrize(
    ("kind", "source"), [("dense", "tensor"), ("bfloat16", "data"), ("tied", "pipeline"), ("experts", "pipeline")]
)
def test_the_weights_of_any_layout_become_a_model_without_optimizer(runs: Runs, models: Models, kind: str, source: str) -> None:
    from vime.model.architecture import read_architecture
    from vime.trainer import bridge
    from vime.trainer.checkpoint import load_weights
    from vime.trainer.model import build_model

    family, tied, precision = KINDS[kind]
    architecture = read_architecture(models(family, tied=tied))
    model = build_model(architecture, TrainerConfig(precision=Precision(precision)))
    load_weights(runs.folder / f"{kind}-{source}" / "checkpoint", model)
    saved = runs.states(f"{kind}-{source}")["before"]
    found = {f"weight {name}": tensor.clone() for name, tensor in bridge.export_hugging_face(model, architecture)}
    assert not differing({name: tensor for name, tensor in saved.items() if name.startswith("weight")}, found)


@pytest.mark.parametrize(("layout", "family", "tied"), chosen.parameters(EXPORTS, CONTAINED))
def test_export_from_two_ranks_is_bitwise_the_import(runs: Runs, models: Models, layout: str, family: str, tied: bool) -> None:
    before = load_file(models(family, tied=tied) / "model.safetensors")
    after = load_file(runs.folder / f"export-{layout}-{family}" / "model" / "model.safetensors")
    assert not differing(before, after)
