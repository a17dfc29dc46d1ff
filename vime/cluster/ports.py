"""Free TCP ports of this machine."""

import contextlib
import os
import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
SETTINGS_FRAME = 4
"""The kind of the first frame of HTTP/2."""
BACKLOG = 4096
"""Connections that the kernel holds until an event loop takes them: many agents begin at once. Beyond it some would be reset."""
LOWEST_FREE_PORT, DEFAULT_EPHEMERAL_PORT, NUM_PORT_TRIES = 20000, 32768, 100  # Ray gives its workers ports up to 19,999


def free_port(host: str, wanted: int) -> int:
    """Returns `wanted`, or any free port if it is 0. Raises OSError if the port is in use.

    A server binds the port many seconds later; so a free one is chosen below the range from which the kernel takes ports for
    outgoing connections and for other programs.
    """
    candidates = [wanted] if wanted else random.sample(range(LOWEST_FREE_PORT, _first_ephemeral_port()), NUM_PORT_TRIES)
    for number, port in enumerate(candidates, start=1):
        with contextlib.closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                return port
            except OSError:
                if number == len(candidates):
                    raise
    raise AssertionError("there is always a candidate")


def why_silent(host: str, port: int, *, seconds: float = 3.0) -> str | None:
    """The reason why no gRPC server answers at an address; None if one does, or if it asks for TLS.

    An HTTP/2 server, which gRPC builds on, answers a client's greeting before any call and without a token.
    """
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS_FRAME, 0, 0, 0, 0, 0])
    try:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return None
            connection.sendall(preface)
            greeting = connection.recv(4)
    except OSError as error:
        return error.strerror or str(error)
    return None if greeting[3:] == bytes([SETTINGS_FRAME]) else "another program listens on that port"


def _first_ephemeral_port() -> int:
    """Linux: the lower end of `ip_local_port_range`; 32,768 where that leaves too little room or is not known."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return DEFAULT_EPHEMERAL_PORT
    return first if first > LOWEST_FREE_PORT + NUM_PORT_TRIES else DEFAULT_EPHEMERAL_PORT
