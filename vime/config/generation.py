"""Settings of rollouts, and of the servers that they call."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from vime.config.choices import (
    Constraints,
    KVCacheDtype,
    LoraDelivery,
    ModelAPI,
    OnCollapse,
    Quantization,
    ServerRole,
    SpeculationMethod,
)
from vime.config.ranges import Count, Natural, NonNegative, Port, Positive, PositiveShare, Range, Share

Replicas = Annotated[int, Range(least=1, most=1024)]
Penalty = Annotated[float, Range(least=-2, most=2)]
Sampled = Annotated[float, Range(above=0, why="without sampling all rollouts of a group are equal, and nothing can be learned")]
Speculated = Annotated[int, Range(least=1, most=128, why="vLLM checks no more in one step")]
Silence = Annotated[float, Range(least=10, why="our servers show a sign of life every five seconds")]


@dataclass(kw_only=True, slots=True)
class RolloutConfig:
    """Rollout generation: batch, sampling, staleness, limits."""

    num_prompts: Count = 16
    """Prompts in a batch; each is answered by a group of rollouts."""
    num_samples_per_prompt: Count = 8
    """Rollouts in the group of a prompt."""
    temperature: Sampled = 1.0
    """Sampling temperature of the trained model in training."""
    top_p: PositiveShare = 1.0
    """Nucleus sampling of the trained model in training. Below 1 it needs `top_k` and `num_logprobs`, so that the trainer knows
    which tokens were kept."""
    top_k: Count | None = None
    """Number of likeliest tokens among which the trained model samples in training, at most `num_logprobs`; null keeps all."""
    num_logprobs: Annotated[int, Range(least=0, most=1000)] = 0
    """Likeliest tokens that servers return with their logprobs beside each sampled token, 8 bytes each: the kept tokens of
    `top_k` and `top_p`, over which the trainer renormalizes (arXiv 2512.02556, section 3.1), and what
    `algorithm.score_centering` reads."""
    max_staleness: Natural = 0
    """Weight versions by which a token may lag behind the trainer when it is trained on; 0 is synchronous and on-policy."""
    in_flight_updates: bool = True
    """If true, a weight sync does not wait for running requests, so one reply may hold tokens of two weight versions. If false, a
    sync holds new requests back and waits until the running ones have ended."""
    num_oversampled_prompts: Natural = 0
    """Groups started in addition to `num_prompts`; the first `num_prompts` to finish make the batch."""
    num_oversampled_samples_per_prompt: Natural = 0
    """Rollouts of a group started in addition to `num_samples_per_prompt`; the last to finish are aborted."""
    journal: bool = True
    """True if finished groups are written to disk at once, so that a resumed run need not generate them again. It takes the space
    of `max_staleness + 1` batches with their tokens per checkpoint."""
    partial_rollouts: bool = False
    """True if groups that did not make a batch continue in the next one; no further group is then started ahead of it."""
    num_workers: Count = 1
    """Processes that run the rollouts."""
    max_concurrent_rollouts: Count | None = None
    """Rollouts that one worker runs at a time; null means 256 without GPUs. On GPUs, null means an equal share of the number of
    rollouts that fit into the KV caches of the trained model's servers, but at least 256; a plan shows the number."""
    generate_timeout_seconds: Positive = 600.0
    """Time limit of an agent for one attempt at a rollout, tools included. A longer attempt scores 0, and the tokens that it
    sampled until then are trained. Waiting for a lost server or for new weights does not count."""
    max_retries: Natural = 2
    """Retries of a rollout after an infrastructure failure."""
    reward_timeout_seconds: Positive = 60.0
    """Time limit of one call of a reward."""
    max_reward_retries: Natural = 1
    """Retries of a reward that raised an exception or exceeded its time limit; the rollout is kept."""
    tool_timeout_seconds: Positive = 60.0
    """Time limit of one call of a tool (`vime.rollout.tool.run_tool`)."""
    max_tool_retries: Natural = 1
    """Retries of a tool call that failed for a reason other than its arguments."""
    max_tool_characters: Count = 50_000
    """Longest result of a tool that a `ToolBox` shows to an agent, in characters; the middle of a longer one is left out."""
    sandbox_timeout_seconds: Positive = 120.0
    """Time limit of one call of a sandbox (`vime.rollout.tool.run_sandbox`)."""
    max_sandbox_retries: Natural = 2
    """Retries of a sandbox call before the rollout counts as an infrastructure failure."""
    max_blocked_seconds: Positive = 60.0
    """Longest time for which a hook may block the event loop of its worker before it is interrupted; after twice this time the
    worker is replaced."""
    min_rollouts_per_group: Count = 1
    """Minimum number of rollouts in the baseline of a group; if failures leave fewer, the failed rollouts are generated again."""
    max_group_repeats: Natural = 3
    """Number of times that failed rollouts of a group are generated again before the prompt is given up for another one."""
    max_infrastructure_failure_share: Share = 0.3
    """Largest share of infrastructure failures among the rollouts that a batch has asked for, and of errors among the calls of
    `filter`; above it the run stops and names the cause."""
    producer: str | None = None
    """Dotted path of a class that decides which prompts run when and which groups make a batch (`vime.hooks.RolloutProducer`); it
    replaces the built-in producer and its modes."""
    group_function: str | None = None
    """Dotted path of `async group_function(context, prompt, num_rollouts) -> Group`, which runs all rollouts of a prompt together
    in place of `method.generate` and `method.reward`."""
    filter: str | None = None
    """Dotted path of `filter(config, group) -> bool`; False drops the group and draws another prompt, and a group for which the
    filter raises is kept. DAPO's dynamic sampling is `vime.algorithm.filter.dynamic_sampling`."""
    on_collapse: OnCollapse = OnCollapse.warn
    """The response to an alarm that the policy is being lost (`vime.report.alarms`): a warning, or the end of the run, whose
    checkpoints stay."""
    max_filtered_share: Share = 0.9
    """Largest share of groups that `filter` may drop, and largest share of groups whose prompt may be given up. Both are checked
    once a batch has needed `4 * num_prompts` groups; above the limit the run stops."""


