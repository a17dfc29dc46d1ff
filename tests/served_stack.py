"""A served model of the tests: real servers, a stand-in for their trainer, and the sync between them."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from vime.config import Precision
from vime.sync.file_sync import FileSync
from vime.sync.probe import Tolerance, probe
from vime.weights.delta import Buckets, Sent
from vime.weights.payload import WeightDigest, WeightPayload
from vime.weights.policy import Policy
from vime.weights.quantize import quantized

TIED_SHAPE = {
    "family": "qwen2",
    "tie_word_embeddings": True,
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 128,
    "vocab_size": 320,
    "max_position_embeddings": 1024,
}
"""`model` of a run with the checkpoint `tied` of `conftest.py`."""


class HuggingFaceTrainer:
    """Stand-in for the trainer: Hugging Face in float32, whose weights move at random."""

    def __init__(self, checkpoint: Path, payload_folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        self.version = 0
        self._folder = payload_folder
        self.quantizes = False
        """True if weights are sent as integers."""
        self.sent: Sent | None = None
        """The version that was sent last, if the next may be a difference from it."""

    def step(self) -> None:
        """Moves every weight a little, and the version by one."""
        self.version += 1
        generator = torch.Generator().manual_seed(self.version)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))

    def export(self, *, lost: str | None = None, forgotten: str | None = None, is_whole: bool = False) -> Any:
        """The weights as a payload of two buckets; `lost` is in the digest but not in the files, `forgotten` in neither."""
        self._folder.mkdir(parents=True, exist_ok=True)
        digest, tensors = WeightDigest(), {}
        own = self.model.named_parameters()
        for name, parameter in quantized(own) if self.quantizes else own:
            if name != forgotten:
                digest.update(name, parameter)
            if name not in (lost, forgotten):
                tensors[name] = parameter.detach().clone()
        names, files, base = list(tensors), [], None
        if self.sent is not None:
            base, buckets = None if is_whole else self.sent.base, Buckets(version=self.version)
        for index, bucket in enumerate((names[: len(names) // 2], names[len(names) // 2 :])):
            own = {name: tensors[name] for name in bucket}
            if self.sent is not None:
                files.append(str(buckets.write(own, folder=self._folder, base=base)))
            else:
                files.append(str(self._folder / f"actor-v{self.version}-{index}.safetensors"))
                save_file(own, files[-1])
        if self.sent is not None and not is_whole:
            self.sent.note(buckets)
        num_bytes = sum(tensor.nbytes for tensor in tensors.values())
        about = {"num_tensors": digest.num_tensors, "num_bytes": num_bytes, "digest": digest.hexdigest()}
        return WeightPayload(version=self.version, files=files, base=base.version if base is not None else None, **about)

    async def logprobs(self, tokens: list[list[int]], response_lengths: list[int]) -> list[list[float]]:
        """Logprobs of the response tokens at temperature 1."""
        found = []
        for sequence, length in zip(tokens, response_lengths):
            with torch.no_grad():
                logits = self.model(torch.tensor([sequence])).logits[0]
            logprobs = torch.log_softmax(logits, dim=-1)[range(len(sequence) - 1), sequence[1:]]
            found.append(logprobs[-length:].tolist())
        return found


class ServedStack:
    """One served model of the session: its configuration, its servers, its trainer's stand-in and the sync between them."""

    def __init__(self, config: Any, serving: Any, trainer: HuggingFaceTrainer, policy: Policy) -> None:
        self.config, self.serving, self.trainer, self._policy = config, serving, trainer, policy
        self._sync: Any = None
        self._payload: Any = None

    @property
    def endpoint(self) -> Any:
        """The endpoint of the model."""
        return self.serving.endpoints()["actor"]

    async def sync(self, payload: Any) -> dict[str, float]:
        """Brings a payload to all servers."""
        if self._sync is None:
            trainer: Any = self
            self._sync = FileSync(self.serving, trainer, self.config, self._policy)
        self._payload = payload
        return await self._sync.sync(payload.version)

    async def export_weights(self, version: int, *, is_whole: bool = False) -> Any:
        """The payload of the sync under way, or the whole version."""
        return self.trainer.export(is_whole=True) if is_whole else self._payload

    async def probe(self) -> dict[str, float]:
        """Compares servers and trainer within the tolerance of float32."""
        sizes = {"vocab_size": self.config.model.vocab_size, "seed": 0}
        tolerance = Tolerance.of(Precision.float32)
        return await probe(self.endpoint, self.trainer.logprobs, temperature=1.0, tolerance=tolerance, **sizes)
