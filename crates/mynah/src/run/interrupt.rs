//! A run that is stopped from outside: by its caller, or by its deadline.

use std::task::Context;

use mynah_data::{Error, Event, HaltReason, Metadata, StreamReason};
use mynah_log::{End, Extent, Fact};

use super::driver::{Driver, Phase};

impl Driver {
    /// Why the run was ended here, in a run performed again.
    pub(super) fn cancelled_here(&self) -> Option<HaltReason> {
        match self.tape.upcoming_of("cancelled") {
            Some(Fact::Cancelled { end, .. }) => Some(end.reason.clone()),
            _ => None,
        }
    }

    /// Why the run must stop now, if it must.
    pub(super) fn interrupted(&mut self, cx: &mut Context<'_>) -> Option<HaltReason> {
        if let Some(reason) = self.cancelled_here() {
            // Where the run was cancelled, it is cancelled again.
            return self.is_between().then_some(reason);
        }
        // What is brought back has happened: nobody can end it before it is there again.
        if self.tape.is_resuming() && self.tape.has_upcoming() {
            return None;
        }
        if self.cancel.poll_cancelled(cx) {
            return Some(HaltReason::Cancelled);
        }
        // Time is not measured again: what a replay takes says nothing of the run.
        if self.tape.is_replaying() {
            return None;
        }
        // A deadline runs from the first poll on: nothing happens before it, and a runtime need not be there.
        let limit = self.setup.deadline?;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        deadline.as_mut().poll(cx).is_ready().then_some(HaltReason::Deadline)
    }

    /// Whether everything that is recorded of what runs now has happened. Of an answer its end tells.
    pub(super) fn is_between(&self) -> bool {
        matches!(self.phase, Phase::Decide | Phase::Tools(_))
    }

    /// Stops the run, and keeps what there is of it.
    pub(super) fn interrupt(&mut self, reason: HaltReason) {
        let answering = match self.phase {
            Phase::Opening(_) | Phase::Answering(_) => true,
            // A single call that is ended before it began ends like one that was being opened.
            Phase::Decide => self.state.extent != Extent::Chat && self.state.open.is_none(),
            Phase::Announced(_) | Phase::Tools(_) | Phase::Closing(_) | Phase::Done => false,
        };
        let mut metadata = Metadata::new();
        if self.state.extent != Extent::Chat {
            let error = match reason {
                HaltReason::Cancelled => Error::stream(StreamReason::Cancelled),
                _ => Error::stream(StreamReason::Timeout)
                    .with_message("stream error: timeout: the deadline passed"),
            };
            metadata.insert("error".to_owned(), error.to_value());
            if answering && !self.answer.has_completed() {
                self.answer.apply(&Event::Error { error: error.clone() });
            }
            self.ready.push_back(Event::Error { error });
        }
        // Who ends a run from outside knows neither the engine nor what was being said.
        let (end, heard) = match self.tape.upcoming() {
            Some(Fact::Cancelled { end, partial, .. }) => (end.clone(), partial.is_some()),
            _ => {
                let end = End::new(reason.clone(), metadata);
                (self.state.end_of_chat(end, &self.setup.policy), self.answer.has_started())
            }
        };
        let partial = self.cut_off(answering && heard, reason.as_str());
        let cuts = std::mem::take(&mut self.cuts).finish();
        self.cut_off_tools();
        self.commit(Fact::Cancelled { end, partial, cuts });
        self.finish();
    }
}
