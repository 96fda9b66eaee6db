// Elements, text and formats. Text from models and tools enters the page only as text nodes.

/** Creates an element. `on…` members are listeners; null, undefined and false leave an attribute out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}

function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

// Controls, bidirectional overrides, zero-width and tag characters: they change what a reader sees, and are never visible.
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

/** Text as nodes, in which invisible characters are shown by their code point. */
export function say(text) {
  const nodes = [];
  let from = 0;
  const whole = String(text ?? "");
  for (const odd of whole.matchAll(ODD)) {
    if (odd[0] === "\r" && whole[odd.index + 1] === "\n") continue;
    if (odd.index > from) nodes.push(document.createTextNode(whole.slice(from, odd.index)));
    const code = `U+${odd[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    nodes.push(h("span", { class: "odd", title: `invisible character ${code}` }, code));
    from = odd.index + odd[0].length;
  }
  if (from < whole.length) nodes.push(document.createTextNode(whole.slice(from)));
  return nodes;
}

/** The first words of a text, on one line. */
export function brief(text, length = 160) {
  const line = String(text ?? "").slice(0, 4 * length).replace(/\s+/gu, " ").trim();
  const letters = Array.from(line);
  return letters.length > length ? `${letters.slice(0, length - 1).join("")}…` : line;
}

/** An id or a hash, shortened in its middle. */
export function shortId(id) {
  const text = String(id ?? "");
  return text.length > 18 ? `${text.slice(0, 8)}…${text.slice(-6)}` : text;
}

/** A button that copies a text. */
export function copyButton(text, what = "Copy") {
  const button = h("button", { class: "copy", type: "button", title: what, "aria-label": what }, icon("copy"));
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    event.preventDefault();
    const value = typeof text === "function" ? text() : text;
    await copyText(value);
    button.classList.add("done");
    button.replaceChildren(icon("check"));
    announce("Copied");
    setTimeout(() => { button.classList.remove("done"); button.replaceChildren(icon("copy")); }, 1200);
  });
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a permission or a secure context.
    const area = h("textarea", { class: "visually-hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** A shortened id with a button that copies the whole. */
export function idChip(id, what = "id") {
  return h("span", { class: "id" }, h("code", { title: id }, say(shortId(id))), copyButton(id, `Copy ${what}`));
}

/** Announces a change to screen readers. */
export function announce(words) {
  let region = document.getElementById("announcer");
  if (!region) {
    region = h("div", { id: "announcer", class: "visually-hidden", "aria-live": "polite", role: "status" });
    document.body.append(region);
  }
  region.textContent = words;
}

const ICONS = {
  copy: "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z",
  check: "M3 8.5l3.2 3.2L13 5",
  cross: "M4 4l8 8M12 4l-8 8",
  chevron: "M6 3.5L10.5 8 6 12.5",
  clock: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 4.8V8l2.2 1.6",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  bolt: "M9 1.5L3.5 9H8l-1 5.5L12.5 7H8z",
  seal: "M8 1.8l5 1.9v3.9c0 3.2-2.1 5.4-5 6.6-2.9-1.2-5-3.4-5-6.6V3.7zM5.7 8l1.7 1.7 3-3.2",
  link: "M6.8 9.2a2.4 2.4 0 0 0 3.4 0l2.3-2.3a2.4 2.4 0 0 0-3.4-3.4l-.9.9M9.2 6.8a2.4 2.4 0 0 0-3.4 0L3.5 9.1a2.4 2.4 0 0 0 3.4 3.4l.9-.9",
  tool: "M9.8 2.4a3.6 3.6 0 0 0-3.3 5L2.4 11.5v2.1h2.1l4.1-4.1a3.6 3.6 0 0 0 4.8-4.4L11.2 7.200 8.8 4.800z",
  model: "M8 2l1.5 4.500L14 8l-4.500 1.500L8 14l-1.500-4.500L2 8l4.500-1.500z",
  download: "M8 2.500v7.500M4.800 7L8 10.200 11.200 7M2.800 13.200h10.400",
  search: "M7 2.500a4.500 4.500 0 1 0 0 9 4.500 4.500 0 0 0 0-9zM10.300 10.300L14 14",
  eye: "M1.500 8S4 3.500 8 3.500 14.500 8 14.500 8 12 12.500 8 12.500 1.500 8 1.500 8zM8 6a2 2 0 1 0 0 4 2 2 0 0 0 0-4z",
  user: "M8 2.500a2.800 2.800 0 1 0 0 5.600 2.800 2.800 0 0 0 0-5.600zM2.800 13.500c.500-2.700 2.600-4 5.200-4s4.700 1.300 5.200 4",
  gear: "M8 5.500a2.500 2.500 0 1 0 0 5 2.500 2.500 0 0 0 0-5zM8 1.800v1.700M8 12.500v1.700M1.800 8h1.700M12.500 8h1.700M3.600 3.600l1.200 1.200M11.200 11.200l1.200 1.200M12.400 3.600l-1.200 1.200M4.800 11.200l-1.200 1.200",
  fork: "M4.500 2.500v3a2 2 0 0 0 2 2h3a2 2 0 0 0 2-2v-3M8 7.500v6",
  more: "M3.500 8h.01M8 8h.01M12.500 8h.01",
};

/** A small line drawing beside words that say the same. */
export function icon(name) {
  return svg("svg", { class: `icon icon-${name}`, viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: ICONS[name] ?? ICONS.more }));
}

/** The bird. */
export function logo() {
  return svg("svg", { class: "logo", viewBox: "0 0 32 32", "aria-hidden": "true", focusable: "false" },
    svg("path", { class: "logo-body", d: "M5 27c0-9 3-20 12-22 5-1 9 2 9.500 6.500L31 14l-4.600 1.200C25.500 22 20 26.500 12.500 26.500z" }),
    svg("path", { class: "logo-beak", d: "M26.500 11.500L31 14l-4.600 1.200z" }),
    svg("path", { class: "logo-patch", d: "M19.500 11.500c2.200-1.300 4.700-.8 5 .9.200 1.500-2.300 2-4.200 2.500-1.500.400-2.500-2.200-.8-3.400z" }),
    svg("circle", { class: "logo-eye", cx: "21.600", cy: "11.600", r: "1.350" }));
}

const whole = new Intl.NumberFormat("en-US");

/** 12,345 */
export const count = (value) => whole.format(value ?? 0);

/** One thing, or several. */
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${Number(value) === 1 ? one : many}`;

/** Marks a sum to which records that cannot be read may add. */
export const atLeast = (isLeast, words) => isLeast ? `≥ ${words}` : words;

/** Few digits for a number of any size: 1.2k, 3.4M. */
export function compact(value) {
  const number = Number(value ?? 0);
  for (const [limit, unit] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(number) >= limit) return `${(number / limit).toFixed(number / limit < 10 ? 1 : 0)}${unit}`;
  }
  return whole.format(number);
}

/** US dollars, with as many digits as a small sum needs. */
export function money(dollars) {
  const value = Number(dollars ?? 0);
  if (value === 0) return "$0";
  if (Math.abs(value) >= 1000) return `$${whole.format(Math.round(value))}`;
  if (Math.abs(value) >= 0.1) return `$${value.toFixed(2)}`;
  return `$${value.toPrecision(2).replace(/0+$/u, "")}`;
}

/** A time span: 840 µs, 12 ms, 3.4 s, 2 min 5 s, 3 h 4 min, 2 d 3 h. */
export function span(ms) {
  if (ms == null || !Number.isFinite(ms)) return "–";
  const value = Math.max(0, ms);
  if (value === 0) return "0";
  if (value < 1) return `${Math.round(value * 1000)} µs`;
  if (value < 100) return `${value < 10 ? value.toFixed(1).replace(/\.0$/u, "") : Math.round(value)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  const seconds = value / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0).replace(/\.0$/u, "")} s`;
  const parts = (big, small, size) => `${Math.floor(seconds / size[0])} ${big}${Math.floor((seconds % size[0]) / size[1]) ? ` ${Math.floor((seconds % size[0]) / size[1])} ${small}` : ""}`;
  if (seconds < 3600) return parts("min", "s", [60, 1]);
  if (seconds < 86400) return parts("h", "min", [3600, 60]);
  return parts("d", "h", [86400, 3600]);
}

/** Milliseconds since 1970 as the exact local time. */
export function exactly(ms) {
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return "";
  const two = (value) => String(value).padStart(2, "0");
  const offset = -date.getTimezoneOffset();
  const zone = `${offset < 0 ? "-" : "+"}${two(Math.floor(Math.abs(offset) / 60))}:${two(Math.abs(offset) % 60)}`;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")} ${zone}`;
}

function ago(ms, now) {
  const seconds = (now - ms) / 1000;
  if (seconds < -5) return `in ${span(-1000 * seconds)}`;
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  if (seconds < 30 * 86400) return `${Math.floor(seconds / 86400)} d ago`;
  return exactly(ms).slice(0, 10);
}

/** A relative time that stays current, with the exact one on hover. */
export function when(ms) {
  const date = new Date(ms);
  const element = h("time", { datetime: Number.isNaN(date.getTime()) ? null : date.toISOString(), title: exactly(ms), "data-ms": ms }, ago(ms, Date.now()));
  return element;
}

/** How long something lasts: from a moment to another, or to now if it has not ended. */
export function lasting(from, to) {
  return h("span", { class: "lasting", "data-since": to === null ? from : null }, span((to ?? Date.now()) - from));
}

setInterval(() => {
  const renew = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  for (const element of document.querySelectorAll("time[data-ms]")) renew(element, ago(Number(element.dataset.ms), Date.now()));
  for (const element of document.querySelectorAll("[data-since]")) renew(element, span(Date.now() - Number(element.dataset.since)));
}, 1000);

export const STATUS_WORDS = {
  running: "Running", suspended: "Waiting", completed: "Completed", failed: "Failed", cancelled: "Cancelled", abandoned: "Abandoned", queued: "Queued", sleeping: "Sleeping", not_started: "Not started", pruned: "Pruned",
};
const STATUS_ICONS = { running: "bolt", suspended: "pause", completed: "check", failed: "cross", cancelled: "cross", abandoned: "cross", queued: "clock", sleeping: "clock", not_started: "more" };

/** A run's status: a drawing, a colour and a word. */
export function statusChip(status) {
  return h("span", { class: `chip status-${status in STATUS_WORDS ? status : "unknown"}` }, icon(STATUS_ICONS[status] ?? "more"), STATUS_WORDS[status] ?? say(status));
}
