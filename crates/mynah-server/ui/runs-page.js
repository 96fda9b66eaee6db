// The runs: a live list, filters, and numbers over time. All of its state is in the address.

import { start } from "./actions.js";
import { abilities, get, listen, runPath, withQuery } from "./api.js";
import { sparkline } from "./charts.js";
import { STATUS_WORDS, announce, compact, count, h, icon, lasting, logo, money, plural, say, shortId, span, statusChip, when } from "./dom.js";
import { answersOf, textOf, totalsOf } from "./facts.js";

const LIMIT = 100;
const RANGES = [["", "any time"], ["1h", "last hour"], ["24h", "last 24 h"], ["today", "today"], ["yesterday", "yesterday"], ["7d", "last 7 days"], ["30d", "last 30 days"]];
const HOURS = { "1h": 1, "24h": 24, "7d": 168, "30d": 720 };
const STATUSES = ["running", "suspended", "sleeping", "queued", "abandoned", "completed", "failed", "cancelled"];
const SORTS = { duration: (run) => (endOf(run) ?? Date.now()) - run.started / 1e6, turns: (run) => totalsOf(run).turns, tools: (run) => totalsOf(run).tool_calls, tokens: (run) => totalsOf(run).input_tokens + totalsOf(run).output_tokens, cost: (run) => totalsOf(run).cost };

/** The address of a run's page. */
export const runHref = (id, more = {}) => withQuery("/", { run: id, ...more });

/** When a run ended, in milliseconds since 1970; null if it has not. */
export const endOf = (run) => ["completed", "failed", "cancelled"].includes(run.status) ? run.updated / 1e6 : null;

/** The word for a run's status, as `mynah runs` has it. */
const wordOf = (run) => run.status === "suspended" && run.wake_at != null ? "sleeping" : run.abandoned ? run.queue ? "queued" : "abandoned" : run.status;
export const shownStatus = (run) => run.not_started ? "not_started" : wordOf(run);

/** What the log's index answers, and what the server looks for run by run. */
export const NAMES = ["text", "status", "model", "session", "agent", "prefix", "range", "order", "after", "sort", "cost", "seconds"];
const MORE = ["prefix", "agent", "model", "session", "cost", "seconds", "order"];
/** So many requests of a search follow each other by themselves; each reads up to 2,000 runs. */
const ROUNDS = 10;
/** The page before a page, by the cursors of both. */
const pageBefore = new Map();

const stateOf = (query) => Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));

/** The list with its filters. Another address of the list changes the runs in it, and leaves the form as it is. */
export async function runsPage(root, query, show) {
  let state = stateOf(query);
  // An address with a session alone is that of the session's page.
  const go = (next) => show({ ...next, list: next.session ? "runs" : "" });
  const picked = new Set();
  const rights = abilities().catch(() => ({ actions: false, agents: [] }));
  const form = filterForm(state, (values) => {
    state = { ...state, ...values, after: "" };
    go(state);
  }, rights);
  const parts = {
    charts: h("div", { class: "sparks" }, [1, 2, 3, 4].map(() => h("div", { class: "spark skeleton" }))),
    notes: h("div", { class: "notices" }), pager: h("div", { class: "pager" }),
    frame: h("div", { class: "table-frame", tabindex: "0", role: "group", "aria-label": "Runs" }, Array.from({ length: 8 }, () => h("div", { class: "skeleton" }))),
    fresh: h("button", { type: "button", class: "fresh", hidden: true, onclick: () => go(state) }),
  };
  const compare = h("button", { type: "button", hidden: true, onclick: () => { const [one, two] = picked; location.href = withQuery("/", { compare: one, with: two }); } }, "Compare the two");
  const begin = h("button", { class: "primary", type: "button", hidden: true }, "Start a run");
  root.replaceChildren(h("div", { class: "page-head" }, h("h1", {}, "Runs"), h("div", { class: "buttons" }, parts.fresh, compare, begin)), parts.charts, form.element, parts.notes, parts.frame, parts.pager);
  rights.then(({ actions, agents }) => {
    begin.hidden = !actions || agents.length === 0;
    begin.addEventListener("click", async () => {
      const made = await start(agents);
      if (made) location.href = runHref(made.run_id);
    });
  });
  const pick = (id, isPicked) => {
    if (isPicked) picked.add(id);
    else picked.delete(id);
    compare.hidden = picked.size !== 2;
  };
  let list = null;
  const update = async (next) => {
    state = stateOf(next);
    form.show(state);
    list?.close();
    list = new RunList(state, { go, parts, pick, picked, canStart: rights.then(({ actions, agents }) => actions && agents.length > 0) });
    parts.frame.setAttribute("aria-busy", "true");
    try {
      await list.open();
    } catch (error) {
      // A filter that does not fit is marked in the form, which stays.
      if (![400, 404].includes(error.status)) throw error;
      list.refuse(form.refuse(error.message) ? "Change the field that is marked, or clear the filters." : error.message);
    }
    parts.frame.removeAttribute("aria-busy");
  };
  await update(query);
  const key = (event) => {
    if (event.key === "/") form.search.focus();
    if (event.key === "x") document.activeElement?.closest("tr")?.querySelector("input")?.click();
    return list.key(event) || event.key === "/" || event.key === "x";
  };
  return { title: "Runs", update, close: () => list.close(), key, keys: [["j / k", "next, previous run"], ["Enter", "open it"], ["x", "choose it to compare"], ["/", "search what was said"]] };
}

