// What a person can do with a run. Every action is confirmed with what it will do.

import { post, runPath, withQuery } from "./api.js";
import { announce, h, icon, say } from "./dom.js";
import { jsonText, parseJson } from "./exact.js";

/**
 * Asks for confirmation, then acts. `fields` are labelled inputs, `act(values)` sends the request. Resolves to what came of it, or null
 * if the dialog was closed.
 */
export function confirmed({ title, words, fields = [], button, danger = false, act }) {
  return new Promise((resolve) => {
    const values = () => Object.fromEntries(fields.map(({ name, input }) => [name, input.type === "checkbox" ? input.checked : input.value]));
    const failure = h("p", { class: "error", role: "alert", hidden: true });
    const send = h("button", { class: danger ? "danger" : "primary", type: "submit" }, button);
    const dialog = h("dialog", { class: "action", "aria-labelledby": "action-title" },
      h("form", {
        onsubmit: async (event) => {
          event.preventDefault();
          send.disabled = true;
          failure.hidden = true;
          try {
            result = await act(values());
            announce(`${title}: done`);
            dialog.close();
          } catch (error) {
            // An error that begins with the name of a field stands beside it.
            const [, field, words] = /^(\w+): ([\s\S]*)$/u.exec(error.message) ?? [];
            const at = fields.find(({ name }) => name === field)?.input;
            // The API names a member of the request. A person has a box.
            const stale = error.code?.endsWith("approval_stale") ? staleWords(error.problem?.metadata) : null;
            const box = fields.find(({ name }) => name === "allow_changed_agent")?.label;
            failure.replaceChildren(...stale ?? say((at ? words : error.message).replace('"allow_changed_agent": true', (name) => box ? `the box “${box}”` : name)));
            failure.hidden = false;
            if (at) at.after(failure);
            else send.parentNode.before(failure);
            at?.focus();
            send.disabled = false;
          }
        },
      }, h("h2", { id: "action-title" }, say(title)), h("p", {}, words),
      fields.map(({ label, input, hint }) => h("label", { class: "field" }, h("span", {}, label), input, hint ? h("small", { class: "muted" }, hint) : null)),
      failure, h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close"), send)));
    let result = null;
    document.body.append(dialog);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(result);
    });
    dialog.showModal();
  });
}

/** What a person can do about a call whose tool changed; null if the error does not name them. */
function staleWords({ run_id: run, tool_call_id: id, tool_name: name, digest, manual_tool_calls: calls } = {}) {
  if (!run || !id || !digest) return null;
  // The model chose the id: a shell must not read it as more than a word.
  const quoted = (word) => /^[\w.=-]+$/u.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
  return [...say(`The tool ${name} changed since the run asked. Look at it, then approve the call with `), h("code", { class: "exact" }, say(`mynah resume ${quoted(run)} --agent FILE --allow-changed-agent --approve-digest ${quoted(`${id}=${digest}`)}`)), calls?.length > 1 ? " and the decisions about the other calls, or reject it." : ", or reject it."];
}

const signal = (run, body) => post(runPath(run, "/signals"), body);

const select = (agents, none = null, chosen = null) => h("select", {}, none ? h("option", { value: "" }, none) : null, agents.map(({ name, model }) => h("option", { value: name, selected: name === chosen }, say(model ? `${name} (${model})` : name))));

/** Which agent continues a run; and whether it may be another than the run began with. */
const agentFields = (agents, isChanged = false) => [
  ...(agents.length > 1 ? [{ name: "agent", label: "Agent", input: select(agents, "the one that fits the run") }] : []),
  { name: "allow_changed_agent", label: "Even if its model, tools or params are not those of the run", input: h("input", { type: "checkbox", checked: isChanged }) },
];

/** What is sent of these fields. */
const agentOf = ({ agent, allow_changed_agent: allow }) => ({ ...(agent ? { agent } : {}), ...(allow ? { allow_changed_agent: true } : {}) });

export const cancel = (run) => confirmed({
  title: "Cancel the run", words: "The run ends here. It is sealed and cannot be continued, only forked.", button: "Cancel the run", danger: true, act: () => signal(run, { cancel: true }),
});

