"""Adapters as the weights of a sync, on a real server: what it computes, and what is found if it computes with something else."""

import asyncio
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
import pytest
import torch

from vime.config import LoraConfig, LoraDelivery, LoraTarget
from vime.errors import WeightSyncError
from vime.model import adapter_folder
from vime.processes.control import call
from vime.serving.client import TokenClient
from vime.serving.topology import Serving
from vime.sync.file_sync import FileSync
from vime.weights.export import write_adapter
from vime.weights.payload import ADAPTER, WeightDigest, WeightPayload
from vime.weights.policy import Policy

RANK, ALPHA = 3, 8.0
TARGETS = [LoraTarget.q_proj, LoraTarget.v_proj, LoraTarget.o_proj, LoraTarget.up_proj, LoraTarget.down_proj]
TARGETS += [LoraTarget.embed_tokens, LoraTarget.lm_head]
EXPERT, OTHER = "expert", "other"
PROMPT = list(range(3, 70))


class AdapterTrainer:
    """Stand-in for the trainer: PEFT's model, whose adapter takes large random steps."""

    def __init__(self, checkpoint: Path, folder: Path, name: str) -> None:
        import peft
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        targets = [target.value for target in TARGETS]
        torch.manual_seed(sum(name.encode()))
        self.name = name
        self.model: Any = peft.get_peft_model(base, peft.LoraConfig(r=RANK, lora_alpha=int(ALPHA), target_modules=targets))
        self.model.eval()
        self._folder, self._base, self.version = folder, str(checkpoint), 0

    def step(self) -> None:
        """Moves the adapter."""
        self.version += 1
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if "lora_" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.1)

    async def export_weights(self, version: int, *, is_whole: bool = False) -> WeightPayload:
        """The adapter as a folder, as `vime.weights.export.write_adapter_payload` writes it."""
        from peft import get_peft_model_state_dict

        tensors, digest = get_peft_model_state_dict(self.model, save_embedding_layers=False), WeightDigest()
        for name, tensor in tensors.items():
            digest.update(name, tensor)
        own = self._folder / f"{self.name}-v{version}-adapter"
        description = adapter_folder.describe(LoraConfig(rank=RANK, alpha=ALPHA, targets=TARGETS), base=self._base)
        write_adapter(tensors.items(), folder=own, description=description)
        file = str(own / adapter_folder.WEIGHTS)
        about: dict[str, Any] = {"adapter": self.name, "num_tensors": len(tensors), "digest": digest.hexdigest()}
        return WeightPayload(version=version, files=[file], **about)

    def logprobs(self, tokens: list[int], count: int) -> list[float]:
        """Of the last tokens."""
        with torch.no_grad():
            every = self.model(input_ids=torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        return every.gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1)[-count:].tolist()


class Begun:
    """A listener that knows when the first tokens have come."""

    def __init__(self) -> None:
        self.first = asyncio.Event()

    def received(self, _: Any) -> None:
        self.first.set()

    def lost(self) -> None: ...

    def is_paused(self) -> bool:
        return False


class Stack:
    """The server, the trainer of one of its adapters, and the way of the weights."""

    def __init__(self, config: Any, serving: Serving, trainer: AdapterTrainer, policy: Policy) -> None:
        self.config, self.serving, self.trainer = config, serving, trainer
        self._policy = policy
        self.other: Any = None
        """The same server with the other adapter."""

    def open(self) -> None:
        trainer: Any = self.trainer
        self._files = FileSync(self.serving, trainer, self.config, self._policy)

    async def sync(self) -> dict[str, float]:
        return await self._files.sync(self.trainer.version)

    async def tell(self, method: str, *arguments: str) -> None:
        async with aiohttp.ClientSession() as session:
            url, body = self.serving.trained_endpoint().worker_urls[0], {"method": method, "args": list(arguments)}
            await call(session, url, "/collective_rpc", timeout_seconds=30.0, body=body)

    async def sample(self, count: int = 16, *, prompt: list[int] = PROMPT, listener: Any = None) -> Any:
        client = TokenClient(self.serving.trained_endpoint(), self.config.serving)
        about: dict[str, Any] = {"session_id": "a", "request_id": uuid.uuid4().hex, "minimum_version": self.trainer.version}
        try:
            return await client.generate(prompt, sampling={"max_tokens": count, "ignore_eos": True}, listener=listener, **about)
        finally:
            await client.close()

    def check(self, turn: Any, *, prompt: list[int] = PROMPT) -> None:
        """All tokens are of the present version, and have the trainer's logprobs."""
        assert set(turn.weight_versions) == {self.trainer.version}
        expected = self.trainer.logprobs([*prompt, *turn.output_ids], len(turn.output_ids))
        assert list(turn.logprobs) == pytest.approx(expected, abs=1e-4)