@dataclass(kw_only=True, slots=True)
class ServerGroupConfig:
    """Servers of a model that differ from its other servers; a value of null is taken from the model."""

    role: ServerRole = ServerRole.regular
    """The part of a request that the servers of the group handle."""
    num_replicas: Replicas = 1
    """Number of servers in the group."""
    port: Port = 0
    """Port of the first server (server i listens on port + i); 0 takes free ports."""
    tensor_parallel_size: Replicas | None = None
    """GPUs that share the weights of one server."""
    max_num_seqs: Count | None = None
    """Requests that one server runs at a time."""
    gpu_memory_utilization: PositiveShare | None = None
    """Share of a GPU's memory for weights and KV cache."""
    vllm_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of vLLM's server; they are added to those of the model and override them."""


@dataclass(kw_only=True, slots=True)
class ChatConfig:
    """Calls of an external endpoint with OpenAI's chat API (`api=chat`)."""

    api_key_variable: str | None = None
    """Environment variable that holds the key; null sends none."""
    max_requests_per_minute: Positive | None = None
    """Rate limit of the endpoint, shared evenly by the rollout workers; null sets no limit."""
    max_concurrent_requests: Count = 32
    """Requests at a time, shared evenly by the rollout workers; each worker may send at least one."""
    request_timeout_seconds: Positive = 120.0
    """Time limit of one request."""
    max_retries: Natural = 5
    """New attempts after 408, 409, 429, 5xx, a lost connection or the time limit, with growing waits between them."""
    dollars_per_million_input_tokens: NonNegative = 0.0
    """Price of a million prompt tokens, for the reported cost."""
    dollars_per_million_output_tokens: NonNegative = 0.0
    """Price of a million sampled tokens, for the reported cost."""
    body: dict[str, Any] = field(default_factory=dict)
    """Fields added to the body of every request, for example `reasoning_effort: low`."""


@dataclass(kw_only=True, slots=True)
class SamplingConfig:
    """Sampling parameters of a frozen model that a hook calls; null values are not sent, so the server's defaults apply."""

    temperature: NonNegative | None = 0.0
    """Sampling temperature; 0 always takes the most likely token."""
    top_p: PositiveShare | None = None
    """Nucleus sampling: share of the probability to sample from."""
    top_k: Count | None = None
    """Number of most likely tokens to sample from."""
    min_p: Share | None = None
    """Least probability of a token, relative to the most likely one."""
    presence_penalty: Penalty | None = None
    """Penalty on tokens that have occurred in the reply."""
    frequency_penalty: Penalty | None = None
    """Penalty on tokens that grows with the number of their occurrences in the reply."""
    repetition_penalty: Positive | None = None
    """Factor by which tokens of prompt and reply become less likely; 1 has no effect."""


