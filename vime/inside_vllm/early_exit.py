"""A draft for speculative decoding that is the served model's own first layers, with its norm and head (arXiv 2404.16710).

vLLM loads it as a draft model of its own from the model's checkpoint, with fewer layers. A version of the weights holds all of
the draft's tensors, so the transport loads and proves it with the model (`vime.inside_vllm.transfer`). vLLM's own way, a second
weight update after `/start_draft_weight_update`, would send these tensors twice, and would prolong the pause by four messages.
"""

import json
import os
import re
from typing import Any

VARIABLE = "VIME_EARLY_EXIT"
"""Environment variable of a server with such a draft: the fields in which the draft's `config.json` differs from the
checkpoint's, in JSON."""
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_original: Any = None


def wanted() -> bool:
    """True if this process serves a model whose first layers are its draft."""
    return VARIABLE in os.environ


def shorten_draft() -> None:
    """Makes vLLM build the draft with these fields; before it reads the draft's configuration."""
    from vllm.config.speculative import SpeculativeConfig

    global _original
    if _original is None:
        _original = SpeculativeConfig.hf_config_override
        SpeculativeConfig.hf_config_override = staticmethod(_shortened)


def is_drafts(name: str, *, num_layers: int) -> bool:
    """True if the draft has the tensor of this name, as everything outside of layers and the first layers have."""
    found = _LAYER.search(name)
    return found is None or int(found[1]) < num_layers


def _shortened(hf_config: Any) -> Any:
    """The draft's configuration; vLLM pickles this function by its name."""
    fields = json.loads(os.environ[VARIABLE])
    hf_config = _original(hf_config)
    hf_config.update(fields)
    if isinstance(kinds := getattr(hf_config, "layer_types", None), list):
        hf_config.layer_types = kinds[: fields["num_hidden_layers"]]
    return hf_config