@pytest.fixture(scope="module")
def checkpoint(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose head is its embedding, of a family whose vocabulary takes adapters in vLLM."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("tied")
    shutil.copytree(checkpoints["untied"], folder, dirs_exist_ok=True)
    torch.manual_seed(0)
    own = Qwen3Config.from_pretrained(folder)
    own.tie_word_embeddings = True
    Qwen3ForCausalLM(own).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def stack(
    checkpoint: Path, ray_cluster: None, make_serving_config: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    config, policy = make_serving_config(checkpoint), Policy()
    config.trainer.lora = LoraConfig(rank=RANK, alpha=ALPHA, targets=TARGETS)
    config.serving.lora = LoraDelivery.adapter
    config.adapters = dict.fromkeys(("actor", OTHER), replace(config))
    folder = tmp_path_factory.mktemp("adapter")
    config.serving.models[EXPERT] = replace(config.serving.models["actor"], trained=False, adapter=str(folder / EXPERT))
    serving = Serving(config, folder, uuid.uuid4().hex[:8], policy=policy, awaits_weights=True)
    made = Stack(config, serving, AdapterTrainer(checkpoint, serving.payload_folder, "actor"), policy)
    made.trainer.step()
    made.trainer.model.save_pretrained(folder / EXPERT)
    serving.start()
    try:
        asyncio.run(serving.ready())
        made.open()
        shared, trainer = serving.of(OTHER, ["actor"]), AdapterTrainer(checkpoint, serving.payload_folder, OTHER)
        made.other = Stack(config, shared, trainer, Policy(payloads=policy.payloads))
        made.other.open()
        yield made
    finally:
        asyncio.run(serving.stop())


async def test_each_version_is_computed_with_its_adapter_also_where_a_prefix_was_cached(stack: Stack):
    found = []
    for _ in range(3):
        stack.trainer.step()
        metrics = await stack.sync()
        assert metrics["sync/num_servers"] == 1 and metrics["sync/num_unread_tensors"] == 0
        for _ in range(2):  # the second with the prompt in the cache
            stack.check(await stack.sample())
        found.append(stack.trainer.logprobs(PROMPT, 4))
    assert found[0] != found[1] != found[2], "versions do not differ"
    assert len(list(stack.serving.payload_folder.iterdir())) == 1, "folders of earlier versions are left"


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("none", "no adapter is active"),
        ("old", "q_proj.lora_A.weight differs from what was sent"),
        ("part", "lm_head.lora_A.weight differs from what was sent"),
        ("scale", "q_proj.lora_B.weight differs from what was sent"),
    ],
)
async def test_a_server_that_computes_with_another_adapter_is_found_at_the_sync(stack: Stack, way: str, words: str):
    await stack.sync()
    await stack.tell("break_adapter", way)
    stack.trainer.step()
    try:
        with pytest.raises(WeightSyncError, match=words):
            await stack.sync()
    finally:
        await stack.tell("break_adapter", "")
    await stack.sync()
    stack.check(await stack.sample())


async def test_requests_in_flight_go_on_under_the_new_adapter(stack: Stack):
    await stack.sync()
    before, begun = stack.trainer.version, Begun()
    long = [asyncio.create_task(stack.sample(800, listener=begun)) for _ in range(32)]
    await begun.first.wait()
    stack.trainer.step()
    await stack.sync()
    turns = await asyncio.gather(*long)
    assert any(set(turn.weight_versions) == {before, before + 1} for turn in turns)
    for turn in turns:
        assert list(turn.weight_versions) == sorted(turn.weight_versions)
        if count := list(turn.weight_versions).count(stack.trainer.version):
            expected = stack.trainer.logprobs([*PROMPT, *turn.output_ids], count)
            assert list(turn.logprobs[-count:]) == pytest.approx(expected, abs=5e-4)  # as the probe, for long sequences


