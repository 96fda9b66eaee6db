#!/usr/bin/env python3
"""Checks a run that `mynah export` wrote, with none of Mynah's code.

    tools/verify.py run.ndjson                  check an exported run
    tools/verify.py run.ndjson --root HASH      and that the log's tree with this root has its seal
    tools/verify.py --vectors docs/format.md    check the vectors of the format

Everything that is checked here is described in docs/format.md.
Exit codes: 0 it is what it says; 1 it is not; 2 wrong usage, or another kind of file; 3 a newer version of Mynah wrote it.
"""
import hashlib
import json
import math
import re
import struct
import sys

MAINTENANCE = "log:maintenance"
MAX_PAYLOAD, MAX_DEPTH = 32 << 20, 128
MAX_LINE = 2 * MAX_PAYLOAD + (1 << 20)

class Corrupt(Exception):
    """Something is not what it says."""

class TooNew(Exception):
    """Something that only a newer version knows."""

def demand(condition, what):
    if not condition:
        raise Corrupt(what)

# Hashes and trees: RFC 9162, section 2.1.
def sha256(*pieces):
    return hashlib.sha256(b"".join(pieces)).digest()

def leaf(data):
    return sha256(b"\0", data)

def node(left, right):
    return sha256(b"\1", left, right)

def split(size):
    """The largest power of two below a size of two or more."""
    return 1 << (size - 1).bit_length() - 1

def tree_root(leaves):
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256()
    middle = split(len(leaves))
    return node(tree_root(leaves[:middle]), tree_root(leaves[middle:]))
def root_of_inclusion(hash_, index, size, proof):
    """The root that a proof leads to from a leaf. Uses the proof up."""
    demand(0 <= index < size, "there is no such leaf")
    if size == 1:
        return hash_
    demand(proof, "the proof is too short")
    sibling, middle = proof.pop(), split(size)
    if index < middle:
        return node(root_of_inclusion(hash_, index, middle, proof), sibling)
    return node(sibling, root_of_inclusion(hash_, index - middle, size - middle, proof))
def roots_of_consistency(old, new, proof, old_root):
    """The roots of the older and the newer tree that a proof leads to. Uses the proof up."""
    demand(0 < old <= new, "there is no such older tree")
    if old == new and old_root is not None:
        return old_root, old_root
    demand(proof, "the proof is too short")
    sibling = proof.pop()
    if old == new:
        return sibling, sibling
    if old <= (middle := split(new)):
        was, now = roots_of_consistency(old, middle, proof, old_root)
        return was, node(now, sibling)
    was, now = roots_of_consistency(old - middle, new - middle, proof, None)
    return node(sibling, was), node(sibling, now)

# Deterministic CBOR: RFC 8949, section 4.2.1, decoded strictly.
def decode(data):
    value, end = decode_item(data, 0, 0)
    demand(end == len(data), "bytes follow the CBOR value")
    return value
def take(data, at, count):
    demand(at + count <= len(data), "the CBOR value is cut off")
    return data[at : at + count], at + count
def decode_item(data, at, depth):
    demand(depth <= MAX_DEPTH, "the CBOR value is too deep")
    head, at = take(data, at, 1)
    major, argument = head[0] >> 5, head[0] & 31
    if major == 7:
        return decode_simple(data, at, argument)
    if argument >= 24:
        demand(argument <= 27, "a CBOR length is indefinite or reserved")
        width = 1 << (argument - 24)
        piece, at = take(data, at, width)
        argument = int.from_bytes(piece, "big")
        least = 24 if width == 1 else 1 << (4 * width)
        demand(argument >= least, "a CBOR number is longer than it needs to be")
    if major < 2:
        return (argument if major == 0 else -1 - argument), at
    if major < 4:
        piece, at = take(data, at, argument)
        return (piece if major == 2 else piece.decode("utf-8")), at
    if major == 4:
        values = []
        for _ in range(argument):
            value, at = decode_item(data, at, depth + 1)
            values.append(value)
        return values, at
    demand(major == 5, "a CBOR value has a tag")
    members, before = {}, b""
    for _ in range(argument):
        start = at
        key, at = decode_item(data, at, depth + 1)
        demand(isinstance(key, str) and before < data[start:at], "a CBOR key is not text, or not in order")
        before = data[start:at]
        members[key], at = decode_item(data, at, depth + 1)
    return members, at

