"""Requests and counts of `tools/bench_generation.py`; its servers are vLLM's."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))

import bench_generation
from bench_generation import Load


def test_samples_of_a_prompt_are_as_many_in_one_request_as_in_several():
    several = Load(name="groups", prompts=[[5, 9], [7]], max_tokens=3, num_samples=4)
    one = Load(name="groups", prompts=[[5, 9], [7]], max_tokens=3, num_samples=4, as_one=True)
    assert [len(list(load.requests())) for load in (several, one)] == [8, 2]
    assert [sum(body["sampling_params"]["n"] for body in load.requests()) for load in (several, one)] == [8, 8]
    assert several.num_counted == one.num_counted == 24


@pytest.mark.parametrize("size", [bench_generation.TRAINED, "1M"])
def test_every_load_fits_the_servers(size: str):
    for load in bench_generation.loads_of(size):
        assert all(0 < len(prompt) + load.max_tokens <= 2048 for prompt in load.prompts), load.name
        assert load.num_counted > 0


def test_the_products_of_a_load_are_those_of_a_forward_pass_that_projects_what_it_samples():
    load = Load(name="decode", prompts=[[5] * 16], max_tokens=8)
    shape = bench_generation.SHAPES["1M"]
    hidden, heads, width = shape["hidden_size"], shape["num_attention_heads"], shape["head_dim"]
    attention = 2 * hidden * width * (heads + shape["num_key_value_heads"])
    layer = attention + 3 * hidden * shape["intermediate_size"]
    by_hand = shape["num_hidden_layers"] * (2 * layer * 23 + 2 * heads * width * 23 * 23) + 2 * hidden * shape["vocab_size"] * 8
    assert bench_generation.needed_flops("1M", load) == pytest.approx(by_hand)


def test_the_second_server_differs_in_its_setting_only():
    config = bench_generation.configuration(bench_generation.TINY, precision="float32", setting="block_128")
    first, second = (config.serving.models[name] for name in (bench_generation.AS_STARTED, bench_generation.OTHER))
    assert second.vllm_args == first.vllm_args | {"block_size": 128}
    same = ("max_model_len", "max_num_seqs", "gpu_memory_utilization", "num_replicas")
    assert {name: getattr(first, name) for name in same} == {name: getattr(second, name) for name in same}
