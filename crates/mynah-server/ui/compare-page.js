// Two runs side by side: aligned, the first difference marked, words and fields that differ shown.

import { ApiError, get, post, recordsOf, runPath, withQuery } from "./api.js";
import { compact, count, h, icon, money, plural, say, shortId, statusChip } from "./dom.js";
import { isBranch, jsonText } from "./exact.js";
import { callsOf, fromApi, subRun, summary, textOf, totalsOf } from "./facts.js";
import { common, jsonDiff, wordDiff } from "./json.js";
import { toneOf } from "./records.js";
import { runHref, shownStatus } from "./runs-page.js";

const MAX_ALIGNED = 3000;
const SHOWN_AT_ONCE = 400;
// Ids, times and hashes differ in any two runs, and say nothing of what happened.
const IGNORED = new Set(["request_id", "duration_ms", "first_token_ms", "prompt", "root", "parent", "behaviour", "previous", "cuts"]);
// What models and tools say: there such names mean something.
const SAID = new Set(["content", "arguments", "raw_arguments", "effect", "outcome", "ok", "done", "data"]);

async function records(id) {
  const all = [];
  let next = 1;
  while (next !== null) {
    const page = await recordsOf(id, { from: next, limit: 1000 });
    all.push(...page.records.map(fromApi));
    next = page.next;
  }
  return all;
}

/** What is compared of a value. `calls` has a name for the id of each call. */
function essence(value, calls, key = "", isSaid = false) {
  if (typeof value === "string") return calls.get(value) ?? value;
  if (Array.isArray(value)) return value.map((item) => essence(item, calls, key, isSaid));
  if (!isBranch(value)) return value;
  const counts = ([name, item]) => isSaid || (!IGNORED.has(name) && item !== null && !(name === "id" && (key === "response" || "raw_arguments" in value)));
  return Object.fromEntries(Object.entries(value).filter(counts).map(([name, item]) => [name, essence(item, calls, name, isSaid || SAID.has(name))]));
}

/** Gives each record what is compared of it, and shown. Ids of calls become the tool and its arguments: providers invent ids, and use them again. */
function prepared(records) {
  const calls = new Map();
  const names = new Map();
  const learn = (id, name, text = "") => {
    names.set(id, name);
    calls.set(id, `${name} ${text}`.trim());
  };
  return records.map((record) => {
    const { fact } = record;
    for (const { id, name, raw_arguments: text } of [...callsOf(fact?.response?.message), ...(fact?.thread?.messages ?? []).flatMap(callsOf)]) learn(id, name, text);
    if (fact?.call) learn(fact.call_id, fact.call.name, fact.call.arguments);
    const shown = { ...record, fact: compared(record) };
    return { ...record, says: summary(shown, (id) => names.get(id) ?? id), essence: essence(shown.fact, calls) };
  });
}

/** A fact without what follows from other records: the estimate of a prompt, the root and sums of a seal, the id of an agent's run. */
function compared({ kind, fact }) {
  if (!fact) return fact;
  if (kind === "turn_started") return { turn: fact.turn };
  if (kind === "sealed") return {};
  return subRun(kind, fact) ? { ...fact, effect: { done: { ...fact.effect.done, run_id: undefined } } } : fact;
}

const nameOf = ({ kind, fact }) => `${kind} ${kind === "tool_scheduled" ? fact?.attempt : kind === "side_effect" ? fact?.name : ""}`;

/** The call that a record is about. */
const callOf = ({ fact }) => fact?.call_id ?? fact?.inside?.call_id ?? null;

/** Records of calls that ran side by side, in the order of the calls: which one ended first is chance. */
function inOrderOfCalls(records) {
  const order = new Map();
  for (const { fact } of records) for (const { id } of callsOf(fact?.response?.message)) if (!order.has(id)) order.set(id, order.size);
  const sorted = [];
  let group = [];
  const close = () => {
    sorted.push(...group.sort((one, two) => (order.get(callOf(one)) ?? -1) - (order.get(callOf(two)) ?? -1)));
    group = [];
  };
  for (const record of records) {
    if (callOf(record) !== null) {
      group.push(record);
      continue;
    }
    close();
    sorted.push(record);
  }
  close();
  return sorted;
}

/** Whether a record only tells that the branch continues. */
const isSeam = ({ kind, fact }) => kind === "resumed" && fact?.after === "branch" && !fact.message && !["tool_results", "approved", "edited", "rejected", "given_up"].some((name) => fact[name]?.length);

