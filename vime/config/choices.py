"""Settings with a fixed set of values: one enumeration each, whose members have the names that are written in YAML."""

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

Mode = Enum("Mode", {"train": "train", "eval": "eval", "plan": "plan", "try": "try"})
"""The program's task."""
TRY = Mode["try"]
"""A word of Python, which is no name behind a dot."""


class TrialEngine(Enum):
    """Source of the replies to model calls in `mode=try`."""

    served = "served"
    """Servers of the models, as in training."""
    scripted = "scripted"
    """Scripted replies, from `trial.replies` or from the method; no server is started."""


if TYPE_CHECKING:

    class Family(Enum):
        """The members are the files of a folder, which a type checker does not read."""
else:
    _FAMILIES = sorted(file.stem for file in (Path(__file__).parent.parent / "model" / "families").glob("[a-z]*.py"))
    Family = Enum("Family", {name: name for name in _FAMILIES})
    """Families of models that the trainer supports: the names of the files in `vime/model/families`."""


class AlgorithmName(Enum):
    """Training objectives by name; `conf/algorithm/<name>.yaml` says what each one is, and names its paper."""

    paper = "paper"
    """The objective of the method's paper; recipes and the command line may change every option."""
    slime_agentic = "slime_agentic"
    """The objective of slime-agentic's public reproduction of the method."""
    custom = "custom"
    """An objective of your own."""
    grpo = "grpo"
    dr_grpo = "dr_grpo"
    dapo = "dapo"
    rloo = "rloo"
    gspo = "gspo"
    cispo = "cispo"
    sapo = "sapo"
    gmpo = "gmpo"
    ipo = "ipo"
    dppo = "dppo"
    dppo_kl = "dppo_kl"
    maxrl = "maxrl"
    score_centering = "score_centering"
    rae = "rae"
    gigpo = "gigpo"
    ppo = "ppo"
    sao = "sao"
    on_policy_distillation = "on_policy_distillation"
    reinforce_plus_plus = "reinforce_plus_plus"
    reinforce_plus_plus_baseline = "reinforce_plus_plus_baseline"
    sft = "sft"


class Baseline(Enum):
    """Baseline subtracted from a reward: the mean of the group, the mean of the others in it, a running mean, or nothing."""

    mean = "mean"
    leave_one_out = "leave_one_out"
    running = "running"
    """The mean of earlier rollouts of the run, which fades by `baseline_decay` with each one."""
    none = "none"


class Comparison(Enum):
    """Rewards that are compared with one another: those of rollouts, or of each seat with the same seat in other rollouts."""

    rollout = "rollout"
    seat = "seat"


class TurnCredit(Enum):
    """Credit for single replies: none, by the return from each turn on, or in addition by that among turns in the same state."""

    none = "none"
    returns = "returns"
    states = "states"


class Normalization(Enum):
    """The divisor of the difference to the baseline: the standard deviation of the group, its mean reward (MaxRL), or none."""

    std = "std"
    mean = "mean"
    none = "none"


class RatioLevel(Enum):
    """The unit of the importance ratio: each token, or each sequence (the geometric mean over its tokens)."""

    token = "token"
    sequence = "sequence"


class Surrogate(Enum):
    """Use of the importance ratio in the loss: clipping, a weight, a gate, a geometric mean, or a mask by probabilities."""

    clipped = "clipped"
    """PPO's objective: a ratio beyond the clip range in the direction of its advantage has no gradient."""
    masked = "masked"
    """The ratio, masked beyond the clip range whatever the sign of the advantage, so that such a token has no gradient."""
    cispo = "cispo"
    """The clipped ratio as a weight of the logprob, which masks no gradient."""
    sapo = "sapo"
    """A sigmoid of the ratio in place of the clip range: the gradient fades with the distance to 1."""
    gmpo = "gmpo"
    """The geometric mean of a sequence's ratios, each clipped as by PPO before the mean is taken."""
    ipo = "ipo"
    """The ratio, masked where trainer and sampler give a token probabilities more than `max_divergence` apart."""
    dppo_tv = "dppo_tv"
    """The ratio, masked where the probability has moved by more than `max_divergence` in the direction of the advantage."""
    dppo_kl = "dppo_kl"
    """The same with the binary KL divergence, between the token and all others, in place of the distance."""


