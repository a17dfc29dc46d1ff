"""The typed configuration of a run: one dataclass per Hydra group, and `RunConfig` that holds them.

The default lives on the field, the choice in `conf/`, the recipe in `conf/experiment`, today's wish on the command line.
Every field is read somewhere outside this module (a test holds it). Nothing here imports torch, so `--help` stays quick.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from vime.errors import Problem


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
    reward: str = ""
    """`async reward(context, samples) -> float | Reward`: one rollout's samples."""
    group_reward: str | None = None
    """`async group_reward(context, group) -> list[Reward]`: optional, compares the rollouts of a group."""
    eval_log: str | None = None
    """`eval_log(context, results) -> EvalLog`: optional metrics and figures of an evaluation."""
    single_turn: str = "vime.rollout.single_turn.generate"
    """The baseline row: the model asked once, without the scaffold; same signature as `generate`."""
    credit: Credit = Credit.share

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
    """The objective. Defaults are GRPO's (arXiv 2402.03300) averaged over tokens, with clip-higher off."""

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
    """Dotted path of `advantage(config, groups) -> dict[rollout_id, float]` instead of the built-in one."""
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
    """CPU threads of one trainer rank; 0 lets PyTorch choose."""
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


@dataclass(kw_only=True, slots=True)
class RolloutConfig:
    """Generation: batch, sampling, staleness, limits."""

    num_prompts: int = 16
    """Groups in a batch."""
    num_samples_per_prompt: int = 8
    """Rollouts in a group."""
    temperature: float = 1.0
    top_p: float = 1.0
    max_staleness: int = 0
    """Weight versions a token may lie behind when it is trained; 0 is synchronous and on-policy."""
    in_flight_updates: bool = True
    """A sync changes the weights between two tokens; False holds new model calls back until those in flight have ended."""
    num_oversampled_prompts: int = 0
    """Groups started beyond `num_prompts`: a batch is the first `num_prompts` to finish."""
    num_oversampled_samples_per_prompt: int = 0
    """Rollouts of a group started beyond `num_samples_per_prompt`: the last to finish are aborted."""
    journal: bool = True
    """Finished groups go to disk as they finish, so that a killed run that is resumed does not generate them again; False saves
    the space of `max_staleness + 1` batches with their tokens per checkpoint."""
    partial_rollouts: bool = False
    """Groups that did not make a batch go on in the next, and nothing else is started ahead of it."""
    num_workers: int = 1
    max_concurrent_rollouts: int = 256
    """Per worker."""
    generate_timeout_seconds: float = 600.0
    """One attempt at a rollout, tools included; what runs longer is the agent's fault and scores 0."""
    max_retries: int = 2
    """New attempts at a rollout after an infrastructure failure."""
    reward_timeout_seconds: float = 60.0
    max_reward_retries: int = 1
    """New calls of a reward that raised or ran too long; the rollout is kept."""
    tool_timeout_seconds: float = 60.0
    max_tool_retries: int = 1
    """New calls of a tool (`vime.rollout.tool.run_tool`) that failed for another reason than its arguments."""
    sandbox_timeout_seconds: float = 120.0
    max_sandbox_retries: int = 2
    """New calls of a sandbox (`vime.rollout.tool.run_sandbox`) before the rollout counts as an infrastructure failure."""
    max_blocked_seconds: float = 60.0
    """A hook that blocks the worker's event loop is interrupted after this time; after twice that the worker is replaced."""
    min_rollouts_per_group: int = 1
    """A group with fewer rollouts in its baseline gets new ones in place of those that failed."""
    max_group_repeats: int = 3
    """How often a group is completed so; then its prompt is given up for another."""
    max_infrastructure_failure_share: float = 0.3
    """Above this share of a batch the run stops with the cause."""
    function: str | None = None
    """Dotted path of `async function(context, prompt, num_rollouts) -> Group` instead of the built-in orchestration."""
    filter: str | None = None
    """Dotted path of `filter(config, group) -> bool`: False drops the group and draws another prompt. DAPO's dynamic sampling is
    `vime.algorithm.filter.dynamic_sampling`."""
    max_filtered_share: float = 0.9
    """Once `4 * num_prompts` groups were needed for one batch and more than this share was filtered, the run stops."""


@dataclass(kw_only=True, slots=True)
class ServerGroupConfig:
    """Servers of a model that differ from its others; what is None is the model's."""

    role: ServerRole = ServerRole.regular
    num_replicas: int = 1
    port: int = 0
    tensor_parallel_size: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    vllm_args: dict[str, Any] = field(default_factory=dict)
    """Added to the model's, and wins."""


