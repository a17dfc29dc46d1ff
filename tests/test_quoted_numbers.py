"""Every measured number of a README is in a file under `results/`, which the README names beside it.

Measure again, run the tool that writes the file, and change the README; `LIMITS` is for quantities that are not measured.
"""

import re
from dataclasses import replace

import pytest

from tests.quoted_numbers import NUMBER, ROOT, Block, blocks, cells, is_result, mistakes, mistakes_in, quoted_in_prose

ROOMS = ("agentic", "conf", "results", "tools", "vime")
READMES = ["README.md", *sorted(str(file.relative_to(ROOT)) for room in ROOMS for file in (ROOT / room).rglob("README.md"))]
LIMITS: dict[str, tuple[str, ...]] = {
    "agentic/memagent/README.md": ("takes less than 1 GB of a process's memory",),  # the bound of a test
    "agentic/toolorchestra/README.md": (
        '"5%" equals "5"',
        "eight GPUs with 288 GB each (B300), because the weights of Math-72B take more than 80 GB",
    ),  # an example; a machine
    "tools/README.md": ("(2.6 MB)", "(0.2 MB;", "55 GiB of device memory"),  # sizes of wheels; what a program asks for
    "vime/agent/README.md": (
        *("are checked every 50 ms", "for about 50 ms", "both are measured every 100 ms"),
        "512 MiB and 96 processes are enough",
    ),  # the last are settings of a test
    "vime/preflight/plan/README.md": ("as large as that and 512 MiB",),
    "vime/grading/README.md": ("A comparison gets 6 s", "two of 25 s", "`10%` is not `10`"),
    "vime/retrieval/README.md": ("a body above 32 MiB",),
    "vime/orchestration/README.md": ("has not been compared after 6 s",),
    "vime/trainer/README.md": ("within 5 % where attention",),  # the bound of a test
    "vime/weights/README.md": ("differ by 13 % of its largest value",),  # the tolerance of a check
    "vime/workers/README.md": ("every 5 s",),
}
"""Quantities that are settings, limits and bounds, as written in the text."""


def text_of(readme: str) -> str:
    return (ROOT / readme).read_text()


@pytest.mark.parametrize("readme", READMES)
def test_every_number_of_a_readme_stands_in_the_results_it_names(readme: str):
    assert mistakes(text_of(readme), limits=LIMITS.get(readme, ())) == []


def test_every_exception_is_still_in_the_text():
    texts = {readme: " ".join(text_of(readme).split()) for readme in LIMITS}
    missing = [(readme, phrase) for readme, phrases in LIMITS.items() for phrase in phrases if phrase not in texts[readme]]
    assert missing == []


def altered(number: str) -> str:
    """Another number of the same length: its last digit before the exponent is one more, or 0 for 9."""
    mantissa, mark, exponent = number.partition("e")
    return f"{mantissa[:-1]}{(int(mantissa[-1]) + 1) % 10}{mark}{exponent}"


def with_one_altered(block: Block) -> list[Block]:
    """The block once for each quoted number, with a wrong one in its place."""
    found = []
    for row in filter(is_result, block.rows):
        first = row.index("|", 1)
        spots = [match.span() for match in re.finditer(NUMBER, row) if match.start() > first]
        found += [replace(block, rows=[row[:start] + altered(row[start:end]) + row[end:]]) for start, end in spots]
    if not block.rows and block.sources:
        for number in quoted_in_prose(block.prose):
            last = re.findall(NUMBER, number)[-1]
            spot = re.compile(rf"(?<![\d.,]){re.escape(number)}(?![\d.]*\d)")
            found.append(replace(block, prose=spot.sub(number.removesuffix(last) + altered(last), block.prose, count=1)))
    return found


def test_a_wrong_number_anywhere_in_a_readme_is_found():
    wrong = [
        (readme, altered_block)
        for readme in READMES
        for block in blocks(text_of(readme))
        for altered_block in with_one_altered(block)
    ]
    missed = [(readme, block) for readme, block in wrong if not mistakes_in(block, limits=LIMITS.get(readme, ()))]
    assert len(wrong) > 200
    assert len(missed) <= 0.05 * len(wrong), missed  # a wrong number may happen to stand elsewhere in the same file


def test_a_number_without_a_file_is_refused_in_prose_and_tables():
    assert mistakes("It takes 5 min 5 s.") and mistakes("Scores: 97.0 ± 1.9.") and mistakes("It is 3.1 times as fast.")
    assert mistakes("Scores:\n\n| | a |\n|---|---|\n| trained | **98.0 ± 1.0** |\n")
    assert mistakes("From `results/nowhere.md`: 97.0 ± 1.9.")[0] == "there is no results/nowhere.md"
    assert mistakes("It waits for `5 s`, or 3 % of it.") and mistakes("It is `97.0 ± 1.9`.")


def test_settings_code_and_names_are_no_measurements():
    assert (
        mistakes("Give `serving.start_timeout_seconds=300` (arXiv 2402.03300, section 4.1) 16 × 16 rollouts, Python 3.11.") == []
    )
    assert mistakes("    step 3 | 4.1 s | 41.2%\n\n```\n5 ms\n```\n") == []
    assert mistakes("| setting | value |\n|---|---|\n| clip | 0.2 / 0.3 |\n") == []


def test_cells_of_a_row_come_from_one_line_of_the_file_and_in_its_order():
    row = next(
        line for line in (ROOT / "results" / "staleness.md").read_text().splitlines() if line.startswith("| max_staleness=4 |")
    )
    scores = cells(row)[1:4]
    table = "From `results/staleness.md`:\n\n| | a | b |\n|---|---|---|\n| x | {} | {} |\n"
    assert mistakes(table.format(scores[0], scores[2])) == []
    assert mistakes(table.format(scores[2], scores[0])) != []


def test_numbers_of_a_table_may_be_rounded_and_those_of_a_sentence_not():
    row = next(line for line in (ROOT / "results" / "trainer.md").read_text().splitlines() if "matrix products alone" in line)
    ratio = cells(row)[3]
    rounded, wrong = f"{float(ratio):.1f}", f"{float(ratio) + 0.2:.1f}"
    sentence, table = (
        "A share of {} is used (`results/trainer.md`).",
        "From `results/trainer.md`:\n\n| | |\n|---|---|\n| it | {} |\n",
    )
    of_row = table.replace("{}", f"{cells(row)[1]} | {cells(row)[2]} | {{}}")
    assert mistakes(sentence.format(ratio)) == mistakes(of_row.format(ratio)) == mistakes(of_row.format(rounded)) == []
    assert mistakes(sentence.format(f"{ratio}5")) and mistakes(of_row.format(wrong)) and mistakes(of_row.format(f"{ratio}5"))
