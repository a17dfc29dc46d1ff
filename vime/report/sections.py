"""The sections of the report: curves, evaluations, faults, provenance. Each returns HTML, empty without data."""

import math
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from vime.report.charts import Series, bar_chart, is_flat, line_chart, number_text, stacked_chart
from vime.report.metric_units import unit_of
from vime.report.metrics_file import Curve

Curves = Mapping[str, Curve]

PANELS: dict[str, dict[str, str]] = {
    "Reward": {"reward/mean": "mean of the batch"},
    "Loss": {"train/loss": "loss", "train/policy_loss": "policy loss"},
    "Gradient norm": {"train/grad_norm": "before clipping"},
    "Values against returns": {"train/value_mean": "values", "train/return_mean": "returns"},
    "Explained variance of the values": {"train/value_explained_variance": "before the batch"},
    "Gradient norm of the critic": {"train/critic_grad_norm": "before clipping"},
    "KL to the teacher": {"train/teacher_kl": "of sampled tokens"},
    "KL to the reference": {"train/kl": "KL"},
    "Entropy": {"train/entropy": "entropy"},
    "Clipped share of tokens": {"train/clip_fraction": "share of clipped or masked tokens"},
    "Largest importance ratio": {"train/ratio_max": "largest"},
    "Logprobs, server against trainer": {"train/logprob_difference_max": "max", "train/logprob_difference_mean": "mean"},
    "Tokens that the trainer's routers would send to other experts": {"train/routing_difference": "share"},
    "Probe after each sync": {"probe/max_difference_cold": "cold prefix", "probe/max_difference_cached": "cached prefix"},
    "Rows by pool": {
        "data/unseen_share": "unseen",
        "data/in_play_share": "in play",
        "data/solved_share": "solved",
        "data/hopeless_share": "hopeless",
    },
    "Accepted part of the drafted tokens": {"serving/actor/draft_acceptance_rate": "share"},
    "Turns per rollout": {"rollout/turns_mean": "turns", "rollout/sequences_mean": "training sequences"},
    "Response length, tokens": {"rollout/response_tokens_mean": "mean"},
    "Truncated rollouts": {"rollout/truncated_share": "share"},
    "Utilization": {
        "utilization/servers": "servers",
        "utilization/trainer": "trainer",
        "utilization/overlapped": "both at once",
    },
    "Model calls in flight": {"utilization/calls_mean": "mean"},
    "Groups ahead of the trainer": {"rollout/num_groups_in_flight": "in flight", "rollout/num_groups_buffered": "finished"},
    "Staleness, weight versions": {"rollout/staleness_max": "max", "rollout/staleness_mean": "mean"},
    "Seconds": {"time/step_seconds": "step", "train/seconds": "training", "sync/seconds": "sync", "sync/pause_seconds": "pause"},
    "Trained tokens per second": {"train/tokens_per_second": "tokens/s"},
    "Learning rate": {"train/lr": "learning rate"},
    "Failures": {
        "rollout/num_failed": "failed rollouts",
        "rollout/num_retries": "retries",
        "server/num_faults": "server faults",
        "rollout/num_groups_filtered": "filtered groups",
        "rollout/num_groups_repeated": "completed groups",
        "rollout/num_groups_refused": "groups refused as too old",
        "rollout/num_rollouts_resampled": "stale rollouts sampled again",
        "rollout/num_groups_aborted": "aborted groups",
        "rollout/num_aborted": "aborted rollouts",
        "rollout/num_prompts_given_up": "prompts given up",
    },
}
"""Charts in order: title, and the metrics in it with their labels."""
FEWEST_LENGTHS = 3
NAMED = 3
"""The number of metrics that do not change and are named beside a chart."""
EXACT = {"Learning rate", "Failures", "Tools, sandboxes and new attempts"}
"""Charts that are not smoothed."""
TIME_SHARES = {
    "time/generation_share": "generation",
    "time/training_share": "training",
    "time/sync_share": "sync",
    "time/evaluation_share": "evaluation",
    "time/waiting_share": "waiting",
}


def score_charts(datasets: Mapping[str, Mapping[str, Any]], labels: Mapping[str, str]) -> list[str]:
    """Scores by data set: bars, or lines over the length if the names end in growing numbers (`docs_24`, `docs_48`, …)."""
    names = list(datasets)
    series = []
    for row, label in labels.items():
        found = [(float(i), rows[row]) for i, rows in enumerate(datasets.values()) if row in rows]
        if found:
            x, scores = [i for i, _ in found], [score for _, score in found]
            series.append(Series(label=label, x=x, y=[s["mean"] for s in scores], error=[s["sd"] for s in scores]))
    if not series:
        return []
    if lengths_of(names):
        return [line_chart("Score by length", series, x_label="data set", y_label="strict score, %", names=names)]
    return [bar_chart("Score by data set", names, series, y_label="strict score, %")]


def lengths_of(names: list[str]) -> list[int]:
    """The lengths in the names of data sets; empty unless at least three of them grow."""
    found = [int(match[1]) if (match := re.search(r"(\d+)$", name)) else -1 for name in names]
    return found if len(found) >= FEWEST_LENGTHS and found == sorted(set(found)) and found[0] >= 0 else []