/** `resumable` is false if a model call failed for a reason that does not pass by itself. `isUncertain` tells whether calls ran when the process died. */
export const resume = (run, agents, { resumable = null, isUncertain = false } = {}) => confirmed({
  title: "Resume the run",
  words: resumable === null ? "Another process continues where the records end. Completed model calls and tools are not repeated." : ["The model call that failed is made again, in a new run. ", resumable ? "" : "It failed for a reason that does not pass by itself: change the agent or its provider first, or it fails again. ", "Completed model calls and tools are not repeated."],
  fields: [...(isUncertain ? [{
    name: "on_uncertain", label: "Calls whose outcome is unknown", hint: "Calls that ran when the process died, of tools that are not idempotent.",
    input: h("select", {}, h("option", { value: "suspend" }, "wait for a person"), h("option", { value: "rerun" }, "run them again"), h("option", { value: "fail" }, "report them to the model as failed")),
  }] : []), ...agentFields(agents, resumable === false)],
  button: "Resume", act: (values) => signal(run, { resume: true, ...(isUncertain ? { on_uncertain: values.on_uncertain } : {}), ...agentOf(values) }),
});

export const message = (run, agents) => confirmed({
  title: "Send a message", words: "The message is recorded in the run as one of the user, and the run continues with it.",
  fields: [{ name: "text", label: "Message", input: h("textarea", { required: true }) }, ...agentFields(agents)], button: "Send", act: async (values) => ({ ...await signal(run, { message: values.text, ...agentOf(values) }), said: values.text }),
});

/** `said` is the user's message in the record after these, to be changed. That of the first record is changed in the copy. `waits` is what the run asks a person there. */
export const fork = (run, seq, agents, said = null, waits = null) => {
  const words = seq === 0 ? "The new run begins like this one, with the message changed, and runs its tools. It links to this run, which stays as it is."
    : `${seq === 1 ? "Record 1 is" : `Records 1 to ${seq} are`} copied into a new run${said === null ? "" : ", which continues with the message and runs its tools"}. ${{ decision: "It waits for your decision, as this run did. ", answer: "It waits for your answer, as this run did. " }[waits] ?? ""}This run stays as it is.`;
  return confirmed({
    title: said === null ? `Fork at record ${seq}` : `Fork with another message`, words,
    // What waits for a person is decided in the new run.
    fields: agents.length && !waits ? [
      ...(said === null ? [{ name: "resume", label: "Continue the new run at once", input: h("input", { type: "checkbox", checked: true }) }] : []),
      { name: "message", label: said === null ? "With a message of the user" : "The user's message", input: h("textarea", { required: said !== null }, said ?? ""), hint: said === null ? "What the user says in the new run after these records. Empty: it continues as it is." : null },
      ...agentFields(agents),
    ] : [],
    button: "Fork",
    act: (values) => post(runPath(run, "/fork"), seq === 0 ? { at: 1, input: values.message, resume: true, ...agentOf(values) } : { at: seq, ...(values.resume || values.message ? { resume: true, ...(values.message ? { message: values.message } : {}), ...agentOf(values) } : {}) }),
  });
};

/** Asks the model again, with another prompt or another model. `said` is what the run began with: `{system, user, model, agent}`. */
export const tryAgain = (run, agents, said) => {
  const models = h("datalist", { id: "models" }, [...new Set(agents.map(({ model }) => model).filter(Boolean))].map((model) => h("option", { value: model })));
  return confirmed({
    title: "Try another prompt or model",
    words: ["A new run asks the model again, from the first record on. ", h("strong", {}, "The model is called and costs money; no tool runs."), " A call that this run has too gets the decision and the result that are recorded here. Any other call fails, and the new run shows it. Then both runs are compared."],
    fields: [
      { name: "system", label: "System prompt", input: h("textarea", { rows: "6" }, said.system), hint: said.system ? null : "Empty: as recorded." },
      { name: "input", label: "The user's message", input: h("textarea", {}, said.user) },
      ...(agents.length > 1 ? [{ name: "agent", label: "Agent", input: select(agents, said.agent ? null : "the one that fits the run", said.agent) }] : []),
      { name: "model", label: "Model", input: h("input", { list: "models", placeholder: said.model || "the agent's", spellcheck: "false" }), hint: ["A model of the agent's provider. Empty: the agent's own.", models] },
    ],
    button: "Try it",
    act: ({ system, input, agent, model }) => post(runPath(run, "/fork"), {
      at: 1, resume: true, recorded_tools: true, allow_changed_agent: true,
      ...(system && system !== said.system ? { system } : {}), ...(input && input !== said.user ? { input } : {}), ...(agent ? { agent } : {}), ...(model.trim() ? { model: model.trim() } : {}),
    }),
  });
};

