"""What a setting with a fixed set of values can be: one enumeration each, its members' names as they stand in YAML."""

from enum import Enum


class Mode(Enum):
    """What the program does."""

    train = "train"
    eval = "eval"
    plan = "plan"


class Family(Enum):
    """Architectures with a Megatron bridge."""

    qwen2 = "qwen2"
    qwen3 = "qwen3"
    qwen3_moe = "qwen3_moe"
    llama = "llama"


class AlgorithmName(Enum):
    """Training objectives by name; `conf/algorithm/<name>.yaml` names the paper and says what each is made of."""

    paper = "paper"
    """What the method's paper uses, as a recipe or the command line may have changed it."""
    slime_agentic = "slime_agentic"
    """What slime-agentic's public reproduction of the method uses."""
    custom = "custom"
    """Options of your own choice."""
    grpo = "grpo"
    dr_grpo = "dr_grpo"
    dapo = "dapo"
    rloo = "rloo"
    gspo = "gspo"
    cispo = "cispo"
    reinforce_plus_plus = "reinforce_plus_plus"
    reinforce_plus_plus_baseline = "reinforce_plus_plus_baseline"
    sft = "sft"


class Baseline(Enum):
    """What is subtracted from a rollout's reward: its group's mean, the mean of the others in its group, or nothing."""

    mean = "mean"
    leave_one_out = "leave_one_out"
    none = "none"


class Normalization(Enum):
    """What divides the centred reward of a group: its standard deviation, or nothing."""

    std = "std"
    none = "none"


class RatioLevel(Enum):
    """Of what the importance ratio is: of each token, or of its whole sequence (the geometric mean of the tokens')."""

    token = "token"
    sequence = "sequence"


class Surrogate(Enum):
    """What the ratio does in the loss: PPO's clipped objective, or CISPO's clipped weight that stops no gradient."""

    clipped = "clipped"
    cispo = "cispo"


class Credit(Enum):
    """How a rollout's advantage is spread onto its samples: whole to each, or divided by their number."""

    share = "share"
    split = "split"


class PromptStyle(Enum):
    """The prompts' length: for models that read instructions, or for tiny ones that have learned the fields by heart."""

    full = "full"
    tiny = "tiny"


class Aggregation(Enum):
    """What is averaged with equal weight: tokens, samples or rollouts; `constant` sums tokens and divides by a constant."""

    token = "token"
    sample = "sample"
    rollout = "rollout"
    constant = "constant"


class KLEstimator(Enum):
    """Estimators of KL(policy || reference) from sampled tokens (http://joschu.net/blog/kl-approx.html)."""

    k1 = "k1"
    k2 = "k2"
    k3 = "k3"
    low_var_kl = "low_var_kl"


class KLPlace(Enum):
    """Where the KL to the reference stands: a term of the loss, or a penalty on the reward of each token."""

    loss = "loss"
    reward = "reward"


class CorrectionMode(Enum):
    """What becomes of an importance weight outside its bounds: moved to the bound, or set to 0."""

    none = "none"
    truncate = "truncate"
    mask = "mask"


class CorrectionLevel(Enum):
    """Of what the importance weight is: of a token, of its sequence (the product), or of its average token (geometric)."""

    token = "token"
    sequence = "sequence"
    geometric = "geometric"


class OldLogprobs(Enum):
    """Whose logprobs stand in the denominator of the importance ratio."""

    engine = "engine"
    trainer = "trainer"


class BadUpdate(Enum):
    """What follows if a loss or gradient is not finite: the run stops, or the update is skipped and counted."""

    stop = "stop"
    skip = "skip"


class Precision(Enum):
    """Number format of weights and activations; the optimizer keeps float32."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class CpuProducts(Enum):
    """Which library multiplies float32 matrices on the CPU: PyTorch's own choice, oneDNN, or what suits the processor."""

    auto = "auto"
    pytorch = "pytorch"
    onednn = "onednn"


class Schedule(Enum):
    """Learning rate after the warm-up."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class WeightTransfer(Enum):
    """How weights reach the servers; `auto` chooses by placement.

    Files in shared memory (`shm`) or on a disk that all nodes see (`disk`); from process to process on one GPU (`ipc`), between
    GPUs (`nccl`), or over the network without GPUs (`gloo`).
    """

    auto = "auto"
    shm = "shm"
    disk = "disk"
    ipc = "ipc"
    nccl = "nccl"
    gloo = "gloo"


class ModelAPI(Enum):
    """How a served model is asked: with token ids (vLLM's), or with messages, whose tokens are not seen (OpenAI's)."""

    tokens = "tokens"
    chat = "chat"


class ServerRole(Enum):
    """What a group of servers does: all of a request, or only reading its prompt, or only writing its reply."""

    regular = "regular"
    prefill = "prefill"
    decode = "decode"


class RetrievalBackend(Enum):
    """What finds passages: BM25 over words, or FAISS over embeddings."""

    bm25 = "bm25"
    faiss = "faiss"


class VectorSearch(Enum):
    """How FAISS searches: all vectors, some cells of an inverted file, or a graph of neighbours (HNSW)."""

    flat = "flat"
    ivf = "ivf"
    hnsw = "hnsw"


class Pooling(Enum):
    """Which hidden states of an encoder make the vector of a text: the mean over its tokens, or the last token's."""

    mean = "mean"
    last = "last"


class Tracker(Enum):
    """Where metrics go besides `metrics.jsonl`."""

    none = "none"
    wandb = "wandb"


class Before(Enum):
    """What is evaluated before training."""

    full = "full"
    one_run = "one_run"
    none = "none"
