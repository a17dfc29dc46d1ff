// Paired differences between runs, over the same items, with the intervals that the server computed.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { element, numeric, problem, short, sortable } from "./dom.js";

/** Fills a place: the intervals take a while for many runs, and what stands there stays until they are known. */
export function pairs(place, names, labels, order) {
  if (!place.hasChildNodes())
    place.append(element("p", { class: "note", role: "status" }, "Paired differences are being computed …"));
  get("paired", { run: names }).then(
    ({ paired }) => {
      const called = (run) => labels[names.indexOf(run)];
      const shown = paired.map((pair) => ({ ...pair, run: called(pair.run) }));
      place.replaceChildren(...drawn(shown, labels[0], order));
    },
    (error) => place.replaceChildren(problem(error.message)),
  );
}

function drawn(paired, base, order) {
  if (!paired.length) return [];
  const good = paired.filter((pair) => !pair.problem),
    bad = paired.filter((pair) => pair.problem);
  const nodes = [
    element("h2", {}, `Paired differences to ${base}`),
    element(
      "p",
      { class: "note" },
      "Second minus first in points of 0 to 100, over the same items, with a 95 % interval of a bootstrap over items.",
    ),
  ];
  const names = good.map((pair) => `${pair.run}: ${pair.dataset}, ${pair.row}`);
  if (good.length) {
    const series = [
      {
        label: "difference",
        x: names,
        y: good.map((pair) => pair.difference),
        error: good.map((pair) => pair.high - pair.difference),
        below: good.map((pair) => pair.difference - pair.low),
        text: good.map((pair) => `${short(pair.low)} to ${short(pair.high)}`),
      },
    ];
    nodes.push(
      chart(
        {
          title: "Paired differences with 95 % intervals",
          unit: "",
          xTitle: "points",
          height: 90 + 24 * good.length,
          kind: "dots",
          exact: true,
          series,
          xAxis: { tickformat: "", zerolinecolor: "gray" },
          yAxis: { type: "category", autorange: "reversed" },
        },
        { wide: true },
      ).node,
    );
    const columns = [
      ["run", "run"],
      ["data set", "dataset"],
      ["row", "row"],
      ["first", "first"],
      ["second", "second"],
      ["difference", "difference"],
      ["from", "low"],
      ["to", "high"],
      ["better", "num_better"],
      ["worse", "num_worse"],
      ["items", "num_items"],
    ];
    nodes.push(
      sortable(
        columns.map(([name, key]) => ({
          name,
          left: typeof good[0][key] === "string",
          value: (pair) => pair[key],
          cell: (pair) => numeric(pair[key], { class: typeof pair[key] === "string" ? "left" : null }),
        })),
        good,
        { caption: "Paired differences", order },
      ),
    );
  }
  return [...nodes, ...bad.map((pair) => problem(`${pair.run}: ${pair.problem}`))];
}
