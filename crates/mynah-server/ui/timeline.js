// The timeline: turns, model calls, tool attempts, side effects, waits and crashes as bars on a time axis.

import { exactly, h, say, span } from "./dom.js";
import { RowList } from "./list.js";
import { beginOf } from "./story.js";

const ROW = 28;
/** The part of the axis that a wait takes where waits are shortened. */
const SHORT = 0.06;
/** A pause is shortened from this length on, in milliseconds. */
const LONG = 1000;
const KINDS = { turn: "Turn", model: "Model call", tool: "Tool", agent: "Agent", effect: "Side effect", wait: "Wait", crash: "Crash" };

export class Timeline {
  constructor(story, { select }) {
    Object.assign(this, { story, select, shorten: true, window: [0, 1] });
    this.list = new RowList({ label: "Timeline", height: ROW, row: (index) => this.row(index), choose: (index) => select(story.spans[index].seq) });
    this.axis = h("div", { class: "axis", "aria-hidden": "true" });
    this.overview = h("canvas", { class: "overview", height: "40", "aria-hidden": "true" });
    this.brush = h("div", { class: "brush", "aria-hidden": "true" });
    const button = (words, label, act) => h("button", { type: "button", class: "small", "aria-label": label, title: label, onclick: act }, words);
    this.toggle = h("label", { class: "switch" }, h("input", { type: "checkbox", checked: true, onchange: (event) => { this.shorten = event.target.checked; this.refresh(); } }), "Shorten pauses");
    this.element = h("div", { class: "timeline" },
      h("div", { class: "timeline-tools" },
        h("ul", { class: "legend", "aria-label": "Legend" }, Object.entries(KINDS).map(([kind, words]) => h("li", {}, h("span", { class: `swatch span-${kind}`, "aria-hidden": "true" }), words)), h("li", { title: "A model call, until its first token" }, h("span", { class: "swatch span-model", "aria-hidden": "true" }, h("span", { class: "silent" })), "First token")),
        this.toggle, h("div", { class: "group" }, button("−", "Zoom out (-)", () => this.zoom(1.6)), button("+", "Zoom in (+)", () => this.zoom(1 / 1.6)), button("Fit", "Fit: show all (0)", () => this.fit()))),
      h("div", { class: "overview-frame" }, this.overview, this.brush), this.axis, this.list.element);
    this.list.element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.drag();
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.refresh();
  }

  refresh() {
    const { spans, first, until } = this.story;
    const begin = first?.ts ?? 0;
    const end = Math.max(until, begin + 0.001);
    const all = spans.filter((one) => one.kind === "wait" || one.kind === "crash").map((one) => [one.from, this.story.endOf(one)]).filter(([from, to]) => to > from);
    const paused = all.reduce((sum, [from, to]) => sum + to - from, 0);
    const active = Math.max(end - begin - paused, 0.001);
    // Only a pause beside which the rest would be small.
    const long = all.filter(([from, to]) => to - from >= LONG && to - from > active / 4);
    this.toggle.hidden = long.length === 0;
    const pauses = this.shorten ? long : [];
    const kept = () => active * SHORT;
    // Where a moment stands: its time without what was cut out of pauses before it.
    this.at = (ts) => {
      let cut = 0;
      for (const [from, to] of pauses) {
        if (ts <= from) break;
        const part = Math.min(ts, to) - from;
        cut += part - kept() * (part / (to - from));
      }
      return ts - begin - cut;
    };
    // The moment at a place of the axis, since the run began.
    this.since = (place) => {
      let cut = 0;
      for (const [from, to] of pauses) {
        const start = from - begin - cut;
        if (place <= start) break;
        const short = kept();
        cut += (to - from - short) * Math.min(1, (place - start) / short);
      }
      return place + cut;
    };
    this.length = Math.max(this.at(end), 0.001);
    Object.assign(this, { begin, end, pauses });
    this.list.resize(spans.length);
    this.draw();
  }

  /** A moment as a fraction of the visible window. */
  fraction(ts) {
    const [from, to] = this.window;
    return (this.at(ts) / this.length - from) / (to - from);
  }

