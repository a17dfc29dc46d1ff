"""The typed configuration of a run: one dataclass per Hydra group, and `RunConfig` that holds them.

A field has its default, its range and its documentation; choices are files in `conf/`, recipes are files in `conf/experiment/`.
Every field is read somewhere outside this package (`make check` proves it). Nothing here imports torch, so `--help` is fast.
"""

from dataclasses import dataclass, field
from typing import Any

from vime.config.agent import (
    CurriculumConfig,
    DataConfig,
    DatasetConfig,
    LinearAttentionConfig,
    MethodConfig,
    ModelConfig,
    SessionConfig,
)
from vime.config.choices import (
    OWN_MODEL,
    PROBABILITY_MASKS,
    TRY,
    Aggregation,
    AlgorithmName,
    BadUpdate,
    Baseline,
    Before,
    Comparison,
    Constraints,
    CorrectionLevel,
    CorrectionMode,
    CpuProducts,
    Credit,
    CriticPlace,
    Divergence,
    Family,
    Fp8Recipe,
    KLEstimator,
    KLPlace,
    KVCacheDtype,
    LoraDelivery,
    LoraInit,
    LoraTarget,
    Mode,
    ModelAPI,
    Normalization,
    OldLogprobs,
    OnCollapse,
    Pooling,
    Precision,
    PromptStyle,
    Quantization,
    RatioLevel,
    RetrievalBackend,
    RolloutDetail,
    RoutingReplay,
    Schedule,
    ServerRole,
    SpeculationMethod,
    Surrogate,
    TeacherPlace,
    TeacherTerm,
    TopKOf,
    TrackerName,
    TrainedQuantization,
    TrialEngine,
    TurnCredit,
    VectorSearch,
    WeightTransfer,
)
from vime.config.generation import (
    ChatConfig,
    ElasticConfig,
    GatewayConfig,
    PastVersionsConfig,
    RolloutConfig,
    SamplingConfig,
    ServedModelConfig,
    ServerGroupConfig,
    ServingConfig,
    SpeculativeConfig,
)
from vime.config.infrastructure import (
    ClusterConfig,
    RetrievalConfig,
    RewardServiceConfig,
    SandboxConfig,
    ServiceConfig,
    WorkspaceConfig,
)
from vime.config.learning import (
    AlgorithmConfig,
    CorrectionConfig,
    CriticConfig,
    DistillationConfig,
    Fp8Config,
    LoraConfig,
    TeacherConfig,
    TrainerConfig,
)
from vime.config.measurement import EvaluationConfig, LoggerConfig, TrialConfig
from vime.config.ranges import Natural

__all__ = [
    "ACTOR",
    "CRITIC",
    "OWN_MODEL",
    "PROBABILITY_MASKS",
    "TRY",
    "Aggregation",
    "AlgorithmConfig",
    "AlgorithmName",
    "BadUpdate",
    "Baseline",
    "Before",
    "ChatConfig",
    "ClusterConfig",
    "Comparison",
    "Constraints",
    "CorrectionConfig",
    "CorrectionLevel",
    "CorrectionMode",
    "CpuProducts",
    "Credit",
    "CriticConfig",
    "CriticPlace",
    "CurriculumConfig",
    "DataConfig",
    "DatasetConfig",
    "DistillationConfig",
    "Divergence",
    "ElasticConfig",
    "EvaluationConfig",
    "Family",
    "Fp8Config",
    "Fp8Recipe",
    "GatewayConfig",
    "KLEstimator",
    "KLPlace",
    "KVCacheDtype",
    "LinearAttentionConfig",
    "LoggerConfig",
    "LoraConfig",
    "LoraDelivery",
    "LoraInit",
    "LoraTarget",
    "MethodConfig",
    "Mode",
    "ModelAPI",
    "ModelConfig",
    "Normalization",
    "OldLogprobs",
    "OnCollapse",
    "PastVersionsConfig",
    "Pooling",
    "Precision",
    "PromptStyle",
    "Quantization",
    "RatioLevel",
    "RetrievalBackend",
    "RetrievalConfig",
    "RewardServiceConfig",
    "RolloutConfig",
    "RolloutDetail",
    "RoutingReplay",
    "RunConfig",
    "SamplingConfig",
    "SandboxConfig",
    "Schedule",
    "ServedModelConfig",
    "ServerGroupConfig",
    "ServerRole",
    "ServiceConfig",
    "ServingConfig",
    "SessionConfig",
    "SpeculationMethod",
    "SpeculativeConfig",
    "Surrogate",
    "TeacherConfig",
    "TeacherPlace",
    "TeacherTerm",
    "TopKOf",
    "TrackerName",
    "TrainedQuantization",
    "TrainerConfig",
    "TrialConfig",
    "TrialEngine",
    "TurnCredit",
    "VectorSearch",
    "WeightTransfer",
    "WorkspaceConfig",
    "policies",
]


