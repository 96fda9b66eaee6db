//! Folding events back into results.

use std::{borrow::Cow, sync::Arc};

use serde_json::{Value, json};

use crate::{
    ASK_USER_SENTINEL, ChatResult, Error, ErrorKind, Event, Halt, HaltReason, Message, Metadata,
    Part, Response, ResponseBuilder, StepResult, StreamReason, Thread, ToolCall, ToolMode,
    ToolOutcome, result::is_final,
};

/// Folds a stream of events into a [`Response`], a [`StepResult`] or a [`ChatResult`].
///
/// It takes any events in any order, and any part of a stream. A stream that was cut off yields
/// what was received, with `halted_reason: cancelled`.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::{Collector, Event, Thread};
/// let mut collector = Collector::new(Thread::from("hi"));
/// collector.apply(&Event::message_started());
/// collector.apply(&Event::text_delta("hel"));
/// let partial = collector.chat_result();
/// assert_eq!(partial.text(), "hel");
/// assert_eq!(partial.halted_reason.as_str(), "cancelled");
/// ```
#[doc(alias = "StreamCollector")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collector {
    thread: Thread,
    answer: ResponseBuilder,
    tool_results: Vec<Arc<Message>>,
    halts: Vec<Halt>,
    /// A finished tool whose text was not reported yet.
    unencoded: Option<(String, ToolOutcome)>,
    steps: Vec<StepResult>,
    chat_result: Option<Box<ChatResult>>,
    error: Option<Error>,
}

impl Collector {
    /// Collects what happens to this thread.
    pub fn new(thread: Thread) -> Self {
        Self { thread, ..Self::default() }
    }

    /// The completed steps.
    pub fn steps(&self) -> &[StepResult] {
        &self.steps
    }

    /// The first error.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Folds one event in.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::ToolExecutionStarted { .. } | Event::ToolExecutionProgress { .. } => {}
            Event::ToolExecutionCompleted { id, result, .. } => {
                self.unencoded = Some((id.clone(), result.clone()));
            }
            Event::ToolResultEncoded { id, content } => self.tool_message(id, content),
            Event::AskUserRequested { tool_call_id, question, opts, .. } => {
                self.tool_message(tool_call_id, ASK_USER_SENTINEL);
                self.halts.push(Halt::AskUser {
                    tool_call_id: tool_call_id.clone(),
                    question: question.clone(),
                    opts: opts.clone(),
                });
            }
            Event::ToolHalt { tool_call_id, reason, result, content, on_tool_error_exception } => {
                self.tool_message(tool_call_id, content);
                self.halts.push(Halt::Tool {
                    tool_call_id: tool_call_id.clone(),
                    reason: reason.clone(),
                    result: result.clone(),
                    exception: on_tool_error_exception.clone(),
                });
            }
            Event::StepCompleted { response, thread, mode, manual_tool_calls } => {
                self.thread = thread.onto(&self.thread);
                let step = self.step(response, &self.thread, *mode, manual_tool_calls);
                self.steps.push(step);
                self.answer = ResponseBuilder::new();
                self.tool_results.clear();
                self.halts.clear();
                self.unencoded = None;
            }
            Event::ChatCompleted { result } => self.chat_result = Some(result.clone()),
            model_event => {
                if let Event::Error { error } = model_event {
                    self.error.get_or_insert_with(|| error.clone());
                }
                self.answer.apply(model_event);
            }
        }
    }

    /// The newest answer: the one in progress, or the last completed one.
    pub fn response(&self) -> Response {
        match self.steps.last() {
            Some(step) if !self.answer.has_started() => step.response.clone(),
            _ => self.answer.response(),
        }
    }

    /// The last completed step, or the received part of the one in progress.
    pub fn step_result(&self) -> StepResult {
        match self.steps.last() {
            Some(step) if !self.answer.has_started() => step.clone(),
            _ => {
                let mut thread = self.thread.clone();
                let response = self.append_open_turn(&mut thread);
                let response = response.unwrap_or_else(|| self.answer.response());
                thread.messages.repair(CUT_SHORT);
                let mut step = self.step(&response, &thread, ToolMode::Auto, &[]);
                if self.halts.is_empty() && self.error.is_none() {
                    step.done &= self.answer.has_completed();
                    step.metadata.insert("halted_reason".to_owned(), json!(HaltReason::Cancelled));
                }
                step
            }
        }
    }

    /// The chat's own result, or the result of a chat that was cut off here.
    #[doc(alias = "to_chat_result")]
    pub fn chat_result(&self) -> ChatResult {
        if let Some(result) = &self.chat_result {
            return ChatResult::clone(result);
        }
        let mut thread = self.thread.clone();
        let mut repaired = thread.messages.repair(CUT_SHORT);
        let open = self.append_open_turn(&mut thread);
        repaired.extend(thread.messages.repair(CUT_SHORT));
        let reason = if self.error.is_some() { HaltReason::Error } else { HaltReason::Cancelled };
        let mut result = ChatResult::new(thread, reason);
        if let Some(error) = &self.error {
            result.metadata.insert("error".to_owned(), error.to_value());
        }
        if !repaired.is_empty() {
            result.metadata.insert("repaired_tool_calls".to_owned(), json!(repaired));
        }
        result.final_response = open.or_else(|| Some(self.steps.last()?.response.clone()));
        result.steps = self.steps.clone();
        result
    }

    fn tool_message(&mut self, id: &str, content: &str) {
        let outcome = self.unencoded.take().filter(|(completed, _)| completed == id);
        let outcome = outcome.map(|(_, outcome)| outcome);
        self.tool_results.push(Arc::new(read_of(id, content, outcome.as_ref())));
    }

    /// Adds the received part of an unfinished turn to a thread, and returns its answer.
    fn append_open_turn(&self, thread: &mut Thread) -> Option<Response> {
        if !self.answer.has_started() {
            return None;
        }
        let response = self.answer.response();
        if !response.message.parts().is_empty() {
            thread.messages.push(Arc::clone(&response.message));
        }
        let mut results = self.sorted_tool_results(&response.message);
        if let Some((id, outcome)) = &self.unencoded {
            results.push(Arc::new(read_of(id, &plain_text(outcome), Some(outcome))));
        }
        thread.messages.extend(results);
        Some(response)
    }

    fn step(
        &self,
        response: &Response,
        thread: &Thread,
        mode: ToolMode,
        manual: &[ToolCall],
    ) -> StepResult {
        let mut step = StepResult::new(thread.clone(), response.clone());
        step.tool_results = self.sorted_tool_results(&response.message);
        let halt = Halt::winner(&self.halts, &response.message);
        step.describe(mode, manual, halt, self.error.as_ref());
        // A provider that only paused must be called again.
        let paused = self.answer.is_paused() && response.tool_calls().next().is_none();
        step.done &= self.error.is_some() || !paused;
        step
    }

    /// Tools finish in any order. Results are in the order of the calls.
    fn sorted_tool_results(&self, message: &Message) -> Vec<Arc<Message>> {
        let mut results = self.tool_results.clone();
        results.sort_by_key(|result| {
            message.tool_calls().position(|call| Some(call.id.as_str()) == result.tool_call_id())
        });
        results
    }
}

