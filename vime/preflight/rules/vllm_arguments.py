"""Arguments of vLLM's servers must be known to vLLM's own parser; otherwise a server would fail with pages of usage."""

import difflib

from vime.config import RunConfig
from vime.errors import Problem
from vime.serving.known_flags import known_flags

SHIPPED = {"block_size"}
"""Arguments of the options in `conf/`; they need no check by the parser."""


def arguments(config: RunConfig) -> list[Problem]:
    """Every argument has a name that vLLM's parser knows, and one of its values where it has a choice."""
    given = {f"serving.models.{name}.vllm_args": model.vllm_args for name, model in config.serving.models.items()}
    for name, model in config.serving.models.items():
        given |= {f"serving.models.{name}.groups.{group}.vllm_args": own.vllm_args for group, own in model.groups.items()}
    asked = [(key, argument, value) for key, found in given.items() for argument, value in found.items()]
    asked = [(key, argument, value) for key, argument, value in asked if argument.replace("-", "_") not in SHIPPED]
    known = known_flags() if asked else None
    if known is None:
        return []
    problems = []
    for key, argument, value in asked:
        name = argument.replace("-", "_")
        if name not in known:
            match = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"; did you mean {match[0]}?" if match else ""
            problems.append(Problem(key=f"{key}.{argument}", value=value, remedy=f"vLLM has no such argument{hint}"))
        elif (choices := known[name]) and isinstance(value, str) and value not in choices:
            remedy = f"vLLM has no such choice: use one of {', '.join(choices)}"
            problems.append(Problem(key=f"{key}.{argument}", value=value, remedy=remedy))
    return problems
