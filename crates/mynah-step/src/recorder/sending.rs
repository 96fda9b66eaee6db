//! Giving batches to the log: several at once, in order, and once more after a failure.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use mynah_data::{Error, ErrorKind, LogReason, Result};
use mynah_log::{Append, Head, Log, Record};
use tokio::time::{Instant, sleep};

use super::{Outage, PATIENCE, PAUSES, Recorder, is_temporary, poll_timer};
use crate::{AppendMetric, BoxFuture, world::jittered};

/// How many batches the log is given at once.
const MAX_SENT: usize = 4;

/// A batch that is being appended.
pub(super) struct SentBatch {
    pub(super) batch: Append,
    attempt: Attempt,
}

/// An attempt to append a batch.
enum Attempt {
    /// The next one is to begin.
    None,
    InFlight(BoxFuture<Result<Head>>),
    Over(Result<Head>),
}

impl SentBatch {
    /// Starts an attempt.
    fn send(&mut self, log: &Arc<dyn Log>) {
        let (log, batch) = (Arc::clone(log), self.batch.clone());
        self.attempt = Attempt::InFlight(Box::pin(async move { log.append(batch).await }));
    }

    fn is_in_flight(&self) -> bool {
        matches!(self.attempt, Attempt::InFlight(_))
    }

    /// Whether the log has it, or was given it.
    pub(super) fn is_given(&self) -> bool {
        matches!(self.attempt, Attempt::InFlight(_) | Attempt::Over(Ok(_)))
    }

    /// Whether the log has its records, and no others after them, if this is where the run ends.
    fn ends_at(&self, head: Head) -> bool {
        let last = self.batch.records.last();
        last.is_some_and(|last| last.seq() == head.seq && last.hash() == head.hash)
    }
}

impl Recorder {
    /// Takes one step: an attempt ends, or a batch is sent. Returns false if nothing is left to write.
    pub(super) fn poll_attempts(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        for sent in &mut self.sent {
            if let Attempt::InFlight(writing) = &mut sent.attempt
                && let Poll::Ready(written) = writing.as_mut().poll(cx)
            {
                sent.attempt = Attempt::Over(written);
            }
        }
        // The oldest decides: the others follow its records.
        let is_next = self.sent.len() < MAX_SENT && !self.pending.is_empty();
        match self.sent.front().map(|oldest| &oldest.attempt) {
            Some(Attempt::Over(Err(error))) if is_temporary(error) => {
                let error = error.clone();
                // What the others came to is looked up later.
                if self.sent.iter().any(|sent| sent.is_in_flight()) {
                    return Poll::Pending;
                }
                self.pause(error);
            }
            Some(Attempt::Over(Err(error))) => {
                let error = error.clone();
                let is_mismatch = error.kind() == ErrorKind::Log(LogReason::HeadMismatch);
                if is_mismatch && self.outage.is_some() && self.refused.is_none() {
                    self.refused = Some(error);
                    self.sent.iter_mut().for_each(|sent| sent.attempt = Attempt::None);
                } else {
                    self.give_up(error);
                }
            }
            Some(Attempt::Over(Ok(head))) => {
                let head = *head;
                self.settle(head);
            }
            Some(Attempt::None) => return self.poll_again(cx).map(|()| true),
            Some(Attempt::InFlight(_)) if is_next && self.outage.is_none() && !self.takes_lease => {
                self.send();
            }
            Some(Attempt::InFlight(_)) => return Poll::Pending,
            None if self.pending.is_empty() => return Poll::Ready(false),
            None if self.takes_lease => match ready!(self.poll_take(cx)) {
                Ok(()) => {}
                Err(error) => self.give_up(error),
            },
            None => self.send(),
        }
        Poll::Ready(true)
    }

    /// Gives the log what waits.
    fn send(&mut self) {
        if self.sent.is_empty() {
            self.late = self.emit_timeout.map(|limit| Box::pin(sleep(limit)));
        }
        let mut sent = Box::new(SentBatch { batch: self.batch(), attempt: Attempt::None });
        sent.send(&self.log);
        self.sent.push_back(sent);
    }

