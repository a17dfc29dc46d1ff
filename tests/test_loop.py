"""The order of a step, with stand-ins for its parts: when a checkpoint is taken."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vime import loop
from vime.algorithm.algorithm import Algorithm
from vime.algorithm.critic import Critic
from vime.batches import Batch, DemonstrationBatches
from vime.config import RunConfig
from vime.errors import (
    AdapterError,
    ConfigError,
    HookError,
    Problem,
    RankLostError,
    ServerError,
    TrainingError,
    WeightSyncError,
)
from vime.preflight.compose import compose_run
from vime.report.ending import read_ending
from vime.run_output import RunOutput
from vime.tasks import Watches
from vime.trainer.group import Update
from vime.trainer.shard import Shard
from vime.types import Sample


class Parts:
    """Output, system and batches at once; remembers what happened to the trainer and the servers."""

    usage, algorithm, critic = None, Algorithm(RunConfig()), None

    def __init__(self, config: Any) -> None:
        self.config, self.happened = config, []
        self.console = self.trace = self.checkpoints = self.pin = self

    async def next(self, step: int) -> Batch:
        return Batch(demonstrations=[Sample(tokens=[1, 2], loss_mask=[1])])

    async def compared(self) -> dict[str, float]:
        self.happened.append("compare")
        return {}

    async def released(self) -> None:
        pass

    @asynccontextmanager
    async def training(self) -> AsyncIterator["Parts"]:
        yield self

    async def hand_over(self, algorithm: Any, samples: list[Any], *, version: int) -> Update:
        shard = Shard(blocks=[], version=version, useful_token_share=1.0, update_samples=1, update_tokens=2)
        return Update(packed=cast(Any, None), shards=[shard])

    async def forward_backward(self, *_: Any, keep: bool) -> tuple[dict[str, float], None]:
        self.happened.append("gradient")
        return {"train/seconds": 0.1}, None

    async def step(self, *, optimizer: dict[str, float], step: int) -> dict[str, float]:
        self.happened.append("train")
        return {"train/seconds": 0.1}

    def trained(self, version: int) -> None:
        pass

    async def peak_bytes(self) -> float:
        return 1.0

    async def sync(self, version: int) -> dict[str, float]:
        self.happened.append("sync")
        return {}

    async def begin(self, *, step: int) -> None:
        self.happened.append(f"begin to save step {step}")

    async def save(self, *, step: int, driver: dict[str, Any]) -> None:
        self.happened.append(f"save step {step} with {driver}")

    async def check(self) -> None:
        pass

    def oldest_step(self) -> int:
        return 1

    @asynccontextmanager
    async def trainer_awake(self) -> AsyncIterator["Parts"]:
        self.happened.append("trainer awake")
        yield self

    async def metrics(self) -> dict[str, float]:
        return {}

    async def events(self) -> list[Any]:
        return []

    def phases(self, spans: Any, *, step: int) -> None:
        pass

    def log_step(self, step: int, *_: Any) -> None:
        self.happened.append("log")

    async def save_rollouts(self, step: int, groups: list[Any], advantages: Any, logprobs: Any) -> None:
        pass

    def check_alarms(self) -> None:
        pass


class OfBatches(Parts):
    """The batches' state, beside that of the output."""

    async def state(self, step: int, *, oldest_step: int | None) -> dict[str, Any]:  # type: ignore[override]
        return {"buffer": (step, oldest_step)}


class OfOutput(Parts):
    """The output's state."""

    def state(self) -> dict[str, Any]:
        return {"totals": len(self.happened)}


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
    parts = Parts(config)
    system: Any = parts
    output: Any = OfOutput(config)
    batches: Any = OfBatches(config)
    output.happened = batches.happened = parts.happened
    monkeypatch.setattr(loop, "StepClock", Clock)
    for step in range(2):
        await loop.train_step(output, system, batches, step)
        await loop.save_if_due(output, system, batches, step + 1)
    return parts.happened


async def test_on_shared_gpus_the_trainers_state_is_taken_before_the_servers_wake(monkeypatch: pytest.MonkeyPatch):
    happened = await two_steps(monkeypatch, "cluster=one_gpu")
    assert happened == [
        *["gradient", "compare", "train", "sync", "log"],
        *["gradient", "compare", "train", "begin to save step 2", "sync", "log"],
        *["compare", "save step 2 with {'buffer': (2, 1), 'totals': 12}"],
    ]


