"""What Megatron needs besides a device: names that it leaves out without Transformer Engine, on CUDA as on the CPU."""

import subprocess
import sys

ROUTE_AS_ON_CUDA = """
import torch

torch.cuda.is_available = lambda: True
from vime.trainer import cpu_shim

assert cpu_shim.install() is False, "with a CUDA device nothing pretends to be one"
torch.cuda.is_available = lambda: False
from megatron.core.transformer.moe.moe_utils import router_gating_linear

tokens, weight = torch.randn(5, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
logits = router_gating_linear(tokens, weight, None, torch.float32)
logits.sum().backward()
torch.testing.assert_close(logits, tokens @ weight.t())
torch.testing.assert_close(weight.grad, tokens.detach().sum(0).expand(3, 8))
"""


def test_experts_are_routed_on_cuda_without_transformer_engine() -> None:
    found = subprocess.run([sys.executable, "-c", ROUTE_AS_ON_CUDA], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
