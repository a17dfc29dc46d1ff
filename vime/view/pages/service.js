// A training service: its models, what their calls wait for, and what its servers hold.

import { anchor, element, numeric, short, sortable } from "./dom.js";

/** The sections of a service; each model links to a run of its own, with its curves. */
export function service(about, order) {
  const { models, places, num_sessions: sessions, num_open_samples: samples } = about.service;
  const run = (model) => `${about.name}/runs/${model.run}`;
  const tile = (value, label) => element("div", { class: "tile" }, element("b", {}, short(value)), element("span", {}, label));
  const waiting = models.reduce((sum, model) => sum + model.num_open_calls, 0);
  const number = (name, key) => ({ name, value: (model) => model[key], cell: (model) => numeric(model[key]) });
  const text = (name, value) => ({ name, left: true, value, cell: (model) => element("td", { class: "left" }, value(model)) });
  const columns = [
    { name: "model", left: true, value: (model) => model.name, cell: (model) => element("td", { class: "left" }, anchor("overview", { run: run(model) }, model.name)) },
    text("client", (model) => model.client),
    number("rank", "rank"),
    number("steps", "num_steps"),
    number("loss of the last step", "loss"),
    number("gradient norm", "grad_norm"),
    number("tokens/s", "tokens_per_second"),
    number("s in the trainer", "trainer_seconds"),
    number("s waited for it", "wait_seconds"),
    number("open calls", "num_open_calls"),
    { name: "checkpoints", value: (model) => model.checkpoints.length, cell: (model) => element("td", { title: model.checkpoints.join("\n") }, short(model.checkpoints.length)) },
  ];
  const held = [
    text("place on the servers", (place) => place.name || "the whole model"),
    text("holds", (place) => place.holds || "nothing"),
    { name: "requests", value: (place) => place.num_users, cell: (place) => numeric(place.num_users) },
  ];
  const compare = models.length > 1 ? anchor("compare", { run: models.map(run) }, `compare the ${models.length} models`) : null;
  return [
    element("div", { class: "tiles" }, tile(models.length, "models"), tile(sessions, "sessions"), tile(waiting, "open calls of models"), tile(samples, "open samples")),
    element("h2", {}, "Models"),
    models.length ? sortable(columns, models, { caption: "Models", order }) : element("p", { class: "note" }, "No client has a model."),
    ...(compare ? [element("p", {}, compare)] : []),
    element("h2", {}, "Weights on the servers"),
    sortable(held, places, { caption: "Weights on the servers", order }),
  ];
}
