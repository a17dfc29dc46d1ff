// What a run said: its faults, what the method says of its evaluations, and the console with the ends of all logs.

import { get } from "./api.js";
import { element, numeric, sortable } from "./dom.js";

export function faults(about, order) {
  if (!about.faults.length) return [];
  const names = [...new Set(about.faults.flatMap((fault) => Object.keys(fault)))];
  const columns = names.map((name) => ({
    name: name.replaceAll("_", " "),
    left: true,
    value: (fault) => fault[name],
    cell: (fault) => element("td", { class: "left" }, String(fault[name] ?? "")),
  }));
  return [element("h2", {}, "Faults"), sortable(columns, about.faults, { caption: "Faults", order })];
}

export function evalLogs(about, order) {
  const logs = Object.entries(about.eval_logs);
  const names = [...new Set(logs.flatMap(([, log]) => Object.keys(log.metrics ?? {})))].sort();
  if (!names.length) return [];
  const columns = [
    { name: "metric", value: (name) => name, cell: (name) => element("td", {}, name.replaceAll("_", " ")) },
    ...logs.map(([evaluation, log]) => ({
      name: evaluation,
      value: (name) => log.metrics?.[name],
      cell: (name) => numeric(log.metrics?.[name]),
    })),
  ];
  return [element("h2", {}, "What the method says of its evaluations"), sortable(columns, names, { caption: "Evaluation logs", order })];
}

/** The lines of the steps, or the end of a log that is chosen, which stays chosen; `follow` reads the log again. */
export function consoleLog(run) {
  let steps = [],
    logs = [];
  const text = element("pre", { class: "log", tabindex: "0", "aria-label": "console" }),
    select = element("select", { onchange: () => show(true) }, element("option", { value: "" }, "steps"));
  const show = async (toEnd) => {
    const name = select.value,
      isAtEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 4;
    const said = name ? (await get("log", { run, name })).text || "The log is empty." : steps.join("\n") || "No step has ended yet.";
    if (name !== select.value || said === text.textContent) return;
    text.textContent = said;
    if (toEnd || isAtEnd) requestAnimationFrame(() => (text.scrollTop = text.scrollHeight)); // the page may not show it yet
  };
  const node = element(
    "section",
    {},
    element("h2", {}, "Console"),
    element("div", { class: "controls" }, element("label", {}, "log", select)),
    element("div", { class: "card" }, text),
  );
  return {
    node,
    update(about) {
      steps = about.step_lines;
      for (const name of about.logs.filter((one) => !logs.includes(one))) select.append(element("option", { value: name }, name));
      if (!logs.length && !steps.length && about.logs.includes("driver.log")) select.value = "driver.log"; // it says how the start goes
      logs = about.logs;
      return show();
    },
    follow: () => (select.value ? show() : undefined),
  };
}
