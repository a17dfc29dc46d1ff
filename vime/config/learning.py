"""The training objective and the trainer."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from vime.config.choices import (
    Aggregation,
    AlgorithmName,
    BadUpdate,
    Baseline,
    Comparison,
    CorrectionLevel,
    CorrectionMode,
    CpuProducts,
    CriticPlace,
    Divergence,
    Fp8Recipe,
    KLEstimator,
    KLPlace,
    LoraInit,
    LoraTarget,
    Normalization,
    OldLogprobs,
    Precision,
    RatioLevel,
    RoutingReplay,
    Schedule,
    Surrogate,
    TeacherPlace,
    TeacherTerm,
    TopKOf,
    TrainedQuantization,
    TurnCredit,
)
from vime.config.ranges import Count, Natural, NonNegative, Positive, Range, Share

Momentum = Annotated[float, Range(least=0, below=1)]


@dataclass(kw_only=True, slots=True)
class CorrectionConfig:
    """Importance weights (trainer / engine) for the difference between the engine, which sampled, and the trainer.

    Truncated importance sampling is `mode=truncate`, IcePop `mode=mask low=0.5 high=5`, masked importance sampling
    `mode=mask level=sequence`. Needs `algorithm.old_logprobs=trainer`.
    """

    mode: CorrectionMode = CorrectionMode.none
    """The treatment of an importance weight outside `low` to `high`."""
    level: CorrectionLevel = CorrectionLevel.token
    """The unit of a weight: a token, its sequence, or the average token of its sequence."""
    low: NonNegative = 0.0
    """Lower bound of the weights."""
    high: Positive = 2.0
    """Upper bound of the weights."""
    veto: NonNegative = 0.0
    """A sequence with a token whose weight is below this value is left out of training; 0 turns the veto off."""
    allow_none: bool = False
    """True if what servers in low precision (`serving.models.NAME.quantization`, `kv_cache_dtype`) sample may be trained without
    any correction, for a comparison."""


@dataclass(kw_only=True, slots=True)
class CriticConfig:
    """Values of the states in which tokens were sampled, and the advantages that are computed from them (GAE, arXiv 1506.02438).

    With a critic a single rollout per prompt suffices (`rollout.num_samples_per_prompt=1`): nothing is compared within a group.
    """

    place: CriticPlace = CriticPlace.none
    """The weights that compute the values."""
    discount: Share = 1.0
    """Factor of the reward per sampled token (gamma)."""
    gae_lambda: Share = 1.0
    """Lambda of the advantages: 1 compares the whole return with the value, 0 only the next value."""
    adaptive_alpha: Positive | None = None
    """Lambda by the length of a rollout in place of `gae_lambda`: 1 - 1 / (alpha · sampled tokens), at least 0 (arXiv 2504.05118,
    equation 4); null turns it off."""
    return_lambda: Share | None = None
    """Lambda of the returns that the values are to predict; null takes that of the advantages."""
    value_clip: Positive | None = None
    """Largest distance of a value from that before the batch, beyond which it has no gradient; null turns the bound off."""
    warmup_steps: Natural = 0
    """First steps of the run in which the critic learns and the policy stays as it is."""
    lr: Positive = 1e-5
    """Learning rate of a critic with a model of its own; schedule, warm-up and Adam's numbers are the trainer's."""
    num_epochs_per_batch: Count = 1
    """Passes of a critic with a model of its own over one batch, each with all its optimizer steps."""
    coefficient: Positive = 0.5
    """Weight of the values' error beside the policy's loss, where both are heads of one model (`place=trunk`)."""
    gradient_scale: Share = 0.0
    """Part of the gradient of the values' error that reaches the policy's layers (`place=trunk`); 0 stops it at the head."""


@dataclass(kw_only=True, slots=True)
class TeacherConfig:
    """A teacher, which scores the tokens that the student has sampled: a model of `serving.models`, by its name there, or second
    weights in the trainer under any name."""

    place: TeacherPlace = TeacherPlace.server
    """The place of its weights."""
    checkpoint: str | None = None
    """Folder or Hugging Face id of its weights (`place=trainer`), a model with the student's architecture and tokenizer."""
    decay: Share | None = None
    """Decay of a running average of the student's own weights as the teacher (`place=trainer`): after each optimizer step it is
    decay · average + (1 - decay) · weights; with 0 they are the present weights, with 1 those that the run began with."""
    datasets: list[str] = field(default_factory=list)
    """Data sets whose rollouts it teaches: `data.train.name`, or names in the field `dataset` of rows; none means all."""
    seats: list[str] = field(default_factory=list)
    """Seats (`Sample.seat`) whose sequences it teaches; none means all."""
    weight: Positive = 1.0
    """Odds of being drawn for a sequence that several teachers teach. Each sequence has one of them, and over many the objective
    is the weighted sum of theirs."""
    hint: str | None = None
    """Dotted path of `hint(row, sample) -> str`: what this teacher reads as a system message (a user's, if its template has no
    such turn) ahead of a sequence, for example the solution, a demonstration or feedback; an empty text is none. With a hint, the
    student itself may be the teacher."""


