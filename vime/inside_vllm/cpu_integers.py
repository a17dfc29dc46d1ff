"""Products of 8-bit integers on a CPU without instructions for them (VNNI, AMX), where oneDNN's come out wrong.

Without these instructions oneDNN adds two products in 16 bits, which saturate: 255 · 127 + 128 · 127 does not fit. vLLM does not
ask for the processor, and a layer's outputs are then wrong by up to a fifth of the largest. Here such a product is computed in
float32, which holds sums of a thousand of these products exactly: integers and scales are those of W8A8, and so is the result.

Shape suffixes: N rows, I inputs, O outputs.
"""

from functools import cache
from typing import Any

from vime.weights.quantize import integers, largest, scale_of


def mend_integers() -> None:
    """Makes vLLM's kernel for integers multiply in float32 where oneDNN saturates."""
    from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUInt8ScaledMMLinearKernel as Kernel

    process = Kernel.process_weights_for_onednn

    def process_weights(self: Any, layer: Any) -> None:
        if self.config.is_static_input_scheme or not self.config.input_symmetric or not saturates():
            process(self, layer)
            return
        weight_name, scale_name, *_ = self.layer_param_names
        weight_IO = getattr(layer, weight_name).float().t().contiguous()
        scale_O = getattr(layer, scale_name).reshape(-1).float().clone()
        self.linear_method = lambda _, x_NI, bias_O=None: multiply(x_NI, weight_IO, scale_O, bias_O)

    Kernel.process_weights_for_onednn = process_weights


@cache
def saturates() -> bool:
    """True if oneDNN's product of large integers is not their product."""
    import torch
    from vllm import _custom_ops as ops

    size = 64
    weight_OI, scale_O1 = torch.full((size, size), 127, dtype=torch.int8), torch.ones(size, 1, dtype=torch.float32)
    handler = ops.create_onednn_scaled_mm(weight_OI.t(), scale_O1, torch.float32, True, False, 1)
    found_NO = torch.empty(1, size, dtype=torch.float32)
    ops.onednn_scaled_mm(handler, weight_OI[:1], found_NO, torch.ones(1, 1, dtype=torch.float32), None, None, None)
    return bool((found_NO != size * 127.0 * 127.0).any())


def multiply(x_NI: Any, weight_IO: Any, scale_O: Any, bias_O: Any = None) -> Any:
    """The outputs of a layer whose weights are integers (held as floats) times scales; each row of `x_NI` has its own scale."""
    rows_NI = x_NI.reshape(-1, x_NI.shape[-1]).float()
    scale_N1 = scale_of(largest(rows_NI))
    product_NO = (integers(rows_NI, scale_N1) @ weight_IO) * scale_N1 * scale_O
    if bias_O is not None:
        product_NO += bias_O
    return product_NO.to(x_NI.dtype).reshape(*x_NI.shape[:-1], -1)
