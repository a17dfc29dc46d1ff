"""Sessions of clients and what they have opened: models and samplers. Each client sees its own alone."""

import json
import secrets
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vime.service.journal import Journal
from vime.service.training_service import TrainedModel


class Refused(Exception):
    """A request that is answered at once with this status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


@dataclass(kw_only=True, slots=True)
class Sampling:
    """The weights of a sampling session: the files of a key, or without them the base model."""

    key: str = ""
    saved: str | None = None
    path: str | None = None
    snapshot_of: str = ""
    """The model whose weights they are, if they have no name and stay as they are."""

    @property
    def folder(self) -> Path | None:
        """The files; None for the base model."""
        return Path(self.saved) if self.saved is not None else None


@dataclass(kw_only=True, slots=True)
class Session:
    """A client's session: what it has opened is freed with it."""

    id: str
    owner: str
    heard_at: float = field(default_factory=time.monotonic)
    metadata: Any = None
    models: dict[str, TrainedModel | None] = field(default_factory=dict)
    """Models by name; None while one is created, after it could not be, and after its end."""
    samplers: dict[str, Sampling] = field(default_factory=dict)


class Sessions:
    """All sessions of a service, also in its journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._sessions: dict[str, Session] = {}

    def __iter__(self):
        return iter(list(self._sessions.values()))

    def restore(self) -> None:
        """Reads the sessions of the journal, and their samplers. Their clients count as heard now."""
        for id, owner, metadata in self._journal.sessions():
            self._sessions[id] = Session(id=id, owner=owner, metadata=json.loads(metadata))
        for id, about in self._journal.samplers():
            self._sessions[id.split(":")[0]].samplers[id] = Sampling(**json.loads(about))

    def create(self, owner: str, metadata: Any) -> Session:
        """A new session."""
        session = Session(id=secrets.token_hex(8), owner=owner, metadata=metadata)
        self._journal.add_session(session.id, owner, json.dumps(metadata))
        self._sessions[session.id] = session
        return session

    def of(self, id: str, owner: str) -> Session:
        """An owner's session. Raises Refused if there is none, or no more."""
        if (session := self.find(id, owner)) is None:
            raise Refused(410, f"the session {id} is over, or was never there: create another one")
        session.heard_at = time.monotonic()
        return session

    def of_model(self, name: str, owner: str) -> Session:
        """The session of a model. Raises Refused if this owner has no such model."""
        session = self.find(name.split(":")[0], owner)
        if session is None or name not in session.models:
            raise Refused(404, f"there is no model {name}")
        session.heard_at = time.monotonic()
        return session

    def sampler(self, id: str, owner: str) -> Sampling:
        """The weights of an owner's sampler. Raises Refused if there is none."""
        session = self.of(id.split(":")[0], owner)
        if id not in session.samplers:
            raise Refused(404, f"there is no sampler {id}")
        return session.samplers[id]

    def find(self, id: str, owner: str) -> Session | None:
        """An owner's session, or None."""
        session = self._sessions.get(id)
        return session if session is not None and session.owner == owner else None

    def add_sampler(self, session: Session, id: str, sampling: Sampling) -> None:
        """Opens a sampler, or gives one other weights."""
        self._journal.note_sampler(id, json.dumps(asdict(sampling)))
        session.samplers[id] = sampling

    def pop(self, id: str) -> Session | None:
        """Takes a session out, whose models and calls are then ended; None if that is under way."""
        return self._sessions.pop(id, None)
