"""The time from which a server that was started with random weights may answer; `test_proof.py` tests its tokens' mark."""

import pytest

from vime.weights.payload import NO_VERSION
from vime.weights.policy import Policy


@pytest.mark.parametrize(
    ("starts_random", "version", "is_ready"),
    [
        (True, NO_VERSION, True),  # nobody asks it before the first sync
        (True, 0, False),  # the first sync was without files: only the trainer has them
        (True, 3, False),
        (False, 0, True),  # the checkpoint's
        (False, 3, False),
    ],
)
def test_a_restarted_server_asks_for_weights_that_it_did_not_start_with(starts_random: bool, version: int, is_ready: bool):
    assert Policy(version=version).is_at_hand(starts_random=starts_random) is is_ready
