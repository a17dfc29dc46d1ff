"""ToolOrchestra's settings; importing this module makes them known to Hydra as `schema/method/toolorchestra`."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore

from agentic.toolorchestra.rewards import Variant
from vime.config import Credit, MethodConfig, PromptStyle, RunConfig
from vime.errors import Problem


class LatencySource(Enum):
    """Whose milliseconds a rollout's latency is made of: the clock's, or those of the experts' table."""

    measured = "measured"
    table = "table"


@dataclass(kw_only=True, slots=True)
class ExpertConfig:
    """An expert as the orchestrator knows it: who it is behind its alias, what it costs, and what it is good at."""

    model: str = "base"
    """Its name in `serving.models`; several aliases may share one."""
    dollars_per_million_input_tokens: float = 0.0
    dollars_per_million_output_tokens: float = 0.0
    seconds: float = 0.0
    """Average latency of a call, as the description tells it."""
    strengths: str = ""
    """One sentence for the description."""


@dataclass(kw_only=True, slots=True)
class ToolsConfig:
    """The aliases that each tool offers; a tool without any is not offered. `call_expert` is in both modes."""

    search: list[str] = field(default_factory=list)
    enhance_reasoning: list[str] = field(default_factory=list)
    answer: list[str] = field(default_factory=list)
    call_expert: list[str] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class PreferenceConfig:
    """What the user cares about (the paper's P), 0 to 1 each; a row's own `preference` wins."""

    accuracy: float = 1.0
    cost: float = 0.0
    latency: float = 0.0
    tools: dict[str, float] = field(default_factory=dict)
    """By alias, for calls of that expert."""


@dataclass(kw_only=True, slots=True)
class RewardConfig:
    """Which reward, and which rollouts it leaves out of training (`rewards.py`)."""

    variant: Variant = Variant.corrected
    dollars: float = 0.05
    """Cost at which half of what `corrected` gives for being cheap is gone."""
    latency_seconds: float = 30.0
    """The same for being quick."""
    share: float = 0.3
    """How much of a right answer's reward depends on cost, latency and preferred tools (`corrected`)."""
    latency: LatencySource = LatencySource.measured
    min_deviation: float = 0.1
    """Groups whose rewards deviate by this or less are not trained (homogeneity filter)."""
    format_filter: bool = True
    """Rollouts without a valid answer, or that called nothing and said nothing, are not trained."""
    judge: str | None = None
    """The served model that decides about answers that differ from the label by words; None leaves those at 0."""
    judge_tokens: int = 512


@dataclass(kw_only=True, slots=True)
class RandomizationConfig:
    """What changes from question to question, the same for all rollouts of one (the paper's random tools and prices)."""

    shuffle_aliases: bool = False
    """Which expert stands behind which alias of a tool."""
    num_aliases: int = 0
    """How many of a tool's aliases are offered; 0 offers all."""
    price_factor: float = 1.0
    """Prices are multiplied by up to this or divided by it; 1 leaves them."""


@dataclass(kw_only=True, slots=True)
class LimitsConfig:
    """Where a rollout, an expert or a text ends."""

    turns: int = 50
    """Replies of the orchestrator."""
    evaluation_turns: int = 50
    seconds: float = 360.0
    """Time after which no further reply or call begins."""
    turn_tokens: int = 4096
    """Of one reply."""
    context_tokens: int = 131_072
    """Of the orchestrator's prompt and reply; middle turns are dropped, oldest first, to hold it."""
    expert_tokens: int = 8192
    """Of an expert's reply."""
    expert_seconds: float = 180.0
    expert_errors: int = 2
    """Failures in a row after which an expert counts as unavailable for the rest of the rollout."""
    documents: int = 5
    """Passages of a search."""
    document_characters: int = 500
    context_characters: int = 24_000
    """Of documents, programs and attempts that experts are shown; the newest are kept."""
    environment_errors: int = 10
    """Wrong calls after which a conversation with a customer ends."""


@dataclass(kw_only=True, slots=True)
class EndpointConfig:
    """A model by litellm's names, for τ²-bench's user and judge."""

    model: str = ""
    """Like openai/user; "" is none."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Like {api_base: http://127.0.0.1:8003/v1, api_key: none}."""


@dataclass(kw_only=True, slots=True)
class ToolOrchestraConfig(MethodConfig):
    """ToolOrchestra (arXiv 2511.21689): tools, experts and their prices, preferences, limits, the reward."""

    name: str = "toolorchestra"
    generate: str = "agentic.toolorchestra.generate.generate"
    reward: str = "agentic.toolorchestra.reward.reward"
    group_reward: str | None = "agentic.toolorchestra.reward.group_reward"
    eval_log: str | None = "agentic.toolorchestra.eval_log.eval_log"
    single_turn: str = "agentic.toolorchestra.single_turn.generate"
    credit: Credit = Credit.share
    experts: dict[str, ExpertConfig] = field(default_factory=dict)
    """By alias."""
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)
    shaping: RewardConfig = field(default_factory=RewardConfig)
    randomization: RandomizationConfig = field(default_factory=RandomizationConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    orchestrator_dollars_per_million_input_tokens: float = 0.0
    orchestrator_dollars_per_million_output_tokens: float = 0.0
    prompt_style: PromptStyle = PromptStyle.full
    parser: str = "hermes"
    """vLLM's parser of the orchestrator's and the experts' tool calls."""
    customer: str | None = None
    """The served model that plays the customer of the built-in shop; None follows the task's script."""
    tau2_user: EndpointConfig = field(default_factory=EndpointConfig)
    tau2_judge: EndpointConfig = field(default_factory=EndpointConfig)

    def problems(self, config: RunConfig) -> list[Problem]:
        """Every alias has an expert with a server, searches have a service, programs a sandbox, weights lie positive."""
        from agentic.toolorchestra.rules import all_problems  # it imports what `--help` does without

        return all_problems(self, config)


ConfigStore.instance().store(group="schema/method", name="toolorchestra", node=ToolOrchestraConfig)
