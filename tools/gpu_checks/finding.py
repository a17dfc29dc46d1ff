"""The finding of a check, and the table of all findings."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One measured number, beside the required one.

    Example: `Finding(check="logits", case="qwen3", found=3e-6, wanted="at most 1e-04", passed=True, unit="of the largest")`.
    """

    check: str
    case: str
    found: float | None
    """The measured number; None if the check failed before it had one, and then `wanted` says why."""
    wanted: str
    passed: bool
    unit: str = ""


def at_most(check: str, case: str, found: float, limit: float, *, unit: str = "") -> Finding:
    """A number with an upper bound; one that is not finite exceeds it."""
    return Finding(check=check, case=case, found=found, wanted=f"at most {limit:.3g}", passed=found <= limit, unit=unit)


def between(check: str, case: str, found: float, low: float, high: float, *, unit: str = "") -> Finding:
    """A number with two bounds."""
    wanted = f"{low:.3g} to {high:.3g}"
    return Finding(check=check, case=case, found=found, wanted=wanted, passed=low <= found <= high, unit=unit)


def measured(check: str, case: str, found: float, *, unit: str) -> Finding:
    """A number that is only reported; it must be above zero."""
    return Finding(check=check, case=case, found=found, wanted="-", passed=found > 0, unit=unit)


def failed(check: str, reason: str) -> Finding:
    """A check that ended before it had a number."""
    return Finding(check=check, case="all of it", found=None, wanted=reason, passed=False)


def table(findings: Sequence[Finding]) -> str:
    """One line per finding, failures marked at the beginning."""
    lines = [f"  {'check':<12} {'case':<52} {'found':>12}  {'wanted':<20} unit"]
    for one in findings:
        number = "-" if one.found is None else f"{one.found:.4g}"
        mark = " " if one.passed else "!"
        lines.append(f"{mark} {one.check:<12} {one.case:<52} {number:>12}  {one.wanted:<20} {one.unit}".rstrip())
    return "\n".join(lines)


def write_markdown(findings: Sequence[Finding], machine: dict[str, Any], path: Path) -> None:
    """A page of the machine and all findings, failures in bold."""
    num_passed = sum(one.passed for one in findings)
    about = ", ".join(f"{name} {value}" for name, value in machine.items())
    lines = [
        "# The trainer on a CUDA device",
        "",
        f"Written by `python tools/gpu_check.py`: {about}.",
        "",
        f"{num_passed} of {len(findings)} findings are as they should be; others are in bold.",
        "",
        "| check | case | found | wanted | unit |",
        "|---|---|--:|---|---|",
    ]
    for one in findings:
        number = "-" if one.found is None else f"{one.found:.4g}"
        number = number if one.passed else f"**{number}**"
        lines.append(f"| {one.check} | {one.case} | {number} | {one.wanted} | {one.unit} |")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def read_json(path: Path, machine: dict[str, Any]) -> list[Finding]:
    """The findings in a file, none if they are another machine's."""
    content = json.loads(path.read_text())
    return [Finding(**one) for one in content["findings"]] if content["machine"] == machine else []


def write_json(findings: Sequence[Finding], machine: dict[str, Any], path: Path) -> None:
    """The machine and all findings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "findings": [asdict(one) for one in findings]}, indent=2) + "\n")