/// What the model reads of a call.
fn read_of(id: &str, content: &str, outcome: Option<&ToolOutcome>) -> Message {
    match outcome {
        Some(ToolOutcome::Error { .. }) => Message::tool_error(id, content),
        Some(ToolOutcome::Parts(parts)) => Message::tool_parts(id, parts.iter().cloned()),
        _ => Message::tool_result(id, content),
    }
}

/// The text of a result with more than text.
pub fn parts_text(parts: &[Part]) -> String {
    Message::tool_parts("", parts.iter().cloned()).text().into_owned()
}

/// The text for the model of an outcome that has no text of its own.
fn plain_text(outcome: &ToolOutcome) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match outcome {
        ToolOutcome::Ok(value) | ToolOutcome::Halt { result: value, .. } => text(value),
        ToolOutcome::Error { error, .. } => json!({"error": error}).to_string(),
        ToolOutcome::Parts(parts) => parts_text(parts),
        ToolOutcome::AskUser { .. } => ASK_USER_SENTINEL.to_owned(),
        ToolOutcome::Later { .. } => String::new(),
    }
}

/// The text for the model in place of the results of a turn that was cut off.
pub const CUT_SHORT: &str = "the turn ended before this call had a result";

const CANCELLED: ErrorKind = ErrorKind::Stream(StreamReason::Cancelled);

impl StepResult {
    /// Derives `done` and the metadata from the step's outcome.
    #[doc(hidden)]
    pub fn describe(
        &mut self,
        mode: ToolMode,
        manual: &[ToolCall],
        halt: Option<&Halt>,
        failure: Option<&Error>,
    ) {
        let wants_tools = !is_final(self.response.finish_reason);
        self.done = halt.is_some() || failure.is_some() || !wants_tools;
        self.metadata = match halt {
            Some(halt) => halt.metadata(),
            None => {
                let mut metadata = Metadata::new();
                if mode == ToolMode::Manual && wants_tools {
                    metadata.insert("mode".to_owned(), json!(ToolMode::Manual));
                }
                if !manual.is_empty() {
                    metadata.insert("manual_tool_calls".to_owned(), json!(manual));
                }
                if failure.is_some_and(|error| error.kind() == CANCELLED) {
                    metadata.insert("halted_reason".to_owned(), json!(HaltReason::Cancelled));
                }
                // The answer itself already has these members.
                if let Some(error) = failure.filter(|_| self.response.error().is_none()) {
                    metadata.insert("error".to_owned(), error.to_value());
                }
                metadata
            }
        };
    }

    /// The text of the step's answer.
    pub fn text(&self) -> Cow<'_, str> {
        self.response.text()
    }
}