def decode_simple(data, at, info):
    if info in (20, 21, 22):
        return (False, True, None)[info - 20], at
    demand(info in (25, 26, 27), "a CBOR value of an unknown kind")
    formats = (">e", ">f", ">d")[: info - 24]
    piece, at = take(data, at, 1 << (info - 24))
    value = struct.unpack(formats[-1], piece)[0]
    demand(math.isfinite(value), "a CBOR float is not a number")
    for shorter in formats[:-1]:
        try:
            fits = struct.unpack(shorter, struct.pack(shorter, value))[0] == value
        except OverflowError:
            fits = False
        demand(not fits, "a CBOR float is longer than it needs to be")
    return value, at

# Facts: the members of each kind, with their types. Those with `?` may be missing; those with `+` are missing where they are empty, 0 or false.
END = "reason:text metadata:json+ duration_ms:count?"
FACTS = {
    "run_started": "thread:map extent:text about:map?",
    "resumed": "message:map? tool_results:list+ approved:list+ edited:list+ rejected:list+ given_up:list+ request_id:text? extent:text? about:map? on_uncertain:text? after:text?",
    "user_message": "message:map",
    "turn_started": "turn:count prompt:hash? input_tokens:count+",
    "turn_lost": "turn:count input_tokens:count cost:float? given_up:flag+",
    "finalize_started": "conversation:map nudge:map?",
    "finalize_failed": "error:map",
    "assistant_completed": "response:map plan:any cuts:list+ duration_ms:count? first_token_ms:count?",
    "tool_scheduled": "call_id:text attempt:count call:map?",
    "tool_completed": "call_id:text attempt:count outcome:map content:text duration_ms:count?",
    "tool_failed": "call_id:text attempt:count error:map resolution:any content:text+ duration_ms:count?",
    "side_effect": "inside:map? name:text ahead:count+ effect:map",
    "context_truncated": "strategy:text tokens_before:count tokens_after:count messages_before:count messages_after:count dropped:count+ cleared:count+ summary:map?",
    "budget_exceeded": "breach:map partial:map? cuts:list+",
    "suspended": END,
    "completed": END,
    "failed": END,
    "cancelled": "end:map partial:map? cuts:list+",
    "sealed": "root:hash totals:map",
    "removed": "run_id:text removed:map by:text reason:text",
}
HEX = re.compile("[0-9a-f]{64}")
IS = {
    "text": lambda value: type(value) is str,
    "json": lambda value: type(value) is str and type(json.loads(value)) is dict and value != "{}",
    "count": lambda value: type(value) is int and value >= 0,
    "float": lambda value: type(value) is float,
    "flag": lambda value: type(value) is bool,
    "hash": lambda value: type(value) is str and HEX.fullmatch(value),
    "map": lambda value: type(value) is dict,
    "list": lambda value: type(value) is list,
    "any": lambda value: type(value) in (str, dict),
}

def known(kind):
    if kind not in FACTS:
        raise TooNew(f"this version does not know records of kind {kind!r}")
    return [re.fullmatch(r"(\w+):(\w+)([?+]?)", member).groups() for member in FACTS[kind].split()]

def check_fact(kind, fact):
    members = known(kind)
    if more := set(fact) - {name for name, _, _ in members}:
        raise TooNew(f"this version does not know the member {min(more)!r} of {kind}")
    for name, type_, missing in members:
        demand(name in fact or missing, f"{kind} has no {name}")
        if name in fact:
            demand(IS[type_](fact[name]), f"{name} of {kind} is not of its type")
            demand(missing != "+" or fact[name], f"{name} of {kind} is empty, and not left out")
    demand(not has_null(fact), f"a member of {kind} is null, and not left out")

