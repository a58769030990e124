// The past: one lane for each group, and two charts (uPlot) on the same time axis below.

import { clock, rate } from "./model.js";
import { glyph, make, write } from "./present.js";

const LEAST_SPAN = 60;
const DENSE = 24;
const PLOT_HEIGHT = 140;
const AXIS_HEIGHT = 30;
const byId = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Timeline {
  constructor() {
    this.from = 0;
    this.now = 1;
    this.edge = 0;
    this.axis = this.plot("axis", { height: AXIS_HEIGHT, line: null });
    this.steps = this.plot("steps-plot", { height: PLOT_HEIGHT, line: "steps-at" });
    this.tokens = this.plot("tokens-plot", { height: PLOT_HEIGHT, line: "tokens-at" });
    this.plots = [this.axis, this.steps, this.tokens];
    new ResizeObserver(() => this.fit()).observe(byId("axis"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const plot of this.plots) plot.redraw(true, true);
    });
  }

  draw(model, now, until) {
    const span = Number(document.querySelector("input[name=span]:checked").value);
    this.now = now;
    this.from = now - Math.max(Math.min(span, now - model.began(now) + 1), LEAST_SPAN);
    this.drawLanes(model, until);
    this.axis.setData([[this.from, now], [null, null]]);
    this.steps.setData(model.rates("steps"));
    this.tokens.setData(model.rates("tokens"));
    byId("no-paces").hidden = model.paces.length > 1;
  }

  drawLanes(model, until) {
    const lanes = model.lanes(this.from, until, DENSE);
    const dense = lanes.length > DENSE;
    const ofRun = model.runMarks(this.from, dense);
    const items = lanes.map((lane) => this.lane(lane));
    if (ofRun.length) items.unshift(this.runLane(ofRun));
    const list = byId("lanes");
    list.classList.toggle("dense", dense);
    list.tabIndex = dense ? 0 : -1; // it scrolls
    list.replaceChildren(...items);
    this.align(list.offsetWidth - list.clientWidth);
    byId("no-lanes").hidden = items.length > 0;
    const states = new Set(lanes.flatMap((lane) => lane.segments.map((segment) => segment.lane)));
    const kinds = new Set([...ofRun, ...lanes.flatMap((lane) => lane.marks)].map((mark) => mark.kind));
    for (const item of document.querySelectorAll(".key .rare")) {
      item.hidden = !(states.has(item.dataset.lane) || kinds.has(item.dataset.mark));
    }
  }

  // Keep the plots as wide as the lanes, which may have a scroll bar at their right.
  align(edge) {
    if (edge === this.edge) return;
    this.edge = edge;
    this.fit();
  }

  fit() {
    for (const plot of this.plots) plot.setSize({ width: plot.root.parentElement.clientWidth, height: plot.height });
  }

  lane(lane) {
    const track = make("div", "track");
    for (const segment of lane.segments) {
      const bar = make("span", `seg ${segment.lane}`);
      bar.style.left = `${this.at(segment.from)}%`;
      bar.style.width = `${this.at(segment.to) - this.at(segment.from)}%`;
      bar.title = `${lane.group}.${segment.incarnation} ${segment.lane}, ${clock(segment.from)} to ${clock(segment.to)}`;
      track.append(bar);
    }
    track.append(...lane.marks.map((mark) => this.mark(mark)));
    return this.item(lane.group, track, summary(lane));
  }

  runLane(marks) {
    const track = make("div", "track of-run");
    track.append(...marks.map((mark) => this.mark(mark)));
    return this.item("run", track, marks.map(said).join("; "), "");
  }

  item(name, track, text, group = name) {
    track.setAttribute("role", "img");
    track.setAttribute("aria-label", text);
    const item = make("li", "lane");
    const label = make("span", "lane-name", name);
    label.title = name;
    item.dataset.lane = group;
    item.append(label, track);
    return item;
  }

  mark(mark) {
    const sign = make("span", `glyph ${mark.kind}`, glyph(mark.kind));
    sign.style.left = `clamp(6px, ${this.at(mark.t)}%, calc(100% - 6px))`;
    sign.title = said(mark);
    return sign;
  }

  at(t) {
    return (100 * (t - this.from)) / (this.now - this.from);
  }

  // The text at a moment of the axis; none where it would not fit into the plot.
  tick(t, width) {
    const fits = this.at(t) * width > 2500 && (100 - this.at(t)) * width > 2500;
    return fits ? clock(t, this.now - this.from <= 600) : "";
  }

  plot(id, { height, line }) {
    const gutter = () => parseInt(css("--gutter"), 10);
    const quiet = () => css("--quiet");
    const values = (u, splits) => splits.map((t) => this.tick(t, u.bbox.width / devicePixelRatio));
    const grid = { stroke: () => css("--line"), width: 1 };
    const labels = { stroke: quiet, font: "12px system-ui, sans-serif", ticks: { show: false } };
    const options = {
      width: byId(id).clientWidth || 300,
      height,
      padding: [line ? 8 : 0, () => this.edge, 0, 0],
      legend: { show: false },
      cursor: { show: Boolean(line), y: false, drag: { x: false, y: false }, sync: { key: "past" } },
      scales: {
        x: { range: () => [this.from, this.now] },
        y: { range: (u, low, high) => [0, high > 0 ? 1.15 * high : 1] },
      },
      axes: [
        { ...labels, grid: line ? { ...grid } : { show: false }, values: line ? () => [] : values, size: line ? 4 : AXIS_HEIGHT, space: 68 },
        { ...labels, grid, size: gutter, space: 28, values: line ? (u, all) => all.map((value) => value.toLocaleString("en")) : () => [] },
      ],
      series: [{}, {
        show: true,
        stroke: () => css("--training"),
        fill: () => css("--fill"),
        width: 1.5,
        points: { show: false },
        paths: uPlot.paths.stepped({ align: -1 }), // a value stands for the time since the one before
      }],
      hooks: { setCursor: [(u) => line && this.read(u, line)] },
    };
    return new uPlot(options, [[0, 1], [null, null]], byId(id));
  }

  read(plot, line) {
    const { idx } = plot.cursor;
    const known = idx !== null && idx !== undefined && plot.data[1][idx] !== null && plot.data[1][idx] !== undefined;
    write(byId(line), known ? `${rate(plot.data[1][idx])} at ${clock(plot.data[0][idx])}` : "");
  }
}

function said(mark) {
  return `${clock(mark.t)} ${mark.text}`;
}

function summary(lane) {
  const last = lane.segments[lane.segments.length - 1];
  return [`${lane.group}: ${last ? last.lane : "gone"} now`, ...lane.marks.map(said)].join("; ");
}
