// The runs: a live list, filters, and numbers over time. All of its state is in the address.

import { start } from "./actions.js";
import { abilities, get, listen, withQuery } from "./api.js";
import { sparkline } from "./charts.js";
import { announce, compact, count, h, icon, logo, money, plural, say, shortId, span, statusChip, when } from "./dom.js";

const LIMIT = 100;
const RANGES = [["", "any time"], ["1h", "last hour"], ["24h", "last day"], ["7d", "last week"], ["30d", "last 30 days"]];
const HOURS = { "1h": 1, "24h": 24, "7d": 168, "30d": 720 };
const SORTS = { started: (run) => run.started, duration: (run) => run.updated - run.started, turns: (run) => run.totals.turns, tools: (run) => run.totals.tool_calls, tokens: (run) => run.totals.input_tokens + run.totals.output_tokens, cost: (run) => run.totals.cost };

/** The address of a run's page. */
export const runHref = (id, more = {}) => withQuery("/", { run: id, ...more });

export const shownStatus = (run) => run.abandoned ? "abandoned" : run.status;

export async function runsPage(root, query, go) {
  const state = Object.fromEntries(["status", "model", "session", "prefix", "range", "order", "after", "sort", "cost", "seconds"].map((name) => [name, query.get(name) ?? ""]));
  const runs = new Map();
  const picked = new Set();
  let chosen = -1;
  const change = (more) => go({ ...state, after: "", ...more });
  const field = (name, label, input) => {
    input.value = state[name];
    input.addEventListener("change", () => change({ [name]: input.value.trim() }));
    return h("label", { class: "filter" }, h("span", {}, label), input);
  };
  const options = (pairs) => pairs.map(([value, words]) => h("option", { value }, words));
  const search = h("input", { type: "search", placeholder: "id begins with", autocomplete: "off", spellcheck: "false" });
  const filters = h("form", { class: "filters", role: "search", "aria-label": "Filters", onsubmit: (event) => { event.preventDefault(); document.activeElement?.blur(); } },
    field("prefix", "Run", search),
    field("status", "Status", h("select", {}, options([["", "any"], ["running", "Running"], ["suspended", "Waiting"], ["completed", "Completed"], ["failed", "Failed"], ["cancelled", "Cancelled"], ["abandoned", "Abandoned"]]))),
    field("range", "Started", h("select", {}, options(RANGES))), field("model", "Model", h("input", { autocomplete: "off", spellcheck: "false", placeholder: "any" })), field("session", "Session", h("input", { autocomplete: "off", spellcheck: "false", placeholder: "any" })),
    field("cost", "Cost from", h("input", { type: "number", min: "0", step: "any", placeholder: "$" })), field("seconds", "Duration from", h("input", { type: "number", min: "0", step: "any", placeholder: "s" })),
    field("order", "Order", h("select", {}, options([["", "newest first"], ["oldest", "oldest first"]]))),
    Object.entries(state).some(([name, value]) => value && name !== "after" && name !== "sort") ? h("button", { type: "button", onclick: () => go({}) }, "Clear") : null);
  const charts = h("div", { class: "sparks" }, [1, 2, 3, 4].map(() => h("div", { class: "spark skeleton" })));
  const body = h("tbody", {}, Array.from({ length: 8 }, () => h("tr", { class: "loading" }, h("td", { colspan: "11" }, h("div", { class: "skeleton" })))));
  const head = (name, words, numeric = true) => h("th", { scope: "col", class: numeric ? "number" : null, "aria-sort": state.sort === name ? "descending" : null }, name in SORTS ? h("button", { type: "button", class: "plain", title: name === "started" ? "As the log has them" : `Sort the shown runs by ${words.toLowerCase()}`, onclick: () => go({ ...state, sort: state.sort === name || name === "started" ? "" : name }) }, words, state.sort === name ? " ↓" : "") : words);
  const table = h("table", { class: "runs" }, h("caption", { class: "visually-hidden" }, "Runs of the log"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Compare")), head("status", "Status", false), head("run", "Run", false), head("model", "Model", false), head("session", "Session", false), head("started", "Started", false), head("duration", "Duration"), head("turns", "Turns"), head("tools", "Tools"), head("tokens", "Tokens"), head("cost", "Cost"))), body);
  const fresh = h("button", { type: "button", class: "fresh", hidden: true, onclick: () => go(state) });
  const compare = h("button", { type: "button", disabled: true, title: "Choose two runs", onclick: () => { const [one, two] = picked; location.href = withQuery("/", { compare: one, with: two }); } }, "Compare two");
  const pager = h("div", { class: "pager" });
  const notes = h("div", { class: "notices" });
  const begin = h("button", { class: "primary", type: "button", hidden: true }, "Start a run");
  root.replaceChildren(h("div", { class: "page-head" }, h("h1", {}, "Runs"), h("div", { class: "buttons" }, fresh, compare, begin)), charts, filters, notes, h("div", { class: "table-frame", tabindex: "0", role: "group", "aria-label": "Runs" }, table), pager);
  abilities().then(({ actions, agents }) => {
    begin.hidden = !actions || agents.length === 0;
    begin.addEventListener("click", async () => {
      const made = await start(agents);
      if (made) location.href = runHref(made.run_id);
    });
  }).catch(() => {});

  const since = state.range in HOURS ? Math.round(Date.now() - HOURS[state.range] * 3600e3) * 1e6 : null;
  // As text: nanoseconds are more than a number holds exactly.
  const sinceText = since === null ? null : `${Math.round(since / 1e6)}000000`;
  const wanted = { status: state.status, model: state.model, session: state.session, prefix: state.prefix, since: sinceText };
  const isShown = (run) => run.totals.cost >= Number(state.cost || 0) && (run.updated - run.started) / 1e9 >= Number(state.seconds || 0);

  const row = (run) => {
    const { totals } = run;
    const pick = h("input", { type: "checkbox", "aria-label": `Choose run ${run.run_id} to compare`, checked: picked.has(run.run_id), onchange: () => { if (pick.checked) picked.add(run.run_id); else picked.delete(run.run_id); compare.disabled = picked.size !== 2; } });
    return h("tr", { "data-run": run.run_id }, h("td", { class: "pick" }, pick), h("td", {}, statusChip(shownStatus(run))), h("td", { class: "run-id" }, h("a", { href: runHref(run.run_id), title: run.run_id }, h("code", {}, say(shortId(run.run_id))))),
      h("td", { class: "clip", title: run.model }, say(run.model ?? "–")), h("td", { class: "clip" }, run.session_id ? h("a", { href: withQuery("/", { session: run.session_id }), title: run.session_id }, say(shortId(run.session_id))) : h("span", { class: "muted" }, "–")),
      h("td", {}, when(run.started / 1e6)), h("td", { class: "number" }, span((run.updated - run.started) / 1e6)), h("td", { class: "number" }, count(totals.turns)), h("td", { class: "number" }, count(totals.tool_calls)),
      h("td", { class: "number", title: `${count(totals.input_tokens)} in, ${count(totals.output_tokens)} out` }, compact(totals.input_tokens + totals.output_tokens)), h("td", { class: "number", title: `$${totals.cost}` }, totals.cost ? money(totals.cost) : "–"));
  };
  const draw = () => {
    let shown = [...runs.values()].filter(isShown);
    if (state.sort in SORTS) shown = shown.sort((one, two) => SORTS[state.sort](two) - SORTS[state.sort](one));
    body.replaceChildren(...shown.map(row));
    return shown.length;
  };

  const page = await get("/v1/runs", { ...wanted, order: state.order, limit: LIMIT, after: state.after });
  for (const run of page.runs) runs.set(run.run_id, run);
  const shown = draw();
  notes.replaceChildren(...page.damaged.map(({ run_id, what }) => h("p", { class: "banner bad" }, icon("cross"), h("span", {}, "The index cannot describe run ", h("a", { href: runHref(run_id) }, say(run_id)), ": ", say(what)))));
  pager.replaceChildren(h("span", { class: "muted" }, shown < runs.size ? `${count(shown)} of ${plural(runs.size, "loaded run")}` : plural(shown, "run"), page.next === null && !state.after ? "" : state.after ? " on this page" : " on the first page"),
    state.after ? h("a", { class: "button", href: withQuery("/", { ...state, after: "" }) }, "First page") : null, page.next === null ? null : h("a", { class: "button", rel: "next", href: withQuery("/", { ...state, after: page.next }) }, "Next page"));
  if (runs.size === 0) table.parentElement.replaceChildren(emptyState(Object.values(wanted).some(Boolean)));

  const drawCharts = () => get("/v1/stats", { ...wanted, since: sinceText, buckets: 48 }).then(({ buckets, complete }) => {
    charts.replaceChildren(sparkline({ title: "Runs", buckets, value: (one) => one.runs, format: count }), sparkline({ title: "Tokens", buckets, value: (one) => one.input_tokens + one.output_tokens, format: compact, tone: "tool" }),
      sparkline({ title: "Cost", buckets, value: (one) => one.cost, format: money, tone: "effect" }), sparkline({ title: "Failed", buckets, value: (one) => one.failed, format: count, tone: "crash" }));
    charts.title = complete ? "" : "of the newest 20,000 runs";
  }).catch(() => charts.replaceChildren());
  drawCharts();

  let missed = 0;
  let drawn = Date.now();
  const close = listen("/v1/changes", {
    reset: () => go(state),
    message: ({ data }) => {
      const { run } = JSON.parse(data);
      const known = runs.has(run.run_id);
      const fits = (!state.status || shownStatus(run) === state.status || (state.status === "running" && run.status === "running")) && (!state.model || run.model === state.model) && (!state.session || run.session_id === state.session) && run.run_id.startsWith(state.prefix) && (since === null || run.started >= since);
      if (!known && !fits) return;
      if (!known && (state.after || state.order === "oldest")) {
        missed += 1;
        fresh.hidden = false;
        fresh.textContent = plural(missed, "new run");
        return;
      }
      if (known) {
        runs.set(run.run_id, run);
        const old = body.querySelector(`tr[data-run="${CSS.escape(run.run_id)}"]`);
        if (old && !old.contains(document.activeElement)) old.replaceWith(Object.assign(row(run), { className: "changed" }));
        else if (old) for (const [place, cell] of [...row(run).children].entries()) if (!old.children[place].contains(document.activeElement)) old.children[place].replaceWith(cell);
      } else {
        if (!table.isConnected) return go(state);
        const rest = [...runs];
        runs.clear();
        runs.set(run.run_id, run);
        for (const [id, one] of rest) runs.set(id, one);
        if (isShown(run)) body.prepend(Object.assign(row(run), { className: "changed" }));
        announce("A new run");
      }
      if (Date.now() - drawn > 5000) {
        drawn = Date.now();
        drawCharts();
      }
    },
  });

  const key = (event) => {
    const by = { j: 1, k: -1 }[event.key];
    if (by) {
      const links = [...body.querySelectorAll(".run-id a")];
      chosen = Math.min(links.length - 1, Math.max(0, links.indexOf(document.activeElement) >= 0 ? links.indexOf(document.activeElement) + by : chosen + by));
      links[chosen]?.focus();
      return true;
    }
    if (event.key === "/") search.focus();
    if (event.key === "x") document.activeElement?.closest("tr")?.querySelector("input")?.click();
    return event.key === "/" || event.key === "x";
  };
  return { title: "Runs", close, key, keys: [["j / k", "next, previous run"], ["Enter", "open it"], ["x", "choose it to compare"], ["/", "find a run by its id"]] };
}

function emptyState(isFiltered) {
  return isFiltered
    ? h("div", { class: "empty" }, logo(), h("h2", {}, "No run fits these filters"), h("p", {}, h("a", { href: "/" }, "Show all runs")))
    : h("div", { class: "empty" }, logo(), h("h2", {}, "There are no runs yet"), h("p", {}, "Runs that are recorded in this log appear here at once. For example:"), h("pre", { class: "code" }, h("code", {}, "mynah demo --dir demo")), h("p", { class: "muted" }, "or record one with ", h("code", {}, "engine.chat(thread).record(&log)"), "."));
}

