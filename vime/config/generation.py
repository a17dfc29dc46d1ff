"""Rollouts, and the servers that they ask."""

from dataclasses import dataclass, field
from typing import Any

from vime.config.choices import ModelAPI, ServerRole


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
    """Time of an agent for one attempt at a rollout, tools included. A longer attempt scores 0, and what it had sampled by then
    is trained. Waiting for a lost server or for new weights does not count."""
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
    """Above this share of a batch's rollouts, or of calls of `filter` that raise, the run stops with the cause."""
    producer: str | None = None
    """Dotted path of a class that decides which prompts run when and which groups make a batch, instead of the built-in producer
    with its modes (`vime.hooks.RolloutProducer`)."""
    group_function: str | None = None
    """Dotted path of `async group_function(context, prompt, num_rollouts) -> Group`, which runs the rollouts of one prompt, where
    `method.generate` and `method.reward` run each by itself."""
    filter: str | None = None
    """Dotted path of `filter(config, group) -> bool`: False drops the group and draws another prompt; a group for which it raises
    is kept. DAPO's dynamic sampling is `vime.algorithm.filter.dynamic_sampling`."""
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
class SamplingConfig:
    """How a frozen model is sampled when a hook asks it. What is null is not sent: the model's server then decides."""

    temperature: float | None = 0.0
    """0 takes the likeliest token each time."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None


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
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """For a frozen model; the trained one is sampled by `rollout.temperature`, and in evaluations by `evaluation.*`."""
    chat_template_args: dict[str, Any] = field(default_factory=dict)
    """Passed to a frozen model's chat template, for example `enable_thinking: false`; `model.chat_template_args` is the trained
    one's."""
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
    router_policy: str = "sticky_least_loaded"
    """How the router chooses a server for a new session; later requests of the session go to the same one."""
    router_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of vllm-router, passed unchanged."""
    start_timeout_seconds: float = 300.0
    """How long a server that is starting may show no sign of progress; signs are that its log or its download grows."""
    max_start_seconds: float = 3600.0
    """How long a server may take to start in all, with download, loading, compilation and the capture of graphs."""
    silence_timeout_seconds: float = 120.0
    """How long a server may send nothing to a request before it counts as lost; what it has sent until then is kept. Our servers
    send a sign of life every few seconds, also while a request waits in their queue. Those given by `urls` do so only if they run
    `vime.serving.vllm_server`: for others, give more than a request may wait."""
    health_interval_seconds: float = 2.0
    health_failures: int = 5
    """Failed health checks in a row after which a server is restarted."""
    engine_timeout_seconds: float = 120.0
    """How long a server's engine may be silent before the server is restarted; longer than its longest step."""
    max_restarts: int = 3
    """Restarts of one program (a server, a router, the retrieval service) in a row before the run gives it up; those long ago do
    not count, see `restart_window_seconds`."""
    restart_window_seconds: float = 3600.0
    """Each time that a program has been well for so long, one of its restarts is forgiven."""
    recovery_timeout_seconds: float = 300.0
    """How long a request waits for a lost server, from when it finds it lost, before its rollout counts as failed."""
    keep_cache: bool = False
    """A sync leaves keys and values of the old weights to what was started under them: less is computed again, and logprobs of
    what goes on then differ from the trainer's (`train/logprob_difference_*`). Needs `rollout.max_staleness` of 1 or more."""
    probe_tolerance: float | None = None
    """Largest difference between server and trainer logprobs after a sync; None is 1e-4 in float32 and 0.3 in bfloat16. The mean
    difference may be a quarter of it."""