PROBABILITY_MASKS = (Surrogate.ipo, Surrogate.dppo_tv, Surrogate.dppo_kl)
"""Surrogates that compare the trainer's probability of a token with the sampler's."""


class CriticPlace(Enum):
    """The weights that compute the values: none, a second model in the trainer, or a head on the policy itself."""

    none = "none"
    """No critic: advantages compare the rollouts of a group."""
    model = "model"
    """A second model that starts with the policy's weights, with a value head in place of the language model's."""
    frozen_attention = "frozen_attention"
    """The same model, whose attention keeps its first weights (SAO)."""
    trunk = "trunk"
    """A second head on the policy, whose layers get `gradient_scale` of the head's gradient."""


class Divergence(Enum):
    """The distance between the distributions of teacher and student at each sampled token."""

    reverse_kl = "reverse_kl"
    """KL(student ‖ teacher): the student gives up what the teacher would not say."""
    forward_kl = "forward_kl"
    """KL(teacher ‖ student): the student covers all that the teacher might say."""
    jensen_shannon = "jensen_shannon"
    """The generalized Jensen-Shannon divergence (arXiv 2306.13649, equation 1), which lies between the two."""


class TeacherPlace(Enum):
    """The place of a teacher's weights."""

    server = "server"
    """The served model of its name, which scores rollouts while others run; it may have any architecture."""
    trainer = "trainer"
    """Second weights in the trainer's ranks, under the student's layout, which score a batch before its update."""


class TeacherTerm(Enum):
    """The place of a divergence from a teacher in the objective."""

    advantage = "advantage"
    """log p(teacher) - log p(student) of the sampled token is its advantage: an estimate of the gradient of the reverse KL."""
    loss = "loss"
    """The divergence over likeliest tokens is a loss that is differentiated."""


class TopKOf(Enum):
    """The model whose likeliest tokens a divergence is computed over."""

    teacher = "teacher"
    """The teacher's likeliest tokens."""
    student = "student"
    """The student's, as it sampled."""


OWN_MODEL = (CriticPlace.model, CriticPlace.frozen_attention)
"""Places of a critic that has a model, an optimizer and a learning rate of its own."""


class Credit(Enum):
    """Assignment of a rollout's advantage to its samples: each gets all of it, or each gets an equal part."""

    share = "share"
    split = "split"


class Constraints(Enum):
    """Handling of constraints that an agent puts on the trained model over HTTP: structured output, forced calls.

    The trainer computes logprobs without these constraints.
    """

    free = "free"
    """Constraints are ignored: the model samples freely, and the agent gets the reply as it is."""
    record = "record"
    """Constraints are enforced, and the logprobs are those of free sampling. vLLM does not return these, so this is refused."""
    refuse = "refuse"
    """Constraints are refused in training and enforced in evaluations."""


class PromptStyle(Enum):
    """Length of the prompts: full ones with instructions, or tiny ones for tiny models that were trained on their fields."""

    full = "full"
    tiny = "tiny"


class Aggregation(Enum):
    """Units of equal weight in the loss: tokens, samples or rollouts; `constant` divides the sum over tokens by a constant.

    With `rollout`, all tokens of a rollout have the same weight. With `nested`, all samples of a rollout have the same weight,
    and so have all tokens of a sample.
    """

    token = "token"
    sample = "sample"
    rollout = "rollout"
    nested = "nested"
    constant = "constant"


