// Charts by Plotly: lines, bars and stacked areas with our colours, smoothing, a log axis, and export as SVG and CSV.

import { download, element } from "./dom.js";

const NUM_COLORS = 8;
const drawn = new Set();

export const color = (number) => style(`--${number % NUM_COLORS}`);
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The report's smoothing: an average over a value and those before it, with weights that fall by 1/e over `width` points. */
export function smooth(values, width) {
  const keep = Math.exp(-1 / width);
  let sum = 0,
    total = 0;
  return values.map((value) => {
    sum = keep * sum + (value ?? 0);
    total = keep * total + (value == null ? 0 : 1);
    return total ? sum / total : null;
  });
}

/** What a chart needs: {title, unit, xTitle, kind, series: [{label, x, y, error, text, number}], marks: [{step, text}], smoothing, height, legend: always or "above"}. In "dots", x are names beside the axis. */
export function chart(spec, { wide = false } = {}) {
  const plot = element("div", { class: "plot", role: "img", "aria-label": spec.title });
  if (spec.height) plot.style.height = `${spec.height}px`;
  const state = { spec, log: false, visible: false, node: null };
  const logButton = element("button", { type: "button", "aria-pressed": "false", title: "logarithmic axis" }, "log");
  logButton.addEventListener("click", () => {
    state.log = !state.log;
    logButton.setAttribute("aria-pressed", String(state.log));
    draw(plot, state);
  });
  const save = (kind, write) => element("button", { type: "button", title: `save as ${kind}`, onclick: write }, kind);
  state.node = element(
    "figure",
    { class: wide ? "wide" : null },
    element(
      "figcaption",
      {},
      element("span", {}, spec.title),
      ["stack", "points", "dots"].includes(spec.kind) ? null : logButton,
      save("SVG", () => saveSvg(plot, state)),
      save("CSV", () => download(`${fileName(state)}.csv`, "text/csv", csv(state.spec))),
    ),
    plot,
  );
  new IntersectionObserver(
    (entries) => {
      state.visible = entries.at(-1).isIntersecting;
      if (state.visible && state.stale !== false) draw(plot, state);
    },
    { rootMargin: "200px" },
  ).observe(plot);
  drawn.add({ plot, state });
  return {
    node: state.node,
    update(changed) {
      state.spec = { ...state.spec, ...changed };
      if (state.visible) draw(plot, state);
      else state.stale = true;
    },
  };
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const one of drawn)
    if (one.plot.isConnected && one.state.visible) draw(one.plot, one.state);
    else if (!one.plot.isConnected) drawn.delete(one);
});

function draw(plot, state) {
  state.stale = false;
  window.Plotly.react(plot, traces(state.spec), layout(state), { displayModeBar: false, responsive: true });
}

function traces(spec) {
  return spec.series.flatMap((series, place) => {
    const own = color(series.number ?? place),
      name = series.label;
    const error = series.error
      ? {
          error_y: {
            type: "data",
            array: series.error,
            arrayminus: series.below,
            symmetric: !series.below,
            color: style("--ink"),
            thickness: 1.2,
          },
        }
      : {};
    if (spec.kind === "dots") {
      const marker = { size: 9, color: own };
      return [{ type: "scatter", mode: "markers", name, x: series.y, y: series.x, text: series.text, marker, error_x: error.error_y }];
    }
    if (spec.kind === "bars") return [{ type: "bar", name, x: series.x, y: series.y, marker: { color: own }, ...error }];
    if (spec.kind === "stack")
      return [
        {
          type: "scatter",
          name,
          x: series.x,
          y: series.y,
          mode: "lines",
          stackgroup: "all",
          line: { width: 0.5, color: own },
          fillcolor: own,
        },
      ];
    const width = spec.smoothing ? Math.max(1, spec.smoothing * series.y.length) : 0;
    const few = series.y.length < 20,
      mode = few || spec.kind === "points" ? "lines+markers" : "lines";
    const dash = place >= NUM_COLORS ? "dot" : isHidden(spec.series, place) ? "dash" : "solid"; // colours repeat
    const base = {
      type: "scatter",
      name,
      x: series.x,
      text: series.text,
      mode,
      marker: { size: 5, color: own },
    };
    if (!width || few || spec.exact)
      return [{ ...base, y: series.y, line: { color: own, width: spec.lineWidth ?? 2, dash }, ...error }];
    return [
      { ...base, y: series.y, mode: "lines", line: { color: own, width: 1 }, opacity: 0.3, showlegend: false, hoverinfo: "skip" },
      {
        ...base,
        y: smooth(series.y, width),
        mode: "lines",
        line: { color: own, width: 2, dash },
        customdata: series.y,
        hovertemplate: "%{y:.4g} (here %{customdata:.4g})",
      },
    ];
  });
}

