// The records: the chain, one record a row, and one record whole.

import { copyButton, exactly, h, icon, say, shortId, span } from "./dom.js";
import { isBranch, jsonText } from "./exact.js";
import { inReadingOrder, isTechnical, summary } from "./facts.js";
import { jsonTree } from "./json.js";
import { RowList } from "./list.js";

const TONES = {
  assistant_completed: "model", turn_started: "turn", tool_scheduled: "tool", tool_completed: "tool", tool_failed: "bad", side_effect: "effect", suspended: "wait",
  failed: "bad", cancelled: "muted", completed: "ok", sealed: "ok", turn_lost: "bad", budget_exceeded: "bad", resumed: "turn", unreadable: "bad",
};

/** The colour of a kind of record. */
export const toneOf = (kind) => Object.hasOwn(TONES, kind) ? TONES[kind] : "muted";

export class Records {
  constructor(story, { select }) {
    Object.assign(this, { story, select, shown: null, words: "" });
    const head = h("div", { class: "record-row head", "aria-hidden": "true" }, h("span", {}, "#"), h("span", {}, "Kind"), h("span", {}, "After"), h("span", { class: "says" }, "Says"), h("span", { class: "hash" }, "Hash"));
    this.list = new RowList({ label: "Records", height: 34, head, row: (index) => this.row(index), choose: (index) => select(this.visible()[index].seq) });
    this.element = h("div", { class: "records" }, this.list.element);
    this.refresh();
  }

  visible() { return this.shown ?? this.story.records; }

  refresh() {
    this.filter(this.words);
  }

  /** Shows only records that hold these words. */
  filter(words) {
    this.words = words;
    const wanted = words.toLowerCase();
    this.shown = wanted === "" ? null : this.story.records.filter((record) => searched(record).includes(wanted));
    this.list.resize(this.visible().length);
    return this.visible().length;
  }

  row(index) {
    const record = this.visible()[index];
    const after = record.ts === null || !this.story.first ? "" : `+${span(record.ts - this.story.first.ts)}`;
    return h("div", { class: `record-row${record.damaged ? " damaged" : ""}` },
      h("span", { class: "number" }, String(record.seq)), h("span", { class: "kind" }, h("span", { class: `dot tone-${record.unreadable ? "bad" : toneOf(record.kind)}`, "aria-hidden": "true" }), say(record.kind)),
      h("span", { class: "number", title: record.ts === null ? null : exactly(record.ts) }, after), h("span", { class: "says" }, record.damaged ? h("strong", { class: "error" }, say(record.damaged)) : say(summary(record, (id) => this.story.calls.get(id)?.name ?? id))),
      h("span", { class: "hash" }, record.hash ? say(record.hash.slice(0, 12)) : ""));
  }

  reveal(seq, scroll = true) {
    this.list.select(this.visible().findIndex((record) => record.seq === seq), scroll);
  }

  step(by) {
    const now = this.list.selected < 0 ? (by > 0 ? -1 : this.visible().length) : this.list.selected;
    return this.visible()[now + by]?.seq ?? null;
  }
}

/** What a search looks at: the record as JSON, and its texts as people write them. */
export function searched(record) {
  const texts = [];
  const collect = (value) => {
    if (typeof value === "string") texts.push(value);
    else if (isBranch(value)) Object.values(value).forEach(collect);
  };
  if (record.text === undefined) {
    collect(record.fact);
    record.text = [record.seq, record.kind, record.fact ? jsonText(record.fact) : "", ...texts].join("\n").toLowerCase();
  }
  return record.text;
}

/**
 * One record, whole: what it says, its place in the chain, and its bytes. `raw(record)` gives the bytes where they are not here yet. `whole` shows
 * what the record is a part of.
 */
export function recordDetail(record, { raw, close, link, whole = null, actions = [] }) {
  const bytes = h("div", { class: "bytes" });
  const show = async () => {
    if (bytes.childNodes.length) return;
    bytes.append(h("p", { class: "muted" }, "Loading…"));
    try {
      const entry = record.raw ?? await raw(record);
      record.raw = entry;
      bytes.replaceChildren(...["envelope", "salt", "payload"].map((name) => h("div", {}, h("div", { class: "call-head" }, h("h4", {}, name), entry[name] ? copyButton(entry[name], `Copy ${name}`) : null, h("span", { class: "facts" }, entry[name] ? `${entry[name].length / 2} bytes` : "not there")),
        entry[name] ? h("pre", { class: "hex", tabindex: "0", role: "group", "aria-label": `${name} in hexadecimal` }, hexDump(entry[name], bytes.clientWidth < 520 ? 8 : 16)) : null)));
    } catch (error) {
      bytes.replaceChildren(h("p", { class: "error" }, say(error.message)));
    }
  };
  const line = (name, value, what) => value ? h("div", { class: "pair" }, h("dt", {}, name), h("dd", {}, h("code", { title: value }, say(what ?? value)), copyButton(value, `Copy ${name}`))) : null;
  return h("section", { class: "record-detail", "aria-label": `Record ${record.seq}` },
    h("header", {}, h("h2", {}, h("span", { class: `dot tone-${toneOf(record.kind)}`, "aria-hidden": "true" }), `#${record.seq} `, say(record.kind)),
      link ? copyButton(link, "Copy link to this record") : null, h("button", { type: "button", class: "plain", "aria-label": "Close the record", title: "Close (Esc)", onclick: close }, icon("cross"))),
    record.damaged ? h("p", { class: "banner bad" }, icon("cross"), h("span", {}, h("strong", {}, "This record is damaged: "), say(record.damaged))) : null,
    h("dl", { class: "pairs" }, line("time", record.ts === null ? null : exactly(record.ts)), line("hash", record.hash, record.hash ? shortId(record.hash) : null), line("prev", record.prev, record.prev ? shortId(record.prev) : null)),
    actions.length ? h("div", { class: "actions" }, actions) : null,
    record.redacted ? h("p", { class: "muted" }, "Its body was taken away. The chain still holds its commitment.") : null,
    record.unreadable && !record.damaged ? h("p", { class: "error" }, say(record.unreadable)) : null, whole,
    record.fact ? [h("div", { class: "call-head" }, h("h3", {}, "Fact"), copyButton(() => jsonText(record.fact, 2), "Copy as JSON")), jsonTree(inReadingOrder(record.fact), { open: 5, folded: isTechnical })] : null,
    h("details", { class: "raw", ontoggle: show }, h("summary", {}, icon("chevron"), "Bytes"), bytes));
}

/** Bytes in hexadecimal and as text, so many in a line. */
function hexDump(text, width) {
  const LINES = 256;
  const step = 2 * width;
  const lines = [];
  for (let at = 0; at < text.length && lines.length < LINES; at += step) {
    const part = text.slice(at, at + step);
    const letters = part.match(/../gu)?.map((pair) => {
      const code = parseInt(pair, 16);
      return code >= 32 && code < 127 ? String.fromCharCode(code) : "·";
    }).join("") ?? "";
    lines.push(`${(at / 2).toString(16).padStart(5, "0")}  ${(part.match(/.{1,4}/gu) ?? []).join(" ").padEnd(2.5 * width - 1)}  ${letters}`);
  }
  if (text.length > step * LINES) lines.push(`… ${text.length / 2 - width * LINES} more bytes; the button copies all`);
  return lines.join("\n");
}
