// JSON in which every number keeps the text that it was written with.

/** A number that JavaScript would write otherwise: one beyond 2^53, or one like 1.0 or 1e400. It computes as the nearest number. */
export class Exact {
  constructor(source) { this.source = source; }
  valueOf() { return Number(this.source); }
  toString() { return this.source; }
}

/** Whether a value has members or items. */
export const isBranch = (value) => value !== null && typeof value === "object" && !(value instanceof Exact);

const NUMBER = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/uy;
// What a text says cannot be mistaken for this: it is chosen when the page is opened.
const MARK = `number ${crypto.getRandomValues(new Uint32Array(4)).join("-")} `;

/** The value of a JSON text. Throws what `JSON.parse` throws. */
export function parseJson(text) {
  const value = JSON.parse(text);
  const pieces = [];
  let from = 0;
  for (let at = 0; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    if (code === 0x22) at = endOfString(text, at);
    else if (code === 0x2d || (code >= 0x30 && code <= 0x39)) {
      NUMBER.lastIndex = at;
      const [source] = NUMBER.exec(text);
      if (String(Number(source)) !== source) {
        pieces.push(text.slice(from, at), JSON.stringify(MARK + source));
        from = at + source.length;
      }
      at += source.length - 1;
    }
  }
  if (from === 0) return value;
  return JSON.parse(pieces.join("") + text.slice(from), (_, item) => typeof item === "string" && item.startsWith(MARK) ? new Exact(item.slice(MARK.length)) : item);
}

/** The place of the quote that ends the string that begins here. */
function endOfString(text, from) {
  for (let at = text.indexOf('"', from + 1); ; at = text.indexOf('"', at + 1)) {
    let slashes = 0;
    while (text[at - 1 - slashes] === "\\") slashes += 1;
    if (slashes % 2 === 0) return at;
  }
}

/** A value as JSON text, as `JSON.stringify` writes it, but for the text of its numbers. */
export function jsonText(value, indent = 0, depth = 0) {
  if (value instanceof Exact) return value.source;
  if (!isBranch(value)) return JSON.stringify(value) ?? "null";
  const isList = Array.isArray(value);
  const items = isList ? value.map((item) => jsonText(item, indent, depth + 1)) : Object.entries(value).filter(([, item]) => item !== undefined).map(([name, item]) => `${JSON.stringify(name)}:${indent ? " " : ""}${jsonText(item, indent, depth + 1)}`);
  const [left, right] = isList ? "[]" : "{}";
  if (!indent || items.length === 0) return `${left}${items.join(",")}${right}`;
  const line = (level) => `\n${" ".repeat(indent * level)}`;
  return `${left}${line(depth + 1)}${items.join(`,${line(depth + 1)}`)}${line(depth)}${right}`;
}

/** Whether two numbers are the same, however they are written: 1 and 1.0 are, 9007199254740992 and 9007199254740993 are not. */
export const isSameNumber = (one, two) => digitsOf(String(one)) === digitsOf(String(two));

function digitsOf(text) {
  const [, sign, whole, part = "", power = "0"] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/u.exec(text) ?? [];
  if (whole === undefined) return text;
  const digits = (whole + part).replace(/^0+/u, "");
  const short = digits.replace(/0+$/u, "");
  return short === "" ? "0" : `${sign}${short}e${Number(power) - part.length + digits.length - short.length}`;
}
