// A session: the conversation over all of its runs.

import { abilities, get, listen, post, recordsOf, runPath, withQuery } from "./api.js";
import { confirmed } from "./actions.js";
import { Conversation } from "./conversation.js";
import { compact, count, h, icon, lasting, money, say, shortId, statusChip, when } from "./dom.js";
import { fromApi, totalsOf } from "./facts.js";
import { endOf, runHref, shownStatus } from "./runs-page.js";
import { Story } from "./story.js";

export async function sessionPage(root, query) {
  const id = query.get("session");
  root.replaceChildren(h("div", { class: "skeleton", style: { height: "240px" } }));
  const [{ next: from }, { runs, unfinished }, rights] = [await get("/v1/changes"), await get(`/v1/sessions/${encodeURIComponent(id)}`), await abilities()];
  const sum = (value) => runs.reduce((total, run) => total + value(run), 0);
  const fact = (name, value) => h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, value));
  // A turn's records are loaded when it comes near the window.
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      fill(target, runs[Number(target.dataset.place)]).catch((error) => target.append(h("p", { class: "error" }, say(error.message))));
    }
  }, { rootMargin: "1200px 0px" });
  const fill = async (target, run) => {
    const story = new Story();
    let next = 1;
    while (next !== null) {
      const page = await recordsOf(run.run_id, { from: next, limit: 1000 });
      for (const record of page.records) story.add(fromApi(record));
      next = page.next;
    }
    // What every turn has is not said again for each.
    story.items = story.items.filter((item) => item.tone !== "seal" && !(item.tone === "ok") && !/^Continues/u.test(item.title ?? ""));
    const view = new Conversation(story, { select: (seq) => { location.href = runHref(run.run_id, { record: seq }); }, hrefOf: runHref });
    target.lastElementChild.replaceWith(view.element);
  };
  const turnOf = (run, place) => h("section", { class: "turn", "data-place": place, "aria-label": `Turn ${place + 1}` },
      h("header", { class: "turn-head" }, h("strong", {}, `Turn ${place + 1}`), h("a", { href: runHref(run.run_id), title: run.run_id }, h("code", {}, say(shortId(run.run_id)))), statusChip(shownStatus(run)), h("span", { class: "muted" }, when(run.started / 1e6), ` · `, lasting(run.started / 1e6, endOf(run)), ` · ${compact(totalsOf(run).input_tokens + totalsOf(run).output_tokens)} tokens${totalsOf(run).cost ? ` · ${money(totalsOf(run).cost)}` : ""}`)),
      h("div", { class: "skeleton", style: { height: "120px" } }));
  const turns = runs.map(turnOf);
  const list = h("div", { class: "turns" }, turns);
  const next = rights.actions && rights.agents.length ? h("button", { class: "primary", type: "button", onclick: async () => {
    const { agent: last, waiting, run_id: turn } = runs.length ? await get(runPath(runs.at(-1).run_id)) : {};
    if (waiting) {
      const asked = waiting.question ? [" Its question: ", h("q", {}, say(waiting.question))] : [];
      const chosen = await confirmed({ title: "The last turn waits", words: ["The next turn can begin when it has ended. Answer or cancel it in its run.", asked], button: "Open its run", act: () => ({ run_id: turn }) });
      if (chosen) location.href = runHref(turn);
      return;
    }
    const agent = h("select", {}, rights.agents.map(({ name }) => h("option", { value: name, selected: name === last }, say(name))));
    const made = await confirmed({ title: "Send a message", words: "It is the next turn of the session, in a run of its own.", fields: [{ name: "agent", label: "Agent", input: agent }, { name: "text", label: "Message", input: h("textarea", { required: true }) }], button: "Send", act: ({ agent: name, text }) => post(`/v1/sessions/${encodeURIComponent(id)}/messages`, { agent: name, text }) });
    if (made) location.href = runHref(made.run_id);
  } }, "Send a message") : null;
  root.replaceChildren(h("div", { class: "narrow" }, h("div", { class: "page-head" }, h("h1", {}, "Session ", h("code", {}, say(id))), h("div", { class: "buttons" }, h("a", { class: "button", href: withQuery("/", { session: id, list: "runs" }) }, "As a list"), next)),
    h("dl", { class: "facts-list" }, fact("Turns", count(runs.length)), runs.length ? fact("Started", when(runs[0].started / 1e6)) : null, fact("Tokens", compact(sum((run) => totalsOf(run).input_tokens + totalsOf(run).output_tokens))), fact("Cost", sum((run) => totalsOf(run).cost) ? money(sum((run) => totalsOf(run).cost)) : "–"), fact("Tool calls", count(sum((run) => totalsOf(run).tool_calls)))),
    unfinished ? h("p", { class: "banner wait" }, icon("pause"), h("span", {}, "A turn has not ended: ", h("a", { href: runHref(unfinished.run_id ?? unfinished) }, say(unfinished.run_id ?? unfinished)))) : "",
    runs.length ? list : h("div", { class: "empty" }, h("h2", {}, "This session has no runs"), h("p", {}, "None of its runs is in this log."))));
  for (const turn of turns) observer.observe(turn);
  // A turn that moves is drawn again, and a new one is added.
  const hear = async ({ run }) => {
    if (run.session_id !== id) return;
    const place = runs.findIndex(({ run_id: known }) => known === run.run_id);
    if (place < 0 && runs.length === 0) return location.reload();
    const at = place < 0 ? runs.length : place;
    runs[at] = run;
    const turn = turnOf(run, at);
    await fill(turn, run);
    if (turns[at]) turns[at].replaceWith(turn);
    else list.append(turn);
    turns[at] = turn;
  };
  let told = Promise.resolve();
  const stop = listen(withQuery("/v1/changes", { after: from }), { reset: () => location.reload(), message: ({ data }) => { told = told.then(() => hear(JSON.parse(data))).catch(() => {}); } });
  return {
    title: `Session ${shortId(id)}`,
    close: () => {
      observer.disconnect();
      stop();
    },
    keys: [["j / k", "next, previous turn"]],
    key: (event) => {
      const by = { j: 1, k: -1 }[event.key];
      if (!by) return false;
      const now = turns.findIndex((turn) => turn.getBoundingClientRect().bottom > 120);
      turns[Math.min(turns.length - 1, Math.max(0, now + by))]?.scrollIntoView({ block: "start" });
      return true;
    },
  };
}
