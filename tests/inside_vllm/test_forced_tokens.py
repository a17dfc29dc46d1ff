"""The next token of each request of a batch, and the servers that take forced tokens; a real rehearsal tests the patch."""

from types import SimpleNamespace
from typing import Any

import pytest

from vime.config import RunConfig, ServedModelConfig
from vime.inside_vllm.forced_tokens import FORCED, VARIABLE, _forced, wanted
from vime.serving.flags import server_environment


def request(said: list[int], extra: dict[str, Any] | None) -> SimpleNamespace:
    return SimpleNamespace(output_token_ids=said, sampling_params=SimpleNamespace(extra_args=extra))


def test_each_request_gets_its_next_token_until_it_has_all():
    requests = {
        "begins": request([], {FORCED: [5, 6]}),
        "goes on": request([5], {FORCED: [5, 6]}),
        "has all": request([5, 6], {FORCED: [5, 6]}),
        "plain": request([], None),
        "other": request([], {"another": 1}),
    }
    runner = SimpleNamespace(input_batch=SimpleNamespace(req_ids=list(requests)), requests=requests)
    assert _forced(runner) == {0: 5, 1: 6}


@pytest.mark.parametrize("rehearse", [False, True])
def test_only_servers_of_a_rehearsal_take_forced_tokens(rehearse: bool, monkeypatch: pytest.MonkeyPatch):
    environment = server_environment(RunConfig(rehearse=rehearse), ServedModelConfig(), cpus=[], gpus=[])
    assert (VARIABLE in environment) == rehearse
    if rehearse:
        monkeypatch.setenv(VARIABLE, str(environment[VARIABLE]))
    assert wanted() == rehearse