@dataclass(kw_only=True, slots=True)
class SpeculativeConfig:
    """Speculative decoding: several tokens are drafted cheaply and checked by the model in one step (arXiv 2211.17192).

    Accepted or not, replies have the model's own distribution and logprobs.
    """

    method: SpeculationMethod = SpeculationMethod.none
    """The source of the drafted tokens."""
    num_tokens: Speculated = 4
    """Tokens that are drafted in each step of a request."""
    prompt_lookup_min: Count = 2
    """Shortest run of tokens that `ngram` looks for."""
    prompt_lookup_max: Count = 4
    """Longest run of tokens that `ngram` looks for."""
    checkpoint: str | None = None
    """Hugging Face id or folder of the draft model, for `draft_model`."""
    num_layers: Count | None = None
    """Layers of the model that draft, for `early_exit`."""


@dataclass(kw_only=True, slots=True)
class PastVersionsConfig:
    """A pool of the trained model's earlier versions, from which a served model has its weights: opponents for self-play that do
    not change with every step (arXiv 1710.03748, opponent sampling)."""

    every: Natural = 0
    """Steps after which the trained model's present version joins the pool, and the servers get one that is drawn from it; 0: the
    served model keeps its checkpoint's weights."""
    pool_size: Count = 8
    """Versions in the pool, the newest ones; with 1 it is always the last one that has joined."""


@dataclass(kw_only=True, slots=True)
class ServedModelConfig:
    """One served model and its servers."""

    checkpoint: str | None = None
    """Hugging Face id or folder of the checkpoint; null takes that of the trained model."""
    adapter: str | None = None
    """Folder of a LoRA adapter in PEFT's format, with which the servers compute; only for a model that is not trained in this run
    (with `mode=eval` also for the trained one)."""
    urls: list[str] = field(default_factory=list)
    """Addresses of servers that are already running; vime then starts none."""
    served_name: str | None = None
    """Name of the model on the servers of `urls`; null takes its name in `serving.models`."""
    api: ModelAPI = ModelAPI.tokens
    """The way in which the model is called: with token ids or with messages."""
    chat: ChatConfig = field(default_factory=ChatConfig)
    """Settings of `api=chat`, whose single address in `urls` looks like https://host/v1."""
    trained: bool = False
    """True if this is the trained model, which receives new weights after every training step."""
    past_versions: PastVersionsConfig = field(default_factory=PastVersionsConfig)
    """Earlier versions of the trained model as this model's weights."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Sampling of a frozen model; the trained model has `rollout.temperature`, and `evaluation.*` in evaluations."""
    chat_template_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of a frozen model's chat template, for example `enable_thinking: false`; the trained model has
    `model.chat_template_args`."""
    tool_parser: str | None = None
    """vLLM's parser of a frozen model's tool calls, for agents that call it over HTTP; see `model.tool_parser`."""
    reasoning_parser: str | None = None
    """vLLM's parser of a frozen model's reasoning; the trained model has `model.reasoning_parser`."""
    num_replicas: Replicas = 1
    """Number of servers."""
    groups: dict[str, ServerGroupConfig] = field(default_factory=dict)
    """Groups of servers by name, in place of `num_replicas` equal ones."""
    port: Port = 0
    """Port of the first server (server i listens on port + i); 0 takes free ports."""
    tensor_parallel_size: Replicas = 1
    """GPUs that share the weights of one server."""
    max_model_len: Count = 8192
    """Longest sequence in tokens, prompt and reply together."""
    rope_parameters: dict[str, Any] = field(default_factory=dict)
    """Rotary embeddings of a frozen model in place of its checkpoint's, like `model.rope_parameters`, which is the trained
    model's."""
    max_num_seqs: Count = 256
    """Requests that one server runs at a time."""
    gpu_memory_utilization: PositiveShare | None = None
    """Share of a GPU's memory for weights and KV cache, 0.8 if it is null; without GPUs the share of the host's memory for the KV
    cache, 0.05 if it is null."""
    quantization: Quantization = Quantization.none
    """Number format of the weights of linear layers in the servers. For the trained model, any but `none` needs a correction for
    the difference between sampler and trainer (`algorithm=score_centering`, `algorithm.correction.mode`)."""
    kv_cache_dtype: KVCacheDtype = KVCacheDtype.auto
    """Number format of keys and values; `fp8` needs the same correction."""
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    """Speculative decoding of the model's servers."""
    vllm_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of vLLM's server, passed unchanged: `block_size: 32` becomes `--block-size 32`."""

    @property
    def gets_weights(self) -> bool:
        """True if the trainer's weights are brought to its servers, those of now or of an earlier version."""
        return self.trained or self.past_versions.every > 0


