"""A process that reads and compares formulas (`formula_parser.py`, `equality.py`), one request per line of its input.

    python -m vime.grading.maths_worker

A request is a line `{"seconds": 6, "answer": …, "gold": […]}`, its result a line with a value of `vime.grading.maths.Equality`.
An alarm ends the process if a request takes longer, so that it does not keep running when its owner is gone.
"""

import json
import math
import resource
import signal
import sys

MEMORY_BYTES = 4 * 2**30
"""Limit of the address space."""


def compare(answer: str, gold: list[str], *, digits: int | None = None) -> str:
    """The verdict `equal`, `different` or `undecided`, the last for texts that are not formulas or cannot be computed."""
    verdicts = [_same(answer, reference, digits) for reference in gold]
    return "equal" if True in verdicts else "undecided" if None in verdicts else "different"


def _same(answer: str, reference: str, digits: int | None) -> bool | None:
    from vime.grading.equality import EqualityRules
    from vime.grading.expression import Undefined, Unread
    from vime.grading.formula_parser import read

    try:
        return EqualityRules(digits=digits).same(read(answer), read(reference))
    except (Unread, Undefined, OverflowError):
        return None


def main() -> None:
    """Answers requests until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    compare("1", ["1"])  # loads everything before the first clock runs
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(math.ceil(request["seconds"]) + 1)
        try:
            verdict = compare(request["answer"], request["gold"], digits=request.get("digits"))
        except Exception:  # whatever a text does to the reader, it is undecided
            verdict = "undecided"
        signal.alarm(0)
        sys.stdout.write(f"{verdict}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
