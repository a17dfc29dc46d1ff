"""Finds the measured numbers of a Markdown text, and looks each up in the file under `results/` that is named beside it.

A block is a paragraph, an entry of a list, or a table together with the paragraph before it. A block that names `results/FILE`
quotes that file. What must be found there:

- in a table, all numbers of a row after its first cell, in their order, in one line of the file, which may have more decimals;
- in a sentence, every mean with its deviation, every number with a unit of measurement, and every number with decimals, with the
  same digits as in the file.

A block that names no file must have none of these, apart from settings and limits (`LIMITS` in `test_quoted_numbers.py`). Code is
no prose, unless it is nothing but a quantity.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"
FRACTION = r"\d+(?:,\d{3})*\.\d+(?:e[-+]?\d+)?"
UNIT = (
    r"%|percent|ms|s|min|h|seconds|minutes|hours|[KMGT]i?B|[MG]Hz|GFLOP/s|TFLOP/s|tokens/s|times|points|"
    r"tokens (?:a|per) second|steps (?:a|per|an) hour|calls (?:a|per) second"
)
PAIR = re.compile(rf"{NUMBER} ± {NUMBER}")
ENTRY = re.compile(rf"{NUMBER}(?: ± {NUMBER})?")
MEASURED = re.compile(rf"{NUMBER} ± {NUMBER}|(?<![\w.])(?:{NUMBER})(?=(?: to {NUMBER})? ?(?:{UNIT})(?![\w/-]))")
DECIMAL = re.compile(rf"(?<![\w./-]){FRACTION}(?![\w.]*\w)")
RESULT = re.compile(rf"(?:{NUMBER} ± {NUMBER}|{FRACTION})(?:, (?:{NUMBER} ± {NUMBER}|{NUMBER}))*")
NAMES = re.compile(
    r"arXiv:? ?[\d.]+v?\d*|\b\d{4}\.\d{5}\w*|(?:[Ss]ection|[Tt]able|[Ee]quation|eq\.|sec\.|Python|[Vv]ersion) \d+(?:\.\d+)*"
)
CODE = re.compile(r"`([^`]*)`")
QUANTITY = re.compile(rf"(?:{NUMBER})(?: ± {NUMBER})? ?(?:{UNIT})|{NUMBER} ± {NUMBER}")
SOURCE = re.compile(r"results/([\w/]+\.(?:md|json|yaml))")


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Lines that belong together. Example: `Block(prose="From `results/memagent.md`:", rows=["| trained | 98.0 ± 1.0 |"])`."""

    prose: str
    rows: list[str]

    @property
    def sources(self) -> list[str]:
        """The files under `results/` that the block names."""
        return SOURCE.findall(self.prose)


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a Markdown text without its code blocks and headings."""
    caption = ""
    for lines in paragraphs(text):
        if lines[0].startswith("|"):
            yield Block(prose=caption, rows=lines[2:])
        else:
            caption = " ".join(lines)
            yield Block(prose=caption, rows=[])


def paragraphs(text: str) -> Iterator[list[str]]:
    """Runs of lines: paragraphs, single list entries, tables."""
    lines: list[str] = []
    fenced = False
    for line in [*text.splitlines(), ""]:
        fenced ^= line.startswith("```")
        is_entry = bool(re.match(r"\s*(?:[-*]|\d+\.) ", line))
        is_code = fenced or line.startswith("```") or (line.startswith("    ") and not is_entry)
        changes = bool(lines) and line.startswith("|") != lines[0].startswith("|")
        if lines and (not line.strip() or is_entry or changes or line.startswith("#") or is_code):
            yield lines
            lines = []
        if line.strip() and not line.startswith("#") and not is_code:
            lines.append(line.strip())


def quoted_in_prose(prose: str) -> list[str]:
    """The numbers of a sentence that look measured. Example: "takes 5 s, 0.3 of it" has `5` and `0.3`."""
    plain = NAMES.sub(
        "", CODE.sub(lambda code: code[1] if QUANTITY.fullmatch(code[1]) else "", re.sub(r"\]\([^)]*\)", "]", prose))
    )
    found = MEASURED.findall(plain)
    return [*found, *(number for number in DECIMAL.findall(PAIR.sub("", plain)) if number not in found)]


def measured_without_source(prose: str) -> list[str]:
    """The numbers of a sentence that need a source: those with a deviation or a unit."""
    plain = NAMES.sub("", CODE.sub(lambda code: code[1] if QUANTITY.fullmatch(code[1]) else "", prose))
    return MEASURED.findall(plain)


def cells(row: str) -> list[str]:
    """The cells of a table row without marks of emphasis."""
    return [cell.strip().strip("*") for cell in CODE.sub("", row).strip().strip("|").split("|")]


def is_result(row: str) -> bool:
    """True if a table row reports results: a cell after the first is a number with decimals or a mean with its deviation."""
    return any(RESULT.fullmatch(cell) for cell in cells(row)[1:])


def same(quoted: str, found: str) -> bool:
    """True if an entry of a file, rounded to the decimals of a quoted one, equals it; a mean may lack its deviation."""
    parts, others = quoted.split(" ± "), found.split(" ± ")
    return len(parts) <= len(others) and all(_rounded(part, other) for part, other in zip(parts, others))


def _rounded(quoted: str, found: str) -> bool:
    mantissa, _, exponent = quoted.replace(",", "").partition("e")
    decimals = len(mantissa.partition(".")[2])
    value = float(found.replace(",", "")) / 10.0 ** int(exponent or 0)
    return abs(value - float(mantissa)) <= 0.5 * 10.0**-decimals * (1 + 1e-9)


@cache
def entries_by_line(file: str) -> tuple[tuple[str, ...], ...]:
    """The numbers of each line of a file under `results/`, a mean and its deviation as one entry: `97.0 ± 1.9`."""
    lines = (ROOT / "results" / file).read_text().splitlines()
    return tuple(tuple(ENTRY.findall(NAMES.sub("", line))) for line in lines)


@cache
def is_row(entries: tuple[str, ...], file: str) -> bool:
    """True if the entries are in one line of a file, in this order."""
    for line in entries_by_line(file):
        rest = iter(line)
        if all(any(same(entry, other) for other in rest) for entry in entries):
            return True
    return False


@cache
def is_quoted(entry: str, file: str) -> bool:
    """True if a file has this entry, written with as many digits."""
    written = entry.replace(",", "").replace("e-0", "e-")
    return any(written == other.replace(",", "").replace("e-0", "e-") for line in entries_by_line(file) for other in line)


def mistakes(text: str, *, limits: tuple[str, ...] = ()) -> list[str]:
    """The mistakes in the numbers of a Markdown text, a line each.

    `limits` are phrases whose numbers are settings, limits or bounds and not measured.
    """
    return [mistake for block in blocks(text) for mistake in mistakes_in(block, limits=limits)]


def mistakes_in(block: Block, *, limits: tuple[str, ...] = ()) -> list[str]:
    """The mistakes in the numbers of one block."""
    missing = [file for file in block.sources if not (ROOT / "results" / file).is_file()]
    found = [f"there is no results/{file}" for file in missing]
    sources = [file for file in block.sources if file not in missing]
    if block.rows:
        for row in filter(is_result, block.rows):
            entries = tuple(ENTRY.findall(" ".join(cells(row)[1:])))
            if not any(is_row(entries, file) for file in sources):
                found.append(f"not a line of {sources or 'a file under results/'}: {row}")
        return found
    prose = block.prose
    for phrase in limits:
        prose = prose.replace(phrase, "")
    if not sources:
        return found + [
            f"{number} is quoted from no file under results/: {block.prose}" for number in measured_without_source(prose)
        ]
    wrong = [entry for entry in quoted_in_prose(prose) if not any(is_quoted(entry, file) for file in sources)]
    return found + [f"{entry} is not in {sources}: {block.prose}" for entry in wrong]
