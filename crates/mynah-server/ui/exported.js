// The entry of an exported file: one run, its views, and its verification. No network.

import { h, icon, logo } from "./dom.js";
import { fromEntry } from "./facts.js";
import { RUN_KEYS, RunView, keys } from "./run-view.js";
import { Story } from "./story.js";
import { canVerify, hashOf, readLines, verifyLines } from "./verify.js";

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
  const id = String(lines[0]?.bundle?.run_id ?? "unknown");
  const entries = lines.filter((line) => line && typeof line.record === "object" && line.record !== null).map((line) => line.record);
  const story = new Story();
  for (const [index, entry] of entries.entries()) story.add(fromEntry(entry, index + 1));
  const state = new URLSearchParams(location.hash.slice(1));
  const address = ({ view, record }) => `#${new URLSearchParams({ view, ...(record === null ? {} : { record }) })}`;
  const view = new RunView(story, {
    id,
    changed: (now) => { if (now.view) history.replaceState(null, "", address(now)); },
    linkOf: (seq) => `${location.href.split("#")[0]}${address({ view: view.view, record: seq })}`,
    buttons: [h("a", { class: "button", href: URL.createObjectURL(new Blob([text], { type: "application/x-ndjson" })), download: `${id.replace(/[^\w.-]+/gu, "_")}.ndjson` }, icon("download"), "Bundle")],
  });
  root.replaceChildren(h("header", { class: "site" }, h("span", { class: "brand" }, logo(), "Mynah"), h("span", { class: "site-note" }, "Exported run. This file needs no network.")), h("main", { class: "page", id: "main" }, view.element));
  keys((event) => view.key(event), () => RUN_KEYS);
  document.title = `Run ${id} · Mynah`;
  view.open(state.get("view"));
  if (Number(state.get("record")) > 0) view.select(Number(state.get("record")));
  if (!canVerify()) {
    view.verified({ status: "unavailable", what: "this browser offers no SHA-256 to files" });
    return;
  }
  view.verified({ progress: [0, entries.length] });
  for (const record of story.records) record.hash = await hashOf(record.raw).catch(() => null);
  view.verified(await verifyLines(lines, (done, total) => view.verified({ progress: [done, total] })));
}

start();
