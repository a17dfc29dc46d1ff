"""The trained model, the agent method, and the data."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from vime.config.choices import Credit, Family
from vime.config.ranges import Count, Natural, Range, Share
from vime.errors import Problem

if TYPE_CHECKING:
    from vime.config import RunConfig
    from vime.types import Prompt

Reward = Annotated[float, Range(why="a reward may be any number")]
MethodType = TypeVar("MethodType", bound="MethodConfig")


@dataclass(kw_only=True, slots=True)
class LinearAttentionConfig:
    """Layers of linear attention, a gated delta net (arXiv 2412.06464) between every two layers of attention."""

    full_every: Natural = 0
    """Layers whose number, counted from 1, is a multiple of this have attention, and all others are linear; 0 for attention in
    all layers."""
    num_key_heads: Natural = 0
    """Query heads of each linear layer, and its key heads."""
    num_value_heads: Natural = 0
    """Value heads of each linear layer, a multiple of `num_key_heads`; each has a state of its own."""
    key_head_dim: Natural = 0
    """Width of a query or key head."""
    value_head_dim: Natural = 0
    """Width of a value head."""
    conv_kernel: Natural = 0
    """Tokens that the causal convolution before each linear layer sees, the present one among them."""

    def is_linear(self, layer: int) -> bool:
        """True for a layer of linear attention, by its number from 0."""
        return self.full_every > 0 and (layer + 1) % self.full_every > 0

    def num_linear(self, num_layers: int) -> int:
        """The number of linear layers among the first `num_layers`."""
        return sum(map(self.is_linear, range(num_layers)))

    @property
    def key_width(self) -> int:
        """Channels of all query heads, or of all key heads."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Channels of all value heads."""
        return self.num_value_heads * self.value_head_dim

    @property
    def input_parts(self) -> list[int]:
        """Channels that a layer computes of its input: queries, keys, values, output gates, and two gates of each value head."""
        return [self.key_width, self.key_width, self.value_width, self.value_width, self.num_value_heads, self.num_value_heads]


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """The trained model. Its shape is given here so that `mode=plan` needs no checkpoint; a checkpoint must agree with it."""

    name: str = "tiny"
    """Name of the model in run names, plans and result tables."""
    checkpoint: str = ""
    """Hugging Face id or folder of the checkpoint that training starts from."""
    family: Family = Family["qwen3"]
    """Architecture of the model."""
    num_layers: Count = 2
    """Number of transformer layers."""
    hidden_size: Count = 128
    """Width of the residual stream."""
    num_attention_heads: Count = 4
    """Query heads of each attention layer."""
    num_key_value_heads: Count = 2
    """Key and value heads of each attention layer (grouped-query attention)."""
    head_dim: Count = 32
    """Width of one attention head."""
    intermediate_size: Count = 256
    """Inner width of a dense feed-forward layer."""
    vocab_size: Count = 1024
    """Rows of the embedding table."""
    tie_word_embeddings: bool = False
    """True if the output layer uses the weights of the embedding table."""
    max_position_embeddings: Count = 2048
    """Longest sequence in tokens that the checkpoint's position embeddings allow, with `rope_parameters` if there are any."""
    rope_parameters: dict[str, Any] = field(default_factory=dict)
    """Rotary embedding parameters that replace the checkpoint's in trainer and servers, as in its `config.json`; for example
    `{rope_type: yarn, rope_theta: 1000000.0, factor: 4.0, original_max_position_embeddings: 32768}`. Empty for the checkpoint's
    own."""
    num_experts: Natural = 0
    """Experts of each mixture-of-experts layer; 0 for a dense model."""
    num_experts_per_token: Natural = 0
    """Experts that the router chooses for each token; 0 for a dense model."""
    moe_intermediate_size: Natural = 0
    """Inner width of one expert; 0 for a dense model."""
    linear_attention: LinearAttentionConfig = field(default_factory=LinearAttentionConfig)
    """Layers of linear attention, for a family that has them."""
    chat_template_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the trained model's chat template, for example `enable_thinking: false`."""
    tool_parser: str | None = None
    """vLLM's parser of the trained model's tool calls (`vllm serve --tool-call-parser`), for agents that call it over HTTP."""
    reasoning_parser: str | None = None
    """vLLM's parser of the trained model's reasoning (`vllm serve --reasoning-parser`), for agents that call it over HTTP."""

    @property
    def thinks(self) -> bool:
        """True if replies begin with thinking: the model's reasoning has a parser, and the template does not turn it off."""
        return self.reasoning_parser is not None and bool(self.chat_template_args.get("enable_thinking", True))


@dataclass(kw_only=True, slots=True)
class SessionConfig:
    """Limits on an agent's HTTP calls to its model, per rollout. Once a limit is reached, the session refuses further calls."""

    num_calls: Count | None = None
    """Maximum number of calls; null for no limit."""
    num_tokens: Count | None = None
    """Maximum number of sampled tokens over all calls; null for no limit."""
    fork: bool = True
    """True if a new training sequence begins where the chat template renders earlier messages differently (Qwen3's drops earlier
    thinking). If false, the tokens stay as they were sampled, and the model also sees text that its template would drop."""


