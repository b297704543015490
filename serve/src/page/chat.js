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

async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

async function loadModels() {
  const response = await fetch("/v1/models", { headers: headers() });
  if (!response.ok) {
    showStatus(await errorOf(response), true);
    return;
  }
  const names = (await response.json()).data.map((model) => model.id);
  element("model").replaceChildren(...names.map((name) => new Option(name, name)));
  showStatus("");
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

async function reply() {
  const body = {
    model: element("model").value,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    temperature: Number(element("temperature").value),
  };
  const started = performance.now();
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify(body),
    signal: controller.signal,
  });
  if (!response.ok) throw new Error(await errorOf(response));
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

async function send(text) {
  messages.push({ role: "user", content: text });
  const turn = addTurn("user", text);
  controller = new AbortController();
  element("send").textContent = "Stop";
  showStatus("writing …");
  try {
    await reply();
  } catch (error) {
    showStatus(error.name === "AbortError" ? "stopped" : error.message, error.name !== "AbortError");
    // A message without an answer goes back to where it was written.
    if (messages.at(-1)?.role === "user") {
      messages.pop();
      turn.remove();
      element("text").value ||= text;
    }
  }
  controller = null;
  element("send").textContent = "Send";
}

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = element("text").value.trim();
  if (controller) {
    controller.abort();
  } else if (text) {
    element("text").value = "";
    send(text);
  }
});
element("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    element("form").requestSubmit();
  }
});
element("new").addEventListener("click", () => {
  controller?.abort();
  messages.length = 0;
  element("turns").replaceChildren();
  showStatus("");
});
element("key").addEventListener("change", loadModels);
loadModels();
