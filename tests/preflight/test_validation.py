"""Wrong configurations: each is refused before anything starts, with every problem named by key, value and remedy."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from vime.errors import ConfigError, Problem
from vime.preflight.compose import compose_run
from vime.preflight.rules import machine_requirements
from vime.preflight.validation import find_problems

METHOD = "+method=memagent"
JUDGE = ("+serving.models.judge.api=chat", "+serving.models.judge.urls=[https://127.0.0.1:9/v1]")
LARGE = ("model=qwen2.5-7b", "cluster=one_node", "mode=plan")
SHARED = (*LARGE, "cluster.num_frozen_gpus=2", "cluster.share_frozen_gpus=true")
JUDGE_SIZE, JUDGE_REPLICAS = (f"+serving.models.judge.{name}" for name in ("tensor_parallel_size", "num_replicas"))
RANKED = ("method.group_reward=vime.grading.judge.ranking", "+serving.models.judge.port=9123")
AT_START, PLANNED_AHEAD = "serving.elastic.num_at_start", ("mode=plan", "rollout.max_staleness=1")
EXPERTS = ("model=qwen3-30b-a3b", "mode=plan")

WRONG: dict[str, tuple[list[str], str]] = {
    "unknown key": (["trainer.learning_rate_=1"], "trainer.learning_rate_"),
    "unknown group of keys": (["trainr.lr=1"], "trainr.lr"),
    "unknown key with a plus": (["+rollout.colour=red"], "rollout.colour"),
    "text for a number": (["trainer.lr=fast"], "trainer.lr"),
    "fraction for a whole number": (["rollout.num_prompts=2.5"], "rollout.num_prompts"),
    "word for a truth value": (["resume=maybe"], "resume"),
    "value for a group of settings": (["trainer=5"], "trainer"),
    "unknown option": (["model=qwen9"], "model"),
    "unknown enum value": (["algorithm.name=trpo"], "algorithm.name"),
    "plus where none belongs": (["+cluster=laptop"], "cluster"),
    "no equals sign": (["trainer.lr"], "trainer.lr"),
    "several values without multirun": (["trainer.lr=1e-3,1e-4"], "trainer.lr"),
    "entry that the list has not": (["data.evaluation.7.seed=1"], "data.evaluation.7.seed"),
    "negative learning rate": (["trainer.lr=-1"], "trainer.lr"),
    "learning rate that is no number": (["trainer.lr=nan"], "trainer.lr"),
    "negative staleness": (["rollout.max_staleness=-1"], "rollout.max_staleness"),
    "no steps": (["trainer.num_steps=0"], "trainer.num_steps"),
    "negative seed": (["seed=-3"], "seed"),
    "share above one": (["rollout.max_filtered_share=1.5"], "rollout.max_filtered_share"),
    "no time": (["rollout.generate_timeout_seconds=0"], "rollout.generate_timeout_seconds"),
    "kept cache without staleness": (["serving.keep_cache=true"], "serving.keep_cache"),
    "partial rollouts without staleness": (["rollout.partial_rollouts=true"], "rollout.partial_rollouts"),
    "larger group demanded than started": (["rollout.min_rollouts_per_group=99"], "rollout.min_rollouts_per_group"),
    "more rollouts than a function is asked for": (
        ["rollout.group_function=vime.workers.worker.RolloutWorker", "rollout.num_oversampled_samples_per_prompt=1"],
        "rollout.num_oversampled_samples_per_prompt",
    ),
    "ranking without a judge": (["method.group_reward=vime.grading.judge.ranking"], "method.group_reward"),
    "rubric without a judge": (["method.reward=vime.grading.judge.rubric"], "method.reward"),
    "judge that may take longer than a reward": (
        [*RANKED, "rollout.reward_timeout_seconds=50"],
        "rollout.reward_timeout_seconds",
    ),
    "temperature zero in training": (["rollout.temperature=0"], "rollout.temperature"),
    "top-p in training": (["rollout.top_p=0.9"], "rollout.top_p"),
    "clip range turned round": (["algorithm.clip_low=0.3"], "algorithm.clip_high"),
    "groups of one": (["rollout.num_samples_per_prompt=1"], "rollout.num_samples_per_prompt"),
    "more updates than rollouts": (
        ["rollout.num_prompts=2", "rollout.num_samples_per_prompt=2", "trainer.num_updates_per_batch=5"],
        "trainer.num_updates_per_batch",
    ),
    "warm-up longer than the run": (["trainer.warmup_steps=1000"], "trainer.warmup_steps"),
    "context too short for a chunk": (["method.chunk_tokens=5000"], "serving.models.actor.max_model_len"),
    "context longer than the model's": (["serving.models.actor.max_model_len=100000"], "serving.models.actor.max_model_len"),
    "missing model folder": (["model.checkpoint=/nowhere/model"], "model.checkpoint"),
    "folder that is no checkpoint": (["model.checkpoint=."], "model.checkpoint"),
    "shape other than the checkpoint's": (["model.hidden_size=256"], "model.hidden_size"),
    "uneven tensor parallelism": (["trainer.tensor_parallel_size=3"], "trainer.tensor_parallel_size"),
    "uneven pipeline": (["trainer.pipeline_parallel_size=7"], "trainer.pipeline_parallel_size"),
    "uneven pipeline with a first stage that leaves too much": (
        [*LARGE, "trainer.pipeline_parallel_size=4", "+trainer.megatron_args.num_layers_in_first_pipeline_stage=6"],
        "trainer.pipeline_parallel_size",
    ),
    **{
        f"stage of {size} layers": (
            [*LARGE, f"+trainer.megatron_args.num_layers_in_first_pipeline_stage={size}"],
            "trainer.megatron_args.num_layers_in_first_pipeline_stage",
        )
        for size in ("abc", "2.5", "true", "0", "-1")
    },
    "rounds without a pipeline": (["trainer.virtual_pipeline_parallel_size=2"], "trainer.virtual_pipeline_parallel_size"),
    "rounds that layers do not fill": (
        [*LARGE, "trainer.pipeline_parallel_size=2", "trainer.virtual_pipeline_parallel_size=4"],
        "trainer.virtual_pipeline_parallel_size",
    ),
    "experts under tensor parallelism without splitting tokens": (
        [*EXPERTS, "trainer.sequence_parallel=false"],
        "trainer.sequence_parallel",
    ),
    "expert parallelism without experts": (["trainer.expert_parallel_size=2"], "trainer.expert_parallel_size"),
    "experts that do not divide": ([*EXPERTS, "trainer.expert_parallel_size=3"], "trainer.expert_parallel_size"),
    "more expert ranks than ranks": ([*EXPERTS, "trainer.expert_parallel_size=16"], "trainer.expert_parallel_size"),
    "context ranks that are not there": ([*LARGE, "trainer.context_parallel_size=3"], "cluster.num_trainer_gpus"),
    "no context rank": (["trainer.context_parallel_size=0"], "trainer.context_parallel_size"),
    "balance of experts in the loss": (
        ["+trainer.megatron_args.moe_aux_loss_coeff=0.01"],
        "trainer.megatron_args.moe_aux_loss_coeff",
    ),
    "two ways to recompute": (
        ["trainer.recompute=true", "+trainer.megatron_args.recompute_granularity=selective"],
        "trainer.megatron_args.recompute_granularity",
    ),
    "unknown field of Megatron": (
        ["+trainer.megatron_args.recompute_granularty=full"],
        "trainer.megatron_args.recompute_granularty",
    ),
    "random weights that no trainer replaces": (
        [f"+serving.models.judge.{word}" for word in ("checkpoint=other", "vllm_args.load_format=dummy")],
        "serving.models.judge.vllm_args.load_format",
    ),
    "random weights in an evaluation": (
        ["mode=eval", "+serving.models.actor.vllm_args.load_format=dummy"],
        "serving.models.actor.vllm_args.load_format",
    ),
    "a draft model that is not named": (
        ["serving.models.actor.speculative.method=draft_model"],
        "serving.models.actor.speculative.checkpoint",
    ),
    "a draft of no layers": (
        ["serving.models.actor.speculative.method=early_exit"],
        "serving.models.actor.speculative.num_layers",
    ),
    "a draft of all layers": (
        ["serving.models.actor.speculative={method: early_exit, num_layers: 2}"],
        "serving.models.actor.speculative.num_layers",
    ),
    "a draft that no sync would change": (
        [
            "+serving.models.judge={checkpoint: x}",
            "+serving.models.judge.speculative={method: early_exit, num_layers: 1}",
        ],
        "serving.models.judge.speculative.method",
    ),
    "a draft and weights without files": (
        ["serving.models.actor.speculative={method: early_exit, num_layers: 1}", "cluster.weight_transfer=gloo"],
        "serving.models.actor.speculative.method",
    ),
    "a setting of another draft": (
        ["serving.models.actor.speculative={method: ngram, num_layers: 1}"],
        "serving.models.actor.speculative.num_layers",
    ),
    "a setting of a draft without speculation": (
        ["serving.models.actor.speculative.prompt_lookup_max=3"],
        "serving.models.actor.speculative.prompt_lookup_max",
    ),
    "n-grams whose lengths cross": (
        ["serving.models.actor.speculative={method: ngram, prompt_lookup_min: 5}"],
        "serving.models.actor.speculative.prompt_lookup_max",
    ),
    "speculation that is asked for twice": (
        [
            "serving.models.actor.speculative.method=ngram",
            "+serving.models.actor.vllm_args.speculative-config.method=ngram",
        ],
        "serving.models.actor.vllm_args.speculative-config",
    ),
    "speculation of a running server": (
        ["serving.models.actor={urls: ['http://127.0.0.1:9'], speculative: {method: ngram}}"],
        "serving.models.actor.speculative.method",
    ),
    "a frozen model that speculates and has a least probability": (
        ["+serving.models.judge={checkpoint: x, sampling: {temperature: 0.5, min_p: 0.1}, speculative: {method: ngram}}"],
        "serving.models.judge.sampling.min_p",
    ),
    "quantized rollouts that nothing corrects": (
        ["serving.models.actor.quantization=fp8_per_channel"],
        "algorithm.correction.mode",
    ),
    "a format that only GPUs have": (
        ["serving.models.actor.quantization=fp8_per_block", "algorithm=score_centering"],
        "serving.models.actor.quantization",
    ),
    "integers of a frozen model": (
        ["+serving.models.judge={checkpoint: x, quantization: int8}"],
        "serving.models.judge.quantization",
    ),
    "integers without files": (
        ["serving.models.actor.quantization=int8", "algorithm=score_centering", "cluster.weight_transfer=gloo"],
        "serving.models.actor.quantization",
    ),
    "integers that servers do not have": (["trainer.quantization=int8"], "serving.models.actor.quantization"),
    "integers of servers whose inputs are not quantized": (
        ["trainer.quantization=int4", "serving.models.actor.quantization=int8"],
        "serving.models.actor.quantization",
    ),
    "4-bit integers of an odd width": (
        ["trainer.quantization=int4", "model.intermediate_size=528"],
        "trainer.quantization",
    ),
    "integers with adapters": (
        ["trainer.quantization=int8", "serving.models.actor.quantization=int8", "trainer.lora.rank=8"],
        "trainer.quantization",
    ),
    "integers with another cache than the trainer's": (
        ["trainer.quantization=int8", "serving.models.actor={quantization: int8, kv_cache_dtype: fp8}"],
        "algorithm.correction.mode",
    ),
    "8-bit floats without GPUs": (["trainer.fp8.recipe=blockwise"], "trainer.fp8.recipe"),
    "layers without the 8-bit floats that they are left out of": (["trainer.fp8.num_last_bf16_layers=1"], "trainer.fp8.recipe"),
    "a draft of quantized layers": (
        [
            "serving.models.actor={quantization: int8, speculative: {method: early_exit, num_layers: 1}}",
            "algorithm=score_centering",
        ],
        "serving.models.actor.quantization",
    ),
    "quantization that is asked for twice": (
        [
            "serving.models.actor.quantization=int8",
            "algorithm=score_centering",
            "+serving.models.actor.vllm_args.quantization=fp8",
        ],
        "serving.models.actor.vllm_args.quantization",
    ),
    "quantization by vLLM's argument alone, uncorrected": (
        ["+serving.models.actor.vllm_args.kv-cache-dtype=fp8"],
        "algorithm.correction.mode",
    ),
    "port out of range": (["serving.models.actor.port=70000"], "serving.models.actor.port"),
    "port of the system": (["serving.models.actor.port=80"], "serving.models.actor.port"),
    "port given twice": (["serving.models.actor.port=9000", "+serving.models.judge.port=9000"], "serving.models.judge.port"),
    "port given twice by groups": (
        [f"+serving.models.actor.groups.{name}.port=9000" for name in ("one", "two")],
        "serving.models.actor.groups.two.port",
    ),
    "other number of replicas than the groups'": (
        ["serving.models.actor.num_replicas=3", "+serving.models.actor.groups.one.num_replicas=2"],
        "serving.models.actor.num_replicas",
    ),
    "prefill without decode": (
        [*LARGE, "+serving.models.actor.groups.one.role=prefill", "+serving.models.actor.groups.one.num_replicas=8"],
        "serving.models.actor.groups",
    ),
    "prefill beside regular servers": (
        [
            *(*LARGE, "serving.models.actor.num_replicas=2", "+serving.models.actor.groups.one.role=prefill"),
            "+serving.models.actor.groups.two.role=regular",
        ],
        "serving.models.actor.groups",
    ),
    "prefill before a sync and decode after it": (
        [*(f"+serving.models.actor.groups.{role}.role={role}" for role in ("prefill", "decode")), *PLANNED_AHEAD],
        "rollout.in_flight_updates",
    ),
    "more servers at the start than there may be": (
        [f"{AT_START}=3", "serving.models.actor.num_replicas=2"],
        AT_START,
    ),
    "servers that could not become more": ([f"{AT_START}=1"], AT_START),
    "servers that join on the GPUs of the trainer": (
        [*LARGE, "serving.models.actor.num_replicas=2", f"{AT_START}=1"],
        AT_START,
    ),
    "servers that join those of others": (
        [f"{AT_START}=1", "serving.models.actor.urls=[http://127.0.0.1:9]", "cluster.weight_transfer=disk", "mode=plan"],
        AT_START,
    ),
    "servers that join groups": (
        [f"{AT_START}=1", *(f"+serving.models.actor.groups.{name}.num_replicas=1" for name in ("one", "two"))],
        AT_START,
    ),
    "servers that join a run that is to be repeated": (
        [f"{AT_START}=1", "serving.models.actor.num_replicas=2", "deterministic=true"],
        AT_START,
    ),
    "group of no server": (["+serving.models.actor.groups.one.num_replicas=0"], "serving.models.actor.groups.one.num_replicas"),
    "trained model behind a chat API": (
        ["serving.models.actor.api=chat", "serving.models.actor.urls=[http://127.0.0.1:9/v1]", "cluster.weight_transfer=disk"],
        "serving.models.actor.api",
    ),
    "chat API without an address": (["+serving.models.judge.api=chat"], "serving.models.judge.urls"),
    "settings of a chat API without one": (["+serving.models.judge.chat.max_retries=1"], "serving.models.judge.chat"),
    "key that is not in the environment": (
        [*JUDGE, "+serving.models.judge.chat.api_key_variable=VIME_NO_SUCH_KEY"],
        "serving.models.judge.chat.api_key_variable",
    ),
    "no requests in a minute": (
        [*JUDGE, "+serving.models.judge.chat.max_requests_per_minute=0"],
        "serving.models.judge.chat.max_requests_per_minute",
    ),
    "field of a request that vime sets": ([*JUDGE, "+serving.models.judge.chat.body.n=2"], "serving.models.judge.chat.body.n"),
    "arguments for a server of others": ([*JUDGE, "+serving.models.judge.vllm_args.seed=1"], "serving.models.judge.vllm_args"),
    "other name for our own servers": (["serving.models.actor.served_name=it"], "serving.models.actor.served_name"),
    "address that is none": (["serving.models.actor.urls=[nowhere]"], "serving.models.actor.urls"),
    "no trained model": (["serving.models.actor.trained=false"], "serving.models"),
    "two trained models": (["+serving.models.judge.trained=true"], "serving.models"),
    "trained model of another name": (
        ["+serving.models.judge.trained=true", "serving.models.actor.trained=false"],
        "serving.models",
    ),
    "sandbox that an interpreter does not fit into": (["sandbox.memory_bytes=1000000"], "sandbox.memory_bytes"),
    "unknown router policy": (["serving.router_policy=best"], "serving.router_policy"),
    "host of another machine": (["cluster.host=192.0.2.1"], "cluster.host"),
    "unknown row": (["evaluation.rows=[scafold]"], "evaluation.rows"),
    "baseline that is not served": (["evaluation.rows=[scaffold@nobody]"], "evaluation.rows"),
    "baseline that is the trained model": (["evaluation.rows=[scaffold@actor]"], "evaluation.rows"),
    "pass@k of more runs than there are": (["evaluation.pass_at=[4]"], "evaluation.pass_at"),
    "best checkpoint without evaluations": (["trainer.keep_best=evaluation"], "trainer.keep_best"),
    "best checkpoint by an unknown data set": (
        ["trainer.keep_best=evaluation/docs", "trainer.evaluate_every=10"],
        "trainer.keep_best",
    ),
    "best checkpoint at steps that are not saved": (
        ["trainer.keep_best=evaluation", "trainer.evaluate_every=15"],
        "trainer.keep_best",
    ),
    "data sets of one name": (["data.evaluation.0.name=same", "data.evaluation.1.name=same"], "data.evaluation.1.name"),
    "two sources of data": (["data.train.path=missing.jsonl"], "data.train.path"),
    "no source of data": (["data.train.generator=null"], "data.train.path"),
    "missing data file": (["data.train.generator=null", "data.train.path=missing.jsonl"], "data.train.path"),
    "generator that is not there": (["data.train.generator=agentic.nothing.rows"], "data.train.generator"),
    "generator by a relative path": (["data.train.generator=.rows.make"], "data.train.generator"),
    "corpus by a relative path": (["retrieval.generator=.rows.make"], "retrieval.generator"),
    "generator that takes other arguments": (["+data.train.generator_args.colour=red"], "data.train.generator_args"),
    "hook that is not there": (["method.reward=agentic.memagent.reward.nothing"], "method.reward"),
    "hook that is not async": (["method.generate=os.path.join"], "method.generate"),
    "hook with another signature": (["method.generate=agentic.memagent.reward.reward"], "method.generate"),
    "pairs of replies in two passes": (["algorithm=dpo", "trainer.num_epochs_per_batch=2"], "trainer.num_epochs_per_batch"),
    "supervision without demonstrations": (["algorithm=sft", "data.demonstrations=null"], "data.demonstrations"),
    "gloo with GPUs": (["model=qwen2.5-7b", "mode=plan", "cluster.weight_transfer=gloo"], "cluster.weight_transfer"),
    "ipc apart": (
        ["model=qwen2.5-7b", "cluster=two_nodes", "mode=plan", "cluster.weight_transfer=ipc"],
        "cluster.weight_transfer",
    ),
    "nccl on shared GPUs": (["model=qwen2.5-7b", "mode=plan", "cluster.weight_transfer=nccl"], "cluster.weight_transfer"),
    "nodes without Ray": (["cluster.num_nodes=2", "mode=plan"], "cluster.ray_address"),
    "a server on two nodes": (
        ["model=qwen2.5-7b", "mode=plan", "serving.models.actor.tensor_parallel_size=16"],
        "serving.models.actor.tensor_parallel_size",
    ),
    "GPU transport without GPUs": (["cluster.weight_transfer=nccl"], "cluster.weight_transfer"),
    "differences without files": (
        ["cluster.num_delta_syncs=9", "cluster.weight_transfer=gloo"],
        "cluster.num_delta_syncs",
    ),
    "differences of adapters": (
        ["cluster.num_delta_syncs=9", "trainer.lora.rank=4", "serving.lora=adapter"],
        "cluster.num_delta_syncs",
    ),
    "ranks that are not the GPUs": ([*LARGE, "trainer.data_parallel_size=3"], "cluster.num_trainer_gpus"),
    "frozen model of no GPU that shares them": ([*SHARED, f"{JUDGE_SIZE}=0"], JUDGE_SIZE.lstrip("+")),
    "replicas without end that share GPUs": ([*SHARED, f"{JUDGE_REPLICAS}=1000000000000"], JUDGE_REPLICAS.lstrip("+")),
    "replicas without end at a port": (
        ["serving.models.actor.port=9000", "serving.models.actor.num_replicas=1000000000000"],
        "serving.models.actor.num_replicas",
    ),
    "server without end": (
        [*LARGE, "cluster.weight_transfer=ipc", "serving.models.actor.tensor_parallel_size=1000000000000"],
        "serving.models.actor.tensor_parallel_size",
    ),
    "fewer GPUs for frozen models than none": ([*LARGE, "cluster.num_frozen_gpus=-1"], "cluster.num_frozen_gpus"),
    "more replicas than GPUs": ([*LARGE, "serving.models.actor.num_replicas=9"], "cluster.num_server_gpus"),
    "turns on the same GPUs, but asynchronous": ([*LARGE, "rollout.max_staleness=1"], "rollout.max_staleness"),
    "servers elsewhere without addresses": (["model=qwen2.5-7b", "cluster=external", "mode=plan"], "serving.models.actor.urls"),
    "nothing to resume": (["resume=true", "name=never_run"], "resume"),
    "name that leads elsewhere": (["name=../../elsewhere"], "name"),
}


def problems_of(*words: str) -> list[Problem]:
    """The problems of a command line."""
    with pytest.raises(ConfigError) as caught:
        compose_run(list(words), check=find_problems)
    return caught.value.problems


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every test starts in a folder of its own, where nothing may be left."""
    (tmp_path / "start").mkdir()
    monkeypatch.chdir(tmp_path / "start")
    yield
    assert list((tmp_path / "start").iterdir()) == []


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_configuration_is_refused_by_its_key(case: str):
    words, key = WRONG[case]
    problems = problems_of(METHOD, *words)
    named = [problem for problem in problems if problem.key == key]
    assert named, [str(problem) for problem in problems]
    for problem in problems:
        assert len(problem.remedy) > 8 and "\n" not in problem.remedy and "Traceback" not in problem.remedy
    given = next((word.partition("=")[2] for word in words if word.lstrip("+").startswith(f"{key}=")), "")
    if given not in (".", "null"):  # shown as a whole path, and as None
        assert given.strip("[]").lower() in str(named[0].value).lower()


