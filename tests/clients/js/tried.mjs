// What every client is asked for, and how its script tells what came of it: as tried.py, whose schema is an argument.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

export const [url, model, schema] = [process.argv[2], process.argv[3], JSON.parse(process.argv[4])];
const installed = pathToFileURL(`${process.cwd()}/.venv-clients/js/`); // where `make clients` puts them
export const load = (name) => import(createRequire(installed).resolve(name));
export const messages = [{ role: "user", content: "Hi" }];
export const tool = { type: "function", function: { name: "weather", parameters: { type: "object", properties: {} } } };

export async function joined(parts, text) {
  let whole = "";
  for await (const part of parts) whole += text(part) ?? "";
  return whole;
}

export async function tell(client, name, features) {
  const found = {};
  for (const [feature, use] of Object.entries(features)) {
    try {
      found[feature] = [false, String(await use())];
    } catch (error) {
      found[feature] = [true, `${error.name}: ${error.message}`];
    }
  }
  const about = JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, installed)));
  console.log(JSON.stringify({ client, version: about.version, features: found }));
}
