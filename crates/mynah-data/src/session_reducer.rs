//! Folding a session's turn from its events.

use std::borrow::Cow;

use crate::{
    Breach, ChatResult, Collector, Error, Event, HaltReason, Message, RunId, Session, StepResult,
};

/// The result of a session's turn.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TurnResult {
    /// The result of a chat.
    Chat(Box<ChatResult>),
    /// The result of one step.
    Step(Box<StepResult>),
}

impl TurnResult {
    /// The result of a chat; none if it was a step.
    pub fn into_chat(self) -> Option<ChatResult> {
        match self {
            Self::Chat(result) => Some(*result),
            Self::Step(_) => None,
        }
    }

    /// The result of a step; none if it was a chat, or a step that was cut off.
    pub fn into_step(self) -> Option<StepResult> {
        match self {
            Self::Step(result) => Some(*result),
            Self::Chat(_) => None,
        }
    }

    /// The run as which the turn was recorded.
    pub fn run_id(&self) -> Option<RunId> {
        match self {
            Self::Chat(result) => result.run_id.clone(),
            Self::Step(result) => result.run_id.clone(),
        }
    }

    /// The text of the last answer, complete or not. Empty if there is none.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Chat(result) => result.text(),
            Self::Step(result) => result.response.text(),
        }
    }

    /// The error that ended the turn.
    pub fn error(&self) -> Option<Error> {
        match self {
            Self::Chat(result) => result.error(),
            Self::Step(result) => result.error(),
        }
    }

    /// The limit that the turn passed, if its budget ended it.
    pub fn breach(&self) -> Option<Breach> {
        match self {
            Self::Chat(result) => result.breach(),
            Self::Step(result) => result.breach(),
        }
    }
}

/// Folds the events of a session's turn into the session after it.
///
/// Events may come from another process. The reducer needs only the session before the turn and the
/// message that was appended to it.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::{Event, Message, Session, SessionReducer, Status};
///
/// let mut reducer = SessionReducer::chat(Session::new(), Some(Message::user("hi")));
/// reducer.apply(&Event::message_started());
/// reducer.apply(&Event::text_delta("Hel"));
/// // The stream was cut off here: what was said stays.
/// let (session, _) = reducer.finalize();
/// assert_eq!(session.status(), Status::Idle);
/// assert_eq!(session.thread.messages.len(), 2);
/// ```
#[doc(alias = "StreamReducer")]
#[derive(Clone, Debug, PartialEq)]
pub struct SessionReducer {
    session: Session,
    collector: Collector,
    is_step: bool,
    refused: Option<Error>,
}

impl SessionReducer {
    /// For a chat on this session, which appended `message` first.
    pub fn chat(session: Session, message: Option<Message>) -> Self {
        let mut thread = session.thread.clone();
        thread.extend(message);
        Self { session, collector: Collector::new(thread), is_step: false, refused: None }
    }

    /// For one step on this session.
    pub fn step(session: Session) -> Self {
        let collector = Collector::new(session.thread.clone());
        Self { session, collector, is_step: true, refused: None }
    }

    /// Folds one event in.
    pub fn apply(&mut self, event: &Event) {
        self.collector.apply(event);
    }

    /// Leaves the session as it is, because the turn was refused before it began.
    #[doc(hidden)]
    pub fn refuse(&mut self, error: &Error) {
        self.refused = Some(error.clone());
    }

    /// The session after the events so far, and the turn's result. May be called repeatedly.
    pub fn finalize(&self) -> (Session, TurnResult) {
        if let Some(error) = &self.refused {
            let mut result = ChatResult::new(self.session.thread.clone(), HaltReason::Error);
            result.metadata.insert("error".to_owned(), error.to_value());
            return (self.session.clone(), TurnResult::Chat(Box::new(result)));
        }
        match self.collector.steps().first() {
            Some(step) if self.is_step => {
                (self.session.apply_step(step), TurnResult::Step(Box::new(step.clone())))
            }
            _ => {
                let result = self.collector.chat_result();
                let session = match (self.is_step, &result.halted_reason) {
                    // A step that never completed leaves the session unchanged.
                    (true, HaltReason::Cancelled) => self.session.clone(),
                    _ => self.session.apply_chat(&result),
                };
                (session, TurnResult::Chat(Box::new(result)))
            }
        }
    }
}