def test_a_key_in_place_of_its_variable_is_refused_and_not_shown():
    problems = problems_of(METHOD, *JUDGE, "+serving.models.judge.chat.api_key_variable=sk-a1b2")
    assert [problem.key for problem in problems] == ["serving.models.judge.chat.api_key_variable"]
    assert "sk-a1b2" not in str(problems)


def test_there_is_nothing_to_do_without_a_method():
    problem = problems_of("model=tiny")[0]
    assert problem.key == "method" and "+method=" in problem.remedy and "memagent" in problem.remedy


def test_the_right_one_is_accepted():
    assert compose_run([METHOD], check=find_problems).config.method.name == "memagent"


def test_a_second_served_model_is_accepted():
    config = compose_run([METHOD, "+serving.models.judge.port=9123", "serving.models.judge.max_model_len=1024"]).config
    assert config.serving.models["judge"].port == 9123
    assert find_problems(config) == []
    assert find_problems(compose_run([METHOD, *RANKED]).config) == []


def test_all_problems_are_named_at_once():
    words = ["foo=1", "rollout.num_prompts=many", "trainer.lr=0", "rollout.max_staleness=-1", "evaluation.num_runs=0"]
    keys = [problem.key for problem in problems_of(METHOD, *words)]
    assert sorted(keys) == sorted(word.partition("=")[0] for word in words)


