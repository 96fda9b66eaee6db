// Markdown as DOM nodes. There is no HTML in it: what looks like a tag is text. Images in the text itself are shown; others are named and never loaded.

import { brief, h, say } from "./dom.js";

const MAX_DEPTH = 8;
/** A longer text is shown as it is. */
const MAX_LENGTH = 256 * 1024;

/** The nodes of a Markdown text. */
export function markdown(text) {
  if (String(text).length > MAX_LENGTH) return h("pre", { class: "result", tabindex: "0" }, say(text));
  // Headings follow that of the message, and none is left out between two.
  const levels = { last: 2 };
  return h("div", { class: "markdown" }, blocks(String(text).replaceAll("\r\n", "\n").split("\n"), 0, levels));
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/u;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/u;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/u;
const QUOTE = /^ {0,3}> ?/u;
const ITEM = /^( {0,6})([-*+]|\d{1,9}[.)])(\s+)(.*)$/u;
const DIVIDER = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/u;

function blocks(lines, depth, levels) {
  const nodes = [];
  if (depth > MAX_DEPTH) return [h("p", {}, say(lines.join("\n")))];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (line.trim() === "") at += 1;
    else if (fence) at = code(lines, at, fence, nodes);
    else if (heading) {
      levels.last = Math.min(6, heading[1].length + 2, levels.last + 1);
      nodes.push(h(`h${levels.last}`, { class: `md-${heading[1].length}` }, inline(heading[2])));
      at += 1;
    } else if (RULE.test(line)) {
      nodes.push(h("hr"));
      at += 1;
    } else if (QUOTE.test(line)) {
      const from = at;
      while (at < lines.length && QUOTE.test(lines[at])) at += 1;
      nodes.push(h("blockquote", {}, blocks(lines.slice(from, at).map((quoted) => quoted.replace(QUOTE, "")), depth + 1, levels)));
    } else if (ITEM.test(line)) at = list(lines, at, nodes, depth, levels);
    else if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "") && (lines[at + 1] ?? "").includes("-") && (lines[at + 1] ?? "").includes("|")) at = table(lines, at, nodes);
    else {
      const from = at;
      do at += 1; while (at < lines.length && lines[at].trim() !== "" && !startsBlock(lines[at]));
      nodes.push(h("p", {}, inline(lines.slice(from, at).join("\n"))));
    }
  }
  return nodes;
}

const startsBlock = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

function code(lines, at, [, mark, language], nodes) {
  const from = at + 1;
  let to = from;
  while (to < lines.length && !(lines[to].trim().startsWith(mark) && lines[to].trim().replaceAll(mark[0], "") === "")) to += 1;
  nodes.push(h("pre", { class: "code", tabindex: "0", role: "group", "aria-label": language ? `code in ${language}` : "code" }, h("code", {}, say(lines.slice(from, to).join("\n")))));
  return to + 1;
}

function list(lines, at, nodes, depth, levels) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const isOrdered = /\d/u.test(mark);
  const items = [];
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || item[1].length > indent.length + 1 || item[1].length < indent.length || /\d/u.test(item[2]) !== isOrdered) break;
    const inner = item[1].length + item[2].length + 1;
    const own = [item[4]];
    at += 1;
    while (at < lines.length && (lines[at].trim() === "" ? (lines[at + 1] ?? "").startsWith(" ".repeat(Math.max(2, inner - 1))) : indentOf(lines[at]) >= Math.min(inner, indent.length + 2) || !startsBlock(lines[at]))) {
      own.push(lines[at].slice(Math.min(indentOf(lines[at]), inner)));
      at += 1;
    }
    const task = /^\[([ xX])\]\s+/u.exec(own[0]);
    if (task) own[0] = own[0].slice(task[0].length);
    const content = blocks(own, depth + 1, levels);
    // A short item needs no paragraph.
    const simple = content[0]?.tagName === "P" ? [...content[0].childNodes, ...content.slice(1)] : content;
    items.push(h("li", {}, task ? h("span", { class: "task", "aria-label": task[1] === " " ? "open" : "done" }, task[1] === " " ? "☐ " : "☑ ") : null, simple));
  }
  nodes.push(h(isOrdered ? "ol" : "ul", isOrdered && parseInt(mark, 10) !== 1 ? { start: parseInt(mark, 10) } : {}, items));
  return at;
}

const indentOf = (line) => line.length - line.trimStart().length;

