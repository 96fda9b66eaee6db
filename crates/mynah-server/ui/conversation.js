// The conversation: what was said, which tools were called, and what happened to the run.

import { brief, copyButton, count, exactly, h, icon, money, plural, say, span } from "./dom.js";
import { isBranch, jsonText } from "./exact.js";
import { parsed, partsOf, textOf } from "./facts.js";
import { jsonTree } from "./json.js";
import { markdown } from "./markdown.js";

const CHUNK = 8;
const ESTIMATE = 160;

/** A list of items in chunks. Only chunks near the window are in the document; the others keep their height. */
export class Conversation {
  constructor(story, { select, hrefOf = null, damagedRuns = () => [] }) {
    Object.assign(this, { story, select, hrefOf, damagedRuns, chunks: [], selected: null, wanted: new Set() });
    this.element = h("div", { class: "conversation", role: "feed", "aria-label": "Conversation", tabindex: "-1" });
    this.observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) this.near(this.chunks[Number(target.dataset.chunk)], isIntersecting);
    }, { rootMargin: "1500px 0px" });
    this.refresh();
  }

  /** Takes in what the story has by now. */
  refresh() {
    const wanted = Math.ceil(this.story.items.length / CHUNK);
    const from = Math.max(0, this.chunks.length - 1);
    for (let place = this.chunks.length; place < wanted; place += 1) {
      const element = h("div", { class: "chunk", "data-chunk": place, style: { "min-height": `${ESTIMATE * CHUNK}px` } });
      this.chunks.push({ place, element, shown: false });
      this.element.append(element);
      this.observer.observe(element);
    }
    // What is on screen changes in place: results of tools join the calls that they belong to.
    for (const chunk of this.chunks.slice(Math.max(0, from - 1))) if (chunk.shown) this.fill(chunk);
    if (this.chunks.length && !this.chunks.some((chunk) => chunk.shown)) this.show(this.chunks[0], true);
    this.live?.remove();
    if (this.live) this.element.append(this.live);
    if (this.queued) this.element.append(this.queued);
  }

  /** Messages that were sent and that the run has not read yet. */
  queue(texts) {
    this.queued?.remove();
    this.queued = texts.length ? h("div", { class: "queued" }, texts.map((text) => h("article", { class: "message role-user", "aria-label": "Queued message" },
      h("header", {}, h("h2", { class: "who" }, icon("user"), "User"), h("span", { class: "chip status-suspended" }, icon("clock"), "queued"), h("span", { class: "facts" }, "The run reads it before its next model call.")), markdown(text)))) : null;
    if (this.queued) this.element.append(this.queued);
  }

  /** A jump brings many chunks near the window. Each frame fills one, so that scrolling stays smooth. */
  near(chunk, isNear) {
    if (!isNear) {
      this.wanted.delete(chunk);
      return this.show(chunk, false);
    }
    this.wanted.add(chunk);
    if (this.wanted.size === 1) requestAnimationFrame(() => this.fillNext());
  }

  fillNext() {
    const middle = window.innerHeight / 2;
    const distance = ({ element }) => {
      const { top, bottom } = element.getBoundingClientRect();
      return top > middle ? top - middle : Math.max(0, middle - bottom);
    };
    const [next] = [...this.wanted].sort((a, b) => distance(a) - distance(b));
    if (!next) return;
    this.wanted.delete(next);
    this.show(next, true);
    if (this.wanted.size > 0) requestAnimationFrame(() => this.fillNext());
  }

  show(chunk, shown) {
    if (!chunk || chunk.shown === shown) return;
    if (!shown) {
      // Its height stays, and so does the place of everything below it.
      const height = chunk.element.offsetHeight;
      if (height > 0) chunk.element.style.setProperty("min-height", `${height}px`);
      // Open panels and the focus stay where they are.
      if (chunk.element.contains(document.activeElement) || this.chunks.length < 4) return;
      chunk.element.replaceChildren();
    } else {
      this.fill(chunk);
    }
    chunk.shown = shown;
  }

  /** Items that are already shown as they are now keep their elements, and with them the focus and what a reader opened. */
  fill(chunk) {
    const items = this.story.items.slice(chunk.place * CHUNK, (chunk.place + 1) * CHUNK);
    chunk.element.style.removeProperty("min-height");
    for (const [place, item] of items.entries()) {
      const state = `${stateOf(item)} ${(item.calls ?? []).map((call) => `${shownState(call, this.story)} ${this.damagedRuns().includes(call.run)}`)}`;
      const old = chunk.element.children[place];
      if (old?.dataset.state === state) continue;
      const element = this.item(item);
      element.dataset.state = state;
      if (!old) {
        chunk.element.append(element);
        continue;
      }
      const opened = new Set([...old.querySelectorAll("details[open][data-key]")].map((details) => details.dataset.key));
      old.replaceWith(element);
      for (const details of element.querySelectorAll("details[data-key]")) if (opened.has(details.dataset.key)) details.open = true;
    }
    chunk.shown = true;
    this.mark(chunk.element);
  }

  item(item) {
    const element = item.type === "note" ? this.note(item) : this.message(item);
    element.dataset.seq = item.seq;
    element.tabIndex = 0;
    element.addEventListener("click", (event) => {
      if (event.target.closest("a, button, summary, details, input, textarea") && event.target !== element) return;
      if (String(document.getSelection?.() ?? "") === "") this.select(item.seq);
    });
    element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target === element) this.select(item.seq);
    });
    return element;
  }

  note({ seq, ts, tone, title, detail, run, at, root }) {
    const drawing = { bad: "bolt", wait: "pause", ok: "check", seal: "seal" }[tone] ?? "more";
    const where = run ? this.runLink(run, at) : null;
    return h("article", { class: `note tone-${tone}`, "aria-label": title }, icon(drawing),
      h("div", { class: "note-words" }, h("strong", {}, say(title)), where ? [" ", where] : null, detail ? h("div", { class: "note-detail" }, say(detail)) : null, root ? h("code", { class: "hash" }, root) : null),
      this.place(seq, ts));
  }

  /** Another run, as a link where there are pages of runs. */
  runLink(run, at) {
    const href = this.hrefOf?.(run, at);
    return [href ? h("a", { href }, say(run)) : h("code", {}, say(run)), this.damagedRuns().includes(run) ? h("span", { class: "chip status-failed" }, icon("cross"), "damaged") : null];
  }

  place(seq, ts) {
    return h("span", { class: "place" }, ts === null ? null : h("span", { title: exactly(ts) }, `+${span(ts - this.story.first.ts)}`), h("button", { type: "button", class: "seq", title: `Record ${seq}`, "aria-label": `Select record ${seq}`, onclick: () => this.select(seq) }, `#${seq}`));
  }

  message(item) {
    const { role, message, response, seq, ts } = item;
    const who = item.who ?? { user: "User", assistant: "Assistant", system: "System", tool: "Tool result", loop: "Loop" }[role] ?? role;
    const facts = [];
    if (response) {
      const usage = response.usage ?? {};
      if (response.model) facts.push(String(response.model));
      if (item.duration !== null && item.duration !== undefined) facts.push(`${item.duration ? span(item.duration) : "< 1 ms"}${item.firstToken ? `, first token ${span(item.firstToken)}` : ""}`);
      if (usage.input_tokens != null) facts.push(`${count(usage.input_tokens)} in${usage.cached_input_tokens ? ` (${count(usage.cached_input_tokens)} cached)` : ""}`);
      if (usage.output_tokens != null) facts.push(`${count(usage.output_tokens)} out${usage.reasoning_tokens ? ` (${count(usage.reasoning_tokens)} reasoning)` : ""}`);
      if (usage.total_cost != null) facts.push(money(usage.total_cost));
    }
    if (message?.name) facts.unshift(String(message.name));
    const finish = response?.finish_reason;
    const body = partsOf(message).filter((part) => part.type !== "tool_call").map((part, index) => this.part(part, role, `${seq}.${index}`));
    return h("article", { class: `message role-${role === "loop" ? "assistant" : role}`, "aria-label": `${who}, record ${seq}` },
      h("header", {}, h("h2", { class: "who" }, icon({ assistant: "model", tool: "tool", user: "user" }[role] ?? "gear"), say(who)), facts.length ? h("span", { class: "facts" }, facts.map((fact, index) => [index ? h("span", { "aria-hidden": "true" }, " · ") : null, h("span", {}, say(fact))])) : null,
        finish && !["stop", "tool_calls"].includes(finish) ? h("span", { class: "chip status-failed" }, say(`finish: ${finish}`)) : null,
        item.cut ? h("span", { class: "chip status-cancelled" }, "cut off") : null,
        textOf(message) ? copyButton(() => textOf(message), "Copy text") : null, this.place(seq, ts)),
      body, (item.calls ?? []).map((call) => [this.call(call), this.callError(call), call.run ? h("p", { class: "agent-run" }, icon("fork"), "Run of the agent: ", this.runLink(call.run)) : null]));
  }

  part(part, role, key) {
    if (part.type === "text") return role === "tool" ? h("pre", { class: "result" }, say(part.text)) : markdown(part.text);
    if (part.type === "refusal") return h("div", { class: "refusal" }, h("strong", {}, "Refused: "), say(part.text));
    if (part.type === "reasoning") {
      const words = part.redacted ? "withheld by the provider" : part.text ? plural(part.text.trim().split(/\s+/u).length, "word") : "not readable";
      return h("details", { class: "reasoning", "data-key": key }, h("summary", {}, icon("chevron"), "Reasoning ", h("span", { class: "facts" }, words)), part.text ? h("div", { class: "reasoning-text" }, say(part.text)) : null);
    }
    if (part.type === "image") return picture(part);
    return h("pre", { class: "result" }, say(jsonText(part)));
  }

  call(call) {
    const last = call.attempts.at(-1);
    const state = shownState(call, this.story);
    const isWaiting = !call.isOver && !call.verdict;
    const words = {
      ok: "done", failed: "failed", running: "running", lost: "outcome unknown", given: "result given", redacted: "redacted", damaged: "record damaged", "not-run": "reported as not run", answered: "answered", asks: call.isOver ? "asked a person" : "waits for a person",
      sleeps: call.isOver ? "waited for a time" : "waits for a time", open: call.manual && isWaiting ? "waits for a person" : "not run",
    }[state] ?? state;
    const text = call.unknown ? "" : argumentsOf(call);
    const body = h("div", { class: "call-body" });
    // Most calls are never opened: their content is made when they are.
    const fill = () => {
      if (body.childNodes.length === 0) body.append(...callDetail(call, this.select, this.story));
    };
    return h("details", { class: `call state-${state === "asks" && isWaiting ? "open" : state}`, "data-key": `call ${call.id}`, ontoggle: fill },
      h("summary", {}, icon("chevron"), h("span", { class: "call-name" }, icon("tool"), say(call.name)), h("code", { class: "call-brief" }, say(text.length > 120 ? `${text.slice(0, 119)}…` : text)),
        h("span", { class: `call-state` }, call.verdict && call.verdict !== words ? say(`${call.verdict}${call.edited === undefined ? "" : " with edited arguments"} · `) : null, words, last?.duration != null && ["ok", "failed"].includes(state) ? ` · ${last.duration ? span(last.duration) : "< 1 ms"}` : null, call.attempts.length > 1 ? ` · ${call.attempts.length} attempts` : null)),
      body);
  }

  /** Why a call failed, or what it returned as a failure. */
  callError({ attempts }) {
    const last = attempts.at(-1);
    if (last?.state !== "failed") return null;
    return h("p", { class: "call-error" }, say(brief(last.error ?? last.content, 300)));
  }

  /** Marks what belongs to the selected record. */
  mark(root = this.element) {
    for (const element of root.querySelectorAll("article[data-seq]")) element.classList.toggle("selected", Number(element.dataset.seq) === this.shownSeq);
  }

  /** Selects a record and brings the item that it belongs to on screen. */
  reveal(seq, scroll = true) {
    const place = this.story.items.findLastIndex((item) => item.seq <= seq);
    const exact = place < 0 ? null : this.story.items[place];
    this.shownSeq = exact?.seq ?? null;
    if (exact && scroll) {
      const chunk = this.chunks[Math.floor(place / CHUNK)];
      this.show(chunk, true);
      const element = [...chunk.element.children][place % CHUNK];
      const call = this.story.items[place].calls?.find((one) => one.attempts.some((attempt) => attempt.seq === seq || attempt.doneSeq === seq));
      if (call) for (const details of element?.querySelectorAll("details.call") ?? []) if (details.dataset.key === `call ${call.id}`) details.open = true;
      element?.scrollIntoView({ block: "nearest" });
    }
    this.mark();
  }

  /** Moves the selection by one item; the keys `j` and `k`. */
  step(by) {
    const { items } = this.story;
    const now = this.shownSeq == null ? (by > 0 ? -1 : items.length) : items.findIndex((item) => item.seq === this.shownSeq);
    for (let place = now + by; place >= 0 && place < items.length; place += by) {
      if (items[place].seq !== this.shownSeq) return items[place].seq;
    }
    return null;
  }

  /** What a call does now, until its result is here. */
  progress(id, words) {
    const call = [...this.element.querySelectorAll("details.call.state-running")].find((one) => one.dataset.key === `call ${id}`);
    if (!call) return;
    const shown = call.nextElementSibling;
    const line = shown?.classList.contains("doing") ? shown : h("p", { class: "doing" });
    line.replaceChildren(...say(words));
    if (line !== shown) call.after(line);
  }

  /** The answer that streams now; null when it is recorded. It is drawn once in a frame, however fast it grows. */
  stream(live) {
    const drawn = this.streamed !== undefined;
    this.streamed = live;
    if (live === null) {
      this.live?.remove();
      this.live = null;
    }
    if (!drawn) requestAnimationFrame(() => {
      const { streamed } = this;
      this.streamed = undefined;
      if (streamed) this.drawLive(streamed);
    });
  }

  drawLive({ text, reasoning }) {
    if (!this.live) {
      this.live = h("article", { class: "message role-assistant streaming", "aria-label": "Answer in progress" });
      this.element.append(this.live);
      if (this.queued) this.element.append(this.queued);
    }
    this.live.replaceChildren(h("header", {}, h("h2", { class: "who" }, icon("model"), "Assistant"), h("span", { class: "chip status-running" }, icon("bolt"), "streaming")),
      ...(reasoning ? [h("div", { class: "reasoning-text" }, say(reasoning))] : []), markdown(text));
  }
}

