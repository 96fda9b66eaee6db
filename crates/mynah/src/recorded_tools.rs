//! Tool calls that a recorded run answers.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mynah_data::{ChatResult, HaltReason, Message, Messages, Result, RunId, ToolCall};
use mynah_log::{Effect, Fact, Log, RECORDED_TOOLS, SUB_RUN};
use mynah_step::{BoxFuture, Tool, ToolContext, ToolExecutor, ToolOutcome};
use serde_json::Value;

use crate::{Decision, Resume, loaded::VerifiedRun};

/// What a model reads of a call that the recorded run does not have.
const UNKNOWN: &str = "this call is not in the recorded run";

/// Answers tool calls with what the same calls came to in a recorded run. No tool runs: a call that the run does not have fails.
///
/// As the executor of another run, it lets a model be asked again with another prompt without repeating an effect:
///
/// ```
/// # use mynah::{Engine, Tool, testing::Scripted};
/// # use serde_json::json;
/// use mynah::{RecordedTools, fork_run, log::MemoryLog};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let model = || Scripted::new([
/// #     json!([{"tool_call": {"id": "c0", "name": "pay"}}, {"finish": "tool_calls"}]),
/// #     json!([{"text": "Paid."}, {"finish": "stop"}]),
/// # ]);
/// # let engine = |ran: &'static str| Ok::<_, mynah::Error>(Engine::new(model()?).tool(Tool::new("pay", "", json!({})).handler(move |_, _| async move { ran })));
/// let log = MemoryLog::new();
/// let run = engine("paid")?.chat("pay").record(&log).await?.run_id.unwrap();
///
/// let other = fork_run(&log, &*run, 1).system("Be brief.").await?.run_id;
/// let recorded = RecordedTools::of_run(&log, &*run).await?;
/// let done = engine("paid twice")?.resume(&log, &*other).tool_executor(recorded).await?;
/// assert_eq!(done.thread.messages.get(3).unwrap().text(), "paid");
/// # Ok(()) }
/// ```
///
/// The records of that run name the executor, so that an engine without one does not continue it unless it may be changed.
#[derive(Clone)]
pub struct RecordedTools {
    /// The name of the executor, with the run.
    name: String,
    book: Arc<Mutex<Book>>,
    read_as: ReadAs,
}

/// A value of a run as the recorded run has it, after these messages.
type ReadAs = Arc<dyn Fn(&Messages, &Value) -> Value + Send + Sync>;

mynah_data::partial_debug! { RecordedTools { name } }

#[derive(Default)]
struct Book {
    /// What was decided about calls, by the call as the model made it. One that ran without a person counts as approved.
    decisions: BTreeMap<String, VecDeque<Decision>>,
    /// How calls came out, by the call as it ran.
    outcomes: BTreeMap<String, VecDeque<Outcome>>,
    /// What a person answered, by the tool and its question.
    answers: BTreeMap<String, VecDeque<Arc<Message>>>,
    /// The calls that were asked for and are not in the run.
    unknown: Vec<UnknownCall>,
}

/// A call that the recorded run does not have.
#[doc(hidden)]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UnknownCall {
    /// The tool and its arguments.
    pub call: String,
    /// Whether it needs approval, and was rejected.
    pub is_rejected: bool,
}

/// How a call came out.
#[derive(Clone)]
struct Outcome {
    outcome: ToolOutcome,
    /// What an agent spent on it. Budgets and limits count it as if the agent had worked; totals do not, because it is not spent again.
    sub_run: Option<Value>,
}

/// A call of the recorded run.
struct RecordedCall<'f> {
    call: &'f ToolCall,
    /// The arguments that a person put in place of the model's.
    edited: Option<Value>,
    is_decided: bool,
    sub_run: Option<Value>,
}

impl<'f> RecordedCall<'f> {
    fn new(call: &'f ToolCall) -> (&'f str, Self) {
        (&call.id, Self { call, edited: None, is_decided: false, sub_run: None })
    }
}

