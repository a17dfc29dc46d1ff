"""The probe of `trace_path.py`, in every process of the run: notes which file hands a sample or weights to which.

It is started by the environment variables below (`sitecustomize` calls `install`), imports nothing of vime, and appends each
hand-over to a file of its process as soon as it happens, because workers are killed and not ended.
"""

import inspect
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

FOLDER, ROOT = "VIME_TRACE_FOLDER", "VIME_TRACE_ROOT"
OUTSIDE, LOSS, LOAD_WEIGHTS = "(outside)", "(loss)", "(load_weights)"
SAMPLE, WEIGHT, FRAMES, FORM = "sample", "weight", "frames", "form"
THINGS = {
    SAMPLE: {
        "vime.types": {"Turn", "Sample", "Rollout", "Group", "TrainSample"},
        "vime.serving": {"Reply"},
        "vime.trajectory": {"Call", "TokenSequence", "ReplyNode"},
        "vime.rollout": {"Call", "Branch"},
        "vime.batches": {"Batch"},
        "vime.trainer": {"PackedUpdate", "Shard", "Block", "PackedRow", "PackedRows", "MicroBatches", "MicroBatch"},
    },
    WEIGHT: {"vime": {"WeightPayload", "FileUpdateInfo"}},
}
"""Classes that a sample is made of or made into, from the client's answer on, and classes that represent weights, by the
beginning of their module. They include those of earlier versions."""
IDS = {"_held_ids", "_rest", "columns", "environment", "ids", "output_ids", "tokens", "tokens_T"}
"""Attributes and slots under which these classes hold token ids themselves, not as a property of what another object holds."""
LOSSES = {"policy_loss", "sft_loss"}
AGENT = "generate"
"""Function of an agent, whose first argument is the context."""
SENDERS = {("_request", "/aiohttp/"), ("_remote", "/ray/"), ("put", "/ray/")}
"""Functions that hand their arguments to another process, and the package that they are in."""
TENSORS = {"Tensor", "Parameter"}
DEPTH, LOOKED_AT = 3, 2
"""The depth to which a thing is looked for, and the number of members of each container that are looked at."""


def install() -> None:
    """Begins to watch, if the environment says so and the process is none of Ray's own, which it would only slow down."""
    is_rays = any("/ray/" in word and not word.endswith("default_worker.py") for word in sys.orig_argv)
    if FOLDER in os.environ and not is_rays:
        probe = Probe(Path(os.environ[ROOT]), Path(os.environ[FOLDER]) / f"{os.getpid()}.txt")
        os.register_at_fork(after_in_child=lambda: probe.move(Path(os.environ[FOLDER]) / f"{os.getpid()}.txt"))
        threading.setprofile(probe.watch)
        sys.setprofile(probe.watch)