export const replay = (run, agents) => confirmed({
  title: "Replay the run", words: ["The run is executed again from its records, and compared. The model is not called, and nothing is recorded. To see what the model answers to another prompt, use “Try another prompt”."],
  fields: [
    ...(agents.length ? [
      { name: "agent", label: "Agent", input: select(agents, "none: every answer from the records") },
      { name: "system", label: "Another system prompt", input: h("textarea", {}), hint: "Empty: as recorded." },
      { name: "rerun_tools", label: "Run idempotent tools again", input: h("input", { type: "checkbox" }) },
      { name: "allow_changed_agent", label: "Even if its model, tools or params are not those of the run", input: h("input", { type: "checkbox" }) }] : []),
  ],
  button: "Replay",
  act: async ({ system, rerun_tools: rerun, ...values }) => {
    const result = await post(runPath(run, "/replay"), { ...agentOf(values), ...(system ? { system } : {}), ...(rerun ? { rerun_tools: true } : {}) });
    // What ran tools again is not done once more to be shown.
    return { ...result, compare: rerun ? null : withQuery("/", { compare: run, replay: values.agent || "-", system }) };
  },
});

/** `like` is a run whose agent, session and input the new one has, unless they are changed. */
export const start = (agents, like = null, said = agents[0]?.input ?? "") => confirmed({
  title: like ? "Run again" : "Start a run", words: "The agent begins a new run with this input. It continues whether or not this page is open.",
  fields: [{ name: "agent", label: "Agent", input: select(agents, null, like?.agent) }, { name: "input", label: "Input", input: h("textarea", { required: true }, said) }, { name: "session", label: "Session", input: h("input", { value: like?.session_id ?? "" }), hint: "Empty: a run of its own." }],
  button: "Start", act: ({ agent, input, session }) => post("/v1/runs", { agent, input, ...(session ? { session } : {}) }),
});

