"""The probe with servers that do not answer; `test_weight_sync.py` has its findings about those that do."""

import math
from typing import Any

import pytest

from vime.config import Precision
from vime.errors import ServerError, WeightSyncError
from vime.serving.endpoint import Endpoint
from vime.sync import probe as probe_module
from vime.sync.probe import Tolerance, probe
from vime.types import Turn

LOGPROB = -0.5


class Client:
    """Servers by their address: one is lost, one has other weights, one gives no numbers."""

    def __init__(self, endpoint: Endpoint, config: Any) -> None:
        self._url = endpoint.url

    async def generate(self, token_ids: Any, *, sampling: dict[str, Any], **about: Any) -> Turn:
        if "lost" in self._url:
            raise ServerError(f"{self._url} gave no answer")
        logprob = math.nan if "broken" in self._url else LOGPROB - 0.01 * ("wrong" in self._url) - 5e-5 * ("drifts" in self._url)
        count = sampling["max_tokens"]
        return Turn(output_ids=[1] * count, logprobs=[logprob] * count, weight_versions=[1] * count, finish_reason="length")

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "TokenClient", Client)


async def ask(*urls: str) -> dict[str, float]:
    async def trainer(tokens: list[list[int]], lengths: list[int]) -> list[list[float]]:
        return [[LOGPROB] * length for length in lengths]

    endpoint = Endpoint(
        name="actor", url="router", worker_urls=urls, model="actor", tokenizer="", max_model_len=256, trained=True
    )
    return await probe(endpoint, trainer, temperature=1.0, tolerance=Tolerance.of(Precision.float32), vocab_size=64, seed=0)


async def test_a_lost_server_is_left_out_while_there_are_others():
    found = await ask("good", "lost")
    differences = ("probe/max_difference_cold", "probe/max_difference_cached", "probe/mean_difference")
    assert found.pop("probe/seconds") >= 0
    assert found == {"probe/num_servers": 1.0, **dict.fromkeys(differences, 0.0)}


async def test_without_any_answer_the_probe_fails_and_without_any_server_there_is_nothing_to_compare():
    with pytest.raises(ServerError, match="lost gave no answer"):
        await ask("lost")
    assert await ask() == {"probe/num_servers": 0.0}


@pytest.mark.parametrize("urls", [("broken",), ("good", "broken"), ("broken", "good")])
async def test_a_logprob_that_is_no_number_is_no_agreement(urls: tuple[str, ...]):
    with pytest.raises(WeightSyncError, match="broken: largest difference nan"):
        await ask(*urls)


async def test_the_server_that_disagrees_is_named():
    with pytest.raises(WeightSyncError, match=r"wrong: largest difference 0\.01 with a cold, 0\.01 with"):
        await ask("good", "wrong", "lost")


async def test_a_small_difference_of_every_token_is_found_by_the_mean():
    with pytest.raises(WeightSyncError, match=r"(?s)or 2\.5e-05 in the mean:.*drifts: largest difference 5e-05 .* mean 5e-05"):
        await ask("good", "drifts")


def test_a_tolerance_of_ones_own_keeps_the_share_of_the_mean():
    assert Tolerance.of(Precision.bfloat16) == Tolerance(largest=1.0, mean=0.2)
    assert Tolerance.of(Precision.bfloat16, has_experts=True) == Tolerance(largest=math.inf, mean=0.2)
    assert Tolerance.of(Precision.bfloat16, 2.0, has_experts=True) == Tolerance.of(Precision.bfloat16, 2.0)
    assert Tolerance.of(Precision.float32, has_experts=True) == Tolerance.of(Precision.float32)
    assert Tolerance.of(Precision.float32, is_quantized=True) == Tolerance(largest=math.inf, mean=0.5)
    assert Tolerance.of(Precision.bfloat16, 0.1, is_quantized=True) == Tolerance(largest=math.inf, mean=0.1)
    assert Tolerance.of(Precision.float32, 1e-2).mean == pytest.approx(5e-4)
