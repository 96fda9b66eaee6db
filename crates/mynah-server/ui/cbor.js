// Deterministic CBOR (RFC 8949, section 4.2.1), decoded strictly: any other encoding of a value is corrupt.

/** Something is not what it says. */
export class Corrupt extends Error {}

/** Something that only a newer version knows. */
export class TooNew extends Error {}

export function demand(condition, what) {
  if (!condition) throw new Corrupt(what);
}

/** A float. Integers are numbers, or BigInts where a number is not exact. */
export class Float {
  constructor(value) { this.value = value; }
}

const MAX_DEPTH = 128;
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The value of some bytes, all of them. Maps have no prototype. */
export function decode(bytes) {
  const reader = { bytes, view: new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), at: 0 };
  const value = item(reader, 0);
  demand(reader.at === bytes.length, "bytes follow the CBOR value");
  return value;
}

function take(reader, length) {
  demand(length <= reader.bytes.length - reader.at, "the CBOR value is cut off");
  reader.at += length;
  return reader.at - length;
}

function item(reader, depth) {
  demand(depth <= MAX_DEPTH, "the CBOR value is too deep");
  const head = reader.bytes[take(reader, 1)];
  const major = head >> 5;
  if (major === 7) return simple(reader, head & 31);
  const argument = number(reader, head & 31);
  if (major === 0) return argument;
  if (major === 1) return typeof argument === "bigint" || argument === Number.MAX_SAFE_INTEGER ? -1n - BigInt(argument) : -1 - argument;
  demand(typeof argument === "number", "the CBOR value is cut off");
  if (major === 2 || major === 3) {
    const from = take(reader, argument);
    const piece = reader.bytes.subarray(from, reader.at);
    return major === 2 ? piece : text(piece);
  }
  if (major === 4) {
    const values = [];
    for (let index = 0; index < argument; index += 1) values.push(item(reader, depth + 1));
    return values;
  }
  demand(major === 5, "a CBOR value has a tag");
  const members = Object.create(null);
  let before = null;
  for (let index = 0; index < argument; index += 1) {
    const from = reader.at;
    const key = item(reader, depth + 1);
    const encoded = reader.bytes.subarray(from, reader.at);
    demand(typeof key === "string" && (before === null || isBefore(before, encoded)), "a CBOR key is not text, or not in order");
    before = encoded;
    members[key] = item(reader, depth + 1);
  }
  return members;
}

function number(reader, info) {
  if (info < 24) return info;
  demand(info <= 27, "a CBOR length is indefinite or reserved");
  const width = 1 << (info - 24);
  const from = take(reader, width);
  let value = 0n;
  for (let index = 0; index < width; index += 1) value = (value << 8n) | BigInt(reader.bytes[from + index]);
  demand(value >= (width === 1 ? 24n : 1n << BigInt(4 * width)), "a CBOR number is longer than it needs to be");
  return value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value;
}

function text(piece) {
  try {
    return utf8.decode(piece);
  } catch {
    throw new Corrupt("a CBOR text is not UTF-8");
  }
}

function isBefore(left, right) {
  for (let index = 0; index < left.length && index < right.length; index += 1) {
    if (left[index] !== right[index]) return left[index] < right[index];
  }
  return left.length < right.length;
}

function simple(reader, info) {
  if (info === 20 || info === 21) return info === 21;
  if (info === 22) return null;
  demand(info >= 25 && info <= 27, "a CBOR value of an unknown kind");
  const from = take(reader, 1 << (info - 24));
  const value = info === 27 ? reader.view.getFloat64(from) : info === 26 ? reader.view.getFloat32(from) : half(reader.view.getUint16(from));
  demand(Number.isFinite(value), "a CBOR float is not a number");
  const fits = (info === 27 && Math.fround(value) === value) || (info >= 26 && fitsHalf(value));
  demand(!fits, "a CBOR float is longer than it needs to be");
  return new Float(value);
}

function half(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size = exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? (fraction ? NaN : Infinity) : (1 + fraction / 1024) * 2 ** (exponent - 15);
  return bits >> 15 ? -size : size;
}

function fitsHalf(value) {
  const size = Math.abs(value);
  if (size > 65504) return false;
  // The distance between two halves of this size.
  const step = size < 2 ** -14 ? 2 ** -24 : 2 ** (Math.floor(Math.log2(size)) - 10);
  return size % step === 0;
}