class Probe:
    """Watches the calls and returns of the functions in `root/vime`."""

    def __init__(self, root: Path, notes: Path) -> None:
        self._prefix = f"{root / 'vime'}{os.sep}"
        self._files: dict[CodeType, str | None] = {}
        self._kinds: dict[type, str | None] = {}
        self.move(notes)

    def move(self, notes: Path) -> None:
        """Writes further notes to another file."""
        self._notes, self._seen = notes, set[tuple[str, str, str]]()

    def watch(self, frame: FrameType, event: str, value: Any) -> None:
        """Takes the calls of `sys.setprofile`; a function that yields returns as well, and is called again."""
        if event == "call":
            self._called(frame)
        elif event == "return" and (file := self._file(frame.f_code)) and (kind := self._kind(value)):
            self._note(kind, file, self._caller(frame, kind))

    def _called(self, frame: FrameType) -> None:
        code = frame.f_code
        if code.co_name == "load_weights" and frame.f_back is not None and (giver := self._file(frame.f_back.f_code)):
            self._note(WEIGHT, giver, LOAD_WEIGHTS)
        if any(code.co_name == name and package in code.co_filename for name, package in SENDERS):
            self._sent(frame)
        if code.co_name == AGENT and code.co_varnames[:1] == ("context",):
            self._begun(frame)
        file = self._file(code)
        if file is None:
            return
        if code.co_name in LOSSES:
            self._note(SAMPLE, self._caller(frame, SAMPLE), LOSS)
        for kind in self._given(frame):
            self._note(kind, self._caller(frame, kind), file)

    def _begun(self, frame: FrameType) -> None:
        """Notes the functions of vime on the stack where an agent begins, the innermost first."""
        names: list[str] = []
        before = frame.f_back
        while before is not None:
            if before.f_code.co_filename.startswith(self._prefix):
                names.append(f"{before.f_code.co_filename.removeprefix(self._prefix)}:{before.f_code.co_name}")
            before = before.f_back
        if names:
            self._note(FRAMES, str(len(names)), " < ".join(names))

    def _sent(self, frame: FrameType) -> None:
        """Notes that a request over HTTP or a call to an actor hands on the things of the innermost function that has any."""
        before = frame.f_back
        while before is not None:
            if (file := self._file(before.f_code)) and (kinds := [kind for kind in THINGS if self._has(before, kind)]):
                for kind in kinds:
                    self._note(kind, file, OUTSIDE)
                return
            before = before.f_back

    def _given(self, frame: FrameType) -> set[str]:
        """The kinds of things among a function's arguments."""
        code, values = frame.f_code, frame.f_locals
        num_more = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + num_more]
        return {kind for name in names if (kind := self._kind(values.get(name))) is not None}

    def _kind(self, value: Any, depth: int = DEPTH) -> str | None:
        """True if a value is, or holds, a sample or weights."""
        found = type(value)
        if found not in self._kinds:
            names = ((kind, module, classes) for kind, of_module in THINGS.items() for module, classes in of_module.items())
            kinds = (kind for kind, module, classes in names if found.__name__ in classes and _is_in(found.__module__, module))
            self._kinds[found] = next(kinds, None)
            if self._kinds[found] == SAMPLE and (_held(found) or IDS & set(getattr(value, "__dict__", ()))):
                self._note(FORM, "", f"{found.__module__}.{found.__qualname__}")
        if (kind := self._kinds[found]) is not None or depth == 0:
            return kind
        if found is tuple and len(value) == 2 and type(value[0]) is str and type(value[1]).__name__ in TENSORS:
            return WEIGHT
        if found is dict:
            return self._first(list(value.items())[:LOOKED_AT], depth) or self._first(list(value.values())[:LOOKED_AT], depth)
        return self._first(list(value)[:LOOKED_AT], depth) if found in (list, tuple, set) else None

    def _first(self, values: Iterable[Any], depth: int) -> str | None:
        return next((kind for value in values if (kind := self._kind(value, depth - 1)) is not None), None)

    def _caller(self, frame: FrameType, kind: str) -> str:
        """The file of vime that called, past functions of other packages if the caller has such a thing; otherwise `OUTSIDE`."""
        before = frame.f_back
        while before is not None and self._file(before.f_code) is None:
            before = before.f_back
        if before is None or (before is not frame.f_back and not self._has(before, kind)):
            return OUTSIDE
        return self._file(before.f_code) or OUTSIDE

    def _has(self, frame: FrameType, kind: str) -> bool:
        """True if a function has a thing of this kind in its variables."""
        return any(self._kind(value) == kind for value in frame.f_locals.values())

    def _file(self, code: CodeType) -> str | None:
        """The file of a function of vime. What types can do is part of the thing; `tasks` waits for others, as asyncio does."""
        if code not in self._files:
            path = code.co_filename
            own = path.startswith(self._prefix) and not path.startswith((f"{self._prefix}types", f"{self._prefix}tasks.py"))
            self._files[code] = path.removeprefix(self._prefix) if own else None
        return self._files[code]

    def _note(self, kind: str, giver: str, taker: str) -> None:
        if giver != taker and (kind, giver, taker) not in self._seen:
            self._seen.add((kind, giver, taker))
            with self._notes.open("a") as notes:
                notes.write(f"{kind}\t{giver}\t{taker}\n")


def _held(kind: type) -> bool:
    """True if instances have a slot or a field for token ids, and no property or method that finds them elsewhere."""
    found = (inspect.getattr_static(kind, name) for name in IDS & set(dir(kind)))
    return any(not isinstance(each, property) and not callable(each) for each in found)


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
