"""What stands around learning and generation: sandbox, retrieval, machines, evaluation, logging."""

from dataclasses import dataclass, field

from vime.config.choices import Before, Pooling, RetrievalBackend, Tracker, VectorSearch, WeightTransfer


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
class RewardServiceConfig:
    """A service over HTTP that scores rollouts; `method.reward=vime.reward_service.hook.reward` asks it."""

    url: str | None = None
    """Where batches are posted, for example https://host/score."""
    api_key_variable: str | None = None
    """The environment variable that holds the key, sent as `Authorization: Bearer …`; None sends none."""
    max_batch_size: int = 16
    """Rollouts in one request."""
    max_batch_wait_seconds: float = 0.05
    """How long the first rollout of a batch waits for others."""
    max_concurrent_requests: int = 16
    """Shared evenly by the rollout workers, at least one each."""
    max_requests_per_minute: float | None = None
    """Shared evenly by the rollout workers; None is without limit."""
    request_timeout_seconds: float = 15.0
    """One request; all attempts together must fit into `rollout.reward_timeout_seconds`."""
    max_retries: int = 2
    """New attempts after 408, 409, 425, 429, 5xx, a lost connection or the time limit, with growing waits between them."""
    max_pending: int = 1024
    """Rollouts of one rollout worker that wait for a request or are in one; the next ones wait before them."""


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
    """Address that servers listen on; 0.0.0.0 is on each node the one by which Ray knows it. Beyond the loopback servers, router
    and retrieval service answer only with the run's secret."""


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
    before: Before = Before.full
    """What is measured before training. `full` measures every row but `trained`, for the table. `one_run` scores the untrained
    scaffold once per data set, beside the first batch: it begins the curve of the scores and enters no table. `none` measures
    nothing. What the table lacks then, a run with `mode=eval` measures."""
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
    max_rollouts_bytes: int = 20 * 2**30
    """Of these files together; those of the first steps are removed for later ones."""
    trace_share: float = 0.02
    """Share of groups whose timelines go into `trace.json`, for Perfetto; the driver's own is always there, unless this is 0."""
    max_trace_bytes: int = 256 * 2**20
    """Of `trace.json` and its earlier parts together; the oldest part is removed for new events."""
