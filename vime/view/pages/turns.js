// Turns as a conversation: the pieces of a sequence, cut into messages at the marks of the chat template.

import { counted, element } from "./dom.js";

const START = /<\|im_start\|>([^\n<]*)\n?|<\|start_header_id\|>([^<]*)<\|end_header_id\|>\n*/g;
const END = /<\|im_end\|>\n?|<\|eot_id\|>/g;
const CALL = /(<tool_call>[\s\S]*?(?:<\/tool_call>|$))/;
const TITLES = { prompt: "prompt", environment: "not trained: results of tools, other agents" };
const FOLD_CHARACTERS = 4000;

/** Cuts a text into [{role, text}]; what stands before the first mark has no role. */
export function messages(text, role = "") {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(START)) {
    found.push({ role, text: text.slice(from, match.index) });
    role = (match[1] ?? match[2] ?? "").trim();
    from = match.index + match[0].length;
  }
  found.push({ role, text: text.slice(from) });
  return found.map((one) => ({ ...one, text: one.text.replace(END, "") })).filter((one) => one.text.trim());
}

export function messageList(list) {
  return element(
    "div",
    {},
    list.map((message) =>
      body({
        role: message.role,
        text: typeof message.content === "string" ? message.content : JSON.stringify(message.content, null, 1),
      }),
    ),
  );
}

/** The turns of a sample; without recorded turns, its last reply. */
export function turnList(sample, { trained }) {
  if (!sample.turns?.length) {
    const text =
      sample.response ||
      "Its last message has no text of its own: it calls a tool. Turns were not recorded (logger.rollouts=turns).";
    return [
      element(
        "section",
        { class: "turn reply" },
        element("h3", {}, "last reply"),
        element("div", { class: "text" }, calls(text)),
      ),
    ];
  }
  let number = 0;
  return sample.turns.map((turn) => {
    if (turn.kind === "reply") number += 1;
    const title = turn.kind === "reply" ? `reply${trained ? ", trained" : ""} (turn ${number})` : TITLES[turn.kind];
    const parts =
      turn.text == null
        ? [{ role: "", text: "The text was not recorded." }]
        : messages(turn.text, turn.kind === "reply" ? "assistant" : "");
    const head = element("h3", {}, title, element("span", {}, counted(turn.num_tokens, "token")));
    const content = parts.map(body);
    const long = turn.kind === "prompt" && (turn.text?.length ?? 0) > FOLD_CHARACTERS;
    return element(
      "section",
      { class: `turn ${turn.kind}` },
      head,
      long ? element("details", {}, element("summary", {}, "show"), content) : content,
    );
  });
}

function body({ role, text }) {
  const isResult = /<tool_response>/.test(text);
  return element(
    "div",
    {},
    role ? element("span", { class: "role" }, isResult ? `${role}: result of a tool` : role) : null,
    element("div", { class: "text" }, calls(text)),
  );
}

function calls(text) {
  return text
    .split(CALL)
    .filter(Boolean)
    .map((part) => (part.startsWith("<tool_call>") ? element("span", { class: "call" }, part) : part));
}
