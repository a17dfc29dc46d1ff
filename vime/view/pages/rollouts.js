// The table of rollouts: filters, order, pages, and the keyboard (j, k, Enter, n, p, /).

import { get } from "./api.js";
import { anchor, element, link, numeric, problem, short } from "./dom.js";

const CHOICES = {
  kind: "kind",
  dataset: "data set",
  condition: "row",
  label: "evaluation",
  stop_reason: "stop reason",
  tool: "tool",
};
const RANGES = { step: "step", reward: "reward", advantage: "advantage", tokens: "tokens", turns: "turns" };
const SORTED = {
  step: "step",
  reward: "reward",
  advantage: "advantage",
  num_turns: "turns",
  num_tokens: "tokens",
  seconds: "seconds",
};

const LOWEST_FIRST = new Set(["reward", "advantage"]);
const ANY = "any"; // kind, in the address; an address without filters shows training, if there is any

export async function open(words) {
  const run = words.get("run"),
    facets = await get("facets", { run });
  if ([...words.keys()].join() === "run" && facets.kind?.includes("training")) words.set("kind", "training");
  const found = await search(words);
  const place = element("div"),
    filters = element("div");
  const state = { run, words, found, active: 0, place, filters };
  filters.append(form(state, facets));
  fill(state);
  return {
    title: "Rollouts",
    runs: [run],
    nodes: [element("h1", {}, "Rollouts"), filters, place],
    keys: (key) => press(state, key),
    refresh: () => load(state),
  };
}

/** Shows what other words find. The form stays, so that nothing that is being typed is lost; the address follows. */
async function go(state, changed) {
  const address = link("rollouts", { ...Object.fromEntries(state.words), page: null, ...changed });
  state.words = new URLSearchParams(address.split("?")[1]);
  state.active = 0;
  if (address !== location.hash) history.pushState(null, "", address);
  await load(state);
}

/** The rollouts that pass the filters of an address. */
function search(words) {
  const filters = Object.fromEntries(words);
  return get("rollouts", { ...filters, kind: filters.kind === ANY ? "" : filters.kind });
}

async function load(state) {
  const asked = state.words;
  const found = await search(asked);
  if (asked !== state.words) return; // a later question is on its way
  const isWhole = state.found.more && !found.more;
  state.found = found;
  fill(state);
  if (isWhole && !state.filters.contains(document.activeElement))
    state.filters.replaceChildren(form(state, await get("facets", { run: state.run })));
}

function form(state, facets) {
  const value = (name) => state.words.get(name) ?? "";
  const choice = ([name, label]) =>
    facets[name]?.length
      ? element(
          "label",
          {},
          label,
          element(
            "select",
            { name },
            element("option", { value: name === "kind" ? ANY : "" }, "any"),
            facets[name].map((one) => element("option", { value: one, selected: one === value(name) }, one)),
          ),
        )
      : null;
  const number = (name, label) =>
    element("input", {
      type: "number",
      step: "any",
      name,
      value: value(name),
      "aria-label": label,
      placeholder: label.split(" ")[1],
    });
  const range = ([name, label]) =>
    element(
      "label",
      {},
      label,
      element("span", {}, number(`min_${name}`, `${label} from`), " ", number(`max_${name}`, `${label} to`)),
    );
  const failed = element(
    "label",
    {},
    "failed",
    element(
      "select",
      { name: "failed" },
      [
        ["", "any"],
        ["1", "yes"],
        ["0", "no"],
      ].map(([key, text]) => element("option", { value: key, selected: key === value("failed") }, text)),
    ),
  );
  const text = element(
    "label",
    {},
    'text (words, word*, "a phrase")',
    element("input", { type: "search", name: "text", value: value("text") }),
  );
  const send = (event) => {
    event.preventDefault();
    const found = Object.fromEntries(new FormData(made));
    go(state, found);
  };
  const made = element(
    "form",
    { onsubmit: send, onchange: send, "aria-label": "Filters" },
    Object.entries(CHOICES).map(choice),
    failed,
    Object.entries(RANGES).map(range),
    text,
    element("button", {}, "Find"),
    element(
      "button",
      {
        type: "button",
        onclick: () => {
          location.hash = link("rollouts", { run: state.run });
        },
      },
      "Clear",
    ),
  );
  return made;
}