/** The runs that fit some filters, live. */
class RunList {
  constructor(state, { go, parts, pick, picked, canStart }) {
    Object.assign(this, { state, go, parts, pick, picked, canStart, runs: new Map(), chosen: -1, closed: false, stop: () => {}, clock: null, missed: 0, drawn: Date.now(), body: h("tbody", {}) });
    const [since, before] = bounds(state.range);
    // As text: nanoseconds are more than a number holds exactly.
    const nanoseconds = (ms) => ms === null ? null : `${ms}000000`;
    Object.assign(this, { since, before, searches: Boolean(state.text || state.agent || state.cost || state.seconds) });
    this.indexed = { status: state.status, model: state.model, session: state.session, prefix: state.prefix, since: nanoseconds(since), before: nanoseconds(before) };
    this.wanted = { ...this.indexed, text: state.text, agent: state.agent, min_cost: state.cost, min_seconds: state.seconds };
    [this.sort, this.isUp] = state.sort.endsWith(".up") ? [state.sort.slice(0, -3), true] : [state.sort, false];
  }

  close() {
    this.closed = true;
    clearInterval(this.clock);
    this.stop();
  }

  /** Says in place of the runs why there are none. */
  refuse(words) {
    const { charts, frame, pager, notes } = this.parts;
    charts.replaceChildren();
    pager.replaceChildren();
    notes.replaceChildren();
    frame.replaceChildren(h("div", { class: "empty" }, logo(), h("h2", {}, "This filter does not fit"), h("p", {}, say(words))));
  }

  async open() {
    const { parts, runs, state, searches } = this;
    // What changes while the list is loaded is heard after it.
    const { next: from } = await get("/v1/changes");
    const notes = [];
    let page = await this.load(state.after, notes);
    if (this.closed) return;
    parts.fresh.hidden = true;
    parts.notes.replaceChildren(...notes);
    this.table = h("table", { class: "runs" }, h("caption", { class: "visually-hidden" }, "Runs of the log"), this.head(), this.body);
    parts.frame.replaceChildren(this.table);
    this.draw();
    // A search looks through a part of the log with each request.
    let searched = page.searched ?? 0;
    for (let round = 1; searches && page.next !== null && runs.size < LIMIT / 2 && round < ROUNDS; round += 1) {
      parts.pager.replaceChildren(h("span", { class: "muted", role: "status" }, `Searched ${plural(searched, "run")} …`));
      page = await this.load(page.next, notes);
      if (this.closed) return;
      searched += page.searched;
      this.draw();
    }
    parts.notes.replaceChildren(...notes);
    this.next = page.next;
    this.drawPager();
    // The log lists runs by time alone.
    if (this.sort in SORTS && (page.next !== null || state.after)) parts.notes.append(h("p", { class: "banner sorted", role: "status" }, icon("more"), h("span", {}, `Only the ${count(runs.size)} runs of this page are sorted by ${this.sort}.`, { cost: " To find expensive runs in the whole log, set “Cost from” under “More filters”.", duration: " To find long runs in the whole log, set “Duration from” under “More filters”." }[this.sort])));
    if (searches) parts.pager.prepend(h("span", { class: "muted" }, `Searched ${plural(searched, "run")}.`));
    if (runs.size === 0) parts.frame.replaceChildren(emptyState(Object.values(this.wanted).some(Boolean), await this.canStart));
    // Sums are over what the index can filter, so they would be of other runs than those in the list.
    if (searches) parts.charts.replaceChildren(h("p", { class: "muted sparks-note" }, "The charts are hidden: they cannot count the runs of a search."));
    else this.drawCharts();
    let told = Promise.resolve();
    const later = (run) => { told = told.then(() => this.closed ? null : this.hear(run)); };
    // One after the other, so that an older state of a run never replaces a newer one.
    this.stop = listen(withQuery("/v1/changes", { after: from }), { reset: () => this.go(state), message: ({ data }) => later(JSON.parse(data).run) });
    // A lease that ends is no change in the log: the server is asked whether a process still has the run.
    this.clock = setInterval(() => {
      const lapsed = [...runs.values()].filter((run) => run.status === "running" && !run.abandoned && (run.held_until ?? 0) / 1e6 < Date.now());
      for (const { run_id: id } of lapsed.slice(0, 20)) get(runPath(id)).then(later).catch(() => {});
    }, 5000);
  }