/** What an item shows that may still change: the state of its calls. */
const stateOf = ({ seq, calls = [] }) => `${seq} ${calls.map(({ attempts, verdict, given, edited, isAnswered, isOver, run }) => [attempts.map(({ state, effects, span: one }) => `${state}/${one?.state}/${effects.length}`), verdict, given !== undefined, edited !== undefined, isAnswered, isOver, run].join()).join(" ")}`;

/** The arguments as the model wrote them. */
const writtenOf = ({ part }) => part.raw_arguments ?? jsonText(part.arguments ?? null);

/** The arguments that the call runs with. */
const argumentsOf = (call) => call.edited ?? writtenOf(call);

const isLost = (attempt, isAbandoned = false) => attempt?.state === "running" && (attempt.span?.state === "lost" || isAbandoned);

/** What a call came to. What a person decided after its process died counts, and not what was unknown before. */
function shownState(call, story) {
  const { isAbandoned } = story;
  const last = call.attempts.at(-1);
  const hidden = story.hidden(call);
  if (hidden) return hidden;
  if (!last) return call.given !== undefined ? "ok" : call.verdict === "rejected" ? "rejected" : "open";
  if (isLost(last, isAbandoned)) return call.given !== undefined ? "given" : ["rejected", "given up"].includes(call.verdict) ? "not-run" : "lost";
  return last.state === "asks" && call.isAnswered ? "answered" : last.state;
}

