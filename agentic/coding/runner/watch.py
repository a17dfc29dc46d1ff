"""Acts forbidden to the program under test in the interpreter that judges it: an audit hook refuses them and reports the attempt.

An audit hook cannot be removed. It stops a program from looking for the nonce in memory and from loading machine code of its own.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

REFUSED = {
    "gc.get_objects": "searches memory",
    "gc.get_referrers": "searches memory",
    "gc.get_referents": "searches memory",
    "sys._current_frames": "looks into other threads",
    "sys._current_exceptions": "looks into other threads",
    "sys.addaudithook": "adds an audit hook",
    "ctypes.string_at": "reads raw memory",
    "ctypes.wstring_at": "reads raw memory",
    "ctypes.cdata": "reads raw memory",
    "ctypes.dlsym": "calls machine code",
    "ctypes.dlsym/handle": "calls machine code",
    "cpython.remote_debugger_script": "attaches a debugger",
}
"""Events that are refused, with their names in a verdict."""
REFUSED_OF_REPOSITORY = {
    "sys.settrace": "traces the tests",
    "sys.setprofile": "traces the tests",
    "sys.monitoring.register_callback": "traces the tests",
}
"""Events that are refused where code of the repository asks for them itself; debuggers of the standard library may."""
REFUSED_MODULES = ("_testcapi", "_testinternalcapi", "_testlimitedcapi", "_interpreters", "_xxsubinterpreters")
MEMORY_FILES = ("mem", "pagemap", "kcore", "syscall", "stack")


def watch(accuse: Callable[[str], None], *, root: str, folders: tuple[str, ...], extensions: frozenset[str]) -> None:
    """Refuses from now on, by PermissionError, the events in the tables above, and `accuse`s the program of them.

    Machine code is loaded only from below `folders`, or from the files `extensions`, those of the original repository.
    """
    frame, inside = sys._getframe, os.path.join(root, "")

    def refuse(what: str) -> None:
        accuse(what)
        raise PermissionError(f"the program {what}, which it must not")

    def is_strange(file: object) -> bool:
        return isinstance(file, str) and "/" in file and not file.startswith(folders) and file not in extensions

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path = arguments[0]
            if isinstance(path, str) and path.startswith("/proc/") and path.rpartition("/")[2] in MEMORY_FILES:
                refuse("reads raw memory")
        elif event == "import":
            if arguments[0] in REFUSED_MODULES:
                refuse("reads raw memory")
            if is_strange(arguments[1]):
                refuse("loads machine code")
        elif event == "ctypes.dlopen":
            if is_strange(arguments[0]):
                refuse("loads machine code")
        elif event in REFUSED:
            refuse(REFUSED[event])
        elif event in REFUSED_OF_REPOSITORY and frame(1).f_code.co_filename.startswith(inside):
            refuse(REFUSED_OF_REPOSITORY[event])

    sys.addaudithook(hook)
