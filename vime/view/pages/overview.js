// The overview of a run: alarms, scores, curves, where the time goes, faults, and the console.

import { curves, get, metrics, withEnds } from "./api.js";
import { chart } from "./chart.js";
import { anchor, duration, element, numeric, short, sortable } from "./dom.js";
import { consoleLog, evalLogs, faults } from "./logs.js";
import { service } from "./service.js";

const MANY = 6; // a legend of more lines needs the whole width

export async function open(words) {
  const run = words.get("run");
  let [about, rows] = await Promise.all([get("run", { run }), metrics(run)]);
  const settings = { smoothing: 1 / 40 },
    order = {}; // of the tables
  const told = {};
  const head = element("div"),
    scores = element("div"),
    grid = element("div", { class: "charts" }),
    tail = element("div"),
    log = consoleLog(run);
  const charts = new Map();
  const redraw = () => {
    head.replaceChildren(...header(about, rows), ...ending(about), ...alarms(about, run));
    const isNew = (name) => told[name] !== (told[name] = JSON.stringify(about[name])); // what stays keeps its focus
    if (about.service ? isNew("service") : isNew("datasets"))
      if (about.service) scores.replaceChildren(...service(about, order));
      else drawScores(scores, charts, about, order);
    drawCurves(grid, charts, about, withEnds(curves(rows), about.datasets, about.config.trainer.num_steps), settings);
    if (["faults", "eval_logs"].filter(isNew).length) tail.replaceChildren(...faults(about, order), ...evalLogs(about, order));
    log.update(about);
  };
  redraw();
  return {
    title: about.config.name,
    runs: [run],
    keys: () => false,
    nodes: [head, scores, ...(about.service ? [] : [element("h2", {}, "Training"), controls(settings, redraw), grid]), tail, log.node],
    follow: log.follow,
    async refresh() {
      [about, rows] = await Promise.all([get("run", { run }), metrics(run)]);
      redraw();
    },
  };
}

function header(about, rows) {
  const { config, summary, state } = about;
  const last = (name) => rows.findLast((row) => row[name] != null)?.[name];
  const steps = rows.reduce((most, row) => Math.max(most, row.step), 0);
  const tile = (value, label, title) =>
    element("div", { class: "tile" }, element("b", { title }, value), element("span", {}, label));
  const tiles = about.service ? [] : [tile(config.trainer.num_steps ? `${steps} / ${config.trainer.num_steps}` : steps, "steps")];
  if (last("reward/mean") != null)
    tiles.push(tile(short(last("reward/mean")), "reward of the last step", String(last("reward/mean"))));
  if (about.eta_seconds != null && state !== "finished" && !about.ending)
    tiles.push(tile(duration(about.eta_seconds), "left, without evaluations"));
  if (last("time/step_seconds") != null) tiles.push(tile(duration(last("time/step_seconds")), "last step"));
  if (last("train/tokens_per_second") != null) tiles.push(tile(short(last("train/tokens_per_second")), "tokens/s in the trainer"));
  if (summary)
    tiles.push(
      tile(duration(summary.wall_seconds), "wall time"),
      tile(short(summary.num_rollouts), "rollouts"),
      tile(short(summary.num_failed_rollouts), "failed rollouts"),
    );
  const what = [about.service ? "training service" : config.mode, config.method.name, config.model.name, config.algorithm.name, `seed ${config.seed}`]
    .filter(Boolean)
    .join(" · ");
  return [
    element("h1", {}, config.name, element("span", { class: `state ${state}` }, state)),
    element("p", { class: "sub" }, what),
    element("div", { class: "tiles" }, tiles),
  ];
}

function ending({ ending: ended, name, state }) {
  if (!ended) return [];
  const failed = state === "failed" ? anchor("rollouts", { run: name, failed: 1 }, "Rollouts that failed") : null;
  const lines = ended.lines.map((line) => element("p", {}, line));
  return [element("div", { class: "card problem" }, lines, ended.text ? element("pre", { class: "log" }, ended.text) : null, failed)];
}

function alarms(about, run) {
  if (!about.alarms.length) return [];
  const shown = about.alarms.map((alarm) =>
    element(
      "div",
      { class: "card alarm" },
      element("b", {}, alarm.name),
      element("span", { class: "soft" }, `step ${alarm.step}: ${alarm.seen}`),
      element(
        "p",
        {},
        alarm.meaning,
        " ",
        anchor(
          "rollouts",
          {
            run,
            kind: "training",
            min_step: Math.max(1, alarm.step - 9),
            max_step: alarm.step,
            failed: alarm.metric.includes("failed") ? 1 : "",
            ...(alarm.metric.includes("without_signal") ? { min_advantage: 0, max_advantage: 0 } : {}),
            sort: "reward",
            order: "up",
          },
          "Rollouts of these steps",
        ),
      ),
    ),
  );
  return [element("h2", {}, "Alarms"), ...shown];
}

