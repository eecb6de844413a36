"use strict";
// What comes from the server is only ever set as text, never as HTML.

const box = document.getElementById("query");
const lists = document.getElementById("lists");
const status = document.getElementById("status");
const tabs = document.getElementById("tabs");
const note = document.getElementById("note");
const HITS = 10, PAUSE = 150; // hits of a list, at most; milliseconds without a key before a search

const AROUND = 200; // characters of the passage on either side of an answer
const CODE = /^(?: {4}|\t)/; // how a line of code begins
const ALL = "side by side";
const MEANING = {
  dense: "nearest embeddings; never empty",
  bm25: "passages that share words with the query",
  hybrid: "embeddings and words merged",
  reranked: "best hits, read again with the query",
};

let systems = {}; // titles by name, the one that is shown first in front
let chosen = ""; // the list that is shown, or ALL; by default the first
let about = { far: {}, cosine: false, examples: [] }; // what /api/about has said
let characters = Infinity; // of a query, at most
let k = HITS; // of a list; the server may give fewer
let answers = false; // whether the run has a reader
let asking; // ends when `about` is there, or will not be
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

// Words that lead to the document of a hit: to its address, where it has one that runs no script, or else to a page here.
function linked(hit, ...words) {
  const made = element("a");
  made.href = hit.url;
  if (!hit.url || !/^https?:$/.test(made.protocol)) made.href = addressOf({ q: box.value.trim(), d: hit.id });
  made.append(...words);
  return made;
}

// That of a query `q`, of a document `d`, or of neither.
function addressOf(values) {
  const said = new URLSearchParams(Object.entries(values).filter(([, value]) => value)).toString();
  return said ? `/?${said}` : "/";
}

function paragraph(className, ...words) {
  const made = element("p", className);
  made.dir = "auto";
  made.append(...words);
  return made;
}

// The text of a passage, with what is code in a font of its own; lines stay lines.
function passage(marked) {
  const lines = [[]];
  for (const [text, matched] of marked) {
    const [first, ...others] = text.split("\n");
    lines.at(-1).push([first, matched]);
    for (const other of others) lines.push([[other, matched]]);
  }
  const made = [];
  let fenced = false;
  for (const line of lines) {
    const whole = line.map(([text]) => text).join("");
    const isFence = whole.startsWith("```"), isCode = fenced || isFence || CODE.test(whole);
    fenced = fenced !== isFence;
    if (CODE.test(whole) && !fenced) line[0][0] = line[0][0].replace(CODE, "");
    let last = made.at(-1);
    if (!last || (last.localName === "pre") !== (isCode || (last.localName === "pre" && !whole.trim()))) {
      last = isCode ? element("pre") : paragraph("text");
      made.push(last);
    } else line.unshift(["\n", false]);
    pieces(last, line);
  }
  return made;
}

function item(hit, alike) {
  const made = element("li");
  made.tabIndex = -1;
  made.append(paragraph("title", pieces(linked(hit), hit.title ? hit.marked.title : [[hit.id, false]])));
  if (hit.section) made.append(pieces(paragraph("place"), hit.marked.section));
  made.append(...passage(hit.marked.text));
  const near = element("span", "near", `${hit.title ? "· " : ""}similarity ${hit.score.toFixed(2)}`);
  const place = paragraph("place", hit.title ? `${hit.id} ` : "", near);
  made.append(place);
  const far = element("span", "far", "far");
  far.title = "No nearer than the nearest passage of random words.";
  place.append(" ", far);
  [made.dataset.id, made.dataset.score] = [hit.id, hit.score];
  if (alike.length) {
    const folded = element("details");
    folded.append(element("summary", "", `${alike.length} more nearly the same`));
    for (const other of alike) folded.append(paragraph("", linked(other, named(other))));
    made.append(folded);
  }
  return made;
}

function list(system) {
  let made = document.getElementById(`system-${system}`);
  if (!made) {
    lists.querySelector(".apart")?.remove();
    made = element("section");
    made.id = `system-${system}`;
    made.dataset.system = system;
    made.append(element("h2", "", systems[system]), element("p", "place", MEANING[system]), element("ol"));
    lists.append(made);
    const names = sections().map((section) => section.dataset.system);
    tabs.replaceChildren(...(names.length > 1 ? [...names, ALL] : []).map(tab));
    choose(chosen);
  }
  return made.querySelector("ol");
}

function sections() {
  return [...lists.querySelectorAll("section")];
}

function tab(name) {
  const made = element("button", "", systems[name] || name);
  made.type = "button";
  made.dataset.system = name;
  made.addEventListener("click", () => choose(name));
  return made;
}

// Shows one list, or all of them side by side.
function choose(system) {
  chosen = system;
  const all = sections(), isThere = all.some((section) => section.dataset.system === system);
  const shown = isThere || system === ALL ? system : all[0].dataset.system;
  for (const section of all) section.hidden = ![ALL, section.dataset.system].includes(shown);
  for (const each of tabs.children) each.setAttribute("aria-pressed", each.dataset.system === shown);
  lists.classList.toggle("all", shown === ALL);
}

// Marks hits by embeddings that are no nearer than the best ones of random words; in other lists where they share no
// word with the query either. Scores are shown where they mean something by themselves.
function markFar() {
  const far = new Set();
  for (const [system, least] of Object.entries(about.far)) {
    for (const hit of lists.querySelectorAll(`#system-${system} li[data-id]`)) {
      if (Number(hit.dataset.score) < least) far.add(hit.dataset.id);
    }
  }
  for (const hit of lists.querySelectorAll("li[data-id]")) {
    const { system } = hit.closest("section").dataset, isFar = far.has(hit.dataset.id);
    hit.querySelector(".far").hidden = !isFar || !(system in about.far || !hit.querySelector("mark"));
    hit.querySelector(".near").hidden = system !== "dense" || !about.cosine;
  }
}

