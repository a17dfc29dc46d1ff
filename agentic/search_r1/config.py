"""Search-R1's settings; importing this module registers `schema/method/search_r1` with Hydra."""

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore

from vime.config import MethodConfig, PromptStyle, RunConfig
from vime.config.ranges import Count, Natural, Share
from vime.errors import Problem

PROMPT_TOKENS = 320
"""Tokens reserved for the instructions (about 150) and the question."""
TAG_TOKENS = 16
"""Tokens reserved for the tags around search results."""


@dataclass(kw_only=True, slots=True)
class SearchR1Config(MethodConfig):
    """Search-R1 (arXiv 2503.09516): turns, their lengths, and the rewards of both papers; the defaults are the first paper's."""

    name: str = "search_r1"
    generate: str = "agentic.search_r1.generate.generate"
    reward: str | None = "agentic.search_r1.reward.reward"
    eval_log: str | None = "agentic.search_r1.eval_log.eval_log"
    rehearsal: str | None = "agentic.search_r1.rehearsal.SearchR1Rehearsal"
    single_turn: str = "agentic.search_r1.single_turn.generate"
    max_turns: Natural = 4
    """Turns in which the model may search; one more turn follows for the answer. 0 trains without retrieval."""
    max_turn_tokens: Count = 500
    """Most tokens of a turn."""
    max_information_tokens: Count = 500
    """Most tokens of the passages that a search returns; the rest is cut."""
    format_score: Share = 0.0
    """Reward of a wrong answer (the first paper's code)."""
    structure_format_score: Share = 0.0
    """Reward of a well-formed rollout with a wrong answer, and what a right answer loses in a rollout that is not well-formed
    (λf of arXiv 2505.15117)."""
    final_format_score: Share = 0.0
    """Reward of a wrong answer in a rollout that is not well-formed."""
    retrieval_score: Share = 0.0
    """Added to `structure_format_score` where a search result contains the gold answer."""
    prompt_style: PromptStyle = PromptStyle.full
    """Set of prompts: full for real models, tiny for the model of the laptop task."""

    def problems(self, config: RunConfig) -> list[Problem]:
        """Checks that there is a search engine, that all turns fit into the context, and that rewards of one paper are used."""
        found: list[Problem] = []
        if self.max_turns and not config.retrieval.is_there:
            remedy = "searches need the retrieval service: set retrieval.corpus, retrieval.generator or retrieval.url, or use 0"
            found.append(Problem(key="method.max_turns", value=self.max_turns, remedy=remedy))
        if self.format_score and (self.structure_format_score or self.final_format_score or self.retrieval_score):
            remedy = "belongs to another reward than the three scores for structure: set it or them to 0"
            found.append(Problem(key="method.format_score", value=self.format_score, remedy=remedy))
        needed = PROMPT_TOKENS + self.max_turn_tokens
        needed += self.max_turns * (self.max_turn_tokens + self.max_information_tokens + TAG_TOKENS)
        reason = f"a question, {self.max_turns + 1} turns of method.max_turn_tokens={self.max_turn_tokens} and {self.max_turns} "
        reason += f"results of method.max_information_tokens={self.max_information_tokens}"
        return found + self.context_problems(config, num_tokens=needed, reason=reason)


ConfigStore.instance().store(group="schema/method", name="search_r1", node=SearchR1Config)
