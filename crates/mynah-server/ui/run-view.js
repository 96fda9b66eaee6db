// One run: its header, and three linked views of the same records.

import { Conversation, callDetail } from "./conversation.js";
import { atLeast, brief, compact, copyButton, count, exactly, h, icon, idChip, lasting, money, plural, say, shortId, span, statusChip, when } from "./dom.js";
import { isBranch } from "./exact.js";
import { endDetail, subRun, textOf } from "./facts.js";
import { jsonDiff } from "./json.js";
import { recordDetail, Records, searched } from "./records.js";
import { overall } from "./overall.js";
import { Story, reasonWords } from "./story.js";
import { Timeline } from "./timeline.js";

/** Whether the API adds this member to what is recorded: one that is empty, or one that repeats another. */
const isAdded = ({ path, before, after }) => before === undefined && (/(?:^|\.)(?:output_text|tool_calls)$/u.test(path) || (isBranch(after) && Object.keys(after).length === 0));

const VIEWS = [["conversation", "Conversation"], ["timeline", "Timeline"], ["records", "Records"]];

export class RunView {
  /**
   * `raw(record)` loads the bytes of a record, `changed({view, record})` keeps the state in the address, `linkOf(seq)` is the address
   * of a record, `hrefOf(run, seq)` that of another run, if it has one. `agents` is what the runs of its agents used. `buttons` stand in the header, `actions(record)` beside a record. `status` and
   * `expected`, a number of records, are what is known before the records are here. `verify()` verifies a run that is not verified yet.
   */
  constructor(story, { id, raw = null, changed = () => {}, linkOf = null, hrefOf = null, buttons = [], actions = () => [], links = () => [], status = null, agents = null, expected = 0, verify = null }) {
    Object.assign(this, { story, id, raw, changed, linkOf, hrefOf, actions, links, status, agents, expected, verify, selected: null, view: null, verification: null, live: null, queued: [], damagedRuns: [] });
    const select = (seq) => this.select(seq);
    this.make = {
      conversation: () => {
        const made = new Conversation(story, { select, hrefOf, damagedRuns: () => this.damagedRuns });
        if (this.live) made.stream(this.live);
        made.queue(this.queued.map(({ text }) => text));
        return made;
      },
      timeline: () => new Timeline(story, { select }),
      records: () => new Records(story, { select }),
    };
    this.views = {};
    this.header = h("div", { class: "run-facts" });
    this.chip = h("span", { class: "run-status" });
    this.asked = h("h1", {});
    this.proof = h("div", { class: "proof" });
    this.failure = h("div", { class: "notices" });
    this.notices = h("div", { class: "notices" });
    this.absent = h("div", { class: "notices" });
    this.search = h("input", { type: "search", placeholder: "Search records", "aria-label": "Search in the records of this run (/)", oninput: () => this.find(), onkeydown: (event) => this.searchKey(event) });
    this.matches = h("span", { class: "matches", role: "status" });
    this.tabs = VIEWS.map(([name, words], place) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "view", title: `${words} (${place + 1})`, onclick: () => this.open(name), onkeydown: (event) => this.tabKey(event, place) }, words));
    this.stage = h("div", { class: "stage", id: "view", role: "tabpanel" });
    this.panel = h("aside", { class: "panel", "aria-label": "Selected record", hidden: true });
    this.overall = h("aside", { class: "overall", "aria-label": "What the run adds up to" });
    this.buttons = h("div", { class: "buttons" }, buttons);
    this.element = h("div", { class: "run" },
      h("div", { class: "run-head" }, h("div", { class: "run-title" }, h("div", { class: "run-name" }, this.chip, this.asked, h("span", { class: "run-of" }, idChip(id, "run id"))), this.buttons), this.header, this.proof, this.failure, this.absent, this.notices),
      h("div", { class: "run-bar" }, h("div", { role: "tablist", "aria-label": "Views of the run", class: "tabs" }, this.tabs), h("div", { class: "search" }, icon("search"), this.search, this.matches)),
      h("div", { class: "run-body" }, this.stage, this.overall, this.panel));
    this.drawHeader();
  }

  drawHeader() {
    const { story, header } = this;
    const { first, last, active } = story;
    const totals = this.totals();
    const ofAgents = this.agents ? ` with ${plural(this.agents.turns, "turn")} of agents` : "";
    // A seal has the sums of records that cannot be read, but not those of cached and reasoning tokens.
    const isLeast = story.unread.length > 0;
    const least = (words) => atLeast(isLeast && !story.isSummed, words);
    const unknown = isLeast ? ". Records that are redacted or damaged may have more" : "";
    const fact = (name, value, hint, title) => h("div", { class: "fact" }, h("dt", {}, name), h("dd", { title }, value, hint ? h("small", {}, hint) : null));
    const isOver = !story.isLive || ["completed", "failed", "cancelled"].includes(story.status);
    const wall = first ? story.until - first.ts : 0;
    const status = this.status ?? story.status;
    this.chip.replaceChildren(statusChip(status));
    header.replaceChildren(
      h("dl", { class: "facts-list" },
        first ? fact("Started", when(first.ts)) : null,
        fact("Duration", first && status !== "not_started" ? lasting(first.ts, isOver ? story.until : null) : "–", active !== null && wall - active > 1000 ? `${active ? span(active) : "0 s"} active` : null, `From the start to ${isOver && last ? `the end, ${exactly(story.until)}` : "now"}. Waits are included.`),
        fact("Turns", least(count(totals.turns)), null, ofAgents ? `${count(totals.turns)},${ofAgents}` : null), fact("Tool calls", least(count(totals.calls))),
        fact("Input", least(compact(totals.input)), totals.cached ? `${atLeast(isLeast, compact(totals.cached))} cached` : "tokens", `${count(totals.input)} tokens${unknown}`),
        fact("Output", least(compact(totals.output)), totals.reasoning ? `${atLeast(isLeast, compact(totals.reasoning))} reasoning` : "tokens", `${count(totals.output)} tokens${unknown}`),
        fact("Cost", h("span", { class: "amount" }, totals.priced ? least(money(totals.cost)) : "–"), null, totals.priced ? `$${totals.cost}` : "no price is known"),
        fact("Model", h("span", { class: "models", title: [...story.models].join(", ") }, say([...story.models].join(", ") || "–"))),
        fact("Records", count(story.records.length)), this.links()));
    this.overall.replaceChildren(...overall(story));
    this.overall.hidden = this.selected !== null || this.overall.childNodes.length === 0;
    this.asked.replaceChildren(...say(this.title()));
    this.asked.title = this.title(400);
    this.drawFailure();
    this.drawProof();
  }

  /** What was asked; the run's id if that is not known. */
  title(length = 120) {
    const said = this.story.items.find(({ seq, role }) => seq > 1 || role === "user");
    const asked = this.story.items.findLast(({ seq, role }) => seq === 1 && role === "user") ?? (said?.role === "user" ? said : null);
    return brief(textOf(asked?.message), length) || `Run ${shortId(this.id)}`;
  }

  /** What the run used, with the runs of its agents. */
  totals() {
    const { totals } = this.story;
    const { turns = 0, tool_calls: calls = 0, input_tokens: input = 0, output_tokens: output = 0, cost = 0 } = this.agents ?? {};
    return { ...totals, turns: totals.turns + turns, calls: totals.calls + calls, input: totals.input + input, output: totals.output + output, cost: totals.cost + cost, priced: totals.priced || cost > 0 };
  }

  /** Why a run failed stands at its top: its end may be thousands of records away. */
  drawFailure() {
    const { status, end, calls } = this.story;
    if (status !== "failed" || !end) return this.failure.replaceChildren();
    const detail = endDetail(end);
    // An error says more than that it is one.
    const reason = end.reason === "error" || detail.startsWith(reasonWords(end.reason)) ? "" : `${reasonWords(end.reason)}. `;
    const show = (seq, words) => h("button", { type: "button", class: "small", onclick: () => this.select(seq) }, words);
    const failed = [...calls.values()].flatMap(({ attempts }) => attempts).filter(({ state }) => state === "failed");
    this.failure.replaceChildren(h("p", { class: "banner bad" }, icon("cross"), h("span", {}, h("strong", {}, say(`Failed: ${reason}`)), say(detail)),
      failed.length ? show(failed.at(-1).doneSeq, failed.length === 1 ? "Show the failed call" : `Show the last of ${failed.length} failed calls`) : null, show(end.seq, `Show record ${end.seq}`)));
  }

  /** The answer that streams now, `{text, reasoning}`; null when it is recorded. A conversation that is opened later shows it too. */
  stream(live) {
    this.live = live;
    this.views.conversation?.stream(live);
  }

  /** Shows a message that was sent after `after` records, until it is recorded. */
  queue(text, after) {
    this.queued.push({ text, after });
    this.drawQueue();
  }

  drawQueue() {
    const isRead = ({ text, after }) => this.story.records.slice(after).some(({ kind, fact }) => ["user_message", "resumed"].includes(kind) && fact?.message && textOf(fact.message) === text);
    this.queued = this.story.sealed ? [] : this.queued.filter((message) => !isRead(message));
    this.views.conversation?.queue(this.queued.map(({ text }) => text));
  }

  /** Tells that runs of its agents are damaged. */
  blame(runs) {
    this.damagedRuns = runs;
    this.drawProof();
    this.views.conversation?.refresh();
  }

  /** Time passes in a run that has not ended. */
  tick() {
    this.overall.replaceChildren(...overall(this.story));
    if (this.view === "timeline" && ["running", "suspended"].includes(this.story.status)) this.current.refresh();
  }

  /** Shows records whose bytes were verified. The views are made anew only if those that are shown say something else. */
  adopt(records) {
    const { story } = this;
    const isSame = story.records.every((shown, place) => {
      const own = records[place];
      return own && own.kind === shown.kind && own.ts === shown.ts && jsonDiff(own.fact, shown.fact).every(isAdded);
    });
    if (isSame) {
      for (const [place, shown] of story.records.entries()) Object.assign(shown, { text: undefined }, records[place]);
      return;
    }
    const { isLive, isAbandoned, isNotStarted } = story;
    Object.assign(story, new Story());
    for (const record of records) story.add(record);
    if (isLive) story.followProcess(isAbandoned, isNotStarted);
    this.views = {};
    const { view } = this;
    this.view = null;
    this.open(view);
    this.drawHeader();
  }

  /** What is known of the run's integrity; `{progress: [done, total]}` while it is checked. */
  verified(found) {
    this.verification = found;
    for (const record of this.story.records) delete record.damaged;
    // What a damaged record says is not shown as if it had happened.
    const unread = ({ seq, fact }) => seq === found?.seq && fact;
    if (this.view && this.story.records.some(unread)) this.adopt(this.story.records.map((record) => unread(record) ? { ...record, fact: null, text: undefined, unreadable: found.what } : record));
    const blamed = found?.seq ? this.story.records.find((record) => record.seq === found.seq) : null;
    if (blamed) blamed.damaged = found.what;
    this.drawProof();
    this.views.records?.refresh();
    if (this.selected !== null) this.drawPanel();
  }

  drawProof() {
    const found = this.verification;
    const hash = this.story.sealed ? this.story.last.hash : null;
    const print = hash ? [h("span", { class: "muted" }, "fingerprint"), h("code", { class: "fingerprint", title: hash }, hash), copyButton(hash, "Copy fingerprint")] : [];
    const state = (tone, drawing, words, ...more) => this.proof.replaceChildren(h("div", { class: `proof-line tone-${tone}`, role: "status", "data-status": tone === "bad" && found.status === "verified" ? "agent_damaged" : found?.status ?? "unchecked" }, icon(drawing), h("strong", {}, words), h("span", { class: "proof-more" }, more)));
    // What is damaged is not shown as if all were well.
    this.chip.classList.toggle("is-damaged", found?.status === "corrupt");
    const here = this.story.records.length;
    if (here < this.expected) state("muted", "clock", `Loading ${count(here)} of ${plural(this.expected, "record")}`, h("progress", { max: this.expected, value: here, "aria-label": "Records" }));
    else if (!found) state("muted", "seal", hash ? "Not verified yet" : "In progress", ...print, hash && this.verify ? h("button", { type: "button", class: "small", onclick: this.verify }, "Verify now") : null);
    else if (found.progress) {
      const [done, total] = found.progress;
      state("muted", "seal", `Verifying ${count(done)} of ${plural(total, "record")}`, h("progress", { max: total, value: done, "aria-label": "Verification" }));
    } else if (this.damagedRuns.length && ["verified", "in_progress"].includes(found.status)) {
      const { length } = this.damagedRuns;
      const below = this.damagedRuns.map((run, place) => [place ? ", " : "", this.hrefOf?.(run) ? h("a", { href: this.hrefOf(run), title: run }, say(shortId(run))) : say(shortId(run))]);
      state("bad", "cross", length === 1 ? "The run of an agent is damaged" : `${count(length)} runs of agents are damaged`, h("span", {}, below, `. The ${plural(found.records, "record")} of this run itself ${found.records === 1 ? "is" : "are"} intact.`), ...print);
    } else if (found.status === "verified") {
      state("ok", "seal", found.by ? `Verified by ${found.by}` : "Verified", h("span", {}, `${plural(found.records, "record")}, chain, seal and tree${found.redacted ? `, ${count(found.redacted)} redacted` : ""}`), ...print);
    } else if (found.status === "in_progress") {
      state("muted", "seal", found.by ? `Intact so far, says ${found.by}` : "Intact so far", h("span", {}, `${found.records < here ? `${count(found.records)} of ` : ""}${plural(Math.max(here, found.records), "record")} checked; there is no seal yet${found.redacted ? `; ${count(found.redacted)} redacted` : ""}`));
    } else if (found.status === "unavailable") {
      state("muted", "seal", "Cannot verify here", h("span", {}, found.what), ...print);
    } else {
      const go = found.seq ? h("button", { type: "button", class: "small", onclick: () => { this.open("records"); this.select(found.seq); } }, `Show record ${found.seq}`) : null;
      state("bad", "cross", found.status === "too_new" ? "A newer version wrote this" : found.seq ? `Damaged: record ${found.seq}` : "Damaged", h("span", {}, say(found.what)), found.own ? h("span", { class: "muted" }, say(found.own)) : null, go);
    }
  }

  /** Shows one of the views. */
  open(name) {
    const known = VIEWS.some(([view]) => view === name) ? name : "conversation";
    if (this.view === known) return;
    this.view = known;
    for (const [place, [view]] of VIEWS.entries()) {
      this.tabs[place].setAttribute("aria-selected", String(view === known));
      this.tabs[place].tabIndex = view === known ? 0 : -1;
    }
    this.stage.setAttribute("aria-labelledby", `tab-${known}`);
    this.element.dataset.view = known;
    this.views[known] ??= this.make[known]();
    this.stage.replaceChildren(this.views[known].element);
    this.views[known].refresh();
    if (known === "records") this.views.records.filter(this.search.value.trim());
    if (this.selected !== null) this.views[known].reveal(this.selected);
    this.changed({ view: known, record: this.selected });
  }

  get current() { return this.views[this.view]; }

  /** Selects the record that an address names. */
  selectNamed(name) {
    if (name === null) return;
    if (this.story.records[Number(name) - 1]) this.select(Number(name));
    else this.absent.replaceChildren(h("p", { class: "banner warn", role: "status" }, icon("more"), h("span", {}, h("strong", {}, "There is no record ", say(brief(name, 30)), ". "), `The run has ${plural(this.story.records.length, "record")}.`)));
  }

  select(seq) {
    this.absent.replaceChildren();
    this.selected = seq;
    this.current?.reveal(seq);
    this.drawPanel();
    this.changed({ view: this.view, record: seq });
  }

  drawPanel() {
    const record = this.story.records[this.selected - 1];
    this.panel.hidden = !record;
    this.overall.hidden = Boolean(record) || this.overall.childNodes.length === 0;
    this.element.classList.toggle("with-panel", Boolean(record));
    if (!record) return this.panel.replaceChildren();
    const link = this.linkOf?.(record.seq);
    const run = subRun(record.kind, record.fact);
    const startedAt = run && this.hrefOf?.(run);
    const started = startedAt ? h("a", { class: "button small", href: startedAt }, icon("fork"), "Run of the agent") : null;
    // A record of a call has only a part of it: its arguments are in the answer, and its outcome in another record.
    const call = record.kind.startsWith("tool_") ? this.story.calls.get(record.fact?.call_id) : null;
    this.shownCall = call && { call, state: call.attempts.at(-1)?.state };
    const whole = call ? h("div", { class: "call-body whole-call" }, h("h3", { class: "call-name" }, icon("tool"), say(call.name)), callDetail(call, (seq) => this.select(seq), this.story)) : null;
    this.panel.replaceChildren(recordDetail(record, { raw: this.raw, link, whole, close: () => this.close(), actions: [started, ...this.actions(record)].filter(Boolean) }));
  }

  close() {
    this.selected = null;
    this.drawPanel();
    this.current?.reveal(-1, false);
    this.changed({ view: this.view, record: null });
  }

  /** The story has more records than before. */
  grew() {
    this.drawHeader();
    // The call that is shown may have come to an end.
    if (this.selected !== null && this.shownCall && this.shownCall.call.attempts.at(-1)?.state !== this.shownCall.state) this.drawPanel();
    this.current?.refresh();
    if (this.queued.length) this.drawQueue();
    this.find();
  }

  find() {
    const words = this.search.value.trim().toLowerCase();
    this.found = words === "" ? null : this.story.records.filter((record) => {
      return searched(record).includes(words);
    }).map((record) => record.seq);
    this.matches.textContent = this.found ? plural(this.found.length, "match", "matches") : "";
    if (this.view === "records") this.views.records.filter(words);
  }

  searchKey(event) {
    if (event.key === "Escape") {
      this.search.value = "";
      this.find();
      this.search.blur();
    }
    if (event.key !== "Enter" || !this.found?.length) return;
    const now = this.selected ?? 0;
    const next = event.shiftKey ? this.found.findLast((seq) => seq < now) ?? this.found.at(-1) : this.found.find((seq) => seq > now) ?? this.found[0];
    this.select(next);
    this.matches.textContent = `${this.found.indexOf(next) + 1} of ${plural(this.found.length, "match", "matches")}`;
  }

  tabKey(event, place) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = (place + by + VIEWS.length) % VIEWS.length;
    this.open(VIEWS[next][0]);
    this.tabs[next].focus();
  }

  /** Keys that hold in the whole page. Returns whether it was one. */
  key(event) {
    const step = { j: 1, k: -1 }[event.key];
    if (step) {
      const seq = this.current.step(step);
      if (seq !== null && seq !== undefined) this.select(seq);
      return true;
    }
    if (["1", "2", "3"].includes(event.key)) {
      this.open(VIEWS[Number(event.key) - 1][0]);
      return true;
    }
    if (event.key === "/") {
      this.search.focus();
      return true;
    }
    if (event.key === "Escape" && this.selected !== null) {
      this.close();
      return true;
    }
    return this.current.key?.(event) ?? false;
  }
}

export const RUN_KEYS = [["j / k", "next, previous"], ["1 2 3", "conversation, timeline, records"], ["/", "search; Enter for the next match"], ["Esc", "close the record"], ["+ − 0", "zoom the timeline, show all of it"], ["← →", "move along the timeline"]];

/** Listens to keys, but where text is written. `?` shows what there is. */
export function keys(handle, list) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, dialog")) return;
    if (event.key === "?") {
      event.preventDefault();
      help(list());
    } else if (handle(event)) event.preventDefault();
  });
}

function help(list) {
  const dialog = h("dialog", { class: "help", "aria-labelledby": "help-title" }, h("h2", { id: "help-title" }, "Keys"),
    h("dl", {}, [...list, ["?", "this list"]].map(([key, words]) => h("div", { class: "pair" }, h("dt", {}, h("kbd", {}, key)), h("dd", {}, words)))),
    h("form", { method: "dialog" }, h("button", {}, "Close")));
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
}
