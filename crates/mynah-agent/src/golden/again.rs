//! A golden that is run again: by the model, and by its tools or their records.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mynah::{
    BoxFuture, ChatResult, Decision, Engine, HaltReason, Message, Options, Resume, Tool, ToolCall,
    ToolContext, ToolOutcome,
    log::{Effect, Fact, MemoryLog, SUB_RUN},
};
use serde_json::Value;

use super::{Done, Finding, Golden, GoldenError};

/// What a model reads of a call that the golden does not have.
const UNKNOWN: &str = "this call is not in the recorded run";

impl Golden {
    /// Asks this engine the same again. Without `live`, records answer for its tools.
    pub(super) async fn again(
        &self,
        engine: &Engine,
        live: bool,
    ) -> Result<(Made, Vec<Finding>), GoldenError> {
        let recorded = Recorded::new(&self.done.facts);
        // Only handlers are replaced, so that the record of the run is one of this agent.
        let tools = if live { Vec::new() } else { recorded.tools(engine) };
        let (log, mut findings) = (MemoryLog::new(), Vec::new());
        let chat = engine.chat(self.done.asked()).tools(tools.clone()).record(&log);
        let mut result = chat.await?;
        while let Some(run) = result.run_id.clone() {
            let resume = engine.resume(&log, run).tools(tools.clone());
            match recorded.decide(&result, resume) {
                Ok(Some(resume)) => result = resume.await?,
                Ok(None) => {
                    findings.extend(self.done.other_end(&result));
                    break;
                }
                Err(finding) => {
                    findings.push(finding);
                    break;
                }
            }
        }
        let run = result.run_id.map(|run| run.to_string()).unwrap_or_default();
        let done = Done::read(&log, &run).await?;
        Ok((Made { log, run, done }, findings))
    }
}

/// A run that was made.
pub(super) struct Made {
    pub(super) log: MemoryLog,
    pub(super) run: String,
    pub(super) done: Done,
}

/// What tools and a person said in a recorded run.
#[derive(Clone)]
struct Recorded(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    /// What was decided about calls, by the call as the model made it. One that ran without a person counts as approved.
    decisions: BTreeMap<String, VecDeque<Decision>>,
    /// How calls came out, by the call as it ran.
    outcomes: BTreeMap<String, VecDeque<Outcome>>,
    /// What a person answered, by the tool and its question.
    answers: BTreeMap<String, VecDeque<Arc<Message>>>,
}

/// How a call came out.
#[derive(Clone)]
struct Outcome {
    outcome: ToolOutcome,
    /// What an agent spent on it. It counts as if the agent had worked.
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
    fn of(facts: &[(i64, Fact)]) -> Self {
        let (mut book, mut question) = (Self::default(), None);
        let mut calls: BTreeMap<&str, RecordedCall<'_>> = BTreeMap::new();
        for (_, fact) in facts {
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
                _ => {}
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

impl Recorded {
    fn new(facts: &[(i64, Fact)]) -> Self {
        Self(Arc::new(Mutex::new(Book::of(facts))))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next outcome of a call. The last one stays.
    fn outcome(&self, name: &str, arguments: &Value) -> Option<Outcome> {
        let mut book = self.book();
        let known = book.outcomes.get_mut(&key(name, arguments))?;
        if known.len() > 1 { known.pop_front() } else { known.front().cloned() }
    }

    /// Decides as in the golden what a run waits for. None if it has ended.
    fn decide(&self, result: &ChatResult, mut resume: Resume) -> Result<Option<Resume>, Finding> {
        match result.halted_reason {
            HaltReason::ManualToolCalls => {
                for call in result.manual_tool_calls() {
                    // A decision is used once: a person who approved a call did not approve a second one.
                    let key = key(&call.name, &call.arguments);
                    let decisions = &mut self.book().decisions;
                    resume = match decisions.get_mut(&key).and_then(VecDeque::pop_front) {
                        Some(Decision::Approve) => resume.approve(&call.id),
                        Some(Decision::ApproveWith(other)) => resume.approve_with(&call.id, other),
                        Some(Decision::Result(result)) => resume.tool_result(&call.id, result),
                        Some(Decision::Reject(why)) => resume.reject(&call.id, why),
                        Some(_) | None => resume.reject(&call.id, UNKNOWN),
                    };
                }
                Ok(Some(resume))
            }
            HaltReason::AskUser => {
                let id = result.pending_tool_call_id.as_deref().unwrap_or_default();
                let question = result.pending_question.as_deref().unwrap_or_default();
                let calls = result.thread.messages.iter().flat_map(|message| message.tool_calls());
                let tool = calls.filter(|call| call.id == id).last().map(|call| &call.name);
                let answers = &mut self.book().answers;
                let answer = tool
                    .and_then(|tool| answers.get_mut(&question_key(tool, question)))
                    .and_then(VecDeque::pop_front);
                let unknown = || {
                    let why = format!("asks what the golden does not answer: {question}");
                    Finding::new("end", why)
                };
                let answer = answer.ok_or_else(unknown)?;
                Ok(Some(resume.message(Message::clone(&answer))))
            }
            _ => Ok(None),
        }
    }

    /// The same tools, whose records answer.
    fn tools(&self, engine: &Engine) -> Vec<Tool> {
        let tools = engine.resolve_tools(&Options::new()).into_iter();
        let answered = |tool: Tool| {
            let (recorded, name) = (self.clone(), tool.name().to_owned());
            tool.with_handler(Arc::new(move |arguments: Value, context: ToolContext| {
                let known = recorded.outcome(&name, &arguments);
                Box::pin(async move {
                    let Some(Outcome { outcome, sub_run }) = known else {
                        return ToolOutcome::error(UNKNOWN);
                    };
                    if let Some(spent) = sub_run {
                        let spent = async { Ok::<_, mynah::Error>(spent) };
                        if let Err(error) = context.side_effect(SUB_RUN, spent).await {
                            return ToolOutcome::error(error.to_string());
                        }
                    }
                    outcome
                }) as BoxFuture<ToolOutcome>
            }))
        };
        // A tool without a handler is the caller's: its results are decisions.
        tools.filter(|tool| tool.get_handler().is_some()).map(answered).collect()
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
