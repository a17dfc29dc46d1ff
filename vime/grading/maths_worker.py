"""A process that compares formulas with math-verify (https://github.com/huggingface/Math-Verify), one per line of its input.

    python -m vime.grading.maths_worker

A request is a line `{"seconds": 6, "answer": …, "gold": […]}`, its result a line with a value of `vime.grading.maths.Equality`.
An alarm ends the process if a request takes longer, so that it does not keep running when its owner is gone.
"""

import json
import math
import resource
import signal
import sys
from typing import Any

_NO_TIMEOUT: Any = None
"""math-verify's own time limit would replace the alarm."""
MEMORY_BYTES = 4 * 2**30
"""Limit of the address space; the libraries alone need 1 GiB."""


def compare(answer: str, gold: list[str]) -> str:
    """The verdict `equal`, `different` or `undecided`. math-verify is not symmetric: the reference comes first."""
    found = _parse(answer)
    references = [_parse(reference) for reference in gold]
    if any(found and reference and _verify(reference, found) for reference in references):
        return "equal"
    return "different" if found and all(references) else "undecided"


def _parse(text: str) -> list[Any]:
    """math-verify's reading of a formula, put between dollars so that it is recognized as one."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    bare = text.strip().strip("$").strip()
    extraction = [LatexExtractionConfig(boxed_match_priority=50), ExprExtractionConfig()]
    return parse(f"${bare}$", extraction_config=extraction, parsing_timeout=_NO_TIMEOUT) or []


def _verify(reference: list[Any], found: list[Any]) -> bool:
    from math_verify import verify

    return verify(reference, found, strict=True, float_rounding=6, timeout_seconds=_NO_TIMEOUT)


def main() -> None:
    """Answers requests until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    import logging

    logging.disable(logging.CRITICAL)  # math-verify logs every formula that it cannot read
    compare("1", ["1"])  # loads everything before the first clock runs
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(math.ceil(request["seconds"]) + 1)
        try:
            verdict = compare(request["answer"], request["gold"])
        except Exception:  # the library parses arbitrary text: what it fails at is undecided
            verdict = "undecided"
        signal.alarm(0)
        sys.stdout.write(f"{verdict}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
