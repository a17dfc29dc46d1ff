// Several runs: curves over one another, settings that differ, scores, paired differences, and sweeps as parallel coordinates.

import { curves, get, metrics } from "./api.js";
import { chart } from "./chart.js";
import { anchor, element, link, numeric, problem, short, sortable } from "./dom.js";

const METRICS = ["reward/mean", "reward/strict", "train/loss", "train/grad_norm", "train/kl", "train/entropy", "train/logprob_difference_max", "rollout/turns_mean", "rollout/response_tokens_mean", "time/step_seconds"];

export async function open(words) {
  const { runs } = await get("runs");
  const first = words.get("run"), names = words.getAll("run").length > 1 ? words.getAll("run") : [first, ...runs.map((run) => run.name).filter((name) => name !== first)].slice(0, 2);
  const state = { names, charts: new Map(), grid: element("div", { class: "charts" }), other: null };
  const [found, abouts] = await Promise.all([get("compare", { run: names }), Promise.all(names.map((run) => get("run", { run }))), load(state)]);
  state.units = Object.assign({}, ...abouts.map((about) => about.units));
  draw(state);
  const nodes = [element("h1", {}, `${names.length} runs`), choice(runs, names), element("h2", {}, "Curves"), state.grid, element("h2", {}, "Settings that differ"), settings(found, names),
    element("h2", {}, "Scores"), scores(found, state), ...pairs(found, abouts), ...parallel(found, state)];
  return { title: "Comparison", nodes, runs: names, async refresh() { await load(state); draw(state); } };
}

async function load(state) {
  state.curves = await Promise.all(state.names.map(async (run) => curves(await metrics(run))));
}

function choice(runs, names) {
  const boxes = runs.map((run) => element("label", { class: "line" }, element("input", { type: "checkbox", value: run.name, checked: names.includes(run.name) }), run.name));
  const send = (event) => {
    event.preventDefault();
    const chosen = [...form.querySelectorAll("input:checked")].map((box) => box.value);
    if (chosen.length > 1) location.hash = link("compare", { run: [...names.filter((name) => chosen.includes(name)), ...chosen.filter((name) => !names.includes(name))] });
  };
  const form = element("form", { onsubmit: send }, boxes, element("button", {}, "Compare"));
  return element("details", { class: "card", open: runs.length <= 8 }, element("summary", {}, "Which runs"), form);
}

function draw(state) {
  const all = [...new Set(state.curves.flatMap((found) => Object.keys(found)))].sort();
  const shown = METRICS.filter((name) => all.includes(name));
  state.other ??= all.find((name) => !shown.includes(name));
  const nodes = [...shown, state.other].filter(Boolean).map((name, place) => {
    const series = state.names.flatMap((run, number) => (state.curves[number][name] ? [{ label: run, number, ...state.curves[number][name] }] : []));
    const spec = { title: name, unit: state.units[name], series, smoothing: 1 / 40 }, key = place < shown.length ? name : "other";
    if (state.charts.has(key)) state.charts.get(key).update(spec); else state.charts.set(key, chart(spec));
    return key === "other" ? relabelled(state, key, spec) : state.charts.get(key).node;
  });
  const select = element("select", { onchange: (event) => { state.other = event.target.value; state.charts.delete("other"); draw(state); } }, all.map((name) => element("option", { selected: name === state.other }, name)));
  state.grid.replaceChildren(...nodes, element("label", {}, "another metric", select));
}

function relabelled(state, key, spec) {
  const node = state.charts.get(key).node;
  node.querySelector("figcaption span").textContent = spec.title;
  return node;
}

function settings({ differences }, names) {
  const rows = Object.entries(differences);
  if (!rows.length) return element("p", { class: "card" }, "The configurations are the same.");
  const columns = [{ name: "setting", value: ([key]) => key, cell: ([key]) => element("td", {}, key) }, ...names.map((name, place) => ({ name, left: true, value: ([, values]) => values[place], cell: ([, values]) => element("td", { class: "left" }, values[place]) }))];
  return sortable(columns, rows, { caption: "Settings that differ" });
}

