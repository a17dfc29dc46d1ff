"""When a server that was started with random weights may answer; that its tokens say so until then, `test_proof.py` shows."""

import pytest

from vime.processes.program import ProgramSpec
from vime.serving.server import Server
from vime.weights.payload import NO_VERSION


@pytest.mark.parametrize(
    ("awaits_weights", "version", "is_ready"),
    [
        (True, NO_VERSION, True),  # nobody asks it before the first sync
        (True, 0, False),  # the first sync was without files: only the trainer has them
        (True, 3, False),
        (False, 0, True),  # the checkpoint's
        (False, 3, False),
    ],
)
async def test_a_restarted_server_asks_for_weights_that_it_did_not_start_with(awaits_weights: bool, version: int, is_ready: bool):
    spec = ProgramSpec(name="actor-0", address="127.0.0.1", port=1, command=[], log="", awaits_weights=awaits_weights)
    server = Server(spec)
    await server.adopt(version, None)
    assert server._has_files() is is_ready
