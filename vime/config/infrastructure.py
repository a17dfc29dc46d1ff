"""Sandbox, workspace, retrieval, reward service, training service and cluster."""

from dataclasses import dataclass, field
from typing import Annotated

from vime.config.choices import Pooling, RetrievalBackend, VectorSearch, WeightTransfer
from vime.config.ranges import Count, Natural, NonNegative, Port, Positive, Range

SandboxMemory = Annotated[int, Range(least=32 * 2**20, why="Python itself needs 32 MiB")]
WorkspaceMemory = Annotated[int, Range(least=64 * 2**20, why="a shell, Python and git need 64 MiB")]
WorkspaceDisk = Annotated[int, Range(least=2**20, why="an empty workspace already needs some of it")]
WorkspaceProcesses = Annotated[int, Range(least=8, why="git and a pipeline need a few")]
WorkspaceFiles = Annotated[int, Range(least=1000, why="folders and changed files count as well")]


@dataclass(kw_only=True, slots=True)
class SandboxConfig:
    """Limits of a program that an agent runs in a sandbox (`vime.agent.sandbox`)."""

    wall_seconds: Positive = 30.0
    """Wall-clock limit of a program."""
    cpu_seconds: Positive = 20.0
    """CPU time limit per process."""
    memory_bytes: SandboxMemory = 512 * 2**20
    """Memory limit of each process, and of all processes of a program together."""
    num_processes: Count = 32
    """Processes and threads of a program at one time."""
    file_bytes: Count = 16 * 2**20
    """Size limit of one file; all files of a program in its /tmp may take four times as much."""
    output_characters: Count = 4000
    """Characters that are kept of stdout, from its start, and of stderr, up to its end; a program that writes more is ended."""
    packages: list[str] = field(default_factory=lambda: ["mpmath", "numpy", "sympy"])
    """Installed packages that programs may import besides the standard library; packages that are not installed are left out."""
    allow_unsandboxed: bool = False
    """True if programs may run as ordinary processes of this user, with its files and its network, where no sandbox can run."""


@dataclass(kw_only=True, slots=True)
class WorkspaceConfig:
    """Limits of a workspace, in which an agent works on a repository for a whole rollout (`vime.agent.workspace`)."""

    command_seconds: Positive = 120.0
    """Wall-clock limit of a command that sets none itself."""
    life_seconds: Positive = 3600.0
    """Lifetime of a workspace. Afterwards it runs no more commands, but its changes can still be read."""
    memory_bytes: WorkspaceMemory = 2 * 2**30
    """Memory limit of all processes together."""
    disk_bytes: WorkspaceDisk = 512 * 2**20
    """Size limit of all written or changed files together, including those in /tmp and /dev/shm. They are kept in memory."""
    num_files: WorkspaceFiles = 100_000
    """Maximum number of files and folders that are created or changed."""
    num_processes: WorkspaceProcesses = 256
    """Processes and threads at one time."""
    output_bytes: Count = 256 * 2**10
    """Bytes that are kept of each of stdout and stderr, half from the beginning and half from the end. A command that writes 64
    times as much is ended."""
    diff_bytes: Count = 2 * 2**20
    """Largest patch that `diff` returns."""
    num_workspaces: Count = 64
    """Workspaces at one time on a node; further rollouts wait."""
    num_commands: Count | None = None
    """Commands at one time on a node; null takes twice as many as there are cores."""
    packages: list[str] = field(
        default_factory=lambda: [
            *("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments"),
            *("exceptiongroup", "tomli", "typing_extensions"),
        ],
    )
    """Installed packages that the workspace's Python may import besides the standard library; those that are not installed are
    left out."""
    visible: list[str] = field(default_factory=list)
    """Further files and folders of the host that can be read inside, at the same paths."""
    cache_folder: str | None = None
    """Folder that keeps prepared repositories for later runs; null takes `~/.cache/vime/workspaces`."""


@dataclass(kw_only=True, slots=True)
class RetrievalConfig:
    """The retrieval service; none is used without `corpus`, `generator` or `url`."""

    corpus: str | None = None
    """JSONL file of passages, one {"id", "title", "text"} per line."""
    generator: str | None = None
    """Dotted path of a function without arguments that returns the passages, in place of `corpus`; they are kept in the run
    folder."""
    url: str | None = None
    """Address of a retrieval service that is already running; vime then starts none."""
    backend: RetrievalBackend = RetrievalBackend.bm25
    """The search method for passages."""
    search: VectorSearch = VectorSearch.flat
    """The way in which FAISS searches its index."""
    embedding: str = "hashed"
    """Embedding for FAISS: `hashed` (TF-IDF of hashed n-grams under a random projection, which needs no model), the Hugging Face
    id or folder of an encoder, or the name of a model at `embedding_url`."""
    embedding_url: str | None = None
    """Address of a server with OpenAI's embeddings API, such as vLLM's."""
    embedding_dimensions: Annotated[int, Range(least=8, most=8192)] = 512
    """Dimensions of `embedding=hashed`; an encoder has its own."""
    pooling: Pooling = Pooling.mean
    """The way in which an encoder that the service loads turns its hidden states into one vector."""
    query_instruction: str = ""
    """Text put before each query, for encoders that were trained with one."""
    passage_instruction: str = ""
    """Text put before each passage, for encoders that were trained with one (E5: `passage: `)."""
    index_folder: str | None = None
    """Folder that keeps the index for later runs with the same corpus and settings; null takes the run folder."""
    topk: Annotated[int, Range(least=1, most=1000)] = 5
    """Passages per query where the request gives no number."""
    port: Port = 0
    """Port of the service; 0 takes a free one."""
    num_threads: Annotated[int, Range(least=1, most=1024)] = 1
    """CPU threads of FAISS."""
    start_timeout_seconds: Positive = 600.0
    """Time limit for the start of the service, including the time to build the index."""
    request_timeout_seconds: Positive = 15.0
    """Time limit of a search, with new attempts if the service is lost."""

    @property
    def is_started(self) -> bool:
        """True if the run starts a service of its own."""
        return self.url is None and (self.corpus is not None or self.generator is not None)

    @property
    def is_there(self) -> bool:
        """True if hooks can search."""
        return self.url is not None or self.is_started


