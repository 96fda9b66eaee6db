// The runs: a live list, filters, and numbers over time. All of its state is in the address.

import { start } from "./actions.js";
import { abilities, get, listen, runPath, withQuery } from "./api.js";
import { sparkline } from "./charts.js";
import { announce, compact, count, h, icon, logo, money, plural, say, shortId, span, statusChip, when } from "./dom.js";
import { answersOf, textOf, totalsOf } from "./facts.js";

const LIMIT = 100;
const RANGES = [["", "any time"], ["1h", "last hour"], ["24h", "last 24 h"], ["today", "today"], ["yesterday", "yesterday"], ["7d", "last 7 days"], ["30d", "last 30 days"]];
const HOURS = { "1h": 1, "24h": 24, "7d": 168, "30d": 720 };
const SORTS = { started: (run) => run.started, duration: (run) => run.updated - run.started, turns: (run) => totalsOf(run).turns, tools: (run) => totalsOf(run).tool_calls, tokens: (run) => totalsOf(run).input_tokens + totalsOf(run).output_tokens, cost: (run) => totalsOf(run).cost };

/** The address of a run's page. */
export const runHref = (id, more = {}) => withQuery("/", { run: id, ...more });

export const shownStatus = (run) => run.abandoned ? "abandoned" : run.status;

/** What the log's index answers, and what the server looks for run by run. */
const NAMES = ["text", "status", "model", "session", "agent", "prefix", "range", "order", "after", "sort", "cost", "seconds"];
const MORE = ["prefix", "agent", "model", "session", "cost", "seconds", "order"];
/** So many requests of a search follow each other by themselves; each reads up to 2,000 runs. */
const ROUNDS = 10;

