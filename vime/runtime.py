"""Ray and the nodes of a run, from its first process to its last.

`with Runtime(config, say=print) as runtime:` guarantees that nothing of the run is left afterwards, not even if the driver is
killed: a reaper beside it ends the processes and removes the temporary folders of a driver that is gone. In a process that runs
several, one after another (`vime.warm`), `running` hands Ray and the parts that are kept from one to the next.
"""

import logging
import os
import secrets
import shutil
import signal
import subprocess
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import ray
from ray._private import utils as ray_utils  # no public way to keep its handler of SIGTERM out

from vime.cluster.nodes import Nodes
from vime.cluster.placement import takes_turns
from vime.config import RunConfig
from vime.errors import ServerError, describe
from vime.memory.tokens import object_store_bytes
from vime.processes.reaper import start_reaper
from vime.processes.secret import run_secret
from vime.processes.spare import Spare
from vime.surroundings import no_proxy, short_folder
from vime.weights.payload import payload_folder

STOP_TIMEOUT_SECONDS = 30.0
IMPATIENT = 3
"""Number of signals that abort the start of Ray."""


class Runtime:
    """A Ray of its own, or the cluster of `cluster.ray_address`; a Ray that this process uses already is left as it is."""

    def __init__(self, config: RunConfig, *, say: Callable[[str], None], keeps: bool = False) -> None:
        """With `keeps`, the parts of a run stay for the next one that fits; see `running`."""
        self.run_id = uuid.uuid4().hex[:8]
        self.nodes = Nodes(config)
        self.secret = run_secret(config.cluster.host)
        self.spare = Spare(keeps=keeps)
        self._config = config
        self._say = say
        self._ray_dir = short_folder() / f"vime-{self.run_id}"  # with sockets in it
        self._owns_ray = False
        self._reaper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Runtime":
        """Raises ServerError if the Ray cluster has fewer nodes or GPUs than the run asks for."""
        try:
            if not ray.is_initialized():
                self._start_ray()
            self.nodes.reserve()
        except BaseException:  # raised again: whatever ended the start, nothing that it started stays
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if ray.is_initialized():
            self.nodes.release()
        if self._owns_ray:
            ray.shutdown()
        shutil.rmtree(self._ray_dir, ignore_errors=True)
        if self._reaper is not None:
            self._reaper.terminate()
            self._reaper.wait(STOP_TIMEOUT_SECONDS)

    def fits(self, config: RunConfig) -> bool:
        """True if another run can use this Ray and these nodes."""
        has_room = object_store_bytes(config) <= object_store_bytes(self._config)
        is_same = replace(config.cluster, keep_warm=0) == replace(self._config.cluster, keep_warm=0)
        return ray.is_initialized() and has_room and is_same

    async def close(self) -> None:
        """Ends the parts that are left, and Ray."""
        try:
            await self.spare.end()
        finally:
            self.__exit__()

    def _start_ray(self) -> None:
        address = self._config.cluster.ray_address
        self._say(f"joining Ray at {address}" if address else "starting Ray")
        self._owns_ray = True
        self._reaper = start_reaper(owner=os.getpid(), remove=[self._ray_dir, payload_folder(self.run_id)])
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves trainer and servers on a busy machine
        os.environ |= no_proxy(self._config.cluster.host)  # also of what Ray starts
        options: dict[str, Any] = {"namespace": self.run_id, "log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex())  # else Ray wants to keep one in HOME
            options |= {
                "include_dashboard": False,
                "object_store_memory": object_store_bytes(self._config),
                "_node_ip_address": self._config.cluster.host,
                "_temp_dir": str(self._ray_dir),
            }
        with signals_end() if address else signals_wait():
            try:
                ray.init(address=address or "local", **options)  # not a cluster that happens to run on this machine
            except Exception as error:  # Ray raises that class itself, for whatever hinders its processes
                what = f"cluster.ray_address={address} cannot be joined" if address else "Ray does not start on this machine"
                raise ServerError(f"{what}: {describe(error)}") from error


class Between:
    """State that stays between the runs of this process."""

    keeps = False
    """True if runs leave their parts to the next one."""
    runtime: Runtime | None = None


@asynccontextmanager
async def running(config: RunConfig, *, say: Callable[[str], None]) -> AsyncIterator[Runtime]:
    """The runtime of a run: a new one, which ends with the run, unless this process keeps the parts of its runs.

    If it does, the runtime may come from an earlier run, and it is kept if this run succeeds. Parts on shared GPUs are never
    kept, because trainer and servers use these GPUs alternately. Raises what `Runtime` raises.
    """
    runtime, Between.runtime = Between.runtime, None
    if runtime is not None and not runtime.fits(config):
        await runtime.close()
        runtime = None
    keeps = Between.keeps and not takes_turns(config)
    runtime = runtime or Runtime(config, say=say, keeps=keeps).__enter__()
    try:
        yield runtime
        if keeps:
            Between.runtime = runtime
    finally:
        if Between.runtime is None:
            await runtime.close()


async def end_kept() -> None:
    """Ends what the last run of this process has left."""
    runtime, Between.runtime = Between.runtime, None
    if runtime is not None:
        await runtime.close()


@contextmanager
def signals_end() -> Iterator[None]:
    """Lets SIGINT and SIGTERM end the process at once within the block, because no handler runs while Ray waits for an answer.

    Nothing of the run is on the cluster so far, and the reaper clears this machine.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def signals_wait() -> Iterator[None]:
    """Holds SIGINT and SIGTERM back until the end of the block, and keeps Ray from setting handlers of its own.

    Otherwise a half-started Ray would end with a stack dump, and its handler would end the program on the spot. The third signal
    aborts the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    of_ray, ray_utils.set_sigterm_handler = ray_utils.set_sigterm_handler, lambda handler: None

    def note(number: int, frame: object) -> None:
        came.append(number)
        if len(came) == IMPATIENT:
            raise KeyboardInterrupt

    for number in handlers:
        signal.signal(number, note)
    try:
        yield
    finally:
        ray_utils.set_sigterm_handler = of_ray
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])
