"""One case of the benchmark of whole steps: a random model with a real tokenizer, prompts, and how long every reply is.

The case goes to both sides as a folder: a Hugging Face checkpoint and `step.json`. A random model does not end its replies, so a
case gives the number of tokens of each; both sides sample that number. Nothing of this project is imported, because one side runs
under another Python installation.
"""

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer_case import SHAPES

TOKENIZER = Path(__file__).resolve().parent.parent / "agentic" / "memagent" / "tiny" / "actor"
MAX_POSITIONS = 4096
END_ID = 2
"""`<|im_end|>` of that tokenizer."""
NEVER = -4.0
"""Weight of control tokens on the first hidden feature, which is large and positive everywhere: their logits are below -30."""
CALL_TOKENS = 52
"""A reply that calls the tool is at least as long: the call itself has 46 tokens or a few more, then the reply ends."""
SINGLE, TOOLS = "single turn", "tools"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Finds a passage.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to find."}},
            "required": ["query"],
        },
        "return": {"type": "string"},
    },
}


@dataclass(kw_only=True, slots=True)
class StepCase:
    """The tokens that both sides generate and train in a step.

    Example of one rollout that calls the tool once: `StepCase(work="tools", num_samples=1, replies=[[64, 31]], …)`.
    """

    size: str
    work: str
    num_prompts: int
    num_samples: int
    prompts: list[str]
    """Prompts of many steps, so that no step sees one again; the first `num_prompts` are those of the first."""
    replies: list[list[int]]
    """Tokens of each reply of each rollout of a batch, the rollouts of a prompt one after another; the same in every step."""
    trl: str = "float32"
    """The way in which TRL runs it; see `trl_step.py`."""

    @property
    def num_sampled_tokens(self) -> int:
        """The number of sampled tokens of a step."""
        return sum(map(sum, self.replies))


def draw_case(
    size: str, work: str, *, num_prompts: int, num_samples: int, num_steps: int, tokens: int, seed: int = 0
) -> StepCase:
    """Prompts of about 128 tokens; replies of `tokens` each, or with tools several of log-normal lengths around that."""
    generator = random.Random(seed)
    words = _words()
    rollouts = range(num_prompts * num_samples)
    return StepCase(
        size=size,
        work=work,
        num_prompts=num_prompts,
        num_samples=num_samples,
        prompts=[_text(generator, words, 128) for _ in range(num_prompts * num_steps)],
        replies=[[tokens] if work == SINGLE else _ragged(generator, tokens) for _ in rollouts],
    )


def search(query: str) -> str:
    """Finds a passage.

    Args:
        query: What to find.
    """
    generator = random.Random(query)
    return _text(generator, _words(), round(min(160.0, 40 * generator.lognormvariate(0.0, 0.8))))


def query_of(rollout: int, turn: int) -> str:
    """The question of a rollout of a batch to the tool after a reply."""
    return f"{rollout} {turn}"


def reward_of(text: str) -> float:
    """Any number that differs between rollouts: how many different signs a text has."""
    return len(set(text)) / 100


def write_case(case: StepCase, folder: Path) -> None:
    """The checkpoint with its tokenizer, and `step.json` beside it; an existing checkpoint is kept."""
    (folder / "step.json").write_text(json.dumps(asdict(case)))
    if not (folder / "config.json").exists():
        _write_model(case.size, folder)


def read_case(folder: Path) -> StepCase:
    """The case that `write_case` wrote."""
    return StepCase(**json.loads((folder / "step.json").read_text()))


def _write_model(size: str, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config

    torch.manual_seed(0)
    config = Qwen3Config(
        **SHAPES[size], max_position_embeddings=MAX_POSITIONS, tie_word_embeddings=False, bos_token_id=None, eos_token_id=END_ID
    )
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(TOKENIZER)
    control = sorted(tokenizer.added_tokens_decoder)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 1.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[control] = 0.0
        model.lm_head.weight[control, 0] = NEVER
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _ragged(generator: random.Random, tokens: int) -> list[int]:
    """One to six replies of log-normal lengths up to four times `tokens`; all but the last call the tool."""
    calls = min(5, int(generator.expovariate(0.35)))
    drawn = [min(4 * tokens, round(tokens * generator.lognormvariate(0.0, 0.7))) for _ in range(calls + 1)]
    return [max(CALL_TOKENS, length) for length in drawn[:-1]] + [max(tokens // 4, drawn[-1])]


def _words() -> list[str]:
    """Words of a language of 400: made of syllables, which the tokenizer splits as it likes."""
    generator = random.Random(0)
    return ["".join(generator.choices(["ba", "de", "li", "mo", "ru", "sen", "tor", "van"], k=2)) for _ in range(400)]


def _text(generator: random.Random, words: list[str], tokens: int) -> str:
    """A text of about `tokens` tokens: such a word has three or four of the tokenizer's."""
    return " ".join(generator.choices(words, k=max(1, round(tokens / 4))))
