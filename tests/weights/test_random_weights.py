"""When a server that was started with random weights may answer; that its tokens say so until then, `test_proof.py` shows."""

import pytest

from vime.serving.expected_weights import ExpectedWeights
from vime.weights.payload import NO_VERSION


@pytest.mark.parametrize(
    ("awaits_sync", "version", "is_ready"),
    [
        (True, NO_VERSION, True),  # nobody asks it before the first sync
        (True, 0, False),  # the first sync was without files: only the trainer has them
        (True, 3, False),
        (False, 0, True),  # the checkpoint's
        (False, 3, False),
    ],
)
def test_a_restarted_server_asks_for_weights_that_it_did_not_start_with(awaits_sync: bool, version: int, is_ready: bool):
    assert ExpectedWeights(awaits_sync=awaits_sync, version=version).are_at_hand() is is_ready
