"""The parts of ToolOrchestra's settings, each with the checks of its own values; `config.py` holds them together."""

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Annotated, Any

from agentic.toolorchestra.rewards import Preference, Scale, Variant
from vime.config.ranges import Count, Natural, NonNegative, Positive, Range, Share
from vime.errors import Problem
from vime.grading.judge import JudgeConfig

BonusShare = Annotated[float, Range(least=0, below=1, why="a correct answer must stay above a wrong one")]
PriceFactor = Annotated[float, Range(least=1)]


class LatencySource(Enum):
    """The source of a rollout's latency: the measured time of its calls, or the seconds that `method.experts` states."""

    measured = "measured"
    table = "table"


@dataclass(kw_only=True, slots=True)
class ExpertConfig:
    """An expert: the model behind its alias, its price, and its description for the orchestrator."""

    model: str = "base"
    """The expert's name in `serving.models`; several aliases may share one model."""
    dollars_per_million_input_tokens: NonNegative = 0.0
    """Price of a million tokens of prompts."""
    dollars_per_million_output_tokens: NonNegative = 0.0
    """Price of a million sampled tokens."""
    seconds: NonNegative = 0.0
    """Average seconds of a call, as the tool description states them."""
    strengths: str = ""
    """One sentence about the expert in the tool description."""


@dataclass(kw_only=True, slots=True)
class ToolsConfig:
    """The expert aliases that each tool offers; a tool with an empty list is not offered."""

    search: list[str] = field(default_factory=list)
    """Experts that write search queries."""
    enhance_reasoning: list[str] = field(default_factory=list)
    """Experts that write a program, which is run in a sandbox."""
    answer: list[str] = field(default_factory=list)
    """Experts that answer the question, which ends the rollout."""
    call_expert: list[str] = field(default_factory=list)
    """Experts that may be asked for advice on a question, or take a turn in a conversation with a customer."""
    call_expert_for_questions: bool = True
    """Offer call_expert for questions too; the paper offers it in conversations with a customer only."""

    def problems(self, experts: dict[str, ExpertConfig]) -> list[Problem]:
        """Checks that every alias names an expert and is in a list once."""
        found: list[Problem] = []
        for tool in fields(self):
            aliases: list[str] | bool = getattr(self, tool.name)
            if isinstance(aliases, bool):
                continue
            key = f"method.tools.{tool.name}"
            for alias in aliases:
                if alias not in experts:
                    remedy = f"there is no expert {alias} (available: {', '.join(experts) or 'none'}): describe it as "
                    found.append(Problem(key=key, value=alias, remedy=f"{remedy}method.experts.{alias}"))
            if len(set(aliases)) < len(aliases):
                found.append(Problem(key=key, value=aliases, remedy="name each alias once"))
        return found


@dataclass(kw_only=True, slots=True)
class PreferenceConfig:
    """The user's preferences (the paper's P): weights from 0 to 1. A row's own `preference` takes precedence."""

    accuracy: Share = 1.0
    """Weight of a correct answer."""
    cost: Share = 0.0
    """Weight of being cheap."""
    latency: Share = 0.0
    """Weight of being quick."""
    tools: dict[str, Share] = field(default_factory=dict)
    """Weight of calling an expert, by its alias."""

    def problems(self, experts: dict[str, ExpertConfig]) -> list[Problem]:
        """Checks that every weighted alias names an expert."""
        return [
            Problem(key=f"method.preference.tools.{alias}", value=weight, remedy="there is no such expert in method.experts")
            for alias, weight in self.tools.items()
            if alias not in experts
        ]

    def preference(self) -> Preference:
        """The weights in the form that the rewards take."""
        return Preference(accuracy=self.accuracy, cost=self.cost, latency=self.latency, tools=dict(self.tools))