impl Book {
    fn of<'f>(facts: impl IntoIterator<Item = &'f Fact>) -> Self {
        let (mut book, mut question) = (Self::default(), None);
        let mut calls: BTreeMap<&str, RecordedCall<'_>> = BTreeMap::new();
        for fact in facts {
            match fact {
                Fact::AssistantCompleted { response, .. } => {
                    calls.extend(response.tool_calls().map(RecordedCall::new));
                }
                Fact::ToolScheduled { call_id, .. } => {
                    book.decided(calls.get_mut(&**call_id), Decision::Approve);
                }
                Fact::SideEffect { inside: Some(inside), name, effect, .. } if name == SUB_RUN => {
                    if let (Some(call), Effect::Done(spent)) =
                        (calls.get_mut(&*inside.call_id), effect)
                    {
                        call.sub_run = Some(spent.clone());
                    }
                }
                Fact::ToolCompleted { call_id, outcome, .. } => {
                    book.came_out(calls.get_mut(&**call_id), outcome.clone());
                }
                Fact::ToolFailed { call_id, error, content, .. } if !content.is_empty() => {
                    let said: Option<Value> = serde_json::from_str(content).ok();
                    let said = said.and_then(|said| said.get("error").cloned());
                    let said = said.unwrap_or_else(|| error.message().into());
                    book.came_out(calls.get_mut(&**call_id), ToolOutcome::error(said));
                }
                Fact::Suspended(end) => {
                    let text = |key: &str| end.metadata.get(key).and_then(Value::as_str);
                    let call = text("pending_tool_call_id").and_then(|id| calls.get(id));
                    let asked = call.zip(text("pending_question"));
                    question = asked.map(|(call, asked)| question_key(&call.call.name, asked));
                }
                Fact::Resumed { message, tool_results, approved, edited, rejected, .. } => {
                    if let (Some(question), Some(message)) = (question.take(), message) {
                        let answers = book.answers.entry(question).or_default();
                        answers.push_back(Arc::clone(message));
                    }
                    for id in approved {
                        let edited = edited.iter().find(|(edited, _)| edited == id);
                        let edited = edited.and_then(|(_, it)| serde_json::from_str(it).ok());
                        let Some(call) = calls.get_mut(&**id) else { continue };
                        let decision = edited.clone().map(Decision::ApproveWith);
                        call.edited = edited;
                        book.decided(Some(call), decision.unwrap_or(Decision::Approve));
                    }
                    for (id, why) in rejected {
                        book.decided(calls.get_mut(&**id), Decision::Reject(why.clone()));
                    }
                    for (id, result) in tool_results {
                        let result = Value::from(result.as_str());
                        book.decided(calls.get_mut(&**id), Decision::Result(result.clone()));
                        book.came_out(calls.get_mut(&**id), ToolOutcome::Ok(result));
                    }
                }
                Fact::RunStarted { .. }
                | Fact::UserMessage { .. }
                | Fact::TurnStarted { .. }
                | Fact::TurnLost { .. }
                | Fact::FinalizeStarted { .. }
                | Fact::FinalizeFailed { .. }
                | Fact::ToolFailed { .. }
                | Fact::SideEffect { .. }
                | Fact::ContextTruncated { .. }
                | Fact::BudgetExceeded { .. }
                | Fact::Completed(_)
                | Fact::Failed(_)
                | Fact::Cancelled { .. }
                | Fact::Sealed(_)
                | Fact::Removed(_) => {}
            }
        }
        book
    }

    /// Takes in the first decision about a call. Others are about an attempt of the same call.
    fn decided(&mut self, call: Option<&mut RecordedCall<'_>>, decision: Decision) {
        let Some(RecordedCall { call, is_decided, .. }) = call else { return };
        if !std::mem::replace(is_decided, true) {
            let key = key(&call.name, &call.arguments);
            self.decisions.entry(key).or_default().push_back(decision);
        }
    }

    fn came_out(&mut self, call: Option<&mut RecordedCall<'_>>, outcome: ToolOutcome) {
        let Some(RecordedCall { call, edited, sub_run, .. }) = call else { return };
        let key = key(&call.name, edited.as_ref().unwrap_or(&call.arguments));
        let sub_run = sub_run.take();
        self.outcomes.entry(key).or_default().push_back(Outcome { outcome, sub_run });
    }
}

impl RecordedTools {
    /// Reads a run of a log.
    ///
    /// # Errors
    /// A run that is missing or cannot be read.
    pub async fn of_run(log: &dyn Log, run: &str) -> Result<Self> {
        let mut facts = Vec::new();
        VerifiedRun::whole(log, run, |record| {
            facts.extend(record.fact()?);
            Ok(())
        })
        .await?;
        Ok(Self::of_facts(run, &facts))
    }