def has_null(value):
    inner = value.values() if type(value) is dict else value if type(value) is list else ()
    return value is None or any(map(has_null, inner))

# Records and runs.
TYPES = {"v": int, "run": str, "seq": int, "prev": bytes, "ts": int, "kind": str, "body": bytes}

class Record:
    def __init__(self, envelope, salt, payload):
        self.hash = sha256(b"mynah record 1\n", envelope)
        self.envelope = fields = decode(envelope)
        if type(fields) is dict and type(fields.get("v")) is int and fields["v"] > 1:
            raise TooNew(f"this version does not know version {fields['v']} of the format")
        demand(type(fields) is dict and {"prev", *fields} == set(TYPES), "the envelope has other keys")
        for key, value in fields.items():
            demand(type(value) is TYPES[key], f"{key} in the envelope is not of its type")
            demand(type(value) is not bytes or len(value) == 32, "a hash has 32 bytes")
        demand(fields["v"] == 1, "there is no such version of the format")
        self.fact = None
        if payload is None:
            known(fields["kind"])
        else:
            demand(len(payload) <= MAX_PAYLOAD, "the payload is too large")
            committed = sha256(b"mynah record body 1\n", salt, payload)
            demand(committed == fields["body"], "the body is not the one that was committed to")
            fact = decode(payload)
            demand(type(fact) is dict and list(fact) == [fields["kind"]], "the payload is of another kind")
            self.fact = fact[fields["kind"]]
            demand(type(self.fact) is dict, "the payload does not hold the members of a fact")
            check_fact(fields["kind"], self.fact)

class Run:
    """Checks a run record by record. `gone` are the bodies that tombstones name: seq, and hash with what they had added to the totals."""
    def __init__(self, run, gone):
        self.run, self.gone = run, gone
        self.leaves, self.head, self.last, self.root, self.redacted = [], None, None, None, 0
        self.totals = dict(turns=0, tool_calls=0, input_tokens=0, output_tokens=0, cost=0.0)
    def check(self, record):
        fields, kind, seq = record.envelope, record.envelope["kind"], len(self.leaves) + 1
        ended = self.last in ("completed", "failed", "cancelled", "sealed")
        demand(not ended or self.last != kind == "sealed", "it follows the end, or the seal")
        demand(fields["run"] == self.run, "it belongs to another run")
        demand(fields["seq"] == seq, "it is not the next record")
        demand(fields.get("prev") == self.head, "it does not name the hash of the record before it")
        demand((self.run == MAINTENANCE) == (kind == "removed"), "a tombstone is in another run than that of tombstones, or another record is there")
        demand((seq == 1 and self.run != MAINTENANCE) == (kind == "run_started"), "the run starts twice, or not with its first record")
        named, adds = self.gone.get(seq, (None, {}))
        demand(named in (None, record.hash.hex()), "a tombstone names another record in its place")
        if kind == "sealed":
            demand(record.fact, "the seal's body is missing")
            root, totals = tree_root(self.leaves), record.fact["totals"]
            demand(record.fact["root"] == root.hex(), "the seal's root is another")
            demand(tells(totals, self.totals), "the seal's totals are others")
            self.root = root
        self.head, self.last = record.hash, kind
        self.leaves.append(leaf(record.hash))
        if record.fact is not None:
            demand(not named, "a tombstone removes its body, which still exists")
            self.count(kind, record.fact)
        else:
            demand(named, "its body is missing, and no tombstone explains it")
            self.redacted += 1
            self.add({**adds, "turns": kind == "turn_started"})
    def count(self, kind, fact):
        response = {"assistant_completed": "response", "budget_exceeded": "partial", "cancelled": "partial", "context_truncated": "summary"}.get(kind)
        usage = ((fact.get(response) or {}).get("usage") or {}) if response else {}
        if kind == "turn_lost":
            usage = {"input_tokens": fact["input_tokens"], "total_cost": fact.get("cost")}
        self.add(dict(turns=kind == "turn_started", tool_calls=kind == "tool_scheduled" and fact["attempt"] == 1,
                      input_tokens=usage.get("input_tokens"), output_tokens=usage.get("output_tokens"), cost=usage.get("total_cost")))
    def add(self, adds):
        for key in ("turns", "tool_calls", "input_tokens", "output_tokens"):
            self.totals[key] = min(self.totals[key] + (adds.get(key) or 0), 2**64 - 1)
        self.totals["cost"] += adds.get("cost") or 0.0

