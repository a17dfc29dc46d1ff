"""Seeds of model calls with `deterministic=true`, derived from the call and its rollout and never from the time.

A call is identified by its model, prompt and limit, and by its number among equal calls of its rollout. So it is sampled alike in
every run, in whatever order calls arrive. The same holds after a lost server if the reply is sampled from its beginning; a seed
does not determine the rest of a reply that is continued elsewhere.
"""

import hashlib
from dataclasses import dataclass

from vime.config import RunConfig
from vime.types import Prompt

SEED_BITS = 62
"""vLLM takes seeds of 64 bits with a sign."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seeds:
    """The seeds of one rollout.

    Example: of member 3 of the group of prompt 17: `Seeds(run_seed=0, dataset="train", prompt=17, member="3")`; of the second run
    of an evaluation: `Seeds(run_seed=0, dataset="docs_20", prompt=5, member="scaffold-run1")`.
    """

    run_seed: int
    dataset: str
    prompt: int
    member: str

    @classmethod
    def of_member(cls, config: RunConfig, prompt: Prompt, member: str) -> "Seeds | None":
        """The seeds of one member of a prompt's group; None without `deterministic=true`."""
        if not config.deterministic:
            return None
        return cls(run_seed=config.seed, dataset=prompt.dataset, prompt=prompt.index, member=member)

    def __call__(self, key: str, number: int) -> int:
        """The seed of a call: `key` is its digest (`call_key`), and `number` counts equal calls of the rollout from 0."""
        parts = (self.run_seed, self.dataset, self.prompt, self.member, key, number)
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> (64 - SEED_BITS)
