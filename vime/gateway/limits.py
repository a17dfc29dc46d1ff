"""`Limits`: where a session ends by itself."""

from collections.abc import Mapping
from dataclasses import dataclass

from vime.types import StopReason


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The most that one session may ask for; None for no limit. Example: `Limits(num_calls=20)`."""

    num_calls: int | None = None
    num_tokens: int | None = None
    """Sampled tokens, of all calls together."""

    def reached(self, counts: Mapping[str, int]) -> tuple[str, StopReason] | None:
        """Which limit is reached, in words and as a reason; None if none is."""
        if self.num_calls is not None and counts["calls"] >= self.num_calls:
            return f"the session's limit of {self.num_calls} calls is reached", StopReason.TURN_LIMIT
        if self.num_tokens is not None and counts["tokens"] >= self.num_tokens:
            return f"the session's limit of {self.num_tokens} sampled tokens is reached", StopReason.TOKEN_LIMIT
        return None
