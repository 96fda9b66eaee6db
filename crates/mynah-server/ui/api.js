// The HTTP API, as everybody uses it.

import { jsonText, parseJson } from "./exact.js";

/** What the server answered in place of what was asked for. */
export class ApiError extends Error {
  constructor(status, problem) {
    // The code says what kind of error it is.
    super((problem?.detail ?? problem?.title ?? `the server answered ${status}`).replace(/^log error: (?:[a-z_]+: )?/u, ""));
    Object.assign(this, { status, code: problem?.code ?? "", problem });
  }
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin", cache: "no-store", redirect: "error" });
  } catch {
    throw new ApiError(0, { detail: "the server cannot be reached; is it still running?" });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => null);
  throw new ApiError(response.status, problem);
}

/** A path with parameters; those without a value are left out. */
export function withQuery(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value !== undefined && value !== null && value !== "") query.set(name, value);
  return query.size ? `${path}?${query}` : path;
}

/** The path of a run's resource. */
export const runPath = (id, rest = "") => `/v1/runs/${encodeURIComponent(id)}${rest}`;

/** A run's id as the name of a file. */
export const fileName = (id) => id.replace(/[^\w.-]+/gu, "_");

export async function get(path, parameters = {}) {
  const response = await ask(withQuery(path, parameters), { headers: { accept: "application/json" } });
  return response.status === 204 ? null : response.json();
}

/** A page of a run's records. Their numbers keep the text that they were written with. */
export async function recordsOf(id, parameters) {
  const response = await ask(withQuery(runPath(id, "/records"), parameters), { headers: { accept: "application/json" } });
  return parseJson(await response.text());
}

/** The bytes of a run's records as those of a bundle; null for one that the server cannot read. */
export async function rawRecords(id) {
  const entries = [];
  const bytes = (text) => Array.from(atob(text), (letter) => letter.charCodeAt(0).toString(16).padStart(2, "0")).join("");
  for (let next = 1; next !== null;) {
    const page = await get(runPath(id, "/records"), { from: next, limit: 1000, raw: true });
    for (const { raw = null } of page.records) entries.push(raw && Object.fromEntries(Object.entries(raw).map(([name, text]) => [name, bytes(text)])));
    next = page.next;
  }
  return entries;
}

/** The text of a bundle. */
export async function bundleOf(id) {
  return (await ask(runPath(id, "/export"), {})).text();
}

export async function post(path, body) {
  // Pages of other sites cannot send this header: it is what the server knows its own pages by.
  const headers = { accept: "application/json", "content-type": "application/json", "mynah-request": "1" };
  const response = await ask(path, { method: "POST", headers, body: jsonText(body) });
  const text = await response.text();
  return text ? parseJson(text) : null;
}

/** What the server allows: `{actions, agents}`. Asked once. */
let allowed = null;
export const abilities = () => allowed ??= get("/v1/agents").catch((error) => {
  if (error.status === 401) {
    allowed = null;
    throw error;
  }
  return { actions: false, agents: [] };
});

/** Server-sent events. `on` has a listener for each kind of event. Returns what closes the stream. A note says while it is interrupted. */
export function listen(path, on) {
  const source = new EventSource(path);
  const isLost = (lost) => { document.getElementById("connection").hidden = !lost; };
  source.addEventListener("open", () => isLost(false));
  source.addEventListener("error", () => isLost(source.readyState !== EventSource.CLOSED));
  for (const [kind, hear] of Object.entries(on)) source.addEventListener(kind, (event) => hear(event, source));
  return () => {
    source.close();
    isLost(false);
  };
}
