"""The parts of ToolOrchestra's settings, each with the checks of its own values; `config.py` holds them together."""

from dataclasses import dataclass, field, fields
from enum import Enum
from math import inf
from typing import Any

from agentic.toolorchestra.rewards import WEIGHT_REMEDY, Preference, Scale, Variant, wrong_weights
from vime.errors import Problem


class LatencySource(Enum):
    """Where a rollout's latency comes from: the measured time of its calls, or the seconds that `method.experts` states."""

    measured = "measured"
    table = "table"


@dataclass(kw_only=True, slots=True)
class ExpertConfig:
    """An expert: the model behind its alias, its price, and what the orchestrator is told of it."""

    model: str = "base"
    """The expert's name in `serving.models`; several aliases may share one model."""
    dollars_per_million_input_tokens: float = 0.0
    dollars_per_million_output_tokens: float = 0.0
    seconds: float = 0.0
    """Average seconds of a call, as the tool description states them."""
    strengths: str = ""
    """One sentence about the expert in the tool description."""

    def problems(self, key: str) -> list[Problem]:
        """Checks that prices and latency are finite and not negative."""
        names = ("dollars_per_million_input_tokens", "dollars_per_million_output_tokens", "seconds")
        values = {name: getattr(self, name) for name in names}
        return [
            Problem(key=f"{key}.{name}", value=value, remedy="give 0 or more")
            for name, value in values.items()
            if not 0 <= value < inf
        ]


@dataclass(kw_only=True, slots=True)
class ToolsConfig:
    """The expert aliases that each tool offers; a tool with an empty list is not offered."""

    search: list[str] = field(default_factory=list)
    enhance_reasoning: list[str] = field(default_factory=list)
    answer: list[str] = field(default_factory=list)
    call_expert: list[str] = field(default_factory=list)
    """The only tool that is offered for questions as well as in conversations with a customer."""

    def problems(self, experts: dict[str, ExpertConfig]) -> list[Problem]:
        """Checks that every alias names an expert and stands in a list once."""
        found: list[Problem] = []
        for tool in fields(self):
            aliases: list[str] = getattr(self, tool.name)
            key = f"method.tools.{tool.name}"
            for alias in aliases:
                if alias not in experts:
                    remedy = f"there is no expert {alias} (there are: {', '.join(experts) or 'none'}): describe it as "
                    found.append(Problem(key=key, value=alias, remedy=f"{remedy}method.experts.{alias}"))
            if len(set(aliases)) < len(aliases):
                found.append(Problem(key=key, value=aliases, remedy="name each alias once"))
        return found


@dataclass(kw_only=True, slots=True)
class PreferenceConfig:
    """What the user cares about (the paper's P): weights from 0 to 1. A row's own `preference` takes precedence."""

    accuracy: float = 1.0
    cost: float = 0.0
    """Weight of being cheap."""
    latency: float = 0.0
    """Weight of being quick."""
    tools: dict[str, float] = field(default_factory=dict)
    """Weight of calling an expert, by its alias."""

    def problems(self, experts: dict[str, ExpertConfig]) -> list[Problem]:
        """Checks that weights lie between 0 and 1 and that every weighted alias names an expert."""
        weights = {"accuracy": self.accuracy, "cost": self.cost, "latency": self.latency}
        weights |= {f"tools.{alias}": weight for alias, weight in self.tools.items()}
        found = [
            Problem(key=f"method.preference.{name}", value=weight, remedy=WEIGHT_REMEDY)
            for name, weight in wrong_weights(weights).items()
        ]
        found += [
            Problem(key=f"method.preference.tools.{alias}", value=weight, remedy="there is no such expert in method.experts")
            for alias, weight in self.tools.items()
            if alias not in experts
        ]
        return found

    def preference(self) -> Preference:
        """The same weights as the rewards take them."""
        return Preference(accuracy=self.accuracy, cost=self.cost, latency=self.latency, tools=dict(self.tools))


