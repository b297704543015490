// Drives the script of the chat page with a document and a server of its own: node chat_page.mjs chat.js

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import vm from "node:vm";

class Element {
  constructor(fields = {}) {
    Object.assign(this, { value: "", textContent: "", className: "", attributes: {}, listeners: {} }, fields);
  }
  addEventListener(name, listener) {
    (this.listeners[name] ??= []).push(listener);
  }
  dispatch(name, fields = {}) {
    for (const listener of this.listeners[name] ?? []) listener({ preventDefault() {}, ...fields });
  }
  replaceChildren(...options) {
    this.options = options.map((option) => option.value);
    this.value = this.options[0] ?? "";
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  removeAttribute(name) {
    delete this.attributes[name];
  }
  focus() {
    focused = this;
  }
  requestSubmit() {
    this.dispatch("submit");
  }
  append() {}
  remove() {}
  scrollIntoView() {}
}

let focused;
const ids = ["model", "key", "new", "turns", "status", "form", "text", "send"];
const page = Object.fromEntries(ids.map((id) => [id, new Element()]));
page.temperature = new Element({ value: "0.7", min: "0", max: "2" });
const document = new Element({ getElementById: (id) => page[id], createElement: () => new Element() });

// A server with the key `k`, a model that chats and one that scores. It never ends a reply.
const asked = [];
const refusal = { error: { message: "no key" } };
const list = { data: [{ id: "judge", kind: "reward", max_model_len: 9 }, { id: "m", max_model_len: 9 }] };
async function fetch(path, { headers, body, signal }) {
  const isKnown = headers.Authorization === "Bearer k";
  const answer = (status, value) => ({ ok: status === 200, status, json: async () => value });
  if (!isKnown) return answer(401, refusal);
  if (path === "/v1/models") return answer(200, list);
  asked.push({ body: JSON.parse(body), signal });
  return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
}

const settled = () => new Promise((resolve) => setTimeout(resolve, 0));
const enter = () => page.text.dispatch("keydown", { key: "Enter" });
const Option = class {
  constructor(_, value) {
    this.value = value;
  }
};
const globals = { document, fetch, Option, AbortController, performance, setTimeout };
vm.runInNewContext(readFileSync(process.argv[2], "utf8"), globals);
await settled();

// A refusal for want of a key leads to its field.
assert.match(page.status.textContent, /^Key: the server wants one/);
assert.equal(focused, page.key);
page.key.value = "other";
page.key.dispatch("input");
assert.equal(page.key.attributes["aria-invalid"], undefined);
page.key.dispatch("change");
await settled();
assert.match(page.status.textContent, /^Key: the server does not know/);
page.key.value = "k";
page.key.dispatch("change");
await settled();
assert.equal(page.status.textContent, "");

// A reward model is not offered.
assert.deepEqual(page.model.options, ["m"]);

// A number outside the bounds of its field is not sent.
page.text.value = "first";
for (const wrong of ["3", "-1", ""]) {
  page.temperature.value = wrong;
  enter();
  assert.equal(page.status.textContent, "Temperature: give a number from 0 to 2");
  assert.equal(page.temperature.attributes["aria-invalid"], "true");
}
assert.deepEqual([asked.length, page.text.value], [0, "first"]);
page.temperature.value = "0.5";
enter();
await settled();
assert.deepEqual([asked[0].body.temperature, asked[0].body.model, page.text.value], [0.5, "m", ""]);
assert.equal(page.send.textContent, "Stop");

// Who types on stops nothing; Esc does, and what has no answer returns to the box.
page.text.value = "second";
enter();
await settled();
assert.deepEqual([asked.length, asked[0].signal.aborted, page.text.value], [1, false, "second"]);
document.dispatch("keydown", { key: "Escape" });
await settled();
assert.deepEqual([asked[0].signal.aborted, page.text.value, page.send.textContent], [true, "first\nsecond", "Send"]);
assert.equal(page.status.textContent, "stopped");

// The button stops as well.
enter();
await settled();
page.form.requestSubmit();
await settled();
assert.equal(asked[1].signal.aborted, true);
