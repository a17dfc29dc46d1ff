"""The trained model, its agent method, the data, the objective and the trainer."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from vime.config.choices import (
    Aggregation,
    AlgorithmName,
    BadUpdate,
    Baseline,
    CorrectionLevel,
    CorrectionMode,
    CpuProducts,
    Credit,
    Family,
    KLEstimator,
    KLPlace,
    Normalization,
    OldLogprobs,
    Precision,
    RatioLevel,
    Schedule,
    Surrogate,
)
from vime.errors import Problem

if TYPE_CHECKING:
    from vime.config import RunConfig

MethodType = TypeVar("MethodType", bound="MethodConfig")


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """The trained model. The shape stands here so that `mode=plan` needs no checkpoint; a checkpoint must agree with it."""

    name: str = "tiny"
    checkpoint: str = ""
    """Hugging Face id or folder."""
    family: Family = Family.qwen3
    num_layers: int = 2
    hidden_size: int = 128
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 256
    vocab_size: int = 1024
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 2048
    num_experts: int = 0
    num_experts_per_token: int = 0
    moe_intermediate_size: int = 0
    chat_template_args: dict[str, Any] = field(default_factory=dict)
    """Passed to the chat template, for example `enable_thinking: false`."""


@dataclass(kw_only=True, slots=True)
class MethodConfig:
    """An agent method: its hooks by dotted path. Methods extend this with their own settings."""

    name: str = ""
    generate: str = ""
    """`async generate(context, sample, sampling) -> Sample | list[Sample]`: one rollout."""
    reward: str | None = ""
    """`async reward(context, samples) -> float | Reward`: one rollout's samples; not called for a rollout on whose samples
    `generate` has set rewards. null says that `generate` always does."""
    group_reward: str | None = None
    """`async group_reward(context, group) -> list[Reward]`: optional, compares the rollouts of a group."""
    eval_log: str | None = None
    """`eval_log(context, results) -> EvalLog`: optional metrics and figures of an evaluation."""
    single_turn: str = "vime.rollout.single_turn.generate"
    """The baseline row: the model asked once, without the scaffold; same signature as `generate`."""
    credit: Credit = Credit.share

    @classmethod
    def of(cls: type[MethodType], config: "RunConfig") -> MethodType:
        """The run's method settings as this class; a hook reads its own settings with it. They must be of this class."""
        assert isinstance(config.method, cls), f"the run's method is a {type(config.method).__name__}, not a {cls.__name__}"
        return config.method

    def problems(self, config: "RunConfig") -> list[Problem]:
        """What this method's settings demand of the rest of the run; checked before anything starts."""
        return []

    def calls_per_rollout(self, config: "RunConfig") -> int | None:
        """About how many calls of the trained model a training rollout makes, for the plan; None if nobody can say."""
        return None


@dataclass(kw_only=True, slots=True)
class DatasetConfig:
    """Rows from a file (`path`: jsonl, json, parquet, or a Hugging Face id) or from a function (`generator`)."""

    name: str = "train"
    path: str | None = None
    split: str = "train"
    """Split of a Hugging Face dataset; files ignore nothing: a file has one split, named train."""
    generator: str | None = None
    """Dotted path of `generator(num_items, seed, **generator_args) -> list[dict]`."""
    generator_args: dict[str, Any] = field(default_factory=dict)
    num_items: int | None = None
    """How many rows; None takes all of a file."""
    seed: int = 0


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """Prompts to train on and sets to evaluate on."""

    train: DatasetConfig = field(default_factory=DatasetConfig)
    evaluation: list[DatasetConfig] = field(default_factory=list)
    shuffle: bool = True
    source: str = "vime.data.source.RowSource"
    """Dotted path of a class with the protocol `vime.hooks.PromptSource`."""
    demonstrations: str | None = None
    """For `algorithm=sft`: dotted path of `demonstrations(tokenizer, step, num_steps, num_tokens, seed) -> list[TrainSample]`."""


@dataclass(kw_only=True, slots=True)
class CorrectionConfig:
    """Weights that make up for the difference between the engine, which sampled, and the trainer: trainer / engine.

    Truncated importance sampling is `mode=truncate`, IcePop `mode=mask low=0.5 high=5`, masked importance sampling
    `mode=mask level=sequence`. Needs `algorithm.old_logprobs=trainer`.
    """

    mode: CorrectionMode = CorrectionMode.none
    level: CorrectionLevel = CorrectionLevel.token
    low: float = 0.0
    high: float = 2.0
    veto: float = 0.0
    """A sequence with a token whose weight is below this is not trained on; 0 is off."""