@dataclass(kw_only=True, slots=True)
class RewardConfig:
    """Which reward a rollout gets, and which rollouts are left out of training (`rewards.py`)."""

    variant: Variant = Variant.corrected
    """Formula of the reward; README.md lists them."""
    dollars: float = 0.05
    """Cost at which the variant `corrected` gives half of its bonus for being cheap."""
    latency_seconds: float = 30.0
    """Latency at which the variant `corrected` gives half of its bonus for being quick."""
    share: float = 0.3
    """How much of a correct answer's reward depends on cost, latency and preferred tools (variant `corrected`)."""
    latency: LatencySource = LatencySource.measured
    """Where latencies come from: measured calls, or the seconds stated in `method.experts`."""
    min_deviation: float = 0.1
    """Groups whose rewards have this standard deviation or less are not trained (the paper's homogeneity filter)."""
    format_filter: bool = True
    """Leave rollouts out of training that have no valid answer, or neither called a tool nor wrote a word."""
    judge: str | None = None
    """Served model that decides about answers that do not match the label word for word; null scores those 0."""
    judge_tokens: int = 512
    """Longest reply of the judge."""

    def problems(self) -> list[Problem]:
        """Checks the ranges of the numbers."""
        found = [
            Problem(key=f"method.shaping.{name}", value=getattr(self, name), remedy="give more than 0")
            for name in ("dollars", "latency_seconds")
            if not 0 < getattr(self, name) < inf
        ]
        if not 0 <= self.share < 1:
            remedy = "give 0 or more and less than 1, so that a correct answer stays above a wrong one"
            found.append(Problem(key="method.shaping.share", value=self.share, remedy=remedy))
        if self.min_deviation < 0:
            found.append(Problem(key="method.shaping.min_deviation", value=self.min_deviation, remedy="give 0 or more"))
        return found

    def scale(self) -> Scale:
        """Cost, latency and share as the variant `corrected` takes them."""
        return Scale(dollars=self.dollars, seconds=self.latency_seconds, share=self.share)


@dataclass(kw_only=True, slots=True)
class RandomizationConfig:
    """What changes from question to question (the paper's random tools and prices); all rollouts of a question see the same."""

    shuffle_aliases: bool = False
    """Shuffle which expert stands behind which alias of a tool."""
    num_aliases: int = 0
    """How many of a tool's aliases are offered, drawn at random; 0 offers all."""
    price_factor: float = 1.0
    """Prices are multiplied by a random factor between 1/price_factor and price_factor; 1 leaves them unchanged."""

    def problems(self) -> list[Problem]:
        """Checks the ranges of the numbers."""
        found = []
        if self.price_factor < 1:
            remedy = "give 1 (prices unchanged) or more"
            found.append(Problem(key="method.randomization.price_factor", value=self.price_factor, remedy=remedy))
        if self.num_aliases < 0:
            remedy = "give 0 (all aliases) or more"
            found.append(Problem(key="method.randomization.num_aliases", value=self.num_aliases, remedy=remedy))
        return found


@dataclass(kw_only=True, slots=True)
class LimitsConfig:
    """Limits of a rollout, of an expert's call, and of the texts that models are shown."""

    turns: int = 50
    """Most orchestrator replies in a training rollout."""
    evaluation_turns: int = 50
    """Most orchestrator replies in an evaluation rollout."""
    seconds: float = 360.0
    """Time after which a rollout begins no further reply and no further call."""
    turn_tokens: int = 4096
    """Most tokens of one orchestrator reply."""
    context_tokens: int = 131_072
    """Most tokens of the orchestrator's prompt and reply together; where they are more, the oldest turns are dropped."""
    expert_tokens: int = 8192
    """Most tokens of an expert's reply."""
    expert_seconds: float = 180.0
    """Time limit of one expert call."""
    expert_errors: int = 2
    """Failures in a row after which an expert's model counts as unavailable for the rest of the rollout."""
    documents: int = 5
    """Passages that one search returns."""
    document_characters: int = 500
    """Most characters of one passage; the rest is cut off."""
    context_characters: int = 24_000
    """Most characters of passages, programs and earlier attempts that an expert is shown; the newest are kept."""
    environment_errors: int = 10
    """Wrong calls after which a conversation with a customer ends."""

    def problems(self) -> list[Problem]:
        """Checks that every limit is positive."""
        values = {limit.name: getattr(self, limit.name) for limit in fields(self)}
        return [
            Problem(key=f"method.limits.{name}", value=value, remedy="give more than 0")
            for name, value in values.items()
            if not value > 0
        ]


@dataclass(kw_only=True, slots=True)
class EndpointConfig:
    """A model that τ²-bench calls through litellm: its user simulator or its judge."""

    model: str = ""
    """litellm's name of the model, for example openai/user; empty for none."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of litellm, for example {api_base: http://127.0.0.1:8003/v1, api_key: none}."""