@dataclass(kw_only=True, slots=True)
class GatewayConfig:
    """The gateway, through which agents call models over HTTP."""

    constraints: Constraints = Constraints.free
    """Handling of structured output and forced calls. `free`: the model samples freely, and its reply is returned and trained; a
    rollout whose agent then fails ends with reward 0, as `malformed`. `refuse`: they are refused in training and enforced in
    evaluations. `record`: constrained output would be trained, which vLLM's logprobs do not allow. For other models they are
    always enforced."""


@dataclass(kw_only=True, slots=True)
class ElasticConfig:
    """A number of servers of the trained model that changes while a run trains: `vime servers RUN NUMBER` asks for another."""

    num_at_start: Count | None = None
    """Servers with which the run begins; null starts all `num_replicas`, and their number stays. With a number `num_replicas` is
    the most that may be asked for, and ports, cores and GPUs are reserved for as many."""
    drain_seconds: NonNegative = 30.0
    """Longest time in which a server that leaves finishes its requests; other servers go on with those that are left, behind the
    tokens sampled so far."""


@dataclass(kw_only=True, slots=True)
class ServingConfig:
    """The served models by name, their router, and the limits that keep them healthy."""

    models: dict[str, ServedModelConfig] = field(default_factory=lambda: {"actor": ServedModelConfig(trained=True)})
    """The served models by name; the trained model is `actor`."""
    elastic: ElasticConfig = field(default_factory=ElasticConfig)
    """Servers that join and leave while the run trains."""
    router_policy: str = "sticky_least_loaded"
    """The policy by which the router chooses a server for a new session; later requests of a session go to the same server."""
    router_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of vllm-router, passed unchanged."""
    start_timeout_seconds: Positive = 300.0
    """Longest time for which a starting server may make no progress; progress shows in a growing log or download."""
    max_start_seconds: Positive = 3600.0
    """Time limit for the whole start of a server, with download, loading, compilation and the capture of CUDA graphs."""
    silence_timeout_seconds: Silence = 120.0
    """Longest time for which a server may send nothing to a request before it counts as lost; tokens that it has sent until then
    are kept. Servers that vime starts send a sign of life every few seconds, even while a request is queued. Those of `urls` do
    so only if they run `vime.inside_vllm.vllm_server`; for others this limit must exceed the longest time in the queue."""
    health_interval_seconds: Positive = 2.0
    """Time between two health checks of a server."""
    health_failures: Count = 5
    """Failed health checks in a row after which a server is restarted."""
    engine_timeout_seconds: Positive = 120.0
    """Longest silence of the engine of a server before the server is restarted; it must exceed the longest engine step."""
    max_restarts: Natural = 3
    """Restarts of one program (a server, a router, the retrieval service) before the run gives it up; old restarts are not
    counted, see `restart_window_seconds`."""
    restart_window_seconds: Positive = 3600.0
    """Time for which a program must stay healthy before one of its restarts is no longer counted."""
    recovery_timeout_seconds: Positive = 300.0
    """Longest time for which a request waits for a lost server to come back before its rollout counts as failed."""
    lora: LoraDelivery = LoraDelivery.merge
    """The form in which servers get the adapters of `trainer.lora`: merged into all weights, or by themselves."""
    keep_cache: bool = False
    """True if requests in flight keep their KV cache across a weight sync. This saves computation, but the logprobs of their
    further tokens then differ from the trainer's (`train/logprob_difference_*`). Needs `rollout.max_staleness` of 1 or more."""
    probe_tolerance: Positive | None = None
    """Largest difference between the logprobs of server and trainer after a weight sync; null means 5e-4 in float32, 1 in
    bfloat16, and no bound for a mixture-of-experts model in bfloat16. The mean difference may be at most a twentieth of this
    tolerance in float32 and a fifth in bfloat16 (a fifth of 1 if there is no bound). For servers in low precision
    (`quantization`, `kv_cache_dtype`) it bounds the mean alone, and null means 0.5."""
