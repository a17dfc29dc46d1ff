"""The first thing that runs in a sandbox: limits this process, then runs the program and reports why it ended.

It is handed over as text and started as `python -c TEXT REPORT_FD GO_FD MEMORY CPU PROCESSES FILE PROGRAM [FOLDER…]`, so it
imports nothing but what starts fast. What it reports is a hint, since the program could write the same. It waits for its owner's
word before it begins: an owner that was killed meanwhile cannot give it, and one that is killed later takes the sandbox along.
"""

import os
import resource
import sys

_FILE_ERRORS = (24, 27, 28, 122)
"""EMFILE, EFBIG, ENOSPC, EDQUOT; `errno` holds only the numbers of the machine it is read on, so they are written out."""


def _limit(memory: int, cpu: int, processes: int, file: int) -> None:
    for kind, least, most in (
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_FSIZE, file, file),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ):
        resource.setrlimit(kind, (least, most))
    if processes:
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))


def _reason(error: BaseException) -> bytes:
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and number == 12):
        return b"memory_limit"
    if isinstance(error, OSError) and number in _FILE_ERRORS:
        return b"file_limit"
    if isinstance(error, BlockingIOError) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        return b"process_limit"
    return b"raised"


def _report(file: int, word: bytes) -> None:
    try:
        os.write(file, word + b"\n")
    except OSError:
        pass  # the program closed it: then its exit status has to do


def main() -> None:
    """Runs the program as `__main__`."""
    report, go, memory, cpu, processes, file = map(int, sys.argv[1:7])
    path, folders = sys.argv[7], sys.argv[8:]
    _report(report, b"started")
    if not os.read(go, 1):
        os._exit(1)
    os.closerange(3, report)
    os.closerange(report + 1, 1024)
    _limit(memory, cpu, processes, file)
    sys.argv[:] = [path]
    sys.path += folders
    module = type(sys)("__main__")
    own, sys.modules["__main__"] = sys.modules["__main__"], module
    assert own  # a module that nothing refers to loses its names, these functions among them
    try:
        with open(path, encoding="utf-8") as program:
            code = compile(program.read(), path, "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except SystemExit as error:
        _report(report, b"finished")
        raise SystemExit(error.code) from None
    except BaseException as error:  # the outermost frame of somebody else's program
        _report(report, _reason(error))
        error = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)  # without this frame
        sys.__excepthook__(type(error), error, error.__traceback__)
        sys.exit(1)


main()
