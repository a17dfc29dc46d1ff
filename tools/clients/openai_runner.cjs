// OpenAI's tool runners: `openai_runner.cjs chat|responses run|stream`.
const OpenAI = require("openai").default;
const { ResponsesToolRunner } = require("openai/helpers/responses-tool-runner");
const { DESCRIPTIONS, PARAMETERS, SYSTEM, USES, main } = require("./task.cjs");

const [protocol, kind] = process.argv.slice(2);
const client = new OpenAI();
const stream = kind === "stream";
const functions = Object.entries(DESCRIPTIONS).map(([name, description]) => ({ name, description, parameters: PARAMETERS }));
let messages = [{ role: "system", content: SYSTEM }];
let previous;

async function chat(question) {
  messages = [...messages, { role: "user", content: question }];
  const tools = functions.map((one) => ({ type: "function", function: { ...one, parse: JSON.parse, function: USES[one.name] } }));
  const runner = client.chat.completions.runTools({ model: "policy", messages, tools, stream });
  const answer = await runner.finalContent();
  messages = runner.messages;
  return answer;
}

async function responses(question) {
  const registered = functions.map((one) => ({
    tool: { type: "function", strict: true, ...one },
    execute: async (input) => USES[one.name](input),
  }));
  const runner = new ResponsesToolRunner({ functions: registered });
  const input = [{ role: "user", content: question }];
  const options = { stream, ...(stream ? { onEvent: () => {} } : {}) };
  const params = { model: "policy", instructions: SYSTEM, input, previous_response_id: previous };
  let response;
  for await (const turn of runner.iterate(client, params, options)) response = turn.response;
  previous = response.id;
  return response.output_text;
}

main(protocol === "chat" ? chat : responses);
