"""The first code that runs in a sandbox: it limits its process, runs the program, and ends with a status that says how it ended.

It is passed as text and started as `python -c TEXT REPORT_FD GO_FD MEMORY CPU PROCESSES FILE OUTPUT PROGRAM [FOLDER…]`, so it
imports only modules that load quickly. Before the program begins, all files except stdin, stdout and stderr are closed; the owner
learns how the program ended from the exit status alone. The launcher begins only when its owner tells it to, because an owner
that has been killed could not end it; if the owner is killed later, the sandbox ends with it.
"""

import io
import os
import resource
import sys

_FILE_ERRORS = (24, 27, 28, 122)
"""EMFILE, EFBIG, ENOSPC and EDQUOT as numbers, which are the same on all machines with sandboxes."""
_RAISED, _MEMORY, _PROCESSES, _FILE = 240, 241, 242, 243
"""Exit statuses of a program that ended with an exception, by the cause of the exception (read by `vime.agent.sandbox`)."""


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


def _status(error: BaseException) -> int:
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and number == 12):
        return _MEMORY
    if isinstance(error, OSError) and number in _FILE_ERRORS:
        return _FILE
    if isinstance(error, BlockingIOError) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        return _PROCESSES
    return _RAISED


def _show(error: BaseException, most: int) -> None:
    """Writes the end of the traceback as Python does, without the launcher's frame."""
    shown, sys.stderr = sys.stderr, io.StringIO()
    try:
        error = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
        sys.__excepthook__(type(error), error, error.__traceback__)
        text = sys.stderr.getvalue()[-most:].encode(errors="replace")
    except MemoryError:
        text = b"MemoryError\n"
    sys.stderr = shown
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
        while text:
            text = text[os.write(2, text) :]
    except (OSError, ValueError):
        pass  # the program closed it


def main() -> None:
    """Runs the program as `__main__`."""
    report, go, memory, cpu, processes, file, output = map(int, sys.argv[1:8])
    path, folders = sys.argv[8], sys.argv[9:]
    os.write(report, b"started\n")
    if not os.read(go, 1):
        os._exit(1)
    os.closerange(3, 1024)
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
        raise SystemExit(error.code) from None
    except BaseException as error:  # the outermost frame of somebody else's program
        _show(error, output)
        raise SystemExit(_status(error)) from None


main()
