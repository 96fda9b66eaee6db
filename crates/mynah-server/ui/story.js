// What a run's records tell: the conversation, and the spans of time of the timeline. A fold, so that records can be added as they come.

import { isBranch, jsonText } from "./exact.js";
import { answersOf, breachText, callsOf, endDetail, errorText, parsed, partsOf, subRun, textOf } from "./facts.js";

/** The records that end a span, and those that may say what came of a call without an attempt. */
const ENDS = { model: ["assistant_completed", "turn_lost", "budget_exceeded", "cancelled"], tool: ["tool_completed", "tool_failed"] };
const OUTCOMES = ["tool_scheduled", "tool_completed", "tool_failed", "resumed"];

export class Story {
  constructor() {
    this.records = [];
    /** Records without a fact: they are redacted or damaged. */
    this.unread = [];
    /** The records at which turns begin. */
    this.turnStarts = [];
    /** What was said and what happened, in order. */
    this.items = [];
    /** What took time: `{kind, label, from, to, seq, depth, state}`. */
    this.spans = [];
    this.calls = new Map();
    this.totals = { turns: 0, calls: 0, input: 0, output: 0, cached: 0, reasoning: 0, cost: 0, priced: false };
    this.status = "running";
    this.about = {};
    this.models = new Set();
    /** So many records are copies of those of the parent: what they tell took no time of this run. */
    this.copied = 0;
    this.turn = null;
    this.waiting = null;
    this.end = null;
    /** Whether the page follows the run: then the time of a run without an end passes. */
    this.isLive = false;
    /** Whether no process has the run, although it has not ended. */
    this.isAbandoned = false;
    /** Whether the run has only the records of the one that it was forked from. */
    this.isNotStarted = false;
  }

  /** The first record that can be read. */
  get first() { return this.records.find((record) => record.ts !== null) ?? null; }
  get last() { return this.records.at(-1) ?? null; }
  get sealed() { return this.last?.kind === "sealed" && this.last.fact !== null; }

  /** The end that a suspended run waits after; null if it does not wait. */
  get pending() { return this.status === "suspended" ? this.end : null; }

  /** The time of the last record that can be read. */
  get lastTime() { return this.records.findLast((record) => record.ts !== null)?.ts ?? 0; }

  /** The end of the run; or now, if it has not ended. */
  get until() {
    const isOver = !this.isLive || this.isNotStarted || ["completed", "failed", "cancelled"].includes(this.status);
    return isOver ? this.lastTime : Math.max(this.lastTime, Date.now());
  }

  /** The end of a span. What ran when its process died did not run on. */
  endOf(one) {
    return one.to ?? (this.isAbandoned && one.kind !== "crash" ? this.lastTime : this.until);
  }

  /** Whether all of a span is in records that were copied. */
  isCopied(one) { return one.last <= this.copied; }

  /** For how long the run was active, without the run that it was forked from, in milliseconds; null if it is not known. */
  get active() {
    const { duration_ms: active = null } = this.end ?? {};
    return active === null ? null : Math.max(0, active - Number(this.about.parent?.active ?? 0) / 1e6);
  }

  /** Tells whether a process has the run; while none has, a span shows it. */
  followProcess(isAbandoned, isNotStarted = false) {
    Object.assign(this, { isLive: true, isAbandoned, isNotStarted });
    this.spans = this.spans.filter((one) => one !== this.gap);
    this.gap = isAbandoned && !isNotStarted && this.records.length ? { kind: "crash", label: "No process has it", from: this.lastTime, to: null, seq: this.last.seq, last: this.last.seq, depth: 0, state: "open" } : null;
    if (this.gap) this.spans.push(this.gap);
  }

  add(record) {
    const before = this.last;
    this.records.push(record);
    const { kind, fact } = record;
    if (!fact) {
      this.unread.push(record);
      this.note(record, record.unreadable ? "bad" : "muted", record.unreadable ? `Unreadable record${kind === "unreadable" ? "" : `: ${kind}`}` : `Redacted: ${kind}`, record.unreadable ?? "");
      this.follow(kind, record);
      return;
    }
    const take = `on_${kind}`;
    if (Object.hasOwn(Story.prototype, take)) this[take](fact, record, before);
    else this.note(record, "muted", kind, "");
  }