/** What a suspended run waits for, as a form. `done` is called after it was sent. */
export function waitingForm(run, waiting, agents, done) {
  const sent = async (title, words, body) => {
    const result = await confirmed({ title, words, fields: agentFields(agents), button: title, act: (values) => signal(run, { ...body(), ...agentOf(values) }) });
    if (result) done(result);
  };
  // The calls of an agent beneath the run are decided one by one too. Their decisions are the answer.
  const ofAgent = waiting.for === "answer" && Boolean(waiting.calls?.length);
  if (waiting.for === "answer" && !ofAgent) {
    const text = h("textarea", { "aria-label": "Answer", name: "answer", required: true });
    const offered = (waiting.choices ?? []).map((choice) => h("button", { type: "button", onclick: () => { text.value = String(choice); text.form.requestSubmit(); } }, say(choice)));
    return h("form", { class: "waiting", onsubmit: (event) => { event.preventDefault(); sent("Send the answer", ["The run continues with this answer: ", h("q", {}, say(text.value))], () => ({ answer: text.value })); } },
      h("h2", {}, icon("pause"), "Waits for an answer"), h("p", { class: "question" }, say(waiting.question ?? "")), offered.length ? h("div", { class: "buttons choices", role: "group", "aria-label": "Offered answers" }, offered) : null, text, h("div", { class: "buttons" }, h("button", { class: "primary", type: "submit" }, "Answer")));
  }
  if (waiting.for === "resume") {
    return h("div", { class: "waiting" }, h("h2", {}, icon("pause"), "Waits to be resumed"), h("p", {}, "Its process died several times without progress."), h("div", { class: "buttons" }, h("button", { class: "primary", type: "button", onclick: async () => { const result = await resume(run, agents); if (result) done(result); } }, "Resume")));
  }
  const isOutcome = waiting.for === "outcome" || waiting.about === "outcome";
  const choices = isOutcome ? [["result", "It ran; this is its result"], ["reject", "It did not run"], ["approve", "Run it again"]] : [["approve", "Approve"], ["edit", "Approve with other arguments"], ["reject", "Reject"], ["result", "Give a result instead"]];
  const rows = (waiting.calls ?? []).map((call) => {
    // Nothing is decided before a person did: a form that is sent as it was opened approves nothing.
    const choice = h("select", { "aria-label": `Decision about ${call.name}`, "data-call": call.id, required: true }, h("option", { value: "" }, "Choose a decision"), choices.map(([value, words]) => h("option", { value }, words)));
    const text = h("textarea", { "aria-label": "Arguments, reason or result", hidden: true });
    const wrong = h("p", { class: "error", role: "alert", hidden: true });
    text.addEventListener("input", () => { wrong.hidden = true; });
    choice.addEventListener("change", () => {
      text.hidden = ["", "approve"].includes(choice.value);
      text.required = ["edit", "result"].includes(choice.value);
      wrong.hidden = true;
      text.value = choice.value === "edit" ? call.raw_arguments ?? jsonText(call.arguments ?? {}) : "";
      text.placeholder = choice.value === "reject" ? "Why; the model reads it" : "The result, as the model reads it";
    });
    /** Whether it can be sent. If not, the form tells why. */
    const isFit = () => {
      try {
        if (choice.value === "edit") parseJson(text.value);
        return true;
      } catch {
        wrong.textContent = "These arguments are not JSON. Look for a missing quote, comma or bracket.";
        wrong.hidden = false;
        text.focus();
        return false;
      }
    };
    return { call, choice, text, isFit, element: h("li", { class: "decision" }, h("div", { class: "decision-head" }, h("strong", {}, icon("tool"), say(call.name)), h("code", { class: "muted" }, say(call.id))),
      h("pre", { class: "result exact", tabindex: "0", role: "group", "aria-label": "exact arguments" }, say(call.raw_arguments ?? jsonText(call.arguments ?? null))), choice, text, wrong) };
  });
  const title = rows.length === 1 ? "Send the decision" : `Send ${rows.length} decisions`;
  const body = () => {
    const made = { approve: [], approve_with: {}, reject: {}, results: {} };
    for (const { call, choice, text } of rows) {
      if (choice.value === "approve") made.approve.push(call.id);
      else if (choice.value === "edit") made.approve_with[call.id] = parseJson(text.value);
      else if (choice.value === "reject") made.reject[call.id] = text.value;
      else made.results[call.id] = text.value;
    }
    if (ofAgent) {
      const all = [made.approve.map((id) => [id, true]), Object.entries(made.approve_with).map(([id, value]) => [id, { arguments: value }]), Object.entries(made.reject).map(([id, why]) => [id, why || false]), Object.entries(made.results).map(([id, result]) => [id, { result }])];
      return { answer: jsonText(Object.fromEntries(all.flat())) };
    }
    return Object.fromEntries(Object.entries(made).filter(([, value]) => Object.keys(value).length));
  };
  const told = () => h("ul", {}, rows.map(({ call, choice, text }) => h("li", {}, { approve: isOutcome ? "run again " : "run ", edit: "run with other arguments ", reject: isOutcome ? "report as not run: " : "do not run ", result: "take the given result for " }[choice.value], h("strong", {}, say(call.name)), [choice.value === "edit" ? ": " : " with ", h("code", { class: "exact" }, say(choice.value === "edit" ? text.value : call.raw_arguments ?? jsonText(call.arguments ?? null)))], ["reject", "result"].includes(choice.value) && text.value ? [choice.value === "reject" ? ". Reason: " : ". Result: ", h("q", {}, say(text.value))] : null)));
  return h("form", { class: "waiting", onsubmit: (event) => { event.preventDefault(); if (rows.every(({ isFit }) => isFit())) sent(title, ["The run continues with this:", told()], body); } },
    h("h2", {}, icon("pause"), isOutcome ? "Waits: the outcome of these calls is unknown" : "Waits for approval"), h("p", {}, isOutcome ? "The process died while they ran. Find out whether they did." : ofAgent ? "An agent of this run wants to call:" : "The model wants to call:"),
    h("ul", { class: "decisions" }, rows.map(({ element }) => element)), h("div", { class: "buttons" }, h("button", { class: "primary", type: "submit" }, title)));
}
