"""The process of a rollout worker, in which the workers of several runs may be made, one after another."""

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

from vime.agent.workspace import starter
from vime.config import RunConfig
from vime.hooks import HOOKS
from vime.processes.users_code import Untouched

END_SECONDS = 2.0
"""Time limit for the cancelled tasks of a run to end."""
LOOK_AGAIN_SECONDS = 0.01
THREAD = "asyncio"
"""Beginning of the names of asyncio's threads."""


class SeveralRuns:
    """Create it before code of users is called: its remains in the process must not reach the next run."""

    def __init__(self) -> None:
        self._untouched = Untouched.now()
        self._threads: ThreadPoolExecutor | None = None

    def begin(self) -> None:
        """Begins a run in this event loop, with a thread pool of its own: the end of asyncio's own threads cannot be awaited.

        Python's cycle collector runs less often from now on: by default it takes half of the time with many rollouts in flight.
        """
        gc.set_threshold(100_000, 50, 100)
        self._threads = ThreadPoolExecutor(thread_name_prefix=THREAD)
        asyncio.get_running_loop().set_default_executor(self._threads)

    async def end(self, config: RunConfig) -> str:
        """The run has ended; modules of users are forgotten.

        Returns why the process cannot take part in another run, as text for the log; empty if it can.
        """
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + END_SECONDS
        while (reason := _at_work()) and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        starter.stop()  # the workspaces of agents, and what makes them
        if not (reason := reason or self._untouched.changed()):
            hooks = [path for key in HOOKS if isinstance(path := attrgetter(key)(config), str)]
            self._untouched.forget_modules([*hooks, type(config.method).__module__])
        return reason


def _at_work() -> str:
    """The work that still runs beside the caller, as text for the log; empty if nothing does."""
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith(THREAD)]
    if tasks:
        return f"a task has not ended: {tasks[0].get_coro()}"
    return f"the thread {threads[0]} has not ended" if threads else ""