  note(record, tone, title, detail = "", more = {}) {
    const item = { type: "note", seq: record.seq, ts: record.ts, tone, title, detail, ...more };
    this.items.push(item);
    return item;
  }

  say(record, message, more = {}) {
    const item = { type: "message", seq: record.seq, ts: record.ts, role: String(message?.role ?? "user"), message, ...more };
    this.items.push(item);
    return item;
  }

  open(kind, label, record, more = {}) {
    const one = { kind, label, from: record.ts, to: null, seq: record.seq, last: record.seq, depth: 0, state: "open", ...more };
    this.spans.push(one);
    return one;
  }

  close(one, record, state = "ok") {
    if (!one || one.to !== null) return;
    Object.assign(one, { to: record.ts, last: record.seq, state });
  }

  /** Ends what ran when its process died, after record `before`. */
  lose(before) {
    for (const one of this.spans) if (one.to === null && one.kind !== "turn") Object.assign(one, { to: before.ts, last: before.seq, state: "lost" });
  }

  /** The last record without a fact in the turn of record `after` that may be of one of these kinds. */
  missing(after, kinds) {
    if (this.unread.length === 0) return null;
    const before = this.turnStarts.find((seq) => seq > after) ?? Infinity;
    return this.unread.findLast(({ seq, kind }) => seq > after && seq < before && (kind === "unreadable" || kinds.includes(kind))) ?? null;
  }

  /** Why the outcome of a call is not known: `redacted` or `damaged`; null if its records can be read. */
  hidden(call) {
    const last = call.attempts.at(-1);
    if (last ? last.state !== "running" : call.given !== undefined || call.verdict) return null;
    return hiddenBy(last ? this.missing(last.seq, ENDS.tool) : this.missing(call.seq, OUTCOMES));
  }

  /** Ends spans whose end is in a record that cannot be read. How long they took is not known. */
  settle(record, kinds = ["model", "tool"]) {
    if (this.unread.length === 0) return;
    for (const one of this.spans) {
      const end = one.to === null && kinds.includes(one.kind) ? this.missing(one.seq, ENDS[one.kind]) : null;
      if (end) Object.assign(one, { to: Math.max(one.from, end.ts ?? record.ts), last: end.seq, state: hiddenBy(end), isUnclear: true });
    }
  }

  /** What a record without a fact still tells by its kind. */
  follow(kind, record) {
    if (kind === "turn_started") this.beginTurn(record, this.totals.turns + 1);
    // The only call that runs is the one that ends here.
    const running = ENDS.tool.includes(kind) && record.redacted ? this.spans.filter((one) => one.kind === "tool" && one.to === null) : [];
    if (running.length === 1) this.close(running[0], record, "redacted");
    if (kind === "assistant_completed") this.close(this.turn?.model, record);
    if (["completed", "failed", "cancelled"].includes(kind)) this.finish(kind, null, record);
    if (kind === "suspended") this.status = "suspended";
    if (kind === "resumed") this.status = "running";
  }

  beginTurn(record, number) {
    this.settle(record);
    this.turnStarts.push(record.seq);
    this.close(this.turn?.span, record);
    this.totals.turns += 1;
    const one = this.open("turn", `Turn ${number}`, record);
    this.turn = { number, span: one, model: this.open("model", "Model call", record, { depth: 1 }), record };
  }

  on_run_started(fact, record) {
    this.learn(fact.about);
    this.copied = Number(fact.about?.parent?.seq ?? 0);
    const session = fact.about?.session;
    if (session?.previous?.messages > 0) this.note(record, "muted", `Continues ${session.previous.messages} earlier messages of its session`, "", { run: session.previous.run_id, at: session.previous.seq });
    if (fact.about?.parent) this.note(record, "muted", fact.about.parent.continues ? "Continues a run that failed or reached a limit" : "Forked from another run", "", { run: fact.about.parent.run_id, at: fact.about.parent.seq });
    for (const message of fact.thread?.messages ?? []) this.adopt(record, message);
  }

