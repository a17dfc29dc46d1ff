// Which items of a data set are scored differently by two rows: before and after training, or two evaluations on the way.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { anchor, element, link, numeric, short, sortable } from "./dom.js";

export async function open(words) {
  const run = words.get("run"),
    place = element("div"),
    order = {};
  let seen = "";
  const fill = async () => {
    const found = await read(run, words),
      now = JSON.stringify(found);
    if (now !== seen) place.replaceChildren(...draw(run, found, order));
    seen = now;
  };
  await fill();
  return { title: "Changed items", runs: [run], nodes: [element("h1", {}, "Changed items"), place], refresh: fill };
}

/** What is compared with what, and what came out: the rows that are asked for, otherwise the trained agent with what was before it. */
async function read(run, words) {
  const [facets, about] = await Promise.all([get("facets", { run }), get("run", { run })]);
  const datasets = facets.dataset.filter((name) => about.config.data.evaluation.some((one) => one.name === name));
  const steps = facets.label.filter((label) => label.startsWith("step")).sort((a, b) => a.localeCompare(b, "en", { numeric: true })),
    isOver = !steps.length || Object.values(about.datasets).some((scores) => scores.trained);
  const rows = [...facets.condition.filter((row) => row !== "trained" || isOver), ...steps.map((label) => `trained:${label}`)];
  if (!datasets.length || rows.length < 2) return { more: facets.more };
  const usual = ["single_turn", "scaffold", "trained"].filter((row) => rows.includes(row)),
    newest = usual.includes("trained") ? "trained" : rows.findLast((row) => row.startsWith("trained:"));
  const dataset = words.get("dataset") || datasets[0],
    second = words.get("second") || newest || usual.at(-1) || rows.at(-1),
    first = words.get("first") || usual.findLast((row) => row !== second) || rows[0];
  return { datasets, rows, dataset, first, second, ...(await get("items", { run, dataset, first, second })) };
}

function draw(run, found, order) {
  if (!found.rows) {
    const why = found.more ? "The files are still being read." : "There are no two evaluations to compare yet.";
    return [element("p", { class: "card" }, why)];
  }
  const { datasets, rows, dataset, first, second } = found;
  const select = (name, label, all, chosen) =>
    element(
      "label",
      {},
      label,
      element(
        "select",
        {
          onchange: (event) => {
            location.hash = link("items", { run, dataset, first, second, [name]: event.target.value });
          },
        },
        all.map((one) => element("option", { value: one, selected: one === chosen }, one.replace(":", ", "))),
      ),
    );
  return [
    element(
      "div",
      { class: "controls" },
      select("dataset", "data set", datasets, dataset),
      select("first", "from", rows, first),
      select("second", "to", rows, second),
    ),
    ...summary(found),
    ...pictures(found, first, second),
    table(run, dataset, found, order),
  ];
}

function summary({ items, paired }) {
  const count = (test) => items.filter((item) => test(item.second - item.first)).length;
  const text = `${count((by) => by > 0)} of ${items.length} items got better, ${count((by) => by < 0)} worse, ${count((by) => by === 0)} are scored as before.`;
  const sure =
    paired && !paired.problem
      ? ` Mean difference ${short(paired.difference)} points, 95\u00a0% interval ${short(paired.low)} to ${short(paired.high)} (paired bootstrap over ${paired.num_items} items)${paired.is_different ? "." : ", which includes 0."}`
      : "";
  return [
    element("p", {}, text, sure),
    paired?.problem ? element("p", { class: "note" }, `No interval: ${paired.problem}`) : null,
  ].filter(Boolean);
}

function pictures({ items }, first, second) {
  if (!items.length) return [];
  const counts = new Map();
  for (const item of items) {
    const by = Number((item.second - item.first).toFixed(3));
    counts.set(by, (counts.get(by) ?? 0) + 1);
  }
  const sorted = [...counts].sort(([a], [b]) => a - b);
  const series = [{ label: "items", x: sorted.map(([by]) => String(by)), y: sorted.map(([, number]) => number) }];
  return [
    chart(
      {
        title: `Difference of each item's mean score, ${second} minus ${first}`,
        unit: "items",
        xTitle: "difference of scores from 0 to 1",
        kind: "bars",
        series,
        xAxis: { type: "category" },
      },
      { wide: true },
    ).node,
  ];
}

function table(run, dataset, { items }, order) {
  const columns = [
    {
      name: "item",
      value: (one) => one.item,
      cell: (one) => element("td", {}, anchor("item", { run, dataset, item: one.item }, String(one.item))),
    },
    { name: "from", value: (one) => one.first, cell: (one) => numeric(one.first) },
    { name: "to", value: (one) => one.second, cell: (one) => numeric(one.second) },
    {
      name: "difference",
      value: (one) => one.second - one.first,
      cell: (one) =>
        numeric(one.second - one.first, { class: one.second < one.first ? "bad" : one.second > one.first ? "good" : null }),
    },
  ];
  return sortable(columns, items, { caption: "Items, those that fell most first", order });
}