    /// The same from facts that were read.
    #[doc(hidden)]
    pub fn of_facts<'f>(run: &str, facts: impl IntoIterator<Item = &'f Fact>) -> Self {
        let book = Arc::new(Mutex::new(Book::of(facts)));
        let read_as: ReadAs = Arc::new(|_, value| value.clone());
        Self { name: format!("{RECORDED_TOOLS}{run}"), book, read_as }
    }

    /// Changes arguments and questions into those of the recorded run, in which texts were replaced. The function also gets the conversation.
    #[doc(hidden)]
    pub fn read_as(
        mut self,
        read_as: impl Fn(&Messages, &Value) -> Value + Send + Sync + 'static,
    ) -> Self {
        self.read_as = Arc::new(read_as);
        self
    }

    /// The run whose records answer the calls of another, as the first records of that say; none if its tools run.
    ///
    /// # Errors
    /// A log that cannot be read, or a damaged record.
    #[doc(hidden)]
    pub async fn named_in(log: &dyn Log, run: &str) -> Result<Option<RunId>> {
        let first = log.read(run, 1, 2).await?;
        for record in first {
            if let Some(
                Fact::RunStarted { about: Some(about), .. }
                | Fact::Resumed { about: Some(about), .. },
            ) = record.fact()?
                && let Some(run) = about.answering_run()
            {
                return Ok(Some(run.into()));
            }
        }
        Ok(None)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next outcome of a call. The last one stays.
    fn outcome(&self, name: &str, arguments: &Value) -> Option<Outcome> {
        let book = &mut *self.book();
        let Some(known) = book.outcomes.get_mut(&key(name, arguments)) else {
            let call = format!("{name} {arguments}");
            book.unknown.push(UnknownCall { call, is_rejected: false });
            return None;
        };
        if known.len() > 1 { known.pop_front() } else { known.front().cloned() }
    }

    /// The calls so far that the recorded run does not have.
    #[doc(hidden)]
    pub fn unknown(&self) -> Vec<UnknownCall> {
        self.book().unknown.clone()
    }

    /// What a call came to.
    #[doc(hidden)]
    pub fn answer(
        &self,
        tool: &str,
        arguments: &Value,
        context: ToolContext,
    ) -> BoxFuture<ToolOutcome> {
        let known = self.outcome(tool, &(self.read_as)(context.conversation(), arguments));
        Box::pin(async move {
            let Some(Outcome { outcome, sub_run }) = known else {
                return ToolOutcome::error(UNKNOWN);
            };
            if let Some(spent) = sub_run {
                let spent = async { Ok::<_, mynah_data::Error>(spent) };
                if let Err(error) = context.side_effect(SUB_RUN, spent).await {
                    return ToolOutcome::error(error.to_string());
                }
            }
            outcome
        })
    }

    /// Decides as in the recorded run what another run waits for. None if it has ended.
    ///
    /// # Errors
    /// A question that the recorded run does not answer.
    #[doc(hidden)]
    pub fn decide(
        &self,
        result: &ChatResult,
        mut resume: Resume,
    ) -> std::result::Result<Option<Resume>, String> {
        let read_as = |value: &Value| (self.read_as)(&result.thread.messages, value);
        match result.halted_reason {
            HaltReason::ManualToolCalls => {
                for call in result.manual_tool_calls() {
                    // A decision is used once: a person who approved a call did not approve a second one.
                    let arguments = read_as(&call.arguments);
                    let key = key(&call.name, &arguments);
                    let book = &mut *self.book();
                    resume = match book.decisions.get_mut(&key).and_then(VecDeque::pop_front) {
                        Some(Decision::Approve) => resume.approve(&call.id),
                        Some(Decision::ApproveWith(other)) => resume.approve_with(&call.id, other),
                        Some(Decision::Result(result)) => resume.tool_result(&call.id, result),
                        Some(Decision::Reject(why)) => resume.reject(&call.id, why),
                        None => {
                            let unknown = format!("{} {arguments}", call.name);
                            book.unknown.push(UnknownCall { call: unknown, is_rejected: true });
                            resume.reject(&call.id, UNKNOWN)
                        }
                    };
                }
                Ok(Some(resume))
            }
            HaltReason::AskUser => {
                let id = result.pending_tool_call_id.as_deref().unwrap_or_default();
                let question =
                    read_as(&result.pending_question.as_deref().unwrap_or_default().into());
                let question = question.as_str().unwrap_or_default();
                let calls = result.thread.messages.iter().flat_map(|message| message.tool_calls());
                let tool = calls.filter(|call| call.id == id).last().map(|call| &call.name);
                let answers = &mut self.book().answers;
                let answer = tool
                    .and_then(|tool| answers.get_mut(&question_key(tool, question)))
                    .and_then(VecDeque::pop_front);
                let answer = answer.ok_or_else(|| question.to_owned())?;
                Ok(Some(resume.message(Message::clone(&answer))))
            }
            _ => Ok(None),
        }
    }
}

impl ToolExecutor for RecordedTools {
    fn name(&self) -> &str {
        &self.name
    }

    fn execute(
        &self,
        tool: &Tool,
        arguments: Value,
        context: ToolContext,
    ) -> BoxFuture<Result<ToolOutcome>> {
        let answer = self.answer(tool.name(), &arguments, context);
        Box::pin(async move { Ok(answer.await) })
    }
}

fn question_key(tool: &str, question: &str) -> String {
    format!("{tool} {question}")
}

/// A key that equal calls share. The order of arguments does not count.
fn key(name: &str, arguments: &Value) -> String {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields: BTreeMap<_, _> =
                    fields.iter().map(|(name, value)| (name.clone(), sorted(value))).collect();
                fields.into_iter().collect()
            }
            Value::Array(items) => items.iter().map(sorted).collect(),
            other => other.clone(),
        }
    }
    format!("{name} {}", sorted(arguments))
}