  async load(after, notes) {
    const page = await get("/v1/runs", { ...this.wanted, input: true, order: this.state.order, limit: LIMIT, after });
    for (const run of page.runs) this.runs.set(run.run_id, run);
    notes.push(...page.damaged.map(({ run_id, what }) => h("p", { class: "banner bad" }, icon("cross"), h("span", {}, "The index cannot describe run ", h("a", { href: runHref(run_id) }, say(run_id)), ": ", say(what)))));
    return page;
  }

  /** Headers that sort: a first press sorts from the largest on, a second from the smallest, a third not at all. */
  head() {
    const { state, sort, isUp } = this;
    const isOldest = state.order === "oldest";
    const sorted = (words, direction, next, title) => h("button", { type: "button", class: "plain sort", title, onclick: () => this.go({ ...state, ...next }) }, words, h("span", { class: "arrow", "aria-hidden": "true" }, { ascending: "↑", descending: "↓" }[direction] ?? "↕"));
    const cell = (words, { name = "", numeric = false } = {}) => {
      const direction = name === "started" ? sort ? null : isOldest ? "ascending" : "descending" : sort === name && name ? isUp ? "ascending" : "descending" : null;
      const next = name === "started" ? { sort: "", after: "", order: sort || isOldest ? "" : "oldest" } : { sort: direction === null ? name : isUp ? "" : `${name}.up` };
      return h("th", { scope: "col", class: numeric ? "number" : null, "aria-sort": direction }, name ? sorted(words, direction, next, name === "started" ? "Newest or oldest first" : `Sort the runs of this page by ${words.toLowerCase()}`) : words);
    };
    const number = (words) => cell(words, { name: words.toLowerCase(), numeric: true });
    return h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Compare")), cell("Run"), cell("Status"), cell("Model"), cell("Started", { name: "started" }), number("Duration"), number("Turns"), number("Tools"), number("Tokens"), number("Cost")));
  }

