// Checks a run as docs/format.md specifies it, with nothing but its bytes and SHA-256.

import { Corrupt, Float, TooNew, decode, demand } from "./cbor.js";

const MAINTENANCE = "log:maintenance";
const MAX_PAYLOAD = 32 * 1024 * 1024;
const encoder = new TextEncoder();

/** Whether this page may use SHA-256: browsers offer it to files, to localhost and over HTTPS. */
export const canVerify = () => Boolean(globalThis.crypto?.subtle);

async function sha256(...pieces) {
  const bytes = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}

const RECORD = encoder.encode("mynah record 1\n");
const BODY = encoder.encode("mynah record body 1\n");
const leafOf = (hash) => sha256(Uint8Array.of(0), hash);
const nodeOf = (left, right) => sha256(Uint8Array.of(1), left, right);

export function hex(bytes) {
  let text = "";
  for (const byte of bytes) text += (byte < 16 ? "0" : "") + byte.toString(16);
  return text;
}

export function unhex(text, name = "a value") {
  demand(typeof text === "string" && /^(?:[0-9a-f]{2})*$/u.test(text), `${name} is not hexadecimal in lower case`);
  const bytes = new Uint8Array(text.length / 2);
  for (let index = 0; index < bytes.length; index += 1) bytes[index] = parseInt(text.substr(2 * index, 2), 16);
  return bytes;
}

// Trees: RFC 9162, section 2.1.
const split = (size) => 2 ** (Math.ceil(Math.log2(size)) - 1);

async function treeRoot(leaves) {
  let level = leaves;
  if (level.length === 0) return sha256();
  // Level by level: an unpaired last node goes up as it is, which is the same tree.
  while (level.length > 1) {
    const pairs = [];
    for (let index = 0; index < level.length; index += 2) {
      pairs.push(index + 1 < level.length ? nodeOf(level[index], level[index + 1]) : level[index]);
    }
    level = await Promise.all(pairs);
  }
  return level[0];
}

async function rootOfInclusion(hash, index, size, proof) {
  demand(Number.isSafeInteger(index) && Number.isSafeInteger(size) && index >= 0 && index < size, "there is no such leaf");
  if (size === 1) return hash;
  demand(proof.length > 0, "the proof is too short");
  const sibling = proof.pop();
  const middle = split(size);
  return index < middle
    ? nodeOf(await rootOfInclusion(hash, index, middle, proof), sibling)
    : nodeOf(sibling, await rootOfInclusion(hash, index - middle, size - middle, proof));
}

/** Checks that a record is a leaf of the tree with this root. */
export async function checkInclusion(fingerprint, { index, size, root, proof }) {
  const path = proof.map((hash) => unhex(hash, "the proof"));
  const found = await rootOfInclusion(await leafOf(unhex(fingerprint)), index, size, path);
  demand(path.length === 0 && hex(found) === root, "the leaf is not proven to be in the tree");
}

// Facts: the members of each kind, with their types. Those with `?` may be missing; those with `+` are missing where they are empty, 0 or false.
const END = "reason:text metadata:json+ duration_ms:count?";
const FACTS = {
  run_started: "thread:map extent:text about:map?",
  resumed: "message:map? tool_results:list+ approved:list+ edited:list+ rejected:list+ given_up:list+ request_id:text? extent:text? about:map? on_uncertain:text? after:text?",
  user_message: "message:map",
  turn_started: "turn:count prompt:hash? input_tokens:count+",
  turn_lost: "turn:count input_tokens:count cost:float? given_up:flag+",
  finalize_started: "conversation:map nudge:map?",
  finalize_failed: "error:map",
  assistant_completed: "response:map plan:any cuts:list+ duration_ms:count? first_token_ms:count?",
  tool_scheduled: "call_id:text attempt:count call:map?",
  tool_completed: "call_id:text attempt:count outcome:map content:text duration_ms:count?",
  tool_failed: "call_id:text attempt:count error:map resolution:any content:text+ duration_ms:count?",
  side_effect: "inside:map? name:text ahead:count+ effect:map",
  context_truncated: "strategy:text tokens_before:count tokens_after:count messages_before:count messages_after:count dropped:count+ cleared:count+ summary:map?",
  budget_exceeded: "breach:map partial:map? cuts:list+",
  suspended: END,
  completed: END,
  failed: END,
  cancelled: "end:map partial:map? cuts:list+",
  sealed: "root:hash totals:map",
  removed: "run_id:text removed:map by:text reason:text",
};
const isMap = (value) => typeof value === "object" && value !== null && Object.getPrototypeOf(value) === null;
const isCount = (value) => (typeof value === "number" && Number.isSafeInteger(value) && value >= 0) || (typeof value === "bigint" && value >= 0n);
const isHash = (value) => typeof value === "string" && /^[0-9a-f]{64}$/u.test(value);
const IS = {
  text: (value) => typeof value === "string",
  json: (value) => typeof value === "string" && value !== "{}" && isJsonMap(value),
  count: isCount,
  float: (value) => value instanceof Float,
  flag: (value) => typeof value === "boolean",
  hash: isHash,
  map: isMap,
  list: Array.isArray,
  any: (value) => typeof value === "string" || isMap(value),
};