/** The arguments of a call and what it came to, as nodes. `select(seq)` shows a record. */
export function callDetail(call, select, story) {
  const text = argumentsOf(call);
  const hidden = story.hidden(call);
  const written = call.edited === undefined ? null : writtenOf(call);
  return [
    h("div", { class: "call-head" }, h("h3", {}, written === null ? "Arguments" : "Arguments, edited by a person"), call.unknown && written === null ? null : copyButton(text, "Copy arguments"), h("span", { class: "facts" }, "call ", h("code", {}, say(call.id)))),
    call.unknown && written === null ? h("p", { class: "muted" }, `The record with the name of the tool and its arguments is ${call.unknown}.`) : valueView(text),
    written === null ? [] : [h("div", { class: "call-head" }, h("h3", {}, "Arguments that the model gave"), copyButton(written, "Copy arguments")), valueView(written)],
    call.attempts.map((attempt) => attemptDetail(attempt, call, select)),
    hidden ? h("p", { class: "muted" }, call.attempts.length ? `The record with its outcome is ${hidden}.` : `Whether it ran is not known: a record that may say so is ${hidden}.`) : null,
    call.given !== undefined ? [h("div", { class: "call-head" }, h("h3", {}, call.answeredSeq ? "Result, given by a person" : "Result"), copyButton(call.given, "Copy result")), valueView(call.given)] : [],
    call.why ? [h("h3", {}, "Reason"), h("p", {}, say(call.why))] : []].flat(Infinity).filter(Boolean);
}