@dataclass(kw_only=True, slots=True)
class MethodConfig:
    """An agent method: its functions, given by dotted path. Methods add their own settings in a subclass."""

    name: str = ""
    """Name of the method in run names and result tables."""
    generate: str = ""
    """The code that runs one rollout: the dotted path of `async generate(context, sample, sampling) -> Sample | list[Sample]`, or
    of `solve(openai_client, sample)` or `solve(anthropic_client, sample)`, or a command line, `run PROGRAM ARGUMENTS`."""
    reward: str | None = ""
    """Dotted path of `async reward(context, samples) -> float | Reward`, which scores the samples of one rollout. It is not
    called where `generate` has set rewards on the samples; null says that `generate` always does."""
    group_reward: str | None = None
    """Dotted path of `async group_reward(context, group) -> list[Reward]`, which scores the rollouts of a group by comparing
    them."""
    eval_log: str | None = None
    """Dotted path of `eval_log(context, results) -> EvalLog`, which adds metrics and figures to an evaluation."""
    single_turn: str = "vime.rollout.single_turn.generate"
    """Dotted path of the baseline, which asks the model once without the agent; its signature is that of `generate`."""
    rehearsal: str | None = None
    """Dotted path of a `vime.rehearsal.script.Rehearsal`, which scripts the models' replies in a rehearsal (`rehearse=true`);
    null lets the random model sample."""
    session: SessionConfig = field(default_factory=SessionConfig)
    """Limits on an agent's HTTP calls to its model."""
    credit: Credit = Credit.share
    """Assignment of a rollout's advantage to its samples."""

    @classmethod
    def of(cls: type[MethodType], config: "RunConfig") -> MethodType:
        """The run's method settings as this class; a hook reads its own settings with it. They must be of this class."""
        assert isinstance(config.method, cls), f"the run's method is a {type(config.method).__name__}, not a {cls.__name__}"
        return config.method

    def problems(self, config: "RunConfig") -> list[Problem]:
        """Contradictions between the settings of this method and the rest of the run; checked before anything starts."""
        return []

    def context_problems(self, config: "RunConfig", *, num_tokens: int, reason: str) -> list[Problem]:
        """A problem for each trained model whose context is shorter than `num_tokens`; `reason` says what needs these tokens."""
        found: list[Problem] = []
        for name, model in config.serving.models.items():
            if model.trained and min(model.max_model_len, config.model.max_position_embeddings) < num_tokens:
                remedy = f"{reason} need {num_tokens} tokens: use that, or make these smaller"
                found.append(Problem(key=f"serving.models.{name}.max_model_len", value=model.max_model_len, remedy=remedy))
        return found

    def identities(self, prompt: "Prompt") -> list[str]:
        """Keys that identify an item across data sets; items that share a key count as duplicates.

        By default the words of the question, or of a row without one its field `key`, or all of it. A run that trains on an item
        of one of its evaluation sets is refused (`vime.data.overlap`).
        """
        return [" ".join(prompt.question.lower().split()) or str(prompt.metadata.get("key", prompt.metadata))]

    def calls_per_rollout(self, config: "RunConfig") -> int | None:
        """Expected calls of the trained model in one training rollout, for the plan; None if the number is unknown."""
        return None

    def expected_calls(self, config: "RunConfig") -> int | None:
        """`calls_per_rollout` if the method's own `generate` runs; None if another function replaces it."""
        package = type(self).__module__.rpartition(".")[0]
        return self.calls_per_rollout(config) if self.generate.startswith(f"{package}.") else None


@dataclass(kw_only=True, slots=True)
class DatasetConfig:
    """Rows from a file (`path`: jsonl, json, csv, tsv, parquet, or a Hugging Face id) or from a function (`generator`)."""

    name: str = "train"
    """Name of the data set in metrics and result tables."""
    path: str | None = None
    """File (jsonl, ndjson, json, csv, tsv or parquet; also as gz, bz2, xz or zst) or Hugging Face id of the rows."""
    split: str = "train"
    """Split of a Hugging Face data set; a file has one split, named train."""
    generator: str | None = None
    """Dotted path of `generator(num_items, seed, **generator_args) -> list[dict]`, which makes the rows instead of `path`."""
    generator_args: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `generator`."""
    num_items: Count | None = None
    """Number of rows to take; null takes all rows of a file."""
    seed: Natural = 0
    """Seed of `generator`."""


@dataclass(kw_only=True, slots=True)
class CurriculumConfig:
    """Pools of rows by the mean reward of their last group, for `data.source=vime.data.curriculum.Curriculum`."""

    solved_at: Reward = 1.0
    """Mean reward from which a row is solved."""
    hopeless_at: Reward = 0.0
    """Mean reward up to which a row is hopeless."""
    solved_rate: Share = 0.1
    """Share of the solved rows that an epoch repeats."""
    hopeless_rate: Share = 0.25
    """Share of the hopeless rows that an epoch repeats."""


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """The prompts to train on and the data sets to evaluate on."""

    train: DatasetConfig = field(default_factory=DatasetConfig)
    """The training prompts."""
    evaluation: list[DatasetConfig] = field(default_factory=list)
    """The data sets of an evaluation."""
    shuffle: bool = True
    """True if the training prompts are shuffled anew in every epoch."""
    source: str = "vime.data.source.RowSource"
    """Dotted path of the class that hands out training prompts (`vime.hooks.PromptSource`)."""
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    """Rates at which `vime.data.curriculum.Curriculum` repeats rows that are solved, or never solved."""
    demonstrations: str | None = None
    """Dotted path of `demonstrations(tokenizer, step, num_steps, num_tokens, seed) -> list[Sample]`, the training data of
    `algorithm=sft`."""
