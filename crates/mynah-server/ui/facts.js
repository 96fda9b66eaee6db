// Records as the views read them: one form for those of a bundle, which are bytes, and those of the API, which are JSON.

import { Float, decode } from "./cbor.js";
import { brief } from "./dom.js";
import { Exact, isBranch, jsonText, parseJson } from "./exact.js";
import { hex, unhex } from "./verify.js";

// Members that hold free-form JSON, which payloads keep as text.
const FREE = new Set(["schema", "metadata", "params", "options", "context", "tool_usage", "extra", "data", "done", "replaced", "ok", "opts", "event", "halt"]);

/** What people read: free-form JSON nested, floats as numbers, bytes in hexadecimal. */
function plain(value, key = "", within = null) {
  // As JSON has it: a float is not written as an integer.
  if (value instanceof Float) return Number.isInteger(value.value) && Math.abs(value.value) < 1e16 ? new Exact(`${value.value}.0`) : value.value;
  if (typeof value === "bigint") return new Exact(String(value));
  if (value instanceof Uint8Array) return hex(value);
  if (Array.isArray(value)) return value.map((item) => plain(item, key));
  if (typeof value === "string") {
    const isFree = FREE.has(key) || (key === "arguments" && within && "raw_arguments" in within) || (["error", "result"].includes(key) && within && ("transient" in within || Object.keys(within).length === 1));
    return isFree ? parsed(value) : value;
  }
  if (value === null || typeof value !== "object") return value;
  // A record of the world, not an object: a key may have any name.
  const members = Object.create(null);
  for (const [name, item] of Object.entries(value)) members[name] = plain(item, name, value);
  return members;
}

/** The value of a JSON text, or the text where it is none. */
export function parsed(text) {
  try {
    return parseJson(text);
  } catch {
    return text;
  }
}

/** A record of a bundle, shown whatever it holds: checking it is another matter. */
export function fromEntry(entry, place) {
  const record = { seq: place, kind: "unreadable", ts: null, hash: null, prev: null, fact: null, redacted: !("payload" in entry), raw: entry };
  try {
    const envelope = decode(unhex(entry.envelope, "the envelope"));
    Object.assign(record, { kind: String(envelope.kind), ts: Number(envelope.ts) / 1e6, ns: String(envelope.ts), prev: envelope.prev ? hex(envelope.prev) : null });
    if (!record.redacted) {
      const tagged = decode(unhex(entry.payload, "the payload"));
      record.fact = plain(Object.values(tagged)[0]);
    }
  } catch (error) {
    record.unreadable = error.message;
  }
  return record;
}

/** A record of the API. One that the log cannot read has a place, and nothing else. */
export function fromApi(record) {
  const { kind: _, ...fact } = record.fact ?? {};
  const { seq, hash, prev, unreadable } = record;
  return { seq, kind: record.kind ?? "unreadable", ts: record.ts === null ? null : Number(record.ts) / 1e6, ns: String(record.ts), hash, prev, fact: record.fact ? fact : null, redacted: !record.fact && !unreadable, unreadable, raw: null };
}

// What people look for in a fact, and what only the machinery reads.
const SOUGHT = ["reason", "error", "role", "name", "message", "thread", "response", "partial", "end", "breach", "content", "outcome", "effect", "call", "finish_reason", "usage"];
const TECHNICAL = ["about", "extent", "plan", "cuts", "prompt", "behaviour", "request_id"];
const rank = (name) => SOUGHT.includes(name) ? SOUGHT.indexOf(name) : SOUGHT.length + 1 + TECHNICAL.indexOf(name);

/** Whether a member of a fact is folded until a reader opens it. */
export const isTechnical = (name) => TECHNICAL.includes(name);

/** A fact with what people look for first. What models and tools wrote keeps its order. */
export function inReadingOrder(value) {
  if (Array.isArray(value)) return value.map(inReadingOrder);
  if (!isBranch(value)) return value;
  const members = Object.entries(value).sort(([one], [two]) => rank(one) - rank(two));
  return Object.fromEntries(members.map(([name, item]) => [name, FREE.has(name) || name === "arguments" ? item : inReadingOrder(item)]));
}

/** The parts of a message. */
export function partsOf(message) {
  const content = message?.content;
  if (typeof content === "string") return content === "" ? [] : [{ type: "text", text: content }];
  return Array.isArray(content) ? content.filter((part) => part && typeof part === "object") : [];
}

/** The text of a message, without reasoning. */
export function textOf(message) {
  return partsOf(message).map((part) => part.type === "text" || part.type === "refusal" ? part.text : part.type === "image" ? "[image]" : "").filter(Boolean).join("\n");
}

/** The tool calls of a message. */
export const callsOf = (message) => partsOf(message).filter((part) => part.type === "tool_call");

/** What a run used, with the runs of its agents. */
export function totalsOf({ totals, agents }) {
  return agents ? Object.fromEntries(Object.entries(totals).map(([name, value]) => [name, value + (agents[name] ?? 0)])) : totals;
}

