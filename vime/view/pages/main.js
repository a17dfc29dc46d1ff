// The page: shows the view that the address names, keeps it up to date, and listens to the keyboard.

import { get } from "./api.js";
import { anchor, element, problem } from "./dom.js";
import * as compare from "./compare.js";
import * as items from "./items.js";
import * as overview from "./overview.js";
import * as beside from "./beside.js";
import * as rollout from "./rollout.js";
import * as rollouts from "./rollouts.js";
import * as runs from "./runs.js";

const VIEWS = {
  runs: runs.open,
  overview: overview.open,
  rollouts: rollouts.open,
  rollout: rollout.open,
  items: items.open,
  compare: compare.open,
  group: beside.openGroup,
  item: beside.openItem,
};
const TABS = { overview: "Overview", rollouts: "Rollouts", items: "Changed items", compare: "Comparison" };
const POLL_MILLISECONDS = 2000;

const main = document.getElementById("main"),
  live = document.getElementById("live");
let current = null,
  shown = 0,
  seen = "";

function address() {
  const [page, words] = location.hash.slice(1).split("?");
  return { page: page in VIEWS ? page : "runs", words: new URLSearchParams(words ?? "") };
}

async function show() {
  const { page, words } = address(),
    number = ++shown;
  document.getElementById("tabs").replaceChildren(...tabs(page, words));
  live.textContent = "loading …";
  try {
    const before = await changes(words.getAll("run"));
    const view = await VIEWS[page](words);
    if (number !== shown) return;
    current = view;
    seen = view.runs.join() === words.getAll("run").join() ? before : "";
    document.title = `${view.title} · vime`;
    main.replaceChildren(...view.nodes);
  } catch (error) {
    if (number !== shown) return;
    current = null;
    main.replaceChildren(problem(error.message));
  }
  live.textContent = "";
  scrollTo(0, 0);
}

function tabs(page, words) {
  const run = words.get("run");
  if (!run) return [];
  const name = element("span", { class: "run" }, run);
  return [
    name,
    ...Object.entries(TABS).map(([key, title]) => {
      const tab = anchor(key, { run }, title);
      if (key === page) tab.setAttribute("aria-current", "page");
      return tab;
    }),
  ];
}

/** A text that changes when one of these runs does; without any, when there are others. */
const changes = async (runs) => JSON.stringify(await get("changes", { run: runs }));

async function poll() {
  if (document.hidden || !current) return;
  const view = current;
  try {
    const now = await changes(view.runs);
    if (view !== current) return;
    if (seen && now !== seen) await view.refresh?.();
    else if (now.includes("running")) await view.follow?.();
    seen = now;
    live.textContent = now.includes("running") ? "live" : "";
  } catch (error) {
    live.textContent = "no answer from the viewer";
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (current?.keys?.(event.key, event)) event.preventDefault();
});
addEventListener("hashchange", show);
document.addEventListener("visibilitychange", poll);
if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname + location.hash);
await show();
setInterval(poll, POLL_MILLISECONDS);
