//! A run's records as they come.

use std::collections::VecDeque;

use mynah_data::{ErrorKind, LogReason, Result, RunId};

use crate::{Kind, Log, Record};

/// A run's records from a place on, those to come included, until its seal.
///
/// Nothing is skipped or repeated, with any number of writers. A slow reader costs the log nothing:
/// records stay in the log until they are read.
#[derive(Debug)]
pub struct Tail<L> {
    log: L,
    run: RunId,
    seen: u64,
    ready: VecDeque<Record>,
    is_over: bool,
}

const PORTION: usize = 256;

impl<L: Log> Tail<L> {
    /// The records of a run from this place on.
    pub fn new(log: L, run: impl Into<RunId>, from: u64) -> Self {
        let seen = from.saturating_sub(1);
        Self { log, run: run.into(), seen, ready: VecDeque::new(), is_over: false }
    }

    /// The next record, when it is there; none after the seal.
    ///
    /// # Errors
    /// A log that cannot be read. The next call retries.
    pub async fn next(&mut self) -> Result<Option<Record>> {
        while self.ready.is_empty() && !self.is_over {
            let records = self.log.read(&self.run, self.seen + 1, PORTION).await?;
            if records.is_empty() {
                match self.log.wait(&self.run, self.seen).await {
                    // It begins beyond the end.
                    Err(error) if error.kind() == ErrorKind::Log(LogReason::Sealed) => {
                        self.is_over = true;
                    }
                    result => result?,
                }
            }
            self.ready = records.into();
        }
        let Some(record) = self.ready.pop_front() else { return Ok(None) };
        self.seen = record.seq();
        self.is_over = record.kind() == Kind::Sealed;
        Ok(Some(record))
    }
}