export async function runsPage(root, query, show) {
  // An address with a session alone is that of the session's page.
  const go = (next) => show({ ...next, list: next.session ? "runs" : "" });
  const state = Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));
  const runs = new Map();
  const picked = new Set();
  let chosen = -1;
  let closed = false;
  const rights = abilities().catch(() => ({ actions: false, agents: [] }));
  const change = (more) => go({ ...state, after: "", ...more });
  const { element: filters, search } = filterForm(state, change, go, rights);
  const charts = h("div", { class: "sparks" }, [1, 2, 3, 4].map(() => h("div", { class: "spark skeleton" })));
  const body = h("tbody", {}, Array.from({ length: 8 }, () => h("tr", { class: "loading" }, h("td", { colspan: "10" }, h("div", { class: "skeleton" })))));
  const head = (name, words, numeric = true) => h("th", { scope: "col", class: numeric ? "number" : null, "aria-sort": state.sort === name ? "descending" : null }, name in SORTS ? h("button", { type: "button", class: "plain", title: name === "started" ? "In the order of the log" : `Sort the runs of this page by ${words.toLowerCase()}`, onclick: () => go({ ...state, sort: state.sort === name || name === "started" ? "" : name }) }, words, state.sort === name ? " ↓" : "") : words);
  const table = h("table", { class: "runs" }, h("caption", { class: "visually-hidden" }, "Runs of the log"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Compare")), head("run", "Run", false), head("status", "Status", false), head("model", "Model", false), head("started", "Started", false), head("duration", "Duration"), head("turns", "Turns"), head("tools", "Tools"), head("tokens", "Tokens"), head("cost", "Cost"))), body);
  const fresh = h("button", { type: "button", class: "fresh", hidden: true, onclick: () => go(state) });
  const compare = h("button", { type: "button", hidden: true, onclick: () => { const [one, two] = picked; location.href = withQuery("/", { compare: one, with: two }); } }, "Compare the two");
  const pager = h("div", { class: "pager" });
  const notes = h("div", { class: "notices" });
  const begin = h("button", { class: "primary", type: "button", hidden: true }, "Start a run");
  const frame = h("div", { class: "table-frame", tabindex: "0", role: "group", "aria-label": "Runs" }, table);
  root.replaceChildren(h("div", { class: "page-head" }, h("h1", {}, "Runs"), h("div", { class: "buttons" }, fresh, compare, begin)), charts, filters, notes, frame, pager);
  rights.then(({ actions, agents }) => {
    begin.hidden = !actions || agents.length === 0;
    begin.addEventListener("click", async () => {
      const made = await start(agents);
      if (made) location.href = runHref(made.run_id);
    });
  });

  const [since, before] = bounds(state.range);
  // As text: nanoseconds are more than a number holds exactly.
  const nanoseconds = (ms) => ms === null ? null : `${ms}000000`;
  const indexed = { status: state.status, model: state.model, session: state.session, prefix: state.prefix, since: nanoseconds(since), before: nanoseconds(before) };
  const wanted = { ...indexed, text: state.text, agent: state.agent, min_cost: state.cost, min_seconds: state.seconds };
  const searches = Boolean(state.text || state.agent || state.cost || state.seconds);

  const pick = (run) => {
    const box = h("input", { type: "checkbox", "aria-label": `Choose run ${run.run_id} to compare`, title: "Choose two runs to compare (x)", checked: picked.has(run.run_id), onchange: () => { if (box.checked) picked.add(run.run_id); else picked.delete(run.run_id); compare.hidden = picked.size !== 2; } });
    return box;
  };
  const row = (run) => {
    const totals = totalsOf(run);
    const input = run.input?.trim();
    return h("tr", { "data-run": run.run_id }, h("td", { class: "pick" }, pick(run)),
      h("td", { class: "run-id" }, h("a", { href: runHref(run.run_id, run.match ? { record: run.match.seq } : {}), title: run.run_id }, input ? h("span", { class: "run-input" }, say(input)) : null, h("code", {}, say(shortId(run.run_id)))),
        run.caller ? h("a", { class: "run-caller", href: runHref(run.caller), title: `Agent of run ${run.caller}` }, icon("fork"), "agent of ", say(shortId(run.caller))) : null,
        run.fork_of ? h("a", { class: "run-caller run-fork", href: runHref(run.fork_of), title: run.tried ? `Run ${run.fork_of}, tried with another prompt or model` : `Fork of run ${run.fork_of}` }, icon("fork"), run.tried ? "try of " : "fork of ", say(shortId(run.fork_of))) : null,
        run.session_id ? h("a", { class: "run-session", href: withQuery("/", { session: run.session_id }), title: `Session ${run.session_id}` }, say(shortId(run.session_id))) : null, run.match ? excerpt(run.match) : null),
      h("td", {}, statusChip(shownStatus(run))), h("td", { class: "clip", title: run.model }, say(run.model ?? "–")),
      h("td", {}, when(run.started / 1e6)), h("td", { class: "number" }, span((run.updated - run.started) / 1e6)), h("td", { class: "number" }, count(totals.turns)), h("td", { class: "number" }, count(totals.tool_calls)),
      h("td", { class: "number", title: `${count(totals.input_tokens)} in, ${count(totals.output_tokens)} out` }, compact(totals.input_tokens + totals.output_tokens)), h("td", { class: "number", title: `$${totals.cost}` }, totals.cost ? money(totals.cost) : "–"));
  };
  const draw = () => {
    let shown = [...runs.values()];
    if (state.sort in SORTS) shown = shown.sort((one, two) => SORTS[state.sort](two) - SORTS[state.sort](one));
    body.replaceChildren(...shown.map(row));
  };

  const load = async (after) => {
    const page = await get("/v1/runs", { ...wanted, input: true, order: state.order, limit: LIMIT, after });
    for (const run of page.runs) runs.set(run.run_id, run);
    notes.append(...page.damaged.map(({ run_id, what }) => h("p", { class: "banner bad" }, icon("cross"), h("span", {}, "The index cannot describe run ", h("a", { href: runHref(run_id) }, say(run_id)), ": ", say(what)))));
    return page;
  };
  const drawPager = (next) => pager.replaceChildren(...[h("span", { class: "muted" }, plural(runs.size, searches ? "match" : "run", searches ? "matches" : "runs"), next === null && !state.after ? "" : state.after ? " on this page" : " on the first page"),
    state.after ? h("a", { class: "button", href: withQuery("/", { ...state, list: "runs", after: "" }) }, "First page") : null, next === null ? null : h("a", { class: "button", rel: "next", href: withQuery("/", { ...state, list: "runs", after: next }) }, searches && runs.size < LIMIT ? "Search older runs" : "Next page")].filter(Boolean));

  // What changes while the list is loaded is heard after it.
  const { next: from } = await get("/v1/changes");
  let page = await load(state.after);
  draw();
  // A search looks through a part of the log with each request.
  let searched = page.searched ?? 0;
  for (let round = 1; searches && !closed && page.next !== null && runs.size < LIMIT / 2 && round < ROUNDS; round += 1) {
    pager.replaceChildren(h("span", { class: "muted", role: "status" }, `Searched ${plural(searched, "run")} …`));
    page = await load(page.next);
    searched += page.searched;
    draw();
  }
  drawPager(page.next);
  // The log lists runs by time alone.
  if (state.sort in SORTS && (page.next !== null || state.after)) notes.append(h("p", { class: "banner sorted", role: "status" }, icon("more"), h("span", {}, `Only the ${count(runs.size)} runs of this page are sorted by ${state.sort}.`, { cost: " To find expensive runs in the whole log, set “Cost from” under “More filters”.", duration: " To find long runs in the whole log, set “Duration from” under “More filters”." }[state.sort])));
  if (searches) pager.prepend(h("span", { class: "muted" }, `Searched ${plural(searched, "run")}.`));
  if (runs.size === 0) frame.replaceChildren(emptyState(Object.values(wanted).some(Boolean)));

  const drawCharts = () => get("/v1/stats", { ...indexed, buckets: 48 }).then(({ buckets, complete }) => {
    const range = before === null ? [`${span(Date.now() - buckets[0].from / 1e6)} ago`, "now"] : ["0:00", "24:00"];
    const chart = (title, tone, value, format) => sparkline({ title, buckets, value, format, tone, range });
    charts.replaceChildren(chart("Runs", "model", (one) => one.runs, count), chart("Tokens", "tool", (one) => one.input_tokens + one.output_tokens, compact), chart("Cost", "effect", (one) => one.cost, money), chart("Failed", "crash", (one) => one.failed, count));
    if (!complete) charts.append(h("p", { class: "muted sparks-note" }, "The charts are of the newest 20,000 runs."));
  }).catch(() => charts.replaceChildren());
  // Sums are over what the index can filter, so they would be of other runs than those in the list.
  if (searches) charts.remove();
  else drawCharts();

  /** What the list shows of a run, and the stream does not contain. */
  const complete = async (run) => {
    const { input, fork_of: of, tried, match } = runs.get(run.run_id) ?? {};
    // A run that was just begun may not have its second record yet.
    if (input !== undefined && (!of || tried || run.status !== "running")) return { ...run, input, fork_of: of, tried, match };
    const [first, second] = (await get(runPath(run.run_id, "/records"), { limit: 2 })).records;
    const parent = first?.fact?.about?.parent;
    return { ...run, input: textOf(first?.fact?.thread?.messages?.findLast?.((message) => message.role === "user")), fork_of: parent?.continues ? undefined : parent?.run_id, tried: Boolean(answersOf(second?.fact)), match };
  };
  let missed = 0;
  let drawn = Date.now();
  const hear = async (told) => {
    const known = runs.has(told.run_id);
    const fits = !searches && (!state.status || shownStatus(told) === state.status || (state.status === "running" && told.status === "running")) && (!state.model || told.model === state.model) && (!state.session || told.session_id === state.session) && told.run_id.startsWith(state.prefix) && (since === null || told.started >= since * 1e6) && (before === null || told.started < before * 1e6);
    if (!known && !fits) return;
    if (!known && (state.after || state.order === "oldest")) {
      missed += 1;
      fresh.hidden = false;
      fresh.textContent = plural(missed, "new run");
      return;
    }
    const run = await complete(told).catch(() => told);
    if (runs.has(run.run_id)) {
      runs.set(run.run_id, run);
      const old = body.querySelector(`tr[data-run="${CSS.escape(run.run_id)}"]`);
      if (old && !old.contains(document.activeElement)) old.replaceWith(Object.assign(row(run), { className: "changed" }));
      else if (old) for (const [place, cell] of [...row(run).children].entries()) if (!old.children[place].contains(document.activeElement)) old.children[place].replaceWith(cell);
    } else {
      // An empty list has no table yet, and a list that was open for long is made anew.
      if (!table.isConnected || runs.size >= 2 * LIMIT) return go(state);
      const rest = [...runs];
      runs.clear();
      runs.set(run.run_id, run);
      for (const [id, one] of rest) runs.set(id, one);
      if (state.sort in SORTS) draw();
      else body.prepend(Object.assign(row(run), { className: "changed" }));
      drawPager(page.next);
      announce("A new run");
    }
    if (Date.now() - drawn > 5000 && !searches) {
      drawn = Date.now();
      drawCharts();
    }
  };
  let told = Promise.resolve();
  // One after the other, so that an older state of a run never replaces a newer one.
  const stop = listen(withQuery("/v1/changes", { after: from }), { reset: () => go(state), message: ({ data }) => { const { run } = JSON.parse(data); told = told.then(() => closed ? null : hear(run)); } });

  // A lease that ends is no change in the log: the server is asked whether a process still has the run.
  const clock = setInterval(() => {
    const lapsed = [...runs.values()].filter((run) => run.status === "running" && !run.abandoned && (run.held_until ?? 0) / 1e6 < Date.now());
    for (const { run_id: id } of lapsed.slice(0, 20)) get(runPath(id)).then((run) => { told = told.then(() => closed ? null : hear(run)); }).catch(() => {});
  }, 5000);

  const key = (event) => {
    const by = { j: 1, k: -1 }[event.key];
    if (by) {
      const links = [...body.querySelectorAll(".run-id a:first-child")];
      chosen = Math.min(links.length - 1, Math.max(0, links.indexOf(document.activeElement) >= 0 ? links.indexOf(document.activeElement) + by : chosen + by));
      links[chosen]?.focus();
      return true;
    }
    if (event.key === "/") search.focus();
    if (event.key === "x") document.activeElement?.closest("tr")?.querySelector("input")?.click();
    return event.key === "/" || event.key === "x";
  };
  return { title: "Runs", close: () => { closed = true; clearInterval(clock); stop(); }, key, keys: [["j / k", "next, previous run"], ["Enter", "open it"], ["x", "choose it to compare"], ["/", "search what was said"]] };
}

/** When runs of a range start: from, and before, in milliseconds since 1970. Days are those of the reader's clock. */
function bounds(range) {
  if (range in HOURS) return [Date.now() - HOURS[range] * 3600e3, null];
  const day = (offset) => new Date(new Date().setHours(0, 0, 0, 0)).setDate(new Date().getDate() + offset);
  return { today: [day(0), null], yesterday: [day(-1), day(0)] }[range] ?? [null, null];
}

/** The filters. What is seldom needed is folded, unless it is set. */
function filterForm(state, change, go, rights) {
  const field = (name, label, input) => {
    input.value = state[name];
    input.addEventListener("change", () => change({ [name]: input.value.trim() }));
    return h("label", { class: `filter filter-${name}` }, h("span", {}, label), input);
  };
  const options = (pairs) => pairs.map(([value, words]) => h("option", { value }, words));
  const text = (placeholder) => h("input", { autocomplete: "off", spellcheck: "false", placeholder });
  const number = (placeholder) => h("input", { type: "number", min: "0", step: "any", placeholder });
  const search = h("input", { type: "search", placeholder: "Search what was said", maxlength: "200", autocomplete: "off", spellcheck: "false" });
  const agent = h("select", {}, options([["", "any"]]));
  const agents = field("agent", "Agent", agent);
  agents.hidden = true;
  rights.then(({ agents: all }) => {
    agents.hidden = all.length < 2 && !state.agent;
    agent.append(...all.map(({ name }) => h("option", { value: name }, say(name))));
    agent.value = state.agent;
  });
  const set = MORE.filter((name) => state[name]).length;
  const isAny = set > 0 || ["text", "status", "range"].some((name) => state[name]);
  const element = h("form", { class: "filters", role: "search", "aria-label": "Filters", onsubmit: (event) => { event.preventDefault(); document.activeElement?.blur(); } },
    h("div", { class: "filter-row" }, h("div", { class: "filter filter-text" }, icon("search"), h("label", {}, h("span", { class: "visually-hidden" }, "Search what was said (/)"), search)),
      field("status", "Status", h("select", {}, options([["", "any"], ["running", "Running"], ["suspended", "Waiting"], ["completed", "Completed"], ["failed", "Failed"], ["cancelled", "Cancelled"], ["abandoned", "Abandoned"]]))),
      field("range", "Started", h("select", {}, options(RANGES))), isAny ? h("button", { type: "button", class: "plain clear", onclick: () => go({}) }, "Clear") : null),
    h("details", { class: "more-filters", open: set > 0 }, h("summary", {}, icon("chevron"), "More filters", set ? h("span", { class: "chip" }, String(set)) : null),
      h("div", { class: "filter-row" }, field("prefix", "Run id begins with", text("any")), agents, field("model", "Model", text("any")), field("session", "Session", text("any")), field("cost", "Cost from", number("$")), field("seconds", "Duration from", number("seconds")),
        field("order", "Order", h("select", {}, options([["", "newest first"], ["oldest", "oldest first"]]))))));
  search.value = state.text;
  search.addEventListener("change", () => change({ text: search.value.trim() }));
  return { element, search };
}

/** Where the text was found; the run's link leads there. */
function excerpt({ seq, before, text, after }) {
  return h("span", { class: "excerpt" }, say(`${before.replace(/\s+/gu, " ").trimStart()}`), h("mark", {}, say(text)), say(after.replace(/\s+/gu, " ").trimEnd()), h("span", { class: "muted" }, ` #${seq}`));
}

function emptyState(isFiltered) {
  return isFiltered
    ? h("div", { class: "empty" }, logo(), h("h2", {}, "No run fits these filters"), h("p", {}, h("a", { href: "/" }, "Show all runs")))
    : h("div", { class: "empty" }, logo(), h("h2", {}, "There are no runs yet"), h("p", {}, "Runs that are recorded in this log appear here at once, from ", h("code", {}, "mynah run agent.toml"), " or from a program with ", h("code", {}, "engine.chat(thread).record(&log)"), "."), h("p", { class: "muted" }, "To see how runs look, inspect the log of ", h("code", {}, "mynah demo --dir demo"), "."));
}