function isJsonMap(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}

function membersOf(kind) {
  if (!Object.hasOwn(FACTS, kind)) throw new TooNew(`this version does not know records of kind ${JSON.stringify(kind)}`);
  return FACTS[kind].split(" ").map((member) => /^(\w+):(\w+)([?+]?)$/u.exec(member).slice(1));
}

function checkFact(kind, fact) {
  const members = membersOf(kind);
  for (const name of Object.keys(fact)) {
    if (!members.some(([known]) => known === name)) throw new TooNew(`this version does not know the member ${JSON.stringify(name)} of ${kind}`);
  }
  for (const [name, type, missing] of members) {
    const value = fact[name];
    demand(value !== undefined || missing, `${kind} has no ${name}`);
    if (value === undefined) continue;
    demand(IS[type](value), `${name} of ${kind} is not of its type`);
    demand(missing !== "+" || !(value === 0 || value === "" || value === false || value.length === 0), `${name} of ${kind} is empty, and not left out`);
  }
  demand(!hasNull(fact), `a member of ${kind} is null, and not left out`);
}

const hasNull = (value) => value === null
  || (Array.isArray(value) ? value.some(hasNull) : isMap(value) && Object.values(value).some(hasNull));

const ENVELOPE = { v: isCount, run: IS.text, seq: isCount, prev: isDigest, ts: (value) => typeof value === "bigint" || Number.isSafeInteger(value), kind: IS.text, body: isDigest };

function isDigest(value) {
  return value instanceof Uint8Array && value.length === 32;
}

/** The hash of a record, whether or not it is sound. */
export const hashOf = async (entry) => hex(await sha256(RECORD, unhex(entry.envelope)));

/** The record of an entry `{envelope, salt, payload}` in hexadecimal: its hash, its envelope, and its fact, which is null without a body. */
export async function readRecord(entry) {
  demand(Object.keys(entry).every((key) => ["envelope", "salt", "payload", "fact"].includes(key)), "the record has other members");
  demand(("salt" in entry) === ("payload" in entry), "it has a salt without a payload, or a payload without a salt");
  const bytes = unhex(entry.envelope, "the envelope");
  const hash = await sha256(RECORD, bytes);
  const envelope = decode(bytes);
  if (isMap(envelope) && isCount(envelope.v) && envelope.v > 1) throw new TooNew(`this version does not know version ${envelope.v} of the format`);
  demand(isMap(envelope), "the envelope has other keys");
  const keys = Object.keys(envelope);
  demand(Object.keys(ENVELOPE).every((key) => key === "prev" || keys.includes(key)) && keys.every((key) => key in ENVELOPE), "the envelope has other keys");
  for (const key of keys) demand(ENVELOPE[key](envelope[key]), `${key} in the envelope is not of its type`);
  demand(envelope.v === 1, "there is no such version of the format");
  if (!("payload" in entry)) {
    membersOf(envelope.kind);
    return { hash, envelope, fact: null };
  }
  const [salt, payload] = [unhex(entry.salt, "the salt"), unhex(entry.payload, "the payload")];
  demand(salt.length === 16, "the salt is not 16 bytes long");
  demand(payload.length <= MAX_PAYLOAD, "the payload is too large");
  demand(hex(await sha256(BODY, salt, payload)) === hex(envelope.body), "the body is not the one that was committed to");
  const tagged = decode(payload);
  demand(isMap(tagged) && Object.keys(tagged).join() === envelope.kind, "the payload is of another kind");
  const fact = tagged[envelope.kind];
  demand(isMap(fact), "the payload does not hold the members of a fact");
  checkFact(envelope.kind, fact);
  return { hash, envelope, fact };
}

const COUNTS = ["turns", "tool_calls", "input_tokens", "output_tokens"];
const MAX_COUNT = 2n ** 64n - 1n;

