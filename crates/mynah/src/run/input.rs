//! What enters a run from outside.

use std::sync::Arc;

use mynah_data::{Breach, Event, HaltReason, Message, Response, Result, ToolCall};
use mynah_log::{End, Fact};
use mynah_step::Settled;

use crate::context_policy::ContextView;

/// Anything that can enter a run from outside.
#[derive(Debug)]
pub(super) enum Input {
    /// The model emitted an event.
    ModelEvent(Event),
    /// The model's stream ended. An error before the first event means that the call could not be opened.
    ModelEnded(Result<()>),
    /// A tool call ran to its end.
    ToolFinished { call: Arc<ToolCall>, settled: Settled },
    /// A fact that has its record already: it was made inside a tool, or its record answers for a call.
    Recorded(Box<Fact>),
    /// Another process continues the run, or what the run waited for is there.
    Resumed(Box<Fact>),
    /// A user message to a run that was not waiting.
    Said(Arc<Message>),
    /// The caller or a deadline stops the run. A recorded stop has its end and whether an answer
    /// was cut off: a process that ends a run from outside knows neither the engine nor the answer.
    Interrupted { reason: HaltReason, end: Option<(End, bool)> },
    /// The limit on time is passed. Every other limit is computed from the state.
    LimitReached(Breach),
    /// The time of these calls has come: each is announced for another attempt.
    Woke(Vec<String>),
    /// A time has not come, and the run does not wait for it in this process.
    Parked(End),
    /// The model was asked for a summary of what this view leaves out. An answer that failed has its error.
    Summarised { view: ContextView, summary: Option<Box<Response>> },
    /// Replay only: the run was stopped while the model was asked for a summary.
    SummaryLost,
    /// Replay only: there is nothing left to compare with.
    RecordsEnded,
}
