"""`Policy`: which weights the trained model has at this moment of a run."""

from dataclasses import dataclass, field
from pathlib import Path

from vime.weights.payload import NO_VERSION, WeightPayload


@dataclass(kw_only=True, slots=True)
class Policy:
    """The versions of the trained model's weights.

    A run has one object of this class in its driver for each trained policy: training and the syncs change it, and everything
    else there reads it. An actor that keeps a server has a copy of its own, with the version that the server should hold.
    Example: `Policy(trained_version=3, version=3, payloads={"": WeightPayload(version=3, files=[…])})`.
    """

    trained_version: int = 0
    """The version of the trainer's weights, which is the number of batches that they were trained on."""
    version: int = NO_VERSION
    """The version that the servers should hold: that of the last sync, or of the one under way."""
    payloads: dict[str, WeightPayload] = field(default_factory=dict)
    """The files of the last version that was sent in files, by the name of the adapter (`WeightPayload.adapter`); empty if
    it was sent without files. The policies of several adapters share them, because a server needs all."""

    def expect(self, version: int, payload: WeightPayload | None = None) -> None:
        """Notes the version that a sync begins to send, with its files if there are any."""
        self.version = version
        if payload is None:
            self.payloads.clear()
        else:
            self.payloads[payload.adapter] = payload

    def is_at_hand(self, *, starts_random: bool) -> bool:
        """True if a server that has just started can have this version without the trainer.

        Either the server started with it, which is never so if it `starts_random`, or its files exist.
        """
        if not self.payloads:
            return self.version == NO_VERSION or (self.version == 0 and not starts_random)
        is_last = any(payload.adapter or payload.version == self.version for payload in self.payloads.values())
        if any(payload.base is not None for payload in self.payloads.values()):
            return False  # a server that has just started has nothing that differs
        return is_last and all(Path(file).exists() for payload in self.payloads.values() for file in payload.files)
