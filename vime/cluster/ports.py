"""Free TCP ports of this machine."""

import contextlib
import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
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


def _first_ephemeral_port() -> int:
    """Linux: the lower end of `ip_local_port_range`; 32,768 where that leaves too little room or is not known."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return DEFAULT_EPHEMERAL_PORT
    return first if first > LOWEST_FREE_PORT + NUM_PORT_TRIES else DEFAULT_EPHEMERAL_PORT