function drawScores(place, charts, about, order) {
  const datasets = Object.entries(about.datasets);
  if (!datasets.length) return place.replaceChildren();
  const labels = Object.entries(about.labels).filter(([row]) => datasets.some(([, rows]) => rows[row]?.mean != null));
  const isOnce = datasets.some(([, rows]) => labels.some(([row]) => rows[row]?.num_runs === 1)); // there is no deviation over runs
  const series = labels.map(([row, label]) => {
    const found = datasets.filter(([, rows]) => rows[row]?.mean != null);
    return {
      label,
      x: found.map(([name]) => name),
      y: found.map(([, rows]) => rows[row].mean),
      error: found.map(([, rows]) => (isOnce ? rows[row].standard_error : rows[row].sd)),
    };
  });
  const columns = [
    { name: "data set", value: (one) => one.dataset, cell: (one) => element("td", {}, one.dataset) },
    { name: "row", left: true, value: (one) => one.label, cell: (one) => element("td", { class: "left" }, one.label) },
    { name: "score, %", value: (one) => one.score.mean, cell: (one) => numeric(one.score.mean) },
    { name: "± SD over runs", value: (one) => one.score.sd, cell: (one) => numeric(one.score.num_runs > 1 ? one.score.sd : null) },
    { name: "± SE over items", value: (one) => one.score.standard_error, cell: (one) => numeric(one.score.standard_error) },
    { name: "lenient, %", value: (one) => one.score.lenient?.mean, cell: (one) => numeric(one.score.lenient?.mean) },
    {
      name: "runs × items",
      value: (one) => one.score.num_items,
      cell: (one) => element("td", {}, `${one.score.num_done ?? one.score.num_runs} × ${one.score.num_items}`),
    },
    { name: "failed", value: (one) => one.score.num_failed, cell: (one) => numeric(one.score.num_failed) },
  ];
  const rows = datasets.flatMap(([dataset, found]) =>
    Object.entries(about.labels)
      .filter(([row]) => found[row])
      .map(([row, label]) => ({ dataset, label, score: found[row] })),
  );
  const nodes = [element("h2", {}, "Scores")];
  if (series.length) {
    const title = `Score by data set, mean ± ${isOnce ? "SE over items" : "SD over runs"}`;
    const spec = { title, unit: "% solved", xTitle: "data set", kind: "bars", series };
    keep(charts, "scores", spec, true);
    nodes.push(charts.get("scores").node);
  }
  nodes.push(sortable(columns, rows, { caption: "Scores", order }));
  place.replaceChildren(...nodes);
}

function drawCurves(grid, charts, about, found, settings) {
  const marks = about.faults.map((fault) => ({
    step: fault.step,
    text: `step ${fault.step}: ${fault.event ?? fault.cause ?? "fault"}`,
  }));
  const wanted = [];
  const add = (key, spec) => {
    keep(charts, key, spec, spec.series.length > MANY);
    wanted.push(charts.get(key).node);
  };
  for (const { title, metrics: names, exact } of about.panels) {
    const series = Object.entries(names)
      .filter(([name]) => found[name]?.y.some((value) => value != null))
      .map(([name, label]) => ({ label, ...found[name] }));
    const flat = series.every((one) => one.y.every((value) => value === 0));
    if (!series.length || (flat && title !== "Reward")) continue;
    const unit = about.units[Object.keys(names).find((name) => found[name])];
    add(title, { title, unit, series, exact, marks, smoothing: settings.smoothing });
  }
  const shares = Object.entries(about.time_shares)
    .filter(([name]) => found[name])
    .map(([name, label]) => ({ label, ...found[name] }));
  if (shares.length)
    add("time", { title: "Where a step's time goes", unit: "share", kind: "stack", series: shares, yAxis: { range: [0, 1] } });
  const stops = Object.keys(found).filter((name) => name.startsWith("stop/"));
  if (stops.length)
    add("stops", {
      title: "Stop reasons",
      unit: "rollouts",
      kind: "stack",
      series: stops.map((name) => ({ label: name.slice(5).replaceAll("_", " "), ...found[name] })),
    });
  const shown = new Set([
    ...about.panels.flatMap((panel) => Object.keys(panel.metrics)),
    ...stops,
    ...Object.keys(about.time_shares),
  ]);
  const others = Object.keys(found)
    .filter((name) => !shown.has(name))
    .sort();
  if (others.length) {
    settings.redraw = () => drawCurves(grid, charts, about, found, settings);
    const picked = pick(settings, others);
    add(`other ${picked}`, {
      title: picked,
      unit: about.units[picked],
      series: [{ label: picked, ...found[picked] }],
      marks,
      smoothing: settings.smoothing,
    });
    wanted.push(settings.picker.node);
  }
  if (wanted.length !== grid.children.length || wanted.some((node, place) => node !== grid.children[place]))
    grid.replaceChildren(...wanted);
  if (!wanted.length) grid.replaceChildren(element("p", { class: "note" }, about.state === "running" ? "No step has been trained yet." : "No step was trained."));
}

/** The metric that is chosen among the others. The list stays the same node while it is up to date, so that it can stay open. */
function pick(settings, others) {
  if (settings.picker?.others.join() !== others.join()) {
    const chosen = settings.picker?.select.value;
    const options = others.map((name) => element("option", { value: name, selected: name === chosen }, name));
    const select = element("select", { onchange: () => settings.redraw() }, options);
    settings.picker = { others, select, node: element("label", {}, "another metric", select) };
  }
  return settings.picker.select.value;
}

function keep(charts, key, spec, wide) {
  if (charts.has(key)) charts.get(key).update(spec);
  else charts.set(key, chart(spec, { wide }));
}

function controls(settings, redraw) {
  const widths = { none: 0, little: 1 / 80, "as in the report": 1 / 40, much: 1 / 12 };
  const select = element(
    "select",
    {
      onchange: (event) => {
        settings.smoothing = widths[event.target.value];
        redraw();
      },
    },
    Object.keys(widths).map((name) => element("option", { selected: widths[name] === settings.smoothing }, name)),
  );
  return element(
    "div",
    { class: "controls" },
    element("label", {}, "smoothing", select),
    element(
      "p",
      { class: "note" },
      "Drag over a chart to zoom, click twice to go back. Dotted lines are faults. What is saved as CSV is not smoothed.",
    ),
  );
}