/** Checks the records of a run in their order. */
class Chain {
  constructor(run, gone) {
    Object.assign(this, { run, gone, leaves: [], head: null, last: null, root: null, redacted: 0, cost: 0 });
    this.totals = Object.fromEntries(COUNTS.map((key) => [key, 0n]));
  }

  async check({ hash, envelope, fact }) {
    const { kind } = envelope;
    const seq = this.leaves.length + 1;
    const ended = ["completed", "failed", "cancelled", "sealed"].includes(this.last);
    demand(!ended || (this.last !== "sealed" && kind === "sealed"), "it follows the end, or the seal");
    demand(envelope.run === this.run, "it belongs to another run");
    demand(envelope.seq === seq, "it is not the next record");
    demand((envelope.prev ? hex(envelope.prev) : null) === this.head, BROKEN);
    demand((this.run === MAINTENANCE) === (kind === "removed"), "a tombstone is in another run than that of tombstones, or another record is there");
    demand((seq === 1 && this.run !== MAINTENANCE) === (kind === "run_started"), "the run starts twice, or not with its first record");
    const named = this.gone.get(seq);
    demand(!named || named.hash === hex(hash), "a tombstone names another record in its place");
    if (kind === "sealed") {
      demand(fact, "the seal's body is missing");
      this.root = hex(await treeRoot(this.leaves));
      demand(fact.root === this.root, "the seal's root is another");
      demand(this.isSum(fact.totals), "the seal's totals are others");
    }
    this.head = hex(hash);
    this.last = kind;
    this.leaves.push(await leafOf(hash));
    if (fact) {
      demand(!named, "a tombstone removes its body, which still exists");
      this.count(kind, fact);
    } else {
      demand(named, "its body is missing, and no tombstone explains it");
      this.redacted += 1;
      this.add({ ...named.adds, turns: kind === "turn_started" ? 1 : 0 });
    }
  }

  count(kind, fact) {
    const response = { assistant_completed: fact.response, budget_exceeded: fact.partial, cancelled: fact.partial, context_truncated: fact.summary }[kind];
    const usage = kind === "turn_lost" ? { input_tokens: fact.input_tokens, total_cost: fact.cost } : response?.usage ?? {};
    this.add({
      turns: kind === "turn_started" ? 1 : 0,
      tool_calls: kind === "tool_scheduled" && fact.attempt === 1 ? 1 : 0,
      input_tokens: usage.input_tokens,
      output_tokens: usage.output_tokens,
      cost: usage.total_cost,
    });
  }

  add(adds) {
    for (const key of COUNTS) {
      const sum = this.totals[key] + BigInt(adds[key] ?? 0);
      this.totals[key] = sum > MAX_COUNT ? MAX_COUNT : sum;
    }
    this.cost += adds.cost?.value ?? 0;
  }

  isSum(totals) {
    return Object.keys(totals).length === COUNTS.length + 1
      && COUNTS.every((key) => isCount(totals[key]) && BigInt(totals[key]) === this.totals[key])
      && totals.cost instanceof Float && totals.cost.value === this.cost;
  }
}

const BROKEN = "it does not name the hash of the record before it";

async function readTombstone(entry, run) {
  const { envelope, fact } = await readRecord(entry);
  demand(envelope.run === MAINTENANCE && envelope.kind === "removed" && fact && fact.run_id === run && Array.isArray(fact.removed.bodies), "it is not a tombstone of the run");
  return fact.removed.bodies.map((body) => {
    demand(Array.isArray(body), "a tombstone names no record");
    const [seq, hash, adds, names, ...more] = body;
    demand(isCount(seq) && isHash(hash) && more.length === 0, "a tombstone names no record");
    demand(adds === undefined || (isMap(adds) && [...COUNTS, "cost"].every((key) => key in adds) && Object.keys(adds).length === 5), "a tombstone has other totals");
    demand(names === undefined || isHash(names), "a tombstone has other names");
    return [seq, { hash, adds: adds ?? {} }];
  });
}

/** The lines of a bundle: `{bundle}`, `{tombstone}`…, `{record}`…, `{end}`. */
export function readLines(text) {
  demand(text.endsWith("\n"), "the last line has no end");
  return text.trimEnd().split("\n").map((line, index) => {
    try {
      return JSON.parse(line);
    } catch {
      throw Object.assign(new Corrupt("it is not JSON"), { line: index + 1 });
    }
  });
}

/**
 * Checks a bundle. Resolves to what was found: `status` is `verified`, `in_progress`, `corrupt` or `too_new`; the last two have
 * `what`, and `seq` where a record is to blame.
 */
