"""Memory of trainer and servers on one GPU at a sync: counted, shown by the plan, refused where it does not fit."""

import pytest

from vime.config import RunConfig
from vime.memory.processes import (
    GIB,
    SLEEPER_RESERVE,
    TRAINER_RESERVE,
    host_memory,
    reserved_bytes,
    trainer_memory,
)
from vime.memory.sync import sync_memory
from vime.model.size import num_parameters
from vime.preflight.compose import compose_run
from vime.preflight.rules.gpu_memory import at_a_sync, trainer_fits

ONE_NODE = ("model=qwen2.5-7b", "cluster=one_node")
SHARE = "serving.models.actor.gpu_memory_utilization"


def planned(*words: str) -> RunConfig:
    """The configuration of a plan."""
    return compose_run(["+method=memagent", "mode=plan", *words]).config


def test_at_a_sync_a_gpu_holds_the_weights_twice_and_then_the_caches():
    config = planned(*ONE_NODE)
    own, served = num_parameters(config.model), 2 * num_parameters(config.model)  # two shards and one, in bfloat16
    largest = 2 * config.model.vocab_size * config.model.hidden_size
    memory = sync_memory(config)
    assert memory["loading"] == pytest.approx(
        {
            "trainer's weights": own,
            "export": 2 * largest + 2 * max(largest, 2**30),
            "servers' weights": served,
            "reserve": TRAINER_RESERVE + SLEEPER_RESERVE,
        }
    )
    assert memory["probing"] == pytest.approx({"trainer's weights": own, "servers": 0.6 * 79.6 * GIB, "reserve": TRAINER_RESERVE})
    assert sync_memory(planned(*ONE_NODE, "cluster.weight_transfer=shm"))["loading"]["export"] == 2 * largest


def test_a_model_fits_at_a_sync_whose_optimizer_would_not_fit_beside_the_servers():
    config = planned("model=qwen3-32b", "cluster=one_node")
    trainer = trainer_memory(config)
    with_optimizer = sum(trainer[part] for part in ("weights", "gradients", "optimizer")) + 0.6 * 80 * GIB
    assert with_optimizer > 80 * GIB
    assert at_a_sync(config) == []


def test_servers_that_leave_the_trainers_weights_no_room_are_refused_with_a_share_that_does():
    (problem,) = at_a_sync(planned(*ONE_NODE, f"{SHARE}=0.95"))
    assert problem.key == SHARE and "85.7" in problem.remedy
    share = problem.remedy.split("use at most ")[1].split(",")[0]
    assert at_a_sync(planned(*ONE_NODE, f"{SHARE}={share}")) == []


def test_weights_that_do_not_fit_twice_are_refused():
    problems = at_a_sync(planned("model=qwen2.5-7b", "cluster=one_node", "cluster.gpu_memory_gib=24", f"{SHARE}=0.6"))
    assert "trainer.tensor_parallel_size" in [problem.key for problem in problems]


def test_gpus_of_their_own_hold_nothing_of_the_others():
    assert sync_memory(planned("model=qwen2.5-7b", "cluster=two_nodes")) == {}
    assert at_a_sync(planned("model=qwen2.5-7b", "cluster=two_nodes", f"{SHARE}=0.95")) == []


def test_a_trainer_rank_that_leaves_no_reserve_is_refused_by_name():
    config = planned(*ONE_NODE)
    needed = (sum(trainer_memory(config).values()) + reserved_bytes(config)) / GIB
    assert trainer_fits(planned(*ONE_NODE, f"cluster.gpu_memory_gib={needed + 0.01}")) == []
    (problem,) = trainer_fits(planned(*ONE_NODE, f"cluster.gpu_memory_gib={needed - 0.01}"))
    assert problem.key == "trainer.tensor_parallel_size" and "trainer.recompute=true" in problem.remedy
    assert trainer_fits(planned(*ONE_NODE, "cluster=laptop", "cluster.gpu_memory_gib=1")) == []


def test_each_sleeping_server_keeps_something_of_a_shared_gpu():
    alone, shared = planned("model=qwen2.5-7b", "cluster=two_nodes"), planned(*ONE_NODE)
    assert reserved_bytes(shared) > reserved_bytes(alone) > 0 == reserved_bytes(planned("cluster=laptop"))


def test_a_rank_on_shared_gpus_keeps_weights_and_optimizer_in_host_memory():
    shared, alone = planned(*ONE_NODE), planned("model=qwen2.5-7b", "cluster=two_nodes")
    rank = trainer_memory(shared)
    assert host_memory(shared) == {"weights": rank["weights"], "optimizer": rank["optimizer"], "reference": rank["weights"]}
    assert host_memory(alone) == {"reference": rank["weights"]} and host_memory(planned("cluster=laptop")) == {}
