"use strict";
// What comes from the server is only ever set as text, never as HTML.

const box = document.getElementById("query");
const lists = document.getElementById("lists");
const status = document.getElementById("status");
const jumps = document.getElementById("jumps");
const phone = matchMedia("(max-width: 40rem)"); // as in page.css
const HITS = 10, PAUSE = 150; // hits of a list, at most; milliseconds without a key before a search

const AROUND = 200; // characters of the passage on either side of an answer
const MEANING = {
  dense: "nearest embeddings; never empty",
  bm25: "passages that share words with the query",
  hybrid: "embeddings and words merged",
  reranked: "best hits, read again with the query",
};

let systems = {};
let characters = Infinity; // of a query, at most
let k = HITS; // of a list; the server may give fewer
let answers = false; // whether the run has a reader
let turn = 0; // counts searches: an answer to an earlier one is dropped
let timer = 0;
let kept = true; // whether the query of this address has been sent: then the next one gets an entry of its own

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

function named(hit) {
  return hit.title ? `${hit.id} · ${hit.title}` : hit.id;
}

// Words that lead to the document of a hit, where that has an address: one that would run a script is none.
function linked(hit, ...words) {
  const made = element("a");
  made.href = hit.url;
  if (!hit.url || !/^https?:$/.test(made.protocol)) made.removeAttribute("href");
  made.append(...words);
  return made;
}

function paragraph(className, ...words) {
  const made = element("p", className);
  made.append(...words);
  return made;
}

function item(hit, alike) {
  const made = element("li");
  made.tabIndex = -1;
  if (hit.title) made.append(paragraph("title", pieces(linked(hit), hit.marked.title)));
  if (hit.section) made.append(pieces(element("p", "place"), hit.marked.section));
  made.append(pieces(element("p", "text"), hit.marked.text));
  made.append(paragraph("place", hit.title ? hit.id : linked(hit, hit.id), ` · ${hit.score.toFixed(4)}`));
  if (alike.length) {
    const folded = element("details");
    folded.append(element("summary", "", `${alike.length} more nearly the same`));
    for (const other of alike) folded.append(paragraph("", linked(other, named(other))));
    made.append(folded);
  }
  return made;
}

function column(system) {
  let made = document.getElementById(`system-${system}`);
  if (!made) {
    made = element("section");
    made.id = `system-${system}`;
    made.append(element("h2", "", systems[system]), element("p", "place", MEANING[system]), element("ol"));
    const jump = element("button", "", systems[system]);
    jump.type = "button";
    jump.addEventListener("click", () => made.scrollIntoView());
    const place = phone.matches && system === "hybrid" ? "prepend" : "append"; // a phone shows little but the first
    lists[place](made);
    jumps[place](jump);
  }
  return made.querySelector("ol");
}

function clear() {
  lists.replaceChildren();
  jumps.replaceChildren();
  showAnswer(null);
}

