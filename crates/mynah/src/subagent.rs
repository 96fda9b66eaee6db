//! An engine as a tool of another engine.

mod activity;
pub(crate) mod approvals;

use std::{sync::Arc, time::Duration};

use mynah_data::{
    Budget, CONTINUE, ChatResult, Error, ErrorKind, HaltReason, LogReason, Message, Messages,
    Metadata, Result, Role, RunId, Thread, ToolCall, ToolOutcome, ToolReason, Wait,
};
use mynah_log::{Fact, Log, MAX_RUN_ID, SUB_RUN, SUB_RUN_STARTED, Totals};
use mynah_step::{Spent, Tool, ToolContext, millis, since_1970};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    Decision, Engine, EventStream, Options, Resume, Run, Waiting,
    linked::{next_id, root},
    loaded::Loaded,
};
use activity::followed;

/// How deep agents may be nested if the engine has no limit.
const DEPTH: u32 = 4;

/// How deep agents may be nested at most. Each level needs stack while it is polled.
const MAX_DEPTH: u32 = 8;

/// How long an agent may work on a task, unless its tool has another timeout.
const TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// In how many runs before this one an agent's run is looked for.
const MAX_CONTINUED: usize = 1_000;

/// What an agent does for another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// It works on a task and returns its answer.
    Task,
    /// It takes the conversation over.
    Handoff,
}

/// How an agent's run went, as the parent's record holds it.
#[derive(Serialize, Deserialize)]
struct SubRun {
    /// The agent's run; none if the parent is not recorded.
    run_id: Option<RunId>,
    /// What the agent spent since the parent last recorded it.
    totals: Totals,
    outcome: Outcome,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Answer(String),
    Asks {
        question: String,
        /// What programs need to ask it in their way.
        #[serde(default)]
        hints: Metadata,
        state: Asked,
    },
    Sleeps {
        until_ms: u64,
        state: Asked,
    },
    Failed(String),
}

/// What the parent keeps while the agent waits.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Asked {
    /// How many records the agent's run had when it asked. An answer belongs to this question only.
    records: u64,
    /// What the agent had spent, as far as the parent recorded it.
    counted: Totals,
}

/// Whether an agent asked the question that has these hints.
pub(crate) fn is_of_agent(hints: &Metadata) -> bool {
    hints.get(CONTINUE).is_some_and(|state| Asked::deserialize(state).is_ok())
}

impl Engine {
    /// Returns a tool that lets this engine work on a task of another engine's model.
    ///
    /// If the run of the other engine is recorded, the agent's run is recorded too, in the same log, under an id that begins with its parent's.
    /// The parent's record links to it. If the process dies, resuming the parent resumes the agent where it was. What the agent spends
    /// counts in the parent's budget, and it gets what is left of that budget. A question or an approval that the agent waits for suspends the
    /// parent, and the answer goes to the agent. A replay of the parent answers from its records and does not call the agent. While the
    /// agent works, the parent's stream has what it does as [progress](mynah_data::Event::ToolExecutionProgress) of the call.
    ///
    /// ```
    /// use mynah::{Engine, testing::Scripted};
    /// use serde_json::json;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let answers = [json!([{"text": "Mynahs can talk."}, {"finish": "stop"}])];
    /// # let (research, editor) = (Scripted::new(answers)?, Scripted::new([
    /// #     json!([{"tool_call": {"id": "c0", "name": "research", "arguments": {"task": "Can they talk?"}}}, {"finish": "tool_calls"}]),
    /// #     json!([{"text": "Yes, they can."}, {"finish": "stop"}]),
    /// # ])?);
    ///
    /// let research = Engine::new(research).system("You look facts up.");
    /// let editor = Engine::new(editor).tool(research.as_tool("research", "Looks facts up."));
    /// assert_eq!(editor.chat("Can mynahs talk?").await?.text(), "Yes, they can.");
    /// # Ok(()) }
    /// ```
    ///
    /// If the parent is cancelled or its deadline passes, the agent's run is cancelled too.
    ///
    /// Agents may be nested four deep, or as deep as [`max_agent_depth`](Self::max_agent_depth) says. The tool has a timeout of an hour;
    /// [`Tool::timeout`] changes it.
    pub fn as_tool(&self, name: impl Into<String>, description: impl Into<String>) -> Tool {
        self.tool_of(Form::Task, name.into(), description.into())
    }