@dataclass(kw_only=True, slots=True)
class ChatConfig:
    """An endpoint with OpenAI's chat API that others run."""

    api_key_variable: str | None = None
    """The environment variable that holds the key; None sends none."""
    max_requests_per_minute: float | None = None
    """Shared evenly by the rollout workers; None is without limit."""
    max_concurrent_requests: int = 32
    """Shared evenly by the rollout workers, at least one each."""
    request_timeout_seconds: float = 120.0
    max_retries: int = 5
    """New attempts after 408, 409, 429, 5xx, a lost connection or the time limit, with growing waits between them."""
    dollars_per_million_input_tokens: float = 0.0
    dollars_per_million_output_tokens: float = 0.0
    body: dict[str, Any] = field(default_factory=dict)
    """Added to every request, for example `reasoning_effort: low`."""


@dataclass(kw_only=True, slots=True)
class ServedModelConfig:
    """One model behind one address."""

    checkpoint: str | None = None
    """Hugging Face id or folder; None is the trained model's."""
    urls: list[str] = field(default_factory=list)
    """Addresses of servers that run already; vime then starts none."""
    served_name: str | None = None
    """The model's name on those servers; None is its name here."""
    api: ModelAPI = ModelAPI.tokens
    chat: ChatConfig = field(default_factory=ChatConfig)
    """For `api=chat`, whose one address in `urls` is like https://host/v1."""
    trained: bool = False
    num_replicas: int = 1
    groups: dict[str, ServerGroupConfig] = field(default_factory=dict)
    """Groups of servers by name, instead of `num_replicas` alike."""
    port: int = 0
    """First port (replica i listens on port + i); 0 takes free ones."""
    tensor_parallel_size: int = 1
    max_model_len: int = 8192
    max_num_seqs: int = 256
    gpu_memory_utilization: float = 0.8
    """Share of the GPU's memory, or on a CPU of the main memory, for weights and KV cache."""
    vllm_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of vLLM's server, passed unchanged: `block_size: 32` becomes `--block-size 32`."""


@dataclass(kw_only=True, slots=True)
class ServingConfig:
    """The served models by name, their router, and what keeps them healthy."""

    models: dict[str, ServedModelConfig] = field(default_factory=lambda: {"actor": ServedModelConfig(trained=True)})
    router_policy: str = "consistent_hash"
    router_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of vllm-router, passed unchanged."""
    start_timeout_seconds: float = 300.0
    request_timeout_seconds: float = 300.0
    health_interval_seconds: float = 2.0
    health_failures: int = 5
    """Failed health checks in a row after which a server is restarted."""
    engine_timeout_seconds: float = 120.0
    """How long a server's engine may be silent before the server is restarted; longer than its longest step."""
    max_restarts: int = 3
    """Restarts of one server in a run before the run gives up."""
    recovery_timeout_seconds: float = 300.0
    """How long a request waits for a lost server, from when it finds it lost, before its rollout counts as failed."""
    keep_cache: bool = False
    """A sync leaves keys and values of the old weights to what was started under them: less is computed again, and logprobs of
    what goes on then differ from the trainer's (`train/logprob_difference_*`). Needs `rollout.max_staleness` of 1 or more."""
    probe_tolerance: float | None = None
    """Largest difference between server and trainer logprobs after a sync; None is 1e-4 in float32 and 0.1 in bfloat16."""


@dataclass(kw_only=True, slots=True)
class SandboxConfig:
    """What a program of an agent may use (`vime.agent.sandbox`)."""

    wall_seconds: float = 30.0
    cpu_seconds: float = 20.0
    """Of one process."""
    memory_bytes: int = 512 * 2**20
    """Of each process, and of all together."""
    num_processes: int = 32
    """Processes and threads at one time."""
    file_bytes: int = 16 * 2**20
    """Size of one file; all files in its /tmp may have four times as much."""
    output_characters: int = 4000
    """Of stdout, from its start, and of stderr, to its end; a program that writes more is ended."""
    packages: list[str] = field(default_factory=lambda: ["mpmath", "numpy", "sympy"])
    """Installed packages that programs may import besides the standard library; those that are not installed are left out."""
    allow_unsandboxed: bool = False
    """Where no sandbox can run, programs run as ordinary processes of this user, with its files and its network."""


