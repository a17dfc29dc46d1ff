// The task of task.py for programs in JavaScript.
const fs = require("node:fs");

const OWNERS = { mill: "Ada", "früh 😀 barn": "Bea" };
const PRICES = { mill: "40", "früh 😀 barn": "7" };
const EXPECTED = ["Ada owns the mill, which cost 40; Bea owns the barn.", "Ada is."];

exports.SYSTEM = "You are terse. Ask your tools.";
exports.QUESTIONS = ["Who owns the mill and the früh 😀 barn, and what did the mill cost?", "And who is the richer of the two?"];
exports.PARAMETERS = { type: "object", properties: { thing: { type: "string" } }, required: ["thing"], additionalProperties: false };
exports.DESCRIPTIONS = { owner_of: "Who owns a thing.", price_of: "What a thing cost." };
exports.USES = { owner_of: ({ thing }) => OWNERS[thing] ?? "nobody", price_of: ({ thing }) => PRICES[thing] ?? "unknown" };

// Asks both questions and ends the program: with 0 if all answers are as expected.
exports.main = async (ask) => {
  const answers = [];
  for (const question of exports.QUESTIONS) answers.push(await ask(question));
  fs.writeSync(1, answers.map((answer) => `${answer}\n`).join(""));
  const wrong = EXPECTED.some((expected, number) => !String(answers[number]).includes(expected));
  if (wrong) fs.writeSync(2, `wrong answers: ${JSON.stringify(answers)}\n`);
  process.exit(wrong ? 1 : 0);
};
