"""Each seeded fault fits the code as it is now, is in one place, and can be run; every part of the code has some."""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from seeded_fault_cases import FAULTS, Fault
from seeded_faults import FOUND, NOT_FOUND, NOT_RUN, End, planted, table

ROOT = Path(__file__).parents[2]
EACH = pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault.file}:{fault.new[:40]}" for fault in FAULTS])


def folders(top: str) -> set[str]:
    """The folders of Python below one of the repository."""
    return {file.relative_to(ROOT / top).parts[0] for file in (ROOT / top).glob("*/**/*.py")}


@EACH
def test_a_fault_is_one_mistake_in_one_place_that_python_reads(fault: Fault):
    source = (ROOT / fault.file).read_text()
    assert source.count(fault.old) == 1 and fault.old != fault.new and "\n" not in fault.old + fault.new
    if fault.file.endswith(".py"):
        changed = ast.parse(source.replace(fault.old, fault.new))
        assert ast.dump(changed) != ast.dump(ast.parse(source)), "a change of blanks or comments is no fault"


@EACH
def test_the_tests_that_should_notice_a_fault_are_there(fault: Fault):
    assert fault.tests and all((ROOT / test).exists() and test.startswith("tests/") for test in fault.tests)


def test_every_room_has_two_faults_and_every_method_one():
    counts = Counter(fault.room for fault in FAULTS)
    assert {name: counts[name] for name in {*folders("vime"), "trainer/cpu"} if counts[name] < 2} == {}
    assert {name for name in folders("agentic") if not counts[f"agentic/{name}"]} == set()
    assert len(set(FAULTS)) == len(FAULTS)


def test_a_file_is_as_it_was_after_its_fault_also_if_the_tests_are_interrupted(tmp_path: Path):
    (tmp_path / "a.py").write_text("found = 1 < 2\n")
    fault = Fault(file="a.py", old="1 < 2", new="1 <= 2", tests=())
    with pytest.raises(KeyboardInterrupt), planted(fault, tmp_path):
        assert (tmp_path / "a.py").read_text() == "found = 1 <= 2\n"
        raise KeyboardInterrupt
    assert (tmp_path / "a.py").read_text() == "found = 1 < 2\n"


@pytest.mark.parametrize(
    ("code", "state"), [(0, NOT_FOUND), (1, FOUND), (2, NOT_RUN), (4, NOT_RUN), (5, NOT_RUN), (-9, NOT_RUN), (None, NOT_RUN)]
)
def test_only_failed_tests_find_a_fault(code: int | None, state: str):
    assert End(code=code, seconds=1.0, output="").state == state


def test_the_test_that_failed_is_named():
    output = "F\nSKIPPED [1] tests/b.py:3: no GPU\nFAILED tests/a.py::test_a[1 and 2] - assert 1 - 1 == 2\n1 failed"
    assert End(code=1, seconds=1.0, output=output).failed_test == "tests/a.py::test_a[1 and 2]"
    assert End(code=0, seconds=1.0, output="1 passed").failed_test == ""


def test_the_table_has_a_line_for_each_fault():
    assert len(table(FAULTS).splitlines()) == len(FAULTS) + 2