@dataclass(kw_only=True, slots=True)
class RetrievalConfig:
    """The retrieval service; there is none without `corpus` or `url`."""

    corpus: str | None = None
    """JSONL of passages, {"id", "title", "text"} a line."""
    generator: str | None = None
    """Dotted path of a function of no arguments that returns passages, in place of `corpus`; the run folder keeps them."""
    url: str | None = None
    """Address of a service that runs already; vime then starts none."""
    backend: RetrievalBackend = RetrievalBackend.bm25
    search: VectorSearch = VectorSearch.flat
    embedding: str = "hashed"
    """For FAISS: `hashed` (TF-IDF of hashed n-grams, projected at random; needs no model), or an encoder: the Hugging Face id or
    folder of one that the service loads, or its name at `embedding_url`."""
    embedding_url: str | None = None
    """Address of a server with OpenAI's embeddings API (vLLM's, for example)."""
    embedding_dimensions: int = 512
    """Of `embedding=hashed`; an encoder has its own."""
    pooling: Pooling = Pooling.mean
    """Of an encoder that the service loads."""
    query_instruction: str = ""
    """Put before each query, not before passages, where an encoder was trained so."""
    index_folder: str | None = None
    """Where the index is kept, to be read again by later runs of the same corpus and settings; None is the run folder."""
    topk: int = 5
    """Passages per query where the request does not say."""
    port: int = 0
    """0 takes a free one."""
    num_threads: int = 1
    """Of FAISS."""
    start_timeout_seconds: float = 600.0
    """Building the index included."""
    request_timeout_seconds: float = 15.0
    """How long a search may take, new attempts at a service that was lost included."""

    @property
    def is_started(self) -> bool:
        """Whether the run has a service of its own."""
        return self.url is None and (self.corpus is not None or self.generator is not None)

    @property
    def is_there(self) -> bool:
        """Whether hooks can search."""
        return self.url is not None or self.is_started


@dataclass(kw_only=True, slots=True)
class ClusterConfig:
    """Where things run."""

    name: str = "laptop"
    num_nodes: int = 1
    gpus_per_node: int = 0
    colocated: bool = True
    """Trainer and servers share the GPUs and take turns."""
    num_trainer_gpus: int = 0
    num_server_gpus: int = 0
    num_frozen_gpus: int = 0
    """The last of the GPUs for servers, kept for models that are not trained; 0 lets those share the GPUs of the trained one."""
    share_frozen_gpus: bool = False
    """Frozen servers that are more than their GPUs take them in turn, several on one GPU; `gpu_memory_utilization` divides it."""
    gpu_memory_gib: float = 80.0
    """Memory of one GPU, for the plan."""
    weight_transfer: WeightTransfer = WeightTransfer.auto
    ray_address: str | None = None
    """Address of a running Ray cluster; None starts one for this run."""
    host: str = "127.0.0.1"
    """Address that servers listen on."""


@dataclass(kw_only=True, slots=True)
class EvaluationConfig:
    """The evaluation protocol, the same for all rows of a table."""

    num_runs: int = 3
    temperature: float = 1.0
    top_p: float = 1.0
    rows: list[str] = field(default_factory=lambda: ["single_turn", "scaffold", "trained"])
    """Which rows to measure: the base model asked once, the untrained scaffold, the trained scaffold. `single_turn@NAME` and
    `scaffold@NAME` ask another model of `serving.models` instead, a baseline under the same sampling. With `mode=eval`, `trained`
    is what `scaffold` measures, under the name that fits a trained checkpoint."""
    extra_temperatures: list[float] = field(default_factory=list)
    """The untrained scaffold is scored at these as well (one run each), so that a gain is not a matter of sampling."""
    pass_at: list[int] = field(default_factory=list)
    """Values of k, at most `num_runs`: also reports the share of items solved at least once in k runs (pass@k) and every time
    (pass^k)."""
    max_concurrent_items: int = 256


@dataclass(kw_only=True, slots=True)
class LoggerConfig:
    """Where metrics go besides the run folder. Keys come from the environment."""

    tracker: Tracker = Tracker.none
    project: str = "vime"
    offline: bool = False
    save_rollouts: bool = True
    """Write every step's rollouts as JSONL."""
    trace_share: float = 0.02
    """Share of groups whose timelines go into `trace.json`, for Perfetto; the driver's own is always there, unless this is 0."""


@dataclass(kw_only=True, slots=True)
class RunConfig:
    """One run."""

    mode: Mode = Mode.train
    name: str = "run"
    """Folder under `outputs/`."""
    seed: int = 0
    resume: bool = False
    """Continue the run in `outputs/<name>` that was started last, from its last checkpoint."""
    output_dir: str | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    data: DataConfig = field(default_factory=DataConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    serving: ServingConfig = field(default_factory=ServingConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
