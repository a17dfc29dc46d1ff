"""Which weights a server should hold, so that it gets them again after a restart."""

from dataclasses import dataclass
from pathlib import Path

from vime.weights.payload import NO_VERSION, WeightPayload


@dataclass(kw_only=True, slots=True)
class ExpectedWeights:
    """The last version that a server was given.

    Example: `ExpectedWeights(version=3, payload=WeightPayload(version=3, files=[…]))`. The payload is None or older if the
    version was sent without files.
    """

    awaits_sync: bool = False
    """The server starts with random weights and must not answer before it was given real ones."""
    version: int = NO_VERSION
    payload: WeightPayload | None = None

    def are_at_hand(self) -> bool:
        """Whether a server that has just started can get them without the trainer: it started with them, or files have them."""
        if self.payload is None:
            return self.version == NO_VERSION or (self.version == 0 and not self.awaits_sync)
        return self.version == self.payload.version and all(Path(file).exists() for file in self.payload.files)
