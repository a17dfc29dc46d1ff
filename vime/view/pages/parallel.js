// Settings and results of several runs as parallel coordinates: each line is a run, each axis goes from its least to its most value.

import { chart } from "./chart.js";
import { element, short } from "./dom.js";

const FEW_AXES = 6;

/** The heading and the chart, which stays the same when its runs go on; nothing where there are no two axes. */
export function parallelChart(found, state) {
  const number = (text) => (text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);
  const axes = Object.entries(found.differences)
    .filter(([, values]) => values.every((text) => number(text) != null))
    .map(([name, values]) => ({ name, values: values.map(number) }));
  axes.push({ name: "last reward", values: state.curves.map((one) => one["reward/mean"]?.y.at(-1) ?? null) });
  for (const dataset of new Set(found.runs.flatMap((run) => Object.keys(run.datasets))))
    axes.push({
      name: `${dataset}, trained`,
      values: found.runs.map((run) => run.datasets[dataset]?.trained?.mean ?? null),
    });
  const usable = axes.filter((axis) => axis.values.some((value) => value != null));
  if (usable.length < 2) return [];
  const ends = usable.map(({ values }) => {
    const all = values.filter((value) => value != null);
    return [Math.min(...all), Math.max(...all)];
  });
  const scaled = (value, [low, high]) => (value == null ? null : high === low ? 0.5 : (value - low) / (high - low));
  const series = state.names.map((_, place) => ({
    label: state.labels[place],
    x: usable.map((axis) => axis.name),
    y: usable.map((axis, one) => scaled(axis.values[place], ends[one])),
    text: usable.map((axis) => `${axis.name} = ${short(axis.values[place])}`),
  }));
  const notes = usable.flatMap((axis, place) =>
    [
      [0, ends[place][0], "top"],
      [1, ends[place][1], "bottom"],
    ].map(([y, value, yanchor]) => ({
      x: place,
      y,
      text: short(value),
      showarrow: false,
      yanchor,
      yshift: yanchor === "top" ? -4 : 4,
    })),
  );
  const shapes = usable.map((_, place) => ({
    type: "line",
    x0: place,
    x1: place,
    y0: 0,
    y1: 1,
    line: { color: "gray", width: 1 },
  }));
  const spec = {
    title: "Parallel coordinates: each line is a run",
    unit: "",
    xTitle: "",
    kind: "points",
    exact: true,
    legend: "above",
    height: usable.length > FEW_AXES ? 460 : 340, // many names stand at an angle
    series,
    shapes,
    annotations: notes,
    xAxis: { type: "category", tickformat: "" },
    yAxis: { visible: false, range: [-0.15, 1.15] },
  };
  if (state.parallel) state.parallel.update(spec);
  else state.parallel = chart(spec, { wide: true });
  return [element("h2", {}, "Settings and results"), state.parallel.node];
}
