// Verification of the log or of one run: what is checked, how far it is, and what was found.

import { bundleOf, fileName, get, listen, rawRecords, runPath, withQuery } from "./api.js";
import { copyButton, count, h, icon, plural, say, shortId } from "./dom.js";
import { runHref } from "./runs-page.js";
import { demand } from "./cbor.js";
import { canVerify, checkInclusion, readLines, verifyLines, verifyRecords } from "./verify.js";

const hashLine = (name, hash) => h("div", { class: "pair wide" }, h("dt", {}, name), h("dd", {}, h("code", { title: hash }, say(hash)), copyButton(hash, `Copy ${name}`)));
const step = (words) => {
  const state = h("span", { class: "step-state" });
  const element = h("li", { class: "step" }, icon("more"), h("div", {}, h("strong", {}, words), state));
  return {
    element,
    working: (...more) => { element.className = "step working"; state.replaceChildren(...more); },
    done: (ok, ...more) => { element.className = `step ${ok === null ? "skipped" : ok ? "ok" : "bad"}`; element.firstChild.replaceWith(icon(ok === null ? "more" : ok ? "check" : "cross")); state.replaceChildren(...more); },
  };
};

/** What this browser computed of a run in which the server found damage. */
export function ownWords(own) {
  if (own === null) return "This browser could not load the records.";
  const { intact, unread, wrong: [first] } = own;
  const isPart = first || unread > 0;
  return [first ? `This browser finds record ${first.seq} damaged: ${first.what}.` : "", `${isPart ? "The other " : "All "}${plural(intact, "record")} ${intact === 1 ? "is" : "are"} intact, as this browser computed.`].filter(Boolean).join(" ");
}

const isHash = (text) => /^[0-9a-f]{64}$/u.test(text);

/** A field for a hash that was kept elsewhere. `changed(hash)` is called with what is in it, in lower case. */
function keptField(label, hint, changed = () => {}) {
  const input = h("input", { id: "kept", class: "kept-hash", spellcheck: "false", autocomplete: "off", maxlength: "80", placeholder: "64 hexadecimal digits", "aria-describedby": "kept-hint" });
  input.addEventListener("input", () => changed(input.value.trim().toLowerCase()));
  return { input, element: h("div", { class: "kept" }, h("label", { for: "kept" }, label), input, h("small", { class: "muted", id: "kept-hint" }, hint)) };
}

/** Whether a hash that was kept is one that was found; nothing while the field is empty. */
function keptVerdict(kept, found) {
  if (kept === "") return [];
  const banner = (ok, strong, words) => [h("p", { class: `banner ${ok ? "ok" : ok === null ? "" : "bad"}`, "data-kept": ok ? "same" : ok === null ? "none" : "other", role: "status" }, icon(ok ? "check" : ok === null ? "more" : "cross"), h("span", {}, h("strong", {}, strong), words))];
  if (!isHash(kept)) return banner(null, "Not a hash. ", "Give all 64 hexadecimal digits.");
  const [name] = Object.entries(found).find(([, hash]) => hash === kept) ?? [];
  return name ? banner(true, "The same. ", `What you kept is the ${name}.`) : banner(false, "Another. ", "What you kept is not the fingerprint of this run. It is that of another run, or this run is not what it was.");
}

export async function verifyPage(root, query, go) {
  const id = query.get("verify");
  return id === "log" ? verifyLog(root) : verifyRun(root, id, go);
}

function wrongEntry({ run_id: run, status, err }) {
  const { seq, what } = err?.metadata ?? {};
  return h("li", { class: "banner bad" }, icon("cross"), h("span", {}, h("strong", {}, status === "too_new" ? "Too new: " : "Damaged: "), run ? h("a", { href: runHref(run, seq ? { view: "records", record: seq } : {}) }, say(run)) : null, seq ? ` record ${seq}: ` : ": ", say(what ?? err?.message ?? "")));
}

