"""Command lines and environments of servers and routers."""

from vime.config import ModelConfig, RunConfig, ServedModelConfig, ServingConfig
from vime.serving.flags import server_arguments, server_environment, to_flags
from vime.serving.plugin import register
from vime.serving.router import router_command


def test_dictionaries_become_flags():
    arguments = {"block_size": 32, "enforce_eager": True, "log_stats": False, "x": None, "urls": ["a", "b"], "c": {"d": 1}}
    expected = ["--block-size", "32", "--enforce-eager", "--no-log-stats", "--urls", "a", "b", "--c", '{"d": 1}']
    assert to_flags(arguments) == expected


def test_the_users_vllm_args_win_however_they_are_spelled():
    model = ServedModelConfig(vllm_args={"block-size": 64, "dtype": "bfloat16"})
    arguments = server_arguments(RunConfig(), "actor", model, index=0, port=1)
    assert arguments["block_size"] == 64
    assert arguments["dtype"] == "bfloat16"
    assert "block-size" not in arguments


def test_replicas_have_seeds_of_their_own():
    model = ServedModelConfig()
    seeds = {server_arguments(RunConfig(seed=5), "actor", model, index=index, port=1)["seed"] for index in range(3)}
    assert seeds == {5, 6, 7}


def test_a_server_never_has_more_positions_than_the_trained_model():
    config = RunConfig(model=ModelConfig(max_position_embeddings=512))
    assert server_arguments(config, "actor", ServedModelConfig(), index=0, port=1)["max_model_len"] == 512
    other = ServedModelConfig(checkpoint="other/model")
    assert server_arguments(config, "judge", other, index=0, port=1)["max_model_len"] == 8192


def test_without_a_gpu_servers_get_their_cores_and_no_warm_up():
    config = RunConfig()
    arguments = server_arguments(config, "actor", ServedModelConfig(gpu_memory_utilization=0.05), index=0, port=1)
    assert arguments["enforce_eager"] and arguments["kv_cache_memory_bytes"] > 0
    environment = server_environment(config, ServedModelConfig(), cpus=[1], gpus=[])
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert "libgomp" in (environment["LD_PRELOAD"] or "")


def test_with_gpus_servers_see_only_theirs():
    config = RunConfig()
    config.cluster.gpus_per_node = 8
    environment = server_environment(config, ServedModelConfig(), cpus=[], gpus=[2, 3])
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "enforce_eager" not in server_arguments(config, "actor", ServedModelConfig(), index=0, port=1)


def test_router_args_win_over_the_quick_failover():
    config = ServingConfig(router_args={"retry_max_retries": 2}, router_policy="round_robin")
    command = router_command(config, host="127.0.0.1", port=1, prometheus_port=2, worker_urls=["http://a", "http://b"])
    assert command[command.index("--retry-max-retries") + 1] == "2"
    assert command[command.index("--policy") + 1] == "round_robin"
    assert command[command.index("--worker-urls") + 1 :][:2] == ["http://a", "http://b"]


def test_the_plugin_can_be_loaded_twice_and_every_transport_imported():
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    register()
    register()
    engines = {name: WeightTransferEngineFactory._registry[name]() for name in ("shm", "vime_ipc", "vime_nccl", "vime_gloo")}
    assert all(hasattr(engine, "weight_report") for engine in engines.values())
