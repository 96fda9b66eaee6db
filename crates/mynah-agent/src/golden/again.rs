//! A golden that is run again: by the model, and by its tools or their records.

use std::sync::Arc;

use mynah::{Engine, Options, RecordedTools, Tool, ToolContext, UnknownCall, log::MemoryLog};
use serde_json::Value;

use super::{Done, Finding, Golden, GoldenError};

impl Golden {
    /// Asks this engine the same again. Without `live`, records answer for its tools.
    pub(super) async fn again(
        &self,
        engine: &Engine,
        live: bool,
    ) -> Result<(Made, Vec<Finding>), GoldenError> {
        let facts = self.done.facts.iter().map(|(_, fact)| fact);
        let names = self.done.names.afresh();
        let given = names.clone();
        let recorded = RecordedTools::of_facts(&self.done.summary.run_id, facts).read_as(
            move |messages, value| {
                let (mut names, mut value) = (given.clone(), value.clone());
                messages.iter().for_each(|message| drop(names.message(message)));
                names.free(&mut value);
                value
            },
        );
        // Only handlers are replaced, so that the record of the run is one of this agent.
        let tools = if live { Vec::new() } else { answered(&recorded, engine) };
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
                Err(question) => {
                    let why = format!("asks what the golden does not answer: {question}");
                    findings.push(Finding::new("end", why));
                    break;
                }
            }
        }
        let run = result.run_id.map(|run| run.to_string()).unwrap_or_default();
        let done = Done::read(&log, &run).await?.named(names);
        Ok((Made { log, run, done, unrecorded: recorded.unknown() }, findings))
    }
}

/// A run that was made.
pub(super) struct Made {
    pub(super) log: MemoryLog,
    pub(super) run: String,
    pub(super) done: Done,
    /// The calls that the check answered itself, because the golden does not have them.
    pub(super) unrecorded: Vec<UnknownCall>,
}

/// The same tools, whose records answer.
fn answered(recorded: &RecordedTools, engine: &Engine) -> Vec<Tool> {
    let tools = engine.resolve_tools(&Options::new()).into_iter();
    let answered = |tool: Tool| {
        let (recorded, name) = (recorded.clone(), tool.name().to_owned());
        tool.with_handler(Arc::new(move |arguments: Value, context: ToolContext| {
            recorded.answer(&name, &arguments, context)
        }))
    };
    // A tool without a handler is the caller's: its results are decisions.
    tools.filter(|tool| tool.get_handler().is_some()).map(answered).collect()
}
