//! The messages of a run's inbox, as what it continues with.

use mynah_data::{Message, Result};
use mynah_log::{Fact, RunStatus};

use super::Resume;
use crate::{
    loaded::Loaded,
    worker::{Signal, fitting},
};

impl Resume {
    /// Continues with the messages that were [delivered](crate::deliver) to the run, and consumes them in the commit of the facts
    /// that they become.
    ///
    /// A cancellation is left for a worker, and the run is not continued. Answers and decisions that the run does not wait for are dropped. Of several messages of the user, one is taken at a time.
    #[doc(hidden)]
    pub fn inbox(mut self) -> Self {
        self.takes_inbox = true;
        self
    }

    /// Takes the messages that fit the run as it was read.
    pub(super) async fn take_messages(mut self, loaded: &Loaded) -> Result<Self> {
        let inbox = self.log.inbox(&self.run, usize::MAX).await?;
        let signals = Signal::all(&inbox);
        if signals.iter().any(|(_, signal)| *signal == Signal::Cancel) {
            let is_suspended = matches!(loaded.last(), Some(Fact::Suspended(_)));
            let status = if is_suspended { RunStatus::Suspended } else { RunStatus::Running };
            let why = "a cancellation is in its inbox; a worker ends it, or `cancel_run`";
            return Err(self.refused(status, why));
        }
        if let Some(Fact::Suspended(end)) = loaded.last() {
            let refusal = self.refused(RunStatus::Suspended, "its inbox lacks what it waits for");
            let (resume, consumed) = fitting(self, end, loaded, &signals).ok_or(refusal)?;
            return Ok(Self { consumed, ..resume });
        }
        let open = loaded.state().left_open();
        for (id, signal) in signals {
            match signal {
                Signal::Message(text) if self.message.is_none() => {
                    self.message = Some(Message::user(text));
                }
                Signal::Message(_) => continue,
                signal => {
                    if let Some((call, decision)) = signal.decision()
                        && open.iter().any(|(open, _)| open.id == call)
                    {
                        self = self.decide(call, decision);
                    }
                }
            }
            self.consumed.push(id.to_owned());
        }
        Ok(self)
    }
}