  row(run) {
    const totals = totalsOf(run);
    const input = run.input?.trim();
    const box = h("input", { type: "checkbox", "aria-label": `Choose run ${run.run_id} to compare`, title: "Choose two runs to compare (x)", checked: this.picked.has(run.run_id), onchange: () => this.pick(run.run_id, box.checked) });
    return h("tr", { "data-run": run.run_id }, h("td", { class: "pick" }, box),
      h("td", { class: "run-id" }, h("a", { href: runHref(run.run_id, run.match ? { record: run.match.seq } : {}), title: run.run_id }, input ? h("span", { class: "run-input" }, say(input)) : null, h("code", {}, say(shortId(run.run_id)))),
        run.caller ? h("a", { class: "run-caller", href: runHref(run.caller), title: `Agent of run ${run.caller}` }, icon("fork"), "agent of ", say(shortId(run.caller))) : null,
        run.fork_of ? h("a", { class: "run-caller run-fork", href: runHref(run.fork_of), title: run.tried ? `Run ${run.fork_of}, tried with another prompt or model` : `Fork of run ${run.fork_of}` }, icon("fork"), run.tried ? "try of " : "fork of ", say(shortId(run.fork_of))) : null,
        run.session_id ? h("a", { class: "run-session", href: withQuery("/", { session: run.session_id }), title: `Session ${run.session_id}` }, say(shortId(run.session_id))) : null, run.match ? excerpt(run.match) : null),
      // What is damaged is not shown as if all were well.
      h("td", { class: run.damaged ? "is-damaged" : null }, statusChip(shownStatus(run)), run.damaged ? h("span", { class: "chip status-failed" }, icon("cross"), "Damaged") : null), h("td", { class: "clip", title: run.model }, say(run.model ?? "–")),
      h("td", {}, when(run.started / 1e6)), h("td", { class: "number" }, run.not_started ? "–" : lasting(run.started / 1e6, endOf(run))), h("td", { class: "number" }, count(totals.turns)), h("td", { class: "number" }, count(totals.tool_calls)),
      h("td", { class: "number", title: `${count(totals.input_tokens)} in, ${count(totals.output_tokens)} out` }, compact(totals.input_tokens + totals.output_tokens)), h("td", { class: "number", title: `$${totals.cost}` }, totals.cost ? money(totals.cost) : "–"));
  }

  draw() {
    const shown = [...this.runs.values()];
    const value = SORTS[this.sort];
    if (value) shown.sort((one, two) => this.isUp ? value(one) - value(two) : value(two) - value(one));
    this.body.replaceChildren(...shown.map((run) => this.row(run)));
    suggest("models-shown", shown.map(({ model }) => model));
    suggest("sessions-shown", shown.map(({ session_id: id }) => id));
  }

  drawPager() {
    const { runs, state, searches, next } = this;
    const link = (words, after, rel = null) => h("a", { class: "button", rel, href: withQuery("/", { ...state, list: "runs", after }) }, words);
    if (next !== null) pageBefore.set(next, state.after);
    const before = pageBefore.get(state.after);
    this.parts.pager.replaceChildren(...[h("span", { class: "muted" }, plural(runs.size, searches ? "match" : "run", searches ? "matches" : "runs"), next === null && !state.after ? "" : state.after ? " on this page" : " on the first page"),
      state.after && before !== "" ? link("First page", "") : null, state.after && before !== undefined ? link("Previous page", before, "prev") : null, next === null ? null : link(searches && runs.size < LIMIT ? "Search older runs" : "Next page", next, "next")].filter(Boolean));
  }

  drawCharts() {
    const { charts } = this.parts;
    get("/v1/stats", { ...this.indexed, buckets: 48 }).then(({ buckets, complete }) => {
      if (this.closed) return;
      const range = this.before === null ? [`${span(Date.now() - buckets[0].from / 1e6)} ago`, "now"] : ["0:00", "24:00"];
      const chart = (title, tone, value, format) => sparkline({ title, buckets, value, format, tone, range });
      charts.replaceChildren(chart("Runs", "model", (one) => one.runs, count), chart("Tokens", "tool", (one) => one.input_tokens + one.output_tokens, compact), chart("Cost", "effect", (one) => one.cost, money), chart("Failed", "crash", (one) => one.failed, count));
      if (!complete) charts.append(h("p", { class: "muted sparks-note" }, "The charts are of the newest 20,000 runs."));
    }).catch(() => charts.replaceChildren());
  }

  /** What the list shows of a run, and the stream does not contain. */
  async complete(run) {
    const { input, fork_of: of, tried, match, damaged, not_started: isNew, records } = this.runs.get(run.run_id) ?? {};
    const known = { input, fork_of: of, tried, match, damaged, not_started: isNew && records === run.records };
    // A run that was just begun may not have its second record yet.
    if (input !== undefined && (!of || tried || run.status !== "running")) return { ...run, ...known };
    const [first, second] = (await get(runPath(run.run_id, "/records"), { limit: 2 })).records;
    const parent = first?.fact?.about?.parent;
    return { ...run, ...known, input: textOf(first?.fact?.thread?.messages?.findLast?.((message) => message.role === "user")), fork_of: parent?.continues ? undefined : parent?.run_id, tried: Boolean(answersOf(second?.fact)), not_started: Boolean(run.abandoned && parent?.seq === run.records) };
  }