class KLEstimator(Enum):
    """Estimators of KL(policy || reference) from sampled tokens (http://joschu.net/blog/kl-approx.html)."""

    k1 = "k1"
    k2 = "k2"
    k3 = "k3"
    low_var_kl = "low_var_kl"


class KLPlace(Enum):
    """The place of the KL divergence from the reference: a term of the loss, or a penalty on the reward of each token."""

    loss = "loss"
    reward = "reward"


class CorrectionMode(Enum):
    """Treatment of an importance weight outside its bounds: clamped to the bound (`truncate`) or set to 0 (`mask`)."""

    none = "none"
    truncate = "truncate"
    mask = "mask"


class CorrectionLevel(Enum):
    """The unit of an importance weight: a token, its sequence (the product) or the average token of it (geometric mean)."""

    token = "token"
    sequence = "sequence"
    geometric = "geometric"


class OldLogprobs(Enum):
    """Source of the logprobs in the denominator of the importance ratio."""

    engine = "engine"
    trainer = "trainer"


class LoraInit(Enum):
    """Initial values of a new adapter; the second matrix is always 0, so that the adapted model begins as its base."""

    kaiming = "kaiming"
    """The first matrix is uniform with a variance of one third of the inverse of its width, as in PEFT and Microsoft's LoRA."""
    gaussian = "gaussian"
    """The first matrix is normal, as in the paper (arXiv 2106.09685), with PEFT's standard deviation, the inverse of its rank."""


class LoraDelivery(Enum):
    """The form in which servers get the trained adapters."""

    merge = "merge"
    """Merged into the model's weights, and all weights are sent. Servers are as fast as without adapters."""
    adapter = "adapter"
    """The adapters alone, a small part of the bytes; servers compute with base and adapter, which is slower."""


class LoraTarget(Enum):
    """Matrices that get an adapter, by their names in Hugging Face's models: those of a layer, the embedding and the head."""

    q_proj = "q_proj"
    k_proj = "k_proj"
    v_proj = "v_proj"
    o_proj = "o_proj"
    gate_proj = "gate_proj"
    up_proj = "up_proj"
    down_proj = "down_proj"
    embed_tokens = "embed_tokens"
    lm_head = "lm_head"


class BadUpdate(Enum):
    """The response to a loss or gradient that is not finite: the run stops, or the update is skipped and counted."""

    stop = "stop"
    skip = "skip"


class RoutingReplay(Enum):
    """The experts that the update passes of a mixture-of-experts model use: the routers' own choice (`none`), those of the
    trainer's pass for the old logprobs (`trainer`: R2, arXiv 2507.18071), or those with which the servers sampled (`rollout`: R3,
    arXiv 2510.11370)."""

    none = "none"
    trainer = "trainer"
    rollout = "rollout"


class OnCollapse(Enum):
    """The response to an alarm that the policy is being lost: a warning, or the end of the run."""

    warn = "warn"
    stop = "stop"


class Precision(Enum):
    """Number format of weights and activations; the optimizer keeps float32."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class CpuProducts(Enum):
    """Library for float32 matrix products on the CPU: PyTorch's choice, oneDNN, or the faster one for the processor."""

    auto = "auto"
    pytorch = "pytorch"
    onednn = "onednn"


