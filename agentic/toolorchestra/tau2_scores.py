"""τ²-bench's scores: pass^k over the trials of each task, and means over tasks; the package is not needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

BASE_TASKS: Mapping[str, int] = {"airline": 50, "retail": 114, "telecom": 114}
"""Number of tasks of the base split by domain, 278 in all."""
NUM_TRIALS = 4
MAX_STEPS = 200
MAX_ERRORS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One conversation. Example: `Trial(domain="retail", task_id="17", trial=2, reward=1.0)`."""

    domain: str
    task_id: str
    trial: int
    reward: float


def pass_hat_k(num_trials: int, num_passed: int, k: int) -> float:
    """The probability that k trials drawn from these all pass (arXiv 2406.12045). Raises ValueError for k beyond num_trials."""
    if not 1 <= k <= num_trials:
        raise ValueError(f"pass^{k} of {num_trials} trials: use 1 to {num_trials}")
    return comb(num_passed, k) / comb(num_trials, k)


def scores(trials: Sequence[Trial], *, num_trials: int = NUM_TRIALS) -> dict[str, float]:
    """`<domain>/pass^<k>` and `all/pass^<k>` in percent, each a mean over tasks; in `all` every task has the same weight.

    A trial passes with reward 1. Raises ValueError if a task lacks some of its trials, because incomplete runs are not
    aggregated.
    """
    passed: dict[tuple[str, str], dict[int, bool]] = {}
    for trial in trials:
        passed.setdefault((trial.domain, trial.task_id), {})[trial.trial] = trial.reward >= 1.0
    incomplete = [f"{domain} {task}" for (domain, task), found in passed.items() if len(found) != num_trials]
    if incomplete or not passed:
        raise ValueError(
            f"{len(incomplete)} tasks lack some of their {num_trials} trials: {', '.join(incomplete[:5]) or 'there are none'}"
        )
    found: dict[str, float] = {}
    for name in [*sorted({domain for domain, _ in passed}), "all"]:
        counts = [sum(results.values()) for (domain, _), results in passed.items() if name in (domain, "all")]
        for k in range(1, num_trials + 1):
            found[f"{name}/pass^{k}"] = 100 * sum(pass_hat_k(num_trials, count, k) for count in counts) / len(counts)
    return found


def missing_tasks(tasks_by_domain: Mapping[str, int]) -> dict[str, int]:
    """Number of missing tasks of the base split by domain; a table that was made without them must state it."""
    missing = {domain: total - tasks_by_domain.get(domain, 0) for domain, total in BASE_TASKS.items()}
    return {domain: count for domain, count in missing.items() if count}