  /** A message from before the run: its calls and results belong together too. */
  adopt(record, message) {
    if (message?.role === "tool") {
      const call = this.calls.get(message.tool_call_id);
      if (call) {
        call.given = textOf(message);
        return;
      }
    }
    const item = this.say(record, message);
    item.calls = callsOf(message).map((part) => this.learnCall(part, record));
  }

  learn(about) {
    if (!about) return;
    this.about = { ...this.about, ...about };
    if (about.model) this.models.add(String(about.model));
  }

  learnCall(part, { seq }) {
    const call = { id: part.id, name: part.name, part, seq, attempts: [], manual: false };
    this.calls.set(part.id, call);
    return call;
  }

  on_resumed(fact, record, before) {
    const isSeam = !fact.message && !fact.tool_results?.length && !fact.approved?.length && !fact.edited?.length && !fact.rejected?.length && !fact.given_up?.length;
    const waited = this.waiting;
    this.close(waited, record);
    this.waiting = null;
    const after = fact.after ?? "crash";
    if (this.gap || this.isNotStarted) this.followProcess(false);
    this.settle(record);
    if (before && isSeam && this.status === "running" && after === "crash") {
      this.lose(before);
      this.spans.push({ kind: "crash", label: "Process died, resumed", from: before.ts, to: record.ts, seq: record.seq, last: record.seq, depth: 0, state: "lost" });
      this.note(record, "bad", "The process died here. Another one continued.", "");
    } else if (isSeam && after === "branch") {
      this.note(record, "muted", "The branch continues", "");
    } else if (isSeam) {
      this.note(record, "muted", "Continued", "");
    }
    this.status = "running";
    const waitedFor = this.end;
    this.end = null;
    const model = this.about.model;
    this.learn(fact.about);
    if (fact.about?.model && fact.about.model !== model) this.note(record, "muted", model ? `Model: ${model} → ${fact.about.model}` : `Model: ${fact.about.model}`);
    const answers = answersOf(fact);
    if (answers) this.note(record, "wait", "Tools did not run. Calls were answered from the records of", "", { run: answers });
    for (const [id, text] of fact.tool_results ?? []) this.give(record, id, { given: text });
    const edited = new Set((fact.edited ?? []).map(([id]) => id));
    for (const id of fact.approved ?? []) if (!edited.has(id)) this.give(record, id, { verdict: "approved" });
    for (const [id, given] of fact.edited ?? []) {
      const text = typeof given === "string" ? given : jsonText(given);
      this.give(record, id, { verdict: "approved", edited: text }, `with other arguments: ${text}`);
    }
    for (const [id, why] of fact.rejected ?? []) this.give(record, id, { verdict: "rejected", why });
    for (const id of fact.given_up ?? []) this.give(record, id, { verdict: "given up" });
    const asked = fact.message ? this.calls.get(waitedFor?.metadata?.pending_tool_call_id) : null;
    if (asked) asked.isAnswered = true;
    if (fact.message && !this.decide(record, waitedFor, textOf(fact.message))) this.adopt(record, fact.message);
  }

  /** Shows an answer that decides about the calls of an agent. Returns whether it is one. */
  decide(record, end, text) {
    const hints = end?.metadata?.ask_user_opts;
    const decisions = hints?.for && Array.isArray(hints.calls) ? parsed(text) : null;
    if (!isBranch(decisions) || Array.isArray(decisions)) return false;
    for (const [id, decision] of Object.entries(decisions)) {
      const call = hints.calls.find((one) => one.id === id);
      const name = `${call?.name ?? id}, a call of an agent`;
      const [words, detail] = decision === true ? [hints.for === "outcome" ? "Run again" : "Approved", ""] : decision?.arguments !== undefined ? ["Approved", `with other arguments: ${jsonText(decision.arguments)}`]
        : decision?.result !== undefined ? ["Result given for", typeof decision.result === "string" ? decision.result : jsonText(decision.result)] : ["Rejected", decision || ""];
      this.note(record, words === "Rejected" ? "wait" : "muted", `${words}${words.endsWith("for") ? " " : ": "}${name}`, detail);
    }
    return true;
  }