    /// Returns a tool by which another engine's model hands the conversation over to this engine.
    ///
    /// This engine continues with what the user and the other engine said, and a note of the other model. Calls of tools and their results
    /// are not handed over. Its answer is the answer of the chat: the other model is not called again. Its run is recorded as that of
    /// [`as_tool`](Self::as_tool), and budgets, questions, approvals and crashes are handled in the same way. The next turn of a session begins
    /// with the other engine, which reads the answer as its own.
    ///
    /// ```
    /// use mynah::{Engine, testing::Scripted};
    /// use serde_json::json;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let answers = [json!([{"text": "You get 20 euros back."}, {"finish": "stop"}])];
    /// # let (billing, front) = (Scripted::new(answers)?, Scripted::new([
    /// #     json!([{"tool_call": {"id": "c0", "name": "billing", "arguments": {"note": "Order 17."}}}, {"finish": "tool_calls"}]),
    /// # ])?);
    ///
    /// let billing = Engine::new(billing).system("You handle refunds.");
    /// let front = Engine::new(front).tool(billing.as_handoff("billing", "Handles refunds and invoices."));
    /// assert_eq!(front.chat("I want my money back.").await?.text(), "You get 20 euros back.");
    /// # Ok(()) }
    /// ```
    pub fn as_handoff(&self, name: impl Into<String>, description: impl Into<String>) -> Tool {
        self.tool_of(Form::Handoff, name.into(), description.into())
    }

    /// The same engine with another limit on how deep [agents](Self::as_tool) are nested beneath its runs: 1 permits agents that have none
    /// themselves. 4 if not set, and 8 at most. The limits of agents count beneath them.
    pub fn max_agent_depth(self, depth: u32) -> Self {
        self.with(|parts| parts.max_agent_depth = Some(depth.min(MAX_DEPTH)))
    }

    fn tool_of(&self, form: Form, name: String, description: String) -> Tool {
        let agent = self.clone();
        let (member, what) = match form {
            Form::Task => (
                "task",
                "What the agent must do, with everything that it needs to know. It does not see this conversation.",
            ),
            Form::Handoff => (
                "note",
                "What the agent needs to know beyond what was said: why it takes over, and results of tools. It reads the conversation and answers the user.",
            ),
        };
        let schema = json!({
            "type": "object",
            "properties": {member: {"type": "string", "description": what}},
            "required": [member],
            "additionalProperties": false,
        });
        Tool::new(name, description, schema)
            .handler(move |arguments: Value, context: ToolContext| {
                let said = arguments.get(member).and_then(Value::as_str).unwrap_or_default();
                let thread = match form {
                    Form::Task => Thread::from(said),
                    Form::Handoff => handed_over(context.conversation(), &context.call, said),
                };
                Box::pin(delegate(agent.clone(), form, thread, context))
            })
            .idempotent(1)
            .recorded()
            .delegating()
            .timeout(TIMEOUT)
    }
}

/// What the users and the engine said before the answer that has the call, and a note.
fn handed_over(messages: &Messages, call: &ToolCall, note: &str) -> Thread {
    let has_call = |message: &Message| message.tool_calls().any(|other| other.id == call.id);
    let calls = messages.iter().enumerate().filter(|(_, message)| has_call(message));
    let last = calls.last().map_or(messages.len(), |(place, _)| place);
    let said = messages.iter().take(last).filter_map(|message| match message.role() {
        Role::User => Some(Arc::clone(message)),
        Role::Assistant => {
            let text = message.text();
            (!text.is_empty()).then(|| Arc::new(Message::assistant(text.into_owned())))
        }
        _ => None,
    });
    let note = format!("[The conversation was handed over to you. A note for you: {note}]");
    let mut thread = Thread::new();
    thread.extend(said.chain([Arc::new(Message::user(note))]));
    thread
}

