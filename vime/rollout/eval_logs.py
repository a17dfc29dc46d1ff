"""What the method's `eval_log` says of a finished evaluation; the scores stand without its metrics if it raises."""

import logging
from typing import Any

from vime.blame import users_traceback
from vime.config import RunConfig
from vime.evaluation.conditions import SINGLE_TURN, Job
from vime.hooks import load_hook
from vime.rollout.context import Context
from vime.types import EvalLog

logger = logging.getLogger(__name__)


def eval_logs(
    config: RunConfig, row: str, label: str, results: dict[Job, list[dict[str, Any]]]
) -> dict[str, tuple[str, EvalLog]]:
    """The log of each data set and the name of its file, by data set; none for a model that is asked without the agent.

    `results` are the items of all jobs of one row; those at other temperatures than the table's are left out.
    """
    if config.method.eval_log is None or row.startswith(SINGLE_TURN):
        return {}
    hook = load_hook(config.method.eval_log)
    by_dataset: dict[str, list[dict[str, Any]]] = {}
    for job, items in results.items():
        if job.temperature == config.evaluation.temperature:
            by_dataset.setdefault(job.dataset, []).extend(items)
    found: dict[str, tuple[str, EvalLog]] = {}
    for dataset, items in by_dataset.items():
        name = f"{dataset}-{row}" + (f"-{label}" if label else "")
        try:
            found[dataset] = name, hook(Context(config=config, evaluation=True, session_id=name), items)
        except Exception as error:  # the boundary of a user's function
            logger.warning("method.eval_log raised on %s\n%s", name, users_traceback(error))
    return found