function attemptDetail(attempt, call, select) {
  const lost = isLost(attempt) && attempt.span?.state === "lost";
  const title = call.attempts.length > 1 || attempt.number > 1 || lost ? `Attempt ${attempt.number}` : attempt.state === "asks" ? "Question" : "Result";
  const isDecided = call.given !== undefined || call.verdict || attempt !== call.attempts.at(-1);
  return [
    h("div", { class: "call-head" }, h("h3", {}, title), attempt.content ? copyButton(attempt.content, "Copy result") : null,
      attempt.duration != null ? h("span", { class: "facts" }, attempt.duration ? span(attempt.duration) : "< 1 ms") : null,
      h("button", { type: "button", class: "seq", "aria-label": `Select record ${attempt.doneSeq ?? attempt.seq}`, onclick: () => select(attempt.doneSeq ?? attempt.seq) }, `#${attempt.doneSeq ?? attempt.seq}`)),
    attempt.effects.map((effect) => h("div", { class: "effect" }, icon("bolt"), "side effect ", h("code", {}, say(effect.name)), " ", h("code", {}, say("failed" in (effect.effect ?? {}) ? `failed: ${effect.effect.failed}` : jsonText(effect.effect?.done ?? null))))),
    lost ? h("p", { class: "lost" }, isDecided ? "The process died while it ran." : "The process died while it ran: its outcome is unknown.") : null,
    attempt.state === "asks" && typeof attempt.outcome.ask_user === "string" ? h("p", { class: "question" }, say(attempt.outcome.ask_user)) : null,
    attempt.error ? h("p", { class: "error" }, say(attempt.error)) : null,
    attempt.content !== undefined && attempt.content !== "" && attempt.state !== "asks" ? valueView(attempt.content) : null,
  ];
}