@dataclass(kw_only=True, slots=True)
class RunConfig:
    """All settings of one run."""

    mode: Mode = Mode.train
    """Task of the program: train, evaluate, show the plan of a run without starting it, or try one prompt without a trainer."""
    name: str = "run"
    """Name of the run and of its folder under `outputs/`."""
    seed: Natural = 0
    """Seed of the order of the prompts and of every other random choice of the run."""
    deterministic: bool = False
    """True if two runs with the same configuration and seed give the same tokens, rewards and weights on one machine. Generation
    is slower, and settings whose results depend on time or on external servers are refused."""
    rehearse: bool = False
    """Rehearses the run on this machine, without GPUs: its own code, prompts and lengths with a random small model of the
    same family, two items of each data set, two steps and scripted replies. `mode=plan` shows the details."""
    resume: bool = False
    """Continues the newest run of this name in `outputs/` from its last checkpoint."""
    output_dir: str | None = None
    """Folder of the run; null takes a new folder `outputs/<name>/<time>`."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The trained model."""
    method: MethodConfig = field(default_factory=MethodConfig)
    """The agent: how a rollout is generated and scored."""
    data: DataConfig = field(default_factory=DataConfig)
    """Training prompts and evaluation sets."""
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """The training objective."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """Optimizer, parallelism, batching, checkpoints."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """Batches of rollouts, their sampling and their limits."""
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    """The gateway, through which agents call models over HTTP."""
    serving: ServingConfig = field(default_factory=ServingConfig)
    """Served models, router, health limits."""
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    """Limits of programs that agents run."""
    workspace: WorkspaceConfig = field(default_factory=WorkspaceConfig)
    """Limits of workspaces, in which agents work on a repository."""
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)
    """The retrieval service."""
    reward_service: RewardServiceConfig = field(default_factory=RewardServiceConfig)
    """An external reward service."""
    service: ServiceConfig = field(default_factory=ServiceConfig)
    """The training service."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Machines and GPUs."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """The evaluation protocol."""
    trial: TrialConfig = field(default_factory=TrialConfig)
    """The trial of an agent on one prompt (`mode=try`)."""
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    """Metrics trackers, rollout files and traces."""
    adapters: dict[str, Any] = field(default_factory=dict)
    """Several adapters (LoRA) trained at once on the same model and servers, by name. Each has the words that its run adds to
    this one: `'+adapters.mine="+method=NAME trainer.lr=1e-3"'`. Composed, a value is a `RunConfig`."""


ACTOR = "actor"
"""The name of the trained policy where there is one."""
CRITIC = "critic"
"""The name of the weights of a critic with a model of its own (`algorithm.critic`)."""


def policies(config: RunConfig) -> dict[str, RunConfig]:
    """The configuration of each trained policy by its name: one for each of `adapters`, or the run's own."""
    return config.adapters or {ACTOR: config}