  give(record, id, more, detail = more.why ?? more.given ?? "") {
    const call = this.calls.get(id);
    if (call) Object.assign(call, more, { answeredSeq: record.seq });
    const words = more.verdict ? `${more.verdict === "given up" ? "Given up" : more.verdict === "approved" ? "Approved" : "Rejected"}: ${call?.name ?? id}` : `Result given for ${call?.name ?? id}`;
    this.note(record, more.verdict === "rejected" ? "wait" : "muted", words, detail);
  }

  on_user_message(fact, record) {
    this.adopt(record, fact.message);
  }

  on_turn_started(fact, record) {
    this.beginTurn(record, fact.turn);
  }

  on_turn_lost(fact, record) {
    this.totals.input += Number(fact.input_tokens ?? 0);
    this.spend(fact.cost);
    this.close(this.turn?.model, record, "lost");
    this.note(record, "bad", fact.given_up ? `The loop gave turn ${fact.turn} up` : `The answer of turn ${fact.turn} was lost with its process`);
  }

  spend(cost) {
    if (cost == null) return;
    this.totals.cost += Number(cost);
    this.totals.priced = true;
  }

  usage(usage) {
    this.totals.input += Number(usage?.input_tokens ?? 0);
    this.totals.output += Number(usage?.output_tokens ?? 0);
    this.totals.cached += Number(usage?.cached_input_tokens ?? 0);
    this.totals.reasoning += Number(usage?.reasoning_tokens ?? 0);
    this.spend(usage?.total_cost);
  }

  on_assistant_completed(fact, record) {
    const { response = {} } = fact;
    this.usage(response.usage);
    // The model that answered is told if it is not the one that was asked for.
    if (response.model && ![...this.models].some((known) => known === response.model || known.endsWith(`:${response.model}`))) this.models.add(String(response.model));
    const failed = response.finish_reason === "error";
    if (this.turn?.model.to === null) {
      this.close(this.turn.model, record, failed ? "failed" : "ok");
      this.turn.model.label = response.model ? `Model: ${response.model}` : "Model call";
      this.turn.model.usage = response.usage;
      this.turn.model.firstToken = fact.first_token_ms ?? null;
    }
    const item = this.say(record, response.message ?? { role: "assistant", content: "" }, { response, duration: fact.duration_ms ?? null, firstToken: fact.first_token_ms ?? null, turn: this.turn?.number ?? null, pieces: pieces(fact.cuts) });
    item.calls = callsOf(response.message).map((part) => this.learnCall(part, record));
    const manual = fact.plan === "manual" ? item.calls.map((call) => call.id) : fact.plan?.tools?.manual ?? [];
    for (const id of manual) if (this.calls.has(id)) this.calls.get(id).manual = true;
    for (const id of fact.plan?.tools?.denied ?? []) if (this.calls.has(id)) this.calls.get(id).verdict = "not permitted";
    if (response.error) this.note(record, "bad", "The model call failed", errorText(response.error));
  }

  on_tool_scheduled(fact, record) {
    this.settle(record, ["model"]);
    this.begin(fact, record);
  }

  /** Begins an attempt of a call. */
  begin({ call_id: id, attempt: number, call: made }, record, more = {}) {
    if (number === 1) this.totals.calls += 1;
    const call = this.calls.get(id) ?? this.unknownCall(id, made, record);
    const one = this.open("tool", `${call.name}${number > 1 ? ` (attempt ${number})` : ""}`, record, { depth: 1, ...more });
    const attempt = { number, seq: record.seq, from: record.ts, span: one, state: "running", effects: [] };
    call.attempts.push(attempt);
    return attempt;
  }

  /** A call of the loop, which names it; or one of a message that cannot be read. */
  unknownCall(id, made, record) {
    const message = made ? null : this.unread.findLast(({ kind }) => ["assistant_completed", "run_started", "unreadable"].includes(kind));
    const part = { type: "tool_call", id, name: made?.name ?? (message ? `call ${id}` : id), raw_arguments: made?.arguments ?? "" };
    const call = this.learnCall(part, record);
    call.unknown = hiddenBy(message);
    const last = this.items.at(-1);
    if (message && last?.of === message) last.calls.push(call);
    else this.items.push({ type: "message", seq: record.seq, ts: record.ts, role: "loop", of: message, who: message && (message.unreadable ? "Calls of a damaged record" : "Calls of a redacted message"), message: { role: "loop", content: [part] }, calls: [call] });
    return call;
  }

