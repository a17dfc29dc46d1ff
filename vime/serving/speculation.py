"""Speculative decoding of a served model's servers: vLLM's arguments, and the draft whose weights follow every sync."""

import json
from typing import Any

from vime.config import ServedModelConfig, SpeculationMethod
from vime.inside_vllm import early_exit


def speculative_config(model: ServedModelConfig, *, checkpoint: str, awaits_weights: bool) -> dict[str, Any] | None:
    """The value of `--speculative-config`; None without speculation.

    A draft model samples as the model does, and its probabilities are known to the rejection sampler: at temperature 1 more
    tokens are accepted than of its likeliest ones. First layers draft only where a server `awaits_weights`, theirs among them.
    """
    chosen = model.speculative
    if chosen.method is SpeculationMethod.none or (drafts_early(model) and not awaits_weights):
        return None
    if chosen.method is SpeculationMethod.ngram:
        lookup = {"prompt_lookup_min": chosen.prompt_lookup_min, "prompt_lookup_max": chosen.prompt_lookup_max}
        return {"method": "ngram", "num_speculative_tokens": chosen.num_tokens, **lookup}
    size = {"draft_tensor_parallel_size": model.tensor_parallel_size} if model.tensor_parallel_size > 1 else {}
    sampled = {"num_speculative_tokens": chosen.num_tokens, "draft_sample_method": "probabilistic"}
    return {"method": "draft_model", "model": checkpoint if drafts_early(model) else chosen.checkpoint, **sampled, **size}


def drafts_early(model: ServedModelConfig) -> bool:
    """True if the first layers of a model are its draft, which gets its weights by syncs."""
    return model.speculative.method is SpeculationMethod.early_exit


def draft_environment(model: ServedModelConfig, overrides: dict[str, Any]) -> dict[str, str]:
    """The environment of a server whose first layers draft; `overrides` changes the model's own `config.json`."""
    return {early_exit.VARIABLE: json.dumps(overrides | {"num_hidden_layers": model.speculative.num_layers})}


def has_frozen_draft(model: ServedModelConfig, arguments: dict[str, Any]) -> bool:
    """True if vLLM's arguments name a draft from a checkpoint: vLLM would give it random weights too, and no sync others."""
    speculative = arguments.get("speculative_config") or {}
    speculative = json.loads(speculative) if isinstance(speculative, str) else speculative
    return bool(speculative) and speculative.get("method") != SpeculationMethod.ngram.value and not drafts_early(model)
