"""Runs a cell of Python with the names that earlier cells defined; the part of `vime.agent.interpreter` inside a workspace.

    python -c "$(cat cell.py)" < cell.py

The first call starts a process that waits for cells. For each cell it forks a copy of itself, which runs the cell. When the cell
has finished, even with an exception, a copy of that copy replaces the waiting process. If it is killed (at a time limit, for lack
of memory, by a crash), the waiting process stays as it was. So names are kept, while threads, timers and children of a cell
end with its process. The rest of the state is reset before the next cell: streams, builtins, `sys`, `__main__`, environment,
working folder, signal handlers.

The value of an expression in the last line is printed. Exit status: 0, 1 for an exception, 2 if the copy was ended.
"""

import _signal  # pyright: ignore[reportMissingImports]
import _socket
import builtins
import os
import posix
import resource
import sys
import warnings
from _ast import Expr, Expression, PyCF_ONLY_AST
from _io import open as open_file
from gc import enable as collect_garbage
from resource import getrlimit, setrlimit
from select import POLLIN, poll, select
from sys import setprofile, setrecursionlimit, settrace
from types import ModuleType
from typing import Any

# Pieces may replace what they like in the modules that programs use. This file therefore uses those of C behind them, or binds
# a function when it starts.

_ADDRESS = "\0interpreter"
"""Address of the socket in the workspace's own network; it needs no file."""
_LENGTH_BYTES, _FILE_BYTES, _CHUNK_BYTES = 8, 4, 1 << 16
_RAISED, _ENDED = 1, 2
_CELL = "<code>"
_KILL = 9
_SPARE_FILES = 16
"""The number of files that a cell must leave to be opened."""


