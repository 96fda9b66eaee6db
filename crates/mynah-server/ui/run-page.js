// The page of one run: its views, live while it runs, and what can be done with it.

import { cancel, fork, message, replay, resume, start, tryAgain, waitingForm } from "./actions.js";
import { abilities, bundleOf, fileName, get, listen, rawRecords, recordsOf, runPath, withQuery } from "./api.js";
import { announce, count, h, icon, plural, say, shortId, when } from "./dom.js";
import { fromApi, fromEntry, textOf } from "./facts.js";
import { RUN_KEYS, RunView } from "./run-view.js";
import { runHref, shownStatus } from "./runs-page.js";
import { Story } from "./story.js";
import { ownWords } from "./verify-page.js";
import { canVerify, hashOf, hex, readLines, verifyLines, verifyRecords } from "./verify.js";

const PORTION = 1000;
/** Runs up to this size are verified when they are opened. */
const SMALL = 2000;

export async function runPage(root, query) {
  const id = query.get("run");
  root.replaceChildren(h("div", { class: "run-head", "aria-busy": "true" }, h("div", { class: "skeleton", style: { height: "32px", width: "320px" } }), h("div", { class: "skeleton", style: { height: "44px" } }), h("div", { class: "skeleton", style: { height: "42px" } }), h("div", { class: "skeleton", style: { height: "180px" } })));
  const [first, rights] = await Promise.all([get(runPath(id)), abilities()]);
  let run = first;
  const story = new Story();
  const live = { text: "", reasoning: "", turn: null };
  let closed = false;
  let isDamaged = false;

  const load = async () => {
    const page = await recordsOf(id, { from: story.records.length + 1, limit: PORTION });
    for (const record of page.records) if (record.seq === story.records.length + 1) story.add(fromApi(record));
    return page.next;
  };
  let next = await load();

  const raw = async (record) => {
    const page = await get(runPath(id, "/records"), { from: record.seq, limit: 1, raw: true });
    if (!page.records[0].raw) throw new Error("The server cannot read this record.");
    return Object.fromEntries(Object.entries(page.records[0].raw).map(([name, text]) => [name, hex(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)))]));
  };
  const changed = ({ view: name, record }) => {
    const state = withQuery("/", { run: id, view: name, record });
    if (name && state !== location.pathname + location.search) history.replaceState(null, "", state);
  };
  const view = new RunView(story, {
    id, raw, changed, status: shownStatus(run), agents: run.agents, expected: run.records, verify: () => verify(), hrefOf: (other, seq) => runHref(other, { record: seq }), linkOf: (seq) => new URL(runHref(id, { view: view.view, record: seq }), location.href).href,
    actions: (record) => {
      if (!rights.actions || record.kind === "sealed") return [];
      const button = (words, act) => h("button", { type: "button", class: "small", onclick: act }, icon("fork"), words);
      const said = saidIn(record);
      return [button("Fork here", () => opened(fork(id, record.seq, rights.agents, null, waitsAt(record)))),
        said && canContinue ? button("Edit the message", () => opened(fork(id, record.seq - 1, rights.agents, said))) : null].filter(Boolean);
    },
    links: () => [
      run.session_id ? relation("Session", withQuery("/", { session: run.session_id }), run.session_id) : null,
      run.parent ? relation(story.about.parent?.continues ? "Continues" : "Fork of", runHref(run.parent.run_id, { record: run.parent.seq }), run.parent.run_id) : null,
      run.caller ? relation("Agent of", runHref(run.caller), run.caller) : null,
      run.continued_in ? relation("Continued in", runHref(run.continued_in), run.continued_in) : null,
      run.previous ? relation("Turn before", runHref(run.previous.run_id), run.previous.run_id) : null,
      run.agent ? h("div", { class: "fact" }, h("dt", {}, "Agent"), h("dd", {}, say(run.agent))) : null],
  });
  story.followProcess(run.abandoned, run.not_started);
  root.replaceChildren(view.element);

  const canContinue = rights.actions && rights.agents.length > 0;
  const opened = async (asked) => {
    const made = await asked;
    if (made) location.href = runHref(made.run_id);
  };

  const compared = async (asked) => {
    const made = await asked;
    if (made) location.href = withQuery("/", { compare: id, with: made.run_id });
  };

  // Only the run that called a subagent continues it.
  const callerLink = () => h("a", { href: runHref(run.caller) }, say(run.caller));
  const drawNotices = () => {
    const notices = [];
    const [left, why] = run.not_started ? ["Not started. ", "It has only the records of the run that it was forked from."] : run.queue ? ["Queued. ", "It continues when a server or worker takes it that has its agent."] : ["Abandoned. ", "It has not ended, and no process holds it."];
    if (run.abandoned) notices.push(h("p", { class: `banner ${run.not_started ? "" : "warn"}` }, icon(run.not_started ? "more" : "bolt"), h("span", {}, h("strong", {}, left), why, run.caller ? [" Resume the run that called it: ", callerLink()] : canContinue ? "" : [" ", h("code", {}, "mynah resume"), " continues it."])));
    if (run.waiting?.for === "time") notices.push(h("p", { class: "banner wait" }, icon("clock"), h("span", {}, h("strong", {}, "Sleeps. "), run.waiting.wake_at_ms ? ["It continues ", when(run.waiting.wake_at_ms), ", where a worker has its agent."] : "It continues at its time.")));
    else if (run.waiting && run.caller) notices.push(h("p", { class: "banner wait" }, icon("pause"), h("span", {}, h("strong", {}, "Waits for a decision. "), "This is the run of a subagent. Decide in the run that called it: ", callerLink())));
    else if (run.waiting && canContinue) notices.push(waitingForm(id, run.waiting, rights.agents, acted));
    else if (run.waiting) notices.push(h("p", { class: "banner wait" }, icon("pause"), h("span", {}, h("strong", {}, "Waits. "), say(run.waiting.question ?? { approval: "It needs an approval. ", outcome: "The outcome of calls is unknown. " }[run.waiting.for] ?? ""), " This server has no agent that could continue it; ", h("code", {}, "mynah resume"), " does.")));
    // A person who writes is not interrupted, as long as the run waits.
    const isWriting = run.waiting && view.notices.contains(document.activeElement) && document.activeElement.matches("textarea, select");
    if (!isWriting) view.notices.replaceChildren(...notices);
  };
  /** Whether calls ran when the process died. */
  const isUncertain = () => run.abandoned && [...story.calls.values()].some(({ attempts }) => attempts.at(-1)?.state === "running");
  const act = async (what) => {
    const result = await what;
    if (result) acted(result);
  };
  const said = async (after) => {
    const result = await message(id, rights.agents);
    if (result?.run_id === id) view.queue(result.said, after);
    if (result) acted(result);
    view.drawQueue();
  };
  /** A run that failed continues in another one, which the answer names. */
  const acted = (result) => {
    if (result.run_id && result.run_id !== id) location.href = runHref(result.run_id);
    else refresh(result);
  };
  const drawButtons = () => {
    const ended = ["completed", "failed", "cancelled"].includes(run.status);
    const button = (words, what, kind = "") => h("button", { type: "button", class: kind, onclick: what }, words);
    view.buttons.replaceChildren(...[
      canContinue && !run.caller && !run.continued_in && (run.abandoned || run.resumable !== null) ? button("Resume", () => act(resume(id, rights.agents, { resumable: run.resumable, isUncertain: isUncertain() })), run.resumable === false ? "" : "primary") : null,
      canContinue && !run.caller && !ended && !run.waiting ? button("Message", () => said(story.records.length)) : null,
      rights.actions && !ended ? button("Cancel", () => act(cancel(id)), "danger") : null,
      canContinue && !run.caller && run.fingerprint && saidIn(story.records[0]) ? button("Run again", () => opened(start(rights.agents, run, saidIn(story.records[0])))) : null,
      canContinue && !run.caller && story.records[0]?.fact?.about ? button("Try another prompt", () => compared(tryAgain(id, rights.agents, begunWith(story.records[0], run)))) : null,
      run.fingerprint ? button("Replay", () => showReplay(replay(id, rights.agents))) : null,
      run.parent ? h("a", { class: "button", href: withQuery("/", { compare: run.parent.run_id, with: id }) }, "Compare with its parent") : null,
      h("a", { class: "button", href: withQuery("/", { verify: id }) }, icon("seal"), "Verify"),
      isDamaged ? h("button", { type: "button", disabled: true, title: "A damaged run is not exported" }, icon("download"), "Export") : exportMenu(id)].filter(Boolean));
  };
  const showReplay = async (asked) => {
    const result = await asked;
    if (!result) return;
    const differs = result.status !== "equal";
    const at = result.err?.metadata?.seq;
    view.notices.replaceChildren(h("p", { class: `banner ${differs ? "warn" : "ok"}` }, icon(differs ? "cross" : "check"), h("span", {}, h("strong", {}, differs ? "The replay differs. " : "The replay is equal. "), differs ? say(result.err?.message ?? "") : `${plural(result.records, "record")} made again, each the same.`), at ? h("button", { type: "button", class: "small", onclick: () => view.select(Number(at)) }, `Show record ${at}`) : null, result.compare ? h("a", { class: "button small", href: result.compare }, "Compare") : null));
  };

  const refresh = async (known = null) => {
    const described = known?.run_id === id ? known : await get(runPath(id));
    // What was asked for first may be answered last.
    if (described.records < run.records) return;
    run = described;
    Object.assign(view, { status: shownStatus(run), agents: run.agents });
    story.followProcess(run.abandoned, run.not_started);
    drawButtons();
    drawNotices();
    view.drawHeader();
    // Calls of a run that no process has any more do not run.
    view.views.conversation?.refresh();
  };

  drawButtons();
  drawNotices();
  view.open(query.get("view"));
  while (next !== null && !closed) {
    next = await load();
    view.grew();
  }
  story.followProcess(run.abandoned, run.not_started);
  view.grew();
  // The run may have stopped after it was described and before its records were read.
  if (story.status !== run.status) await refresh();
  view.selectNamed(query.get("record"));

  /** What the server finds, where this browser cannot look itself: a damaged run is not exported. */
  const ask = async () => {
    const { err, ...report } = await get(runPath(id, "/verify"));
    const { seq = 0, what = err?.message } = err?.metadata ?? {};
    isDamaged = Boolean(err);
    drawButtons();
    if (!err) return view.verified({ ...report, by: "the server" });
    const own = canVerify() ? ownWords(await rawRecords(id).then((entries) => verifyRecords(id, entries)).catch(() => null)) : null;
    view.verified({ status: report.status, what, seq: Number(seq), own });
  };
  const verify = async () => {
    if (closed) return;
    if (!canVerify()) return ask();
    view.verified({ progress: [0, story.records.length] });
    try {
      const lines = readLines(await bundleOf(id));
      const found = await verifyLines(lines, (done, total) => view.verified({ progress: [done, total] }));
      if (lines[0].bundle.run_id !== id) return view.verified({ status: "corrupt", what: "the server sent the records of another run" });
      // What is shown is what was verified.
      if (found.status === "verified" || found.status === "in_progress") view.adopt(await recordsIn(lines));
      const isIntact = found.status === "corrupt" && !found.seq && found.checked === found.records;
      view.verified({ ...found, own: isIntact ? ownWords({ intact: found.records, unread: 0, wrong: [] }) : null });
    } catch (error) {
      await ask();
    }
  };
  if (story.records.length <= SMALL) verify();

  // The stream says that there is more; the records themselves are what is shown.
  let loading = false;
  let again = false;
  const catchUp = async () => {
    if (loading) {
      again = true;
      return;
    }
    loading = true;
    do {
      again = false;
      const before = story.records.length;
      try {
        while (await load() !== null && !closed);
        if (story.records.length > before) {
          const kinds = story.records.slice(before).map((record) => record.kind);
          // An answer that began since stays: its events are not sent again.
          if (!isInFlight(live.turn) || story.status !== "running") clearLive();
          view.grew();
          announce(`${count(story.records.length - before)} new records`);
          if (kinds.some((kind) => ["suspended", "resumed", "completed", "failed", "cancelled", "sealed"].includes(kind))) await refresh();
          // What is said of the records holds for all that are shown.
          if (kinds.includes("sealed") || (kinds.includes("suspended") && view.verification && story.records.length <= SMALL)) verify();
        }
      } catch {
        // The stream reconnects by itself, and this is done again then.
      }
    } while (again && !closed);
    loading = false;
  };
  /** Whether the answer that follows a record, of which the id of an event names both, has no record yet. */
  const isInFlight = (turn) => Number(turn?.split("~")[0]) >= (story.records.findLast(({ kind }) => kind === "assistant_completed" || kind === "turn_lost")?.seq ?? 0);
  const clearLive = () => {
    Object.assign(live, { text: "", reasoning: "", turn: null });
    view.stream(null);
  };
  const hear = ({ lastEventId, data }) => {
    const { event } = JSON.parse(data);
    if (event.type === "tool_execution_progress") {
      const part = event.total ? `${Math.round(100 * event.progress / event.total)} % ` : "";
      view.views.conversation?.progress(event.id, part + (event.message ?? ""));
    }
    if (lastEventId.includes("~")) {
      const turn = lastEventId.split(".")[0];
      if (live.turn !== turn) Object.assign(live, { turn, text: "", reasoning: "" });
      if (event.type === "text_delta") live.text += event.delta;
      else if (event.type === "reasoning_delta") live.reasoning += event.delta;
      else return;
      if (isInFlight(turn)) view.stream({ ...live });
      return;
    }
    if (Number(lastEventId.split(".")[0]) > story.records.length) catchUp();
  };
  let stop = () => {};
  if (!story.sealed) {
    const path = withQuery(runPath(id, "/events"), { after: story.records.length ? `${story.records.length}.0` : null });
    stop = listen(path, { message: hear, open: catchUp, end: (_, source) => { source.close(); catchUp(); } });
  }
  // A lease that ends is no change in the log: the server is asked whether a process still has the run.
  let seconds = 0;
  const clock = setInterval(() => {
    if (!["running", "suspended"].includes(story.status)) return;
    view.tick();
    if (story.status !== "running") return;
    seconds += 1;
    if (seconds % 5 === 0) get(runPath(id)).then((now) => now.abandoned === run.abandoned && now.status === run.status && now.agents?.turns === run.agents?.turns ? null : refresh(now)).catch(() => {});
  }, 1000);
  return { title: view.title(60), close: () => { closed = true; clearInterval(clock); stop(); }, key: (event) => view.key(event), keys: RUN_KEYS };
}

