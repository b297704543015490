// The browser of samples: filters, search, pages of 50. Everything that comes from the data is set as text.
"use strict";
(() => {
  const PAGE = 50;
  const data = JSON.parse(document.getElementById("samples-data").textContent);
  const section = document.getElementById("samples");
  const form = section.querySelector("form");
  const list = section.querySelector(".list");
  const rows = data.tasks.flatMap((task, index) =>
    task.samples.map((sample) => ({ task, index, sample, text: null })));
  let page = 0;

  // Shows control characters, and replaces those that reorder text on screen.
  const visible = (text) => text
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/\u007f/g, "\u2421")
    .replace(/[\u0080-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, "\ufffd");

  // An element with a class and either text or children.
  const make = (name, className, content = []) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (typeof content === "string") node.textContent = visible(content);
    else node.append(...content.filter((child) => child !== null));
    return node;
  };

  // Untrusted text in a line; it cannot change the direction of what stands around it.
  const inline = (text) => make("bdi", "", text);

  // Untrusted text in a block, each paragraph in its own direction.
  const block = (text) => {
    const node = text === "" ? make("p", "note", "(empty)") : make("pre", "", text);
    node.dir = "auto";
    return node;
  };

  // What is said of a sample by one model under one filter.
  const result = (row, model, filter) => {
    const answer = row.sample.models[model];
    return answer.problem === null ? answer.results[filter] ?? {} : { failed: true };
  };

  // The kinds of samples, by the results of the model and of the first model.
  const KINDS = {
    all: () => true,
    right: (model) => model.correct === true,
    wrong: (model) => model.correct === false,
    unparsed: (model) => model.unparsed === true,
    failed: (model) => model.failed === true,
    lost: (model, first) => first.correct === true && model.correct === false,
    gained: (model, first) => first.correct === false && model.correct === true,
  };

  const isKind = (row, kind, view) => {
    const models = view.model === "" ? row.sample.models.keys() : [Number(view.model)];
    const first = result(row, 0, view.filter);
    return [...models].some((model) => KINDS[kind](result(row, model, view.filter), first));
  };

  // All texts of a sample in lower case, made when first searched.
  const searchable = (row) => {
    if (row.text === null) {
      const { sample } = row;
      const answers = sample.models.flatMap((answer) => [
        answer.problem ?? "", ...answer.replies.map((reply) => reply.text),
        ...answer.results.map((found) => found.answer)]);
      const prompts = sample.prompts.flat().map((turn) => turn[1]);
      const own = [sample.target ?? "", sample.scored_text ?? "", ...sample.choices];
      row.text = [...prompts, ...own, ...answers].join("\n").toLowerCase();
    }
    return row.text;
  };

  // What the controls say.
  const read = () => {
    const [task, filter] = form.elements.task.value.split(":");
    return {
      task: task === "" ? null : Number(task),
      filter: Number(filter ?? 0),
      model: form.elements.model.value,
      kind: form.elements.kind.value,
      text: form.elements.text.value.toLowerCase(),
    };
  };

  const turns = (prompt) => prompt.map(([role, text]) =>
    make("div", "turn", [role ? make("span", "what", role) : null, block(text)]));

  const openingOf = (task) => {
    if (task.opening.length === 0) return null;
    const length = task.opening.reduce((sum, turn) => sum + [...turn[1]].length, 0);
    const summary = make("summary", "note", `All prompts of this task begin with the same ${length} characters`);
    return make("details", "opening", [summary, ...turns(task.opening)]);
  };

  const verdict = (found) => {
    if (found.failed) return make("b", "wrong", "\u2717 failed");
    if (found.unparsed) return make("b", "wrong", "\u2717 unparsed");
    if (found.correct === true) return make("b", "right", "\u2713 right");
    if (found.correct === false) return make("b", "wrong", "\u2717 wrong");
    return make("b", "note", "scored");
  };

  const metrics = (found) => (found.metrics ?? []).map(([name, value]) => `${name} ${value}`).join(", ");

  // The choices with the log-likelihoods of all models.
  const choiceTable = (sample) => {
    const known = sample.models.some((answer) => answer.logprobs.length === sample.choices.length);
    if (sample.choices.length === 0 || !known) return null;
    const heads = ["choice", ...data.models].map((name) => {
      const head = make("th", name === "choice" ? "" : "num", [inline(name)]);
      head.scope = "col";
      return head;
    });
    const lines = sample.choices.map((choice, index) => {
      const isRight = sample.right.includes(index);
      const mark = isRight ? make("b", "right", " \u2713 right") : null;
      const cells = sample.models.map((answer) => {
        const isBest = answer.best === index;
        const marks = [isBest ? "best" : "", answer.best_per_character === index ? "best per character" : ""];
        const note = marks.filter((text) => text !== "").join(", ");
        const number = make(isBest ? "b" : "span", "", answer.logprobs[index] ?? "\u2013");
        return make("td", "num", [note ? make("span", "note", `${note} `) : null, number]);
      });
      const head = make("th", "", [block(choice), mark]);
      head.scope = "row";
      return make("tr", "", [head, ...cells]);
    });
    const table = make("table", "choices", [
      make("thead", "", [make("tr", "", heads)]), make("tbody", "", lines)]);
    return make("div", "wide", [table]);
  };

  const replyBlock = (reply, index, answer) => {
    const cut = reply.ended ? "" : ", cut at the limit";
    const which = answer.replies.length > 1 ? `reply ${index + 1}, ` : "";
    return make("div", "", [block(reply.text), make("div", "note", `${which}${reply.tokens} tokens${cut}`)]);
  };

  // The answers of one model.
  const answerBlock = (row, model, filter) => {
    const answer = row.sample.models[model];
    const head = make("div", "what", [inline(data.models[model]), " ", verdict(result(row, model, filter))]);
    const parts = [head, ...answer.replies.map((reply, index) => replyBlock(reply, index, answer))];
    if (answer.problem !== null) parts.push(block(answer.problem));
    if (answer.greedy !== null) {
      const text = answer.greedy ? "greedy decoding gives this text" : "greedy decoding gives another text";
      parts.push(make("div", "", `log-likelihood ${answer.logprobs.join(", ")}; ${text}`));
    }
    answer.results.forEach((found, index) => {
      const name = row.task.filters[index] ?? "none";
      const isShown = index === filter && answer.results.length > 1;
      const line = [name === "none" ? null : inline(`${name}: `), isShown ? make("span", "note", "(shown) ") : null];
      if (answer.results.length > 1) line.push(verdict(found), " ");
      if (answer.replies.length > 0) line.push("answer ", make("code", "answer", [inline(found.answer)]), " ");
      parts.push(make("div", "result", [...line, make("span", "note", metrics(found))]));
    });
    return make("div", "reply", parts);
  };

  const article = (row, view) => {
    const { sample } = row;
    const title = make("h3", "", [inline(row.task.task), ` \u00b7 row ${sample.id}`]);
    const parts = [title, openingOf(row.task)];
    sample.prompts.forEach((prompt, index) => {
      const what = sample.prompts.length > 1 ? `prompt ${index + 1}` : "prompt";
      parts.push(make("div", "prompt", [make("span", "what", what), make("div", "", turns(prompt))]));
    });
    for (const [what, text] of [["scored text", sample.scored_text], ["target", sample.target]]) {
      if (text !== null) parts.push(make("div", "prompt", [make("span", "what", what), block(text)]));
    }
    const answers = data.models.map((_, model) => answerBlock(row, model, view.filter));
    return make("article", "", [...parts, choiceTable(sample), make("div", "replies", answers)]
      .filter((part) => part !== null));
  };

  // Shows a page of the samples that the controls ask for.
  const show = () => {
    const view = read();
    const asked = rows.filter((row) =>
      (view.task === null || row.index === view.task) && (view.text === "" || searchable(row).includes(view.text)));
    for (const count of form.querySelectorAll(".count")) {
      count.textContent = `(${asked.filter((row) => isKind(row, count.dataset.kind, view)).length})`;
    }
    const found = asked.filter((row) => isKind(row, view.kind, view));
    const last = Math.max(0, Math.ceil(found.length / PAGE) - 1);
    page = Math.min(Math.max(page, 0), last);
    const start = page * PAGE;
    const shown = found.slice(start, start + PAGE);
    list.replaceChildren(...shown.map((row) => article(row, view)));

    const tasks = view.task === null ? data.tasks : [data.tasks[view.task]];
    const leftOut = tasks.reduce((sum, task) => sum + task.left_out, 0);
    const range = shown.length === 0 ? "No samples" : `${start + 1} to ${start + shown.length} of ${found.length} samples`;
    const rest = leftOut === 0 ? "" : `; ${leftOut} more are not in this page`;
    section.querySelector(".shown").textContent = range + rest;
    for (const nav of section.querySelectorAll(".pages")) {
      nav.hidden = last === 0;
      nav.querySelector(".page").textContent = `page ${page + 1} of ${last + 1}`;
      nav.querySelector("[data-step='-1']").disabled = page === 0;
      nav.querySelector("[data-step='1']").disabled = page === last;
    }
  };

  let waiting = 0;
  const restart = () => {
    page = 0;
    show();
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", restart);
  form.elements.text.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(restart, 200);
  });
  for (const nav of section.querySelectorAll(".pages")) {
    nav.addEventListener("click", (event) => {
      const step = event.target.dataset.step;
      if (step === undefined) return;
      page += Number(step);
      show();
      section.querySelector(".shown").scrollIntoView();
    });
  }
  section.querySelector(".no-script").remove();
  form.hidden = false;
  show();
})();