@dataclass(kw_only=True, slots=True)
class DistillationConfig:
    """Teachers, and the term of the objective that brings the student nearer to them on its own rollouts.

    The term has an average of its own, over the tokens that have a teacher. Teacher and student are compared at temperature 1.
    """

    teachers: dict[str, TeacherConfig] = field(default_factory=dict)
    """Teachers by name, that of a model of `serving.models` for `place=server`; none turns distillation off."""
    divergence: Divergence = Divergence.reverse_kl
    """The distance between teacher and student."""
    term: TeacherTerm = TeacherTerm.advantage
    """The place of the divergence in the objective: reverse KL may be the advantage of the sampled tokens; any divergence over
    `top_k` likeliest tokens may be a loss."""
    top_k: Natural = 0
    """Likeliest tokens over which the divergence is computed (`term=loss`); all others are one more outcome."""
    top_k_of: TopKOf = TopKOf.teacher
    """The model whose likeliest tokens they are. Those of the student are its servers' `rollout.num_logprobs`, which must be as
    many, and which only teachers in the trainer can score."""
    mixture: Annotated[float, Range(above=0, below=1)] = 0.5
    """Weight of the teacher in the mixture to which the Jensen-Shannon divergence compares both."""
    coefficient: Positive = 1.0
    """Weight of the teachers' term."""
    reward_coefficient: NonNegative = 0.0
    """Weight of the objective of rewards beside it, which the other options describe; with 0 rewards are only reported."""


@dataclass(kw_only=True, slots=True)
class AlgorithmConfig:
    """The training objective. The defaults are those of `algorithm=grpo`."""

    name: AlgorithmName = AlgorithmName.grpo
    """Name of the objective. A named objective keeps the choices that its file in `conf/algorithm/` makes; with `custom` every
    option is free."""
    baseline: Baseline = Baseline.mean
    """The value subtracted from the reward of a rollout."""
    baseline_decay: Annotated[float, Range(above=0, below=1)] = 0.95
    """Part of a running baseline that each further rollout leaves (RAE, arXiv 2506.24119)."""
    comparison: Comparison = Comparison.rollout
    """Rewards that share a baseline: those of rollouts, or of the samples with the same `Sample.seat`."""
    nested_seats: list[str] = field(default_factory=list)
    """Seats that occur several times in a rollout, and are compared with one another within it, like solvers of a task that the
    rollout has posed; the other seats are compared over the rollouts of the group."""
    turn_credit: TurnCredit = TurnCredit.none
    """Credit for single replies of a rollout, from the rewards of its steps (`vime.algorithm.turns`)."""
    turn_discount: Annotated[float, Range(above=0, most=1)] = 1.0
    """Factor of the reward of a step for each turn that lies between it and a reply."""
    turn_weight: Positive = 1.0
    """Weight of the advantage among turns in the same state beside that of the rollout (`turn_credit=states`)."""
    normalization: Normalization = Normalization.std
    """The divisor of the difference to the baseline."""
    whitening: bool = False
    """Scales the advantages of all trained tokens of the batch to mean 0 and standard deviation 1."""
    overlong_max_tokens: Count | None = None
    """Number of sampled tokens of a rollout above which its reward is reduced by 1 (DAPO, arXiv 2503.14476, equation 13); null
    turns the penalty off."""
    overlong_buffer_tokens: Natural = 0
    """Number of tokens below `overlong_max_tokens` over which that penalty grows from 0 to 1."""
    ratio: RatioLevel = RatioLevel.token
    """The unit of the importance ratio: each token or each sequence."""
    surrogate: Surrogate = Surrogate.clipped
    """Use of the importance ratio in the loss: PPO's clip range, SAO's mask by the ratio, CISPO's clipped weight, SAPO's gate,
    GMPO's geometric mean of clipped ratios, or the masks of IPO and DPPO by the probabilities of trainer and sampler."""
    score_centering: bool = False
    """Subtracts from the score of each token its mean under the sampler, which the sampler's likeliest tokens give (arXiv
    2609.20807). It takes the weights of `surrogate=cispo`, and needs `rollout.num_logprobs`."""
    clip_low: Share = 0.2
    """Ratios are clipped at 1 - `clip_low` from below."""
    clip_high: NonNegative = 0.2
    """Ratios are clipped at 1 + `clip_high` from above."""
    tau_positive: Positive = 1.0
    """Temperature of the gate of `surrogate=sapo` at positive advantages: the higher it is, the faster gradients fade."""
    tau_negative: Positive = 1.05
    """Temperature of that gate at negative advantages."""
    max_divergence: Positive = 0.15
    """Largest divergence between the probabilities that trainer and sampler give to a token, beyond which `surrogate=ipo`,
    `dppo_tv` and `dppo_kl` mask it: a difference of probabilities, or for `dppo_kl` nats."""
    dual_clip: Annotated[float, Range(above=1)] | None = None
    """Bounds the loss of tokens with a negative advantage at `dual_clip` times the advantage (arXiv 1912.09729); null turns the
    bound off."""
    kl_coefficient: NonNegative = 0.0
    """Weight of the KL divergence from the reference model; with 0 no reference model is kept."""
    kl_estimator: KLEstimator = KLEstimator.low_var_kl
    """Estimator of the KL divergence from the reference model."""
    kl_place: KLPlace = KLPlace.loss
    """The place of the KL divergence: a term of the loss or a penalty on the reward of each token."""
    kl_unbiased: bool = False
    """Multiplies the KL estimate in the loss by the importance ratio, which makes its gradient unbiased (arXiv 2512.02556, eq.
    7)."""
    entropy_coefficient: Annotated[float, Range(why="a negative coefficient lowers the entropy")] = 0.0
    """Weight of the policy's entropy: a positive value rewards entropy, a negative one penalizes it."""
    aggregation: Aggregation = Aggregation.token
    """Units of equal weight in the average of the loss over a batch."""
    constant_tokens: Count = 1024
    """Divisor of the sum over the tokens of a rollout with `aggregation=constant`."""
    old_logprobs: OldLogprobs = OldLogprobs.engine
    """Source of the log-probabilities in the denominator of the importance ratio."""
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    """Importance weights between engine and trainer."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    """Values of tokens, in place of the rewards of the other rollouts of a group."""
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    """Teachers from whose logprobs the policy learns, in place of rewards or beside them."""
    object: str | None = None
    """Class of an algorithm of your own, by dotted path or `file.py:Class` (`vime/algorithm/README.md`); null means the built-in
    one, which the options above describe."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of that class, as its `Config` declares them."""
    advantage: str | None = None
    """Dotted path of `advantage(config, groups) -> dict[rollout_id, float]`, which replaces the built-in advantages; a list in
    place of the float gives each sample of the rollout its own."""
    loss: str | None = None
    """Dotted path of `loss(config, logprobs, old_logprobs, advantages, mask, sequences) -> (token_loss, metrics)`, which replaces
    the built-in policy loss."""


