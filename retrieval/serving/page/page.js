"use strict";
// What comes from the server is only ever set as text, never as HTML.

const box = document.getElementById("query");
const lists = document.getElementById("lists");
const status = document.getElementById("status");
const HITS = 10, PAUSE = 150; // hits of a list; milliseconds without a key before a search

const AROUND = 200; // characters of the passage on either side of an answer

let systems = {};
let answers = false; // whether the run has a reader
let turn = 0; // counts searches: an answer to an earlier one is dropped
let timer = 0;

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function pieces(parent, marked) {
  for (const [text, matched] of marked) parent.append(matched ? element("mark", "", text) : text);
  return parent;
}

function item(hit, alike) {
  const made = element("li");
  made.tabIndex = -1;
  if (hit.title) made.append(pieces(element("p", "title"), hit.marked.title));
  if (hit.section) made.append(pieces(element("p", "place"), hit.marked.section));
  made.append(pieces(element("p", "text"), hit.marked.text));
  made.append(element("p", "place", `${hit.id} · ${hit.score.toFixed(4)}`));
  if (alike.length) {
    const folded = element("details");
    folded.append(element("summary", "", `${alike.length} more nearly the same`));
    for (const other of alike) folded.append(element("p", "", `${other.id} · ${other.title}`));
    made.append(folded);
  }
  return made;
}

function column(system) {
  let made = document.getElementById(`system-${system}`);
  if (!made) {
    made = element("section");
    made.id = `system-${system}`;
    made.append(element("h2", "", systems[system]), element("ol"));
    lists.append(made);
  }
  return made.querySelector("ol");
}

function show(found) {
  for (const [system, hits] of Object.entries(found)) {
    const firsts = hits.filter((hit, place) => hit.alike === place);
    const items = firsts.map((hit) => item(hit, hits.filter((other) => other !== hit && hits[other.alike] === hit)));
    column(system).replaceChildren(...(items.length ? items : [element("li", "place", "No passage matches the query.")]));
  }
}

function showAnswer(found) {
  const place = document.getElementById("answer");
  place.hidden = !found;
  if (!found) return;
  const { hit, start, end, answer } = found;
  // The server counts characters, and this language counts halves of some.
  const text = [...hit.text];
  const before = text.slice(Math.max(0, start - AROUND), start).join(""), after = text.slice(end, end + AROUND).join("");
  const around = pieces(element("p", "text"), [[`…${before}`, false], [answer, true], [`${after}…`, false]]);
  place.replaceChildren(element("p", "title", answer), around, element("p", "place", `${hit.id} · ${hit.title}`));
}

async function ask(address) {
  const answer = await fetch(address);
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error);
  return value;
}

function say(text, wrong = false) {
  status.textContent = text;
  status.classList.toggle("wrong", wrong);
}

async function search() {
  const query = box.value.trim(), mine = ++turn;
  document.title = query ? `${query} – search` : "Search";
  if (!query) {
    lists.replaceChildren();
    showAnswer(null);
    say("");
    return;
  }
  const asked = (names) => `/api/search?${new URLSearchParams({ query, k: HITS, details: 1, systems: names.join(",") })}`;
  const quick = Object.keys(systems).filter((name) => name !== "reranked");
  const began = performance.now();
  try {
    const found = await ask(asked(quick));
    if (mine !== turn) return;
    show(found.systems);
    showAnswer(null); // that of the query before
    const whole = performance.now() - began;
    say(`${found.milliseconds.toFixed(1)} ms to search, ${whole.toFixed(1)} ms with the way here and back`);
    if ("reranked" in systems) {
      const reranked = await ask(asked(["reranked"]));
      if (mine !== turn) return;
      show(reranked.systems);
      say(`${status.textContent}; ${reranked.milliseconds.toFixed(0)} ms to rerank`);
    }
    if (!answers) return;
    const read = await ask(`/api/answer?${new URLSearchParams({ query })}`);
    if (mine !== turn) return;
    showAnswer(read.answers[0]);
    say(`${status.textContent}; ${read.milliseconds.toFixed(0)} ms to read`);
  } catch (error) {
    if (mine === turn) say(error.message, true);
  }
}

function remember(push) {
  const address = box.value.trim() ? `/?${new URLSearchParams({ q: box.value.trim() })}` : "/";
  history[push ? "pushState" : "replaceState"](null, "", address);
}

function recall() {
  box.value = new URLSearchParams(location.search).get("q") || "";
  search();
}

function move(columns, rows) {
  const all = [...lists.querySelectorAll("section")].map((section) => [...section.querySelectorAll("li")]);
  const at = all.findIndex((items) => items.includes(document.activeElement));
  const from = at < 0 ? [0, -1] : [at, all[at].indexOf(document.activeElement)];
  const to = all[Math.min(Math.max(from[0] + columns, 0), all.length - 1)] || [];
  if (from[1] + rows < 0) box.focus();
  else to[Math.min(from[1] + rows, to.length - 1)]?.focus();
}

const STEPS = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowRight: [1, 0], ArrowLeft: [-1, 0] };

document.addEventListener("keydown", (event) => {
  const inBox = document.activeElement === box;
  if (event.key === "/" && !inBox) box.focus(), box.select(), event.preventDefault();
  else if (event.key === "Escape") box.focus();
  else if (event.key in STEPS && (!inBox || event.key === "ArrowDown")) {
    event.preventDefault();
    move(...STEPS[event.key]);
  }
});
box.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => { remember(false); search(); }, PAUSE);
});
document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(timer);
  remember(true);
  search();
});
addEventListener("popstate", recall);

ask("/api/health").then((health) => {
  systems = health.systems;
  answers = health.answer;
  document.getElementById("passages").textContent = `${health.passages.toLocaleString()} passages`;
  recall();
}).catch((error) => say(error.message, true));
