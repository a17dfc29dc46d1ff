"""The order of a step, with stand-ins for its parts: when a checkpoint is taken."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from vime import loop
from vime.preflight.compose import compose_run


class Parts:
    """System, session, workers, producer and pin at once; remembers what happened to the trainer and the servers."""

    def __init__(self, config: Any) -> None:
        self.config, self.events = config, []
        self.trainer = self.serving = self.console = self.trace = self.workers = self.checkpoints = self
        self.on_group: Any = None

    async def usage(self) -> None:
        return None

    def rollouts(self, step: int, total: int) -> Any:
        return nullcontext()

    async def batch(self) -> tuple[list[Any], dict[str, float]]:
        return [], {}

    async def released(self) -> None:
        pass

    def expecting_weights(self) -> Any:
        return nullcontext()

    async def train(self, updates: list[Any], step: int) -> dict[str, float]:
        self.events.append("train")
        return {}

    async def sync_weights(self, version: int) -> dict[str, float]:
        self.events.append("sync")
        return {}

    async def begin(self, *, step: int) -> None:
        self.events.append(f"begin to save step {step}")

    async def save(self, *, step: int, driver: dict[str, Any]) -> None:
        self.events.append(f"save step {step} with {driver}")

    async def check(self) -> None:
        pass

    @asynccontextmanager
    async def trainer_awake(self) -> AsyncIterator["Parts"]:
        self.events.append("trainer awake")
        yield self

    async def serving_metrics(self) -> dict[str, float]:
        return {}

    def phases(self, spans: Any, *, step: int) -> None:
        pass

    async def listed(self) -> list[Any]:
        return []

    def log_step(self, step: int, *_: Any) -> None:
        self.events.append("log")

    async def save_rollouts(self, step: int, groups: list[Any]) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {"events": len(self.events)}


class Clock:
    """Measures nothing."""

    spans: Any = ()

    def __init__(self, usage: Any = None) -> None:
        pass

    async def start(self) -> None:
        pass

    async def mark(self, name: str) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return {}


async def two_steps(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """The events of two steps, the second with a checkpoint."""
    config = compose_run(["+method=memagent", "mode=plan", "trainer.save_every=2", "trainer.num_steps=4", *words]).config
    parts: Any = Parts(config)
    system: Any = SimpleNamespace(**{name: getattr(parts, name) for name in dir(Parts) if not name.startswith("_")})
    system.trainer = system.serving = system.workers = system.checkpoints = parts
    system.events = parts.listed
    monkeypatch.setattr(loop, "StepClock", Clock)
    monkeypatch.setattr(loop, "build_updates", lambda *_, **__: ([], {}))
    monkeypatch.setattr(loop, "batch_metrics", lambda *_, **__: {})

    async def state(step: int) -> dict[str, Any]:
        return {"buffer": step}

    for step in range(2):
        await loop.train_step(parts, system, parts, parts, step)
        await loop._after_step(parts, system, step + 1, state)
    return parts.events


async def test_on_shared_gpus_the_trainers_state_is_taken_before_the_servers_wake(monkeypatch: pytest.MonkeyPatch):
    events = await two_steps(monkeypatch, "cluster=one_gpu")
    assert events == [
        *["train", "sync", "log"],
        *["train", "begin to save step 2", "sync", "log"],
        "save step 2 with {'buffer': 2, 'events': 7}",
    ]


async def test_elsewhere_a_checkpoint_does_not_hold_up_the_sync(monkeypatch: pytest.MonkeyPatch):
    events = await two_steps(monkeypatch)
    assert events[3:] == ["train", "sync", "log", "trainer awake", "save step 2 with {'buffer': 2, 'events': 6}"]


class Pins:
    """Remembers what was started."""

    def __init__(self) -> None:
        self.started = 0

    def start(self, evaluation: Any) -> None:
        evaluation.close()
        self.started += 1


def evaluations(*words: str) -> list[int]:
    """The steps after which an evaluation runs beside the next batch."""
    config = compose_run(["+method=memagent", "mode=plan", "trainer.num_steps=4", *words]).config
    session: Any = SimpleNamespace(config=config, has_evaluated=lambda step: False)
    found = []
    for step in range(4):
        pin: Any = Pins()
        loop._evaluate_during(session, Parts(config), SimpleNamespace(), pin, step)  # type: ignore[arg-type]
        found += [step] * pin.started
    return found


def test_one_run_before_training_is_scored_beside_the_first_batch():
    assert evaluations() == []
    assert evaluations("evaluation.before=one_run") == [0]
    assert evaluations("evaluation.before=one_run", "trainer.evaluate_every=2") == [0, 2]
    assert evaluations("evaluation.before=one_run", "evaluation.rows=[trained]") == []
    assert evaluations("evaluation.before=none", "trainer.evaluate_every=2") == [2]
    assert evaluations("model=qwen2.5-7b", "cluster=one_node") == [0], "at paper scale all rows would take hours"