def test_a_number_out_of_range_hides_no_problem_of_another_kind():
    words = ["serving.models.actor.tensor_parallel_size=0", "trainer.tensor_parallel_size=3", "rollout.top_p=0.9", "name=../x"]
    keys = {problem.key for problem in problems_of(METHOD, *words)}
    assert keys == {word.partition("=")[0] for word in words}


@pytest.mark.parametrize("key", ["method.reward", "data.train.generator", "retrieval.generator"])
def test_a_file_that_fails_is_named_by_its_key(key: str, tmp_path: Path):
    (tmp_path / "mine.py").write_text("rows = missing\n")
    problem = problems_of(METHOD, f"{key}={tmp_path}/mine.py:rows")[0]
    assert problem.key == key and "cannot be imported (NameError: name 'missing' is not defined)" in problem.remedy


def test_a_misspelled_key_gets_the_right_one():
    assert "rollout.temperature" in problems_of(METHOD, "rollout.temprature=1")[0].remedy
    assert "recompute_granularity" in problems_of(METHOD, "+trainer.megatron_args.recompute_granularty=full")[0].remedy


def test_a_port_in_use_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        problem = problems_of(METHOD, f"serving.models.actor.port={port}")[0]
    assert (problem.key, problem.value) == ("serving.models.actor.port", port)
    assert "in use" in problem.remedy