async def test_elsewhere_a_checkpoint_does_not_hold_up_the_sync(monkeypatch: pytest.MonkeyPatch):
    happened = await two_steps(monkeypatch)
    saved = ["compare", "trainer awake", "save step 2 with {'buffer': (2, 1), 'totals': 11}"]
    assert happened[5:] == ["gradient", "compare", "train", "sync", "log", *saved]


async def test_a_probe_that_fails_beside_the_gradient_prevents_the_optimizer_step(monkeypatch: pytest.MonkeyPatch):
    async def disagree(self: Parts) -> dict[str, float]:
        raise WeightSyncError("they disagree")

    monkeypatch.setattr(Parts, "compared", disagree)
    monkeypatch.setattr(loop, "StepClock", Clock)
    parts: Any = Parts(compose_run(["+method=memagent", "mode=plan"]).config)
    with pytest.raises(WeightSyncError, match="they disagree"):
        await loop.train_step(parts, parts, parts, 0)
    assert parts.happened == ["gradient"]


class Taught(Parts):
    """Parts with a critic: the verbs say whose weights they are of."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.critic, self.name = Critic(config), "policy"

    def of(self, name: str) -> "Taught":
        view = copy(self)
        view.name = name
        return view

    async def forward_backward(self, *_: Any, keep: bool = False) -> tuple[dict[str, float], None]:
        self.happened.append(f"gradient of the {self.name}")
        return {"train/seconds": 0.1, "train/num_tokens": 1.0, "train/value_loss": 0.5}, None

    async def step(self, *, optimizer: dict[str, float], step: int) -> dict[str, float]:
        self.happened.append(f"step of the {self.name} at {optimizer['lr']:g}")
        return {"train/seconds": 0.1, "train/grad_norm": 2.0}

    def log_step(self, step: int, metrics: dict[str, float], *_: Any) -> None:
        self.metrics_of_step = metrics
        self.happened.append("log")


async def test_a_critic_learns_first_and_alone_while_it_warms_up(monkeypatch: pytest.MonkeyPatch):
    words = ["algorithm=ppo", "algorithm.critic.lr=2e-3", "algorithm.critic.num_epochs_per_batch=2"]
    config = compose_run(["+method=memagent", "mode=plan", *words, "algorithm.critic.warmup_steps=1"]).config
    monkeypatch.setattr(loop, "StepClock", Clock)
    parts: Any = Taught(config)
    await loop.train_step(parts, parts, parts, 0)
    taught = ["gradient of the critic", "step of the critic at 0.002"] * 2
    assert parts.happened == [*taught, "compare", "sync", "log"]
    assert parts.metrics_of_step["train/critic_grad_norm"] == 2.0 and parts.metrics_of_step["train/num_tokens"] == 2.0
    assert "train/grad_norm" not in parts.metrics_of_step
    parts.happened.clear()
    await loop.train_step(parts, parts, parts, 1)
    policy = ["gradient of the policy", "compare", f"step of the policy at {config.trainer.lr:g}"]
    assert parts.happened == [*taught, *policy, "sync", "log"]
    assert parts.metrics_of_step["train/grad_norm"] == 2.0 and parts.metrics_of_step["train/value_loss"] == 0.5


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
    output: Any = SimpleNamespace(config=config, has_evaluated=lambda step: False)
    evaluator: Any = None
    found = []
    for step in range(4):
        pin = Pins()
        system: Any = SimpleNamespace(config=config, pin=pin)
        loop._evaluate_during(output, system, evaluator, step)
        found += [step] * pin.started
    return found


def test_one_run_before_training_is_scored_beside_the_first_batch():
    assert evaluations() == []
    assert evaluations("evaluation.before=one_run") == [0]
    assert evaluations("evaluation.before=one_run", "trainer.evaluate_every=2") == [0, 2]
    assert evaluations("evaluation.before=one_run", "evaluation.rows=[trained]") == []
    assert evaluations("evaluation.before=none", "trainer.evaluate_every=2") == [2]
    assert evaluations("model=qwen2.5-7b", "cluster=one_node") == [0], "at paper scale all rows would take hours"


NOTHING = {"train/num_tokens": 0.0, "train/num_samples": 8.0}
SOME = {"train/num_tokens": 40.0, "train/num_samples": 8.0}


@pytest.mark.parametrize(
    ("steps", "num_warnings", "ends"),
    [
        ([NOTHING, NOTHING], 1, True),
        ([SOME, NOTHING, SOME, NOTHING, SOME], 2, False),
        ([SOME, NOTHING, {**NOTHING, "train/num_samples": 0.0}], 1, True),
        ([NOTHING | {"train/num_skipped_updates": 1.0}] * 3, 0, False),
        ([{}, {}], 0, False),
    ],
)
def test_steps_that_train_no_token_are_said_and_two_in_a_row_end_the_run(
    steps: list[dict[str, float]], num_warnings: int, ends: bool
):
    warnings: list[str] = []
    output: Any = SimpleNamespace(num_empty_steps=0, console=SimpleNamespace(warn=warnings.append))
    with pytest.raises(TrainingError, match="2 steps without a trained token") if ends else nullcontext():
        for step, metrics in enumerate(steps):
            loop.check_trained(output, step, metrics)
    assert len(warnings) == num_warnings
    assert all("without a trained token" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"train/num_samples": 8.0}, "masked everywhere"),
        ({}, "nothing was sampled"),
        ({"train/taught_share": 0.0, "train/num_samples_left_out": 8.0}, "none of its sequences has a teacher"),
        ({"train/taught_share": 0.0, "train/num_samples_left_out": 0.0}, "nothing was sampled"),
    ],
)
def test_a_step_that_trains_no_token_says_why(metrics: dict[str, float], words: str):
    warnings: list[str] = []
    output: Any = SimpleNamespace(num_empty_steps=0, console=SimpleNamespace(warn=warnings.append))
    loop.check_trained(output, 0, {"train/num_tokens": 0.0, **metrics})
    assert len(warnings) == 1 and words in warnings[0]


@pytest.mark.parametrize(("word", "key"), [("seed=1", "seed"), ("data.demonstrations=json.loads", "data.demonstrations")])
def test_demonstrations_go_on_in_the_order_of_the_checkpoint_or_not_at_all(word: str, key: str):
    common = ["+experiment=retool_tiny_sft", "model.checkpoint=agentic/retool/tiny/actor"]
    first, second = (DemonstrationBatches(compose_run([*common, *words]).config) for words in ([], [word]))
    state = asyncio.run(first.state(3, oldest_step=None))
    first.check(state)
    second.check({})
    with pytest.raises(ConfigError, match=rf"^{key}=.*the checkpoint has .*begin a new run"):
        second.check(state)


@pytest.mark.parametrize("key", ["seed", "data.shuffle", "rollout.num_prompts", "data.train.path"])
def test_so_do_pairs_and_other_rows_are_refused(key: str, tmp_path: Path):
    rows = [{"prompt": "go", "chosen": f"yes {number}", "rejected": "no"} for number in range(3)]
    for name, own in (("one", rows), ("moved", rows), ("other", rows[::-1])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, own)))
    common = ["algorithm=dpo", "model.checkpoint=agentic/memagent/tiny/actor"]

    def batches(name: str, *words: str) -> DemonstrationBatches:
        return DemonstrationBatches(compose_run([*common, f"data.train.path={tmp_path}/{name}.jsonl", *words]).config)

    state = asyncio.run(batches("one").state(3, oldest_step=None))
    batches("moved").check(state)
    changed = {"seed": "seed=1", "data.shuffle": "data.shuffle=false", "rollout.num_prompts": "rollout.num_prompts=3"}
    second = batches("one", changed[key]) if key in changed else batches("other")
    with pytest.raises(ConfigError, match=rf"^{key}=.*checkpoint.*begin a new run"):
        second.check(state)


ADAPTERS = ["model=tiny", "trainer.lora.rank=2", "serving.lora=adapter", "evaluation.rows=[]", "evaluation.before=none"]
ADAPTERS += [f'+adapters.{name}="+method=memagent"' for name in ("one", "two", "three")]


async def adapters_of_which_one_ends_with(error: BaseException, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trains three adapters, of which `two` raises the error after one step; returns those that came to their end."""
    ended: list[str] = []

    @asynccontextmanager
    async def systems(config: RunConfig, *_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
        agents = SimpleNamespace(watches=Watches())
        yield {name: SimpleNamespace(agents=agents) for name in config.adapters}

    async def learn(source: Any, output: RunOutput, system: Any) -> None:
        name = output.directory.path.name
        output.log_step(0, {}, [], [])
        await asyncio.sleep(0)
        if name == "two":
            raise error
        for _ in range(3):
            await asyncio.sleep(0)
        ended.append(name)

    monkeypatch.setattr(loop, "training_adapters", systems)
    monkeypatch.setattr(loop, "_learn", learn)
    composed = compose_run([*ADAPTERS, f"output_dir={folder}"])
    with RunOutput.open(composed) as output:
        try:
            await loop._train_adapters(composed, output)
        finally:
            ended.sort()
    return ended


OF_ONE = [
    HookError("algorithm.advantage=mine.py:mine raised ValueError: no"),
    TrainingError("the reward falls (rollout.on_collapse=stop)"),
    ConfigError([Problem(key="data.train.path", value="x", remedy="a bad row")]),
]
OF_THE_MACHINE = [
    RankLostError("trainer rank 0 died"),
    OSError("full"),
]


@pytest.mark.parametrize("error", OF_ONE, ids=lambda error: type(error).__name__)
async def test_an_error_of_one_adapter_stops_it_alone_and_the_run_says_so_in_the_end(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "run"
    cause = f"{type(error).__name__}: {error}"
    with pytest.raises(AdapterError, match=r"^1 of 3 adapters .*two after 1 of .*") as raised:
        await adapters_of_which_one_ends_with(error, folder, monkeypatch)
    assert cause in str(raised.value)
    states = {name: (folder / "adapters" / name / "summary.json").exists() for name in ("one", "two", "three")}
    assert states == {"one": True, "two": False, "three": True}
    ending, of_run = read_ending(folder / "adapters" / "two"), read_ending(folder)
    assert ending is not None and ending.cause == cause and ending.step == 1
    assert ending.go_on.endswith(f"resume=true output_dir={folder}"), "an adapter goes on with its run"
    assert of_run is not None and cause in of_run.text and of_run.go_on == ending.go_on
    for report in (folder / "report.html", folder / "adapters" / "two" / "report.html"):
        assert str(error).split("(")[0] in report.read_text()
    shown = capsys.readouterr().out
    assert len(re.findall(r"(one|three) +finished", shown)) == 2 and "stopped after 1 of" in shown


@pytest.mark.parametrize("error", OF_THE_MACHINE, ids=lambda error: type(error).__name__)
async def test_a_failure_of_the_machine_ends_all_adapters(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(type(error)):
        await adapters_of_which_one_ends_with(error, tmp_path / "run", monkeypatch)
    endings = [read_ending(tmp_path / "run" / "adapters" / name) for name in ("one", "two", "three")]
    assert [ending and ending.error for ending in endings] == [type(error).__name__] * 3


class Stopping(Parts):
    """Parts of an adapter whose trainer has moved as often as a test says."""

    num_moves, num_steps, is_adapter, saved = 0, 3, True, False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.trainer = self

    async def settle(self) -> None:
        self.happened.append("settle")

    def has(self, step: int) -> bool:
        return self.saved

    def give_back(self) -> None:
        self.happened.append("give back")

    async def state(self, step: int, *, oldest_step: int | None) -> dict[str, Any]:
        return {"buffer": step}


@pytest.mark.parametrize(
    ("step", "moves", "saved", "error", "is_kept"),
    [
        (3, 0, False, HookError("no"), True),
        (3, 1, False, HookError("no"), False),
        (2, 0, False, TrainingError("the reward falls"), False),
        (3, 0, True, HookError("no"), False),
        (3, 0, False, ServerError("no"), False),
        (3, 0, False, RankLostError("no"), False),
    ],
    ids=["whole", "moved", "after the step", "saved already", "of the machine", "without ranks"],
)
async def test_an_adapter_that_stops_is_saved_as_its_last_whole_step_has_left_it(
    step: int, moves: int, saved: bool, error: Exception, is_kept: bool
):
    parts: Any = Stopping(compose_run(["+method=memagent", "mode=plan"]).config)
    parts.saved, output = saved, OfOutput(parts.config)
    output.is_adapter, output.num_steps = True, 3  # type: ignore[attr-defined]
    with pytest.raises(type(error)):
        async with loop._kept(cast(Any, output), parts, parts, step):
            parts.num_moves += moves
            raise error
    assert [event for event in parts.happened if event.startswith(("give", "save"))] == (
        ["give back", "save step 3 with {'buffer': 3, 'totals': 0}"] if is_kept else []
    )
