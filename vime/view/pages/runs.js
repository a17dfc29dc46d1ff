// The list of runs, and which of them to compare.

import { get } from "./api.js";
import { anchor, duration, element, link, numeric, short } from "./dom.js";

export async function open() {
  const place = element("div"),
    chosen = new Set();
  const fill = async () => draw(place, (await get("runs")).runs, chosen);
  await fill();
  const nodes = [element("h1", {}, "Runs"), element("p", { class: "sub" }, "Those that were started last stand first."), place];
  return { title: "Runs", nodes, runs: [], refresh: fill };
}

function draw(place, runs, chosen) {
  const compare = element(
    "button",
    {
      type: "button",
      disabled: chosen.size < 2,
      onclick: () => {
        location.hash = link("compare", { run: [...chosen] });
      },
    },
    "Compare the chosen runs",
  );
  const choose = (name) => (event) => {
    if (event.target.checked) chosen.add(name);
    else chosen.delete(name);
    compare.disabled = chosen.size < 2;
  };
  const sweeps = sweepsOf(runs.map((run) => run.name));
  const rows = runs.map((run) =>
    element(
      "tr",
      {},
      element(
        "td",
        {},
        element("input", {
          type: "checkbox",
          "aria-label": `compare ${run.name}`,
          checked: chosen.has(run.name),
          onchange: choose(run.name),
        }),
      ),
      element("td", { class: "left" }, anchor("overview", { run: run.name }, run.name)),
      element("td", { class: "left" }, anchor("rollouts", { run: run.name }, "rollouts")),
      element("td", { class: `left ${run.state}` }, run.state),
      element("td", {}, run.num_steps ? `${short(run.step)} / ${short(run.num_steps)}` : "–"),
      element("td", { title: "left, without evaluations" }, duration(run.eta_seconds)),
      numeric(run.reward),
      element("td", { class: "left sweep" }, ...whole(run.name, sweeps)),
    ),
  );
  const table = element(
    "table",
    { class: "runs" },
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        ["", "run", "", "state"].map((name) => element("th", { class: "left" }, name)),
        ["steps", "left", "last reward"].map((name) => element("th", {}, name)),
        element("th", {}),
      ),
    ),
    element("tbody", {}, rows),
  );
  if (runs.length) place.replaceChildren(element("div", { class: "card" }, table), compare);
  else place.replaceChildren(element("div", { class: "card" }, "There is no run in the folders that the viewer was given yet."));
}

/** The runs of each sweep, which stand in folders with numbers below the same folder. */
function sweepsOf(names) {
  const found = new Map();
  for (const name of names) if (/(^|\/)\d+$/.test(name)) found.set(above(name), [...(found.get(above(name)) ?? []), name]);
  return found;
}

const above = (name) => name.slice(0, Math.max(0, name.lastIndexOf("/")));

function whole(name, sweeps) {
  const runs = sweeps.get(above(name)) ?? [];
  if (runs.length < 2 || !runs.includes(name)) return [];
  const sorted = [...runs].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  return [anchor("compare", { run: sorted }, `compare the ${runs.length} runs of its sweep`)];
}