/** Pairs of two lists in order, by what `keyOf` gives; one side is null where only the other list has something. */
function paired(left, right, keyOf) {
  let [i, j] = [0, 0];
  return [...common(left.map(keyOf), right.map(keyOf))].map(([, side]) => [side === "after" ? null : left[i++], side === "before" ? null : right[j++]]);
}

/** Pairs of records: first those that are the same, then, between those, records of one kind. */
function align(left, right) {
  if (left.length > MAX_ALIGNED || right.length > MAX_ALIGNED) {
    return Array.from({ length: Math.max(left.length, right.length) }, (_, place) => [left[place] ?? null, right[place] ?? null]);
  }
  const pairs = [];
  let gap = [[], []];
  const close = () => {
    pairs.push(...paired(...gap, nameOf));
    gap = [[], []];
  };
  for (const [one, two] of paired(left, right, (record) => `${nameOf(record)} ${jsonText(record.essence)}`)) {
    if (one && two) {
      close();
      pairs.push([one, two]);
    } else gap[one ? 0 : 1].push(one ?? two);
  }
  close();
  return pairs;
}

function judge([one, two]) {
  if (!one || !two) return { state: one ? "only-left" : "only-right", one, two };
  const fields = jsonDiff(one.essence, two.essence);
  return { state: fields.length ? "differs" : "same", fields, one, two };
}

