// OpenAI's tool runners: `openai_runner.cjs chat|responses run|stream`.
const OpenAI = require("openai").default;
const { ResponsesToolRunner } = require("openai/helpers/responses-tool-runner");
const { DESCRIPTIONS, PARAMETERS, SYSTEM, USES, main } = require("./task.cjs");

const [protocol, kind] = process.argv.slice(2);
const client = new OpenAI();
const stream = kind === "stream";
const functions = Object.entries(DESCRIPTIONS).map(([name, description]) => ({ name, description, parameters: PARAMETERS }));
let messages = [{ role: "system", content: SYSTEM }];
let history = [];
const turns = [];

async function chat(question) {
  messages = [...messages, { role: "user", content: question }];
  const tools = functions.map((one) => ({ type: "function", function: { ...one, parse: JSON.parse, function: USES[one.name] } }));
  const runner = client.chat.completions.runTools({ model: "policy", messages, tools, stream });
  const answer = await runner.finalContent();
  messages = runner.messages;
  return answer;
}

// The runner does not tell what its tools said, which the next question needs.
async function responses(question) {
  const said = [];
  const registered = functions.map((one) => ({
    tool: { type: "function", strict: true, ...one },
    execute: async (input) => {
      said.push(USES[one.name](input));
      return said.at(-1);
    },
  }));
  const runner = new ResponsesToolRunner({ functions: registered });
  const options = { stream, ...(stream ? { onEvent: () => {} } : {}) };
  history = [...history, { role: "user", content: question }];
  let response;
  for await (const turn of runner.iterate(client, { model: "policy", instructions: SYSTEM, input: [...history] }, options)) {
    response = turn.response;
    turns.push(response);
  }
  for (const { output } of turns.splice(0)) {
    const calls = output.filter((item) => item.type === "function_call");
    history.push(...output, ...calls.map(({ call_id }) => ({ type: "function_call_output", call_id, output: said.shift() })));
  }
  return response.output_text;
}

main(protocol === "chat" ? chat : responses);
