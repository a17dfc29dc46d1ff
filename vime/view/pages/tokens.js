// Tokens in colour: each is a span, with its numbers in a tip under the pointer.

import { color } from "./chart.js";
import { counted, element } from "./dom.js";

const PART = 4000;
const ABOUT = {
  mask: "Blue tokens were sampled by the model, and are trained if the sequence is; the others stand between the replies.",
  logprob: "The stronger the colour, the less likely the token was when it was sampled (full at a logprob of -5).",
  difference:
    "The stronger the colour, the more the trainer's logprob differs from the sampler's (a logarithmic scale, full from 1 nat on).",
  advantage: "Green tokens are made more likely, red ones less (full at 2); the advantage is that of the sequence.",
  version: "Each colour is a version of the weights that sampled the token.",
};

export function tokenView(data, mode) {
  const { num_prompt: numPrompt, texts, tokens } = data;
  const tip = element("div", { class: "tip", hidden: true });
  const box = element("div", { class: "text tokens", id: "tokens" });
  const response = tokens.length - numPrompt;
  const text = (place) => texts?.[place] ?? `⟨${tokens[place]}⟩`;
  const span = (number) => {
    const made = element("span", { class: "token", "data-number": number }, text(numPrompt + number));
    const [shade, strength] = look(data, mode, number);
    if (strength > 0)
      made.style.backgroundColor = `color-mix(in srgb, ${shade} ${Math.round(100 * Math.min(1, strength))}%, transparent)`;
    return made;
  };
  const more = element("button", { type: "button", onclick: () => extend() }, "Show more tokens");
  const extend = () => {
    const from = box.children.length;
    for (let number = from; number < Math.min(response, from + PART); number++) box.append(span(number));
    more.hidden = box.children.length >= response;
  };
  extend();
  box.addEventListener("pointermove", (event) => {
    const number = event.target.dataset?.number;
    tip.hidden = number == null;
    if (number == null) return;
    tip.textContent = numbers(data, Number(number));
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 280)}px`;
    tip.style.top = `${Math.min(event.clientY + 16, innerHeight - 170)}px`;
  });
  box.addEventListener("pointerleave", () => {
    tip.hidden = true;
  });
  const prompt = Array.from({ length: numPrompt }, (_, place) => text(place)).join("");
  return [
    element("p", { class: "note" }, ABOUT[mode]),
    element(
      "details",
      { class: "card" },
      element("summary", {}, `Prompt, ${counted(numPrompt, "token")}`),
      element("div", { class: "text" }, prompt),
    ),
    element("div", { class: "card" }, box, more, tip),
  ];
}

/** The colour of a token and its strength, 0 to 1. */
function look(data, mode, number) {
  const trained = data.loss_mask?.[number];
  if (mode === "mask") return [color(0), trained ? 0.35 : 0];
  if (mode === "version") return [color(data.weight_versions?.[number] ?? 0), trained ? 0.4 : 0];
  if (!trained) return [color(0), 0];
  if (mode === "logprob") return [color(1), 0.9 * Math.min(1, -(data.rollout_log_probs?.[number] ?? 0) / 5)];
  if (mode === "advantage") return [data.advantage > 0 ? color(2) : "#d33", 0.6 * Math.min(1, Math.abs(data.advantage ?? 0) / 2)];
  const difference = Math.abs(gap(data, number) ?? 0);
  return [color(4), difference ? Math.max(0.06, Math.min(0.9, (Math.log10(difference) + 6) / 6)) : 0];
}

function gap(data, number) {
  const trainer = data.trainer_log_probs?.[number];
  return trainer == null ? null : trainer - data.rollout_log_probs[number];
}

function numbers(data, number) {
  const trained = data.loss_mask?.[number],
    line = (name, value) => `${name.padEnd(18)}${value ?? "not recorded"}`;
  const shown = [
    line("token", data.tokens[data.num_prompt + number]),
    line("trained", !trained ? "no" : data.trainer_log_probs ? "yes" : "no, the sequence was not trained"),
  ];
  if (trained) {
    shown.push(
      line("logprob", data.rollout_log_probs?.[number]),
      line("trainer's", data.trainer_log_probs?.[number]),
      line("difference", gap(data, number)?.toExponential(2)),
      line("advantage", data.advantage),
      line("weight version", data.weight_versions?.[number]),
    );
  }
  return shown.join("\n");
}
