"""The typed configuration of a run: one dataclass per Hydra group, and `RunConfig` that holds them.

The default lives on the field, the choice in `conf/`, the recipe in `conf/experiment`, today's wish on the command line.
Every field is read somewhere outside this package (`make check` proves it). Nothing here imports torch, so `--help` stays quick.
"""

from dataclasses import dataclass, field

from vime.config.choices import (
    Aggregation,
    AlgorithmName,
    BadUpdate,
    Baseline,
    Before,
    CorrectionLevel,
    CorrectionMode,
    CpuProducts,
    Credit,
    Family,
    KLEstimator,
    KLPlace,
    Mode,
    ModelAPI,
    Normalization,
    OldLogprobs,
    Pooling,
    Precision,
    PromptStyle,
    RatioLevel,
    RetrievalBackend,
    Schedule,
    ServerRole,
    Surrogate,
    Tracker,
    VectorSearch,
    WeightTransfer,
)
from vime.config.generation import (
    ChatConfig,
    RolloutConfig,
    SamplingConfig,
    ServedModelConfig,
    ServerGroupConfig,
    ServingConfig,
)
from vime.config.learning import (
    AlgorithmConfig,
    CorrectionConfig,
    DataConfig,
    DatasetConfig,
    MethodConfig,
    ModelConfig,
    TrainerConfig,
)
from vime.config.surroundings import (
    ClusterConfig,
    EvaluationConfig,
    LoggerConfig,
    RetrievalConfig,
    RewardServiceConfig,
    SandboxConfig,
)

__all__ = [
    "Aggregation",
    "AlgorithmConfig",
    "AlgorithmName",
    "BadUpdate",
    "Baseline",
    "Before",
    "ChatConfig",
    "ClusterConfig",
    "CorrectionConfig",
    "CorrectionLevel",
    "CorrectionMode",
    "CpuProducts",
    "Credit",
    "DataConfig",
    "DatasetConfig",
    "EvaluationConfig",
    "Family",
    "KLEstimator",
    "KLPlace",
    "LoggerConfig",
    "MethodConfig",
    "Mode",
    "ModelAPI",
    "ModelConfig",
    "Normalization",
    "OldLogprobs",
    "Pooling",
    "Precision",
    "PromptStyle",
    "RatioLevel",
    "RetrievalBackend",
    "RetrievalConfig",
    "RewardServiceConfig",
    "RolloutConfig",
    "RunConfig",
    "SamplingConfig",
    "SandboxConfig",
    "Schedule",
    "ServedModelConfig",
    "ServerGroupConfig",
    "ServerRole",
    "ServingConfig",
    "Surrogate",
    "Tracker",
    "TrainerConfig",
    "VectorSearch",
    "WeightTransfer",
]


@dataclass(kw_only=True, slots=True)
class RunConfig:
    """One run."""

    mode: Mode = Mode.train
    name: str = "run"
    """Folder under `outputs/`."""
    seed: int = 0
    deterministic: bool = False
    """Two runs with the same configuration and seed on one machine give the same tokens, rewards and weights. Generation is
    slower, and settings that make results depend on time or on servers of others are refused."""
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
    reward_service: RewardServiceConfig = field(default_factory=RewardServiceConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
