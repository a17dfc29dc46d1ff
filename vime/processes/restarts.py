"""The number of times that a program may be launched again: a budget that fills up again while the program is well."""


class Restarts:
    """At most `most` restarts; each `window_seconds` of health forgive one of them.

    A program that fails once a day never uses up the budget; one that fails repeatedly without a healthy period in between does.
    """

    def __init__(self, most: int, window_seconds: float) -> None:
        self._most, self._window_seconds = most, window_seconds
        self._used = 0.0

    def was_well(self, seconds: float) -> None:
        """Forgives restarts in proportion to the time that the program has been well."""
        self._used = max(0.0, self._used - seconds / self._window_seconds)

    def take(self) -> bool:
        """Uses one restart; False if none is left."""
        if self._used + 1 > self._most:
            return False
        self._used += 1
        return True