class Schedule(Enum):
    """Learning rate after the warm-up."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class WeightTransfer(Enum):
    """The way in which weights reach the servers; `auto` chooses by placement.

    Through files in shared memory (`shm`) or on a disk that all nodes see (`disk`), between processes on one GPU (`ipc`), between
    GPUs (`nccl`), or over the network without GPUs (`gloo`).
    """

    auto = "auto"
    shm = "shm"
    disk = "disk"
    ipc = "ipc"
    nccl = "nccl"
    gloo = "gloo"


class ModelAPI(Enum):
    """The API of a served model: token ids (vLLM), or messages, whose tokens remain unknown (OpenAI's chat API)."""

    tokens = "tokens"
    chat = "chat"


class Quantization(Enum):
    """The number format of the weights of a server's linear layers, and with it that of their inputs."""

    none = "none"
    """The run's precision (`trainer.precision`)."""
    int8 = "int8"
    """8-bit integers with a scale for each output, inputs with one for each token (W8A8), on a CPU; the trainer quantizes."""
    fp8_per_channel = "fp8_per_channel"
    """8-bit floats (E4M3) with a scale for each output, which the server quantizes again at every sync."""
    fp8_per_tensor = "fp8_per_tensor"
    """The same with one scale for each matrix, on GPUs."""
    fp8_per_block = "fp8_per_block"
    """The same with one scale for each block of 128 by 128 weights, on GPUs."""


class TrainedQuantization(Enum):
    """The number format in which the trainer's linear layers compute, rounded in the forward pass and trained through it."""

    none = "none"
    """The run's precision (`trainer.precision`)."""
    int8 = "int8"
    """8-bit integers with a scale for each output, inputs with one for each token, as servers have with `quantization: int8`."""
    int4 = "int4"
    """4-bit integers with a scale for 32 inputs of an output; servers get the weights that these represent."""


class Fp8Recipe(Enum):
    """The scaling of Transformer Engine's 8-bit floats, by Megatron-core's names."""

    none = "none"
    """No 8-bit floats: the run's precision."""
    delayed = "delayed"
    """A scale for each tensor, from the largest values of earlier steps."""
    tensorwise = "tensorwise"
    """A scale for each tensor, from the tensor itself."""
    blockwise = "blockwise"
    """A scale for 128 values of an input and for 128 by 128 of a weight (arXiv 2412.19437, section 3.3.2)."""


class KVCacheDtype(Enum):
    """The number format of keys and values in a server: that of its model, or 8-bit floats (E4M3)."""

    auto = "auto"
    fp8 = "fp8"


class SpeculationMethod(Enum):
    """The source of the tokens that a server drafts ahead and then checks with the model, all at once."""

    none = "none"
    ngram = "ngram"
    """The tokens that followed the last ones where prompt or reply had them before: no second model."""
    draft_model = "draft_model"
    """A smaller model of the same vocabulary, from a checkpoint of its own, which no sync changes."""
    early_exit = "early_exit"
    """The model's own first layers, with its norm and head (arXiv 2404.16710), which take the weights of every sync."""


class ServerRole(Enum):
    """The part of a request that a group of servers handles: all of it, the prompt (prefill), or the reply (decode)."""

    regular = "regular"
    prefill = "prefill"
    decode = "decode"


class RetrievalBackend(Enum):
    """The search method for passages: BM25 over words, or FAISS over embeddings."""

    bm25 = "bm25"
    faiss = "faiss"


class VectorSearch(Enum):
    """FAISS's search: over all vectors, some cells of an inverted file, compressed cells (IVF-PQ), or a graph (HNSW)."""

    flat = "flat"
    ivf = "ivf"
    ivf_pq = "ivf_pq"
    hnsw = "hnsw"


class Pooling(Enum):
    """Vector of a text from the hidden states of an encoder: the mean over its tokens, or that of the last token."""

    mean = "mean"
    last = "last"


class TrackerName(Enum):
    """The destination of metrics besides `metrics.jsonl`."""

    none = "none"
    wandb = "wandb"
    tensorboard = "tensorboard"
    mlflow = "mlflow"
    trackio = "trackio"


class RolloutDetail(Enum):
    """The detail in which each rollout and each item of an evaluation is written.

    `none` writes no rollouts, and for items only what scores need. `texts` writes messages and the last reply of each sample.
    `turns` adds the text of every turn as the model saw it. `tokens` adds the id, loss mask, logprobs of sampler and trainer, and
    weight version of every token.
    """

    none = "none"
    texts = "texts"
    turns = "turns"
    tokens = "tokens"


class Before(Enum):
    """The evaluation before training."""

    full = "full"
    one_run = "one_run"
    none = "none"