/// Runs the agent, or continues its run, until it ends or asks.
async fn delegate(
    agent: Engine,
    form: Form,
    thread: Thread,
    context: ToolContext,
) -> Result<ToolOutcome> {
    let child = match (context.run_id(), context.log()) {
        (Some(parent), Some(log)) => Some(child_id(parent, &*log, &context).await?),
        _ => None,
    };
    if let Some(child) = &child {
        // The link is there before the run: who looks for it or ends the parent finds it.
        let started = async { Ok::<_, Error>(json!({"run_id": child})) };
        let _: Value = context.side_effect(SUB_RUN_STARTED, started).await?;
    }
    let continuation = context.continuation().cloned();
    let state = continuation.as_ref().map(|continued| continued.state.clone());
    let asked: Asked =
        state.and_then(|state| serde_json::from_value(state).ok()).unwrap_or_default();
    let answer = continuation.and_then(|continued| continued.answer);
    let work = Box::pin(work(agent, thread, child, context.clone(), asked, answer));
    let SubRun { outcome, .. } = context.side_effect(SUB_RUN, work).await?;
    match outcome {
        Outcome::Answer(text) if form == Form::Handoff => Ok(ToolOutcome::handoff(text)),
        Outcome::Answer(text) => Ok(ToolOutcome::Ok(Value::String(text))),
        Outcome::Asks { question, hints, state } => {
            Ok(ToolOutcome::ask_and_continue(question, hints, json!(state)))
        }
        Outcome::Sleeps { until_ms, state } => {
            let wait = Wait::UntilMs(until_ms);
            Ok(ToolOutcome::Later { wait, state: Some(json!(state)) })
        }
        Outcome::Failed(why) => Err(failed(why)),
    }
}

fn failed(why: String) -> Error {
    Error::tool(ToolReason::Failed).with_message(why)
}

async fn work(
    agent: Engine,
    thread: Thread,
    child: Option<RunId>,
    context: ToolContext,
    asked: Asked,
    answer: Option<String>,
) -> Result<SubRun> {
    let Some(left) = depth_left(&context).checked_sub(1) else {
        return Err(failed("agents are nested too deep; max_agent_depth permits more".to_owned()));
    };
    let own = agent.0.max_agent_depth;
    let agent = agent.max_agent_depth(own.map_or(left, |own| own.min(left)));
    let place = context.log().zip(child);
    let budgets = budgets(place.as_ref(), &agent, &context).await?;
    let begin = |agent: &Engine, allow_changed| {
        let (thread, budgets) = (thread.clone(), budgets.clone());
        start(agent, thread, budgets, place.as_ref(), allow_changed)
    };
    let (stream, (mut engine, mut options)) = begin(&agent, false);
    let result = match followed(stream, context.clone()).await {
        // The agent is another than the one that began the run. Its parent, which may be continued, has it so.
        Err(error) if error.kind() == ErrorKind::Log(LogReason::RunExists) => {
            let stream;
            (stream, (engine, options)) = begin(&agent, true);
            followed(stream, context.clone()).await?
        }
        result => result?,
    };
    let Some((log, _)) = place else {
        let outcome = match result.halted_reason {
            HaltReason::Completed => Outcome::Answer(result.text().into_owned()),
            HaltReason::AskUser | HaltReason::ManualToolCalls => Outcome::Failed(
                "the agent asks a person, which it can do only in a recorded run".to_owned(),
            ),
            reason => Outcome::Failed(format!("the agent ended with {reason}")),
        };
        return Ok(SubRun { run_id: None, totals: Totals::default(), outcome });
    };
    let mut run = Run::new(engine, options, result)?;
    let mut unclear = None;
    if let Some(answer) = answer
        && records(&log, &run).await? == asked.records
    {
        match answered(&run, answer)? {
            Ok(resume) => run = run.with_result(followed(resume.stream(), context).await?),
            Err(why) => unclear = Some(why),
        }
    }
    let (records, all) = (records(&log, &run).await?, spent(&log, &run).await?);
    let mut outcome = outcome(&run, Asked { records, counted: all.clone() });
    if let (Some(why), Outcome::Asks { question, .. }) = (unclear, &mut outcome) {
        *question = format!("{why} {question}");
    }
    let totals = less(&all, &asked.counted);
    Ok(SubRun { run_id: Some(RunId::from(run.run_id())), totals, outcome })
}

