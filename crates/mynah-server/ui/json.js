// JSON as a tree that opens and closes, and the difference of two values.

import { h, plural, say } from "./dom.js";
import { Exact, isBranch, isSameNumber, jsonText } from "./exact.js";

const MANY = 100;

/** A tree of a value. Branches deeper than `open` levels, and members of which `folded` holds, are made when they are opened. */
export function jsonTree(value, { open = 2, folded = () => false } = {}) {
  return h("div", { class: "json" }, branch(value, null, open, folded));
}

function branch(value, key, depth, folded) {
  const open = folded(key) ? 0 : depth;
  const name = key === null ? [] : [h("span", { class: "key" }, say(typeof key === "number" ? String(key) : JSON.stringify(key))), ": "];
  if (!isBranch(value)) return h("div", { class: "leaf" }, name, scalar(value));
  const entries = Array.isArray(value) ? value.map((item, index) => [index, item]) : Object.entries(value);
  const [left, right] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (entries.length === 0) return h("div", { class: "leaf" }, name, `${left}${right}`);
  const size = plural(entries.length, Array.isArray(value) ? "item" : "member");
  const inner = h("div", { class: "inner" });
  const fill = () => {
    if (inner.childNodes.length) return;
    const add = (from) => {
      inner.append(...entries.slice(from, from + MANY).map(([name_, item]) => branch(item, name_, Math.max(depth, 1) - 1, folded)));
      if (entries.length > from + MANY) {
        const more = h("button", { type: "button", class: "more" }, `${entries.length - from - MANY} more`);
        more.addEventListener("click", () => { more.remove(); add(from + MANY); });
        inner.append(more);
      }
    };
    add(0);
  };
  const details = h("details", { open: open > 0 }, h("summary", {}, name, left, h("span", { class: "size" }, ` ${size} ${right}`)), inner, h("div", { class: "close" }, right));
  if (open > 0) fill();
  else details.addEventListener("toggle", fill, { once: true });
  return details;
}

function scalar(value) {
  if (typeof value !== "string") return h("span", { class: value === null ? "null" : value instanceof Exact ? "number" : typeof value }, String(value));
  const quoted = JSON.stringify(value);
  if (quoted.length <= 600) return h("span", { class: "string" }, say(quoted));
  const whole = h("span", { class: "string" }, say(`${quoted.slice(0, 500)}…`));
  const more = h("button", { type: "button", class: "more" }, `all ${quoted.length} characters`);
  more.addEventListener("click", () => { whole.replaceChildren(...say(quoted)); more.remove(); });
  return h("span", {}, whole, " ", more);
}

/** The fields in which two values differ: `{path, before, after}`; a member that is not there is undefined. */
export function jsonDiff(before, after, path = "", found = []) {
  if (Object.is(before, after)) return found;
  const isNumber = (value) => typeof value === "number" || value instanceof Exact;
  if (isNumber(before) && isNumber(after) && isSameNumber(before, after)) return found;
  if (!isBranch(before) || !isBranch(after) || Array.isArray(before) !== Array.isArray(after)) {
    if (jsonText(before) !== jsonText(after)) found.push({ path: path || "(value)", before, after });
    return found;
  }
  for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const inner = Array.isArray(before) ? `${path}[${key}]` : path ? `${path}.${key}` : key;
    jsonDiff(before[key], after[key], inner, found);
  }
  return found;
}

const MAX_WORDS = 4000;

/** Word by word: `[{text, side}]`, where side is `both`, `before` or `after`. */
export function wordDiff(before, after) {
  const words = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];
  const [left, right] = [words(before), words(after)];
  let [start, leftEnd, rightEnd] = [0, left.length, right.length];
  while (start < leftEnd && start < rightEnd && left[start] === right[start]) start += 1;
  while (leftEnd > start && rightEnd > start && left[leftEnd - 1] === right[rightEnd - 1]) { leftEnd -= 1; rightEnd -= 1; }
  const pieces = [];
  const push = (text, side) => {
    if (!text) return;
    if (pieces.at(-1)?.side === side) pieces.at(-1).text += text;
    else pieces.push({ text, side });
  };
  push(left.slice(0, start).join(""), "both");
  const [a, b] = [left.slice(start, leftEnd), right.slice(start, rightEnd)];
  if (a.length * b.length > MAX_WORDS * MAX_WORDS / 4) {
    push(a.join(""), "before");
    push(b.join(""), "after");
  } else {
    for (const [text, side] of common(a, b)) push(text, side);
  }
  push(left.slice(leftEnd).join(""), "both");
  return joined(pieces);
}

/** Changes with no more than a space or a mark between them are one change: all that went, then all that came. */
function joined(pieces) {
  const made = [];
  let change = null;
  const end = () => {
    if (change) made.push(...["before", "after"].filter((side) => change[side]).map((side) => ({ text: change[side], side })));
    change = null;
  };
  for (const [place, { text, side }] of pieces.entries()) {
    if (side !== "both") {
      change ??= { before: "", after: "" };
      change[side] += text;
    } else if (change && place + 1 < pieces.length && !/[\p{L}\p{N}]/u.test(text)) {
      change.before += text;
      change.after += text;
    } else {
      end();
      made.push({ text, side });
    }
  }
  end();
  return made;
}

/** The longest common subsequence, walked from its beginning. */
export function* common(a, b) {
  const width = b.length + 1;
  const table = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      table[i * width + j] = a[i] === b[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      yield [a[i], "both"];
      [i, j] = [i + 1, j + 1];
    } else if (i < a.length && (j === b.length || table[(i + 1) * width + j] >= table[i * width + j + 1])) {
      yield [a[i], "before"];
      i += 1;
    } else {
      yield [b[j], "after"];
      j += 1;
    }
  }
}