  /** The attempt that a record is about. The record proves that the call ran, if the one that began it cannot be read. */
  attempt({ call_id: id, attempt: number }, record) {
    const known = this.calls.get(id)?.attempts.findLast((attempt) => attempt.number === number);
    return known ?? (this.unread.length ? this.begin({ call_id: id, attempt: number }, record, { isUnclear: true }) : null);
  }

  /** Ends an attempt. One whose beginning cannot be read began as long ago as its record says that it took. */
  endAttempt({ span: one }, { duration_ms: duration = null }, record, state) {
    if (one.isUnclear && one.to === null && duration !== null) Object.assign(one, { isUnclear: false, from: Math.max(this.first.ts, Math.min(one.from, record.ts - duration)) });
    this.close(one, record, state);
    one.duration = duration;
  }

  on_tool_completed(fact, record) {
    const attempt = this.attempt(fact, record);
    if (!attempt) return;
    const failed = isBranch(fact.outcome) && "error" in fact.outcome;
    const asks = isBranch(fact.outcome) && "ask_user" in fact.outcome;
    const sleeps = isBranch(fact.outcome) && "later" in fact.outcome;
    this.endAttempt(attempt, fact, record, failed ? "failed" : "ok");
    Object.assign(attempt, { state: failed ? "failed" : asks ? "asks" : sleeps ? "sleeps" : "ok", doneSeq: record.seq, content: fact.content, outcome: fact.outcome, duration: fact.duration_ms ?? null });
  }

  on_tool_failed(fact, record) {
    const attempt = this.attempt(fact, record);
    if (!attempt) return;
    this.endAttempt(attempt, fact, record, "failed");
    Object.assign(attempt, { state: "failed", doneSeq: record.seq, content: fact.content, error: errorText(fact.error), resolution: fact.resolution, duration: fact.duration_ms ?? null });
  }

  on_side_effect(fact, record) {
    const attempt = fact.inside ? this.attempt(fact.inside, record) : null;
    const failed = "failed" in (fact.effect ?? {});
    const run = subRun("side_effect", fact);
    const call = attempt ? this.calls.get(fact.inside.call_id) : null;
    if (call && run) call.run = run;
    if (run && attempt?.agent?.run === run) this.close(attempt.agent, record);
    else {
      const one = { kind: "effect", label: fact.name, from: record.ts, to: record.ts, seq: record.seq, last: record.seq, depth: fact.inside ? 2 : 1, state: failed ? "failed" : "ok" };
      // The work of an agent has a beginning and an end.
      if (run && attempt) attempt.agent = Object.assign(one, { kind: "agent", label: `Agent ${call.name}`, run, ...(fact.name === "sub_run_started" ? { to: null, state: "open" } : {}) });
      // The rows of a call stand under it.
      const rows = attempt ? attempt.rows = (attempt.rows ?? 0) + 1 : 0;
      this.spans.splice(attempt ? this.spans.indexOf(attempt.span) + rows : this.spans.length, 0, one);
    }
    // Durations are whole milliseconds: what happened within a call does not begin before it.
    if (attempt) attempt.span.within ??= record.ts;
    if (attempt) attempt.effects.push({ seq: record.seq, name: fact.name, effect: fact.effect });
    else if (fact.name === "summary_started") this.note(record, "muted", "The model is asked for a summary of what is left out");
    else this.note(record, "muted", `Side effect: ${fact.name}`, failed ? fact.effect.failed : jsonText(fact.effect?.done ?? null));
  }

  on_context_truncated(fact, record) {
    this.usage(fact.summary?.usage);
    this.note(record, "muted", `Context shortened (${fact.strategy})`, `${fact.messages_before} → ${fact.messages_after} messages, ${fact.tokens_before} → ${fact.tokens_after} tokens`);
  }

