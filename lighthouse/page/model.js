// What the page knows: the present as the lighthouse last told it, and the past of the last hour. No DOM in here.

const HOUR = 3600;
const FIELDS = {
  moves: ["n", "t", "group", "lane", "incarnation"],
  marks: ["n", "t", "kind", "group", "text"],
  paces: ["n", "t", "steps", "tokens"],
  told: ["n", "t", "kind", "text", "why"],
};

export class Model {
  constructor() {
    this.head = null;
    this.rows = new Map();
    this.base = new Map();
    this.forget();
  }

  forget() {
    this.n = 0;
    for (const name of Object.keys(FIELDS)) this[name] = [];
  }

  // A whole document takes the place of all that was known.
  takeWhole(document) {
    this.forget();
    this.rows.clear();
    this.base = new Map(Object.entries(document.base));
    this.take(document);
  }

  // News are added. An item that the whole had already is passed over by its number.
  take(document) {
    if (document.head) this.head = document.head;
    for (const row of document.rows ?? []) this.rows.set(row.group, row);
    const known = this.n;
    const fresh = {};
    for (const [name, fields] of Object.entries(FIELDS)) {
      fresh[name] = (document[name] ?? [])
        .map((values) => Object.fromEntries(fields.map((field, i) => [field, values[i]])))
        .filter((item) => item.n > known);
      this[name].push(...fresh[name]);
      for (const item of fresh[name]) this.n = Math.max(this.n, item.n);
    }
    this.trim(document.now);
    return fresh;
  }

  trim(now) {
    if (now === undefined) return;
    const limit = now - HOUR;
    let move;
    while ((move = this.moves[0]) && move.t < limit) {
      this.base.set(move.group, [move.lane, move.incarnation]);
      this.moves.shift();
    }
    for (const name of ["marks", "paces", "told"]) {
      while (this[name].length && this[name][0].t < limit) this[name].shift();
    }
  }

  // When the first thing that is known happened.
  began(now) {
    const first = ["moves", "marks", "paces", "told"].map((name) => this[name][0]?.t ?? now);
    return this.base.size ? now - HOUR : Math.min(now, ...first);
  }

  // One lane for each group: its segments from `from` to `until`, and its marks. Where there are more than `most`
  // lanes, discarded attempts are marked in the lane of the run alone.
  lanes(from, until, most) {
    const lanes = new Map();
    const lane = (group) => {
      if (!lanes.has(group)) lanes.set(group, { group, moves: [], marks: [] });
      return lanes.get(group);
    };
    for (const [group, [state, incarnation]] of this.base) {
      lane(group).moves.push({ t: -Infinity, lane: state, incarnation });
    }
    for (const move of this.moves) lane(move.group).moves.push(move);
    for (const mark of this.marks) if (mark.group !== null && mark.t >= from) lane(mark.group).marks.push(mark);
    for (const one of lanes.values()) {
      one.moves.sort((a, b) => a.t - b.t);
      one.segments = segments(one.moves, from, until);
      if (lanes.size <= most) one.marks.unshift(...this.discardsIn(one.segments, from));
    }
    const shown = [...lanes.values()].filter((one) => one.marks.length || one.segments.some((s) => s.lane !== "gone"));
    return shown.sort((a, b) => natural(a.group, b.group));
  }

  // A discarded attempt belongs to all that took part in it until then.
  discardsIn(segments, from) {
    const seated = segments.filter((s) => s.lane === "training" || s.lane === "healing");
    return this.marks.filter(
      (mark) => mark.kind === "discard" && mark.t >= from && seated.some((s) => s.from < mark.t && mark.t <= s.to),
    );
  }

  runMarks(from, discards) {
    return this.marks.filter((mark) => mark.group === null && (discards || mark.kind !== "discard") && mark.t >= from);
  }

  // Committed per second, each value for the time since the one before: [times, values].
  rates(name) {
    const times = [], values = [];
    for (let i = 1; i < this.paces.length; i += 1) {
      const before = this.paces[i - 1], pace = this.paces[i];
      const value = pace[name] === null ? null : pace[name] / (pace.t - before.t);
      if (value !== null && (values.at(-1) ?? null) === null) {
        times.push(before.t + 0.001); // where a line begins
        values.push(value);
      }
      times.push(pace.t);
      values.push(value);
    }
    return [times, values];
  }

  // The same now: over the last half minute, or the last value where steps take longer than that.
  rateNow(name, now) {
    const { paces } = this;
    let first = paces.length - 1;
    if (first < 1 || paces[first][name] === null) return null;
    while (first > 1 && paces[first - 1].t > now - 30 && paces[first - 1][name] !== null) first -= 1;
    const counted = paces.slice(first);
    const last = paces[paces.length - 1].t;
    const usual = last - paces[paces.length - 2].t;
    const end = now - last > 2 * usual + 5 ? now : last; // nothing for longer than usual: it counts
    return counted.reduce((sum, pace) => sum + pace[name], 0) / (end - paces[first - 1].t);
  }
}

export function natural(a, b) {
  return a.localeCompare(b, undefined, { numeric: true });
}

export function clock(t, seconds = true) {
  const at = new Date(t * 1000);
  const parts = [at.getHours(), at.getMinutes(), ...(seconds ? [at.getSeconds()] : [])];
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

export function rate(value) {
  if (value === null) return "–";
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function segments(moves, from, until) {
  const found = [];
  moves.forEach((move, i) => {
    const begin = Math.max(move.t, from);
    const end = Math.min(moves[i + 1]?.t ?? until, until);
    if (end >= begin && end > from) found.push({ from: begin, to: end, lane: move.lane, incarnation: move.incarnation });
  });
  return found;
}