async function verifyLog(root) {
  const log = await get("/v1/log");
  const bar = h("progress", { max: Math.max(1, log.counted), value: 0, "aria-label": "Verification of the log" });
  const checks = `Every record of every run, each seal, the index, the list of seals and the tombstones are checked. The log has ${log.complete ? "" : "more than "}${plural(log.counted, "run")}.`;
  const state = h("p", { class: "muted", role: "status" }, checks);
  const wrong = h("ul", { class: "wrong" });
  const result = h("div", { class: "notices" });
  let stop = () => {};
  const begin = h("button", { class: "primary", type: "button" }, icon("seal"), "Verify the log");
  const kept = keptField("Root that you kept", "Optional. The log must still begin with all that had this root.");
  begin.addEventListener("click", () => {
    const wanted = kept.input.value.trim().toLowerCase();
    if (wanted && !isHash(wanted)) {
      // What an earlier verification found is not about this root.
      state.textContent = checks;
      bar.hidden = true;
      wrong.replaceChildren();
      result.replaceChildren(...keptVerdict(wanted, {}));
      kept.input.focus();
      return;
    }
    begin.disabled = true;
    bar.hidden = false;
    wrong.replaceChildren();
    result.replaceChildren();
    let [checked, bad] = [0, 0];
    const report = (found = bad === 0 ? ", nothing wrong so far" : "") => {
      bar.value = Math.min(checked, bar.max);
      state.textContent = `${plural(checked, "run")} checked${bad === 0 ? found : `, ${plural(bad, "problem")} found`}`;
    };
    stop = listen(withQuery("/v1/log/verify", { root: wanted }), {
      run: ({ data }) => {
        const entry = JSON.parse(data);
        checked += 1;
        if (entry.status === "corrupt" || entry.status === "too_new") {
          bad += 1;
          if (bad <= 200) wrong.append(wrongEntry(entry));
        }
        if (checked % 50 === 1 || checked === log.counted) report();
      },
      end: ({ data }, source) => {
        source.close();
        const found = JSON.parse(data);
        begin.disabled = false;
        const ok = found.wrong.length === 0 && !found.err;
        const { leaves = null } = found.kept ?? {};
        const told = found.kept ? [h("p", { class: `banner ${leaves === null ? "bad" : "ok"}`, "data-kept": leaves === null ? "other" : "same" }, icon(leaves === null ? "cross" : "check"), h("span", {}, h("strong", {}, leaves === null ? "The kept root is not in this log. " : "The kept root fits. "), leaves === null ? "The log does not begin with what had it: it is another log, or something was changed or taken away." : `The log had it at leaf ${count(leaves)} of ${count(found.leaves)}.`))] : [];
        // What is intact in itself may be another log than the one that was kept.
        const isOther = found.kept && leaves === null;
        bad += Number(Boolean(found.err)) + Number(Boolean(isOther));
        report("");
        bar.hidden = true;
        now.hidden = Boolean(found.err) || found.root === log.root;
        result.replaceChildren(...told, h("p", { class: `banner ${ok ? isOther ? "" : "ok" : "bad"}`, "data-status": ok ? "verified" : "corrupt" }, icon(ok ? "seal" : "cross"), h("span", {}, h("strong", {}, ok ? isOther ? "Intact in itself. " : "Verified. " : "Not what it was. "), found.err ? ["The list of seals is damaged. ", found.err.metadata?.run_id ? ["Run ", say(found.err.metadata.run_id), ": "] : null, say(found.err.metadata?.what ?? found.err.message), ". So the log has no root to rely on."] : `${plural(found.runs, "run")}, ${plural(found.seals, "seal")}, ${plural(found.removals, "removal")}.`)), ...found.err ? [] : [h("dl", { class: "pairs card" }, hashLine("root", found.root)), h("p", { class: "muted" }, `The root is over ${plural(found.leaves, "leaf", "leaves")}: every run that ended, and everything that was taken away. Keep it elsewhere, and nothing can be changed or taken away unseen.`)]);
      },
      problem: ({ data }, source) => {
        source.close();
        begin.disabled = false;
        const { detail, title } = JSON.parse(data);
        result.replaceChildren(h("p", { class: "banner bad" }, icon("cross"), h("span", {}, h("strong", {}, "The log could not be read to its end. "), say(detail ?? title))));
      },
      error: (_, source) => {
        source.close();
        begin.disabled = false;
        state.textContent = "The connection was lost before the end.";
      },
    });
  });
  kept.input.addEventListener("keydown", (event) => { if (event.key === "Enter" && !begin.disabled) begin.click(); });
  bar.hidden = true;
  const now = h("dl", { class: "pairs card" }, hashLine("root now", log.root));
  root.replaceChildren(h("div", { class: "narrow" }, h("div", { class: "page-head" }, h("h1", {}, "Verification"), h("div", { class: "buttons" }, begin)), state, kept.element, bar, result, wrong, now, h("p", { class: "muted" }, "To verify one run, open it and choose Verify.")));
  return { title: "Verification", close: () => stop(), key: () => false, keys: [] };
}

