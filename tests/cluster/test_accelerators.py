"""The cluster that fits this machine, and runs whose build, driver or devices do not match theirs."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from vime.cluster import accelerators
from vime.cluster.nodes import Node, Nodes
from vime.cluster.placement import Place
from vime.config import RunConfig
from vime.errors import ConfigError
from vime.preflight.compose import compose_run
from vime.preflight.rules import machine_requirements
from vime.trainer.rank import TrainerRank

NEW, OLD = "580.82.07", "550.54.15"


def machine_with(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, gpus: int, build: str, driver: str | None = NEW, visible: str | None = None
) -> None:
    """Simulates a machine: its devices, the distribution of vLLM that is installed, and its driver."""
    (folder / "dev").mkdir(exist_ok=True)
    for number in range(gpus):
        (folder / "dev" / f"nvidia{number}").touch()
    for name in ("nvidiactl", "nvidia-uvm", "null"):
        (folder / "dev" / name).touch()
    monkeypatch.setattr(accelerators, "DEVICES", folder / "dev")
    module = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\nGCC version: 13.3.0\n"
    (folder / "version").write_text(module if driver else "")
    monkeypatch.setattr(accelerators, "DRIVER", folder / "version")

    def version(name: str) -> str:
        if (name == "vllm") != (build == "gpu"):
            raise PackageNotFoundError(name)
        return "0.32.0"

    monkeypatch.setattr(accelerators, "version", version)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def config_of(*words: str) -> RunConfig:
    """The configuration of a command line; with a word of Hydra's own no tree of another test is taken."""
    return compose_run([*words, "hydra.verbose=false"]).config


@pytest.mark.parametrize(
    ("gpus", "build", "visible", "gpus_per_node", "name"),
    [
        (0, "cpu", None, 0, "laptop (this machine has no GPU)"),
        (1, "gpu", None, 1, "one_gpu (this machine has one GPU)"),
        (8, "gpu", None, 8, "one_node (this machine has 8 GPUs)"),
        (4, "gpu", None, 4, "one_node (this machine has 4 GPUs)"),
        (8, "gpu", "3,5", 2, "one_node (this machine has 2 GPUs)"),
        (8, "gpu", "", 0, "laptop (this machine has no GPU)"),
        (8, "cpu", None, 0, "laptop (the CPU build is installed, so 8 GPUs stay unused: VIME_SETUP=gpu make setup)"),
    ],
)
def test_without_a_word_the_cluster_is_that_of_the_machine(
    gpus: int, build: str, visible: str | None, gpus_per_node: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    machine_with(monkeypatch, tmp_path, gpus=gpus, build=build, visible=visible)
    cluster = config_of("+method=memagent").cluster
    assert (cluster.gpus_per_node, cluster.num_server_gpus, cluster.name) == (gpus_per_node, gpus_per_node, name)


@pytest.mark.parametrize("words", [(), ("model=qwen2.5-7b",), ("cluster=one_gpu", "model=qwen2.5-1.5b")])
def test_a_gpu_machine_starts_what_its_cards_carry(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    machine_with(monkeypatch, tmp_path, gpus=8, build="gpu")
    assert machine_requirements.gpus(config_of("+method=memagent", *words)) == []


@pytest.mark.parametrize(
    ("gpus", "build", "driver", "cluster", "said"),
    [
        (8, "cpu", NEW, "one_node", "the CPU build of vime is installed here: VIME_SETUP=gpu make setup"),
        (0, "gpu", None, "laptop", "this machine has no GPU, or VIME_SETUP=cpu make setup"),
        (8, "gpu", NEW, "laptop", "choose cluster=auto, or VIME_SETUP=cpu make setup"),
        (0, "gpu", None, "one_node", "this machine has 0 GPUs: choose cluster=laptop"),
        (8, "gpu", None, "one_node", "no NVIDIA driver answers here: install 580 or newer"),
        (8, "gpu", OLD, "one_node", "NVIDIA's driver is 550.54.15 here, but CUDA 13 needs 580 or newer"),
        (4, "gpu", NEW, "one_node", "this machine has 4 GPUs: choose cluster.gpus_per_node=4"),
        (1, "gpu", NEW, "one_node", "this machine has 1 GPU: choose cluster=one_gpu"),
    ],
)
def test_a_run_whose_build_driver_or_devices_are_not_those_of_its_cluster_is_refused_by_name(
    gpus: int, build: str, driver: str | None, cluster: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    machine_with(monkeypatch, tmp_path, gpus=gpus, build=build, driver=driver)
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = machine_requirements.gpus(config_of("+method=memagent", "model=qwen2.5-7b", f"cluster={cluster}"))
    assert problem.key == "cluster.gpus_per_node" and said in problem.remedy


def test_a_driver_in_a_container_is_asked_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accelerators, "DRIVER", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert accelerators.driver_version() is None
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho {OLD}\necho {OLD}\n")
    program.chmod(0o755)
    assert accelerators.driver_version() == OLD
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    assert accelerators.driver_version() is None


def test_an_actor_at_a_place_without_gpus_sees_none_of_those_that_are_there():
    nodes = Nodes(config_of("+method=memagent", "cluster=laptop"))
    nodes._nodes = [Node(id=None, host="127.0.0.1", gpus=())]  # pyright: ignore[reportPrivateUsage]
    options = nodes.options(Place(node=0, gpus=()), devices=True)
    assert options["runtime_env"]["env_vars"]["CUDA_VISIBLE_DEVICES"] == ""


def test_a_trainer_on_gpus_does_not_train_on_the_cores_where_there_are_none():
    config = config_of("+method=memagent", "cluster=one_gpu")
    config.output_dir = None  # a rank sends its process's output there, and this one is the tests'
    rank = TrainerRank({"actor": config}, 0)
    with pytest.raises(ConfigError, match=r"torch .* finds no GPU on 127\.0\.0\.1: the CPU build"):
        rank.init("127.0.0.1:1")
