"""The entry point `vllm.general_plugins`: runs in every vLLM process and teaches it our weight transports.

vLLM loads plugins several times in some processes, so registering twice is no error.
"""

import logging

logger = logging.getLogger(__name__)

ENGINES = {
    "shm": ("vime.serving.transfer", "FileEngine"),
    "vime_ipc": ("vime.serving.direct_transfer", "DigestIPCEngine"),
    "vime_nccl": ("vime.serving.direct_transfer", "DigestNCCLEngine"),
    "vime_gloo": ("vime.serving.direct_transfer", "DigestGlooEngine"),
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
    enable_amx()


def enable_amx() -> None:
    """Lets this process use AMX tiles; without the request, bfloat16 attention dies with SIGILL on AMX machines."""
    import torch

    if hasattr(torch.cpu, "_init_amx") and torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()