const SUB_RUNS = new Set(["sub_run_started", "sub_run"]);

/** The run that a tool started, if a fact of this kind says so. */
export function subRun(kind, fact) {
  const run = kind === "side_effect" && fact?.inside && SUB_RUNS.has(fact.name) ? fact.effect?.done?.run_id : null;
  return typeof run === "string" ? run : null;
}

/** The run whose records answer for the tools from here on; null if the tools run. See `RecordedTools`. */
export function answersOf(fact) {
  const executor = fact?.about?.options?.tool_executor;
  return typeof executor === "string" && executor.startsWith("recorded:") ? executor.slice("recorded:".length) : null;
}

/** The text of an error, of which few members are certain. */
export function errorText(error) {
  if (typeof error === "string") return error;
  if (!error || typeof error !== "object") return "it failed";
  const words = error.message ?? error.metadata?.message ?? error.reason;
  return typeof words === "string" ? words : jsonText(error);
}

/** What an end says beside its reason. */
export function endDetail(end) {
  const metadata = end?.metadata ?? {};
  if (typeof metadata.pending_question === "string") return metadata.pending_question;
  if (metadata.error) return errorText(metadata.error);
  if (metadata.breach) return breachText(metadata.breach);
  return "";
}

export function breachText(breach) {
  return breach && typeof breach === "object" ? `${breach.limit ?? "limit"}: ${breach.actual ?? "?"} of ${breach.cap ?? "?"}` : String(breach ?? "");
}

/** What a record says, in a few words. `nameOf` gives the tool of a call. */
export function summary({ kind, fact, redacted, unreadable }, nameOf = (id) => id) {
  if (unreadable) return `unreadable: ${unreadable}`;
  if (redacted || !fact) return "redacted";
  return brief(words(kind, fact, nameOf));
}

function words(kind, fact, nameOf) {
  switch (kind) {
    case "run_started": return textOf(fact.thread?.messages?.at?.(-1));
    case "resumed": {
      const answered = [...(fact.tool_results ?? []).map(([id, text]) => `[${nameOf(id)}] ${text}`), ...(fact.approved ?? []).map((id) => `[${nameOf(id)}] approved`), ...(fact.edited ?? []).map(([id, text]) => `[${nameOf(id)}] approved with ${typeof text === "string" ? text : jsonText(text)}`),
        ...(fact.rejected ?? []).map(([id, why]) => `[${nameOf(id)}] rejected${why ? `: ${why}` : ""}`), ...(fact.given_up ?? []).map((id) => `[${nameOf(id)}] given up`)];
      return [...answered, fact.message ? textOf(fact.message) : ""].filter(Boolean).join("  ") || (fact.after === "branch" ? ["the branch continues", answersOf(fact) ? `no tool runs: the records of ${answersOf(fact)} answer` : ""].filter(Boolean).join("; ") : "another process continued");
    }
    case "user_message": return textOf(fact.message);
    case "turn_started": return `turn ${fact.turn}${fact.input_tokens ? `, about ${fact.input_tokens} input tokens` : ""}`;
    case "turn_lost": return `turn ${fact.turn}: ${fact.given_up ? "the loop gave it up" : "its answer was lost with its process"}`;
    case "finalize_started": return fact.conversation?.reason ?? "";
    case "finalize_failed": return errorText(fact.error);
    case "assistant_completed": {
      const calls = callsOf(fact.response?.message).map((call) => `→ ${call.name} ${call.raw_arguments ?? ""}`);
      return [textOf(fact.response?.message), ...calls].filter(Boolean).join("  ");
    }
    case "tool_scheduled": return `[${fact.call?.name ?? nameOf(fact.call_id)}]${fact.attempt > 1 ? ` attempt ${fact.attempt}` : ""}`;
    case "tool_completed": return `[${nameOf(fact.call_id)}] ${fact.content}`;
    case "tool_failed": return `[${nameOf(fact.call_id)}] ${errorText(fact.error)}`;
    case "side_effect": return `${fact.inside ? `[${nameOf(fact.inside.call_id)}] ` : ""}${fact.name} ${"failed" in (fact.effect ?? {}) ? `failed: ${fact.effect.failed}` : jsonText(fact.effect?.done ?? null)}`;
    case "context_truncated": return `${fact.strategy}: ${fact.messages_before} → ${fact.messages_after} messages`;
    case "budget_exceeded": return breachText(fact.breach);
    case "suspended": case "completed": case "failed": return [fact.reason, endDetail(fact)].filter(Boolean).join(": ");
    case "cancelled": return [fact.end?.reason, endDetail(fact.end)].filter(Boolean).join(": ");
    case "sealed": return fact.root ?? "";
    case "removed": return `${fact.removed?.run ? "run" : "bodies of run"} ${fact.run_id} by ${fact.by}: ${fact.reason}`;
    default: return "";
  }
}
