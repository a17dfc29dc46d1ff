"""MemAgent's settings; importing this module makes them known to Hydra as `schema/method/memagent`."""

from dataclasses import dataclass
from enum import Enum

from hydra.core.config_store import ConfigStore

from vime.config import MethodConfig, RunConfig
from vime.errors import Problem

PROMPT_TOKENS = 256
"""Room for the prompt's own words and the question; the longest question of HotpotQA has about 150 tokens."""


class ChunkAt(Enum):
    """Where a document may be cut: after any token (the paper), or only between paragraphs."""

    token = "token"
    paragraph = "paragraph"


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


ConfigStore.instance().store(group="schema/method", name="memagent", node=MemAgentConfig)
