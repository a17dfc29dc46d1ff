"""A service's settings on clusters that are not here, and the plan that it shows of them."""

import pytest

from vime.errors import ConfigError
from vime.service.__main__ import main
from vime.service.configuration import compose_service


@pytest.mark.parametrize(
    ("words", "numbers"),
    [(["cluster=one_node"], (4, 4)), (["cluster=two_nodes"], (8, 8)), (["cluster=one_node", "cluster.gpus_per_node=4"], (2, 2))],
)
def test_trainer_and_servers_have_gpus_of_their_own(words: list[str], numbers: tuple[int, int]):
    cluster = compose_service(["model=qwen3-8b", "mode=plan", *words]).config.cluster
    assert not cluster.colocated and (cluster.num_trainer_gpus, cluster.num_server_gpus) == numbers


def test_turns_that_are_asked_for_are_refused():
    with pytest.raises(ConfigError, match="clients sample while others train"):
        compose_service(["model=qwen3-8b", "mode=plan", "cluster=one_node", "cluster.colocated=true"])


def test_a_plan_shows_limits_and_the_memory_of_all_models_and_starts_nothing(capsys: pytest.CaptureFixture[str]):
    def planned(number: int) -> str:
        assert (
            main(["model=qwen3-8b", "cluster=one_node", "mode=plan", f"service.max_models={number}", "service.key_models=3"]) == 0
        )
        return capsys.readouterr().out

    few, many = planned(1), planned(64)
    assert "at most 64 models" in many and "each API key: 3 models" in many and "Nothing was started" in many
    memory = [float(text.partition("each trainer rank, on each GPU of 79.6 GiB: ")[2].split()[0]) for text in (few, many)]
    assert memory[1] > memory[0] + 10


def test_a_plan_of_all_weights_has_one_model(capsys: pytest.CaptureFixture[str]):
    assert main(["model=qwen3-8b", "cluster=one_node", "mode=plan", "trainer.lora.rank=0"]) == 0
    assert "one model at a time, of rank 0" in capsys.readouterr().out