async function verifyRun(root, id) {
  // A run that does not exist is not damaged. One that is may have no description.
  await get(runPath(id)).catch((error) => { if (error.status === 404) throw error; });
  const steps = [step("The server checks the run against its log"), step("This browser checks every record itself"), step("The run's seal is a leaf of the log's tree")];
  const found = h("div", { class: "notices" });
  root.replaceChildren(h("div", { class: "narrow" }, h("div", { class: "page-head" }, h("h1", {}, "Verification of ", h("a", { href: runHref(id) }, h("code", {}, say(shortId(id))))), h("div", { class: "buttons" }, h("a", { class: "button", href: withQuery("/", { verify: "log" }) }, "Verify the log"))), found, h("ol", { class: "steps" }, steps.map(({ element }) => element))));
  let closed = false;
  const bad = [];
  const fail = (seq, what, words = seq ? `Record ${seq} is damaged: ` : "Damaged: ") => bad.push(h("p", { class: "banner bad", "data-status": "corrupt" }, icon("cross"), h("span", {}, h("strong", {}, words), say(what)), seq ? h("a", { class: "button", href: runHref(id, { view: "records", record: seq }) }, "Show it") : null));
  const work = async () => {
    steps[0].working(" …");
    const report = await get(runPath(id, "/verify"));
    const { seq, what } = report.err?.metadata ?? {};
    const sound = report.status === "verified" || report.status === "in_progress";
    steps[0].done(sound, sound ? ` ${plural(report.records, "record")}, chain, totals, index and tombstones${report.redacted ? `; ${count(report.redacted)} redacted` : ""}` : h("span", {}, " ", say(what ?? report.err?.message ?? "")));
    let { fingerprint } = report;
    let own = null;
    if (!canVerify()) steps[1].done(null, " Browsers offer SHA-256 to pages from this machine and over HTTPS only.");
    else if (!sound) {
      // A damaged run is not exported; the records that can be read are here.
      own = await rawRecords(id).then((entries) => verifyRecords(id, entries)).catch(() => null);
      steps[1].done(own && own.unread + own.wrong.length === 0, " ", ...say(ownWords(own)));
      fingerprint = own?.fingerprint;
    } else {
      try {
        const lines = readLines(await bundleOf(id));
        demand(lines[0].bundle.run_id === id, "the server sent the records of another run");
        own = await verifyLines(lines, (done, total) => steps[1].working(` ${count(done)} of ${count(total)} `, h("progress", { max: total, value: done, "aria-label": "Records checked" })));
        const isSound = own.status === "verified" || own.status === "in_progress";
        steps[1].done(isSound, isSound ? ` ${plural(own.records, "record")} from their bytes, with SHA-256 of the browser` : h("span", {}, " ", say(own.what)));
        if (!isSound) fail(own.seq, own.what);
        fingerprint = own.fingerprint;
      } catch (error) {
        steps[1].done(false, " ", ...say(error.message));
        fail(0, error.message);
      }
    }
    // The records may be intact, and the log be wrong about them.
    const isAround = own?.wrong?.length === 0 && own.unread === 0;
    if (!sound) fail(isAround ? 0 : seq, what ?? report.err?.message ?? "", isAround ? "The records are intact, the log around them is damaged: " : undefined);
    let proof = null;
    if (fingerprint) {
      try {
        proof = await get(runPath(id, "/proof"));
        if (canVerify()) await checkInclusion(fingerprint, proof);
        steps[2].done(canVerify() ? true : null, ` leaf ${count(proof.index + 1)} of ${count(proof.size)}, ${plural(proof.proof.length, "hash", "hashes")} to the root`);
      } catch (error) {
        steps[2].done(false, " ", ...say(error.message));
        if (sound) fail(0, error.message);
      }
    } else steps[2].done(null, sound ? " not yet: the run has no seal" : " not checked");
    if (closed) return;
    const whole = bad.length ? bad : [h("p", { class: "banner ok", "data-status": report.status }, icon("seal"), h("span", {}, h("strong", {}, report.status === "verified" ? canVerify() ? "Verified. " : "The server says: verified. " : "Intact so far. "), report.status === "verified" ? "The run is what it was when it ended." : "The run has not ended, so there is no seal."))];
    const verdict = h("div", { class: "notices" });
    const hashes = { fingerprint, "root of the run, not its fingerprint": report.root, "root of the log, not the fingerprint": proof?.root };
    const summary = h("div", { class: "notices" }, whole);
    const isIntact = bad.length === 0;
    const kept = keptField("Fingerprint that you kept", "Compared with the one that was computed here.", (text) => {
      verdict.replaceChildren(...keptVerdict(text, hashes));
      // What is intact in itself may be another run than the one that was kept.
      const isOther = isIntact && verdict.querySelector("[data-kept=other]");
      summary.replaceChildren(...(isOther ? [h("p", { class: "banner", "data-status": report.status }, icon("seal"), h("span", {}, h("strong", {}, "Intact in itself. "), "But its fingerprint is not the one that you kept."))] : whole));
    });
    found.replaceChildren(summary, ...(report.fingerprint ? [kept.element, verdict, h("dl", { class: "pairs card" }, hashLine("fingerprint", report.fingerprint), hashLine("root of the run", report.root), proof ? hashLine("root of the log", proof.root) : null, proof ? proof.proof.map((hash, place) => hashLine(`proof ${place + 1}`, hash)) : null),
      h("p", { class: "muted" }, "To prove this to others, send them the run as ", h("a", { href: runPath(id, "/export?format=html"), download: `${fileName(id)}.html` }, "a page"), " or ", h("a", { href: runPath(id, "/export"), download: `${fileName(id)}.ndjson` }, "a bundle"), ", and tell them the fingerprint in another way. The file verifies without this server.")] : []));
  };
  work().catch((error) => {
    const open = steps.filter(({ element }) => !element.matches(".ok, .bad, .skipped"));
    open[0]?.done(false, " ", ...say(error.message));
    for (const one of open.slice(1)) one.done(null, " not checked");
    found.replaceChildren(h("p", { class: "banner bad" }, icon("cross"), h("span", {}, h("strong", {}, "Not verified. "), say(error.message))));
  });
  return { title: "Verification", close: () => { closed = true; }, key: () => false, keys: [] };
}