function scores({ runs }, state) {
  const keys = [...new Set(runs.flatMap((run) => Object.entries(run.summary?.datasets ?? {}).flatMap(([dataset, rows]) => Object.keys(rows).map((row) => `${dataset}\n${row}`))))];
  const score = (run, key) => { const [dataset, row] = key.split("\n"); return run.summary?.datasets[dataset]?.[row]; };
  const last = (place, name) => state.curves[place][name]?.y.at(-1);
  const rows = runs.map((run, place) => ({ run, place }));
  const columns = [
    { name: "run", value: ({ run }) => run.name, cell: ({ run }) => element("td", {}, anchor("overview", { run: run.name }, run.name)) },
    { name: "state", left: true, value: ({ run }) => run.state, cell: ({ run }) => element("td", { class: `left ${run.state}` }, run.state) },
    { name: "last reward", value: ({ place }) => last(place, "reward/mean"), cell: ({ place }) => numeric(last(place, "reward/mean")) },
    ...keys.map((key) => ({ name: key.replace("\n", ", ").replaceAll("_", " "), value: ({ run }) => score(run, key)?.mean, cell: ({ run }) => {
      const one = score(run, key);
      return element("td", { title: one ? String(one.mean) : null }, one ? `${short(one.mean)} ± ${short(one.sd)}` : "–");
    } })),
    { name: "wall seconds", value: ({ run }) => run.summary?.wall_seconds, cell: ({ run }) => numeric(run.summary?.wall_seconds) },
  ];
  return sortable(columns, rows, { caption: "Scores of the runs, mean ± standard deviation over runs of the evaluation, in percent" });
}

function pairs({ paired, runs }) {
  if (!paired.length) return [];
  const good = paired.filter((pair) => !pair.problem), bad = paired.filter((pair) => pair.problem);
  const nodes = [element("h2", {}, `Paired differences to ${runs[0].name}`), element("p", { class: "note" }, "Second minus first in points of 0 to 100, over the same items, with a 95 % interval of a bootstrap over items.")];
  const names = good.map((pair) => `${pair.run}: ${pair.dataset}, ${pair.row}`.replaceAll("_", " "));
  if (good.length) {
    const series = [{ label: "difference", x: names, y: good.map((pair) => pair.difference), error: good.map((pair) => pair.high - pair.difference), below: good.map((pair) => pair.difference - pair.low), text: good.map((pair) => `${short(pair.low)} to ${short(pair.high)}`) }];
    nodes.push(chart({ title: "Paired differences with 95 % intervals", unit: "points", xTitle: "", kind: "dots", exact: true, series, xAxis: { type: "category", tickformat: "" } }, { wide: true }).node);
    const columns = [["run", "run"], ["data set", "dataset"], ["row", "row"], ["first", "first"], ["second", "second"], ["difference", "difference"], ["from", "low"], ["to", "high"], ["better", "num_better"], ["worse", "num_worse"], ["items", "num_items"]];
    nodes.push(sortable(columns.map(([name, key]) => ({ name, left: typeof good[0][key] === "string", value: (pair) => pair[key], cell: (pair) => numeric(pair[key], { class: typeof pair[key] === "string" ? "left" : null }) })), good, { caption: "Paired differences" }));
  }
  return [...nodes, ...bad.map((pair) => problem(`${pair.run}: ${pair.problem}`))];
}

function parallel(found, state) {
  const number = (text) => (text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);
  const axes = Object.entries(found.differences).filter(([, values]) => values.every((text) => number(text) != null)).map(([name, values]) => ({ name, values: values.map(number) }));
  axes.push({ name: "last reward", values: state.curves.map((one) => one["reward/mean"]?.y.at(-1) ?? null) });
  for (const dataset of Object.keys(found.runs.find((run) => run.summary)?.summary.datasets ?? {})) axes.push({ name: `${dataset}, trained`, values: found.runs.map((run) => run.summary?.datasets[dataset]?.trained?.mean ?? null) });
  const usable = axes.filter((axis) => axis.values.some((value) => value != null));
  if (usable.length < 2) return [];
  const ends = usable.map(({ values }) => { const all = values.filter((value) => value != null); return [Math.min(...all), Math.max(...all)]; });
  const scaled = (value, [low, high]) => (value == null ? null : high === low ? 0.5 : (value - low) / (high - low));
  const series = state.names.map((run, place) => ({ label: run, x: usable.map((axis) => axis.name), y: usable.map((axis, one) => scaled(axis.values[place], ends[one])), text: usable.map((axis) => `${axis.name} = ${short(axis.values[place])}`) }));
  const notes = usable.flatMap((axis, place) => [[0, ends[place][0], "top"], [1, ends[place][1], "bottom"]].map(([y, value, yanchor]) => ({ x: place, y, text: short(value), showarrow: false, yanchor, yshift: yanchor === "top" ? -4 : 4 })));
  const shapes = usable.map((_, place) => ({ type: "line", x0: place, x1: place, y0: 0, y1: 1, line: { color: "gray", width: 1 } }));
  return [element("h2", {}, "Settings and results"), chart({ title: "Parallel coordinates: each line is a run", unit: "", xTitle: "", kind: "points", exact: true, series, shapes, annotations: notes, xAxis: { type: "category", tickformat: "" }, yAxis: { visible: false, range: [-0.15, 1.15] } }, { wide: true }).node];
}
