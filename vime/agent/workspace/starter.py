"""Starts the sandboxes of workspaces, by way of one small process per owner (`stage.py`).

That process is started with the first workspace and ends with the owner. It exists because a sandbox needs mounts of its own
before bubblewrap begins, and because a large program with threads can neither fork safely nor cheaply.
"""

import array
import contextlib
import json
import marshal
import os
import socket
import subprocess
import threading
from functools import lru_cache
from importlib.resources import files
from typing import Any

from vime.agent.bubblewrap import interpreter
from vime.agent.memory_file import sealed_file
from vime.agent.workspace.channel import Channel
from vime.agent.workspace.view import NOBODY
from vime.errors import SandboxError

_PACKAGE = "vime.agent.workspace.inside"
_MODULES = ("files", "command_processes", "first_process")
"""The code of the first process, in the order of their imports."""
_lock = threading.Lock()
_stages: dict[int, "_Stage"] = {}
"""The stage of this process; after a fork the child has another number, and starts its own."""


def start(channel: Channel, request: dict[str, Any], *, system_calls: bytes) -> int:
    """Asks for a sandbox whose first process has the other end of the channel, which is closed here.

    Returns a file with bubblewrap's error messages. Raises SandboxError if none can be asked for.
    """
    messages = os.memfd_create("messages", os.MFD_CLOEXEC)
    code, calls = sealed_file(first_process()), sealed_file(system_calls)
    try:
        with _lock:
            _stage().ask(request, [channel.other.fileno(), messages, code, calls])
    except OSError as error:
        os.close(messages)
        raise SandboxError(f"workspaces cannot be started: {error}") from error
    finally:
        os.close(code)
        os.close(calls)
        channel.other.close()
    return messages


@lru_cache(maxsize=1)
def first_process() -> bytes:
    """The compiled code of the first process: pairs of a module's name and its code."""
    found = []
    for name in _MODULES:
        text = files(_PACKAGE).joinpath(f"{name}.py").read_text(encoding="utf-8")
        module = "__main__" if name == _MODULES[-1] else f"{_PACKAGE}.{name}"
        found.append((module, compile(text, f"{name}.py", "exec", dont_inherit=True, optimize=2)))
    return marshal.dumps(found)


def stage_code() -> str:
    """The code of the process that makes sandboxes."""
    return files("vime.agent.workspace").joinpath("stage.py").read_text(encoding="utf-8")


def stop() -> None:
    """Ends this process's stage, and with it all of its workspaces."""
    with _lock:
        stage = _stages.pop(os.getpid(), None)
    if stage is not None:
        stage.stop()


class _Stage:
    """The process that makes sandboxes."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [interpreter(), "-I", "-S", "-B", "-c", stage_code(), str(other.fileno()), str(NOBODY)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                cwd="/",
                env={},
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, Any], handed: list[int]) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handed))
        self._socket.sendmsg([json.dumps(request).encode()], [rights])

    def stop(self) -> None:
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)


def _stage() -> _Stage:
    """The stage of this process, a new one if it has none or has lost it."""
    stage = _stages.get(os.getpid())
    if stage is None or not stage.is_alive:
        stage = _stages[os.getpid()] = _Stage()
    return stage