/** Texts word by word, everything else field by field. */
function differences({ fields, one, two }) {
  const [before, after] = one && two ? [mainText(one), mainText(two)] : ["", ""];
  const nodes = [];
  if (before !== after && before && after) nodes.push(wordView(before, after));
  const side = (value, tag, other) => value === undefined ? h("span", { class: "muted" }, "not there") : isText(value) && isText(other) ? (tag === "del" ? wordDiff(value, other) : wordDiff(other, value)).filter((piece) => piece.side !== (tag === "del" ? "after" : "before")).map((piece) => piece.side === "both" ? say(piece.text) : h(tag, {}, say(piece.text))) : h(tag, {}, say(short(value)));
  const shown = fields.slice(0, 60).map(({ path, before: was, after: is }) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, say(path))), h("td", {}, side(was, "del", is)), h("td", {}, side(is, "ins", was))));
  nodes.push(h("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Fields that differ" }, h("table", { class: "field-diff" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Field"), h("th", { scope: "col" }, "Left"), h("th", { scope: "col" }, "Right"))), h("tbody", {}, shown))));
  if (fields.length > 60) nodes.push(h("p", { class: "muted" }, `${fields.length - 60} more fields differ`));
  return nodes;
}

/** A text that is long enough to be compared by words, and short enough to be shown. */
const isText = (value) => typeof value === "string" && value.includes(" ") && value.length <= 2000;

const wordView = (before, after) => h("div", { class: "word-diff" }, wordDiff(before, after).map(({ text, side }) => side === "both" ? say(text) : h(side === "before" ? "del" : "ins", {}, say(text))));

const short = (value) => {
  const text = typeof value === "string" ? value : jsonText(value);
  return text.length > 400 ? `${text.slice(0, 399)}…` : text;
};

function mainText({ kind, fact }) {
  if (!fact) return "";
  if (kind === "assistant_completed") return textOf(fact.response?.message);
  if (kind === "tool_completed") return fact.content ?? "";
  if (kind === "user_message" || kind === "resumed") return textOf(fact.message);
  if (kind === "run_started") return (fact.thread?.messages ?? []).map(textOf).join("\n");
  return "";
}

/** What the run and another one, or its replay, have in common: rows, and what stands above each side. */
async function two(query) {
  const ids = [query.get("compare"), query.get("with")];
  if (!query.has("replay")) {
    if (!ids[1]) throw new ApiError(400, { detail: "the address lacks “with”: add &with= and the id of the run to compare with" });
    const [runs, sides] = await Promise.all([Promise.all(ids.map((id) => get(runPath(id)))), Promise.all(ids.map(records))]);
    const isLong = sides.some(({ length }) => length > MAX_ALIGNED);
    return { ids, isLong, runs, seams: sides.map((side) => side.filter(isSeam)), heads: runs.map((run, side) => runHead({ ...run, model: modelOf(sides[side]) ?? run.model }, ["Left", "Right"][side])), rows: align(...sides.map((side) => prepared(inOrderOfCalls(side.filter((record) => !isSeam(record)))))).map(judge) };
  }
  const [agent, system] = [query.get("replay") === "-" ? null : query.get("replay"), query.get("system")];
  const again = (more) => post(runPath(ids[0], "/replay"), { ...(agent ? { agent } : {}), ...(system ? { system } : {}), ...more });
  // Once with what the run began with compared, and once with what the agent does.
  const [run, left, strict, result] = await Promise.all([get(runPath(ids[0])), records(ids[0]), again({}), again({ allow_changed_agent: true })]);
  const words = [agent ? `with agent ${agent}` : "from the records alone", system ? ", another system prompt" : ""].join("");
  return { ids: [ids[0], null], heads: [runHead(run, "Run"), h("div", { class: "compare-run" }, h("span", { class: "muted" }, "Replay"), h("span", {}, say(words)))], rows: replayed(left, strict, result), replay: { isOther: strict.err?.metadata?.seq === 1, ...result } };
}

/** The rows of a run and its replay, which ends at the first difference. */
function replayed(left, ...results) {
  const found = results.filter(({ status }) => status !== "equal").map(({ err }) => err?.metadata ?? {});
  const at = Number(found.at(-1)?.seq ?? Infinity);
  const last = results.at(-1).status === "equal" ? Infinity : at;
  const kind = found.at(-1)?.kind ?? null;
  const rows = left.map((one) => {
    const here = found.findLast(({ seq }) => Number(seq) === one.seq);
    if (!here) return one.seq < last ? { state: "same", one, two: one } : { state: "not-reached", one, two: null };
    const fields = (here.diff ?? []).map(({ path, recorded, produced }) => ({ path, before: recorded ?? undefined, after: produced ?? undefined }));
    return { state: "differs", one, two: null, made: here.kind ?? "nothing", fields };
  });
  if (last !== Infinity && last > left.length) rows.push({ state: "only-right", one: null, two: null, made: kind, fields: [] });
  return rows;
}

function replayWords({ isOther, status, err }) {
  const { seq, kind, expected_kind: expected } = err?.metadata ?? {};
  const agent = isOther ? "The agent is not the one that began the run. " : "";
  if (status === "equal") return isOther ? `${agent}It makes the same records after the first.` : "The replay makes every record again.";
  return `${agent}At record ${seq} it makes ${kind ?? "nothing"}${kind === expected ? " with other content" : `, where the run has ${expected ?? "nothing"}`}. A replay ends there.`;
}

/** The model that a run had last: a fork may continue with another. */
const modelOf = (records) => records.findLast(({ fact }) => fact?.about?.model)?.fact.about.model;

const runHead = (run, side) => h("div", { class: "compare-run" }, h("span", { class: "muted" }, side), h("a", { href: runHref(run.run_id), title: run.run_id }, h("code", {}, say(shortId(run.run_id)))), statusChip(shownStatus(run)), h("span", { class: "muted" }, say([plural(run.records, "record"), run.model, `${compact(totalsOf(run).input_tokens + totalsOf(run).output_tokens)} tokens`, totalsOf(run).cost ? money(totalsOf(run).cost) : null].filter(Boolean).join(" · "))));

/** Which records have no row. */
function seamWords(seams) {
  const named = seams.flatMap((records, side) => records.length ? [`record ${records.map(({ seq }) => seq).join(", ")} on the ${["left", "right"][side]}`] : []);
  return named.length ? ` Not in the rows: ${named.join(" and ")}, which only ${seams.flat().length === 1 ? "tells" : "tell"} that a branch continues.` : "";
}

export async function comparePage(root, query) {
  root.replaceChildren(h("div", { class: "skeleton", style: { height: "200px" } }));
  let page = await drawn(root, query);
  // A run that was started to be compared is shown as it grows.
  const isGrowing = () => page.runs.some(({ status, abandoned }) => status === "running" && !abandoned);
  const look = async () => {
    try {
      const now = await Promise.all(page.runs.map(({ run_id: id }) => get(runPath(id))));
      if (now.some(({ records: length, status }, side) => length !== page.runs[side].records || status !== page.runs[side].status)) page = await drawn(root, query);
    } catch {
      // The next attempt may reach the server.
    }
    if (isGrowing()) timer = setTimeout(look, 1000);
  };
  let timer = isGrowing() ? setTimeout(look, 1000) : null;
  return { title: "Compare", close: () => { page.runs = []; clearTimeout(timer); }, keys: [["j / k", "next, previous difference"]], key: (event) => page.key(event) };
}

/** Draws the comparison as it is now. */
async function drawn(root, query) {
  const { ids, isLong = false, runs = [], seams = [], heads, rows, replay = null } = await two(query);
  const differing = rows.map(({ state }, place) => state === "same" || state === "not-reached" ? -1 : place).filter((place) => place >= 0);
  const first = differing[0] ?? -1;
  let at = first;
  const body = h("ol", { class: "compare-rows" });
  const kindOf = (kind) => h("span", { class: "kind" }, h("span", { class: `dot tone-${toneOf(kind)}`, "aria-hidden": "true" }), say(kind));
  const cell = (record, side, made, other = null) => {
    if (!record) return h("span", { class: "compare-cell nothing" }, made ? kindOf(made) : "–");
    const content = [h("span", { class: "number" }, `#${record.seq}`, other && other.seq !== record.seq ? h("span", { class: "other-seq" }, ` / #${other.seq}`) : null), kindOf(record.kind), h("span", { class: "says" }, say(record.says ?? summary(record)))];
    return ids[side] ? h("a", { class: "compare-cell", href: runHref(ids[side], { view: "records", record: record.seq }) }, content) : h("span", { class: "compare-cell" }, content);
  };
  const words = { same: "same", differs: "differs", "only-left": "only left", "only-right": "only right", "not-reached": "not reached" };
  const element = (row, place) => h("li", { class: `compare-row ${row.state}${place === first ? " first" : ""}`, id: `row-${place}`, tabindex: "-1" }, h("div", { class: "compare-cells" }, cell(row.one, 0, null, row.state === "same" ? row.two : null), h("span", { class: "verdict" }, place === first ? "first difference" : words[row.state]), cell(row.two, 1, row.made)),
    row.fields?.length ? h("details", { open: place === first }, h("summary", {}, icon("chevron"), plural(row.fields.length, "field"), row.fields.length === 1 ? " differs" : " differ"), differences(row)) : null);
  let shown = 0;
  const more = h("button", { type: "button", onclick: () => draw(shown + SHOWN_AT_ONCE) });
  const draw = (until) => {
    body.append(...rows.slice(shown, until).map((row, place) => element(row, shown + place)));
    shown = Math.min(rows.length, Math.max(shown, until));
    more.hidden = shown >= rows.length;
    more.textContent = `Show more (${count(rows.length - shown)} left)`;
  };
  const goTo = (place) => {
    if (place < 0) return;
    at = place;
    if (place >= shown) draw(place + 50);
    const target = document.getElementById(`row-${place}`);
    target.scrollIntoView({ block: "center" });
    target.focus({ preventScroll: true });
  };
  draw(Math.max(SHOWN_AT_ONCE, first + 50));
  const place = first < 0 ? null : rows[first];
  const told = replay ? replayWords(replay) : `${first < 0 ? "" : `The first is at record ${place.one?.seq ?? "–"} on the left, ${place.two?.seq ?? "–"} on the right. `}Ids, times, hashes and estimates are not compared.${seamWords(seams)}${isLong ? ` A run has over ${count(MAX_ALIGNED)} records, so records are paired by their number.` : ""}`;
  root.replaceChildren(h("div", { class: "page-head" }, h("h1", {}, replay ? "Compare with a replay" : "Compare"), h("div", { class: "buttons" }, replay ? null : h("a", { class: "button", href: withQuery("/", { compare: ids[1], with: ids[0] }) }, "Swap"), first >= 0 ? h("button", { type: "button", onclick: () => goTo(first) }, "First difference") : null)),
    h("div", { class: "compare-heads" }, heads),
    h("p", { class: `banner ${first < 0 ? "ok" : "warn"}` }, icon(first < 0 ? "check" : "fork"), h("span", {}, h("strong", {}, first < 0 ? "No difference. " : replay ? "The replay differs. " : `${plural(differing.length, "difference")}. `), told)),
    ...runs.filter(({ status, abandoned }) => status === "running" && !abandoned).map((run) => h("p", { class: "banner", role: "status" }, icon("bolt"), h("span", {}, h("strong", {}, "In progress. "), "Run ", h("a", { href: runHref(run.run_id) }, say(shortId(run.run_id))), " has not ended; its records appear here as they come."))),
    ...runs.filter(({ waiting }) => waiting).map((run) => h("p", { class: "banner wait" }, icon("pause"), h("span", {}, h("strong", {}, "Waits. "), "Run ", h("a", { href: runHref(run.run_id) }, say(shortId(run.run_id))), " waits for a person; decide in its page."))),
    body, more);
  return {
    runs,
    key: (event) => {
      if (event.key === "j") goTo(differing.find((place) => place > at) ?? at);
      else if (event.key === "k") goTo(differing.findLast((place) => place < at) ?? at);
      else return false;
      return true;
    },
  };
}