  async hear(told) {
    const { runs, state, body, parts, since, before } = this;
    const known = runs.has(told.run_id);
    const fits = !this.searches && (!state.status || wordOf(told) === state.status) && (!state.model || told.model === state.model) && (!state.session || told.session_id === state.session) && told.run_id.startsWith(state.prefix) && (since === null || told.started >= since * 1e6) && (before === null || told.started < before * 1e6);
    if (!known && !fits) return;
    if (!known && (state.after || state.order === "oldest")) {
      this.missed += 1;
      parts.fresh.hidden = false;
      parts.fresh.textContent = plural(this.missed, "new run");
      return;
    }
    const run = await this.complete(told).catch(() => told);
    if (this.closed) return;
    if (runs.has(run.run_id)) {
      runs.set(run.run_id, run);
      const old = body.querySelector(`tr[data-run="${CSS.escape(run.run_id)}"]`);
      if (old && !old.contains(document.activeElement)) old.replaceWith(Object.assign(this.row(run), { className: "changed" }));
      else if (old) for (const [place, cell] of [...this.row(run).children].entries()) if (!old.children[place].contains(document.activeElement)) old.children[place].replaceWith(cell);
    } else {
      // An empty list has no table yet, and a list that was open for long is made anew.
      if (!this.table.isConnected || runs.size >= 2 * LIMIT) return this.go(state);
      const rest = [...runs];
      runs.clear();
      runs.set(run.run_id, run);
      for (const [id, one] of rest) runs.set(id, one);
      if (this.sort in SORTS) this.draw();
      else body.prepend(Object.assign(this.row(run), { className: "changed" }));
      this.drawPager();
      announce("A new run");
    }
    if (Date.now() - this.drawn > 5000 && !this.searches) {
      this.drawn = Date.now();
      this.drawCharts();
    }
  }

  key(event) {
    const by = { j: 1, k: -1 }[event.key];
    if (!by) return false;
    const links = [...this.body.querySelectorAll(".run-id a:first-child")];
    this.chosen = Math.min(links.length - 1, Math.max(0, links.indexOf(document.activeElement) >= 0 ? links.indexOf(document.activeElement) + by : this.chosen + by));
    links[this.chosen]?.focus();
    return true;
  }
}

/** Fills the list of suggestions of a field. */
function suggest(id, values) {
  document.getElementById(id)?.replaceChildren(...[...new Set(values.filter(Boolean))].map((value) => h("option", { value })));
}

/** When runs of a range start: from, and before, in milliseconds since 1970. Days are those of the reader's clock. */
function bounds(range) {
  if (range in HOURS) return [Date.now() - HOURS[range] * 3600e3, null];
  const day = (offset) => new Date(new Date().setHours(0, 0, 0, 0)).setDate(new Date().getDate() + offset);
  return { today: [day(0), null], yesterday: [day(-1), day(0)] }[range] ?? [null, null];
}

/** The parameters of the API that fields have another name for. */
const FIELDS = { min_cost: "cost", min_seconds: "seconds" };

