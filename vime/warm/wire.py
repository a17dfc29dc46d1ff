"""Messages of a host of runs and its clients over a local socket: JSON lines, and the client's standard files."""

import array
import json
import socket
from dataclasses import asdict, dataclass, field
from typing import Any

STANDARD_FILES = 3
MAX_REQUEST_BYTES = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """A run to be made. Example: `RunRequest(words=["+method=memagent"], environment={"PATH": …}, started=1790000000.0)`."""

    words: list[str]
    """The words of its command line."""
    environment: dict[str, str] = field(default_factory=dict)
    started: float = 0.0
    """The time when its program was started, in seconds since 1970."""
    ends_host: bool = False
    """True if the host is to end instead."""


def send_request(connection: socket.socket, request: RunRequest, *, files: list[int]) -> None:
    """Sends a request with open files, which become stdin, stdout and stderr of the run."""
    message = json.dumps(asdict(request)).encode() + b"\n"
    socket.send_fds(connection, [message[:1]], files)
    connection.sendall(message[1:])


def receive_request(connection: socket.socket) -> tuple[RunRequest, list[int]] | None:
    """The next request and its files; None if the client has closed the connection."""
    received, files, _, _ = socket.recv_fds(connection, 1, STANDARD_FILES)
    if not received:
        return None
    if (rest := receive_line(connection)) is None:
        return None
    return RunRequest(**json.loads(received + rest)), list(array.array("i", files))


def send_answer(connection: socket.socket, **answer: Any) -> None:
    """Sends an answer: `pid` once a run begins, `code` when it has ended, or `refused` with the reason."""
    connection.sendall(json.dumps(answer).encode() + b"\n")


def receive_answer(connection: socket.socket) -> dict[str, Any] | None:
    """The next answer; None if the host is gone."""
    line = receive_line(connection)
    return json.loads(line) if line else None


def receive_line(connection: socket.socket) -> bytes | None:
    """Bytes up to the end of a line, None if the connection ends before. Raises ValueError for a line without end."""
    line = bytearray()
    while not line.endswith(b"\n"):
        try:
            part = connection.recv(1)
        except ConnectionError:
            return None
        if not part:
            return None
        line += part
        if len(line) > MAX_REQUEST_BYTES:
            raise ValueError(f"a line of more than {MAX_REQUEST_BYTES} bytes")
    return bytes(line)