/** Whether a line has all values of an earlier one, which shows through its gaps if it is dashed. */
const isHidden = (series, place) =>
  series.slice(0, place).some((one) => one.y.length > 1 && one.y.length === series[place].y.length && one.y.every((value, i) => value === series[place].y[i]));

function layout({ spec, log }) {
  const ink = style("--ink"),
    rule = style("--rule"),
    soft = style("--soft");
  const axis = { gridcolor: rule, zerolinecolor: rule, linecolor: rule, tickfont: { color: soft, size: 11 }, automargin: true };
  const label = (text) => ({ text, font: { color: soft, size: 11.5 }, standoff: 6 });
  const marks = (spec.marks ?? []).map((mark) => ({
    type: "line",
    x0: mark.step,
    x1: mark.step,
    yref: "paper",
    y0: 0,
    y1: 1,
    line: { color: style("--bad"), width: 1, dash: "dot" },
  }));
  const notes = (spec.marks ?? []).map((mark) => ({
    x: mark.step,
    y: 1,
    yref: "paper",
    yanchor: "bottom",
    text: "▾",
    showarrow: false,
    font: { color: style("--bad"), size: 13 },
    hovertext: mark.text,
  }));
  return {
    margin: { l: 48, r: 12, t: 10, b: 34 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: 12 },
    hovermode: ["points", "dots"].includes(spec.kind) ? "closest" : "x unified",
    hoverlabel: { bgcolor: style("--card"), bordercolor: rule, font: { color: ink } },
    legend: { orientation: "h", ...(spec.legend === "above" ? { y: 1.08, yanchor: "bottom" } : { y: -0.26 }), x: 0, font: { color: soft, size: 11.5 } },
    showlegend: spec.legend || spec.series.length > 1 || spec.kind === "stack",
    barmode: "group",
    bargap: Math.max(0.2, 1 - 0.2 * (spec.series[0]?.x.length ?? 0)), // few bars are not drawn wider than many
    xaxis: {
      ...axis,
      title: label(spec.xTitle ?? "step"),
      ...(spec.kind === "bars" ? {} : wholeSteps(spec)),
      ...(spec.xAxis ?? {}),
    },
    yaxis: {
      ...axis,
      title: label(spec.unit),
      type: log ? "log" : "linear",
      rangemode: spec.kind === "bars" ? "tozero" : "normal",
      exponentformat: "e",
      minexponent: 5,
      ...range(spec, log),
      ...(spec.yAxis ?? {}),
    },
    shapes: [...marks, ...(spec.shapes ?? [])],
    annotations: [...notes, ...(spec.annotations ?? [])],
    uirevision: spec.title,
  };
}

/** Ticks at whole steps: of a few steps Plotly would mark halves as well, and round their labels. */
function wholeSteps(spec) {
  const steps = spec.series.flatMap((series) => series.x).filter((x) => typeof x === "number");
  const isShort = steps.length && Math.max(...steps) - Math.min(...steps) < 8;
  return { tickformat: ",d", ...(isShort ? { dtick: 1 } : {}) };
}

/** A curve that never changes is drawn over 0 instead of around itself, where the ticks would differ in the last digits only. */
function range(spec, log) {
  const values = spec.series.flatMap((series) => series.y).filter((value) => value != null);
  const low = Math.min(...values),
    high = Math.max(...values);
  return !log && values.length && low === high && high >= 0 && !spec.kind ? { range: [0, 1.25 * high || 1] } : {};
}

async function saveSvg(plot, state) {
  draw(plot, state);
  const image = await window.Plotly.toImage(
    {
      data: plot.data,
      layout: {
        ...plot.layout,
        paper_bgcolor: style("--card"),
        title: { text: state.spec.title, font: { size: 14 } },
        margin: { l: 60, r: 20, t: 40, b: 50 },
      },
    },
    { format: "svg", width: 720, height: 420 },
  );
  download(`${fileName(state)}.svg`, "image/svg+xml", decodeURIComponent(image.slice(image.indexOf(",") + 1)));
}

const fileName = (state) =>
  state.spec.title
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "_")
    .replace(/^_|_$/g, "");

/** One line for each x of any series; the numbers are those of the files, without smoothing. */
export function csv(spec) {
  const rows = new Map();
  spec.series.forEach((series, place) =>
    series.x.forEach((x, i) => {
      if (!rows.has(x)) rows.set(x, new Array(spec.series.length).fill(null));
      rows.get(x)[place] = series.y[i];
    }),
  );
  const cell = (value) =>
    value == null ? "" : /[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
  const lines = [
    [spec.xTitle ?? "step", ...spec.series.map((series) => series.label)],
    ...[...rows].map(([x, values]) => [x, ...values]),
  ];
  return lines.map((line) => line.map(cell).join(",")).join("\n") + "\n";
}
