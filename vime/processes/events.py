"""The faults of one program: logged at once, and kept until they are asked for."""

import logging
import time
from typing import Any

logger = logging.getLogger(__name__)


class Events:
    """The events of one program, oldest first; an event is {time, server, event, detail}."""

    def __init__(self, name: str) -> None:
        self.last = "it is starting"
        """The last event in words."""
        self._name = name
        self._events: list[dict[str, Any]] = []

    def record(self, event: str, detail: str) -> None:
        """Adds an event that happens now."""
        logger.warning("%s: %s (%s)", self._name, event, detail)
        self.last = f"{event} ({detail})"
        self._events.append({"time": time.time(), "server": self._name, "event": event, "detail": detail})

    def take(self) -> list[dict[str, Any]]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events
