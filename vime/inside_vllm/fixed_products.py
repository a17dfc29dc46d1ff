"""Matrix products on a CPU whose rows do not depend on each other, for servers of a run with `deterministic=true`.

Libraries choose an algorithm, and with it the order of summation, by the number of rows. The last bits of a request's logits then
depend on the other requests in the batch, and one bit changes a sampled token now and then. Here every product has exactly
`NUM_ROWS` rows: more rows are split into several products, fewer are padded with zeros. vLLM's attention on a CPU computes each
request by itself if its keys are not split among threads (`VLLM_CPU_ATTN_SPLIT_KV=0`), and all its other kernels work row by
row. `tools/bench_deterministic.py` measures that requests repeat, and the cost.
"""

import os
from typing import Any

NUM_ROWS = 16
VARIABLE = "VIME_FIXED_PRODUCTS"
ENVIRONMENT = {VARIABLE: "1", "VLLM_CPU_ATTN_SPLIT_KV": "0"}
"""The environment of a server on a CPU whose replies are repeatable."""


def wanted() -> bool:
    """True if this process is to use fixed products."""
    return os.environ.get(VARIABLE) == "1"


def fix_products() -> None:
    """Makes vLLM's linear layers multiply by blocks of `NUM_ROWS` rows."""
    from vllm.model_executor.layers import utils

    multiply = utils.cpu_unquantized_gemm

    def multiply_by_blocks(layer: Any, x_NI: Any, weight: Any, bias: Any = None) -> Any:
        return in_blocks(lambda block_RI: multiply(layer, block_RI, weight, bias), x_NI)

    utils.cpu_unquantized_gemm = multiply_by_blocks


def in_blocks(multiply: Any, x_NI: Any) -> Any:
    """`multiply(x_NI)`, with any leading dimensions, from products of `NUM_ROWS` rows each."""
    import torch
    from torch.nn.functional import pad

    *leading, width = x_NI.shape
    rows_NI = x_NI.reshape(-1, width)
    num_rows = rows_NI.shape[0]
    if num_rows % NUM_ROWS:
        rows_NI = pad(rows_NI, (0, 0, 0, -num_rows % NUM_ROWS))
    blocks = [multiply(block_RI) for block_RI in rows_NI.split(NUM_ROWS)]
    product_NO = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
    return product_NO[:num_rows].reshape(*leading, product_NO.shape[-1])


def check_model(vllm_config: Any) -> None:
    """Raises ValueError for a server whose results may still depend on the batch."""
    model = vllm_config.model_config
    found = {
        "experts (mixture-of-experts)": model.is_moe,
        "quantized weights": model.is_quantized,
        "layers with a state (Mamba, linear attention)": model.has_inner_state,
        "tensor_parallel_size above 1": vllm_config.parallel_config.tensor_parallel_size > 1,
        "speculative decoding": vllm_config.speculative_config is not None,
        "adapters (LoRA)": vllm_config.lora_config is not None,
    }
    if wrong := [name for name, is_there in found.items() if is_there]:
        raise ValueError(
            f"deterministic=true on a CPU: {model.model} with {', '.join(wrong)} is not known to give a request the same tokens "
            "whatever else is in the batch; serve it without, or set deterministic=false"
        )
