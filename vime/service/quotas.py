"""Quotas of the API keys of a service: models, tokens and disk. What is beyond them is refused, with the setting and a remedy."""

import time
from collections import defaultdict, deque

from vime.config import ServiceConfig
from vime.errors import BadRequestError
from vime.service.call_queue import FullError
from vime.service.checkpoint_store import Store, num_bytes

WINDOW_SECONDS = 60.0
KEY = "of this API key"


class Quotas:
    """The use of each owner. All numbers are of this service; those of tokens begin anew with each start."""

    def __init__(self, config: ServiceConfig, store: Store) -> None:
        self._config, self._store = config, store
        self._tokens: dict[str, deque[tuple[float, int]]] = defaultdict(deque)

    def check_models(self, number: int) -> None:
        """Raises BadRequestError if an owner with this number of models may have no other."""
        if (most := self._config.key_models) is not None and number >= most:
            raise BadRequestError(f"{number} models {KEY} are trained already (service.key_models): end one of them first")

    def check_disk(self, owner: str) -> None:
        """Raises BadRequestError if nothing more is saved for an owner."""
        if (most := self._config.key_disk_bytes) is None:
            return
        if (used := sum(num_bytes(folder) for _, folder in self._store.all(owner=owner))) >= most:
            remedy = "remove some, or save with ttl_seconds"
            raise BadRequestError(f"the checkpoints {KEY} have {used} of {most} bytes (service.key_disk_bytes): {remedy}")

    def take_tokens(self, owner: str, number: int) -> None:
        """Counts the tokens of a call. Raises FullError if there is no room for them now; alone, a call may have any number."""
        most, now = self._config.key_tokens_per_minute, time.monotonic()
        if most is None or not number:
            return
        taken = self._tokens[owner]
        while taken and taken[0][0] < now - WINDOW_SECONDS:
            taken.popleft()
        if taken and (used := sum(each for _, each in taken)) + number > most:
            text = f"{used} tokens {KEY} in a minute, and {number} more are over {most} (service.key_tokens_per_minute)"
            raise FullError(f"{text}: make the call again later")
        taken.append((now, number))
