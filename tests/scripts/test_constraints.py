"""The constraints of `scripts/constraints` are those of `pyproject.toml`, for every build and promised version of Python."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from vime.cluster.accelerators import OLDEST_DRIVER

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from constraints import BUILDS, CPU_EXCLUDES, PYTHONS, file_of, pins  # noqa: E402

EACH = [(build, python) for build in BUILDS for python in PYTHONS]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """The table `project` of `pyproject.toml`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def required(project: dict[str, Any], build: str, python: str) -> list[Requirement]:
    """The requirements of a build on one version of Python."""
    extras, wanted = project["optional-dependencies"], list(project["dependencies"])
    wanted += extras[build] + extras["dev"] + extras["launchers"]
    found = [Requirement(text) for text in wanted]
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    return [each for each in found if each.name != "vime" and (each.marker is None or each.marker.evaluate(environment))]


@pytest.mark.parametrize(("build", "python"), EACH)
def test_every_requirement_is_pinned_to_a_version_that_it_allows(build: str, python: str, project: dict[str, Any]):
    pinned, left_out = pins(file_of(build, python)), set(CPU_EXCLUDES) if build == "cpu" else set()
    unmet = [
        f"{requirement}: {pinned.get(canonicalize_name(requirement.name))}"
        for requirement in required(project, build, python)
        if requirement.name not in left_out
        and not requirement.specifier.contains(pinned.get(canonicalize_name(requirement.name), "0"), prereleases=True)
    ]
    assert not unmet, "make the constraints again: python scripts/constraints.py"
    assert not left_out & set(pinned)


@pytest.mark.parametrize(("build", "python"), EACH)
def test_every_pin_has_its_hashes_and_no_line_names_a_place(build: str, python: str):
    text = file_of(build, python).read_text(encoding="utf-8")
    packages = re.split(r"\n(?=\S)", text.strip())
    assert len(packages) == len(pins(file_of(build, python)))
    assert all(re.fullmatch(r"\S+==\S+(?: \\\n    --hash=sha256:[0-9a-f]{64})+", package) for package in packages)
    assert "//" not in text


@pytest.mark.parametrize("python", PYTHONS)
def test_the_packages_of_cuda_are_of_one_version(python: str):
    """`cuda-python` of CUDA 12 overwrites the modules of `cuda-bindings` 13, and then Megatron-core cannot be imported."""
    pinned = pins(file_of("gpu", python))
    assert pinned["cuda-python"].split(".")[:2] == pinned["cuda-bindings"].split(".")[:2]


def test_no_version_of_python_is_promised_that_a_package_excludes(project: dict[str, Any]):
    promised = SpecifierSet(project["requires-python"])
    assert [python for python in (f"3.{minor}" for minor in range(8, 20)) if f"{python}.1" in promised] == list(PYTHONS)
    pinned = pins(file_of("cpu", PYTHONS[0]))
    for each in distributions():
        if each.name.lower().replace("_", "-") in pinned and (wants := each.metadata["Requires-Python"]):
            assert f"{PYTHONS[0]}.1" in SpecifierSet(wants), each.name


def test_the_set_up_knows_the_same_versions(project: dict[str, Any]):
    words = 'eval "$(grep -E "^(PYTHONS|OLDEST_DRIVER|TORCH|COMPANIONS)=" scripts/setup.sh)"; '
    words += "echo ${PYTHONS[*]} $OLDEST_DRIVER torch ${COMPANIONS[*]} torch==$TORCH"
    said = subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert said == [*PYTHONS, str(OLDEST_DRIVER), *CPU_EXCLUDES, said[-1]]
    assert all(said[-1] in project["optional-dependencies"][build] for build in BUILDS)
