// What a run said: its faults, what the method says of its evaluations, and the console with the ends of all logs.

import { get } from "./api.js";
import { element, numeric, sortable } from "./dom.js";

export function faults(about) {
  if (!about.faults.length) return [];
  const names = [...new Set(about.faults.flatMap((fault) => Object.keys(fault)))];
  const columns = names.map((name) => ({
    name: name.replaceAll("_", " "),
    left: true,
    value: (fault) => fault[name],
    cell: (fault) => element("td", { class: "left" }, String(fault[name] ?? "")),
  }));
  return [element("h2", {}, "Faults"), sortable(columns, about.faults, { caption: "Faults" })];
}

export function evalLogs(about) {
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
  return [element("h2", {}, "What the method says of its evaluations"), sortable(columns, names, { caption: "Evaluation logs" })];
}

export function consoleLog(about, run) {
  const text = element(
    "pre",
    { class: "log", tabindex: "0", "aria-label": "console" },
    about.step_lines.join("\n") || "No step has ended yet.",
  );
  const choose = async (event) => {
    text.textContent = event.target.value
      ? (await get("log", { run, name: event.target.value })).text || "The log is empty."
      : about.step_lines.join("\n");
    text.scrollTop = text.scrollHeight;
  };
  const select = element(
    "select",
    { onchange: choose },
    element("option", { value: "" }, "steps"),
    about.logs.map((name) => element("option", { value: name }, name)),
  );
  return element(
    "section",
    {},
    element("h2", {}, "Console"),
    element("div", { class: "controls" }, element("label", {}, "log", select)),
    element("div", { class: "card" }, text),
  );
}
