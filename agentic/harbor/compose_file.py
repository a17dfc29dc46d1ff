"""Reads a docker-compose.yaml that does no more than a Dockerfile: one container, built from environment/ or the task's folder.

Everything else that compose can do (other containers, ports, privileges, volumes) is refused by its key.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from posixpath import normpath
from typing import Any

import yaml

from agentic.harbor.shell_commands import Refusal

FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_FOLDER = "${CONTEXT_DIR}"
"""Harbor's name for the folder environment/."""
_LOGS = ("${HOST_VERIFIER_LOGS_PATH}:", "${HOST_AGENT_LOGS_PATH}:", "${HOST_ARTIFACTS_PATH}:")
_SILENT = ("image", "command", "deploy", "init", "pull_policy", "stdin_open", "tty")
"""Keys of the container that change nothing here, as limits of its resources, which are those of the run."""
_CONTEXTS = {"environment": "environment", ".": ""}


def context_of(folder: Path) -> tuple[Path, list[Refusal]]:
    """The folder from which a task's Dockerfile copies, and what its compose file asks for besides."""
    refused, context = list[Refusal](), folder / "environment"
    for name in FILES:
        file = f"environment/{name}"
        if not (folder / file).exists():
            continue
        try:
            content = yaml.safe_load((folder / file).read_text(encoding="utf-8"))
            refused += [Refusal(file=file, text=key, reason=reason) for key, reason in _problems(content)]
            build = content["services"]["main"].get("build", _FOLDER)
            context = folder / _CONTEXTS.get(_below(build if isinstance(build, str) else build["context"]), "environment")
        except (yaml.YAMLError, KeyError, TypeError, AttributeError):
            refused.append(Refusal(file=file, reason="docker compose is not supported, but for one container named main"))
    return context, refused


def _problems(content: Any) -> Iterable[tuple[str, str]]:
    """Keys that ask for more than one container, each with the reason."""
    yield from ((key, "only one container is supported") for key in content if key not in ("services", "version", "name"))
    services: Mapping[str, Any] = content["services"]
    yield from ((f"services.{name}", "only the container main is supported") for name in services if name != "main")
    known = {"build": _build_problem, "environment": _environment_problem, "volumes": _volumes_problem}
    for key, value in services["main"].items():
        reason = known[key](value) if key in known else "" if key in _SILENT else "is not supported"
        if reason:
            yield f"services.main.{key}", reason


def _build_problem(build: Any) -> str:
    build = {"context": build} if isinstance(build, str) else build
    context = _below(build.get("context", _FOLDER))
    file = str(build.get("dockerfile", "Dockerfile"))
    place = _below(file) if file.startswith(_FOLDER) else normpath(f"{context}/{file}")
    if context not in _CONTEXTS or place != "environment/Dockerfile" or set(build) - {"context", "dockerfile"}:
        return "only environment/Dockerfile can be built, from environment/ or the task's folder"
    return ""


def _environment_problem(variables: Any) -> str:
    names = {str(entry).partition("=")[0] for entry in variables}
    return "" if names <= {"TEST_DIR"} else "use ENV in the Dockerfile, or environment.env in task.toml"


def _volumes_problem(volumes: Any) -> str:
    return "" if all(str(volume).startswith(_LOGS) for volume in volumes) else "only Harbor's own logs can be mounted"


def _below(path: str) -> str:
    """A path of the file, below the task's folder."""
    return normpath(f"environment/{path.removeprefix(_FOLDER).lstrip('/')}")
