"""`scripts/setup.sh` on machines that stand-in programs describe: what does not fit is said before anything is fetched."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = (
    "bash",
    "env",
    "sh",
    "dirname",
    "cat",
    "cut",
    "grep",
    "head",
    "tail",
    "mkdir",
    "sha256sum",
    "sleep",
    "sed",
    "id",
    "uname",
)
CARD = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)"


class Machine:
    """A checkout on a machine with no programs but those that a test adds; their calls are recorded in `calls`."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.programs, self.calls = folder / "checkout", folder / "bin", folder / "calls"
        self.programs.mkdir(parents=True)
        shutil.copytree(ROOT / "scripts", self.checkout / "scripts")
        shutil.copy(ROOT / "pyproject.toml", self.checkout)
        for name in SYSTEM:
            (self.programs / name).symlink_to(str(shutil.which(name)))
        for name in ("bwrap", "git", "patch", "gcc"):
            self.add(name, "exit 0")
        self.python("3.11")

    def add(self, name: str, script: str) -> None:
        """Puts a program in the place of another."""
        file = self.programs / name
        file.unlink(missing_ok=True)
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n{script}\n')
        file.chmod(0o755)

    def python(self, version: str, *, name: str = "", lacks: str = "nothing") -> None:
        """An interpreter of a version that can do all that is asked, but for what mentions `lacks`, and cannot make a `.venv`."""
        script = (
            f'case "$*" in *version_info*) echo {version};; *"{lacks}"*) exit 1;; *"-m venv"*) echo no venv here; exit 1;; esac'
        )
        self.add(name or f"python{version}", script)

    def remove(self, *names: str) -> None:
        """Takes programs away."""
        for name in names:
            (self.programs / name).unlink()

    def card(self, driver: str) -> None:
        """A GPU with a driver."""
        self.add("nvidia-smi", f'case "$*" in -L) echo "{CARD}";; *) echo {driver};; esac')

    def set_up(self, **environment: str) -> str:
        """Runs the set-up, which ends at the latest where `.venv` cannot be made; returns what it said."""
        ran = subprocess.run(
            ["bash", "scripts/setup.sh"],
            cwd=self.checkout,
            env={"PATH": str(self.programs), "HOME": str(self.checkout)} | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 1
        return ran.stdout + ran.stderr

    def refused(self, **environment: str) -> str:
        """The one sentence with which the set-up ends before it makes or fetches anything."""
        said = self.set_up(**environment).strip().splitlines()
        assert len(said) == 1 and said[0].startswith("setup failed: ")
        asked = self.calls.read_text() if self.calls.exists() else ""
        assert " -m venv" not in asked and "-m pip" not in asked and "apt-get" not in asked
        assert not (self.checkout / ".venv").exists()
        return said[0]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_a_gpu_the_cpu_build_is_chosen(machine: Machine):
    assert "no venv here" in machine.set_up()


def test_with_a_gpu_and_a_new_driver_the_gpu_build_begins(machine: Machine):
    machine.card("580.82.07")
    said = machine.set_up()
    assert "Creating .venv" in said and "driver" not in said


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.14"])
def test_an_interpreter_out_of_range_is_named(machine: Machine, version: str):
    machine.remove("python3.11")
    machine.python(version, name="python3")
    said = machine.refused()
    assert f"Python 3.11 3.12 3.13 is needed, but python3 is {version}" in said and "uv python install" in said


def test_a_machine_without_any_interpreter_is_told_so(machine: Machine):
    machine.remove("python3.11")
    assert "python3 is not there" in machine.refused()


def test_the_interpreter_that_was_named_is_the_only_one_that_is_looked_at(machine: Machine):
    machine.python("3.10", name="mine")
    assert "but mine is 3.10" in machine.refused(PYTHON="mine")


@pytest.mark.parametrize("driver", ["550.54.15", "575.57.08", "470.256.02"])
def test_an_old_driver_is_named(machine: Machine, driver: str):
    machine.card(driver)
    said = machine.refused()
    assert f"driver is {driver} here" in said and "CUDA 13, which needs 580 or newer" in said


def test_for_other_machines_a_build_is_made_beside_an_old_driver(machine: Machine):
    machine.card("550.54.15")
    assert "runs on other machines only" in machine.set_up(VIME_SETUP="gpu")


@pytest.mark.parametrize(
    "answer",
    ["NVIDIA-SMI has failed because it could not communicate with the driver", "Driver/library version mismatch", "No devices"],
)
def test_a_driver_that_does_not_answer_is_no_machine_without_gpus(machine: Machine, answer: str):
    machine.add("nvidia-smi", f"echo '{answer}'; exit 9")
    said = machine.refused()
    assert answer in said and "VIME_SETUP=cpu" in said


def test_on_a_login_node_the_gpu_build_begins_without_a_driver(machine: Machine):
    assert "No driver answers here" in machine.set_up(VIME_SETUP="gpu")


def test_headers_and_compiler_are_asked_for_where_kernels_are_compiled(machine: Machine):
    machine.card("580.82.07")
    machine.python("3.11", lacks="Python.h")
    machine.remove("gcc")
    machine.add("id", "echo 1000")
    assert "sudo apt-get install python3.11-dev g++" in machine.refused()
    assert "no venv here" in machine.set_up(VIME_SETUP="cpu")


def test_an_interpreter_without_venv_is_told_by_its_package(machine: Machine):
    machine.python("3.11", lacks="ensurepip")
    machine.add("id", "echo 1000")
    assert "sudo apt-get install python3.11-venv" in machine.refused()


def test_root_gets_what_is_missing_from_the_system(machine: Machine):
    machine.python("3.11", lacks="ensurepip")
    machine.add("id", "echo 0")
    machine.add("apt-get", "exit 0")
    assert "no venv here" in machine.set_up()
    assert "apt-get install -y python3.11-venv" in machine.calls.read_text()


def test_an_environment_of_an_older_interpreter_is_not_filled_further(machine: Machine):
    (machine.checkout / ".venv" / "bin").mkdir(parents=True)
    machine.python("3.10", name="old")
    (machine.checkout / ".venv" / "bin" / "python").symlink_to(machine.programs / "old")
    assert ".venv has Python 3.10" in machine.set_up()
