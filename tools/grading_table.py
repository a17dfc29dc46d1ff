r"""Compares our verdicts about mathematical answers with those of math-verify alone, on pairs whose right verdict is known.

    python tools/grading_table.py [--json PATH] [--markdown PATH] [--earlier PATH]

The pairs are in `grading_pairs.jsonl`, one per line: `{"kind": "radicals", "answer": "3\\sqrt{2}", "reference": "\\sqrt{18}",
"verdict": "equal"}`. The verdict is `equal`, `different`, or `undecided` where a text is not a formula or has several meanings.
Those with `unseen` were written after the grader that is graded; `first` is the verdict of the commit that graded them first.
math-verify is called as its README shows, with both texts between dollars; it is undecided where it reads nothing. `--earlier`
names the JSON of an earlier run, whose verdicts of ours are put beside the present ones.
"""

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_rows import ROOT, Result, circumstances

FIRST = "commit 88800f2e4d, the first to grade these"
PAIRS = Path(__file__).with_name("grading_pairs.jsonl")
Pair = dict[str, Any]

COLUMNS: dict[str, Callable[[str, str], bool]] = {
    "right": lambda right, said: said == right,
    "different, called equal": lambda right, said: (right, said) == ("different", "equal"),
    "undecided, called equal": lambda right, said: (right, said) == ("undecided", "equal"),
    "equal, called different": lambda right, said: (right, said) == ("equal", "different"),
    "equal, undecided": lambda right, said: (right, said) == ("equal", "undecided"),
    "different, undecided": lambda right, said: (right, said) == ("different", "undecided"),
    "undecided, called different": lambda right, said: (right, said) == ("undecided", "different"),
}
"""The columns of the page: the pairs of a right verdict and a grader's verdict that they count."""
LISTED = ("different, called equal", "undecided, called equal", "equal, called different", "equal, undecided")
"""Columns whose pairs are listed for the grader of this commit."""


def read_pairs() -> list[Pair]:
    """The pairs in their order."""
    return [json.loads(line) for line in PAIRS.read_text().splitlines()]


async def our_verdict(answer: str, reference: str) -> str:
    """The verdict of `vime.grading.maths.equal`; an answer that reached a limit is undecided."""
    from vime.grading.maths import Equality, equal

    found = await equal(answer, [reference])
    return "undecided" if found is Equality.limit else found.value


def math_verify_verdict(answer: str, reference: str) -> str:
    """The verdict of math-verify with its defaults, undecided if it reads no formula in one of the texts."""
    from math_verify import parse, verify

    expected, found = parse(f"${reference}$"), parse(f"${answer}$")
    if verify(expected, found):
        return "equal"
    is_read = all(any(not isinstance(reading, str) for reading in readings) for readings in (expected, found))
    return "different" if is_read else "undecided"


def with_verdicts(pairs: list[Pair], earlier: list[Pair]) -> list[Pair]:
    """The pairs with the verdict of each grader: `ours`, `math_verify`, and `earlier` where an earlier run had the pair."""
    known = {(pair["answer"], pair["reference"]): pair["ours"] for pair in earlier}

    async def verdicts() -> list[str]:
        return [await our_verdict(pair["answer"], pair["reference"]) for pair in pairs]

    ours = asyncio.run(verdicts())
    found = []
    for pair, verdict in zip(pairs, ours, strict=True):
        answer, reference = pair["answer"], pair["reference"]
        said = {"ours": verdict, "math_verify": math_verify_verdict(answer, reference)}
        before = known.get((answer, reference))
        found.append({**pair, **said, **({"earlier": before} if before else {})})
    return found


def counts(pairs: list[Pair], grader: str) -> list[int]:
    """The numbers of a row of the page, in the order of `COLUMNS`."""
    said = [(pair["verdict"], pair[grader]) for pair in pairs if grader in pair]
    return [sum(holds(right, verdict) for right, verdict in said) for holds in COLUMNS.values()]


def overview(pairs: list[Pair], graders: dict[str, str]) -> list[str]:
    """A table of all graders over some pairs."""
    right = Counter(pair["verdict"] for pair in pairs)
    words = ", ".join(f"{right[verdict]} {verdict}" for verdict in ("equal", "different", "undecided"))
    lines = [f"{len(pairs)} pairs: {words}.", "", "| grader | " + " | ".join(COLUMNS) + " |", "|---|" + "--:|" * len(COLUMNS)]
    present = {grader: title for grader, title in graders.items() if any(grader in pair for pair in pairs)}
    return [
        *lines,
        *(f"| {title} | " + " | ".join(map(str, counts(pairs, grader))) + " |" for grader, title in present.items()),
        "",
    ]


def by_kind(pairs: list[Pair], graders: dict[str, str]) -> list[str]:
    """The share of right verdicts of each grader, for every kind of answer."""
    present = {grader: title for grader, title in graders.items() if any(grader in pair for pair in pairs)}
    lines = ["| kind | pairs | " + " | ".join(f"right: {title}" for title in present.values()) + " |"]
    lines.append("|---|--:|" + "--:|" * len(present))
    for kind in dict.fromkeys(pair["kind"] for pair in pairs):
        own = [pair for pair in pairs if pair["kind"] == kind]
        lines.append(f"| {kind} | {len(own)} | " + " | ".join(str(counts(own, grader)[0]) for grader in present) + " |")
    return [*lines, ""]


def listed(pairs: list[Pair]) -> list[str]:
    """The pairs about which the grader of this commit errs in one of the ways of `LISTED`, one per line."""
    lines = []
    for name in LISTED:
        own = [pair for pair in pairs if COLUMNS[name](pair["verdict"], pair["ours"])]
        lines += [f"{name.capitalize()}: {len(own)}.", ""] + [f"- `{pair['answer']}` and `{pair['reference']}`" for pair in own]
        lines += [""] if own else []
    return lines


def page(pairs: list[Pair], result: Result, earlier: str) -> str:
    """The Markdown page."""
    graders = {"earlier": earlier, "first": FIRST, "ours": "this commit", "math_verify": "math-verify alone"}
    lines = [f"# {result.title}", "", *(f"- {fact}" for fact in circumstances(result)), ""]
    for title, unseen in (("Pairs made before the grader was changed", False), ("Pairs made afterwards, not seen before", True)):
        own = [pair for pair in pairs if pair.get("unseen", False) == unseen]
        if own:
            lines += [f"## {title}", "", *overview(own, graders), *by_kind(own, graders), *listed(own)]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Compares, and writes the files that the options name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write commit and pairs with all verdicts here")
    parser.add_argument("--markdown", type=Path, help="write the page here, with date, commit, command and machine")
    parser.add_argument("--earlier", type=Path, help="JSON of an earlier run, to put beside this one")
    options = parser.parse_args()
    result = Result(title="Verdicts about mathematical answers")
    before = json.loads(options.earlier.read_text()) if options.earlier else {"code": "", "pairs": []}
    pairs = with_verdicts(read_pairs(), before["pairs"])
    text = page(pairs, result, before["code"])
    sys.stdout.write(text)
    if options.json:
        options.json.write_text(json.dumps({"code": result.code, "pairs": pairs}, indent=1, ensure_ascii=False) + "\n")
    if options.markdown:
        options.markdown.write_text(text)


if __name__ == "__main__":
    sys.path.append(str(ROOT))
    main()
