// Anthropic's tool runner, which sends each turn's new messages only, if the server takes that: `anthropic_runner.cjs run|stream`.
const Anthropic = require("@anthropic-ai/sdk").default;
const { betaTool } = require("@anthropic-ai/sdk/helpers/beta/json-schema");
const { DESCRIPTIONS, PARAMETERS, SYSTEM, USES, main } = require("./task.cjs");

const tools = Object.entries(DESCRIPTIONS).map(([name, description]) =>
  betaTool({ name, description, inputSchema: PARAMETERS, run: async (input) => USES[name](input) }),
);
const client = new Anthropic();
let messages = [];

main(async (question) => {
  const stream = process.argv[2] === "stream";
  messages = [...messages, { role: "user", content: question }];
  const runner = client.beta.messages.toolRunner({ model: "policy", max_tokens: 2000, system: SYSTEM, messages, tools, stream });
  let message;
  for await (const turn of runner) message = stream ? await turn.finalMessage() : turn;
  messages = [...runner.params.messages];
  if (messages.at(-1).role !== "assistant") messages.push({ role: "assistant", content: message.content });
  return message.content.at(-1).text;
});