# Bundles.
def tells(shown, held):
    # As text, which tells 1 from 1.0 and true.
    return json.dumps(shown, sort_keys=True) == json.dumps(held, sort_keys=True)

def strictly(pairs):
    demand(len(dict(pairs)) == len(pairs), "a JSON key stands twice")
    return dict(pairs)

def read_line(line):
    demand(line.endswith(b"\n"), "the line has no end, or is too long")
    # As text, which has no byte order mark.
    value = json.loads(line.decode("utf-8"), object_pairs_hook=strictly, parse_int=lambda text: -0.0 if text == "-0" else int(text))
    demand(type(value) is dict and len(value) == 1, "it is not a line of a bundle")
    return next(iter(value.items()))

def unhex(text):
    demand(re.fullmatch("(?:[0-9a-f]{2})*", text), "a value is not hexadecimal in lower case")
    return bytes.fromhex(text)

def read_record(entry):
    demand(set(entry) <= {"envelope", "salt", "payload", "fact"}, "the record has other members")
    demand(("salt" in entry) == ("payload" in entry), "it has a salt without a payload, or a payload without a salt")
    salt, payload = (unhex(entry[key]) if key in entry else None for key in ("salt", "payload"))
    demand(salt is None or len(salt) == 16, "the salt is not 16 bytes long")
    record = Record(unhex(entry["envelope"]), salt, payload)
    demand("fact" not in entry or tells(entry["fact"], {record.envelope["kind"]: record.fact}), "the fact that is shown is not the one in its bytes")
    return record

def read_tombstone(entry, run):
    record = read_record(entry)
    is_tombstone = record.envelope["run"] == MAINTENANCE and record.envelope["kind"] == "removed" and record.fact is not None
    demand(is_tombstone and record.fact["run_id"] == run, "it is not a tombstone of the run")
    for seq, hash_, *adds in record.fact["removed"]["bodies"]:
        demand(IS["count"](seq) and IS["hash"](hash_) and len(adds) <= 2, "a tombstone names no record")
        demand(not adds or set(adds[0]) == set(Run(run, {}).totals), "a tombstone has other totals")
        demand(all(map(IS["hash"], adds[1:])), "a tombstone has other names")
    return {seq: (hash_, adds[0] if adds else {}) for seq, hash_, *adds in record.fact["removed"]["bodies"]}

def check_inclusion(hash_, index, size, proof, root):
    proof = [unhex(hash_) for hash_ in proof]
    found = root_of_inclusion(hash_, index, size, proof)
    demand(type(index) is type(size) is int and not proof and found.hex() == root, "the leaf is not proven to be in the tree")

def check_end(end, run, trusted):
    root, fingerprint = (run.root.hex(), run.head.hex()) if run.root else (None, None)
    found = dict(records=len(run.leaves), hash=run.head.hex(), root=root, fingerprint=fingerprint, redacted=run.redacted)
    demand(tells(end, {**found, "inclusion": end["inclusion"]}), "the last line says otherwise than the records")
    demand(not root or len(run.gone) == run.redacted, "records are missing before the last line")
    demand((root is None) == (end["inclusion"] is None), "it has a proof without a seal, or a seal without a proof")
    if root:
        check_inclusion(leaf(run.head), **end["inclusion"])
    proven = root and end["inclusion"]["root"]
    demand(trusted in (None, proven), f"{run.run}: nothing proves that the tree with root {trusted} has its seal")

def found_of(run):
    found = f"{run.run}  {'verified' if run.root else 'in progress'}  {len(run.leaves)} records, {run.redacted} redacted"
    return found + (f"  fingerprint {run.head.hex()}" if run.root else "")

