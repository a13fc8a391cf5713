import { joined, load, messages, model, schema, tell, tool, url } from "./tried.mjs";

const { Ollama } = await load("ollama");
const client = new Ollama({ host: url });
const options = { temperature: 0, num_predict: 32 };
const chat = (more) => client.chat({ model, messages, options, ...more });
const content = async (more) => (await chat(more)).message.content;

await tell("ollama (JavaScript)", "ollama", {
  chat: () => content(),
  stream: async () => joined(await chat({ stream: true }), (part) => part.message.content),
  list: async () => (await client.list()).models[0].model,
  structured_output: () => content({ format: schema }),
  tools: () => content({ tools: [tool] }),
  another_model: () => content({ model: "another" }),
  refused_field: () => content({ options: { presence_penalty: 1 } }),
});
