"""The interpreter with state: what one call leaves to the next, and what a call costs that does not come to its end."""

from collections.abc import AsyncIterator

import pytest

from vime.agent.interpreter import NO_OUTPUT, SOURCE, Interpreter, text_of
from vime.agent.workspace import Workspace, prepare
from vime.config import WorkspaceConfig

pytestmark = pytest.mark.slow


@pytest.fixture
async def interpreter() -> AsyncIterator[Interpreter]:
    config = WorkspaceConfig(packages=[], memory_bytes=128 * 2**20, disk_bytes=16 * 2**20)
    async with Workspace.open(prepare(SOURCE), config) as box:
        yield Interpreter(box, seconds=3)


async def said(interpreter: Interpreter, code: str) -> str:
    return text_of(await interpreter.run(code), seconds=3, most_characters=400)


async def test_names_stay_from_one_call_to_the_next_and_the_last_expression_is_shown(interpreter: Interpreter):
    assert await said(interpreter, "import math\nx = 6") == NO_OUTPUT
    assert await said(interpreter, "x * 7") == "42"
    assert await said(interpreter, "print(math.gcd(x, 4))") == "2"


async def test_an_exception_shows_its_last_line_and_keeps_what_came_before_it(interpreter: Interpreter):
    assert await said(interpreter, "x = 6\nprint(x)\nx / 0") == "6\nZeroDivisionError: division by zero"
    assert await said(interpreter, "x") == "6"
    assert (await said(interpreter, "def f(:")).startswith("SyntaxError")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("x = 7\nwhile True: pass", "ended after 3 s"),
        ("import os; os._exit(0)", "ended before it was complete"),
        ("x = bytearray(10**9)", "ended because it needed too much memory"),
        ("import os\nwhile True: os.write(1, b'x' * 10**6)", "printed too much"),
    ],
)
async def test_a_call_that_does_not_come_to_its_end_costs_only_itself(interpreter: Interpreter, code: str, reason: str):
    assert await said(interpreter, "x = 6") == NO_OUTPUT
    assert reason in text_of(await interpreter.run(code), seconds=3, most_characters=100_000_000)
    assert await said(interpreter, "x") == "6"


async def test_a_process_that_a_call_has_forked_does_not_answer_in_its_place(interpreter: Interpreter):
    await interpreter.run("import os\nx = os.fork()")
    assert int(await said(interpreter, "x")) > 0
