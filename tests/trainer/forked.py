"""The ranks of a test, forked from one process that has imported everything but computed nothing: importing takes longest."""

import os
import sys
import traceback
from collections.abc import Callable


def fork_ranks(num_ranks: int, main: Callable[[int], None]) -> int:
    """Calls `main(rank)` in a child for every rank; 0 if all succeed."""
    children = {}
    for rank in range(num_ranks):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                main(rank)
                code = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                sys.stderr.flush()
                os._exit(code)
        children[pid] = rank
    failed = 0
    while children:
        pid, status = os.wait()
        children.pop(pid)
        if status:
            failed = 1
            for other in children:
                os.kill(other, 9)  # they would wait for the failed one in a collective
    return failed
