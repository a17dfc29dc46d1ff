// Where the time of a rollout went: its calls one after another if it was traced, otherwise seconds by kind, or nothing without any.

import { chart } from "./chart.js";
import { duration } from "./dom.js";

export function timelineChart(found, line) {
  const spans = found.timeline;
  if (spans.length) {
    const kinds = [...new Set(spans.map((span) => span.kind))];
    const series = kinds.map((kind) => {
      const own = spans.map((span, place) => ({ ...span, place })).filter((span) => span.kind === kind);
      return {
        label: kind,
        x: own.flatMap((span) => [span.start, span.start + span.seconds, null]),
        y: own.flatMap((span) => [span.place + 1, span.place + 1, null]),
        text: own.flatMap((span) => [`${span.name}, ${duration(span.seconds)}`, `${span.name}, ${duration(span.seconds)}`, null]),
      };
    });
    return chart(
      {
        title: "Timeline",
        unit: "call",
        xTitle: "seconds since its start",
        kind: "points",
        series,
        exact: true,
        lineWidth: 7,
        xAxis: { tickformat: "" },
        yAxis: { autorange: "reversed", tickformat: ",d", ...(spans.length < 12 ? { dtick: 1 } : {}) }, // no ticks between calls
      },
      { wide: true },
    ).node;
  }
  const kinds = Object.entries(line.seconds ?? {}).filter(([, value]) => value > 0);
  if (!kinds.length) return null;
  const series = [{ label: "seconds", x: kinds.map(([kind]) => kind), y: kinds.map(([, value]) => value) }];
  return chart(
    { title: "Seconds by kind (this rollout was not traced)", unit: "s", xTitle: "kind", kind: "bars", series },
    { wide: true },
  ).node;
}