// What is shown in place of lists.
function showApart(...parts) {
  clear();
  const made = element("article", "apart");
  made.append(...parts);
  lists.append(made);
}

function showStart() {
  const examples = element("ul");
  for (const query of about.examples) {
    const link = element("a", "", query);
    link.href = addressOf({ q: query });
    examples.append(element("li"));
    examples.lastChild.dir = "auto";
    examples.lastChild.append(link);
  }
  showApart(...(about.examples.length ? [element("h2", "", "Ask, for instance"), examples] : []));
}

async function showDocument(id) {
  const mine = ++turn, query = box.value.trim();
  try {
    await load();
    const found = await ask(`/api/documents/${encodeURIComponent(id)}`);
    if (mine !== turn) return;
    const title = element("h2", "", found.title || found.id), back = element("a", "", `← hits for ${query}`);
    title.dir = "auto";
    back.href = addressOf({ q: query });
    const parts = [...(query ? [paragraph("", back)] : []), title, paragraph("place", found.id)];
    let section = "";
    for (const each of found.passages) {
      if (each.section !== section) {
        parts.push(element("h3", "", (section = each.section)));
        parts.at(-1).dir = "auto";
      }
      const part = element("div", each.id === id ? "hit" : "");
      part.append(...passage([[each.text, false]]));
      parts.push(part);
    }
    showApart(...parts);
    say("");
    document.title = `${title.textContent} – search`;
    lists.querySelector(".hit")?.scrollIntoView({ block: "center" });
  } catch (error) {
    if (mine === turn) clear(), say(error.message, true);
  }
}

function clear() {
  lists.replaceChildren();
  tabs.replaceChildren();
  note.hidden = true;
  showAnswer(null);
}

function show(found) {
  const all = Object.values(found).flat();
  note.hidden = !all.length || all.some((hit) => Object.values(hit.marked).flat().some(([, matched]) => matched));
  note.textContent = note.hidden ? "" : "No passage has a word of this query. What is listed is near in meaning at best.";
  for (const [system, hits] of Object.entries(found)) {
    const firsts = hits.filter((hit, place) => hit.alike === place);
    const items = firsts.map((hit) => item(hit, hits.filter((other) => other !== hit && hits[other.alike] === hit)));
    const shown = list(system);
    shown.removeAttribute("aria-busy");
    shown.replaceChildren(...(items.length ? items : [element("li", "place", "No passage matches the query.")]));
  }
  markFar();
}

function showAnswer(found) {
  const place = document.getElementById("answer");
  place.hidden = !found;
  if (!found) return;
  const { hit, start, end, answer } = found;
  // The server counts characters, and this language counts halves of some.
  const text = [...hit.text];
  const before = text.slice(Math.max(0, start - AROUND), start).join(""), after = text.slice(end, end + AROUND).join("");
  const around = pieces(paragraph("text"), [[`${start > AROUND ? "…" : ""}${before}`, false], [answer, true],
    [`${after}${end + AROUND < text.length ? "…" : ""}`, false]]);
  place.replaceChildren(paragraph("title", answer), around, paragraph("place", linked(hit, named(hit))));
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
  tellSize(health.passages, health.passages);
  asking = ask("/api/about").then(tell, () => {}); // without it the page does well
}

function tellSize(passages, documents) {
  const of = documents < passages ? ` of ${documents.toLocaleString()} documents` : "";
  document.getElementById("size").textContent = `${passages.toLocaleString()} passages${of}`;
}

function tell(said) {
  about = said;
  document.getElementById("name").textContent = about.name;
  tellSize(about.passages, about.documents);
  markFar();
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
    if (!query) return await asking, mine === turn && (showStart(), say(""));
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
    list("reranked").replaceChildren();
    list("reranked").setAttribute("aria-busy", "true");
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
  const query = box.value.trim(), address = addressOf({ q: query });
  const here = location.pathname + location.search;
  // No server reads an address that is too long.
  if (address !== here && [...query].length <= characters) history[kept ? "pushState" : "replaceState"](null, "", address);
  kept = sent || (kept && address === here);
}

function recall() {
  kept = true;
  const said = new URLSearchParams(location.search);
  box.value = said.get("q") || "";
  return said.get("d") ? showDocument(said.get("d")) : search();
}

function move(columns, rows) {
  const all = sections().map((section) => [...section.querySelectorAll("li")]);
  const here = document.activeElement.closest("section li");
  const at = all.findIndex((items) => items.includes(here));
  const from = at < 0 ? [sections().findIndex((section) => !section.hidden), -1] : [at, all[at].indexOf(here)];
  const place = Math.min(Math.max(from[0] + columns, 0), all.length - 1), to = all[place];
  const hit = to[Math.min(Math.max(from[1] + rows, columns ? 0 : -1), to.length - 1)];
  if (from[1] + rows < 0 && !columns) return box.focus();
  if (chosen !== ALL && columns) choose(sections()[place].dataset.system);
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
  else if (event.key in STEPS && sections().length && (!inBox || event.key === "ArrowDown")) {
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

// A picture of a page is taken, and a printed one made, when it has loaded: which it has not until its hits are there.
// Nothing else that a browser knows waits for an answer but an open document within this one.
function whileLoading(done) {
  const open = document.body.appendChild(element("iframe"));
  open.hidden = true;
  open.contentDocument.open();
  done.finally(() => { open.contentDocument.close(); open.remove(); });
}

whileLoading(box.value ? search() : recall()); // or what has been typed meanwhile
