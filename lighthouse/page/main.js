// Listens to the lighthouse and keeps the page true. An EventSource comes back by itself; when it gives up, or says
// nothing for too long, a new one is made. Each connection begins with the whole, also after the lighthouse has restarted.

import { Model, clock } from "./model.js";
import { addEvents, clearEvents, showFigures, showHead, showLink, showRows } from "./present.js";
import { Timeline } from "./timeline.js";

const SILENCE = 12_000; // the lighthouse gives a sign every 5 s
const AGAIN = 3_000;
const model = new Model();
const timeline = new Timeline();
let source = null;
let heard = performance.now();
let server = Date.now() / 1000; // its time when it was last heard
let lostAt = null;
let opened = false;

const sinceHeard = () => (performance.now() - heard) / 1000;
const now = () => server + sinceHeard();

function hear(told) {
  heard = performance.now();
  if (told !== undefined) server = told;
  lostAt = null;
  opened = true;
  showLink("live", "live");
}

function lose() {
  lostAt ??= Date.now() / 1000;
  const ended = opened && model.head?.ended;
  const text = ended
    ? `The run has ended, and its lighthouse has stopped, at ${clock(lostAt)}.`
    : opened
    ? `No connection to the lighthouse since ${clock(lostAt)}: what is shown is from then. Trying again.`
    : "The lighthouse does not answer, or as many look at it as it allows. Trying again.";
  showLink("lost", "not connected", text, Boolean(ended));
}

function listen() {
  source?.close();
  source = new EventSource("/events");
  source.addEventListener("whole", (message) => {
    const document = JSON.parse(message.data);
    hear(document.now);
    clearEvents();
    model.takeWhole(document);
    show(model.told, true);
  });
  source.addEventListener("news", (message) => {
    const document = JSON.parse(message.data);
    hear(document.now);
    const fresh = model.take(document);
    show(fresh.told, fresh.moves.length + fresh.marks.length > 0);
  });
  source.addEventListener("beat", () => hear(now()));
  source.onerror = () => {
    lose();
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN);
  };
}

function show(told, past) {
  if (model.head) showHead(model.head);
  showRows(model.rows);
  addEvents(told);
  if (past) draw();
}

function draw() {
  showFigures(model, now());
  if (!document.hidden) timeline.draw(model, now(), lostAt === null ? now() : server);
}

setInterval(() => {
  if (lostAt === null && 1000 * sinceHeard() > SILENCE) {
    lose();
    listen();
  }
  draw();
}, 1000);
document.addEventListener("visibilitychange", draw);
for (const input of document.querySelectorAll("input[name=span]")) input.addEventListener("change", draw);
listen();
