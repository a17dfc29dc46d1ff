// One rollout: what is known of it, its branches as a tree, its turns or its coloured tokens, and where its time went.

import { get } from "./api.js";
import { anchor, counted, element, link, short } from "./dom.js";
import { timelineChart } from "./timeline.js";
import { tokenView } from "./tokens.js";
import { messageList, turnList } from "./turns.js";

export async function open(words) {
  const run = words.get("run"),
    id = words.get("id");
  const found = await get("rollout", { run, id });
  const list = JSON.parse(sessionStorage.getItem("rollouts") ?? "null"),
    content = element("div"),
    tree = found.line.samples.length ? element("div", { class: "card" }) : "";
  const state = {
    run,
    id,
    found,
    content,
    tree,
    sample: Math.min(Number(words.get("sample") ?? 0), found.line.samples.length - 1),
    mode: sessionStorage.getItem("tokens") ?? (/[?&]sort=advantage(&|$)/.test(list?.back) ? "advantage" : "none"),
  };
  const { line } = found;
  const isItem = "strict" in line;
  const name = isItem
    ? `Item ${line.index} of ${line.dataset}, ${[line.row, line.evaluation, `run ${line.run}`].filter(Boolean).join(", ")}`
    : `Rollout ${line.rollout_id} of step ${line.step}`;
  const nodes = [
    element("h1", {}, name),
    links(run, line, isItem, list),
    element(
      "div",
      { class: "columns" },
      element("div", {}, line.samples.length > 1 ? [tree, facts(line, isItem)] : [facts(line, isItem), tree]),
      element("div", {}, ...failure(line), ...given(line), content),
    ),
  ];
  const spans = timelineChart(found, line);
  if (spans) nodes.push(element("h2", {}, "Where its time went"), spans);
  if (line.samples.length) await choose(state, state.sample);
  else content.append(element("p", { class: "card" }, "It ended before the model had replied: there is no sequence of tokens."));
  return { title: name, nodes, runs: [run], keys: (key) => press(state, list, key) };
}

function links(run, line, isItem, list) {
  const parts = [];
  if (list?.run === run) parts.push(element("a", { href: list.back }, "Back to the table"));
  if (isItem) parts.push(anchor("item", { run, dataset: line.dataset, item: line.index }, "This item before and after training"));
  else
    parts.push(
      anchor("group", { run, group: line.group_index }, "Its group side by side"),
      anchor("rollouts", { run, dataset: line.dataset, item: line.row, kind: "training" }, "Same question in other steps"),
    );
  return element(
    "p",
    { class: "sub" },
    parts.flatMap((part, place) => (place ? [" · ", part] : [part])),
    list?.run === run ? " · keys: j and k lead to the next and the previous rollout" : "",
  );
}

function facts(line, isItem) {
  const rows = {
    [isItem ? "strict score" : "reward"]: isItem ? line.strict : line.reward,
    ...(line.metrics ?? {}),
    "stop reason": line.stop_reason,
    status: line.status,
    failed: isItem ? String(line.failed) : null,
    error: line.error,
    "new attempts": line.num_retries,
    "weight version": line.weight_version ?? line.version,
    seconds: line.generation_seconds,
    ...Object.fromEntries(Object.entries(line.seconds ?? {}).map(([kind, value]) => [`${kind} seconds`, value])),
    ...(line.counts ?? {}),
  };
  const shown = Object.entries(rows).filter(([, value]) => value != null && value !== "");
  return element(
    "div",
    { class: "card" },
    element(
      "table",
      { class: "facts" },
      element(
        "tbody",
        {},
        shown.map(([key, value]) =>
          element("tr", {}, element("td", {}, key.replaceAll("_", " ")), element("td", { title: String(value) }, short(value))),
        ),
      ),
    ),
  );
}

function failure(line) {
  const parts = [];
  if (line.traceback)
    parts.push(
      element("details", { class: "card", open: true }, element("summary", {}, "What was raised"), element("pre", {}, line.traceback)),
    );
  if (line.unfinished)
    parts.push(element("p", { class: "card" }, "The agent did not come to its end: this is what the model had said until then. It is not trained."));
  return parts;
}

function given(line) {
  const truth = line.ground_truth ?? line.label;
  const parts = [];
  if (line.messages?.length)
    parts.push(
      element(
        "details",
        { class: "card", open: JSON.stringify(line.messages).length < 3000 },
        element("summary", {}, "What the agent was given"),
        messageList(line.messages),
      ),
    );
  if (truth?.length)
    parts.push(
      element(
        "details",
        { class: "card" },
        element("summary", {}, "What the reward compares with"),
        element("div", { class: "text" }, truth.map(String).join("\n")),
      ),
    );
  return parts;
}

