"""Sessions of agents: which of them end for their silence, and whose they are."""

from types import SimpleNamespace
from typing import Any

import pytest

from vime.config import ModelConfig, RunConfig
from vime.errors import BadRequestError
from vime.service.agent_sessions import Agent, AgentSessions, SamplerClient


def test_a_silent_session_ends_unless_it_waits_for_a_reply():
    service: Any = SimpleNamespace(config=RunConfig(model=ModelConfig(name="tiny")))
    agents = AgentSessions(service)
    none: Any = lambda *_: None  # noqa: E731
    agents._gateway.close = none
    for name, heard_at, num_calls in (("silent", 1.0, 0), ("waits", 1.0, 1), ("heard", 9.0, 0)):
        client = SamplerClient(sampling=none, take_tokens=none, heard_at=heard_at, num_calls=num_calls)
        session: Any = SimpleNamespace()
        agents._open[name] = Agent(owner="me", session=session, client=client)
    agents.close_silent(5.0)
    assert list(agents._open) == ["waits", "heard"]
    with pytest.raises(BadRequestError, match="no agent heard"):
        agents.close("heard", "another")
    agents.close("heard", "me")
    assert list(agents._open) == ["waits"]
