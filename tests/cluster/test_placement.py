"""Places of processes and ways of weights, as arithmetic; and the same nodes and GPUs as Ray gives them."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from vime.cluster.placement import Place, server_places, takes_turns, trainer_places, transport
from vime.config import RunConfig
from vime.preflight.compose import compose_run
from vime.trainer.rank import num_neighbours

ROOT = Path(__file__).parents[2]


def planned(*words: str) -> RunConfig:
    """The configuration of a plan."""
    return compose_run(["+method=memagent", "mode=plan", *words]).config


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ([], "shm"),
        (["model=qwen2.5-0.5b", "cluster=one_gpu"], "ipc"),
        (["model=qwen2.5-7b", "cluster=one_node"], "ipc"),
        (["model=qwen2.5-7b", "cluster=two_nodes"], "nccl"),
        (["model=qwen2.5-7b", "cluster=external"], "disk"),
        (["cluster.num_nodes=2"], "disk"),
        (["cluster.num_nodes=2", "cluster.weight_transfer=gloo"], "gloo"),
        (["model=qwen2.5-7b", "cluster=one_node", "cluster.weight_transfer=shm"], "shm"),
    ],
)
def test_the_way_of_the_weights_follows_the_places(words: list[str], way: str):
    assert transport(planned(*words)).value == way


def test_only_gpus_that_are_shared_change_hands():
    assert takes_turns(planned("model=qwen2.5-7b", "cluster=one_node"))
    assert not takes_turns(planned("model=qwen2.5-7b", "cluster=two_nodes"))
    assert not takes_turns(planned("model=qwen2.5-7b", "cluster=external"))
    assert not takes_turns(planned())


def test_no_server_is_cut_in_two_by_the_end_of_a_node():
    config = planned("model=qwen2.5-7b", "cluster=two_nodes", "trainer.data_parallel_size=6", "cluster.num_trainer_gpus=6")
    actor = config.serving.models["actor"]
    actor.num_replicas, actor.tensor_parallel_size = 2, 4
    assert trainer_places(config, 6)[-1] == Place(node=0, gpus=(5,))
    assert server_places(config)["actor"] == [Place(node=1, gpus=(0, 1, 2, 3)), Place(node=1, gpus=(4, 5, 6, 7))]


def test_trainer_ranks_share_the_cores_of_their_own_node():
    config = planned("model=qwen2.5-7b", "cluster=two_nodes", "trainer.data_parallel_size=6", "cluster.num_trainer_gpus=12")
    assert [num_neighbours(config, rank) for rank in (0, 7, 8, 11)] == [8, 8, 4, 4]
    assert num_neighbours(planned("trainer.data_parallel_size=2"), 1) == 2


def test_without_gpus_the_first_node_trains_and_the_others_serve():
    config = planned("cluster.num_nodes=3", "cluster.colocated=false", "serving.models.actor.num_replicas=3")
    assert [place.node for place in trainer_places(config, 2)] == [0, 0]
    assert [place.node for place in server_places(config)["actor"]] == [1, 2, 1]


TWO_NODES = """
    import json, os, sys
    import ray
    from ray.cluster_utils import Cluster
    from vime.cluster import nodes
    from vime.config import ClusterConfig, RunConfig
    from vime.errors import ServerError
    from vime.cluster.placement import Place

    class Who:
        def answer(self):
            return ray.get_runtime_context().get_node_id(), os.environ.get("CUDA_VISIBLE_DEVICES")

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2, num_gpus=3)
    ray.init(address=cluster.address, log_to_driver=False)
    config = RunConfig(cluster=ClusterConfig(num_nodes=2, gpus_per_node=2, ray_address=cluster.address, host="127.0.0.1"))
    found = nodes.Nodes(config)
    found.reserve()
    result = {"own": ray.get_runtime_context().get_node_id(), "length": len(found), "seen": [], "gpus": []}
    for place in (Place(node=0, gpus=(1,)), Place(node=1, gpus=(0, 1)), Place(node=1)):
        actor = ray.remote(Who).options(**found.options(place, devices=True)).remote()
        result["seen"].append(ray.get(actor.answer.remote()))
        result["gpus"].append(found.gpus(place))
    result["ports"] = [found.take_port(1, 0, "key") for _ in range(20)]
    result["left"] = ray.available_resources().get("GPU", 0)
    nodes.RESERVE_TIMEOUT_SECONDS = 2.0
    try:
        nodes.Nodes(config).reserve()
    except ServerError as error:
        result["refused"] = str(error)
    found.release()
    again = nodes.Nodes(config)
    nodes.RESERVE_TIMEOUT_SECONDS = 60.0
    again.reserve()
    result["again"] = len(again)
    print(json.dumps(result))
    ray.shutdown()
    cluster.shutdown()
"""


@pytest.fixture(scope="module")
def two_nodes() -> dict[str, Any]:
    """The driver's view of a Ray cluster of two nodes that claim to have GPUs."""
    command = [sys.executable, "-c", textwrap.dedent(TWO_NODES)]
    seen = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}  # with which there are none
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, env=seen)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.in_turn
def test_actors_are_on_the_node_of_their_place_and_see_its_gpus(two_nodes: dict[str, Any]):
    (first, one), (second, both), (third, none) = two_nodes["seen"]
    assert first == two_nodes["own"] and second == third != first
    assert [one, both] == [",".join(map(str, gpus)) for gpus in two_nodes["gpus"][:2]]
    assert not none
    assert len(set(two_nodes["ports"])) == 20


@pytest.mark.slow
@pytest.mark.in_turn
def test_a_run_holds_its_gpus_until_it_ends(two_nodes: dict[str, Any]):
    assert two_nodes["length"] == two_nodes["again"] == 2
    assert two_nodes["left"] == 1
    assert "2 node(s) with 2 free GPUs each" in two_nodes["refused"] and "with 3 GPUs" in two_nodes["refused"]
