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


DISTURBANCES = {
    "output to a buffer": "import io, sys\nsys.stdout = sys.stderr = io.StringIO()\nprint('hidden')",
    "output wrapped anew": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-16')",
    "output detached": "import sys\nsys.stdout.detach()\nsys.__stdout__ = None",
    "output closed": "import sys\nsys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
    "files closed": "import os\nfor number in range(3): os.close(number)",
    "all files closed": "import os\nos.closerange(0, 4096)",
    "files redirected": "import os\nnothing = os.open(os.devnull, os.O_RDWR)\nfor number in range(3): os.dup2(nothing, number)",
    "all files taken": "import os\nheld = []\nwhile True: held.append(os.open(os.devnull, os.O_RDONLY))",
    "builtins replaced": "import builtins as b\nb.print = b.open = b.len = b.__import__ = b.compile = None",
    "builtins emptied": "import builtins\nbuiltins.__dict__.clear()",
    "functions of sys replaced": "import sys\nsys.exit = sys.settrace = sys.excepthook = sys.__excepthook__ = None",
    "functions of os replaced": "import os\nos.fork = os.pipe = os.dup2 = os.getpid = os.open = os.close = None",
    "modules gone": "import sys\nsys.modules.clear()",
    "search path gone": "import sys\nsys.path = sys.meta_path = None",
    "another program": "import sys\nsys.modules['__main__'] = sys\nsys.argv = None\n__name__ = 'x'\n__builtins__ = {}",
    "a tracing function": "import sys, threading\ndef trace(*_): raise ValueError\nsys.settrace(trace); sys.setprofile(trace)",
    "no recursion": "import sys\nsys.setrecursionlimit(20)",
    "warnings as errors": "import warnings\nwarnings.simplefilter('error')",
    "another folder": "import os\nos.mkdir('/tmp/new')\nos.chdir('/tmp/new')\nos.rmdir('/tmp/new')",
    "own modules in the folder": "for name in ('_socket', 'os', 'types'): open(f'{name}.py', 'w').write('raise OSError')",
    "no environment": "import os\nos.environ.clear()\nos.environ = None",
    "a timer": "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\nsignal.signal(signal.SIGALRM, lambda *_: 1 / 0)",
    "children not waited for": "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "signals held back": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "a limit of files": "from resource import *\nsetrlimit(RLIMIT_NOFILE, (3, getrlimit(RLIMIT_NOFILE)[1]))",
    "a thread that goes on": "from threading import Thread\ndef speak():\n    while True: print(6)\nThread(target=speak).start()",
    "children that go on": "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        while True: pass",
    "the process before is gone": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "its own end": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "a crash": "import ctypes\nctypes.string_at(0)",
    "exit handlers": "import atexit, os\natexit.register(os._exit, 3)\nraise SystemExit",
    "names gone": "y = x\nglobals().clear()\nx = 41",
}


@pytest.mark.parametrize("disturbance", DISTURBANCES.values(), ids=DISTURBANCES.keys())
async def test_what_a_cell_does_to_its_process_does_not_reach_the_next(interpreter: Interpreter, disturbance: str):
    await said(interpreter, "import os, sys\nx = 41")
    before = await said(interpreter, LOOK)
    await interpreter.run(disturbance)
    assert await said(interpreter, "print(x + 1)") == "42"
    assert await said(interpreter, "x") == "41"
    assert await said(interpreter, "x / 0") == "ZeroDivisionError: division by zero"
    assert await said(interpreter, "raise SystemExit('the end')") == "the end"
    assert await said(interpreter, LOOK) == before


LOOK = """\
import os, sys, signal, warnings, resource, builtins
print(os.getcwd(), sys.argv, sys.path, sys.getrecursionlimit(), sorted(os.environ), __name__, sys.modules['__main__'].x)
print(signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
print(resource.getrlimit(resource.RLIMIT_NOFILE), len(vars(builtins)), len(warnings.filters), sys.stdin.read())
"""


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import sys\nprint(6)\nsys.exit('no solution')", "6\nno solution"),
        ("exit('no solution')", "no solution"),
        ("class End(SystemExit): pass\nraise End(('no', 3))", "('no', 3)"),
        ("raise SystemExit(0)", NO_OUTPUT),
        ("class Odd:\n    def __str__(self): raise ValueError('odd')\nOdd()", "ValueError: odd"),
        ("import io, sys\nsys.stderr = io.StringIO()\n1 / 0", "ZeroDivisionError: division by zero"),
        ("import pickle\nclass A: n = 7\npickle.loads(pickle.dumps(A())).n", "7"),
        (
            "from multiprocessing import Pool\ndef square(x): return x * x\nwith Pool(2) as p: print(p.map(square, [2, 3]))",
            "[4, 9]",
        ),
        (
            "from concurrent.futures import ProcessPoolExecutor\ndef square(x): return x * x\n"
            "with ProcessPoolExecutor(2) as pool: print([*pool.map(square, [2, 3])])",
            "[4, 9]",
        ),
        ("open('mine.py', 'w').write('n = 5')\nimport mine\nmine.n", "5"),
    ],
)
async def test_a_cell_shows_and_does_what_python_does(interpreter: Interpreter, code: str, shown: str):
    assert await said(interpreter, code) == shown
    assert await said(interpreter, "6 * 7") == "42"


async def test_functions_of_earlier_cells_can_be_pickled_and_a_seed_holds(interpreter: Interpreter):
    await said(
        interpreter, "import random\ndef cube(x): return x ** 3\nrandom.seed(1)\nexpected = random.random()\nrandom.seed(1)"
    )
    assert await said(interpreter, "random.random() == expected") == "True"
    assert await said(interpreter, "from multiprocessing import Pool\nwith Pool(2) as pool: print(pool.map(cube, [2]))") == "[8]"
