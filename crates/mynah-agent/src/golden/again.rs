//! A golden that is run again: by the model, and by its tools or their records.

use std::{
    collections::BTreeMap,
    future::ready,
    sync::{Arc, Mutex, PoisonError},
};

use mynah::{
    BoxFuture, ChatResult, Engine, HaltReason, Message, Options, Resume, Role, Thread, Tool,
    ToolContext, ToolOutcome, log::MemoryLog,
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
        let is_question = |message: &&Arc<Message>| message.role() != Role::Assistant;
        let asked = self.done.messages.iter().take_while(is_question).cloned();
        let thread = asked.fold(Thread::new(), Thread::with);
        let recorded = Recorded::new(&self.done.messages);
        // Only handlers are replaced, so that the record of the run is one of this agent.
        let tools = if live { Vec::new() } else { recorded.tools(engine) };
        let (log, mut findings) = (MemoryLog::new(), Vec::new());
        let mut result = engine.chat(thread).tools(tools.clone()).record(&log).await?;
        while let Some(run) = result.run_id.clone() {
            let resume = engine.resume(&log, run).tools(tools.clone());
            match recorded.decide(&result, resume, live) {
                Ok(Some(resume)) => result = resume.await?,
                Ok(None) => break,
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

/// The results of recorded calls.
#[derive(Clone)]
struct Recorded(Arc<Mutex<BTreeMap<String, Vec<String>>>>);

impl Recorded {
    fn new(messages: &[Arc<Message>]) -> Self {
        let mut results: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for call in messages.iter().flat_map(|message| message.tool_calls()) {
            let is_result = |message: &&Arc<Message>| message.tool_call_id() == Some(&*call.id);
            if let Some(result) = messages.iter().find(is_result) {
                let known = results.entry(key(&call.name, &call.arguments)).or_default();
                known.push(result.text().into_owned());
            }
        }
        Self(Arc::new(Mutex::new(results)))
    }

    /// The next result of a call. The last one stays.
    fn answer(&self, name: &str, arguments: &Value) -> Option<String> {
        let mut results = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = results.get_mut(&key(name, arguments))?;
        if known.len() > 1 { Some(known.remove(0)) } else { known.first().cloned() }
    }

    /// Decides as in the golden what a run waits for. None if it has ended.
    fn decide(
        &self,
        result: &ChatResult,
        mut resume: Resume,
        live: bool,
    ) -> Result<Option<Resume>, Finding> {
        match result.halted_reason {
            HaltReason::Completed => Ok(None),
            HaltReason::ManualToolCalls => {
                for call in result.manual_tool_calls() {
                    resume = match self.answer(&call.name, &call.arguments) {
                        Some(_) if live => resume.approve(&call.id),
                        Some(content) => resume.tool_result(&call.id, content),
                        None => resume.reject(&call.id, UNKNOWN),
                    };
                }
                Ok(Some(resume))
            }
            HaltReason::AskUser => {
                let id = result.pending_tool_call_id.as_deref().unwrap_or_default();
                let calls = result.thread.messages.iter().flat_map(|message| message.tool_calls());
                let call = calls.filter(|call| call.id == id).last();
                let answer = call.and_then(|call| self.answer(&call.name, &call.arguments));
                match answer {
                    Some(answer) => Ok(Some(resume.answer(answer))),
                    None => {
                        let question = result.pending_question.as_deref().unwrap_or_default();
                        let why = format!("asks what the golden does not answer: {question}");
                        Err(Finding::new("end", why))
                    }
                }
            }
            ref reason => {
                let why = result.error().map(|error| format!(": {error}")).unwrap_or_default();
                Err(Finding::new("end", format!("ended with {reason}{why}")))
            }
        }
    }

    /// The same tools, whose records answer.
    fn tools(&self, engine: &Engine) -> Vec<Tool> {
        let tools = engine.resolve_tools(&Options::new()).into_iter();
        let answered = |tool: Tool| {
            let (recorded, name) = (self.clone(), tool.name().to_owned());
            tool.with_handler(Arc::new(move |arguments: Value, _: ToolContext| {
                let outcome = match recorded.answer(&name, &arguments) {
                    Some(content) => ToolOutcome::Ok(content.into()),
                    None => ToolOutcome::error(UNKNOWN),
                };
                Box::pin(ready(outcome)) as BoxFuture<ToolOutcome>
            }))
        };
        tools.map(answered).collect()
    }
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