async function choose(state, number) {
  state.sample = number;
  drawTree(state);
  await drawSample(state);
}

function drawTree(state) {
  const { branches, line } = state.found;
  const node = (number) => {
    const sample = line.samples[number],
      { shared, unit, parent } = branches[number];
    const about = [sample.metadata?.kind, sample.metadata?.cause].filter((word) => typeof word === "string" && word).join(", ");
    const text =
      `${number + 1}. ${about || "sequence"} · ${sample.turns ? counted(sample.turns.filter((turn) => turn.kind === "reply").length, "reply", "replies") : "reply"}` +
      (sample.reward != null ? ` · reward ${short(sample.reward)}` : "") +
      (sample.remove_sample ? " · not trained" : "");
    const from = parent == null ? null : element("div", { class: "note" }, `leaves ${parent + 1} after ${short(shared)} ${unit}`);
    const children = branches.flatMap((branch, place) => (branch.parent === number ? [node(place)] : []));
    return element(
      "li",
      {},
      from,
      element(
        "button",
        { type: "button", "aria-pressed": String(number === state.sample), onclick: () => choose(state, number) },
        text,
      ),
      children.length ? element("ul", {}, children) : null,
    );
  };
  const roots = branches.flatMap((branch, place) => (branch.parent == null ? [node(place)] : []));
  state.tree.replaceChildren(
    element(
      "h3",
      {},
      line.samples.length === 1
        ? "One sequence"
        : `${line.samples.length} sequences${branches.some((branch) => branch.parent != null) ? ", as they branch" : ""}`,
    ),
    element("ul", { class: "tree", id: "branches" }, roots),
  );
}

const MODES = {
  none: "turns",
  mask: "mask",
  logprob: "logprob",
  difference: "difference to the trainer",
  advantage: "advantage",
  version: "weight version",
};

/** Whether its replies are trained; where tokens are recorded, those of a sequence that was left out lack the trainer's logprobs. */
const isTrained = (line, sample, names) =>
  !("strict" in line) && !line.unfinished && !sample.remove_sample && (names.includes("trainer_log_probs") || !names.includes("tokens"));
const UNTRAINED = "this sequence was not trained";

async function drawSample(state) {
  const { line, recorded } = state.found,
    sample = line.samples[state.sample];
  const names = recorded[state.sample],
    has = {
      none: true,
      mask: names.includes("loss_mask"),
      logprob: names.includes("rollout_log_probs"),
      difference: names.includes("trainer_log_probs"),
      advantage: names.includes("tokens") && sample.advantage != null,
      version: names.includes("tokens"),
    };
  const mode = has[state.mode] ? state.mode : "none";
  const buttons = Object.entries(MODES).map(([key, title]) =>
    element(
      "button",
      {
        type: "button",
        "data-mode": key,
        "aria-pressed": String(key === mode),
        disabled: !has[key],
        title: has[key] ? null : names.includes("tokens") ? UNTRAINED : "not recorded in this run (logger.rollouts=tokens)",
        onclick: () => {
          state.mode = key;
          sessionStorage.setItem("tokens", key);
          drawSample(state);
        },
      },
      title,
    ),
  );
  const bar = element(
    "div",
    { class: "controls", role: "group", "aria-label": "Colour of tokens" },
    element("span", { class: "soft" }, "show"),
    buttons,
  );
  const body =
    mode === "none"
      ? turnList(sample, { trained: isTrained(line, sample, names) })
      : tokenView(await get("tokens", { run: state.run, id: state.id, sample: state.sample }), mode);
  const about =
    sample.advantage != null ? `advantage ${short(sample.advantage)}` : line.step != null ? "no advantage recorded" : "";
  const size = `${counted(sample.num_prompt_tokens, "token")} of the prompt, ${short(sample.response_length)} after it`;
  const details = element(
    "details",
    { class: "card" },
    element("summary", {}, "What the agent noted"),
    element("pre", {}, JSON.stringify(sample.metadata, null, 1)),
  );
  state.content.replaceChildren(
    element("h2", {}, `Sequence ${state.sample + 1}`),
    element("p", { class: "note" }, [sample.num_prompt_tokens != null ? size : "", about].filter(Boolean).join(" · ")),
    bar,
    ...body,
    details,
  );
}

function press(state, list, key) {
  const last = state.found.line.samples.length - 1;
  if ((key === "j" || key === "k") && list?.run === state.run) {
    const place = list.ids.indexOf(Number(state.id)) + (key === "j" ? 1 : -1);
    if (list.ids[place] != null) location.hash = link("rollout", { run: state.run, id: list.ids[place] });
  } else if (key === "ArrowRight" && state.sample < last) choose(state, state.sample + 1);
  else if (key === "ArrowLeft" && state.sample > 0) choose(state, state.sample - 1);
  else return false;
  return true;
}