  row(index) {
    const one = this.story.spans[index];
    const to = this.story.endOf(one);
    const [left, right] = [this.fraction(beginOf(one)), this.fraction(to)];
    const inside = right >= 0 && left <= 1;
    const from = Math.max(0, left);
    const width = Math.max(0, Math.min(1, right) - from);
    const isCopied = this.story.isCopied(one);
    const took = one.kind === "effect" ? "" : isCopied ? "–" : one.isUnclear || one.state === "lost" && one.kind !== "crash" ? "?" : one.duration === 0 ? "< 1 ms" : span(one.duration ?? to - one.from);
    // The part of a model call before its first token.
    const silent = one.firstToken != null && to > one.from ? Math.min(1, one.firstToken / (to - one.from)) : 0;
    const words = `${KINDS[one.kind]}: ${one.label}${isCopied ? ", copied from the run that this one was forked from" : took ? `, ${took}` : ""}${one.firstToken != null ? `, first token after ${one.firstToken ? span(one.firstToken) : "< 1 ms"}` : ""}${one.state === "failed" ? ", failed" : ["lost", "cancelled", "redacted", "damaged"].includes(one.state) ? `, ${one.state}` : one.to === null ? ", not ended" : ""}`;
    const bar = inside ? h("span", { class: `bar span-${one.kind} state-${one.state}${one.to === null ? " open" : ""}`, style: { left: `${100 * from}%`, width: `${100 * width}%` }, title: `${words}\n${exactly(one.from)}` }, silent * (right - left) > 0.002 ? h("span", { class: "silent", style: { width: `${100 * Math.max(0, Math.min(1, left + silent * (right - left)) - from) / Math.max(width, 1e-9)}%` } }) : null) : null;
    // Beside the bar; on its end, if there is no room on either side.
    const isFull = from + width > 0.85 && from < 0.15;
    const tail = isFull ? { right: `${100 * (1 - from - width)}%` } : from + width > 0.85 ? { right: `${100 * (1 - from)}%` } : { left: `${100 * (from + width)}%` };
    return h("div", { class: `span-row depth-${one.depth}` },
      h("span", { class: "span-label" }, h("span", { class: `swatch span-${one.kind}`, "aria-hidden": "true" }), h("span", { class: "visually-hidden" }, `${KINDS[one.kind]}, record ${one.seq}: `), h("span", { class: "span-words", title: one.label }, say(one.label))),
      h("span", { class: "span-took" }, took),
      h("span", { class: "track" }, bar, inside && one.state !== "ok" && one.state !== "open" && one.kind !== "crash" ? h("span", { class: `bar-note state-${one.state}${isFull ? " on-bar" : ""}`, style: tail }, one.state) : null));
  }

  draw() {
    this.list.redraw();
    this.list.select(this.index ?? -1, false);
    this.drawAxis();
    this.drawOverview();
  }

  drawAxis() {
    const [from, to] = this.window;
    const length = (to - from) * this.length;
    const frame = h("span", { class: "axis-frame" });
    this.axis.replaceChildren(frame);
    const width = frame.clientWidth || 800;
    // The visible times outside of pauses that are shortened: ticks are at round times, before and after such a pause.
    const [first, last] = [this.since(from * this.length), this.since(to * this.length)];
    let step = niceStep(length * 60 / width);
    // Later times have more words.
    const room = () => 8 * tickWords(last, step).length + 8;
    while (step < length && step / length * width < room()) step = niceStep(1.5 * step);
    const end = this.axis.getBoundingClientRect().right - frame.getBoundingClientRect().left;
    const taken = [];
    const places = [];
    const known = new Set();
    /** Takes the room from `left` to `right`, in pixels. Returns whether it was free. */
    const take = (left, right) => {
      if (left < -1 || right > end || taken.some(([from, to]) => left < to && right > from)) return false;
      taken.push([left, right]);
      return true;
    };
    const tick = (at, words) => {
      const place = this.fraction(this.begin + at);
      const element = h("span", { class: "tick", style: { left: `${100 * place}%` } }, words);
      frame.append(element);
      if (known.has(words) || !take(place * width, place * width + element.getBoundingClientRect().width)) return element.remove();
      known.add(words);
      places.push(place);
    };
    if (first <= 0) tick(0, "0");
    for (const [left, right] of this.pauses) {
      const [begin, until] = [this.fraction(left) * width, this.fraction(right) * width];
      // In the middle, but beside the tick at the end and the one at the beginning of the run.
      const middle = Math.max(Math.min((begin + until) / 2, until - 12), begin >= 0 && first <= 0 ? 26 : -Infinity);
      if (middle > 0 && middle < width && take(middle - 10, middle + 10)) frame.append(h("span", { class: "break", title: `A pause of ${span(right - left)}, drawn shorter`, style: { left: `${middle}px` } }, "//"));
    }
    // The ends of pauses come before other times: the time passes there unseen.
    const finer = Math.min(6e4, 10 ** Math.floor(Math.log10(0.75 * step)));
    for (const [, right] of this.pauses) {
      const [place, at] = [this.fraction(right), right - this.begin];
      if (place >= 0 && place <= 1) tick(at, tickWords(Math.round(at / finer) * finer, finer));
    }
    let start = first;
    for (const [left, right] of [...this.pauses.map((pause) => pause.map((ts) => ts - this.begin)), [last, Infinity]]) {
      for (let at = Math.ceil(start / step - 1e-9) * step; at <= Math.min(left, last) + 1e-9; at += step) tick(at, tickWords(at, step));
      start = Math.max(start, right);
    }
    places.sort((one, other) => one - other);
    // The rows continue the lines of the axis.
    const line = (place) => `transparent ${100 * place}%, var(--grid) ${100 * place}% calc(${100 * place}% + 1px), transparent calc(${100 * place}% + 1px)`;
    this.element.style.setProperty("--lines", `linear-gradient(90deg, ${places.length ? places.map(line).join(", ") : "transparent, transparent"})`);
  }

