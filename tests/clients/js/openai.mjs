import { joined, load, messages, model, schema, tell, tool, url } from "./tried.mjs";

const { default: OpenAI } = await load("openai");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const asked = (more) => ({ model, messages, temperature: 0, max_tokens: 32, ...more });
const create = (more) => client.chat.completions.create(asked(more));
const content = async (more) => (await create(more)).choices[0].message.content;
const format = { type: "json_schema", json_schema: { name: "Weather", schema } };

await tell("openai (JavaScript)", "openai", {
  chat: () => content(),
  stream: async () => joined(await create({ stream: true }), (part) => part.choices[0].delta.content),
  list: async () => (await client.models.list()).data[0].id,
  structured_output: () => content({ response_format: format }),
  tools: () => content({ tools: [tool] }),
  another_model: () => content({ model: "another" }),
  refused_field: () => content({ presence_penalty: 1 }),
});

const streamed = async (more) => (await client.chat.completions.stream(asked(more)).finalChatCompletion()).choices[0];
const told = async () => {
  const { message, logprobs } = await streamed({ logprobs: true });
  const tokens = logprobs.content.map((each) => each.token).join(""); // each once
  if (message.role !== "assistant" || tokens !== message.content) throw new Error(`${message.role}: ${tokens}`);
  return message.content;
};

const parsed = async (more) => (await client.chat.completions.parse(asked(more))).choices[0].message.content;

await tell("openai (JavaScript): `.stream`, `.parse`", "openai", {
  chat: () => parsed(),
  stream: told,
  structured_output: () => parsed({ response_format: format }),
  tools: () => streamed({ tools: [tool] }),
  another_model: () => streamed({ model: "another" }),
  refused_field: () => streamed({ presence_penalty: 1 }),
});