  on_budget_exceeded(fact, record) {
    this.partial(fact, record);
    this.note(record, "bad", "Budget exceeded", breachText(fact.breach));
  }

  partial(fact, record) {
    if (!fact.partial) return;
    this.usage(fact.partial.usage);
    if (partsOf(fact.partial.message).length) this.say(record, fact.partial.message, { response: fact.partial, cut: true, calls: callsOf(fact.partial.message).map((part) => this.learnCall(part, record)) });
  }

  on_finalize_started(fact, record) {
    this.note(record, "muted", "One more call gives the answer its form", fact.conversation?.reason ?? "");
    if (fact.nudge) this.adopt(record, fact.nudge);
  }

  on_finalize_failed(fact, record) {
    this.note(record, "bad", "The final call could not be made", errorText(fact.error));
  }

  on_suspended(fact, record, before) {
    this.status = "suspended";
    this.end = { ...fact, seq: record.seq };
    this.settle(record);
    if (before && fact.reason === "uncertain_tools") this.lose(before);
    this.close(this.turn?.span, record);
    this.turn = null;
    this.waiting = this.open("wait", `Waits: ${reasonWords(fact.reason)}`, record);
    this.note(record, "wait", `Waits: ${reasonWords(fact.reason)}`, endDetail(fact));
  }

  on_completed(fact, record) { this.finish("completed", fact, record); }
  on_failed(fact, record) { this.finish("failed", fact, record); }

  on_cancelled(fact, record) {
    this.partial(fact, record);
    this.finish("cancelled", fact.end, record);
  }

  finish(status, end, record) {
    this.status = status;
    this.end = end && { ...end, seq: record.seq };
    const cut = status === "cancelled" ? "cancelled" : "lost";
    this.settle(record);
    for (const one of this.spans) this.close(one, record, one.kind === "turn" || one.kind === "wait" ? "ok" : cut);
    for (const call of this.calls.values()) call.isOver = true;
    this.turn = null;
    this.waiting = null;
    const words = { completed: "Completed", failed: "Failed", cancelled: "Cancelled" }[status];
    const reason = end?.reason && end.reason !== status ? `: ${reasonWords(end.reason)}` : "";
    this.note(record, status === "completed" ? "ok" : status === "failed" ? "bad" : "muted", `${words}${reason}`, endDetail(end));
  }

  on_sealed(fact, record) {
    // Records without their bodies do not say what they took. The seal does.
    if (this.unread.length && fact.totals) {
      this.isSummed = true;
      const { turns, tool_calls: calls, input_tokens: input, output_tokens: output, cost } = fact.totals;
      Object.assign(this.totals, { turns, calls, input, output, cost, priced: cost > 0 });
    }
    this.note(record, "seal", "Sealed", "The root over all records before it, and what they add up to.", { root: fact.root });
  }

  on_removed(fact, record) {
    this.note(record, "muted", fact.removed?.run ? "A run was pruned" : "Bodies were redacted", `${fact.run_id}, by ${fact.by}: ${fact.reason}`);
  }
}

const REASONS = {
  ask_user: "a question", manual_tool_calls: "results of tools, or an approval", uncertain_tools: "calls whose outcome is unknown", crash_loop: "its process died too often", sleeping: "a time",
  max_turns: "the limit of turns", budget_exceeded: "the budget", completed: "completed", error: "an error", cancelled: "cancelled", deadline: "the deadline",
};

/** Why a run stopped, in words. */
export const reasonWords = (reason) => Object.hasOwn(REASONS, reason) ? REASONS[reason] : String(reason ?? "").replaceAll("_", " ");

/** Why a record has no fact. */
const hiddenBy = (record) => record ? record.unreadable ? "damaged" : "redacted" : null;

/** When a span begins: a tool does when the log has its call, and has ended when its outcome is recorded. */
export const beginOf = ({ from, to, duration, within = Infinity }) => duration != null && to !== null ? Math.min(within, Math.max(from, to - duration)) : from;

const pieces = (cuts) => (cuts ?? []).reduce((sum, cut) => sum + (cut?.pieces?.lens?.length ?? 0), 0);