@dataclass(kw_only=True, slots=True)
class RewardServiceConfig:
    """An HTTP service that scores rollouts; it is called by `method.reward=vime.reward_service.hook.reward`."""

    url: str | None = None
    """Address to which batches are posted, for example https://host/score."""
    api_key_variable: str | None = None
    """Environment variable that holds the key, which is sent as `Authorization: Bearer …`; null sends none."""
    max_batch_size: Count = 16
    """Maximum number of rollouts in one request."""
    max_batch_wait_seconds: NonNegative = 0.05
    """Longest time for which the first rollout of a batch waits for further ones."""
    max_concurrent_requests: Count = 16
    """Requests at a time, shared evenly by the rollout workers; each worker may send at least one."""
    max_requests_per_minute: Positive | None = None
    """Rate limit of the service, shared evenly by the rollout workers; null sets no limit."""
    request_timeout_seconds: Positive = 15.0
    """Time limit of one request; all attempts together must fit into `rollout.reward_timeout_seconds`."""
    max_retries: Natural = 2
    """New attempts after 408, 409, 425, 429, 5xx, a lost connection or the time limit, with growing waits between them."""
    max_pending: Count = 1024
    """Rollouts of one rollout worker in requests or queued for one; further rollouts wait until there is room."""


@dataclass(kw_only=True, slots=True)
class ServiceConfig:
    """The training service (`python -m vime.service`), with which clients train models over HTTP."""

    host: str = "127.0.0.1"
    """Address that it listens on. Beyond this machine it needs API keys, in the environment variable VIME_SERVICE_KEYS."""
    port: Port = 8930
    """Port that it listens on; 0 takes a free one, which the log names."""
    model_names: list[str] = field(default_factory=list)
    """Further names by which clients may ask for the model, for example one whose chat format their library knows."""
    max_models: Count = 8
    """Models that are trained at the same time, by all clients together; with trainer.lora.rank=0 it is one."""
    num_samplers: Count = 4
    """Adapters that the servers hold at the same time. Further ones are loaded again when they are asked for. With
    trainer.lora.rank=0 the servers hold one model."""
    session_timeout_seconds: Positive = 120.0
    """Silence of a client after which its session ends, and its models are freed; checkpoints stay."""
    max_request_bytes: Count = 64 * 2**20
    """Size limit of a request, also of its content where it is compressed."""
    key_models: Count | None = None
    """Models that one API key may train at the same time; null sets no limit beside that of all together."""
    key_tokens_per_minute: Count | None = None
    """Tokens of one API key in a minute: those of training data and prompts, and those that replies may have. Beyond it a call is
    answered with status 429, at which the SDK makes it again later."""
    key_disk_bytes: Count | None = None
    """Size of all checkpoints of one API key; beyond it nothing is saved for that key until it has removed some."""
    deterministic: bool = False
    """True if the same requests give the same bits on one machine, whatever other clients do and also after a loss of trainer or
    servers; requests bring their seeds. Servers then compute one request at a time."""


@dataclass(kw_only=True, slots=True)
class ClusterConfig:
    """The machines, and how trainer and servers share them."""

    name: str = "laptop"
    """Name of the cluster in plans and logs."""
    num_nodes: Count = 1
    """Number of machines."""
    gpus_per_node: Natural = 0
    """GPUs of each machine; 0 runs everything on CPUs."""
    colocated: bool = True
    """True if trainer and servers share the GPUs and take turns."""
    num_trainer_gpus: Natural = 0
    """GPUs for the trainer."""
    num_server_gpus: Natural = 0
    """GPUs for servers; 0 on a cluster with GPUs means that the servers are already running elsewhere."""
    num_frozen_gpus: Natural = 0
    """Number of server GPUs, counted from the last one, that are reserved for frozen models. With 0, frozen models share the GPUs
    of the trained one."""
    share_frozen_gpus: bool = False
    """True if several frozen servers may share one GPU where there are more of them than GPUs; `gpu_memory_utilization` divides
    its memory."""
    gpu_memory_gib: Positive = 79.6
    """Memory of one GPU in GiB, for plans and checks; the default is that of an H100 with 80 GB (81,559 MiB)."""
    weight_transfer: WeightTransfer = WeightTransfer.auto
    """The way in which weights travel from the trainer to the servers."""
    num_delta_syncs: Natural = 0
    """Syncs in a row that send differences from the version before, compressed, where weights travel in files; the next one sends
    the whole version. 0 sends all of them whole. Trainer and each process of a server keep the bytes of a version in memory."""
    ray_address: str | None = None
    """Address of a running Ray cluster; null starts one for this run."""
    keep_warm: Natural = 0
    """Seconds for which Ray, the servers and the trainer are kept after a successful run. The next run from the same folder takes
    over the parts that it would start in the same way. 0 ends them with the run, together with any that are still kept. Runs of a
    sweep always hand them on."""
    host: str = "127.0.0.1"
    """Address that servers listen on; 0.0.0.0 means on each node the address by which Ray knows it. On any address but the
    loopback one, servers, router and retrieval service answer only to the secret of the run."""