OF_VOCABULARY = (LoraTarget.embed_tokens, LoraTarget.lm_head)
"""Matrices that a model has once, and not in every layer."""


@dataclass(kw_only=True, slots=True)
class LoraConfig:
    """Low-rank adapters (LoRA, arXiv 2106.09685): the model's own weights stay as they are, and each adapted matrix W becomes
    W + alpha / rank · B · A with trained A and B.

    There is no dropout: the tokens are sampled without it, so a trainer with dropout would be off-policy.
    """

    rank: Natural = 0
    """Rows of A and columns of B; 0 trains all weights, without adapters."""
    alpha: Positive = 32.0
    """The update is multiplied by `alpha / rank`; with a fixed `alpha` one learning rate suits all ranks."""
    targets: list[LoraTarget] = field(default_factory=lambda: [each for each in LoraTarget if each not in OF_VOCABULARY])
    """Matrices that get an adapter, by default those of all layers; `embed_tokens` and `lm_head` are the embedding and the output
    head, which have adapters of their own where they share a matrix, too."""
    init: LoraInit = LoraInit.kaiming
    """Initial values of new adapters."""
    start: str | None = None
    """Folder of an adapter in PEFT's format with which the run begins, in place of a new one; rank, alpha and targets must be
    those of the folder."""


@dataclass(kw_only=True, slots=True)
class Fp8Config:
    """Training with products of 8-bit floats (FP8), on GPUs with Transformer Engine; not run so far."""

    recipe: Fp8Recipe = Fp8Recipe.none
    """The scaling of the floats, by Megatron-core's names; `none` trains without them."""
    num_first_bf16_layers: Natural = 0
    """Layers at the beginning of the model that stay in bfloat16; not with `recipe: delayed`."""
    num_last_bf16_layers: Natural = 0
    """Layers at its end that stay in bfloat16; not with `recipe: delayed`."""


