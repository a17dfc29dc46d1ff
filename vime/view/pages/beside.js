// Rollouts side by side: those of a group, or all evaluations of an item.

import { get } from "./api.js";
import { anchor, counted, element, short } from "./dom.js";
import { messageList } from "./turns.js";

const EMPTY = ["It ended before the model had replied.", "The last message calls a tool and has no text."];

export async function openGroup(words) {
  const run = words.get("run"),
    group = words.get("group");
  const { rollouts } = await get("group", { run, group });
  const rewards = rollouts.map((row) => row.reward),
    mean = rewards.reduce((sum, one) => sum + one, 0) / rewards.length;
  const equal = new Set(rewards).size < 2;
  const about = rollouts.length
    ? `Step ${rollouts[0].step}, ${rollouts[0].dataset}, item ${rollouts[0].item}: ${rollouts.length} rollouts, mean reward ${short(mean)}` +
      (equal ? "; all rewards are equal, so the group teaches nothing" : "")
    : "The group has no rollouts in the files that are left.";
  return {
    title: `Group ${group}`,
    runs: [run],
    nodes: [
      element("h1", {}, `Group ${group}`),
      element("p", { class: "sub" }, about),
      ...question(rollouts),
      cards(run, rollouts),
    ],
  };
}

export async function openItem(words) {
  const run = words.get("run"),
    dataset = words.get("dataset"),
    item = words.get("item");
  const { rollouts } = await get("item", { run, dataset, item });
  const groups = new Map();
  for (const row of rollouts) {
    const degree = row.label === "temperature" ? ` ${short(row.temperature)}` : "", // one of its own, beside the evaluation's
      name = row.label ? `${row.condition}, ${row.label}${degree}` : row.condition;
    groups.set(name, [...(groups.get(name) ?? []), row]);
  }
  const ordered = [...groups].sort(([, a], [, b]) => a[0].step - b[0].step || order(a[0].condition) - order(b[0].condition));
  const parts = ordered.map(([name, rows]) =>
    element(
      "section",
      {},
      element(
        "h2",
        {},
        `${name} (weights of step ${rows[0].step})`,
        element("span", { class: "note" }, ` mean score ${short(rows.reduce((sum, row) => sum + row.reward, 0) / rows.length)}`),
      ),
      cards(run, rows),
    ),
  );
  const isOnce = ordered.every(([, rows]) => rows.length === 1); // then all evaluations have room beside each other
  return {
    title: `Item ${item}`,
    runs: [run],
    nodes: [element("h1", {}, `Item ${item} of ${dataset}, before and after`), ...question(rollouts), element("div", { class: isOnce ? "beside" : null }, parts)],
  };
}

const order = (condition) => ["single_turn", "scaffold", "trained"].indexOf(condition);

function question(rollouts) {
  const messages = rollouts.find((row) => row.messages.length)?.messages;
  return messages
    ? [
        element(
          "details",
          { class: "card", open: JSON.stringify(messages).length < 2000 },
          element("summary", {}, "The question"),
          messageList(messages),
        ),
      ]
    : [];
}

function cards(run, rollouts) {
  return element(
    "div",
    { class: "beside" },
    rollouts.map((row) =>
      element(
        "section",
        { class: "card" },
        element(
          "h3",
          {},
          anchor("rollout", { run, id: row.id }, row.kind === "evaluation" ? `run ${row.run}` : `rollout ${row.rollout_id}`),
        ),
        element("div", { class: `reward ${row.reward > 0 ? "good" : "soft"}`, title: String(row.reward) }, short(row.reward)),
        element(
          "p",
          { class: "note" },
          [
            row.advantage != null ? `advantage ${short(row.advantage)}` : null,
            row.stop_reason + (row.failed ? " (failed)" : ""),
            counted(row.num_turns, "turn"),
            counted(row.num_tokens, "token"),
            row.seconds != null ? `${short(row.seconds)} s` : null,
          ]
            .filter(Boolean)
            .map((part) => part.replaceAll(" ", "\u00a0")) // a number stays beside its unit
            .join(" · "),
        ),
        row.error ? element("div", { class: "text bad" }, row.error) : null,
        element("div", { class: "text" }, row.response.trim() || EMPTY[Number(row.num_samples > 0)]),
      ),
    ),
  );
}
