"""The entry point `vllm.general_plugins`, which runs in every vLLM process and registers our weight transports there.

An engine that was started with random weights, or that waits for an adapter, marks its tokens with a special weight version,
until the first sync.

vLLM loads plugins several times in some processes, so registering twice is not an error.
"""

import logging
import os
import sys
from typing import Any

from vime.inside_vllm import cpu_speculation, early_exit, pillow_images
from vime.inside_vllm.adapter import adapt_requests
from vime.weights.payload import AWAITS_ADAPTER, RANDOM_WEIGHTS

logger = logging.getLogger(__name__)

ENGINES = {
    "shm": ("vime.inside_vllm.transfer", "FileEngine"),
    "vime_ipc": ("vime.inside_vllm.direct_transfer", "DigestIPCEngine"),
    "vime_nccl": ("vime.inside_vllm.direct_transfer", "DigestNCCLEngine"),
    "vime_gloo": ("vime.inside_vllm.direct_transfer", "DigestGlooEngine"),
}
"""Name of `--weight-transfer-config '{"backend": …}'` to module and class."""


def register() -> None:
    """Registers the weight transports, and asks the kernel for AMX state where the processor has it."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    for name, (module, engine) in ENGINES.items():
        try:
            WeightTransferEngineFactory.register_engine(name, module, engine)
        except ValueError:
            logger.debug("%s is registered already", name)
    pillow_images.take_pillow()
    label_random_weights()
    adapt_requests()
    cpu_speculation.mend_kernels()
    if early_exit.wanted():
        early_exit.shorten_draft()
    enable_amx()


def label_random_weights() -> None:
    """Makes an engine that was started without the weights of any version say so in the weight version of its tokens."""
    engine = getattr(sys.modules.get("vllm.v1.engine.core"), "EngineCore", None)
    if engine is None or hasattr(engine, "labels_random_weights"):  # no engine in this process, or labelled already
        return
    engine.labels_random_weights = True
    attach = engine._attach_weight_version

    def attach_or_warn(self: Any, outputs: Any) -> None:
        lacks_weights = self.vllm_config.load_config.load_format == "dummy" or AWAITS_ADAPTER in os.environ
        if self._weight_version == "default" and lacks_weights:
            self._weight_version = RANDOM_WEIGHTS
        attach(self, outputs)

    engine._attach_weight_version = attach_or_warn


def enable_amx() -> None:
    """Asks the kernel for AMX tiles, without which bfloat16 attention dies with SIGILL on AMX machines."""
    import torch

    if hasattr(torch.cpu, "_init_amx") and torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()