/** The filters. `changed` gets the value of each. What is seldom needed is folded, unless it is set. */
function filterForm(state, changed, rights) {
  const inputs = {};
  const wrong = h("small", { class: "error", role: "alert" });
  const commit = () => {
    written = null;
    changed(Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value.trim()])));
  };
  let written = null;
  const add = (name, input) => {
    input.addEventListener("input", () => { written = input; });
    input.addEventListener("change", commit);
    return inputs[name] = input;
  };
  const field = (name, label, input) => h("label", { class: `filter filter-${name}` }, h("span", {}, label), add(name, input));
  const select = (pairs) => h("select", {}, pairs.map(([value, words]) => h("option", { value }, words)));
  const text = (placeholder, list = null) => [h("input", { autocomplete: "off", spellcheck: "false", placeholder, list }), list ? h("datalist", { id: list }) : ""];
  const texts = (name, label, placeholder, list) => {
    const [input, values] = text(placeholder, list);
    return [field(name, label, input), values];
  };
  const number = (placeholder) => h("input", { type: "number", min: "0", step: "any", placeholder });
  const search = add("text", h("input", { type: "search", placeholder: "Search what was said", maxlength: "200", autocomplete: "off", spellcheck: "false" }));
  const agent = select([["", "any"]]);
  const agents = field("agent", "Agent", agent);
  const named = (name) => {
    if (name && ![...agent.options].some(({ value }) => value === name)) agent.append(h("option", { value: name }, say(name)));
    agents.hidden = agent.options.length < 3 && !name;
  };
  rights.then(({ agents: all }) => {
    for (const { name } of all) named(name);
    named(agent.value);
  });
  const chip = h("span", { class: "chip" });
  const clear = h("button", { type: "button", class: "plain clear", onclick: () => { search.focus(); changed(Object.fromEntries(Object.keys(inputs).map((name) => [name, ""]))); } }, "Clear");
  const more = h("details", { class: "more-filters", open: MORE.some((name) => state[name]) }, h("summary", {}, icon("chevron"), "More filters", chip),
    h("div", { class: "filter-row" }, texts("prefix", "Run id begins with", "any"), agents, texts("model", "Model", "the whole name", "models-shown"), texts("session", "Session", "the whole id", "sessions-shown"), field("cost", "Cost from", number("$")), field("seconds", "Duration from", number("seconds")),
      field("order", "Order", select([["", "newest first"], ["oldest", "oldest first"]]))));
  const element = h("form", { class: "filters", role: "search", "aria-label": "Filters", novalidate: true, onsubmit: (event) => { event.preventDefault(); commit(); } },
    h("div", { class: "filter-row" }, h("div", { class: "filter filter-text" }, icon("search"), h("label", {}, h("span", { class: "visually-hidden" }, "Search what was said (/)"), search)),
      field("status", "Status", select([["", "any"], ...STATUSES.map((status) => [status, STATUS_WORDS[status]])])), field("range", "Started", select(RANGES)), clear, h("button", { hidden: true })), more);
  return {
    element, search,
    /** Shows the filters of an address. What a person writes now stays. */
    show(now) {
      wrong.remove();
      named(now.agent);
      for (const [name, input] of Object.entries(inputs)) {
        input.removeAttribute("aria-invalid");
        if (input !== written && input.value.trim() !== now[name]) input.value = now[name];
      }
      const set = MORE.filter((name) => now[name]).length;
      chip.textContent = set || "";
      chip.hidden = set === 0;
      more.open ||= set > 0;
      clear.hidden = !Object.keys(inputs).some((name) => now[name]);
    },
    /** Marks the field that a message of the server begins with. Returns whether there is one. */
    refuse(message) {
      const [, name] = /^(\w+)/u.exec(message) ?? [];
      const input = inputs[FIELDS[name] ?? name] ?? (message.startsWith("there is no agent") ? agent : null);
      if (!input) return false;
      input.setAttribute("aria-invalid", "true");
      wrong.replaceChildren(...say(message.replace(/^[^:]*: /u, "")));
      input.after(wrong);
      if (more.contains(input)) more.open = true;
      return true;
    },
  };
}

/** Where the text was found; the run's link leads there. */
function excerpt({ seq, before, text, after }) {
  return h("span", { class: "excerpt" }, say(`${before.replace(/\s+/gu, " ").trimStart()}`), h("mark", {}, say(text)), say(after.replace(/\s+/gu, " ").trimEnd()), h("span", { class: "muted" }, ` #${seq}`));
}

function emptyState(isFiltered, canStart) {
  return isFiltered
    ? h("div", { class: "empty" }, logo(), h("h2", {}, "No run fits these filters"), h("p", {}, h("a", { href: "/" }, "Show all runs")))
    : h("div", { class: "empty" }, logo(), h("h2", {}, "There are no runs yet"), canStart ? h("p", {}, h("strong", {}, "Start a run"), " above begins one with an agent of this server.") : null, h("p", {}, "Runs that are recorded in this log appear here at once, from ", h("code", {}, "mynah run agent.toml"), " or from a program with ", h("code", {}, "engine.chat(thread).record(&log)"), "."), h("p", { class: "muted" }, "To see how runs look, inspect the log of ", h("code", {}, "mynah demo --dir demo"), "."));
}