fn depth_left(context: &ToolContext) -> u32 {
    Engine::of(context).and_then(|engine| engine.0.max_agent_depth).unwrap_or(DEPTH)
}

/// Starts the agent's run, or attaches to it: a chat that is recorded here.
fn start(
    agent: &Engine,
    thread: Thread,
    (budget, new_budget): (Option<Budget>, Option<Budget>),
    place: Option<&(Arc<dyn Log>, RunId)>,
    allow_changed: bool,
) -> (EventStream, (Engine, Options)) {
    let mut chat = agent.chat(thread);
    if let Some((log, child)) = place {
        chat = chat.record(log).run_id(child.clone());
    }
    if let Some(budget) = budget {
        chat = chat.budget(budget);
    }
    chat = chat.options(Options { new_budget, allow_changed, ..Options::new() });
    let settings = chat.settings();
    (chat.stream(), settings)
}

/// The continuation of a run with an answer, or why the answer is not one.
fn answered(run: &Run, answer: String) -> Result<std::result::Result<Resume, String>> {
    Ok(Ok(match run.waiting() {
        Some(Waiting::Question(_)) => run.resumption()?.answer(answer),
        Some(Waiting::Approval(calls) | Waiting::Uncertain(calls)) => {
            match approvals::decisions(&answer, &calls) {
                Ok(decisions) => {
                    let mut decisions = decisions.into_iter();
                    // There are as many as calls.
                    let decide =
                        |_: &ToolCall| decisions.next().unwrap_or(Decision::Reject(String::new()));
                    run.resumption()?.decided(&calls, decide)
                }
                Err(why) => return Ok(Err(why)),
            }
        }
        _ => run.resumption()?,
    }))
}

fn outcome(run: &Run, state: Asked) -> Outcome {
    let asks = |question: String, hints: Metadata| {
        let state = state.clone();
        Outcome::Asks { question, hints, state }
    };
    let about = |calls: &[ToolCall], may_have_run: bool| {
        let what = if may_have_run { OUTCOME } else { "approval" };
        let hints = [("for".to_owned(), json!(what)), ("calls".to_owned(), json!(calls))];
        asks(approvals::question(calls, may_have_run), Metadata::from_iter(hints))
    };
    match run.waiting() {
        Some(Waiting::Time(time)) => Outcome::Sleeps { until_ms: millis(since_1970(time)), state },
        Some(Waiting::Question(question)) => asks(question, hints_of(run)),
        Some(Waiting::Approval(calls)) => about(&calls, false),
        Some(Waiting::Uncertain(calls)) => about(&calls, true),
        Some(Waiting::CrashLoop) => {
            asks("The agent's process died again and again. Continue?".to_owned(), Metadata::new())
        }
        Some(Waiting::Other) | None => match &run.result().halted_reason {
            HaltReason::Completed => Outcome::Answer(run.result().text().into_owned()),
            reason => {
                let error = run.result().error();
                let why = error.map_or_else(|| reason.to_string(), |error| error.to_string());
                Outcome::Failed(format!("the agent ended with {why}"))
            }
        },
    }
}

/// Calls of an agent that a question of its parent is about.
pub(crate) struct AgentCalls {
    pub(crate) calls: Vec<ToolCall>,
    /// Whether their outcome is unknown. Otherwise they wait for approval.
    pub(crate) may_have_run: bool,
}

impl AgentCalls {
    /// The calls that a run asks about which ended so.
    pub(crate) fn asked(end: &Metadata) -> Option<Self> {
        let hints = end.get("ask_user_opts").filter(|hints| hints.get(CONTINUE).is_some())?;
        let calls = Vec::deserialize(hints.get("calls")?).ok()?;
        Some(Self { calls, may_have_run: hints.get("for")? == OUTCOME })
    }

    /// Whether a question with these hints is about calls whose outcome is unknown.
    pub(crate) fn may_have_run(hints: &Metadata) -> bool {
        hints.contains_key(CONTINUE) && hints.get("for").is_some_and(|what| what == OUTCOME)
    }
}

/// The hint `for` of a question about calls whose outcome is unknown.
const OUTCOME: &str = "outcome";

