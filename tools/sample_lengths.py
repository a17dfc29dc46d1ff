"""Sequence lengths of the methods, drawn at random: the input that the benchmarks pack, train on and serve.

`PAPER` lengths follow the settings of the methods' papers and code; `TINY` ones are short enough to train on with a laptop.
"""

import random
from collections.abc import Callable

Lengths = list[tuple[int, int]]
"""(prompt, response) tokens of each training sequence, by rollouts and their turns."""


def memagent(num_rollouts: int, seed: int = 0) -> Lengths:
    """A document of 25,000 to 35,000 tokens in chunks of 5,000; the last chunk is the rest, and the last turn has none.

    Prompts have 90 tokens of their own, the question, the memory (at most 1,024) and the chunk (arXiv 2507.02259).
    """
    generator = random.Random(f"memagent/{seed}")
    found: Lengths = []
    for _ in range(num_rollouts):
        question, document, memory = generator.randint(15, 60), generator.randint(25_000, 35_000), 4
        for start in range(0, document, 5_000):
            prompt = 90 + question + memory + min(5_000, document - start)
            memory = min(int(generator.lognormvariate(5.5, 0.6)), 1_024)
            found.append((prompt, memory))
        found.append((60 + question + memory, generator.randint(12, 250)))
    return found


def agentflow(num_rollouts: int, seed: int = 0) -> Lengths:
    """An analysis and one to five planned steps; each prompt holds the results of all steps before (arXiv 2510.05592)."""
    generator = random.Random(f"agentflow/{seed}")
    found: Lengths = []
    for _ in range(num_rollouts):
        question = generator.randint(40, 300)
        memory = _reply(generator, median=350, most=4_096)
        found.append((450 + question, memory))
        for _ in range(generator.choice((1, 1, 1, 2, 2, 3, 4, 5))):
            found.append((900 + question + memory, _reply(generator, median=300, most=4_096)))
            memory += 120 + min(_reply(generator, median=250, most=4_096), 1_200)
    return found


def toolorchestra(num_rollouts: int, seed: int = 0) -> Lengths:
    """Up to 12 turns; the context grows by thoughts and tool results with a long tail, up to 24,000 tokens (arXiv 2511.21689)."""
    generator = random.Random(f"toolorchestra/{seed}")
    found: Lengths = []
    for _ in range(num_rollouts):
        context = 1_500 + _reply(generator, median=300, most=4_000)
        for _ in range(min(1 + int(generator.expovariate(0.25)), 12)):
            reply = _reply(generator, median=400, most=8_000)
            found.append((min(context, 24_000), reply))
            context += 60 + _reply(generator, median=700, most=16_000)
    return found


def memagent_tiny(num_rollouts: int, seed: int = 0) -> Lengths:
    """The tiny task's 20 documents: three chunks of 160 to 170 tokens with the prompt, a shorter one, and the answer.

    Its prompts have these lengths with its own tokenizer; memories have 5 to 24 tokens, its limit.
    """
    generator = random.Random(f"memagent_tiny/{seed}")
    found: Lengths = []
    for _ in range(num_rollouts):
        memory = 3
        for chunk in (164, 167, 170, 114):
            reply = generator.randint(5, 24)
            found.append((chunk + memory, reply))
            memory = reply
        found.append((63 + memory, generator.randint(5, 12)))
    return found


def equal_tiny(num_rollouts: int, seed: int = 0) -> Lengths:
    """One sequence each, all alike: 160 tokens of prompt and 96 of response."""
    return [(160, 96)] * num_rollouts


def long_tail_tiny(num_rollouts: int, seed: int = 0) -> Lengths:
    """One sequence each; a response has 40 tokens in the median and up to 1,500."""
    generator = random.Random(f"long_tail_tiny/{seed}")
    return [(generator.randint(40, 160), _reply(generator, median=40, most=1_500, spread=1.2)) for _ in range(num_rollouts)]


PAPER: dict[str, Callable[[int, int], Lengths]] = {
    "MemAgent": memagent,
    "AgentFlow": agentflow,
    "ToolOrchestra": toolorchestra,
}
TINY: dict[str, Callable[[int, int], Lengths]] = {
    "equal": equal_tiny,
    "MemAgent": memagent_tiny,
    "long tail": long_tail_tiny,
}


def _reply(generator: random.Random, *, median: int, most: int, spread: float = 0.8) -> int:
    """A log-normal number of tokens, at least 2."""
    drawn = int(median * generator.lognormvariate(0.0, spread))
    return max(2, min(drawn, most))
