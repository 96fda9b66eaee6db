// What a run adds up to: where its time went, and what its tools did.

import { atLeast, count, h, say, span } from "./dom.js";
import { beginOf } from "./story.js";

/** The time that spans cover together: what ran at once is counted once. */
function covered(spans, endOf) {
  let [sum, reach] = [0, -Infinity];
  for (const one of spans.toSorted((left, right) => beginOf(left) - beginOf(right))) {
    const end = endOf(one);
    sum += Math.max(0, end - Math.max(beginOf(one), reach));
    reach = Math.max(reach, end);
  }
  return sum;
}

const KINDS = [["model", "Models"], ["tool", "Tools"], ["wait", "Waits"], ["crash", "No process"]];

/** Nodes for a run's story; none while there is nothing to add up. */
export function overall(story) {
  const { first, until } = story;
  const spans = story.spans.filter((one) => !story.isCopied(one));
  if (!first || story.spans.length === 0) return [];
  // Time passes only in a run that was started.
  if (story.isNotStarted) return tools(story);
  const whole = Math.max(until - first.ts, 0.001);
  const parts = KINDS.map(([kind, words]) => {
    const own = spans.filter((one) => one.kind === kind);
    // A record that cannot be read hides when a span began or ended, or all of it.
    const isLeast = own.some((one) => one.isUnclear) || story.unread.some((record) => record.kind === "unreadable" || (record.kind === "tool_scheduled" && kind === "tool"));
    return { kind, words, isLeast, ms: covered(own.filter((one) => !one.isUnclear), (one) => story.endOf(one)) };
  });
  const rest = Math.max(0, whole - parts.reduce((sum, { ms }) => sum + ms, 0));
  const shown = [...parts, { kind: "turn", words: parts.some(({ isLeast }) => isLeast) ? "Between calls, or not known" : "Between calls", hint: "The engine and the log, between model calls, tools and waits", ms: rest }].filter(({ ms }) => ms > 0);
  const share = (ms) => `${Math.round(100 * ms / whole)}%`;
  return [
    h("section", {}, h("h2", {}, "Where the time went"),
      h("div", { class: "shares", "aria-hidden": "true" }, shown.map(({ kind, ms }) => h("span", { class: `share span-${kind}`, style: { "flex-grow": 1000 * ms / whole } }))),
      h("table", { class: "amounts" }, h("tbody", {}, shown.map(({ kind, words, ms, hint, isLeast }) => h("tr", { title: hint }, h("th", { scope: "row" }, h("span", { class: `swatch span-${kind}`, "aria-hidden": "true" }), words), h("td", {}, atLeast(isLeast, span(ms))), h("td", {}, atLeast(isLeast, share(ms)))))))),
    ...tools(story)];
}

/** A row for each tool, by the time that it took. */
function tools(story) {
  const rows = new Map();
  for (const call of story.calls.values()) {
    const { name, attempts } = call;
    const isHidden = story.hidden(call) !== null;
    if (attempts.length === 0 && !isHidden) continue;
    const row = rows.get(name) ?? { name, calls: 0, failed: 0, ms: null, isLeast: false };
    row.isLeast ||= isHidden && attempts.length === 0;
    row.calls += 1;
    row.failed += attempts.filter((attempt) => attempt.state === "failed").length;
    // A call without an end took an unknown time.
    for (const { duration, span: one } of attempts) {
      const { from, to, isUnclear } = one;
      if (story.isCopied(one)) continue;
      row.isLeast ||= Boolean(isUnclear);
      if (to !== null && !isUnclear) row.ms = (row.ms ?? 0) + (duration ?? to - from);
    }
    rows.set(name, row);
  }
  if (rows.size === 0) return [];
  const sorted = [...rows.values()].sort((one, two) => two.ms - one.ms).slice(0, 12);
  const head = ["Tool", "Calls", "Failed", "Time"].map((words) => h("th", { scope: "col" }, words));
  return [h("section", {}, h("h2", {}, "Tools"), h("table", { class: "amounts" }, h("thead", {}, h("tr", {}, head)),
    h("tbody", {}, sorted.map(({ name, calls: made, failed, ms, isLeast }) => h("tr", {}, h("th", { scope: "row" }, say(name)), h("td", {}, count(made)), h("td", {}, failed ? h("span", { class: "error" }, count(failed)) : "–"), h("td", {}, ms === null ? "–" : atLeast(isLeast, ms ? span(ms) : "< 1 ms")))))))];
}
