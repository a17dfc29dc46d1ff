"""The unit of a metric, from its name: names end in the unit that they count, so no table of all metrics is needed."""

import re

SECONDS, SHARE, TOKENS, NATS = "s", "share, 0 to 1", "tokens", "nats"
_UNITS: tuple[tuple[str, str], ...] = (
    (r"evaluation/.*", "%"),
    (r"eval_log/.*", ""),
    (r".*tokens_per_second", "tokens/s"),
    (r".*(_seconds|/seconds|_seconds_mean)|seconds/.*", SECONDS),
    (r".*(_share|_fraction|_acceptance_rate)|utilization/(servers|trainer|overlapped)|staleness/\d+", SHARE),
    (r"rollout/staleness_.*", "weight versions"),
    (r".*_bytes|.*/bytes", "bytes"),
    (r"train/(kl|entropy)|.*logprob_difference.*|probe/max_difference.*", NATS),
    (r".*num_tokens.*|.*_tokens|.*tokens_mean", TOKENS),
    (r"rollout/num_(rollouts|failed|aborted)|stop/.*", "rollouts"),
    (r"rollout/num_.*groups.*|rollout/num_groups", "groups"),
    (r"count/.*|session/(calls|retries|refused|fork_.*)|rollout/num_retries", "per batch"),
    (r"rollout/(turns|sequences)_mean", "per rollout"),
    (r".*_dollars.*", "US dollars"),
)


def unit_of(metric: str) -> str:
    """The unit of a metric, empty for a plain number. Examples: `time/step_seconds` has `s`, `evaluation/docs_20` has `%`."""
    return next((unit for pattern, unit in _UNITS if re.fullmatch(pattern, metric)), "")