@dataclass(kw_only=True, slots=True)
class TrainerConfig:
    """Megatron-core: optimizer, parallelism, batching, checkpoints."""

    num_steps: Count = 100
    """Training steps of the run; each takes one batch of rollouts."""
    lr: Positive = 1e-6
    """Learning rate after the warm-up."""
    lr_schedule: Schedule = Schedule.constant
    """Course of the learning rate after the warm-up."""
    warmup_steps: Natural = 0
    """Training steps over which the learning rate rises from 0 to `lr`."""
    min_lr: NonNegative = 0.0
    """Learning rate at the end of a linear or cosine schedule."""
    weight_decay: NonNegative = 0.0
    """Weight decay of AdamW."""
    adam_beta1: Momentum = 0.9
    """Decay rate of Adam's average of gradients."""
    adam_beta2: Momentum = 0.98
    """Decay rate of Adam's average of squared gradients."""
    clip_grad: Positive = 1.0
    """Largest norm of the gradient; larger gradients are scaled down to it."""
    num_updates_per_batch: Count = 1
    """Optimizer steps on one batch, which is split among them by rollouts."""
    num_epochs_per_batch: Count = 1
    """Passes over one batch, each with all its optimizer steps."""
    on_bad_update: BadUpdate = BadUpdate.stop
    """Response to a loss or gradient that is not finite: the run stops (`stop`) or skips the update (`skip`); ten skipped
    updates in a row stop the run in any case."""
    max_tokens_per_micro_batch: Count = 16384
    """Tokens in the packed row of one rank; context-parallel ranks hold that many each. A longer sequence has a row of its
    own."""
    precision: Precision = Precision.bfloat16
    """Number format of weights and activations in trainer and servers."""
    quantization: TrainedQuantization = TrainedQuantization.none
    """Integers in which the linear layers of the decoder compute in training (quantization-aware training). With `int8` the
    servers compute with the same ones (`serving.models.actor.quantization=int8`), with `int4` they get the weights that the
    integers represent; then no correction is needed, with `int8` in float32. Weights and checkpoints themselves stay in the run's
    precision."""
    fp8: Fp8Config = field(default_factory=Fp8Config)
    """8-bit floats of Transformer Engine in the products of linear layers."""
    tensor_parallel_size: Count = 1
    """Ranks that split the matrices of each layer."""
    pipeline_parallel_size: Count = 1
    """Ranks among which the layers are divided."""
    virtual_pipeline_parallel_size: Count = 1
    """Separate runs of layers on each stage of an interleaved pipeline (arXiv 2104.04473), which shortens the waits of the
    stages."""
    data_parallel_size: Count = 1
    """Copies of the model; each computes the gradient of a part of the batch."""
    context_parallel_size: Count = 1
    """Ranks that share the tokens of each sequence."""
    expert_parallel_size: Count = 1
    """Ranks, among those of tensor, context and data parallelism, that share the experts of a layer; an expert is never split."""
    sequence_parallel: bool = True
    """True if tensor-parallel ranks also divide norms and residuals among them, by tokens; without effect on a single rank."""
    overlap_gradient_reduction: bool | None = None
    """True if copies of the model sum their gradients in buckets while the backward pass of the last row goes on; null does so on
    GPUs."""
    sft_tokens_per_step: Count = 16384
    """Tokens of demonstrations in one optimizer step of `algorithm=sft`."""
    num_threads: Natural = 0
    """CPU threads of one trainer rank; 0 divides the cores of a machine among its ranks."""
    cpu_products: CpuProducts = CpuProducts.auto
    """Library for float32 matrix products on the CPU; `auto` takes oneDNN on AMD processors with AVX-512."""
    save_every: Count = 50
    """Training steps between checkpoints; the last step is always saved."""
    keep_checkpoints: Count = 2
    """Number of recent checkpoints to keep; older ones are removed."""
    keep_best: str | None = None
    """Metric by which the best checkpoint is kept in addition: `evaluation/<data set>`, or `evaluation` for the mean over all
    data sets, as evaluated during training."""
    async_save: bool = True
    """True if training continues while a checkpoint is written, which needs a second copy of weights and optimizer in host
    memory."""
    stop_on_failed_save: bool = True
    """True if the run stops if a checkpoint cannot be written, for example because the disk is full; otherwise it logs a
    warning."""
    evaluate_every: Natural = 0
    """Training steps between evaluations of the agent during training; 0 evaluates only before and after training."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Low-rank adapters in place of all weights."""
    routing_replay: RoutingReplay = RoutingReplay.none
    """Experts of a mixture-of-experts model in the update passes: the routers' own choice (`none`), that of the pass for the old
    logprobs (`trainer`, known as R2), or that of the servers (`rollout`, R3)."""
    recompute: bool = False
    """Activation checkpointing: the forward pass stores only each layer's input, and the backward pass recomputes the
    activations. It saves memory and costs about one more forward pass; for selective recomputation use `megatron_args`."""
    megatron_args: dict[str, Any] = field(default_factory=dict)
    """Fields of Megatron-core's TransformerConfig, passed unchanged."""
