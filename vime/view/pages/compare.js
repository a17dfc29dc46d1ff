// Several runs: curves over one another, settings that differ, scores, paired differences, and sweeps as parallel coordinates.

import { curves, get, metrics, withEnds } from "./api.js";
import { chart } from "./chart.js";
import { anchor, element, link, numeric, short, sortable } from "./dom.js";
import { pairs } from "./pairs.js";
import { parallelChart } from "./parallel.js";

const METRICS = [
  "reward/mean",
  "reward/strict",
  "train/loss",
  "train/grad_norm",
  "train/kl",
  "train/entropy",
  "train/logprob_difference_max",
  "rollout/turns_mean",
  "rollout/response_tokens_mean",
  "time/step_seconds",
];

export async function open(words) {
  const { runs } = await get("runs");
  const first = words.get("run"),
    names =
      words.getAll("run").length > 1
        ? words.getAll("run")
        : [first, ...runs.map((run) => run.name).filter((name) => name !== first)].slice(0, 2);
  const state = {
    names,
    charts: new Map(),
    grid: element("div", { class: "charts" }),
    scores: element("div"),
    pairs: element("div"),
    units: {},
    other: null,
    order: {}, // of the tables
  };
  const [found] = await Promise.all([get("compare", { run: names }), load(state)]);
  state.labels = found.labels;
  const fill = (now) => {
    state.curves = now.runs.map((run, place) => withEnds(state.curves[place], run.datasets, run.num_steps));
    draw(state);
    state.scores.replaceChildren(scores(now, state), ...parallelChart(now, state));
    const told = JSON.stringify(now.runs);
    if (told !== state.told && names.length > 1) pairs(state.pairs, names, state.labels, state.order);
    state.told = told;
  };
  fill(found);
  const nodes = [
    element("h1", {}, `${names.length} runs`),
    choice(runs, names),
    element("h2", {}, "Curves"),
    state.grid,
    element("h2", {}, "Settings that differ"),
    settings(found, state.labels),
    element("h2", {}, "Scores"),
    state.scores,
    state.pairs,
  ];
  return {
    title: "Comparison",
    nodes,
    runs: names,
    async refresh() {
      const [now] = await Promise.all([get("compare", { run: names }), load(state)]);
      fill(now);
    },
  };
}

async function load(state) {
  state.curves = await Promise.all(state.names.map(async (run) => curves(await metrics(run))));
  if (state.curves.every((found) => Object.keys(found).every((name) => name in state.units))) return;
  const abouts = await Promise.all(state.names.map((run) => get("run", { run })));
  state.units = Object.assign({}, ...abouts.map((about) => about.units));
}

function choice(runs, names) {
  const boxes = runs.map((run) =>
    element(
      "label",
      { class: "line" },
      element("input", { type: "checkbox", value: run.name, checked: names.includes(run.name) }),
      run.name,
    ),
  );
  const send = (event) => {
    event.preventDefault();
    const chosen = [...form.querySelectorAll("input:checked")].map((box) => box.value);
    if (chosen.length > 1)
      location.hash = link("compare", {
        run: [...names.filter((name) => chosen.includes(name)), ...chosen.filter((name) => !names.includes(name))],
      });
  };
  const form = element("form", { onsubmit: send }, boxes, element("button", {}, "Compare"));
  return element("details", { class: "card", open: runs.length <= 8 }, element("summary", {}, "Which runs"), form);
}

function draw(state) {
  const all = [...new Set(state.curves.flatMap((found) => Object.keys(found)))].sort();
  const evaluations = all.filter((name) => name.startsWith("evaluation/"));
  const shown = [...METRICS.slice(0, 1), ...evaluations, ...METRICS.slice(1)].filter((name) => all.includes(name));
  state.other ??= all.find((name) => !shown.includes(name));
  const nodes = [...shown, state.other].filter(Boolean).map((name, place) => {
    const series = state.names.flatMap((run, number) =>
      state.curves[number][name] ? [{ label: state.labels[number], number, ...state.curves[number][name] }] : [],
    );
    const spec = { title: name, unit: state.units[name], series, smoothing: 1 / 40, legend: true },
      key = place < shown.length ? name : "other";
    if (state.charts.has(key)) state.charts.get(key).update(spec);
    else state.charts.set(key, chart(spec));
    return key === "other" ? relabelled(state, key, spec) : state.charts.get(key).node;
  });
  const select = element(
    "select",
    {
      onchange: (event) => {
        state.other = event.target.value;
        state.charts.delete("other");
        draw(state);
      },
    },
    all.map((name) => element("option", { selected: name === state.other }, name)),
  );
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
  const columns = [
    { name: "setting", value: ([key]) => key, cell: ([key]) => element("td", {}, key) },
    ...names.map((name, place) => ({
      name,
      left: true,
      value: ([, values]) => values[place],
      cell: ([, values]) => element("td", { class: "left" }, values[place]),
    })),
  ];
  return sortable(columns, rows, { caption: "Settings that differ", wrap: true });
}

function scores({ runs }, state) {
  const keys = [
    ...new Set(
      runs.flatMap((run) =>
        Object.entries(run.datasets).flatMap(([dataset, rows]) =>
          Object.keys(rows).map((row) => `${dataset}\n${row}`),
        ),
      ),
    ),
  ];
  const score = (run, key) => {
    const [dataset, row] = key.split("\n");
    return run.datasets[dataset]?.[row];
  };
  const last = (place, name) => state.curves[place][name]?.y.at(-1);
  const rows = runs.map((run, place) => ({ run, place }));
  const columns = [
    {
      name: "run",
      value: ({ run }) => run.name,
      cell: ({ run, place }) => element("td", { class: "name" }, anchor("overview", { run: run.name }, state.labels[place])),
    },
    {
      name: "state",
      left: true,
      value: ({ run }) => run.state,
      cell: ({ run }) => element("td", { class: `left ${run.state}` }, run.state),
    },
    {
      name: "last reward",
      value: ({ place }) => last(place, "reward/mean"),
      cell: ({ place }) => numeric(last(place, "reward/mean")),
    },
    ...keys.map((key) => ({
      name: key.replace("\n", ", ").replaceAll("_", " "),
      value: ({ run }) => score(run, key)?.mean,
      cell: ({ run }) => {
        const one = score(run, key);
        return element("td", { title: one?.mean == null ? null : String(one.mean) }, scoreText(one));
      },
    })),
    {
      name: "wall seconds",
      value: ({ run }) => run.wall_seconds,
      cell: ({ run }) => numeric(run.wall_seconds),
    },
  ];
  return sortable(columns, rows, {
    caption: "Scores of the runs, mean ± standard deviation over runs of the evaluation, in percent",
    order: state.order,
  });
}

function scoreText(score) {
  if (!score) return "–";
  if (score.mean == null) return `${score.num_done} of ${score.num_runs} runs`;
  return score.mean.toFixed(1) + (score.num_runs > 1 ? ` ± ${score.sd.toFixed(1)}` : "");
}
