"""Matrix products on a CPU in which no row depends on the others, for servers of a run with `deterministic=true`.

Libraries choose by the number of rows how they multiply, and with it the order in which they sum. A request's logits then depend,
in their last bits, on what else is in the batch, and one bit changes a sampled token now and then. Here every product has exactly
`NUM_ROWS` rows: more are cut into several products, fewer are filled up with zeros. vLLM's attention on a CPU computes each
request for itself once its keys are not split among threads (`VLLM_CPU_ATTN_SPLIT_KV=0`), and all its other kernels work row by
row. `tools/bench_deterministic.py` measures that requests repeat, and what it costs.
"""

import os
from typing import Any

NUM_ROWS = 16
VARIABLE = "VIME_FIXED_PRODUCTS"
ENVIRONMENT = {VARIABLE: "1", "VLLM_CPU_ATTN_SPLIT_KV": "0"}
"""What makes a server on a CPU repeatable."""


def wanted() -> bool:
    """Whether this process is to multiply so."""
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
    """Raises ValueError for a server whose results still depend on the batch, as far as anybody has shown."""
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
            f"deterministic=true on a CPU: nobody has shown that {model.model} with {', '.join(wrong)} gives a request the same "
            "tokens whatever else is in the batch; serve it without, or switch deterministic off"
        )