  drawOverview() {
    const { overview } = this;
    const width = overview.clientWidth;
    if (!width) return;
    const scale = window.devicePixelRatio || 1;
    overview.width = width * scale;
    overview.height = 40 * scale;
    const pen = overview.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(this.element);
    const colour = (kind) => style.getPropertyValue(`--span-${kind}`).trim() || "#888";
    const rows = { turn: [2, 4], model: [9, 9], tool: [21, 9], agent: [31, 3], effect: [33, 5], wait: [9, 21], crash: [2, 36] };
    for (const kind of Object.keys(rows)) {
      pen.fillStyle = colour(kind);
      pen.globalAlpha = kind === "wait" || kind === "crash" ? 0.45 : 1;
      for (const one of this.story.spans) {
        if (one.kind !== kind) continue;
        const x = this.at(beginOf(one)) / this.length * width;
        pen.fillRect(x, rows[kind][0], Math.max(1.5, (this.at(this.story.endOf(one)) / this.length * width) - x), rows[kind][1]);
      }
    }
    this.brush.style.setProperty("left", `${100 * this.window[0]}%`);
    this.brush.style.setProperty("width", `${100 * (this.window[1] - this.window[0])}%`);
    this.brush.hidden = this.window[0] === 0 && this.window[1] === 1;
  }

  look(from, to) {
    const width = Math.min(1, Math.max(1e-6, to - from));
    const start = Math.min(1 - width, Math.max(0, from));
    this.window = [start, start + width];
    this.draw();
  }

  zoom(by, about = 0.5) {
    const [from, to] = this.window;
    const centre = from + about * (to - from);
    this.look(centre - (centre - from) * by, centre + (to - centre) * by);
  }

  fit() { this.look(0, 1); }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    const [from, to] = this.window;
    if (event.shiftKey) {
      const by = (event.deltaY || event.deltaX) / 800 * (to - from);
      this.look(from + by, to + by);
      return;
    }
    const frame = this.axis.firstChild.getBoundingClientRect();
    this.zoom(Math.exp(event.deltaY / 300), Math.min(1, Math.max(0, (event.clientX - frame.left) / frame.width)));
  }

  /** A drag over the overview chooses the part to look at. */
  drag() {
    const place = (event) => {
      const frame = this.overview.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - frame.left) / frame.width));
    };
    let began = null;
    this.overview.addEventListener("pointerdown", (event) => { began = place(event); this.overview.setPointerCapture(event.pointerId); });
    this.overview.addEventListener("pointermove", (event) => {
      if (began !== null && Math.abs(place(event) - began) > 0.005) this.look(Math.min(began, place(event)), Math.max(began, place(event)));
    });
    this.overview.addEventListener("pointerup", (event) => {
      if (began !== null && Math.abs(place(event) - began) <= 0.005) this.fit();
      began = null;
    });
  }

  /** Returns whether the key was one of the timeline's. */
  key(event) {
    const [from, to] = this.window;
    const by = 0.2 * (to - from);
    const act = { "+": () => this.zoom(1 / 1.6), "=": () => this.zoom(1 / 1.6), "-": () => this.zoom(1.6), 0: () => this.fit(), ArrowLeft: () => this.look(from - by, to - by), ArrowRight: () => this.look(from + by, to + by) }[event.key];
    if (!act) return false;
    act();
    return true;
  }

  reveal(seq, scroll = true) {
    const { spans } = this.story;
    let best = -1;
    for (let index = 0; index < spans.length; index += 1) {
      const one = spans[index];
      if (one.seq === seq || (one.last === seq && (best < 0 || spans[best].seq !== seq))) best = index;
      else if (one.seq <= seq && (best < 0 || (spans[best].seq < one.seq && spans[best].seq !== seq && spans[best].last !== seq))) best = index;
    }
    this.index = best;
    this.list.select(best, scroll);
  }

  step(by) {
    const next = (this.index ?? (by > 0 ? -1 : this.story.spans.length)) + by;
    return this.story.spans[next]?.seq ?? null;
  }
}

/** A time on the axis, with the digits that tell it from the one a step before. */
function tickWords(ms, step) {
  if (ms <= 0) return "0";
  const [unit, name] = ms < 1 ? [0.001, "µs"] : ms < 1000 ? [1, "ms"] : [1000, "s"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  const number = (value) => String(Number(value.toFixed(digits)));
  if (ms < 6e4) return `${number(ms / unit)} ${name}`;
  if (step >= 6e4) return span(ms);
  const minutes = Math.floor(ms / 6e4 + 1e-9);
  const rest = number(Math.max(0, ms - 6e4 * minutes) / 1000);
  return `${span(6e4 * minutes)}${rest === "0" ? "" : ` ${rest} s`}`;
}

/** 1, 2 or 5 times a power of ten up to a second, and sizes of a clock above. */
function niceStep(least) {
  const clock = [1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5, 72e5, 216e5, 864e5, 1728e5, 6048e5];
  if (least > 500) return clock.find((step) => step >= least) ?? Math.ceil(least / 6048e5) * 6048e5;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least);
}
