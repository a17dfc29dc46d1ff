"""Megatron finds on CUDA the names that it leaves out, and nowhere a package that it would use unasked."""

import subprocess
import sys
from pathlib import Path

import pytest

from vime.trainer import megatron_setup

ROUTE_AS_ON_CUDA = """
import torch

torch.cuda.is_available = lambda: True
from vime.trainer import megatron_setup

assert megatron_setup.set_up() is False, "with a CUDA device nothing pretends to be one"
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
        "from vime.trainer import megatron_setup; megatron_setup.set_up()",
        "import vime.trainer.engine, megatron.core.optimizer as optimizer",
        "assert optimizer.Adam is torch.optim.AdamW, optimizer.Adam",
    ]
    found = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_nothing_is_compiled_where_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(megatron_setup.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(megatron_setup.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(megatron_setup.shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    assert not megatron_setup.can_compile(), "Python's headers are missing"
    (tmp_path / "Python.h").touch()
    assert megatron_setup.can_compile()
    monkeypatch.setattr(megatron_setup.shutil, "which", lambda name: None)
    assert not megatron_setup.can_compile()