def panels(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Titles of the charts over steps, each with its metrics and their labels, in order, of a run with these metrics."""
    known = list(names)
    scores = {name: name.partition("/")[2] for name in known if name.startswith("reward/") and name != "reward/mean"}
    in_training = {name: name.partition("/")[2] for name in known if name.startswith("evaluation/")}
    seconds = {name: name.partition("/")[2] for name in known if name.startswith("seconds/")}
    counts = {name: name.partition("/")[2].replace("_", " ") for name in known if name.startswith("count/")}
    found = dict(list(PANELS.items())[:1]) | {"Scores of the batch": scores, "Evaluation in training": in_training} | PANELS
    sessions = {name: name.partition("/")[2].replace("_", " ") for name in known if name.startswith("session/")}
    shares = {name: label for name, label in sessions.items() if label.endswith("share")}
    found |= {"Seconds of a rollout": seconds, "Tools, sandboxes and new attempts": counts}
    found |= {
        "Sessions": {name: sessions[name] for name in sessions if name not in shares},
        "Shares of the sessions' tokens": shares,
    }
    return found


def training_charts(curves: Curves) -> list[str]:
    """Reward, optimisation, lengths, time and stop reasons over steps; metrics that do not change are named and not drawn."""
    charts = [panel_chart(title, curves, metrics) for title, metrics in panels(curves).items()]
    charts.insert(1, stop_chart(curves))
    charts.append(stacked_chart("Share of a step's time", _aligned(curves, TIME_SHARES)))
    charts.append(stacked_chart("Age of trained tokens, weight versions", _aligned(curves, _ages(curves))))
    return [chart for chart in charts if chart]


def panel_chart(title: str, curves: Curves, metrics: Mapping[str, str]) -> str:
    """The lines of one panel that change; empty if none does. Constant values are shown beside the title."""
    found = {name: series for name, label in metrics.items() for series in _series(curves, {name: label})}
    still = {name: series for name, series in found.items() if is_flat(series.y)}
    moving = {name: series for name, series in found.items() if name not in still}
    if not moving:
        return ""
    units = list(dict.fromkeys(unit_of(name) for name in moving))
    shown = [f"{series.label} {_last(series)}" for series in still.values() if any(series.y)]
    note = f"unchanged: {', '.join(shown[:NAMED])}" + (" …" if len(shown) > NAMED else "") if shown else ""
    y_label = next(iter(moving.values())).label if len(moving) == 1 and not units[0] else units[0] if len(units) == 1 else ""
    return line_chart(title, list(moving.values()), y_label=y_label, smooth=title not in EXACT, note=note)


def still_metrics(curves: Curves) -> str:
    """A folded table of the metrics of the panels that were the same in all steps."""
    labels = {name: f"{title}: {label}" for title, metrics in PANELS.items() for name, label in metrics.items()}
    found = {labels[n]: f"{_last(s)} {unit_of(n)}".strip() for n in labels for s in _series(curves, {n: ""}) if is_flat(s.y)}
    return key_value_details(f"{len(found)} metrics that did not change", found)


def _last(series: Series) -> str:
    return number_text(series.y[-1])


def _ages(curves: Curves) -> dict[str, str]:
    """The metrics of the staleness histogram with their labels, youngest first; empty if no token is older than its weights."""
    ages = sorted(int(name.partition("/")[2]) for name in curves if name.startswith("staleness/"))
    return {f"staleness/{age}": str(age) for age in ages} if ages != [0] else {}


def stop_chart(curves: Curves) -> str:
    """Stop reasons as shares of all rollouts."""
    names = sorted((name for name in curves if name.startswith("stop/")), key=lambda name: -math.fsum(curves[name][1]))
    series = _aligned(curves, {name: name.partition("/")[2].replace("_", " ") for name in names})
    if not series:
        return ""
    totals = [math.fsum(values) or 1.0 for values in zip(*[s.y for s in series])]
    shares = [Series(label=s.label, x=s.x, y=[y / total for y, total in zip(s.y, totals)]) for s in series]
    return stacked_chart("Stop reasons", shares)


def rows_table(title: str, rows: list[dict[str, Any]]) -> str:
    """A table of dictionaries, for example faults."""
    if not rows:
        return ""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in columns)
    lines = ["".join(f"<td>{escape(_short(row.get(column, '')))}</td>" for column in columns) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<h2>{escape(title)}</h2><div class="card"><table class="left"><tr>{head}</tr>{body}</table></div>'


def key_value_details(title: str, values: Mapping[str, Any]) -> str:
    """A folded table of keys and values."""
    if not values:
        return ""
    lines = [f"<tr><td>{escape(key)}</td><td>{escape(_short(value))}</td></tr>" for key, value in values.items()]
    return f'<details><summary>{escape(title)}</summary><table class="left">{"".join(lines)}</table></details>'


def text_details(title: str, text: str) -> str:
    """A folded file."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>" if text.strip() else ""


def chart_grid(charts: list[str]) -> str:
    """Charts side by side."""
    return f'<div class="grid-of-charts" style="margin-top:12px">{"".join(charts)}</div>' if charts else ""


def _series(curves: Curves, metrics: Mapping[str, str]) -> list[Series]:
    found = [(curves[name], label) for name, label in metrics.items() if name in curves]
    return [Series(label=label, x=[float(step) for step in steps], y=values) for (steps, values), label in found]


def _aligned(curves: Curves, metrics: Mapping[str, str]) -> list[Series]:
    """Series over all steps that any of them has; 0 where one lacks a step."""
    found = {label: dict(zip(*curves[name])) for name, label in metrics.items() if name in curves}
    steps = sorted({step for values in found.values() for step in values})
    x = [float(step) for step in steps]
    return [Series(label=label, x=x, y=[values.get(step, 0.0) for step in steps]) for label, values in found.items()]


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 400 else text[:400] + " …"
