"""Products by blocks of rows: the same values, and no row depends on how many others there are or on its place among them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vime.config import RunConfig, ServedModelConfig
from vime.inside_vllm.fixed_products import ENVIRONMENT, NUM_ROWS, check_model, in_blocks
from vime.serving.flags import server_environment


def by_count(rows: Any) -> Any:
    """A library whose results depend on the number of rows, and on nothing else but the row."""
    return rows * 2 + rows.shape[0]


@pytest.mark.parametrize("num_rows", [1, NUM_ROWS - 1, NUM_ROWS, NUM_ROWS + 1, 5 * NUM_ROWS + 3])
def test_every_product_has_as_many_rows_and_the_result_is_as_long_as_its_input(num_rows: int):
    x = torch.arange(num_rows * 4, dtype=torch.float32).reshape(num_rows, 4)
    assert torch.equal(in_blocks(by_count, x), x * 2 + NUM_ROWS)
    assert torch.equal(in_blocks(by_count, x.reshape(1, num_rows, 4)), (x * 2 + NUM_ROWS).reshape(1, num_rows, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("width", "num_outputs"), [(64, 128), (1152, 384), (2048, 512)])
def test_a_row_has_the_same_product_alone_among_others_and_at_every_place(dtype: torch.dtype, width: int, num_outputs: int):
    """With oneDNN's products, those of vLLM's linear layers on a CPU."""
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no products in bfloat16 for this processor")
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    from vllm import _custom_ops as ops

    generator = torch.Generator().manual_seed(0)
    handler = ops.create_onednn_mm(torch.randn(width, num_outputs, generator=generator).to(dtype), 32)
    row = torch.randn(1, width, generator=generator).to(dtype)

    def multiply(x: torch.Tensor) -> torch.Tensor:
        return ops.onednn_mm(handler, x, None)

    alone = in_blocks(multiply, row)[0]
    for place in range(2 * NUM_ROWS + 5):
        others = torch.randn(2 * NUM_ROWS + 5, width, generator=generator).to(dtype)
        others[place] = row
        assert torch.equal(in_blocks(multiply, others)[place], alone), place


def test_servers_of_a_deterministic_run_are_started_so():
    config, model = RunConfig(deterministic=True), ServedModelConfig(checkpoint="x")
    assert ENVIRONMENT.items() <= server_environment(config, model, cpus=[0], gpus=[]).items()
    config.cluster.gpus_per_node = 8
    assert server_environment(config, model, cpus=[], gpus=[0])["VLLM_BATCH_INVARIANT"] == "1"
    config.deterministic = False
    assert "VLLM_BATCH_INVARIANT" not in server_environment(config, model, cpus=[], gpus=[0])


def test_a_model_that_is_not_shown_to_repeat_does_not_start():
    model = SimpleNamespace(model="m", is_moe=False, is_quantized=False, has_inner_state=False)
    parallel = SimpleNamespace(tensor_parallel_size=1)
    config = SimpleNamespace(model_config=model, parallel_config=parallel, speculative_config=None, lora_config=None)
    check_model(config)
    for part, name in ((model, "is_moe"), (model, "is_quantized"), (model, "has_inner_state")):
        setattr(part, name, True)
        with pytest.raises(ValueError, match="deterministic=true"):
            check_model(config)
        setattr(part, name, False)
    parallel.tensor_parallel_size = 2
    with pytest.raises(ValueError, match="tensor_parallel_size"):
        check_model(config)
