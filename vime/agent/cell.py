"""Runs a piece of Python after others, with the names that they have left; the inner half of `vime.agent.interpreter`.

    python cell.py < piece.py

The first one leaves a process behind that waits for pieces. For each piece this process makes a copy of itself. A copy that comes
to the end of its piece, also by an exception, takes the place of the process; while one that is ended before (at a time limit,
by lack of memory, by a crash) leaves the process as it was. The value of an expression in the last line is printed. Exit status:
0, 1 for an exception, 2 if the copy was ended.
"""

import ast
import os
import select
import signal
import socket
import sys
import traceback

_ADDRESS = "\0interpreter"
"""In the network of the workspace; no file is needed."""
_LENGTH_BYTES = 8
_RAISED, _ENDED = 1, 2
_PIECE = "<code>"


def main() -> None:
    """Hands the piece to the process that waits, and exits with the status of its end."""
    piece = sys.stdin.buffer.read()
    with _connected() as connection:
        socket.send_fds(connection, [len(piece).to_bytes(_LENGTH_BYTES, "big")], [1, 2])
        connection.sendall(piece)
        status = connection.recv(1)
    sys.exit(status[0] if status else _ENDED)


def _connected() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(_ADDRESS)
    except ConnectionRefusedError:
        _leave_behind()
        connection.connect(_ADDRESS)
    return connection


def _leave_behind() -> None:
    """Starts the process that waits."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(_ADDRESS)
    listener.listen()
    if os.fork() == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for file in range(3):
            os.dup2(nothing, file)
        _wait(listener, {"__name__": "__main__"})
    listener.close()


def _wait(listener: socket.socket, names: dict[str, object]) -> None:
    """Takes pieces for as long as this process or a copy of it lives."""
    while True:
        connection, _ = listener.accept()
        waiting, at_end = os.getpid(), os.pipe()
        copy = os.fork()
        if copy:
            _follow(copy, connection, at_end)
            continue
        before = os.pidfd_open(waiting)
        os.setpgid(0, 0)
        status = _run(connection, names)
        os.write(at_end[1], b".")
        select.select([before], [], [])  # else the workspace could take this process for a part of the one before
        _answer(connection, status)
        for file in (*at_end, before):
            os.close(file)


def _follow(copy: int, connection: socket.socket, at_end: tuple[int, int]) -> None:
    """Exits when the copy has come to the end of its piece; returns when it was ended, or nobody waits for it any more."""
    ended = os.pidfd_open(copy)
    poll = select.poll()
    poll.register(at_end[0], select.POLLIN)
    poll.register(ended, select.POLLIN)
    poll.register(connection, 0)  # tells when the other side is gone
    if at_end[0] in {file for file, _ in poll.poll()}:
        os._exit(0)
    try:
        os.killpg(copy, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it had no time to become a group, or is gone
    os.kill(copy, signal.SIGKILL)
    os.waitpid(copy, 0)
    _answer(connection, _ENDED)
    for file in (*at_end, ended):
        os.close(file)


def _answer(connection: socket.socket, status: int) -> None:
    try:
        connection.sendall(bytes([status]))
    except OSError:
        pass  # nobody waits for it any more
    connection.close()


def _run(connection: socket.socket, names: dict[str, object]) -> int:
    """Reads a piece and runs it with the output of whoever has sent it; returns its status."""
    length, outputs, *_ = socket.recv_fds(connection, _LENGTH_BYTES, 2)
    piece = b""
    while len(piece) < int.from_bytes(length, "big"):
        piece += connection.recv(1 << 16)
    own, nothing = os.getpid(), os.open(os.devnull, os.O_RDWR)
    for file, output in enumerate(outputs, start=1):
        os.dup2(output, file)
        os.close(output)
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]  # what was printed before a time limit is shown
    status = 0
    try:
        _execute(piece.decode(), names)
    except SystemExit as end:
        status = _RAISED if end.code else 0
    except BaseException as error:  # the outermost frame of somebody else's program
        status = _RAISED
        own_frames = error.__traceback__.tb_next.tb_next if error.__traceback__ and error.__traceback__.tb_next else None
        traceback.print_exception(type(error), error, own_frames)
    if os.getpid() != own:
        os._exit(status)  # a process that the piece has started came to the end of it as well
    sys.stdout.flush()
    sys.stderr.flush()
    for file in (1, 2):
        os.dup2(nothing, file)
    os.close(nothing)
    return status


def _execute(piece: str, names: dict[str, object]) -> None:
    tree = ast.parse(piece, _PIECE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, _PIECE, "exec"), names)
    if isinstance(last, ast.Expr) and (value := eval(compile(ast.Expression(last.value), _PIECE, "eval"), names)) is not None:
        print(value)


if __name__ == "__main__":
    main()
