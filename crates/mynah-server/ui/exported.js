// The entry of an exported file: a run and the runs of its agents, their views, and their verification. No network.

import { h, icon, logo, say, shortId } from "./dom.js";
import { answersOf, fromEntry, subRun } from "./facts.js";
import { RUN_KEYS, RunView, keys } from "./run-view.js";
import { Story } from "./story.js";
import { canVerify, hashOf, readLines, verifyLines } from "./verify.js";

/** The bundles of a file, one for each run: `{id, lines, entries, story, view}`. The first is the run that was exported. */
function bundlesOf(lines) {
  const bundles = [];
  for (const line of lines) {
    if (bundles.length === 0 || (line && typeof line === "object" && "bundle" in line)) bundles.push({ id: String(line?.bundle?.run_id ?? "unknown"), lines: [] });
    bundles.at(-1).lines.push(line);
  }
  for (const bundle of bundles) {
    bundle.entries = bundle.lines.filter((line) => line && typeof line.record === "object" && line.record !== null).map((line) => line.record);
    bundle.story = new Story();
    for (const [index, entry] of bundle.entries.entries()) bundle.story.add(fromEntry(entry, index + 1));
  }
  return bundles;
}

/** The bundles of the runs that a run started, and of those that they started. With `isSpent`, without those that only answer from records. */
function below(bundle, bundles, isSpent = false) {
  const found = new Set([bundle]);
  for (const { story } of found) {
    let isAnswered = false;
    for (const { kind, fact } of story.records) {
      if (fact?.about) isAnswered = isSpent && answersOf(fact) !== null;
      const run = isAnswered ? null : subRun(kind, fact);
      const other = run && bundles.find(({ id }) => id === run);
      if (other) found.add(other);
    }
  }
  found.delete(bundle);
  return [...found];
}

/** What the runs of a run's agents used; null if the file has none. */
function agentsOf(bundle, bundles) {
  const sums = { turns: 0, tool_calls: 0, input_tokens: 0, output_tokens: 0, cost: 0 };
  const others = below(bundle, bundles, true);
  for (const { story: { totals } } of others) {
    for (const [name, value] of Object.entries({ turns: totals.turns, tool_calls: totals.calls, input_tokens: totals.input, output_tokens: totals.output, cost: totals.cost })) sums[name] += value;
  }
  return others.length ? sums : null;
}

async function start() {
  const root = document.getElementById("app");
  const text = document.getElementById("bundle").textContent.trimStart();
  let lines;
  try {
    lines = readLines(text);
  } catch (error) {
    root.replaceChildren(h("main", { class: "page" }, h("p", { class: "banner bad" }, icon("cross"), h("span", {}, h("strong", {}, "Damaged: "), `line ${error.line ?? "?"} of the file: ${error.message}`))));
    return;
  }
  const bundles = bundlesOf(lines);
  const [first] = bundles;
  const address = (id, { view, record = null }) => `#${new URLSearchParams({ ...(id === first.id ? {} : { run: id }), ...(view ? { view } : {}), ...(record === null ? {} : { record }) })}`;
  const hrefOf = (id, record) => bundles.some((bundle) => bundle.id === id) ? address(id, { record }) : null;
  const isShown = (bundle) => shown === bundle;
  let shown = null;
  for (const bundle of bundles) {
    const { id, story } = bundle;
    const caller = bundles.find((other) => below(other, bundles).includes(bundle));
    bundle.view = new RunView(story, {
      id, hrefOf, agents: agentsOf(bundle, bundles),
      changed: (now) => { if (now.view && isShown(bundle)) history.replaceState(null, "", address(id, now)); },
      linkOf: (seq) => `${location.href.split("#")[0]}${address(id, { view: bundle.view.view, record: seq })}`,
      links: () => [caller ? h("div", { class: "fact" }, h("dt", {}, "Agent of"), h("dd", {}, h("a", { href: hrefOf(caller.id), title: caller.id }, say(shortId(caller.id))))) : null],
      buttons: [h("a", { class: "button", href: URL.createObjectURL(new Blob([text], { type: "application/x-ndjson" })), download: `${first.id.replace(/[^\w.-]+/gu, "_")}.ndjson` }, icon("download"), "Bundle")],
    });
  }
  // Whether each run of the file is intact is seen from all of them.
  const list = h("nav", { class: "file-runs", "aria-label": "Runs in this file", hidden: bundles.length === 1 });
  const drawList = () => list.replaceChildren(h("span", { class: "muted" }, `${bundles.length} runs in this file`), h("ul", {}, bundles.map((bundle) => {
    const { id, view: { verification: found } } = bundle;
    const state = !found || found.progress ? ["muted", "clock", "verifying"] : found.status === "verified" ? ["ok", "check", "verified"] : ["in_progress", "unavailable"].includes(found.status) ? ["muted", "seal", "not verified"] : ["bad", "cross", found.seq ? `damaged: record ${found.seq}` : "damaged"];
    return h("li", {}, h("a", { href: hrefOf(id) || "#", title: id, "aria-current": isShown(bundle) ? "page" : null }, say(bundle === first ? shortId(id) : id.startsWith(`${first.id}+`) ? id.slice(first.id.length + 1) : shortId(id))), h("span", { class: `file-run tone-${state[0]}` }, icon(state[1]), state[2]));
  })));
  const place = h("div", {});
  root.replaceChildren(h("header", { class: "site" }, h("span", { class: "brand" }, logo(), "Mynah"), h("span", { class: "site-note" }, "Exported run. This file needs no network.")), h("main", { class: "page", id: "main" }, list, place));
  /** Shows the run and the record that the address names. */
  const show = () => {
    const state = new URLSearchParams(location.hash.slice(1));
    shown = bundles.find(({ id }) => id === state.get("run")) ?? first;
    const { id, view } = shown;
    if (place.firstChild !== view.element) place.replaceChildren(view.element);
    document.title = `Run ${id} · Mynah`;
    view.open(state.get("view") ?? view.view);
    view.selectNamed(state.get("record"));
    drawList();
  };
  keys((event) => shown.view.key(event), () => RUN_KEYS);
  show();
  addEventListener("hashchange", show);
  for (const bundle of bundles) {
    const { lines: own, entries, story, view } = bundle;
    if (canVerify()) {
      view.verified({ progress: [0, entries.length] });
      for (const record of story.records) record.hash = await hashOf(record.raw).catch(() => null);
      view.verified(await verifyLines(own, (done, total) => view.verified({ progress: [done, total] })));
    } else view.verified({ status: "unavailable", what: "this browser offers no SHA-256 to files" });
    drawList();
  }
  // A run is as sound as those that it was told the results of.
  const isDamaged = ({ view: { verification } }) => !["verified", "in_progress", "unavailable"].includes(verification.status);
  for (const bundle of bundles) bundle.view.blame(below(bundle, bundles).filter(isDamaged).map(({ id }) => id));
}

start();