/// The hint that names the agent whose calls a question is about, if that is an agent of the called one: its path.
const AGENT: &str = "agent";

/// The name of the tool that a run's question comes from.
fn asker(result: &ChatResult) -> Option<&str> {
    let id = result.metadata.get("pending_tool_call_id")?.as_str()?;
    let calls = result.thread.messages.iter().rev().flat_map(|message| message.tool_calls());
    calls.into_iter().find(|call| call.id == id).map(|call| call.name.as_str())
}

/// The hints of the question that a run asks. They may be those of an agent beneath it.
fn hints_of(run: &Run) -> Metadata {
    let hints = run.result().metadata.get("ask_user_opts").cloned();
    let mut hints: Metadata =
        hints.and_then(|hints| serde_json::from_value(hints).ok()).unwrap_or_default();
    if hints.remove(CONTINUE).is_some()
        && hints.contains_key("calls")
        && let Some(agent) = asker(run.result())
    {
        let path = match hints.get(AGENT).and_then(Value::as_str) {
            Some(beneath) => format!("{agent}/{beneath}"),
            None => agent.to_owned(),
        };
        hints.insert(AGENT.to_owned(), json!(path));
    }
    hints
}

/// The id of the agent's run: the same in every attempt of the call. If the parent continues other runs, one of them may have begun it.
async fn child_id(parent: &RunId, log: &dyn Log, context: &ToolContext) -> Result<RunId> {
    let key = context.idempotency_key();
    let short = key.get(..12).unwrap_or(&key);
    let child = |parent: &RunId| {
        let id = format!("{parent}+{}-{short}", context.call.name);
        RunId::from(if id.len() <= MAX_RUN_ID { id } else { key.clone() })
    };
    let mut earlier = RunId::from(root(parent));
    // The number in a foreign id may be any.
    for _ in 0..MAX_CONTINUED {
        if earlier == *parent {
            break;
        }
        if log.head(&child(&earlier)).await?.is_some() {
            return Ok(child(&earlier));
        }
        earlier = next_id(&earlier);
    }
    Ok(child(parent))
}

/// The budget with which the agent's run begins: what is left of the parent's and the agent's own. If it has begun, the recorded one, and the
/// one with which it continues: a person may have given the parent more.
async fn budgets(
    place: Option<&(Arc<dyn Log>, RunId)>,
    agent: &Engine,
    context: &ToolContext,
) -> Result<(Option<Budget>, Option<Budget>)> {
    let granted = match (agent.0.options.values.budget.clone(), context.budget_left()) {
        (Some(own), Some(left)) => Some(own.narrowed(left)),
        (own, left) => own.or_else(|| left.cloned()),
    };
    if let Some((log, child)) = place {
        let first = log.read(child, 1, 1).await?;
        let began = first.first().and_then(|record| record.fact().ok().flatten());
        if let Some(Fact::RunStarted { about: Some(about), .. }) = began {
            let recorded = about.options.get("budget");
            let recorded = recorded.and_then(|recorded| Budget::from_json(recorded).ok());
            let wider = recorded.clone().zip(granted).map(|(old, new)| old.widened(&new));
            return Ok((recorded, wider));
        }
    }
    Ok((granted, None))
}

async fn records(log: &Arc<dyn Log>, run: &Run) -> Result<u64> {
    Ok(log.run(run.run_id()).await?.map_or(0, |summary| summary.records))
}

async fn spent(log: &Arc<dyn Log>, run: &Run) -> Result<Totals> {
    let loaded = Loaded::read(&**log, run.run_id()).await?;
    let mut spent = Spent::default();
    loaded.records.iter().for_each(|kept| spent.evolve(kept.fact()));
    Ok(spent.totals())
}

fn less(all: &Totals, counted: &Totals) -> Totals {
    let mut less = Totals::default();
    less.turns = all.turns.saturating_sub(counted.turns);
    less.tool_calls = all.tool_calls.saturating_sub(counted.tool_calls);
    less.input_tokens = all.input_tokens.saturating_sub(counted.input_tokens);
    less.output_tokens = all.output_tokens.saturating_sub(counted.output_tokens);
    less.cost = (all.cost - counted.cost).max(0.0);
    less
}
