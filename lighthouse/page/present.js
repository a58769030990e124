// The present: headline, figures, the table of groups, the list of events. Texts go in as text, never as markup.

import { clock, natural, rate } from "./model.js";

const EVENTS = 100;
const GLYPHS = {
  departure: "✕", left: "→", discard: "◇", heal: "◐", back: "●", join: "○", quorum: "=", drain: "→",
  rollback: "↺", end: "■", lighthouse: "▲", refusal: "⊘",
};
const WORDS = { training: "training", healing: "healing", starting: "starting", gone: "gone", unseen: "not seen", done: "done" };

const byId = (id) => document.getElementById(id);

export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function make(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}

export const glyph = (kind) => GLYPHS[kind] ?? "·";

export function showHead(head) {
  const { quorum } = head;
  const run = head.run ?? "Phalanx";
  write(byId("run"), run);
  write(byId("headline"), head.text);
  byId("headline").dataset.tone = head.tone;
  byId("waits").hidden = !head.waits;
  write(byId("waits"), head.waits ? `Waiting: ${head.waits}` : "");
  const step = head.ended ?? head.granted;
  const count = step.split(":")[0];
  write(byId("step"), Number(count).toLocaleString("en"));
  write(byId("step-of"), head.steps ? `of ${head.steps.toLocaleString("en")}` : "");
  write(byId("quorum"), quorum && !head.ended ? `${quorum.participants} ${quorum.participants === 1 ? "group" : "groups"}, id ${quorum.quorum.split(".")[1]}` : "none");
  byId("quorum").title = quorum ? `quorum id ${quorum.quorum}` : "";
  write(byId("epoch"), `epoch ${head.epoch}`);
  document.title = `${head.ended ? "ended" : count} · ${run} · Phalanx`;
}

export function showFigures(model, now) {
  write(byId("steps-rate"), rate(model.head?.ended ? null : model.rateNow("steps", now)));
  write(byId("tokens-rate"), rate(model.head?.ended ? null : model.rateNow("tokens", now)));
  write(byId("discards"), String(model.marks.filter((mark) => mark.kind === "discard").length));
}

export function showRows(rows) {
  const body = byId("groups");
  const there = new Map([...body.rows].map((line) => [line.dataset.group, line]));
  for (const [group, line] of there) if (!rows.has(group)) line.remove();
  const names = [...rows.keys()].sort(natural);
  names.forEach((group, i) => {
    const line = there.get(group) ?? newRow(group);
    if (body.rows[i] !== line) body.insertBefore(line, body.rows[i] ?? null);
    fillRow(line, rows.get(group));
  });
  byId("no-groups").hidden = rows.size > 0;
  body.parentElement.hidden = rows.size === 0;
}

function newRow(group) {
  const line = make("tr");
  line.dataset.group = group;
  const name = make("th");
  name.scope = "row";
  name.append(make("span", "", group), make("span", "life"));
  line.append(name, make("td"), make("td", "phase"), make("td", "number"));
  line.children[1].append(make("span", "state"));
  return line;
}

function fillRow(line, row) {
  const [name, state, phase, step] = line.children;
  write(name.lastElementChild, `.${row.incarnation}`);
  name.title = `${row.group}, incarnation ${row.incarnation}${row.host ? `, on ${row.host}` : ""}`;
  state.firstElementChild.className = `state ${row.lane}`;
  write(state.firstElementChild, WORDS[row.lane] ?? row.lane);
  write(phase, doing(row));
  write(step, row.step ? row.step.toLocaleString("en") : "–");
}

function doing(row) {
  if (row.silent >= 2) return `silent for ${row.silent} s`;
  if (!row.phase) return "–";
  return row.age >= 2 ? `${row.phase}, ${row.age} s` : row.phase;
}

export function addEvents(told) {
  const list = byId("events");
  for (const event of told) {
    const line = make("li");
    line.dataset.kind = event.kind;
    const time = make("time", "", clock(event.t));
    time.dateTime = new Date(event.t * 1000).toISOString();
    const sign = make("span", `glyph ${event.kind}`, glyph(event.kind));
    sign.setAttribute("aria-hidden", "true");
    const text = make("span", "", event.text);
    if (event.why) text.append(make("span", "why", event.why));
    line.append(time, sign, text);
    list.prepend(line);
  }
  while (list.children.length > EVENTS) list.lastElementChild.remove();
  byId("no-events").hidden = list.children.length > 0;
}

export function clearEvents() {
  byId("events").replaceChildren();
}

export function showLink(state, text, lost = "", calm = false) {
  byId("link").dataset.link = state;
  write(byId("link-text"), text);
  byId("lost").hidden = !lost;
  byId("lost").classList.toggle("calm", calm);
  write(byId("lost"), lost);
}
