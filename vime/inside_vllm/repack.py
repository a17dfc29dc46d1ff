"""Packs weights again after an update on a CPU, where vLLM packs them only when it starts."""

from typing import Any


def repack_embeddings(model: Any) -> None:
    """Packs the weights of embedding and head again, which vLLM does for linear layers only.

    A tied head is not in the weight stream; on a CPU it multiplies by a packed copy, which would stay the old one in silence.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding):
            module.quant_method.process_weights_after_loading(module)


def repack_experts(model: Any) -> None:
    """Packs the experts' weights again: on a CPU vLLM does so when it starts, but not when weights are loaded later."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, RoutedExperts) and (kernel := getattr(module.quant_method, "moe_kernel", None)) is not None:
            kernel.fused_experts.process_weights_after_loading(module)


def repack_on_cpu(model: Any) -> None:
    """Packs again everything that vLLM does not pack after an update."""
    repack_embeddings(model)
    repack_experts(model)