    /// Sends the batches once more after a pause. Those that the log has already are left out: it appends none twice, but one
    /// that others follow it would refuse.
    fn poll_again(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(outage) = &mut self.outage {
            ready!(poll_timer(&mut outage.pausing, cx));
        }
        if self.sent.len() > 1 || self.refused.is_some() {
            let looking = self.looking.get_or_insert_with(|| {
                let (log, run) = (Arc::clone(&self.log), self.chain.run_id().clone());
                Box::pin(async move { log.head(&run).await })
            });
            let found = ready!(looking.as_mut().poll(cx));
            self.looking = None;
            match found {
                Ok(head) => {
                    let is_last = |end: Head| self.sent.iter().position(|sent| sent.ends_at(end));
                    let there = head.and_then(is_last).map_or(0, |place| place + 1);
                    if let (0, Some(error)) = (there, self.refused.clone()) {
                        self.give_up(error);
                        return Poll::Ready(());
                    }
                    for head in head.into_iter().cycle().take(there) {
                        self.settle(head);
                    }
                }
                Err(error) if is_temporary(&error) => {
                    self.pause(error);
                    return Poll::Ready(());
                }
                Err(error) => {
                    self.give_up(error);
                    return Poll::Ready(());
                }
            }
        }
        let log = Arc::clone(&self.log);
        self.sent.iter_mut().for_each(|sent| sent.send(&log));
        Poll::Ready(())
    }

    /// The log has the oldest batch.
    fn settle(&mut self, head: Head) {
        (self.written, self.refused) = (Some(head), None);
        self.report(None);
        let sent = self.sent.pop_front();
        let written = sent.iter().flat_map(|sent| &sent.batch.records).map(Record::size);
        self.waiting -= written.sum::<usize>();
        let limit = self.emit_timeout.filter(|_| !self.sent.is_empty());
        self.late = limit.map(|limit| Box::pin(sleep(limit)));
        if self.outage.take().is_some() {
            tracing::info!(run = &**self.chain.run_id(), "the log is available again");
        }
        if let (Some(held), Some(asked)) = (&self.lease, self.holding.take()) {
            held.renewed(asked);
            held.keep();
        }
    }

    /// Waits before the next attempt, unless the log has been unavailable for too long.
    fn pause(&mut self, error: Error) {
        let (shortest, longest) = PAUSES;
        let (began, pause) = match &self.outage {
            Some(outage) => (outage.began, longest.min(outage.pause * 2)),
            None => {
                tracing::warn!(run = &**self.chain.run_id(), %error, "the log is unavailable; its records wait");
                (Instant::now(), shortest)
            }
        };
        if self.emit_timeout.is_none() && began.elapsed() >= PATIENCE {
            return self.give_up(error);
        }
        self.sent.iter_mut().for_each(|sent| sent.attempt = Attempt::None);
        let pausing = Box::pin(sleep(jittered(&*self.world, pause, 0.5)));
        self.outage = Some(Outage { began, pause, pausing, error });
    }

    /// Ends the run: its records cannot be written.
    pub(super) fn give_up(&mut self, error: Error) {
        self.sent.iter_mut().for_each(|sent| sent.attempt = Attempt::None);
        self.report(Some(error.reason()));
        self.fail(error);
    }

    /// Reports the fate of the records of the oldest batch.
    fn report(&mut self, failure: Option<&str>) {
        let (Some(metrics), Some(sent)) = (&self.metrics, self.sent.front()) else { return };
        let batch = &sent.batch;
        let count = batch.records.len().min(self.made.len());
        for (record, made) in batch.records.iter().zip(self.made.drain(..count)) {
            let (kind, took) = (record.kind(), made.elapsed());
            metrics.append(&AppendMetric { kind, failure, took });
        }
    }
}