async def test_a_restarted_server_has_base_and_present_adapter(stack: Stack):
    stack.trainer.step()
    await stack.sync()
    actor = stack.serving.actors("actor")["actor-0"]
    psutil.Process(await actor.pid.remote()).children()[0].children()[0].kill()
    stack.check(await stack.sample(prompt=PROMPT[5:]), prompt=PROMPT[5:])


async def test_a_frozen_model_computes_with_the_adapter_of_a_folder(stack: Stack):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    expert = stack.config.serving.models[EXPERT]
    client = TokenClient(stack.serving.endpoints()[EXPERT], stack.config.serving)
    about: dict[str, Any] = {"session_id": "a", "request_id": "expert"}
    turn = await client.generate(PROMPT, sampling={"max_tokens": 16, "ignore_eos": True}, **about)
    await client.close()
    base = AutoModelForCausalLM.from_pretrained(stack.config.model.checkpoint, dtype=torch.float32)
    reference = AdapterTrainer.__new__(AdapterTrainer)
    reference.model = PeftModel.from_pretrained(base, expert.adapter)
    expected = reference.logprobs([*PROMPT, *turn.output_ids], len(turn.output_ids))
    assert list(turn.logprobs) == pytest.approx(expected, abs=1e-4)


async def test_two_adapters_and_the_base_are_each_right_beside_the_others(stack: Stack):
    both = (stack, stack.other)
    base = TokenClient(replace(stack.serving.trained_endpoint(), adapter=""), stack.config.serving)
    unadapted: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, "extra_args": {ADAPTER: ""}}
    for each in both:
        each.trainer.step()
        await each.sync()
    for mine in both * 2:
        async with asyncio.TaskGroup() as group:
            samples = [(each, group.create_task(each.sample(24))) for each in both for _ in range(3)]
            plain = group.create_task(base.generate(PROMPT, sampling=unadapted, session_id="b", request_id=uuid.uuid4().hex))
        for each, task in samples:
            each.check(task.result())
        turn = plain.result()
        with stack.trainer.model.disable_adapter():
            expected = stack.trainer.logprobs([*PROMPT, *turn.output_ids], len(turn.output_ids))
        assert list(turn.logprobs) == pytest.approx(expected, abs=1e-4)
        mine.trainer.step()
        await mine.sync()
    await base.close()


async def test_prompts_that_are_scored_together_have_each_its_own_adapter(stack: Stack):
    """Some of the batch as many tokens as there are requests: then an adapter of the head could be another's in silence."""
    both = (stack, stack.other)
    for each in both:
        each.trainer.step()
        await each.sync()
    clients = [TokenClient(each.serving.trained_endpoint(), each.config.serving) for each in both]
    lengths = [2, 3, 5, 6, 7, 9, 30, 200]
    sequences = [[(7 * number + length) % 250 + 3 for number in range(length)] for length in lengths]
    async with asyncio.TaskGroup() as group:
        tasks = [
            [group.create_task(client.score(tokens, session_id="s", request_id=uuid.uuid4().hex)) for tokens in sequences]
            for client in clients
        ]
        writing = [group.create_task(each.sample(64)) for each in both for _ in range(3)]
    for (mine, other), of_client in zip((both, both[::-1]), tasks):
        for tokens, task in zip(sequences, of_client):
            found, count = task.result().logprobs.tolist(), len(tokens) - 1
            assert found == pytest.approx(mine.trainer.logprobs(tokens, count), abs=1e-3)
            assert np.abs(found - np.array(other.trainer.logprobs(tokens, count))).max() > 1e-2
    for each, task in zip([*both[:1] * 3, *both[1:] * 3], writing):
        each.check(task.result())
    for client in clients:
        await client.close()
