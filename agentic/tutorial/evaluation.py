"""Step 7, an evaluation: metrics of your own, and a table of the agent before and after training.

    python -m vime.run +experiment=tutorial method.generate=agentic.tutorial.tool.generate \
        method.reward=agentic.tutorial.tool.reward method.eval_log=agentic.tutorial.evaluation.eval_log \
        trainer.num_steps=4 evaluation.rows=[scaffold,trained]
"""

from statistics import fmean
from typing import Any

from vime import Context, EvalLog


def eval_log(context: Context, results: list[dict[str, Any]]) -> EvalLog:
    """Metrics and figures of all finished items: {"label": […], "samples": [{"response": …, "metadata": {…}}], "counts": {…}}."""
    calls = [result["counts"].get("tool_calls", 0) for result in results]
    most = range(max(calls, default=0) + 1)
    shares = [fmean(float(number == found) for found in calls) for number in most]
    figure = {"x": list(most), "series": {"share of items": shares}}
    return EvalLog(metrics={"queries_mean": fmean(calls or [0])}, figures={"items_by_number_of_queries": figure})
