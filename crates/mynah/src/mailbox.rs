//! Messages to a run in progress.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use mynah_data::{Message, Result, RunId};
use mynah_log::{InboxMessage, Log};
use mynah_step::BoxFuture;

use crate::{CancelHandle, worker::Signal};

/// The user messages that a run in progress reads before its next model call, and before its end. All clones are the same.
///
/// Answers and decisions stay in the inbox of the log until the run waits for them.
#[derive(Clone)]
pub(crate) struct Mailbox {
    log: Arc<dyn Log>,
    run: RunId,
    cancel: CancelHandle,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The messages that were read from the inbox.
    seen: HashSet<String>,
    /// Those that the run has not read yet, with their ids.
    waiting: VecDeque<(String, Arc<Message>)>,
    /// Whether the inbox was read since the run is performed here.
    is_read: bool,
}

/// A mailbox as the run that reads it has it.
pub(crate) struct Reader {
    mailbox: Mailbox,
    refreshing: Option<BoxFuture<Result<()>>>,
}

impl Mailbox {
    pub(crate) fn new(log: Arc<dyn Log>, run: RunId, cancel: CancelHandle) -> Self {
        Self { log, run, cancel, state: Arc::default() }
    }

    /// Takes in what arrived since. A message to cancel the run does so.
    pub(crate) async fn refresh(&self) -> Result<()> {
        let messages = self.log.inbox(&self.run, usize::MAX).await?;
        self.take_in(&messages);
        Ok(())
    }

    /// Takes in these messages, except those that were taken in before.
    pub(crate) fn take_in(&self, messages: &[InboxMessage]) {
        let mut state = self.lock();
        state.is_read = true;
        for InboxMessage { id, payload, .. } in messages {
            match Signal::read(payload) {
                Some(Signal::Cancel) => self.cancel.cancel(),
                Some(Signal::Message(text)) if state.seen.insert(id.clone()) => {
                    state.waiting.push_back((id.clone(), Arc::new(Message::user(text))));
                }
                _ => {}
            }
        }
    }

    /// The messages with these ids are consumed in another way.
    pub(crate) fn pass_over(&self, ids: &[String]) {
        self.lock().seen.extend(ids.iter().cloned());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reader(self) -> Reader {
        Reader { mailbox: self, refreshing: None }
    }
}

impl Reader {
    pub(crate) fn next(&self) -> Option<(String, Arc<Message>)> {
        self.mailbox.lock().waiting.pop_front()
    }

    /// Whether the inbox was not read yet. A message may have come before anything else looked for it.
    pub(crate) fn is_new(&self) -> bool {
        !self.mailbox.lock().is_read
    }

    /// Looks for messages. A log that fails has none: what follows reports it.
    pub(crate) fn poll_refresh(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let refreshing = self.refreshing.get_or_insert_with(|| {
            let mailbox = self.mailbox.clone();
            Box::pin(async move { mailbox.refresh().await })
        });
        let _ = ready!(refreshing.as_mut().poll(cx));
        self.refreshing = None;
        Poll::Ready(())
    }
}
