"""A method from an installed wheel, with its own schema, hooks and `conf/`, beside ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "echo-agent"
version = "1.0"

[project.entry-points."vime.methods"]
echo_agent = "echo_agent.config"

[tool.setuptools]
packages = ["echo_agent"]

[tool.setuptools.package-data]
echo_agent = ["conf/**/*.yaml", "questions.jsonl"]
"""
CONFIG = '''
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore

from vime.config import MethodConfig


@dataclass(kw_only=True, slots=True)
class EchoConfig(MethodConfig):
    """Its own settings."""

    name: str = "echo_agent"
    generate: str = "echo_agent.agent.generate"
    reward: str | None = "echo_agent.agent.reward"
    max_tokens: int = 16


ConfigStore.instance().store(group="schema/method", name="echo_agent", node=EchoConfig)
'''
AGENT = """
async def generate(context, sample, sampling):
    await context.models["actor"].chat(sample.prompt, max_tokens=context.config.method.max_tokens)
    return context.samples(sample)


async def reward(context, samples):
    return float(samples[-1].label[0] in samples[-1].response)
"""
METHOD = "# @package _global_\ndefaults:\n  - override /preset: echo_agent\n"
PRESET = """# @package _global_
defaults:
  - /schema/method/echo_agent@method
  - _self_
  - optional none: ${model}
name: echo_agent_${model.name}
data:
  train:
    path: ${package_folder:echo_agent,questions.jsonl}
"""
FILES = {
    "pyproject.toml": PROJECT,
    "echo_agent/__init__.py": "",
    "echo_agent/config.py": CONFIG,
    "echo_agent/agent.py": AGENT,
    "echo_agent/questions.jsonl": '{"question": "Who owns Halin? Answer in a box.", "answer": "boxed"}\n',
    "echo_agent/conf/method/echo_agent.yaml": METHOD,
    "echo_agent/conf/preset/echo_agent.yaml": PRESET,
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel of the method is installed."""
    source, wheels, site = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "site"))
    for name, text in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    built = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
    subprocess.run(built, check=True, capture_output=True, timeout=300)
    (wheel,) = wheels.glob("echo_agent-*.whl")
    installing = [*pip, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(installing, check=True, capture_output=True, timeout=300)
    return site


def program(*words: str, site: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The program in an environment that has the wheel."""
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "vime.run", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_a_method_of_an_installed_wheel_is_there_with_its_settings_and_data(installed: Path, tmp_path: Path):
    shown = program("+method=echo_agent", "method.max_tokens=8", "mode=plan", site=installed, folder=tmp_path)
    assert shown.returncode == 0 and "Nothing was started. Remove mode=plan" in shown.stdout, shown.stderr
    config = program("+method=echo_agent", "--cfg", "job", site=installed, folder=tmp_path).stdout
    assert "max_tokens: 16" in config and "name: echo_agent" in config


def test_its_name_is_offered_and_its_settings_are_checked(installed: Path, tmp_path: Path):
    shown = program("+method=echo_agnet", site=installed, folder=tmp_path)
    assert shown.returncode == 2 and "did you mean +method=echo_agent?" in shown.stderr
    shown = program("+method=echo_agent", "method.max_token=8", site=installed, folder=tmp_path)
    assert shown.returncode == 2 and "did you mean method.max_tokens?" in shown.stderr


def test_a_method_that_cannot_be_imported_is_named_with_its_package(installed: Path, tmp_path: Path):
    broken = tmp_path / "broken"
    (broken / "broken-1.0.dist-info").mkdir(parents=True)
    (broken / "broken-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "broken-1.0.dist-info" / "entry_points.txt").write_text("[vime.methods]\nbroken = no_such_module\n")
    shown = program("+method=memagent", "mode=plan", site=broken, folder=tmp_path)
    assert shown.returncode == 2 and "uninstall the package broken" in shown.stderr and "Traceback" not in shown.stderr