@dataclass(kw_only=True, slots=True)
class RewardConfig:
    """The reward of a rollout, and the rollouts that are left out of training (`rewards.py`)."""

    variant: Variant = Variant.corrected
    """Formula of the reward; README.md lists them."""
    dollars: Positive = 0.05
    """Cost at which the variant `corrected` gives half of its bonus for being cheap."""
    latency_seconds: Positive = 30.0
    """Latency at which the variant `corrected` gives half of its bonus for being quick."""
    share: BonusShare = 0.3
    """Share of a correct answer's reward that depends on cost, latency and preferred tools (variant `corrected`)."""
    latency: LatencySource = LatencySource.measured
    """The source of latencies: measured calls, or the seconds stated in `method.experts`."""
    min_deviation: NonNegative = 0.1
    """Groups whose rewards have this standard deviation or less are not trained (the paper's homogeneity filter)."""
    format_filter: bool = True
    """Leave rollouts out of training that have no valid answer, or neither called a tool nor wrote a word."""
    judge: str | None = None
    """Served model that decides about answers that do not match the label word for word; null scores those 0."""
    judge_tokens: Count = 512
    """Longest reply of the judge."""
    judge_timeout_seconds: Positive = 25.0
    """Time limit of one call of the judge, which is asked up to twice; both must fit into `rollout.reward_timeout_seconds`."""

    def judge_config(self, model: str) -> JudgeConfig:
        """The judge with its limits."""
        return JudgeConfig(model=model, max_tokens=self.judge_tokens, timeout_seconds=self.judge_timeout_seconds)

    def scale(self) -> Scale:
        """Cost, latency and share as the variant `corrected` takes them."""
        return Scale(dollars=self.dollars, seconds=self.latency_seconds, share=self.share)


@dataclass(kw_only=True, slots=True)
class RandomizationConfig:
    """Changes from question to question (the paper's random tools and prices); all rollouts of a question see the same."""

    shuffle_aliases: bool = False
    """Shuffle the assignment of experts to the aliases of a tool."""
    num_aliases: Natural = 0
    """Number of a tool's aliases that are offered, drawn at random; 0 offers all."""
    price_factor: PriceFactor = 1.0
    """Prices are multiplied by a random factor between 1/price_factor and price_factor; 1 leaves them unchanged."""


@dataclass(kw_only=True, slots=True)
class LimitsConfig:
    """Limits of a rollout, of an expert's call, and of the texts that models are shown."""

    turns: Count = 50
    """Most orchestrator replies in a training rollout."""
    evaluation_turns: Count = 50
    """Most orchestrator replies in an evaluation rollout."""
    seconds: Positive = 360.0
    """Time after which a rollout begins no further reply and no further call."""
    turn_tokens: Count = 4096
    """Most tokens of one orchestrator reply."""
    context_tokens: Count = 131_072
    """Most tokens of the orchestrator's prompt and reply together; where they are more, the oldest turns are dropped."""
    expert_tokens: Count = 8192
    """Most tokens of an expert's reply."""
    expert_seconds: Positive = 180.0
    """Time limit of one expert call."""
    expert_errors: Count = 2
    """Failures in a row after which an expert's model counts as unavailable for the rest of the rollout."""
    documents: Count = 5
    """Passages that one search returns."""
    document_characters: Count = 500
    """Most characters of one passage; the rest is cut off."""
    context_characters: Count = 24_000
    """Most characters of passages, programs and earlier attempts that an expert is shown; the newest are kept."""
    findings_tokens: Natural = 0
    """Maximum number of tokens, by the trained model's tokenizer, of the text shown to an expert, in place of
    `context_characters`; 0 counts characters."""
    environment_steps: Count = 200
    """Most steps of a training conversation with a customer: messages of both sides, calls and their results."""
    evaluation_environment_steps: Count = 200
    """Most steps of an evaluation conversation with a customer; τ²-bench's own limit is 200."""
    environment_errors: Count = 10
    """Wrong calls after which a conversation with a customer ends."""


@dataclass(kw_only=True, slots=True)
class EndpointConfig:
    """A model that τ²-bench calls through litellm: its user simulator or its judge."""

    model: str = ""
    """litellm's name of the model, for example openai/user; empty for none."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of litellm, for example {api_base: http://127.0.0.1:8003/v1, api_key: none}."""
