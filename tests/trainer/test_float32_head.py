"""The logprobs that servers are compared with: in bfloat16 the head's products are not rounded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vime.config import RunConfig


@pytest.mark.parametrize("tied", [False, True])
def test_in_bfloat16_the_head_of_the_probes_logprobs_is_in_float32(
    tied: bool,
    engine: Callable[[RunConfig], Any],
    make_config: Callable[..., RunConfig],
    models: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
):
    from vime.trainer import model as model_module  # Megatron takes seconds to import, also where no test of it runs

    made, seen = engine(make_config(models("qwen2", tied=tied), precision="bfloat16")), []
    logits = model_module.PackedModel.logits

    def seen_logits(self: Any, hidden: torch.Tensor, **options: Any) -> torch.Tensor:
        found = logits(self, hidden, **options)
        seen.append((found, hidden.float() @ self.head_weight().float().t()))
        return found

    monkeypatch.setattr(model_module.PackedModel, "logits", seen_logits)
    monkeypatch.setattr(model_module, "HEAD_ROWS", 64)
    made.logprobs([[5, 6, 7, 8, 9]], [3], 1.0)
    assert seen
    for found, expected in seen:
        assert found.dtype is torch.float32
        torch.testing.assert_close(found, expected)
