"""MemAgent's settings; importing this module makes them known to Hydra as `schema/method/memagent`."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from hydra.core.config_store import ConfigStore

from agentic.memagent.chunks import ChunkAt, split_document
from vime.config import MethodConfig, RunConfig
from vime.errors import Problem
from vime.hooks import load_hook

PUBLISHED_DOCUMENT_TOKENS = 28_000
"""Of the published training set: 200 paragraphs of about 140 tokens."""
PROMPT_TOKENS = 256
"""Room for the prompt's own words and the question; the longest question of HotpotQA has about 150 tokens."""


@dataclass(kw_only=True, slots=True)
class MemAgentConfig(MethodConfig):
    """The paper's lengths; a turn needs the question, one chunk, the memory and the reply."""

    name: str = "memagent"
    generate: str = "agentic.memagent.generate.generate"
    reward: str = "agentic.memagent.reward.reward"
    eval_log: str | None = "agentic.memagent.eval_log.eval_log"
    single_turn: str = "agentic.memagent.single_turn.generate"
    chunk_tokens: int = 5000
    chunk_at: ChunkAt = ChunkAt.token
    max_chunks: int = 512
    """Longer documents lose their middle."""
    max_memory_tokens: int = 1024
    """Longest reply of a memory turn, which is the next memory."""
    max_final_tokens: int = 1024
    """Longest reply of the last turn, which answers from the memory."""
    max_single_turn_tokens: int = 1024
    """Longest reply of the single-turn baseline."""

    def problems(self, config: RunConfig) -> list[Problem]:
        """A turn fits into the context of the trained model: prompt, chunk, memory and reply."""
        numbers = ("chunk_tokens", "max_chunks", "max_memory_tokens", "max_final_tokens", "max_single_turn_tokens")
        found = [
            Problem(key=f"method.{name}", value=getattr(self, name), remedy="give at least 1")
            for name in numbers
            if getattr(self, name) < 1
        ]
        needed = PROMPT_TOKENS + self.chunk_tokens + 2 * self.max_memory_tokens
        for name, model in config.serving.models.items():
            length = min(model.max_model_len, config.model.max_position_embeddings)
            if model.trained and length < needed:
                remedy = (
                    f"a memory turn needs {needed} tokens: {PROMPT_TOKENS} for the question and the prompt, "
                    f"method.chunk_tokens={self.chunk_tokens} and twice method.max_memory_tokens={self.max_memory_tokens}"
                )
                key = f"serving.models.{name}.max_model_len"
                found.append(Problem(key=key, value=model.max_model_len, remedy=f"{remedy}; give that, or make these smaller"))
        return found

    def calls_per_rollout(self, config: RunConfig) -> int:
        """One per chunk of a training document, and one to answer."""
        chunks = num_generated_chunks(config, self)
        return min(ceil(PUBLISHED_DOCUMENT_TOKENS / self.chunk_tokens) if chunks is None else chunks, self.max_chunks) + 1


class FileTokenizer:
    """A tokenizer of a checkpoint's tokenizer.json alone: quick to load, for the plan."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(file))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: list[int]) -> str:
        """Text."""
        return self._tokenizer.decode(ids)


def num_generated_chunks(config: RunConfig, method: MemAgentConfig) -> int | None:
    """Chunks of the first generated training document; None if there is no generator, or no tokenizer on this machine."""
    dataset, file = config.data.train, Path(config.model.checkpoint) / "tokenizer.json"
    if dataset.generator is None or not file.is_file():
        return None
    row = load_hook(dataset.generator)(num_items=1, seed=dataset.seed, **dataset.generator_args)[0]
    lengths = {"chunk_tokens": method.chunk_tokens, "max_chunks": method.max_chunks, "chunk_at": method.chunk_at}
    return len(split_document(row["context"], tokenizer=FileTokenizer(file), **lengths))


ConfigStore.instance().store(group="schema/method", name="memagent", node=MemAgentConfig)
