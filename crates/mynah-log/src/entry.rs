//! What a backend keeps of a run beside its records, and the rules for changing it: the same in
//! every backend.

use std::{sync::Arc, time::Duration};

use mynah_data::{Error, LogReason, Result};

use crate::{Append, Corrupt, Head, Lease, RunSummary};

/// A batch whose records form a chain onto the head that it expects.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) batch: Append,
    /// Whether it ends with the run's seal.
    pub(crate) sealing: bool,
}

impl Checked {
    /// Checks a batch by itself.
    pub(crate) fn new(batch: Append) -> Result<Self> {
        let (mut head, mut sealing) = (batch.expected, false);
        for record in &batch.records {
            let seq = head.map_or(1, |head| head.seq.saturating_add(1));
            let envelope = record.envelope();
            let wrong = |what: String| Corrupt { run: batch.run.to_string(), seq, what };
            let kind = &*envelope.kind;
            let what = if sealing {
                "it follows the seal".to_owned()
            } else if envelope.run != batch.run {
                format!("it belongs to run {}", envelope.run)
            } else if envelope.seq != seq {
                format!("expected record {seq}, found {}", envelope.seq)
            } else if envelope.prev != head.map(|head| head.hash) {
                "it does not name the hash of the record before it".to_owned()
            } else if (seq == 1) != (kind == "run_started") {
                "a run starts once, with its first record".to_owned()
            } else {
                sealing = kind == "sealed";
                head = Some(Head { seq, hash: record.hash() });
                continue;
            };
            return Err(wrong(what).into());
        }
        if batch.records.is_empty() {
            let seq = batch.expected.map_or(1, |head| head.seq.saturating_add(1));
            let what = "an append holds at least one record".to_owned();
            return Err(Corrupt { run: batch.run.to_string(), seq, what }.into());
        }
        Ok(Self { batch, sealing })
    }
}

/// What a log knows of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) summary: RunSummary,
    /// The token of the last lease; 0 if there was none.
    pub(crate) token: u64,
    pub(crate) holder: Option<Holder>,
}

/// Who has the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) owner: String,
    pub(crate) until: i64,
}

impl Entry {
    /// The entry of a run that begins with this batch.
    pub(crate) fn begin(checked: &Checked) -> Result<Self> {
        let Append { run, expected, fence, records } = &checked.batch;
        match records.first() {
            Some(first) if expected.is_none() && fence.is_none() => {
                let summary = RunSummary::begin(first);
                let mut entry = Self { summary, token: 0, holder: None };
                entry.count(checked);
                Ok(entry)
            }
            _ => Err(not_found(run)),
        }
    }

    /// Takes in one more batch, if it may follow.
    pub(crate) fn follow(&mut self, checked: &Checked) -> Result<()> {
        self.admit(&checked.batch)?;
        self.count(checked);
        Ok(())
    }

    fn count(&mut self, checked: &Checked) {
        checked.batch.records.iter().for_each(|record| self.summary.count(record));
    }

    /// Whether a batch may follow. Who lost the run is told so first: that someone else appended
    /// is then no surprise.
    fn admit(&self, batch: &Append) -> Result<()> {
        if self.summary.seal.is_some() {
            return Err(sealed(&batch.run));
        }
        match (batch.fence, &self.holder) {
            (None, None) => {}
            (Some(token), Some(_)) if token == self.token => {}
            (Some(token), _) => return Err(fenced(&batch.run, token)),
            (None, Some(holder)) => return Err(leased(&batch.run, holder)),
        }
        let head = self.summary.head();
        if batch.expected == Some(head) {
            Ok(())
        } else {
            Err(head_mismatch(&batch.run, batch.expected, head))
        }
    }

    /// Gives the run to an owner for a while, if it is free now.
    pub(crate) fn lease(&mut self, owner: &str, term: Duration, now: i64) -> Result<Lease> {
        let term = i64::try_from(term.as_nanos()).unwrap_or(i64::MAX);
        let until = now.saturating_add(term);
        let run = Arc::clone(&self.summary.run_id);
        if self.summary.seal.is_some() {
            return Err(sealed(&run));
        }
        match &self.holder {
            Some(holder) if holder.owner == owner => {}
            Some(holder) if holder.until > now => return Err(leased(&run, holder)),
            _ => self.token += 1,
        }
        self.holder = Some(Holder { owner: owner.to_owned(), until });
        Ok(Lease::new(run, owner, self.token, until))
    }

    /// Takes the run back from a lease.
    pub(crate) fn release(&mut self, lease: &Lease) {
        if self.token == lease.token {
            self.holder = None;
        }
    }
}

fn refused(reason: LogReason, run: &str, why: impl std::fmt::Display) -> Error {
    Error::log(reason).with_message(format!("log error: {reason}: {why}")).with("run_id", run)
}

pub(crate) fn not_found(run: &str) -> Error {
    let why = format!("there is no run {run} in this log; list its runs to see what there is");
    refused(LogReason::RunNotFound, run, why)
}

pub(crate) fn sealed(run: &str) -> Error {
    let why = format!("run {run} has ended and nothing can follow its seal; fork it to go on");
    refused(LogReason::Sealed, run, why)
}

fn fenced(run: &str, token: u64) -> Error {
    let why = format!(
        "lease {token} of run {run} was given back or taken over; \
         stop here, or take a new lease and go on from the run's head"
    );
    refused(LogReason::Fenced, run, why).with("token", token)
}

fn leased(run: &str, holder: &Holder) -> Error {
    let Holder { owner, until } = holder;
    let why = format!(
        "run {run} is held by {owner:?}; append with its lease, \
         or take the run over when the lease has run out"
    );
    let error = refused(LogReason::Leased, run, why);
    error.with("owner", owner.as_str()).with("until", *until)
}

fn head_mismatch(run: &str, expected: Option<Head>, found: Head) -> Error {
    let expected_seq = expected.map_or(0, |head| head.seq);
    let ends = match expected_seq {
        0 => format!("run {run} exists already, with {} records", found.seq),
        seq if seq == found.seq => format!("record {seq} of run {run} is another one"),
        seq => format!("run {run} ends at record {}, not at {seq}", found.seq),
    };
    let why = format!("{ends}: someone else appended; read what there is and go on from its end");
    let error = refused(LogReason::HeadMismatch, run, why);
    error.with("expected_seq", expected_seq).with("seq", found.seq)
}
