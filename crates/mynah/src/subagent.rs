//! An engine as a tool of another engine.

use std::{sync::Arc, time::Duration};

use mynah_data::{
    Budget, Error, HaltReason, Metadata, Result, RunId, ToolCall, ToolOutcome, ToolReason, Wait,
};
use mynah_log::{Fact, Log, MAX_RUN_ID, Totals};
use mynah_step::{BoxFuture, SUB_RUN, Tool, ToolContext, millis, since_1970};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Decision, Engine, Run, Waiting};

/// The member of a call's context that counts how deep agents are nested.
const DEPTH: &str = "agent_depth";

/// How deep agents may be nested. Each level needs stack while it is polled.
const MAX_DEPTH: u64 = 4;

/// How long an agent may work on a task, unless its tool has another timeout.
const TIMEOUT: Duration = Duration::from_secs(60 * 60);

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
    Asks { question: String, calls: Vec<ToolCall>, state: Asked },
    Sleeps { until_ms: u64, state: Asked },
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

impl Engine {
    /// Returns a tool that lets this engine work on a task of another engine's model.
    ///
    /// If the run of the other engine is recorded, the agent's run is recorded too, in the same log, under an id that begins with its parent's.
    /// The parent's record links to it. If the process dies, resuming the parent resumes the agent where it was. What the agent spends
    /// counts in the parent's budget, and it gets what is left of that budget. A question or an approval that the agent waits for suspends the
    /// parent, and the answer goes to the agent. A replay of the parent answers from its records and does not call the agent.
    ///
    /// ```
    /// # use mynah::{Engine, testing::Scripted};
    /// # use serde_json::json;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let answers = [json!([{"text": "Mynahs can talk."}, {"finish": "stop"}])];
    /// # let (research, editor) = (Scripted::new(answers)?, Scripted::new([
    /// #     json!([{"tool_call": {"id": "c0", "name": "research", "arguments": {"task": "Can they talk?"}}}, {"finish": "tool_calls"}]),
    /// #     json!([{"text": "Yes, they can."}, {"finish": "stop"}]),
    /// # ])?);
    /// let research = Engine::new(research).system("You look facts up.");
    /// let editor = Engine::new(editor).tool(research.as_tool("research", "Looks facts up."));
    /// assert_eq!(editor.chat("Can mynahs talk?").await?.text(), "Yes, they can.");
    /// # Ok(()) }
    /// ```
    ///
    /// Agents may be nested four deep. The tool has a timeout of an hour; [`Tool::timeout`] changes it.
    pub fn as_tool(&self, name: impl Into<String>, description: impl Into<String>) -> Tool {
        let agent = self.clone();
        let what = "What the agent must do, with everything that it needs to know. It does not see this conversation.";
        let schema = json!({
            "type": "object",
            "properties": {"task": {"type": "string", "description": what}},
            "required": ["task"],
            "additionalProperties": false,
        });
        Tool::new(name, description, schema)
            .handler(move |arguments, context| {
                Box::pin(delegate(agent.clone(), arguments, context))
            })
            .idempotent(1)
            .recorded()
            .timeout(TIMEOUT)
    }
}

