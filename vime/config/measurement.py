"""Evaluation, trial and logging."""

from dataclasses import dataclass, field
from typing import Annotated

from vime.config.choices import Before, RolloutDetail, TrackerName, TrialEngine
from vime.config.ranges import Count, Natural, NonNegative, PositiveShare, Range, Share

LogBytes = Annotated[int, Range(least=2**20)]


@dataclass(kw_only=True, slots=True)
class EvaluationConfig:
    """The evaluation protocol, the same for all rows of a table."""

    num_runs: Count = 3
    """Runs of each data set; scores are means over them."""
    temperature: NonNegative = 1.0
    """Sampling temperature in evaluations."""
    top_p: PositiveShare = 1.0
    """Nucleus sampling in evaluations."""
    rows: list[str] = field(default_factory=lambda: ["single_turn", "scaffold", "trained"])
    """Rows to evaluate: `single_turn` is the base model asked once, `scaffold` the agent before training, `trained` the agent
    after training. `single_turn@NAME` and `scaffold@NAME` ask another model of `serving.models`, as a baseline under the same
    sampling. With `mode=eval`, `trained` measures the same as `scaffold`, under the name that fits a trained checkpoint."""
    before: Before = Before.full
    """The evaluation before training. `full` evaluates every row but `trained`, for the table. `one_run` scores the untrained
    agent once per data set while the first batch is generated; this starts the score curve and enters no table. `none` evaluates
    nothing. Rows that are left out can be measured with `mode=eval`."""
    extra_temperatures: list[NonNegative] = field(default_factory=list)
    """Further temperatures at which the untrained agent is scored, with one run each, to show that a gain is not due to
    sampling."""
    pass_at: list[Count] = field(default_factory=list)
    """Values of k, up to `num_runs`, for which two shares are reported: items solved at least once in k runs (pass@k), and items
    solved in all k runs (pass^k)."""
    max_concurrent_items: Count = 256
    """Items that are evaluated at a time."""


@dataclass(kw_only=True, slots=True)
class LoggerConfig:
    """The destination of metrics besides the run folder. Keys are read from the environment."""

    tracker: TrackerName = TrackerName.none
    """Tracker that receives metrics, evaluations and some conversations: Weights & Biases, TensorBoard's files in the run folder,
    MLflow (`MLFLOW_TRACKING_URI`, by default `mlflow.db` in this folder), or Trackio's database on this machine."""
    project: str = "vime"
    """Name of the project in Weights & Biases and Trackio, of the experiment in MLflow."""
    offline: bool = False
    """True if Weights & Biases writes to the run folder only, to be uploaded later; `WANDB_MODE=offline` in the environment does
    the same."""
    group: str | None = None
    """Group of runs that Weights & Biases shows together; a sweep gives its runs the name of its folder."""
    num_tracked_rollouts: Natural = 8
    """Rollouts of each step, and items of each evaluation, whose conversations the tracker gets as a table."""
    rollouts: RolloutDetail = RolloutDetail.tokens
    """The detail in which the rollouts of every step and the items of evaluations are written, as JSON lines."""
    max_rollouts_bytes: LogBytes = 20 * 2**30
    """Size limit of all rollout files together; the oldest files are removed to make room."""
    trace_share: Share = 0.02
    """Share of groups whose timelines are written to `trace.json`, for Perfetto. The driver's timeline is always written, unless
    the share is 0."""
    max_trace_bytes: LogBytes = 256 * 2**20
    """Size limit of `trace.json` and its earlier parts together; the oldest part is removed to make room."""


@dataclass(kw_only=True, slots=True)
class TrialConfig:
    """The trial of an agent on one prompt (`mode=try`)."""

    engine: TrialEngine = TrialEngine.served
    """Source of the replies to model calls: servers as in training, or `scripted` replies, which test an agent's code within
    seconds and without a server."""
    replies: str | None = None
    """File of scripted replies, one JSON line each: a text, or `{"text": …, "model": "actor", "tool_calls": [{"name": …,
    "arguments": {…}}], "cut": false, "error": ""}`. Each call of a model takes its next line. null takes the replies of the
    method's rehearsal or of its demonstrations."""
