// Vercel's AI SDK: `ai_sdk.cjs chat|responses|messages|compatible text|stream|object`.
const { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } = require("ai");
const { createAnthropic } = require("@ai-sdk/anthropic");
const { createOpenAI } = require("@ai-sdk/openai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { DESCRIPTIONS, PARAMETERS, SYSTEM, USES, main } = require("./task.cjs");

const [protocol, kind] = process.argv.slice(2);
const baseURL = process.env.OPENAI_BASE_URL;
const apiKey = process.env.OPENAI_API_KEY;
const model = {
  chat: () => createOpenAI().chat("policy"),
  responses: () => createOpenAI().responses("policy"),
  messages: () => createAnthropic({ baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1`, apiKey })("policy"),
  compatible: () => createOpenAICompatible({ name: "session", baseURL, apiKey, supportsStructuredOutputs: true })("policy"),
}[protocol]();
const tools = Object.fromEntries(
  Object.entries(DESCRIPTIONS).map(([name, description]) => [
    name,
    tool({ description, inputSchema: jsonSchema(PARAMETERS), execute: async (input) => USES[name](input) }),
  ]),
);
const typed = jsonSchema({
  type: "object",
  properties: { answer: { type: "string" }, is_sure: { type: "boolean" } },
  required: ["answer", "is_sure"],
  additionalProperties: false,
});
let messages = [];

main(async (question) => {
  messages = [...messages, { role: "user", content: question }];
  if (kind === "object") {
    const { object } = await generateObject({ model, system: SYSTEM, messages, schema: typed, maxRetries: 0, maxOutputTokens: 500 });
    messages.push({ role: "assistant", content: JSON.stringify(object) });
    return object.answer;
  }
  const asked = { model, system: SYSTEM, messages, tools, stopWhen: stepCountIs(6), maxRetries: 0, maxOutputTokens: 2000 };
  const result = kind === "stream" ? streamText(asked) : await generateText(asked);
  const text = await result.text;
  messages = [...messages, ...(await result.responseMessages)];
  return text;
});