@dataclass(kw_only=True, slots=True)
class AlgorithmConfig:
    """The objective. Defaults are those of `algorithm=grpo` (arXiv 2402.03300), averaged over tokens."""

    name: AlgorithmName = AlgorithmName.grpo
    baseline: Baseline = Baseline.mean
    normalization: Normalization = Normalization.std
    whitening: bool = False
    """Advantages of all trained tokens of the batch are brought to mean 0 and deviation 1."""
    overlong_max_tokens: int | None = None
    """Sampled tokens of a rollout above which its reward loses 1 (DAPO, arXiv 2503.14476, equation 13); None is off."""
    overlong_buffer_tokens: int = 0
    """The loss of reward grows from 0 to 1 over this many tokens below `overlong_max_tokens`."""
    ratio: RatioLevel = RatioLevel.token
    surrogate: Surrogate = Surrogate.clipped
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    """Bounds the loss of tokens with a negative advantage at this times the advantage (arXiv 1912.09729); None is off."""
    kl_coefficient: float = 0.0
    """Weight of the KL to the reference model; 0 keeps no reference model."""
    kl_estimator: KLEstimator = KLEstimator.low_var_kl
    kl_place: KLPlace = KLPlace.loss
    kl_unbiased: bool = False
    """Multiplies the KL in the loss by the importance ratio, which makes its gradient unbiased (arXiv 2512.02556, eq. 7)."""
    entropy_coefficient: float = 0.0
    aggregation: Aggregation = Aggregation.token
    constant_tokens: int = 1024
    """`aggregation=constant`: the divisor of a rollout's sum over tokens."""
    old_logprobs: OldLogprobs = OldLogprobs.engine
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    advantage: str | None = None
    """Dotted path of `advantage(config, groups) -> dict[rollout_id, float]` instead of the built-in one; a list has an advantage
    for each sample of its rollout."""
    loss: str | None = None
    """Dotted path of `loss(config, logprobs, old_logprobs, advantages, mask, sequences) -> (token_loss, metrics)`, likewise."""


@dataclass(kw_only=True, slots=True)
class TrainerConfig:
    """Megatron-core: optimizer, parallelism, batching, checkpoints."""

    num_steps: int = 100
    lr: float = 1e-6
    lr_schedule: Schedule = Schedule.constant
    warmup_steps: int = 0
    min_lr: float = 0.0
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    clip_grad: float = 1.0
    num_updates_per_batch: int = 1
    """Optimizer steps on one batch of groups, split by rollouts."""
    num_epochs_per_batch: int = 1
    """How often a batch is gone through, with all its optimizer steps."""
    on_bad_update: BadUpdate = BadUpdate.stop
    """If a loss or gradient is not finite: stop the run, or skip the update (ten in a row stop the run all the same)."""
    max_tokens_per_micro_batch: int = 16384
    """Tokens in the row of one rank; context-parallel ranks hold that many each. A longer sequence has a row of its own."""
    precision: Precision = Precision.bfloat16
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    virtual_pipeline_parallel_size: int = 1
    """Rounds of an interleaved pipeline (arXiv 2104.04473): a stage holds as many separate runs of layers, and waits less."""
    data_parallel_size: int = 1
    context_parallel_size: int = 1
    """Ranks that share the tokens of each sequence."""
    expert_parallel_size: int = 1
    """Ranks, among those of tensor, context and data parallelism, that share the experts of a layer; experts are never cut."""
    sequence_parallel: bool = True
    """Tensor-parallel ranks, where there are several, share norms and residuals as well, by tokens."""
    sft_tokens_per_step: int = 16384
    """`algorithm=sft`: tokens of demonstrations in one optimizer step."""
    num_threads: int = 0
    """CPU threads of one trainer rank; 0 divides the cores of a machine among its ranks."""
    cpu_products: CpuProducts = CpuProducts.auto
    """Library for float32 matrix products on the CPU; `auto` takes oneDNN on AMD processors with AVX-512."""
    save_every: int = 50
    """Steps between checkpoints; the last step is always saved."""
    keep_checkpoints: int = 2
    """The newest ones; all older ones are removed."""
    keep_best: str | None = None
    """Keeps the best checkpoint as well, by a metric of the evaluations during training: `evaluation/<data set>`, or
    `evaluation` for the mean over all data sets."""
    async_save: bool = True
    """Training goes on while a checkpoint is written; needs a copy of weights and optimizer in main memory meanwhile."""
    stop_on_failed_save: bool = True
    """False goes on with a warning if a checkpoint cannot be written, for example on a full disk."""
    evaluate_every: int = 0
    """Steps between evaluations of the trained scaffold during training; 0 evaluates only before and after."""
    recompute: bool = False
    """Keep only the inputs of the layers and compute the rest again in the backward pass; finer through `megatron_args`."""
    megatron_args: dict[str, Any] = field(default_factory=dict)
    """Fields of Megatron-core's TransformerConfig, passed unchanged."""