export async function verifyLines(lines, progress = () => {}) {
  const total = lines.filter((line) => "record" in line).length;
  const gone = new Map();
  let chain = null;
  let seq = 0;
  let stage = "bundle";
  try {
    const header = lines[0]?.bundle;
    demand(header && typeof header.run_id === "string" && lines[0] && Object.keys(lines[0]).length === 1, "it is not a bundle");
    if (header.version > 1) throw new TooNew(`this version does not know version ${header.version} of bundles`);
    demand(header.version === 1, "it is not a bundle");
    const length = encoder.encode(header.run_id).length;
    demand(length >= 1 && length <= 255, "the run's id is empty, or longer than 255 bytes");
    for (const [index, line] of lines.entries()) {
      const [kind, ...more] = Object.keys(line);
      demand(more.length === 0 && !(stage === "end"), "it follows the end");
      if (index === 0) continue;
      if (kind === "tombstone" && chain === null) {
        for (const [place, body] of await readTombstone(line.tombstone, header.run_id)) gone.set(place, body);
        continue;
      }
      chain ??= new Chain(header.run_id, gone);
      if (kind === "record") {
        stage = "record";
        seq = chain.leaves.length + 1;
        await checkBlaming(chain, line.record, lines, index);
        if (seq % 64 === 0 || seq === total) progress(seq, total);
      } else {
        demand(kind === "end" && chain.leaves.length > 0, "it does not belong here");
        [stage, seq] = ["end", 0];
        await checkEnd(line.end, chain);
      }
    }
    [stage, seq] = [stage === "end" ? "end" : "cut off", 0];
    demand(stage === "end", "the bundle ends too early");
  } catch (error) {
    const status = error instanceof TooNew ? "too_new" : "corrupt";
    return { status, what: error.message, seq: error.seq ?? (stage === "record" ? seq : 0), records: total, checked: chain?.leaves.length ?? 0 };
  }
  const end = lines.at(-1).end;
  return {
    status: chain.root ? "verified" : "in_progress",
    records: chain.leaves.length,
    checked: chain.leaves.length,
    redacted: chain.redacted,
    hash: chain.head,
    root: chain.root,
    fingerprint: chain.root ? chain.head : null,
    inclusion: end.inclusion,
  };
}

/** Checks each record by itself and against the one before it. An entry that is null could not be read. Returns how many are intact, those that are not, and the fingerprint if all are and the last is a seal. */
export async function verifyRecords(run, entries) {
  const [wrong, found] = [[], { intact: 0, unread: entries.filter((entry) => entry === null).length }];
  let before = null;
  for (const [place, entry] of entries.entries()) {
    const last = before;
    before = null;
    if (entry === null) continue;
    try {
      const { hash, envelope } = await readRecord(entry);
      before = hex(hash);
      demand(envelope.run === run && envelope.seq === place + 1, "it belongs to another place");
      demand(place > 0 ? last === null || hex(envelope.prev ?? []) === last : !envelope.prev, BROKEN);
      found.intact += 1;
      found.fingerprint = found.intact === entries.length && envelope.kind === "sealed" ? before : null;
    } catch (error) {
      wrong.push({ seq: place + 1, what: error.message });
    }
  }
  return { ...found, wrong };
}

/** Where a link is broken, the record before is to blame if the record after, or the last line, has the hash that this one has. */
async function checkBlaming(chain, entry, lines, index) {
  const record = await readRecord(entry);
  try {
    await chain.check(record);
  } catch (error) {
    if (error.message === BROKEN && chain.leaves.length > 0) {
      const next = lines[index + 1];
      const vouched = "record" in (next ?? {}) ? decode(unhex(next.record.envelope)).prev : next?.end ? unhex(next.end.hash) : null;
      if (vouched && hex(vouched) === hex(record.hash)) {
        throw Object.assign(new Corrupt("its hash is not the one that the record after it names"), { seq: chain.leaves.length });
      }
    }
    throw error;
  }
}

async function checkEnd(end, chain) {
  const fingerprint = chain.root ? chain.head : null;
  const found = { records: chain.leaves.length, hash: chain.head, root: chain.root, fingerprint, redacted: chain.redacted };
  const isSame = Object.entries(found).every(([key, value]) => end[key] === value) && Object.keys(end).length === 6 && "inclusion" in end;
  demand(isSame, "the last line says otherwise than the records");
  demand(!chain.root || chain.gone.size === chain.redacted, "records are missing before the last line");
  demand((chain.root === null) === (end.inclusion === null), "it has a proof without a seal, or a seal without a proof");
  if (chain.root) await checkInclusion(fingerprint, end.inclusion);
}