def check_bundle(file, trusted=None):
    number, header, run, is_done, gone, before = 0, None, None, False, {}, []
    try:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
            kind, entry = read_line(line)
            if is_done and kind == "bundle":
                # The runs of agents follow the run that started them.
                before.append(found_of(run))
                header, run, is_done, gone = None, None, False, {}
            demand(not is_done, "it follows the end")
            if header is None:
                if kind == "bundle" and type(entry["version"]) is int and entry["version"] > 1:
                    raise TooNew(f"this version does not know version {entry['version']} of bundles")
                demand(kind == "bundle" and tells(entry, {"version": 1, "run_id": entry["run_id"]}), "it is not a bundle")
                demand(1 <= len(entry["run_id"].encode()) <= 255, "the run's id is empty, or longer than 255 bytes")
                header = entry
            elif kind == "tombstone" and run is None:
                gone |= read_tombstone(entry, header["run_id"])
            else:
                run = run or Run(header["run_id"], gone)
                demand(kind == "record" or (kind == "end" and run.leaves), "it does not belong here")
                is_done = kind == "end"
                check_end(entry, run, trusted) if is_done else run.check(read_record(entry))
        number += not is_done
        demand(is_done, "the bundle ends too early")
    except TooNew as error:
        raise TooNew(f"line {number}: {error}") from None
    except (Corrupt, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise Corrupt(f"line {number}: {error}") from None
    found = "\n".join(before + [found_of(run)])
    return found + (f"\nroot {trusted}  verified: the log's tree with this root has {'their seals' if before else 'its seal'}" if trusted else "")

def check_vectors(page):
    """Every `name = value` of the page: runs of numbered records, and two proofs."""
    shown = dict(line.rstrip("\n").split(" = ", 1) for line in page if " = " in line)
    piece = lambda name: bytes.fromhex(shown[name])
    for name, salt, count in (("run-1", b"\7" * 16, 2), ("run-2", b"\7" * 16, 8), (MAINTENANCE, bytes(16), 2)):
        run = Run(name, {})
        for seq in range(1, count + 1):
            record = Record(piece(f"{name} envelope {seq}"), salt, piece(f"{name} payload {seq}"))
            demand(record.hash == piece(f"{name} hash {seq}"), f"{name}: hash {seq} is another")
            run.check(record)
        demand((run.root or tree_root(run.leaves)) == piece(f"{name} root"), f"{name}: the root is another")
    leaves = [leaf(bytes.fromhex(hash_)) for hash_ in shown["fingerprints"].split()]
    check_inclusion(leaves[2], 2, len(leaves), shown["inclusion of 2"].split(), tree_root(leaves).hex())
    proof = [bytes.fromhex(hash_) for hash_ in shown["consistency with 3"].split()]
    roots = roots_of_consistency(3, len(leaves), proof, tree_root(leaves[:3]))
    demand(not proof and roots == (piece("tree of 3"), piece("tree of 5")), "the trees are not consistent")
    return "the vectors are as they should be"

def main(arguments):
    try:
        if arguments[:-1] == ["--vectors"]:
            with open(arguments[1], encoding="utf-8") as page:
                print(check_vectors(page))
        elif arguments and not arguments[0].startswith("-") and (
                len(arguments) == 1 or len(arguments) == 3 and arguments[1] == "--root" and HEX.fullmatch(arguments[2])):
            with open(arguments[0], "rb", buffering=1 << 16) as file:
                if not any(mark in file.peek() for mark in (b'{"bundle":', b'{"record":', b'{"tombstone":')):
                    raise OSError(f"{arguments[0]}: not a file that `mynah export` wrote")
                print(check_bundle(file, *arguments[2:]))
        else:
            asked = arguments in (["-h"], ["--help"])
            print(__doc__.strip(), file=sys.stdout if asked else sys.stderr)
            return 0 if asked else 2
    except (Corrupt, TooNew, KeyError, OSError, ValueError) as error:
        print(f"verify.py: {error}", file=sys.stderr)
        return 2 if isinstance(error, OSError) else 3 if isinstance(error, TooNew) else 1
    return 0

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