/** What the user says in a record. */
function saidIn({ kind, fact }) {
  const message = kind === "run_started" ? fact?.thread?.messages?.findLast(({ role }) => role === "user") : ["user_message", "resumed"].includes(kind) ? fact?.message : null;
  return message?.role === "user" ? textOf(message) : "";
}

/** What a fork at a record waits for: an answer, a decision about calls, or nothing that a person gives. */
function waitsAt({ kind, fact }) {
  if (kind !== "suspended" || ["crash_loop", "sleeping"].includes(fact?.reason)) return null;
  return ["manual_tool_calls", "uncertain_tools"].includes(fact?.reason) ? "decision" : "answer";
}

/** What a run began with, as it can be changed. */
function begunWith(record, { agent, model }) {
  const system = record.fact.thread?.messages?.find(({ role }) => role === "system");
  return { system: textOf(system), user: saidIn(record), model, agent };
}

/** The records of a bundle, each with the hash of its bytes. */
async function recordsIn(lines) {
  const records = lines.filter((line) => line.record).map((line, place) => fromEntry(line.record, place + 1));
  for (const record of records) record.hash = await hashOf(record.raw);
  return records;
}

/** Both forms in which a run leaves its log. */
function exportMenu(id) {
  const name = fileName(id);
  const item = (query, end, words, hint) => h("a", { href: runPath(id, `/export${query}`), download: `${name}.${end}` }, h("strong", {}, words), h("small", { class: "muted" }, hint));
  const menu = h("details", { class: "menu", onkeydown: (event) => { if (event.key === "Escape") { menu.open = false; menu.firstChild.focus(); event.stopPropagation(); } }, onfocusout: ({ relatedTarget }) => { if (!menu.contains(relatedTarget)) menu.open = false; } },
    h("summary", { class: "button" }, icon("download"), "Export"), h("div", { class: "menu-items" }, item("?format=html", "html", "Page", "One file that shows and verifies the run"), item("?agents=true", "ndjson", "Bundle", ["For ", h("code", {}, "mynah verify"), " and ", h("code", {}, "mynah import")])));
  return menu;
}

function relation(name, href, id) {
  return h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, h("a", { href, title: id }, say(shortId(id)))));
}
