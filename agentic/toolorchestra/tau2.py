"""The tasks of τ²-bench (sierra-research/tau2-bench 1.0.1) as rows, and access to its package; `tau2_episode.py` plays the tasks.

The package is optional; README.md says how to install it. The package of the same name in package registries is a different one.
"""

import importlib
import importlib.util
import os
import random
from typing import Any

from agentic.toolorchestra.tau2_splits import SPLITS
from vime.errors import ConfigError, Problem

COMMIT = "fc0055dc4e0a316c3f83133267fbd6faaa770992"
"""Commit of the tag v1.0.1. Rewards have another basis in other versions: retail's communicate checks became assertions for a
judge."""
INSTALL = f'pip install --ignore-requires-python "tau2 @ git+https://github.com/sierra-research/tau2-bench@{COMMIT}"'
DOMAINS = ("mock", *SPLITS["base"])


def tau2_module(name: str) -> Any:
    """The module `tau2.<name>`. Raises ConfigError if the package is not installed."""
    if reason := why_absent():
        raise ConfigError([Problem(key="tau2", value="absent", remedy=reason)])
    return importlib.import_module(f"tau2.{name}")


def why_absent() -> str:
    """The reason why the package is unusable, or "". The tau2 of package registries, for chemistry, has no `tau2.registry`."""
    if importlib.util.find_spec("tau2") is None:
        return f"the package tau2 is not installed: {INSTALL}"
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # litellm would ask the network for its prices
    try:
        if importlib.util.find_spec("tau2.registry") is None:
            return f"the package tau2 is the one for chemistry: pip uninstall tau2, then {INSTALL}"
        importlib.import_module("tau2.registry")
        importlib.import_module("loguru").logger.disable("tau2")  # it logs every step
    except ImportError as error:
        return f"the package tau2 lacks {error.name or error}: install it with its dependencies, {INSTALL}"
    return ""


def load_tasks(domain: str, split: str = "base") -> list[Any]:
    """The tasks of a domain's split (base, train or test). Raises ConfigError if the package or its data are missing."""
    registry = tau2_module("registry").registry
    try:
        registry.get_env_constructor(domain)()
        return registry.get_tasks_loader(domain)(split)
    except (OSError, ValueError, KeyError, TypeError) as error:
        where = os.environ.get("TAU2_DATA_DIR", "the package's own")
        remedy = f"its data cannot be read ({type(error).__name__}: {error}); TAU2_DATA_DIR is {where}"
        raise ConfigError([Problem(key="tau2 domain", value=domain, remedy=remedy)]) from None


def availability() -> dict[str, str]:
    """The problem with each domain's data, "" where they are complete."""
    found: dict[str, str] = {}
    for domain in DOMAINS:
        try:
            num_tasks = len(load_tasks(domain))
            wanted = SPLITS["base"].get(domain, num_tasks)
            found[domain] = "" if num_tasks == wanted else f"{num_tasks} of {wanted} tasks"
        except ConfigError as error:
            found[domain] = error.problems[0].remedy
    return found


def needs_judge(task: Any) -> bool:
    """True if a task's reward needs a model to judge assertions about the conversation."""
    criteria = task.evaluation_criteria
    basis = {getattr(part, "value", part) for part in (criteria.reward_basis or [])} if criteria else set()
    return bool(criteria and criteria.nl_assertions) and "NL_ASSERTION" in basis


def rows(
    *, num_items: int | None, seed: int, domains: list[str], split: str = "base", without_judge: bool = False
) -> list[dict[str, Any]]:
    """Rows for `data.*.generator`: every task of the domains once, shuffled with the seed unless the split is base."""
    found = [
        {"prompt": str(task.user_scenario), "answer": task.id, "domain": domain, "task_id": task.id, "category": "func_call"}
        for domain in domains
        for task in load_tasks(domain, split)
        if not (without_judge and needs_judge(task))
    ]
    if split != "base":
        random.Random(seed).shuffle(found)
    return found[:num_items]
