"""One launched program (a vLLM server or a router): its command, its process, its log."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

LOG_TAIL_BYTES = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramSpec:
    """What to launch and how to keep it.

    Example: `ProgramSpec(name="actor-0", url="http://127.0.0.1:8001", command=["python", "-m", …], log="…/logs/actor-0.log")`.
    """

    name: str
    url: str
    command: list[str]
    log: str
    environment: dict[str, str | None] = field(default_factory=dict)
    """Set on top of the actor's environment; None removes a variable."""
    remove: list[str] = field(default_factory=list)
    """Folders that go when the run is gone (weight payloads in shared memory)."""
    health_path: str = "/health"
    start_timeout_seconds: float = 300.0
    health_interval_seconds: float = 2.0
    health_failures: int = 5
    max_restarts: int = 3


class Program:
    """The process of a spec, under the supervisor that ends its tree with it (`vime.serving.launch`)."""

    def __init__(self, spec: ProgramSpec) -> None:
        self.num_launches = 0
        self._spec = spec
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Starts it; its output is added to the log."""
        self.num_launches += 1
        spec = self._spec
        arguments = [f"--remove={folder}" for folder in spec.remove]
        command = [sys.executable, "-m", "vime.serving.launch", f"--owner={os.getpid()}", *arguments, "--", *spec.command]
        kept = {key: value for key, value in os.environ.items() if key not in spec.environment}
        environment = {**kept, **{key: value for key, value in spec.environment.items() if value is not None}}
        Path(spec.log).parent.mkdir(parents=True, exist_ok=True)
        with Path(spec.log).open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def pid(self) -> int | None:
        """Process id of what was launched: the supervisor's parent, the program's grandparent."""
        return self._process.pid if self._process is not None else None

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process is not None else None

    async def kill(self) -> None:
        """Has the supervisor end the tree; returns when both are gone."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait)

    def log_tail(self) -> str:
        """The end of the log."""
        with Path(self._spec.log).open("rb") as log:
            log.seek(max(0, os.path.getsize(self._spec.log) - LOG_TAIL_BYTES))
            return f"end of {self._spec.log}:\n{log.read().decode(errors='replace')}"