function table(lines, at, nodes) {
  const cells = (line) => line.trim().replace(/^\||\|$/gu, "").split(/(?<!\\)\|/u).map((cell) => cell.trim().replaceAll("\\|", "|"));
  const head = cells(lines[at]);
  const sides = cells(lines[at + 1]).map((cell) => cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left");
  const rows = [];
  at += 2;
  while (at < lines.length && lines[at].includes("|") && lines[at].trim() !== "") {
    rows.push(cells(lines[at]).slice(0, head.length));
    at += 1;
  }
  const row = (tag) => (values) => h("tr", {}, values.map((value, place) => h(tag, { class: `to-${sides[place] ?? "left"}` }, inline(value))));
  nodes.push(h("div", { class: "table", tabindex: "0", role: "group", "aria-label": "table" }, h("table", {}, h("thead", {}, row("th")(head)), h("tbody", {}, rows.map(row("td"))))));
  return at;
}

// Underscores inside a word are no marks. What is between two marks is bounded: a text of nothing but opening marks takes no longer than any other.
const INLINE = /(?<escape>\\[\\`*_{}[\]()#+.!|~<>-])|(?<ticks>`+)(?<code>[\s\S]{1,2000}?)\k<ticks>(?!`)|(?<bang>!?)\[(?<drawn>[^\]]{0,300})\]\((?<data>[Dd][Aa][Tt][Aa]:[^()\s]{1,262144})(?:\s{1,9}"[^"]{0,300}")?\)|!\[(?<alt>[^\]]{0,300})\]\((?<source>[^()\s]{0,2000}(?:\([^()\s]{0,200}\)[^()\s]{0,200}){0,4})(?:\s{1,9}"[^"]{0,300}")?\)|\[(?<label>(?:[^[\]]|\[[^[\]]{0,100}\]){0,300})\]\((?<target>[^()\s]{0,2000}(?:\([^()\s]{0,200}\)[^()\s]{0,200}){0,4})(?:\s{1,9}"[^"]{0,300}")?\)|<(?<auto>https?:\/\/[^\s<>]{1,2000})>|(?<bare>\bhttps?:\/\/[^\s<>"'`)\]]{0,2000}[^\s<>"'`)\].,;:!?])|\*\*(?=\S)(?<bold>[\s\S]{0,1000}?\S)\*\*|(?<![\p{L}\p{N}_])__(?=[^\s_])(?<heavy>(?:(?!(?<![\p{L}\p{N}_])__[^\s_])[\s\S]){0,1000}?[^\s_])__(?![\p{L}\p{N}_])|~~(?=\S)(?<gone>[\s\S]{0,1000}?\S)~~|(?<![\w*])\*(?=[^\s*])(?<starred>[\s\S]{0,1000}?[^\s*])\*(?!\*)|(?<![\p{L}\p{N}_])_(?=[^\s_])(?<lined>[\s\S]{0,1000}?[^\s_])_(?![\p{L}\p{N}_])|(?<br> {2,}\n|\\\n)/gu;

function inline(text, depth = 0) {
  if (depth > MAX_DEPTH) return say(text);
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(...say(text.slice(from, match.index)));
    from = match.index + match[0].length;
    const { escape, code: literal, bang, drawn, data, alt, source, label, target, auto, bare, bold, heavy, gone, starred, lined } = match.groups;
    const deeper = (inner) => inline(inner, depth + 1);
    if (escape) nodes.push(...say(escape.slice(1)));
    else if (literal !== undefined) nodes.push(h("code", {}, say(literal.replace(/^ (.+) $/u, "$1"))));
    else if (data !== undefined) nodes.push(bang ? picture(data, drawn) : link(data, deeper(drawn)));
    else if (source !== undefined) nodes.push(link(source, ["image: ", ...say(alt || source)]));
    else if (target !== undefined) nodes.push(link(target, deeper(label)));
    else if (auto ?? bare) nodes.push(link(auto ?? bare, null));
    else if ((bold ?? heavy) !== undefined) nodes.push(h("strong", {}, deeper(bold ?? heavy)));
    else if (gone !== undefined) nodes.push(h("del", {}, deeper(gone)));
    else if ((starred ?? lined) !== undefined) nodes.push(h("em", {}, deeper(starred ?? lined)));
    else nodes.push(h("br"));
  }
  nodes.push(...say(text.slice(from)));
  return nodes;
}

/** An image that is in the text itself. One of another type is named. */
function picture(source, alt) {
  // Types have no case, the data do.
  const data = source.replace(/^[^,]*/u, (head) => head.toLowerCase());
  if (/^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/u.test(data)) return h("span", { class: "picture" }, h("img", { src: data, alt: alt || "image in the text", loading: "lazy" }));
  return h("span", { class: "dead-link" }, "image, not shown: ", say(alt), " ", h("code", { class: "target" }, say(brief(data, 60))));
}

/** A link that shows where it leads. Only http, https and mailto become links; anything else stays text. */
export function link(target, label) {
  let url = null;
  try {
    url = new URL(target);
  } catch {
    // Not absolute, so it leads nowhere that the model could know.
  }
  const isSafe = url && ["http:", "https:", "mailto:"].includes(url.protocol);
  const shown = url?.protocol === "data:" ? brief(target, 60) : target;
  if (!isSafe) return h("span", { class: "dead-link" }, label ?? [], label ? h("code", { class: "target" }, say(shown)) : say(shown));
  const words = label && textOf(label) !== target ? [...label, h("span", { class: "target" }, say(url.host || target))] : say(target);
  return h("a", { href: url.href, rel: "noopener noreferrer nofollow", target: "_blank", referrerpolicy: "no-referrer", title: url.href }, words);
}

const textOf = (nodes) => nodes.map((node) => typeof node === "string" ? node : node.textContent).join("");
