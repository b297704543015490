// The chat page: sends the conversation to /v1/chat/completions and shows the reply while it is written.
"use strict";

const element = (id) => document.getElementById(id);
const messages = [];
let controller = null;

function headers() {
  const key = element("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

function showStatus(text, isError = false) {
  element("status").textContent = text;
  element("status").className = isError ? "error" : "";
}

function addTurn(role, text) {
  const turn = document.createElement("div");
  turn.className = `turn ${role}`;
  turn.textContent = text;
  element("turns").append(turn);
  turn.scrollIntoView({ block: "end" });
  return turn;
}

// Says what is wrong with a field, and goes there. It stays marked until it is changed.
function pointAt(id, text) {
  showStatus(text, true);
  element(id).setAttribute("aria-invalid", "true");
  element(id).focus();
}

async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

// Throws what is wrong with a response, with the field that can mend it.
async function check(response) {
  if (response.ok) return;
  const error = new Error(await errorOf(response));
  if (response.status === 401) {
    const given = element("key").value.trim();
    error.message = given ? "Key: the server does not know this one" : "Key: the server wants one, in the field at the top";
    error.field = "key";
  }
  throw error;
}

function showError(error) {
  if (error.field) pointAt(error.field, error.message);
  else showStatus(error.message, true);
}

// Lists the models that can chat. While some are being loaded, their kind may not be known, so they are
// listed again later.
async function loadModels() {
  let models;
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    await check(response);
    models = (await response.json()).data;
  } catch (error) {
    showError(error);
    return;
  }
  const names = models.filter((model) => model.kind !== "reward").map((model) => model.id);
  const chosen = element("model").value;
  element("model").replaceChildren(...names.map((name) => new Option(name, name)));
  if (names.includes(chosen)) element("model").value = chosen;
  const isLoading = models.some((model) => model.max_model_len === undefined);
  if (isLoading) setTimeout(loadModels, 2000);
  if (!controller) showStatus(isLoading ? "the models are being loaded …" : "");
}

// The temperature; nothing if the field does not hold one.
function readTemperature() {
  const { value, min, max } = element("temperature");
  const isInside = value !== "" && Number(value) >= Number(min) && Number(value) <= Number(max);
  if (isInside) return Number(value);
  pointAt("temperature", `Temperature: give a number from ${min} to ${max}`);
}

// Calls onEvent with the data of each server-sent event.
async function readEvents(response, onEvent) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith("data:")) onEvent(event.slice(5).trim());
    }
  }
}

async function reply(temperature) {
  const body = {
    model: element("model").value,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    temperature,
  };
  const started = performance.now();
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify(body),
    signal: controller.signal,
  });
  await check(response);
  const turn = addTurn("assistant", "");
  const message = { role: "assistant", content: "" };
  messages.push(message);
  await readEvents(response, (data) => {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    for (const choice of event.choices) message.content += choice.delta.content ?? "";
    turn.textContent = message.content;
    turn.scrollIntoView({ block: "end" });
    if (event.usage) {
      const seconds = (performance.now() - started) / 1000;
      const { prompt_tokens: prompt, completion_tokens: written } = event.usage;
      showStatus(`${prompt} tokens read, ${written} written in ${seconds.toFixed(1)} s`);
    }
  });
}

async function send(text, temperature) {
  messages.push({ role: "user", content: text });
  const turn = addTurn("user", text);
  controller = new AbortController();
  element("send").textContent = "Stop";
  showStatus("writing …");
  try {
    await reply(temperature);
  } catch (error) {
    if (error.name === "AbortError") showStatus("stopped");
    else showError(error);
    // A message without an answer goes back to where it was written.
    if (messages.at(-1)?.role === "user") {
      messages.pop();
      turn.remove();
      element("text").value = [text, element("text").value].filter(Boolean).join("\n");
    }
  }
  controller = null;
  element("send").textContent = "Send";
}

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (controller) {
    controller.abort();
    return;
  }
  const text = element("text").value.trim();
  if (!text) return;
  if (!element("model").value) {
    pointAt("model", "Model: the server has none that can chat");
    return;
  }
  const temperature = readTemperature();
  if (temperature === undefined) return;
  element("text").value = "";
  send(text, temperature);
});
// Enter sends. While a reply is written the text stays where it is: whoever types on means no stop.
element("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (controller) showStatus("a reply is being written: Esc or the button Stop ends it");
    else element("form").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") controller?.abort();
});
for (const id of ["key", "temperature", "model"]) {
  element(id).addEventListener("input", () => element(id).removeAttribute("aria-invalid"));
}
element("new").addEventListener("click", () => {
  controller?.abort();
  messages.length = 0;
  element("turns").replaceChildren();
  showStatus("");
});
element("key").addEventListener("change", loadModels);
loadModels();
