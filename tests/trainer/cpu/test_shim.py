"""Megatron finds a device on the CPU."""

import torch

from vime.trainer.cpu import shim


def test_cuda_means_the_cpu() -> None:
    shim.install()
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
    shim.install()
    with torch.device("meta"):
        assert torch.zeros(2).device.type == torch.zeros(2).new_ones(2).device.type == "meta"
    assert torch.zeros(2, device="meta").device.type == torch.zeros(2).to("meta").device.type == "meta"
    assert torch.zeros(2).to(torch.ones(2, dtype=torch.int64)).dtype is torch.int64
