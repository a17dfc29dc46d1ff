"""MemAgent's settings; importing this module registers `schema/method/memagent` with Hydra."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from hydra.core.config_store import ConfigStore

from agentic.memagent.chunks import ChunkAt, split_document
from agentic.memagent.prompts import AnswerForm
from vime.config import MethodConfig, RunConfig
from vime.config.ranges import Count
from vime.errors import Problem
from vime.hooks import load_hook
from vime.types import Prompt

PUBLISHED_DOCUMENT_TOKENS = 28_000
"""Tokens of a document in the published training set: 200 paragraphs of about 140 tokens."""
PROMPT_TOKENS = 256
"""Tokens reserved for the prompt's own words and the question; HotpotQA's longest question has about 150."""


@dataclass(kw_only=True, slots=True)
class MemAgentConfig(MethodConfig):
    """MemAgent (arXiv 2507.02259): lengths of chunks, memories and answers; the defaults are the paper's."""

    name: str = "memagent"
    generate: str = "agentic.memagent.generate.generate"
    reward: str = "agentic.memagent.reward.reward"
    eval_log: str | None = "agentic.memagent.eval_log.eval_log"
    single_turn: str = "agentic.memagent.single_turn.generate"
    rehearsal: str | None = "agentic.memagent.rehearsal.MemAgentRehearsal"
    chunk_tokens: Count = 5000
    """Maximum number of document tokens that one turn reads."""
    chunk_at: ChunkAt = ChunkAt.token
    """Places at which a document may be cut into chunks: after any token, or only between paragraphs."""
    max_chunks: Count = 512
    """Maximum number of chunks of a document; the middle of a longer document is left out."""
    max_memory_tokens: Count = 1024
    """Most tokens of the reply in a memory turn, which becomes the next memory."""
    max_final_tokens: Count = 1024
    """Most tokens of the reply in the last turn, which answers from the memory."""
    evaluation_answer: AnswerForm = AnswerForm.boxed
    """Form of the answers in evaluations: boxed, as in training, or a sentence, as in the authors' evaluation code."""
    keep_memory: bool = True
    """Keep the memory where a reply is empty; the original goes on with an empty one."""
    max_single_turn_tokens: Count = 1024
    """Most tokens of the reply in the single-turn baseline."""

    def answer_form(self, *, evaluation: bool) -> AnswerForm:
        """The form of the answers of a rollout."""
        return self.evaluation_answer if evaluation else AnswerForm.boxed

    def problems(self, config: RunConfig) -> list[Problem]:
        """Checks that prompt, chunk, memory and reply fit into the trained model's context."""
        needed = PROMPT_TOKENS + self.chunk_tokens + 2 * self.max_memory_tokens
        reason = (
            f"{PROMPT_TOKENS} tokens of question and prompt, method.chunk_tokens={self.chunk_tokens} and twice "
            f"method.max_memory_tokens={self.max_memory_tokens}"
        )
        return self.context_problems(config, num_tokens=needed, reason=reason)

    def identities(self, prompt: Prompt) -> list[str]:
        """The question, regardless of its document; the published training file has it in `extra_info` too."""
        about = prompt.metadata.get("extra_info") or {}
        question = about.get("question") or prompt.question
        return [" ".join(str(question).lower().split())]

    def calls_per_rollout(self, config: RunConfig) -> int:
        """One call per chunk of a training document, and one for the answer."""
        chunks = num_generated_chunks(config, self)
        return min(ceil(PUBLISHED_DOCUMENT_TOKENS / self.chunk_tokens) if chunks is None else chunks, self.max_chunks) + 1


class FileTokenizer:
    """A tokenizer read from tokenizer.json alone, which loads quickly enough for `mode=plan`."""

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
    """Number of chunks of the first generated training document; None without a generator or a local tokenizer."""
    dataset, file = config.data.train, Path(config.model.checkpoint) / "tokenizer.json"
    if dataset.generator is None or not file.is_file():
        return None
    row = load_hook(dataset.generator)(num_items=1, seed=dataset.seed, **dataset.generator_args)[0]
    lengths = {"chunk_tokens": method.chunk_tokens, "max_chunks": method.max_chunks, "chunk_at": method.chunk_at}
    return len(split_document(row["context"], tokenizer=FileTokenizer(file), **lengths))


ConfigStore.instance().store(group="schema/method", name="memagent", node=MemAgentConfig)