function show(found) {
  for (const [system, hits] of Object.entries(found)) {
    const firsts = hits.filter((hit, place) => hit.alike === place);
    const items = firsts.map((hit) => item(hit, hits.filter((other) => other !== hit && hits[other.alike] === hit)));
    const list = column(system);
    list.removeAttribute("aria-busy");
    list.replaceChildren(...(items.length ? items : [element("li", "place", "No passage matches the query.")]));
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
  const around = pieces(element("p", "text"), [[`${start > AROUND ? "…" : ""}${before}`, false], [answer, true],
    [`${after}${end + AROUND < text.length ? "…" : ""}`, false]]);
  place.replaceChildren(element("p", "title", answer), around, paragraph("place", linked(hit, named(hit))));
}

async function ask(address) {
  const answer = await fetch(address).catch(() => {
    throw new Error("the server does not answer: it has been stopped, or the network is gone");
  });
  const value = await answer.json().catch(() => ({})); // a server that refuses what it cannot read sends no JSON
  if (!answer.ok) throw new Error(value.error || `the server refuses this query (${answer.status})`);
  return value;
}

function say(text, wrong = false) {
  status.textContent = text;
  status.classList.toggle("wrong", wrong);
}

async function load() {
  if (Object.keys(systems).length) return;
  const health = await ask("/api/health");
  systems = health.systems;
  answers = health.answer;
  characters = health.limits.characters;
  k = Math.min(HITS, health.limits.k);
  document.getElementById("passages").textContent = `${health.passages.toLocaleString()} passages`;
}

function asked(query, names) {
  return ask(`/api/search?${new URLSearchParams({ query, k, details: 1, systems: names.join(",") })}`);
}

async function search() {
  const query = box.value.trim(), mine = ++turn;
  document.title = query ? `${query} – search` : "Search";
  try {
    await load();
    if (mine === turn) await searchQuick(query, mine);
    if (mine === turn && query) await searchSlow(query, mine);
  } catch (error) {
    if (mine !== turn) return;
    systems = {}; // a server that has been started again may have others
    document.querySelector("[aria-busy]")?.removeAttribute("aria-busy");
    say(error.message, true);
  }
}

async function searchQuick(query, mine) {
  const length = [...query].length, began = performance.now();
  try {
    if (length > characters) throw new Error(`'query' has ${length} characters, and at most ${characters} are read`);
    const found = query && (await asked(query, Object.keys(systems).filter((name) => name !== "reranked")));
    if (mine !== turn) return;
    showAnswer(null); // that of the query before
    if (!query) return clear(), say("");
    show(found.systems);
    const whole = performance.now() - began;
    say(`${found.milliseconds.toFixed(1)} ms to search, ${whole.toFixed(1)} ms round trip`);
  } catch (error) {
    if (mine === turn) clear(); // hits of an earlier query are no answer to this one
    throw error;
  }
}

async function searchSlow(query, mine) {
  if ("reranked" in systems) {
    column("reranked").replaceChildren();
    column("reranked").setAttribute("aria-busy", "true");
    const reranked = await asked(query, ["reranked"]);
    if (mine !== turn) return;
    show(reranked.systems);
    say(`${status.textContent}; ${reranked.milliseconds.toFixed(0)} ms to rerank`);
  }
  if (!answers) return;
  const read = await ask(`/api/answer?${new URLSearchParams({ query })}`);
  if (mine !== turn) return;
  showAnswer(read.answers[0]);
  say(`${status.textContent}; ${read.milliseconds.toFixed(0)} ms to read`);
}

// What is typed is one entry of the browser's history, however often it was searched before it was sent.
function remember(sent) {
  const query = box.value.trim(), address = query ? `/?${new URLSearchParams({ q: query })}` : "/";
  const here = location.pathname + location.search;
  // No server reads an address that is too long.
  if (address !== here && [...query].length <= characters) history[kept ? "pushState" : "replaceState"](null, "", address);
  kept = sent || (kept && address === here);
}

function recall() {
  kept = true;
  box.value = new URLSearchParams(location.search).get("q") || "";
  search();
}

function move(columns, rows) {
  const all = [...lists.querySelectorAll("section")].map((section) => [...section.querySelectorAll("li")]);
  const here = document.activeElement.closest("li");
  const at = all.findIndex((items) => items.includes(here));
  const from = at < 0 ? [0, -1] : [at, all[at].indexOf(here)];
  const to = all[Math.min(Math.max(from[0] + columns, 0), all.length - 1)] || [];
  const hit = to[Math.min(from[1] + rows, to.length - 1)];
  if (from[1] + rows < 0) return box.focus();
  hit?.focus({ preventScroll: true }); // which may scroll it behind the header
  hit?.scrollIntoView({ block: "nearest" });
}

const STEPS = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowRight: [1, 0], ArrowLeft: [-1, 0] };

document.addEventListener("keydown", (event) => {
  // These are keys of an input method, of the browser, or of a selection; many keyboards have "/" with Shift.
  if (event.isComposing || event.altKey || event.ctrlKey || event.metaKey || (event.shiftKey && event.key !== "/")) return;
  const inBox = document.activeElement === box;
  if (event.key === "/" && !inBox) box.focus(), box.select(), event.preventDefault();
  else if (event.key === "Escape") box.focus();
  else if (event.key === "Enter" && document.activeElement.matches("li")) document.activeElement.querySelector("a[href]")?.click();
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
phone.addEventListener("change", () => { clear(); search(); }); // a phone that is turned has another order

if (box.value) search(); // typed while the page was loading
else recall();