/// Runs the agent, or continues its run, until it ends or asks.
async fn delegate(agent: Engine, arguments: Value, context: ToolContext) -> Result<ToolOutcome> {
    let task = arguments.get("task").and_then(Value::as_str).unwrap_or_default().to_owned();
    let continuation = context.continuation().cloned();
    let state = continuation.as_ref().map(|continued| continued.state.clone());
    let asked: Asked =
        state.and_then(|state| serde_json::from_value(state).ok()).unwrap_or_default();
    let answer = continuation.and_then(|continued| continued.answer);
    let work = Box::pin(work(agent, task, context.clone(), asked, answer));
    let SubRun { outcome, .. } = context.side_effect(SUB_RUN, work).await?;
    match outcome {
        Outcome::Answer(text) => Ok(ToolOutcome::Ok(Value::String(text))),
        Outcome::Asks { question, calls, state } => {
            let hints = if calls.is_empty() { json!({}) } else { json!({"calls": calls}) };
            let hints: Metadata = serde_json::from_value(hints).unwrap_or_default();
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
    task: String,
    context: ToolContext,
    asked: Asked,
    answer: Option<String>,
) -> Result<SubRun> {
    let depth = context.context.get(DEPTH).and_then(Value::as_u64).unwrap_or(0) + 1;
    if depth > MAX_DEPTH {
        return Err(failed(format!("agents are nested more than {MAX_DEPTH} deep")));
    }
    let agent = agent.context(DEPTH, depth);
    let (Some(log), Some(run_id)) = (context.log(), context.run_id()) else {
        let budget = narrowed(agent.0.values.budget.clone(), context.budget_left());
        let outcome = unrecorded(agent, task, budget).await?;
        return Ok(SubRun { run_id: None, totals: Totals::default(), outcome });
    };
    let child = child_id(run_id, &context);
    let budget = budget(&log, &child, &agent, &context).await?;
    let mut run = recorded(agent, task, budget, &log, child).await?;
    if let Some(answer) = answer
        && records(&log, &run).await?.0 == asked.records
    {
        run = answered(run, answer).await?;
    }
    let (records, all) = records(&log, &run).await?;
    let outcome = outcome(&run, Asked { records, counted: all.clone() });
    let totals = less(&all, &asked.counted);
    Ok(SubRun { run_id: Some(RunId::from(run.run_id())), totals, outcome })
}

// Agents are polled inside each other. Each of these is a future of its own on the heap, so that a level needs little stack.

fn unrecorded(agent: Engine, task: String, budget: Option<Budget>) -> BoxFuture<Result<Outcome>> {
    let mut chat = agent.chat(task);
    if let Some(budget) = budget {
        chat = chat.budget(budget);
    }
    let chat = chat.into_future();
    Box::pin(async move {
        let result = chat.await?;
        Ok(match result.halted_reason {
            HaltReason::Completed => Outcome::Answer(result.text().into_owned()),
            HaltReason::AskUser | HaltReason::ManualToolCalls => Outcome::Failed(
                "the agent asks a person, which it can do only in a recorded run".to_owned(),
            ),
            reason => Outcome::Failed(format!("the agent ended with {reason}")),
        })
    })
}

fn recorded(
    agent: Engine,
    task: String,
    budget: Option<Budget>,
    log: &Arc<dyn Log>,
    child: RunId,
) -> BoxFuture<Result<Run>> {
    let mut chat = agent.chat(task).record(log).run_id(child);
    if let Some(budget) = budget {
        chat = chat.budget(budget);
    }
    Box::pin(chat.start_or_resume())
}

fn answered(run: Run, answer: String) -> BoxFuture<Result<Run>> {
    match run.waiting() {
        Some(Waiting::Question(_)) => Box::pin(run.answer(answer)),
        Some(Waiting::Approval(_) | Waiting::Unknown(_)) => {
            Box::pin(run.decide(move |_| decision(&answer)))
        }
        _ => Box::pin(run.resume()),
    }
}

/// What the parent makes of the agent's run.
fn outcome(run: &Run, state: Asked) -> Outcome {
    let asks = |question: String, calls: Vec<ToolCall>| {
        let state = state.clone();
        Outcome::Asks { question, calls, state }
    };
    let listed = |calls: &[ToolCall]| {
        let call = |call: &ToolCall| format!("{}({})", call.name, call.raw_arguments);
        calls.iter().map(call).collect::<Vec<_>>().join(", ")
    };
    match run.waiting() {
        Some(Waiting::Time(time)) => Outcome::Sleeps { until_ms: millis(since_1970(time)), state },
        Some(Waiting::Question(question)) => asks(question, Vec::new()),
        Some(Waiting::Approval(calls)) => {
            let question = format!("May {} run? Answer yes, or why not.", listed(&calls));
            asks(question, calls)
        }
        Some(Waiting::Unknown(calls)) => {
            let question = format!(
                "{} may have run before the process died. Run it again? Answer yes, or why not.",
                listed(&calls)
            );
            asks(question, calls)
        }
        Some(Waiting::CrashLoop) => {
            asks("The agent's process died again and again. Continue?".to_owned(), Vec::new())
        }
        None => match &run.result().halted_reason {
            HaltReason::Completed => Outcome::Answer(run.result().text().into_owned()),
            reason => {
                let error = run.result().error();
                let why = error.map_or_else(|| reason.to_string(), |error| error.to_string());
                Outcome::Failed(format!("the agent ended with {why}"))
            }
        },
    }
}

/// Reads the answer to an approval.
fn decision(answer: &str) -> Decision {
    match answer.trim().to_lowercase().trim_end_matches(['.', '!']) {
        "y" | "yes" | "ok" | "approve" | "approved" => Decision::Approve,
        _ => Decision::Reject(answer.to_owned()),
    }
}

/// The id of the agent's run: the same in every attempt of the call.
fn child_id(parent: &RunId, context: &ToolContext) -> RunId {
    let key = context.idempotency_key();
    let short = key.get(..12).unwrap_or(&key);
    let id = format!("{parent}+{}-{short}", context.call.name);
    RunId::from(if id.len() <= MAX_RUN_ID { id } else { key })
}

/// The budget with which the agent's run began; if it has not begun, what is left of the parent's and the agent's own.
async fn budget(
    log: &Arc<dyn Log>,
    child: &RunId,
    agent: &Engine,
    context: &ToolContext,
) -> Result<Option<Budget>> {
    let first = log.read(child, 1, 1).await?;
    let began = first.first().and_then(|record| record.fact().ok().flatten());
    if let Some(Fact::RunStarted { about: Some(about), .. }) = began {
        let recorded = about.options.get("budget");
        return Ok(recorded.and_then(|recorded| Budget::from_value(recorded).ok()));
    }
    Ok(narrowed(agent.0.values.budget.clone(), context.budget_left()))
}

/// The narrower of two budgets, limit by limit.
fn narrowed(own: Option<Budget>, left: Option<&Budget>) -> Option<Budget> {
    match (own, left) {
        (Some(own), Some(left)) => Some(own.narrowed(left)),
        (own, left) => own.or_else(|| left.cloned()),
    }
}

/// How many records a run has, and what it spent.
async fn records(log: &Arc<dyn Log>, run: &Run) -> Result<(u64, Totals)> {
    let summary = log.run(run.run_id()).await?;
    Ok(summary.map_or_else(Default::default, |summary| (summary.records, summary.totals)))
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
