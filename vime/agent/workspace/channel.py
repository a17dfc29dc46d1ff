"""The owner's end of the socket to a workspace's first process: requests and their replies."""

import array
import asyncio
import contextlib
import itertools
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from vime.errors import SandboxError

MOST_BYTES = 1 << 18
ANSWER_SECONDS = 60.0
"""Time limit for the answer to a request that starts no command."""
SEND_SECONDS, SEND_AGAIN_SECONDS = 10.0, 0.005
_CREDENTIALS = struct.Struct("iii")
_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4 * 4)
FIRST = "0"
"""The key of the message by which the first process says that it has begun."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelReply:
    """A reply of the first process, for example `ChannelReply(fields=["40213"], files=[17])`: a socket listens on port 40213."""

    fields: list[bytes]
    files: list[int]
    """Opened for the receiver, who closes them."""


class Channel:
    """Requests to one first process. It belongs to the event loop in which it was made."""

    def __init__(self) -> None:
        self._own, self.other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._own.setblocking(False)
        self._own.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._loop = asyncio.get_running_loop()
        self._keys = itertools.count(1)
        self._first: asyncio.Future[ChannelReply] = self._loop.create_future()
        self._waiting: dict[str, asyncio.Future[ChannelReply]] = {FIRST: self._first}
        self._is_open = True
        self.lost = ""
        """The reason why nothing can be asked any more; "" while something can."""
        self.processes: list[int] = []
        """Descriptors (pidfd) of bubblewrap's own process and of the first process inside, as they have begun."""
        self.first_process = 0
        """The first process's number on this machine."""
        self._loop.add_reader(self._own, self._take)

    async def begun(self) -> None:
        """Waits until the first process answers. Raises SandboxError if it does not start."""
        await self._answered(self._first)

    async def settled(self, seconds: float) -> None:
        """Waits, at most `seconds`, until it is known whether the first process starts."""
        if self.other.fileno() < 0:  # a sandbox was asked for
            await asyncio.wait({self._first}, timeout=seconds)

    async def ask(self, verb: str, *fields: str | bytes, files: Sequence[int] = ()) -> ChannelReply:
        """Sends a request and waits for its reply. Raises OSError as the first process does, SandboxError if it is lost."""
        key, reply = await self.send(verb, *fields, files=files)
        try:
            return await self._answered(reply)
        finally:
            self._waiting.pop(key, None)

    async def _answered(self, reply: asyncio.Future[ChannelReply]) -> ChannelReply:
        """A reply, within the time limit. `asyncio.wait_for` would now and then swallow a cancellation."""
        await asyncio.wait({reply}, timeout=ANSWER_SECONDS)
        if not reply.done():
            raise SandboxError(f"the workspace did not answer within {ANSWER_SECONDS:g} s")
        return reply.result()

    async def send(self, verb: str, *fields: str | bytes, files: Sequence[int] = ()) -> tuple[str, asyncio.Future[ChannelReply]]:
        """Sends a request; returns its key, and a future of its reply."""
        key = str(next(self._keys))
        parts = [os.fsencode(field) for field in (key, verb, *fields)]
        if any(b"\0" in part for part in parts):
            raise ValueError(f"{verb}: a command, path or variable must not contain a zero byte")
        message = b"\0".join(parts)
        if len(message) > MOST_BYTES // 2:
            raise ValueError(f"{verb}: {len(message)} bytes are too many for a command line: write a file and pass its path")
        attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        reply = self._waiting[key] = self._loop.create_future()
        give_up = self._loop.time() + SEND_SECONDS
        while not self.lost:
            try:
                self._own.sendmsg([message], attached)
                break
            except BlockingIOError:
                if self._loop.time() > give_up:
                    self._lose("the workspace's first process takes no requests")
                await asyncio.sleep(SEND_AGAIN_SECONDS)
            except OSError:
                self._lose("the workspace was lost")
        if self.lost:
            self._fail(reply)
        return key, reply

    async def tell(self, verb: str, *fields: str | bytes) -> None:
        """Sends a message that gets no reply."""
        key, _ = await self.send(verb, *fields)
        self.forget(key)

    def forget(self, key: str) -> None:
        """Drops the future of a request that has had its answer, or is to have none."""
        self._waiting.pop(key, None)

    def close(self) -> None:
        """Closes the socket, which ends the first process; callers that wait for a reply get an error that it is lost."""
        if self._is_open:
            self._is_open = False
            self._lose("the workspace was closed")
            self._loop.remove_reader(self._own)
            self._own.close()
            self.other.close()

    def _take(self) -> None:
        """Reads the replies that have arrived."""
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    message, attached, _, _ = self._own.recvmsg(MOST_BYTES, _SPACE, socket.MSG_CMSG_CLOEXEC)
                except ConnectionError:
                    message, attached = b"", []
                if not message:
                    self._loop.remove_reader(self._own)
                    self._lose("the workspace was lost")
                    return
                self._receive(message, attached)

    def _receive(self, message: bytes, attached: list[tuple[int, int, bytes]]) -> None:
        files = array.array("i")
        process = 0
        for _, kind, data in attached:
            if kind == socket.SCM_RIGHTS:
                files.frombytes(data)
            elif kind == socket.SCM_CREDENTIALS:
                process = _CREDENTIALS.unpack(data)[0]
        if message == b"staged":
            self._watch(process)
            return
        if message.startswith(b"failed "):
            self._lose(message[7:].decode(errors="replace"))
            return
        key, status, *fields = message.split(b"\0")
        if key.decode() == FIRST:
            self.first_process = process
            self._watch(process)
        future = self._waiting.get(key.decode())
        if future is None or future.done():
            for file in files:
                os.close(file)
        elif status == b"error":
            future.set_exception(OSError(int(fields[0]), os.strerror(int(fields[0]))))
        else:
            future.set_result(ChannelReply(fields=fields, files=list(files)))

    def _watch(self, process: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.processes.append(os.pidfd_open(process))

    def _lose(self, why: str) -> None:
        self.lost = self.lost or why
        for future in self._waiting.values():
            self._fail(future)

    def _fail(self, future: asyncio.Future[ChannelReply]) -> None:
        if not future.done():
            future.set_exception(SandboxError(self.lost))
            future.exception()  # whoever waits is told; nobody need