@pytest.mark.parametrize("lost", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_checkpoint_is_refused(lost: str, tmp_path: Path):
    folder = copy_of_tiny(tmp_path)
    (folder / lost).unlink()
    problem = problems_of(METHOD, f"model.checkpoint={folder}")[0]
    assert problem.key == "model.checkpoint" and lost.partition(".")[0] in problem.remedy.replace("weights", "model")


def test_a_checkpoint_of_another_shape_is_refused_with_every_difference(tmp_path: Path):
    folder = copy_of_tiny(tmp_path)
    found = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(found | {"num_hidden_layers": 5, "vocab_size": 77}))
    keys = {problem.key for problem in problems_of(METHOD, f"model.checkpoint={folder}")}
    assert {"model.num_layers", "model.vocab_size"} <= keys


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path):
    folder = copy_of_tiny(tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": 1024, "content": "<|too_large|>"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "<|endoftext|>"}))
    first, second = problems_of(METHOD, f"model.checkpoint={folder}")
    assert first.key == second.key == "model.checkpoint"
    assert "ids up to 1024 ('<|too_large|>'), its model only 1024 tokens" in first.remedy
    assert "'<|endoftext|>' with id 0, its config.json says eos_token_id=2" in second.remedy
    (folder / "tokenizer.json").write_text('{"model": ')
    assert "cannot be read" in problems_of(METHOD, f"model.checkpoint={folder}")[0].remedy


def test_a_best_checkpoint_of_a_measured_set_is_accepted():
    words = ["trainer.keep_best=evaluation/docs_80", "trainer.save_every=5", "trainer.evaluate_every=10"]
    assert find_problems(compose_run([METHOD, *words]).config) == []


def test_a_name_on_the_hub_is_not_looked_up():
    config = compose_run([METHOD, "model.checkpoint=someone/some-model"]).config
    assert not [problem for problem in find_problems(config) if problem.key == "model.checkpoint"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "two versions of the weights need "),
        (["cluster.weight_transfer=gloo"], "the weights for a restarted server need "),
        (["model=qwen2.5-7b", "cluster=one_node"], "the weights for a restarted server need 14.2 GiB, "),
        (["cluster.weight_transfer=disk"], None),
        (["cluster.num_nodes=2", "cluster.weight_transfer=gloo"], None),
    ],
    ids=["shm", "gloo", "ipc", "disk", "two nodes"],
)
def test_shared_memory_too_small_for_the_weights_is_refused(words: list[str], text: str | None, monkeypatch: pytest.MonkeyPatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000 if str(path) == "/dev/shm" else 2**50))
    problems = machine_requirements.shared_memory(compose_run([METHOD, *words]).config)
    assert [problem.key for problem in problems] == ["cluster.weight_transfer"] * (text is not None)
    assert text is None or problems[0].remedy.startswith(text)


def test_gpus_are_missed_on_a_machine_without_them_but_not_in_a_plan(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = [METHOD, "model=qwen2.5-7b", "cluster=one_node"]
    assert "cluster.gpus_per_node" in [problem.key for problem in problems_of(*words)]
    assert find_problems(compose_run([*words, "mode=plan"]).config) == []


@pytest.mark.parametrize("case", ["unknown key", "missing model folder", "context too short for a chunk"])
@pytest.mark.slow
def test_the_program_ends_with_two_and_starts_nothing(case: str, tmp_path: Path):
    words, key = WRONG[case]
    ended = subprocess.run(
        [sys.executable, "-m", "vime.run", METHOD, *words], capture_output=True, text=True, cwd=tmp_path / "start", timeout=60
    )
    assert ended.returncode == 2, ended.stderr
    assert key in ended.stderr and "Nothing was started" in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


def copy_of_tiny(folder: Path) -> Path:
    """The shipped checkpoint, to be broken."""
    shipped = compose_run([METHOD]).config.model.checkpoint
    return Path(shutil.copytree(shipped, folder / "checkpoint"))
