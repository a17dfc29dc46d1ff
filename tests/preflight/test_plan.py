"""`mode=plan`: right numbers, on a machine without GPU or network, and nothing started or written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from vime.config import AlgorithmName, ModelConfig, RunConfig
from vime.files.provenance import plain
from vime.memory.kv_cache import num_concurrent_rollouts, rollouts_of_a_worker
from vime.memory.processes import GIB, server_memory, trainer_memory
from vime.memory.tokens import driver_bytes, object_store_bytes
from vime.model.size import num_expert_parameters, num_parameters
from vime.preflight.compose import CONF, compose_run
from vime.preflight.plan import show_plan, wrapped
from vime.preflight.plan.amounts import gib
from vime.preflight.plan.duration import step_flops, time
from vime.preflight.plan.models import serving
from vime.preflight.plan.planned_processes import held_by_gpus, memory, parts
from vime.preflight.plan.steps import batch, generation, summary
from vime.preflight.validation import find_problems
from vime.types import COLUMNS, Sample
from vime.types.column import TOP_IDS, TOP_LOGPROBS

pytestmark = pytest.mark.usefixtures("some_strands_python")

ONE_NODE = ("model=qwen2.5-7b", "cluster=one_node")


def planned(*words: str) -> RunConfig:
    """The configuration of a plan."""
    return compose_run(["+method=memagent", "mode=plan", *words]).config


def model_of(name: str) -> ModelConfig:
    """The shape of a model of `conf/model`."""
    return planned(f"model={name}").model


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("qwen2.5-0.5b", 0.494e9),
        ("qwen2.5-7b", 7.616e9),
        ("qwen3-4b", 4.02e9),
        ("qwen3-30b-a3b", 30.5e9),
        ("llama3.2-1b", 1.236e9),
        ("llama3.1-8b", 8.03e9),
    ],
)
def test_the_number_of_parameters_is_the_published_one(name: str, published: float):
    assert num_parameters(model_of(name)) == pytest.approx(published, rel=0.01)


def test_ranks_and_servers_share_the_gpus_of_one_node():
    found = parts(planned(*ONE_NODE))
    ranks = [part for part in found if part.name.startswith("trainer")]
    servers = [part for part in found if part.name.startswith("server")]
    assert [part.gpus for part in ranks] == [(index,) for index in range(8)]
    assert [part.gpus for part in servers] == [(index,) for index in range(8)]
    assert {part.node for part in found} == {0}


def test_on_two_nodes_one_trains_and_the_other_serves():
    found = parts(planned("model=qwen2.5-7b", "cluster=two_nodes"))
    assert {part.node for part in found if part.name.startswith("trainer")} == {0}
    assert {part.node for part in found if part.name.startswith("server")} == {1}


def test_replicas_get_ports_in_a_row():
    found = parts(planned(*ONE_NODE, "serving.models.actor.port=9000"))
    assert [part.port for part in found if part.name.startswith("server")] == [str(9000 + index) for index in range(8)]


def test_memory_follows_the_formulas_of_the_docstring():
    config = planned(*ONE_NODE)
    parameters = num_parameters(config.model)
    memory = trainer_memory(config)
    assert memory["weights"] == pytest.approx(2 * parameters / 2)  # two tensor-parallel shards in bfloat16
    assert memory["gradients"] == pytest.approx(4 * parameters / 2)
    assert memory["optimizer"] == pytest.approx(12 * parameters / 2 / 4)  # four data-parallel ranks
    served = server_memory(config, config.serving.models["actor"])
    assert sum(served.values()) == pytest.approx(0.6 * 79.6 * GIB)
    assert served["weights"] == pytest.approx(2 * parameters)


def test_experts_are_shared_by_their_own_ranks_and_their_optimizer_by_the_copies():
    config = planned("model=qwen3-30b-a3b", "trainer.expert_parallel_size=4", "trainer.recompute=false")
    experts = num_expert_parameters(config.model)
    others = num_parameters(config.model) - experts
    assert experts == 48 * 128 * 3 * 2048 * 768
    memory = trainer_memory(config)
    assert memory["weights"] == pytest.approx(2 * (others / 4 + experts / 4))
    assert memory["optimizer"] == pytest.approx(12 * (others / 4 / 2 + experts / 4 / 2))
    spread = planned("model=qwen3-30b-a3b", "trainer.expert_parallel_size=8", "trainer.recompute=false")
    assert trainer_memory(spread)["weights"] == pytest.approx(2 * (others / 4 + experts / 8))
    assert trainer_memory(spread)["optimizer"] == memory["optimizer"]
    assert [part.holds for part in parts(spread) if part.holds][5] == "experts 80-95, tensor 1 of 4, data 1 of 2"


@pytest.mark.slow
def test_activations_follow_the_layout():
    def activations(*words: str) -> float:
        settings = ("trainer.tensor_parallel_size=4", "trainer.recompute=false")
        return trainer_memory(planned(*ONE_NODE, *settings, *words))["activations"]

    norms, attention, network = 2 * 4 * 3584 + 8, 2 * (4 * 3584 + 3 * 512) + 4 * 28, 2 * 3 * 18944
    rotary_and_ids, last_norm, head = 2 * 128 + 8, 2 * 3584 + 4, 2 * 3584
    ends = rotary_and_ids + last_norm / 4 + head
    assert activations() == pytest.approx(16384 * (28 * (norms + attention + network) / 4 + ends))
    unsplit = 28 * (norms + (attention + network) / 4) + rotary_and_ids + last_norm + head
    assert activations("trainer.sequence_parallel=false") == pytest.approx(16384 * unsplit)
    inputs, one = 28 * 2 * 3584 / 4, (norms + attention + network) / 4
    assert activations("trainer.recompute=true") == pytest.approx(16384 * (inputs + one + ends))
    unfused = activations("+trainer.megatron_args.bias_activation_fusion=false") - activations()
    assert unfused == pytest.approx(16384 * 28 * 2 * 2 * 18944 / 4)
    assert activations("trainer.context_parallel_size=2") == activations()  # a row holds as many tokens on each rank
    pipeline = ("trainer.pipeline_parallel_size=2", "trainer.virtual_pipeline_parallel_size=2")
    assert activations(*pipeline[:1]) == activations()
    assert activations(*pipeline) == pytest.approx(activations() + 0.25 * 16384 * 28 * (norms + attention + network) / 4)
    stages = [part.holds for part in parts(planned(*ONE_NODE, *pipeline)) if part.holds]
    assert stages[0].startswith("layers 0-6 and 14-20, tensor 0 of 2") and stages[-1].startswith("layers 7-13 and 21-27")


def test_the_plan_says_what_would_happen(capsys: pytest.CaptureFixture[str]):
    show_plan(planned(*ONE_NODE))
    shown = capsys.readouterr().out
    expected = ["trainer rank 7", "server actor-7", "GiB", "128", "2048 rollouts", "16 optimizer step", "micro-batch"]
    expected += ["KV cache", "gradients", "optimizer", "activations", "ruler_hqa_896k", "3 run", "weights reach the servers"]
    assert [text for text in expected if text not in shown] == []


def test_settings_that_have_lost_a_policy_are_a_risk_of_the_plan():
    words = ["rollout.max_staleness=4"]
    (risk,) = [line for line in summary(planned(*words)) if line.startswith("risk:")]
    assert "rollout.max_staleness=4" in risk and "trainer.lr_schedule=linear" in risk
    for word in ("trainer.lr_schedule=linear", "rollout.max_staleness=1", "algorithm=score_centering"):
        assert not any(line.startswith("risk:") for line in summary(planned(*words, word)))


def test_a_model_that_does_not_fit_is_marked(capsys: pytest.CaptureFixture[str]):
    show_plan(planned("model=qwen2.5-32b", "cluster=one_node", "cluster.gpu_memory_gib=24"))
    assert "needs more than the 24 GiB" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["model=tiny"], ["model=tiny", "algorithm=sft"], ["model=qwen3-30b-a3b"]])
def test_every_kind_of_run_has_a_plan(words: list[str], capsys: pytest.CaptureFixture[str]):
    show_plan(planned(*words))
    assert "Nothing was started" in capsys.readouterr().out


def test_the_kv_cache_is_counted_on_all_gpus_of_a_server_and_its_memory_on_each():
    config = planned(*ONE_NODE, "serving.models.actor.tensor_parallel_size=4", "serving.models.actor.num_replicas=2")
    weights, cache = 2 * num_parameters(config.model) / 4 / GIB, server_memory(config, config.serving.models["actor"])["KV cache"]
    tokens = 4 * cache / (2 * 28 * 4 * 128 * 2)  # keys and values, layers, key heads, width of a head, bytes
    each, together = (line for line in memory(config) if "KV cache" in line)
    assert each == f"server actor, on each GPU of 79.6 GiB: 47.8 GiB = weights {weights:.1f} GiB + KV cache {cache / GIB:.1f} GiB"
    assert together.startswith(f"KV cache of one server actor on its 4 GPUs together: {tokens:,.0f} tokens, ")


def test_a_line_of_the_plan_is_not_broken_between_a_number_and_its_unit():
    line = "each trainer rank: 159.0 MiB = weights 2.1 MiB + gradients 2.1 MiB"
    assert [wrapped(line, width).count("\n") for width in (80, 58)] == [0, 1]
    assert all("\n      2.1 MiB" in wrapped(line, width) for width in (61, 64, 66))


@pytest.mark.slow
def test_the_program_plans_without_gpu_and_network_and_leaves_nothing(tmp_path: Path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    environment |= {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    words = ["+method=memagent", "mode=plan", *ONE_NODE]
    environment["PYTHONPATH"] = str(CONF.parent)
    ended = subprocess.run(
        [sys.executable, "-m", "vime.run", *words], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert "trainer rank 7" in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_plan_says_how_many_servers_there_may_be():
    words = ["serving.models.actor.num_replicas=3", "serving.elastic.num_at_start=1"]
    (line,) = serving(planned(*words))
    assert "3 × actor" in line and "1 at the start, then as many from 1 to 3" in line and "router" in line
    (line,) = serving(planned(*words, "mode=eval"))
    assert "all of them" in line


def test_the_plan_says_how_generation_and_training_overlap():
    def lines(*words: str) -> str:
        return "\n".join(generation(compose_run(["+method=memagent", *words]).config))

    assert "on-policy" in lines()
    text = lines(
        "rollout.max_staleness=2", "rollout.num_oversampled_prompts=4", "rollout.partial_rollouts=true", "serving.keep_cache=true"
    )
    assert "at most 2 weight versions old" in text and "keep the KV cache" in text
    assert "first 16 of 20 groups; the others continue in the next batch" in text
    text = lines("rollout.num_oversampled_samples_per_prompt=2", "algorithm=dapo")
    assert "first 8 of 10 rollouts; the others are aborted" in text and "dynamic_sampling" in text


@pytest.mark.parametrize("experiment", sorted(file.stem for file in (CONF / "experiment").glob("*.yaml")))
def test_every_experiment_prints_its_arithmetic(experiment: str, capsys: pytest.CaptureFixture[str]):
    config = compose_run([f"+experiment={experiment}", "mode=plan"], check=find_problems).config
    show_plan(config)
    text = " ".join(capsys.readouterr().out.split())
    if config.algorithm.name is AlgorithmName.sft:
        assert "tokens of demonstrations" in text
        return
    rollouts = config.rollout.num_prompts * config.rollout.num_samples_per_prompt
    calls = config.method.calls_per_rollout(config)
    assert f"× {config.rollout.num_samples_per_prompt} = {rollouts} rollouts a step" in text
    assert f"{config.trainer.num_updates_per_batch} optimizer step(s) per batch of rollouts" in text
    assert f"at most {config.trainer.max_tokens_per_micro_batch:,} in a micro-batch" in text and "tokens per " in text
    if calls is None:
        assert "as many as the agent makes" in text and f"sequences per step: {rollouts:,} or more" in text
    else:
        assert f"about {calls} expected calls per rollout, sequences per step: about {rollouts * calls:,}" in text


def test_the_calls_of_a_rollout_are_its_chunks_and_the_answer():
    tiny, paper = planned(), planned("model=qwen2.5-7b")
    assert tiny.method.calls_per_rollout(tiny) == 20 // 5 + 1  # five documents a chunk
    assert paper.method.calls_per_rollout(paper) == 6 + 1  # 28,000 tokens by 5,000
    paper.method.max_chunks = 3  # pyright: ignore[reportAttributeAccessIssue]
    assert paper.method.calls_per_rollout(paper) == 3 + 1


def test_the_object_store_holds_the_largest_batch_and_the_plan_says_so(capsys: pytest.CaptureFixture[str]):
    config = planned("rollout.num_prompts=128", "rollout.num_samples_per_prompt=16", "rollout.max_staleness=1")
    (actor,) = (model for model in config.serving.models.values() if model.trained)
    calls = config.method.calls_per_rollout(config)
    assert calls is not None and calls > 1
    tokens = 128 * 16 * calls * actor.max_model_len
    sample = Sample(tokens=[1, 2], response_length=1, loss_mask=[1], rollout_log_probs=[-0.5], weight_versions=[0])
    sample.to_columns()
    bytes_of_a_token = sum(np.asarray(getattr(sample, name)).itemsize for name in COLUMNS)
    assert object_store_bytes(config) >= tokens * bytes_of_a_token + 2**29
    assert driver_bytes(config) == 2 * tokens * bytes_of_a_token
    recorded = planned("rollout.num_prompts=128", "rollout.num_samples_per_prompt=16", "rollout.num_logprobs=20")
    likeliest = 20 * (np.dtype(TOP_IDS.dtype).itemsize + np.dtype(TOP_LOGPROBS.dtype).itemsize)
    assert driver_bytes(recorded) == tokens * (bytes_of_a_token + likeliest)
    assert trainer_memory(recorded)["working memory"] > trainer_memory(config)["working memory"]
    show_plan(config)
    assert f"Ray's object store: {gib(object_store_bytes(config))}" in " ".join(capsys.readouterr().out.split())


def test_a_gpu_says_what_it_holds_and_that_trainer_and_server_are_never_there_at_once() -> None:
    shared = planned(*ONE_NODE)
    (line,) = held_by_gpus(shared)
    sizes = {}
    for part in parts(shared):
        sizes[part.name.split()[0]] = sum(part.memory.values())
    most = max(sizes["trainer"], sizes["server"])
    assert "(never at once)" in line and line.endswith(f"at most {gib(most)} of its {gib(shared.cluster.gpu_memory_gib * GIB)}")
    apart = held_by_gpus(planned("model=qwen2.5-7b", "cluster=two_nodes"))
    assert len(apart) == 2 and not any("at once" in line for line in apart)


def test_the_time_of_a_step_is_that_of_an_earlier_run_with_the_same_settings(tmp_path: Path) -> None:
    config = planned(f"output_dir={tmp_path / 'new'}")
    assert "not measured" in time(config)[0] and "2,400 rollouts are evaluated" in time(config)[1]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.yaml").write_text(yaml.safe_dump(plain(config)))
    lines = [{"step": step, "time/step_seconds": seconds} for step, seconds in ((1, 90.0), (2, 3.0), (3, 3.0))]
    (tmp_path / "old" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert time(config)[0].startswith("a step took 3.0 s in"), "the first step warms up"
    other = planned(f"output_dir={tmp_path / 'new'}", "rollout.num_prompts=2")
    assert "not measured" in time(other)[0], "another batch takes another time"


def test_training_computes_eight_operations_for_each_parameter_and_token_that_is_recomputed() -> None:
    flops = [step_flops(planned(*ONE_NODE, f"trainer.recompute={recompute}")) for recompute in ("true", "false")]
    assert flops[0] == pytest.approx(flops[1] * 8 / 6)


def test_a_function_in_place_of_the_methods_agent_makes_as_many_calls_as_it_likes() -> None:
    assert planned().method.expected_calls(planned())
    replaced = planned("method.generate=vime.rollout.single_turn.generate")
    assert replaced.method.expected_calls(replaced) is None


def test_as_many_rollouts_run_at_a_time_as_the_servers_hold() -> None:
    one, two = planned(*ONE_NODE), planned(*ONE_NODE)
    actor = two.serving.models["actor"]
    actor.num_replicas *= 2
    assert num_concurrent_rollouts(two) == 2 * num_concurrent_rollouts(one) > 2 * 256
    actor.max_model_len *= 4
    assert num_concurrent_rollouts(two) == pytest.approx(num_concurrent_rollouts(one) / 2, rel=0.05)
    actor.max_num_seqs = 8
    assert num_concurrent_rollouts(two) == 256, "agents that wait for tools hold no place"
    one.rollout.num_workers = 4
    assert rollouts_of_a_worker(one) * 4 >= num_concurrent_rollouts(one) >= 4 * 256
    one.rollout.max_concurrent_rollouts = 7
    assert num_concurrent_rollouts(one) == 28 and rollouts_of_a_worker(one) == 7
    assert num_concurrent_rollouts(planned()) == 256
    large = planned(*ONE_NODE, "rollout.num_prompts=1024")
    assert batch(large)[0].endswith(f"at most {num_concurrent_rollouts(large)} at once")