def main() -> None:
    """Hands the cell to the waiting process, and exits with the exit status of the cell."""
    cell = sys.stdin.buffer.read()
    connection = _connected()
    files = b"".join(file.to_bytes(_FILE_BYTES, sys.byteorder) for file in (1, 2))
    connection.sendmsg([len(cell).to_bytes(_LENGTH_BYTES, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
    connection.sendall(cell)
    status = connection.recv(1)
    sys.exit(status[0] if status else _ENDED)


def _connected() -> _socket.socket:
    connection = _socket.socket(_socket.AF_UNIX)
    try:
        connection.connect(_ADDRESS)
    except ConnectionRefusedError:
        _leave_behind()
        connection.connect(_ADDRESS)
    return connection


def _leave_behind() -> None:
    """Starts the process that waits."""
    listener = _socket.socket(_socket.AF_UNIX)
    listener.bind(_ADDRESS)
    listener.listen()
    if posix.fork() == 0:
        posix.setsid()
        program = _Program()
        program.put_back()
        _wait(listener, program)
    listener.close()


class _Program:
    """The names that cells share. All other state is reset for each cell to that of a program's start."""

    def __init__(self) -> None:
        self.module = ModuleType("__main__")
        self._own = sys.modules["__main__"]  # a module that nothing refers to loses its names, these functions among them
        self._nothing = posix.open(os.devnull, posix.O_RDWR)
        sys.path.insert(0, "")  # the working folder, from which this file imports nothing
        self._modules = {**sys.modules, "__main__": self.module}
        self._names = {"__name__": "__main__", "__builtins__": builtins}
        self._builtins, self._system = dict(builtins.__dict__), dict(sys.__dict__)
        self._lists: list[tuple[list[Any], list[Any]]] = [
            (found, [*found]) for found in (sys.path, sys.meta_path, sys.path_hooks)
        ]
        self._environ, self._environment = os.environ, dict(os.environ)
        self._folder, self._mask = posix.getcwd(), posix.umask(0)
        self._handlers = {number: _signal.getsignal(number) for number in range(1, _signal.NSIG)}
        self._limits = {kind: getrlimit(kind)[0] for name, kind in vars(resource).items() if name.startswith("RLIMIT_")}
        self._depth, self._encoding, self._errors = sys.getrecursionlimit(), sys.stdout.encoding, sys.stdout.errors

    def put_back(self) -> None:
        """Restores this process as before any cell, except for the names, the objects that they refer to, and imported
        modules."""
        builtins.__dict__.update(self._builtins)
        sys.__dict__.update(self._system)
        for now, before in ((builtins.__dict__, self._builtins), (sys.__dict__, self._system)):
            for name in [name for name in now if name not in before]:
                del now[name]
        for held, before in self._lists:
            held[:] = before
        sys.modules.update(self._modules)
        sys.argv = ["-c"]
        self.module.__dict__.update(self._names)
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        collect_garbage()
        self._put_back_process()
        self.open_streams(self._nothing, self._nothing)

    def _put_back_process(self) -> None:
        os.__dict__["environ"] = self._environ
        self._environ.clear()
        self._environ.update(self._environment)
        try:
            posix.mkdir(self._folder)
        except FileExistsError:
            pass
        posix.chdir(self._folder)
        posix.umask(self._mask)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        for number, handler in self._handlers.items():
            if handler is not None and _signal.getsignal(number) is not handler:
                _signal.signal(number, handler)
        for kind, limit in self._limits.items():
            now, most = getrlimit(kind)
            if now != limit:
                setrlimit(kind, (limit if most < 0 else most if limit < 0 else min(limit, most), most))

    def end(self) -> None:
        """Resets settings that could disturb the end of a cell."""
        settrace(None)
        setprofile(None)
        setrecursionlimit(self._depth)
        builtins.__dict__.update(self._builtins)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # a stream of the cell's own, or a closed one
                pass
        sys.__dict__.update(self._system)

    def open_streams(self, output: int, errors: int) -> None:
        """Makes streams on these files, regardless of the state of earlier ones."""
        wanted = (
            ("stdin", self._nothing, "r", self._errors),
            ("stdout", output, "w", self._errors),
            ("stderr", errors, "w", "backslashreplace"),
        )
        for number, (name, file, mode, on_error) in enumerate(wanted):
            posix.dup2(file, number)
            stream = open_file(number, mode, 1, self._encoding, on_error, closefd=False)  # each line is shown before a time limit
            sys.__dict__[name] = sys.__dict__[f"__{name}__"] = stream

    def check_files(self) -> None:
        """Raises OSError if no more files can be opened."""
        for file in [posix.dup(self._nothing) for _ in range(_SPARE_FILES)]:
            posix.close(file)


def _wait(listener: _socket.socket, program: _Program) -> None:
    """Takes cells for as long as this process or a copy of it lives."""
    while True:
        connection = _socket.socket(fileno=listener._accept()[0])  # pyright: ignore[reportAttributeAccessIssue]
        waiting, (own_end, copys_end) = posix.getpid(), _socket.socketpair()
        try:
            copy = _fork()
        except OSError:  # there are too many processes
            _answer(connection, _ENDED)
        else:
            if copy:
                _follow(copy, connection, own_end)
            else:
                try:
                    before = posix.pidfd_open(waiting)
                    posix.setpgid(0, 0)
                    status = _run(connection, program)
                    _succeed(program, copys_end, before)
                    _answer(connection, status)
                    posix.close(before)
                except BaseException:  # the cell has left a process that cannot go on
                    posix._exit(_ENDED)
        own_end.close()
        copys_end.close()


def _follow(copy: int, connection: _socket.socket, copys_end: _socket.socket) -> None:
    """Exits when a successor has come out of the copy; returns when the copy was ended or the other side has gone."""
    ended = posix.pidfd_open(copy)
    events = poll()
    events.register(copys_end, POLLIN)
    events.register(ended, POLLIN)
    events.register(connection, 0)  # tells when the other side is gone
    has_successor = copys_end.fileno() in {file for file, _ in events.poll()}
    try:
        posix.killpg(copy, _KILL)
    except OSError:
        pass  # it had no time to become a group, or is gone
    posix.kill(copy, _KILL)
    posix.waitpid(copy, 0)
    if has_successor:
        posix._exit(0)
    copys_end.send(b"too late")
    _answer(connection, _ENDED)
    posix.close(ended)


def _succeed(program: _Program, end: _socket.socket, before: int) -> None:
    """Returns in a copy of this process that is ready for the next cell; this process is then killed with its group."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, range(1, _signal.NSIG))
    successor = _fork()
    if successor:
        posix.waitpid(successor, 0)
        posix._exit(_ENDED)
    posix.setpgid(0, 0)
    program.put_back()
    program.check_files()
    end.send(b"ready")
    if end in select([end, before], [], [])[0]:  # else the workspace could take this process for a part of the one before
        posix._exit(_ENDED)


def _fork() -> int:
    """A fork in which the module `random` continues its sequence; by default it is seeded anew in each process."""
    random: Any = sys.modules.get("random")
    try:
        state = random.getstate()
    except Exception:  # not imported, or replaced
        return posix.fork()
    process = posix.fork()
    if not process:
        random.setstate(state)
    return process


def _answer(connection: _socket.socket, status: int) -> None:
    try:
        connection.sendall(bytes([status]))
    except OSError:
        pass  # nobody waits for it any more
    connection.close()


def _run(connection: _socket.socket, program: _Program) -> int:
    """Reads a cell and runs it, with its output going to the streams that its sender passed along; returns its status."""
    length, ((_, _, sent),), *_ = connection.recvmsg(_LENGTH_BYTES, _socket.CMSG_SPACE(2 * _FILE_BYTES))
    output, errors = (int.from_bytes(sent[at : at + _FILE_BYTES], sys.byteorder) for at in (0, _FILE_BYTES))
    cell = b""
    while len(cell) < int.from_bytes(length, "big"):
        cell += connection.recv(_CHUNK_BYTES)
    program.open_streams(output, errors)
    own, value, raised = posix.getpid(), None, None
    try:
        value = _execute(cell.decode(), program.module.__dict__)
    except BaseException as error:  # the outermost frame of somebody else's program
        raised = error
    program.end()
    program.open_streams(output, errors)
    try:
        status = _shown(raised, value)
    except BaseException as error:  # raised by the text of a value
        status = _shown(error, None)
    sys.stdout.flush()
    sys.stderr.flush()
    if posix.getpid() != own:
        posix._exit(status)  # a process that the cell has started came to the end of it as well
    for file in (output, errors):
        posix.close(file)
    return status


def _execute(cell: str, names: dict[str, Any]) -> Any:
    """The value of an expression in the last line, None if there is none."""
    tree: Any = compile(cell, _CELL, "exec", PyCF_ONLY_AST, dont_inherit=True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], Expr) else None
    exec(compile(tree, _CELL, "exec", dont_inherit=True), names)
    return None if last is None else eval(compile(Expression(last.value), _CELL, "eval", dont_inherit=True), names)


def _shown(error: BaseException | None, value: Any) -> int:
    """Prints the traceback of a cell as Python would; returns its exit status."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return _RAISED if (error.code or 0) & 0xFF else 0
        print(error.code, file=sys.stderr)
        return _RAISED
    if error is not None:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_globals is globals():
            frames = frames.tb_next
        sys.__excepthook__(type(error), error.with_traceback(frames), frames)
        return _RAISED
    if value is not None:
        print(value)
    return 0


if __name__ == "__main__":
    main()
