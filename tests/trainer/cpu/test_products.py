"""Matrix products by oneDNN: only where the rule says so, equal to PyTorch's to rounding, exact from run to run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vime.config import CpuProducts, RunConfig
from vime.trainer.cpu import products
from vime.types import Sample

AMD = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512dq"
AMD_WITHOUT_AVX512 = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2"
INTEL = "vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx512f avx512dq amx_bf16"


@pytest.fixture
def onednn() -> Iterator[None]:
    assert products.install(CpuProducts.onednn)
    yield
    products.uninstall()


@pytest.mark.parametrize(("processor", "expected"), [(AMD, True), (AMD_WITHOUT_AVX512, False), (INTEL, False), ("", False)])
def test_the_processor_decides_unless_the_configuration_does(processor: str, expected: bool) -> None:
    assert products.uses_onednn(CpuProducts.auto, processor) is expected
    assert products.uses_onednn(CpuProducts.onednn, processor)
    assert not products.uses_onednn(CpuProducts.pytorch, processor)


@pytest.mark.parametrize("sizes", [(64, 48, 96), (33, 257, 17), (5, 64, 64), (64, 64, 1), (1, 1, 1), (0, 32, 32), (32, 0, 32)])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
def test_products_and_gradients_are_those_of_float64(onednn: None, sizes: tuple[int, int, int], transposed: str) -> None:
    rows, inner, columns = sizes
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(inner, rows, generator=generator).t() if "a" in transposed else torch.randn(rows, inner, generator=generator)
    b = (
        torch.randn(columns, inner, generator=generator).t()
        if "b" in transposed
        else torch.randn(inner, columns, generator=generator)
    )
    a, b = a.requires_grad_(), b.requires_grad_()
    wide_a, wide_b = (x.detach().double().requires_grad_() for x in (a, b))
    found, expected = a @ b, wide_a @ wide_b
    weight = torch.randn(rows, columns, generator=generator)
    (found * weight).sum().backward()
    (expected * weight.double()).sum().backward()
    for ours, theirs in ((found, expected), (a.grad, wide_a.grad), (b.grad, wide_b.grad)):
        assert ours is not None and theirs is not None
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-4)


def test_products_go_to_onednn_while_it_is_installed_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    multiply = products._multiply
    monkeypatch.setattr(products, "_multiply", lambda a, b: [sizes.append(a.shape), multiply(a, b)][1])
    a, b = torch.randn(32, 32), torch.randn(32, 32)
    assert products.install(CpuProducts.onednn) and products.install(CpuProducts.onednn)
    torch.mm(a, b)
    assert not products.install(CpuProducts.pytorch)
    torch.mm(a, b)
    assert len(sizes) == 1


def test_other_types_are_untouched(onednn: None) -> None:
    a, b = torch.randn(32, 32, dtype=torch.float64), torch.randn(32, 32, dtype=torch.float64)
    with_onednn = [x @ y for x, y in ((a, b), (a.bfloat16(), b.bfloat16()), (a.long(), b.long()))]
    products.uninstall()
    assert all(
        torch.equal(x @ y, z) for (x, y), z in zip(((a, b), (a.bfloat16(), b.bfloat16()), (a.long(), b.long())), with_onednn)
    )


def test_training_agrees_to_rounding_and_repeats_and_resumes_bitwise(
    engine: Callable[[RunConfig], Any],
    models: Callable[..., Path],
    make_config: Callable[..., RunConfig],
    make_samples: Callable[..., list[Sample]],
    tmp_path: Path,
) -> None:
    batches = [make_samples(9, seed=seed) for seed in range(4)]

    def train(choice: CpuProducts, *, restart: bool = False) -> dict[str, torch.Tensor]:
        products.install(choice)
        config = make_config(models("qwen2"), max_tokens_per_micro_batch=128)
        trained = engine(config)
        for step, samples in enumerate(batches):
            if restart and step == 2:
                trained.save(tmp_path / "checkpoint")
                trained = engine(config)
                trained.load(tmp_path / "checkpoint")
            trained.train([samples], step)
        products.uninstall()
        return {name: tensor.clone() for name, tensor in trained.export()}

    plain, first, second = train(CpuProducts.pytorch), train(CpuProducts.onednn), train(CpuProducts.onednn, restart=True)
    for name in plain:
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], plain[name], rtol=1e-3, atol=2e-4)