/** JSON as a tree, anything else as text. */
function valueView(text) {
  const value = typeof text === "string" ? parsed(text) : text;
  if (isBranch(value)) return jsonTree(value);
  return h("pre", { class: "result", tabindex: "0" }, say(typeof value === "string" ? value : text));
}

const SHOWN = /^image\/(?:png|jpeg|gif|webp)$/u;

/** An image in the record is shown. One elsewhere is named: nothing is fetched. */
function picture(part) {
  const { source, mime_type: type } = part.image ?? {};
  const size = part.image?.width ? ` ${part.image.width} × ${part.image.height}` : "";
  if ((source?.type === "base64" || source?.type === "binary") && SHOWN.test(type ?? "") && typeof source.value === "string" && /^[A-Za-z0-9+/=\s]*$/u.test(source.value)) {
    return h("figure", { class: "picture" }, h("img", { src: `data:${type};base64,${source.value.replace(/\s/gu, "")}`, alt: `image in the message${size}`, loading: "lazy" }));
  }
  const where = typeof source?.value === "string" && (source.type === "url" || source.type === "file") ? source.value : String(type ?? "unknown type");
  return h("p", { class: "picture-elsewhere" }, icon("eye"), "Image, not loaded: ", h("code", {}, say(where.length > 300 ? `${where.slice(0, 299)}…` : where)), size);
}
