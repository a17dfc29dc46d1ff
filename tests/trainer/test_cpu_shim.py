"""Megatron finds a device on the CPU, and on CUDA too the names that it leaves out and no package that it would use unasked."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vime.trainer import cpu_shim

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


@pytest.mark.slow
def test_experts_are_routed_on_cuda() -> None:
    found = subprocess.run([sys.executable, "-c", ROUTE_AS_ON_CUDA], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("on_cuda", [False, True])
def test_half_installed_packages_change_nothing(tmp_path: Path, on_cuda: bool) -> None:
    for package in ("transformer_engine", "apex", "flashinfer"):  # `pip install transformer-engine` brings one that does this
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"raise RuntimeError('{package} without its libraries')\n")
    lines = [
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})",
        f"import torch; torch.cuda.is_available = lambda: {on_cuda}",
        "from vime.trainer import cpu_shim; cpu_shim.install()",
        "import vime.trainer.engine, megatron.core.optimizer as optimizer",
        "assert optimizer.Adam is torch.optim.AdamW, optimizer.Adam",
    ]
    found = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_nothing_is_compiled_where_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(cpu_shim.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(cpu_shim.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(cpu_shim.shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    assert not cpu_shim.can_compile(), "Python's headers are missing"
    (tmp_path / "Python.h").touch()
    assert cpu_shim.can_compile()
    monkeypatch.setattr(cpu_shim.shutil, "which", lambda name: None)
    assert not cpu_shim.can_compile()


def test_cuda_means_the_cpu() -> None:
    cpu_shim.install()
    made = [
        torch.zeros(2, device="cuda"),
        torch.empty_like(torch.ones(2), device=torch.device("cuda", 0)),
        torch.ones(2).new_full((2,), 1.0, device="cuda"),
        torch.ones(2).to("cuda", torch.float64),
        torch.ones(2).to(device="cuda"),
        torch.ones(2).cuda(),
    ]
    assert {x.device.type for x in made} == {"cpu"}
    assert made[3].dtype is torch.float64 and made[0].type() == "torch.cuda.FloatTensor"
    assert made[0].type(torch.float64).dtype is torch.float64


def test_other_devices_stay_what_they_are() -> None:
    cpu_shim.install()
    with torch.device("meta"):
        assert torch.zeros(2).device.type == torch.zeros(2).new_ones(2).device.type == "meta"
    assert torch.zeros(2, device="meta").device.type == torch.zeros(2).to("meta").device.type == "meta"
    assert torch.zeros(2).to(torch.ones(2, dtype=torch.int64)).dtype is torch.int64