function fill(state) {
  const { found, words, run } = state;
  const sort = words.get("sort") ?? "",
    up = words.get("order") === "up",
    page = Number(words.get("page") ?? 0),
    first = page * found.page_size;
  const heading = (title, key) =>
    element(
      "th",
      { class: key ? null : "left", "aria-sort": key && key === sort ? (up ? "ascending" : "descending") : "none" },
      key
        ? element(
            "button",
            { type: "button", onclick: () => go(state, { sort: key, order: (key === sort ? !up : LOWEST_FIRST.has(key)) ? "up" : "down" }) },
            title,
          )
        : title,
    );
  const head = element(
    "tr",
    {},
    heading("kind"),
    heading("data set"),
    heading("item"),
    heading("stop reason"),
    ...Object.entries(SORTED).map(([key, title]) => heading(title, key)),
  );
  const rows = found.rows.map((row) =>
    element(
      "tr",
      {
        "data-href": link("rollout", { run, id: row.id }),
        onclick: (event) => {
          if (!event.target.closest("a")) openRow(state, row);
        },
      },
      element(
        "td",
        {},
        element(
          "a",
          { href: link("rollout", { run, id: row.id }), onclick: () => remember(state) },
          row.kind === "evaluation"
            ? [row.condition, row.label, `run ${row.run}`].filter(Boolean).join(", ")
            : `rollout ${row.rollout_id}`,
        ),
      ),
      element("td", { class: "left" }, row.dataset),
      element("td", { class: "left", title: row.item }, beside(run, row)),
      element("td", { class: row.failed ? "left bad" : "left" }, row.stop_reason + (row.failed ? " (failed)" : "")),
      ...Object.keys(SORTED).map((key) => numeric(row[key])),
    ),
  );
  const last = Math.min(first + found.page_size, found.total);
  const counted = element(
    "p",
    { class: "note", role: "status", id: "found" },
    found.total ? `${short(first + 1)} to ${short(last)} of ${short(found.total)} rollouts` : "No rollout passes these filters.",
    found.more ? "; the files are still being read" : "",
    found.total ? " · keys: j and k move, Enter opens, n and p turn pages, / searches" : "",
  );
  const turn = (by, title, off) =>
    element("button", { type: "button", disabled: off, onclick: () => go(state, { page: page + by }) }, title);
  const problems = Object.entries(found.problems).map(([name, why]) => problem(`${name} is not read to its end: ${why}`));
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, rows));
  state.place.replaceChildren(
    ...problems,
    counted,
    element("div", { class: "card" }, table),
    element("div", { class: "controls" }, turn(-1, "Earlier page", page === 0), turn(1, "Next page", last >= found.total)),
  );
  mark(state, Math.min(state.active, rows.length - 1));
  if (found.more)
    setTimeout(() => {
      if (state.place.isConnected) load(state);
    }, 500);
}

/** The number of an item, which leads to its group, or to its evaluations before and after training. */
function beside(run, row) {
  if (row.kind === "evaluation") return anchor("item", { run, dataset: row.dataset, item: row.item }, short(row.item));
  return row.group_index == null ? short(row.item) : anchor("group", { run, group: row.group_index }, short(row.item));
}

function mark(state, number) {
  const rows = state.place.querySelectorAll("tbody tr");
  if (!rows.length) return;
  state.active = Math.max(0, Math.min(rows.length - 1, number));
  rows.forEach((row, place) => row.classList.toggle("active", place === state.active));
  if (number > 0) rows[state.active].scrollIntoView({ block: "nearest" });
}

/** The order of this page, by which a rollout's page leads to the next one. */
function remember(state) {
  sessionStorage.setItem(
    "rollouts",
    JSON.stringify({ run: state.run, back: location.hash, ids: state.found.rows.map((row) => row.id) }),
  );
}

function openRow(state, row) {
  remember(state);
  location.hash = link("rollout", { run: state.run, id: row.id });
}

function press(state, key) {
  const page = Number(state.words.get("page") ?? 0);
  if (key === "j" || key === "ArrowDown") mark(state, state.active + 1);
  else if (key === "k" || key === "ArrowUp") mark(state, state.active - 1);
  else if (key === "Enter" && document.activeElement.closest("a, button")) return false;
  else if (key === "Enter" && state.found.rows.length) openRow(state, state.found.rows[state.active]);
  else if (key === "n" && (page + 1) * state.found.page_size < state.found.total) go(state, { page: page + 1 });
  else if (key === "p" && page > 0) go(state, { page: page - 1 });
  else if (key === "/") document.querySelector("input[name=text]").focus();
  else return false;
  return true;
}
