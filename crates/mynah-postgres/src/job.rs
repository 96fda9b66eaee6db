//! What the writer is asked to do.

use std::time::Duration;

use mynah_data::{Result, RunId};
use mynah_log::{AnswerPart, Head, Lease, Record, backend::Checked};
use tokio::sync::oneshot;

use crate::pending;

/// Something to be written.
pub(crate) enum Job {
    Append(Box<Checked>),
    /// With what was seen of the lease, for a run that is taken from a silent owner.
    Lease {
        run: RunId,
        owner: String,
        term: Duration,
        seen: Option<Option<i64>>,
    },
    Release(Lease),
    Beat {
        process: String,
        term: Duration,
    },
    Deliver {
        run: RunId,
        id: String,
        payload: Vec<u8>,
    },
    KeepPart(Lease, AnswerPart),
    Claim {
        owner: String,
        term: Duration,
        queues: Vec<String>,
        limit: usize,
    },
}

/// What a job gives.
#[derive(Debug)]
pub(crate) enum Reply {
    Head(Head),
    Lease(Lease),
    Leases(Vec<Lease>),
    IsNew(bool),
    IsKept(bool),
    Done,
}

/// A job, and who waits for it.
pub(crate) struct Ask {
    pub(crate) job: Job,
    pub(crate) reply: Option<oneshot::Sender<Result<Reply>>>,
    pub(crate) pending: Option<pending::Job>,
}

impl Ask {
    /// Returns the leases that the caller did not take because it is gone.
    pub(crate) fn answer(mut self, result: Result<Reply>) -> Vec<Lease> {
        // Waiters read the current rows.
        self.pending = None;
        match self.reply.take().map(|reply| reply.send(result)) {
            Some(Err(Ok(Reply::Leases(leases)))) => leases,
            _ => Vec::new(),
        }
    }

    /// A lease is given back, and no caller waits for that.
    pub(crate) fn release(lease: Lease) -> Self {
        Self { job: Job::Release(lease), reply: None, pending: None }
    }

    /// Whether it gives something that no caller would take.
    pub(crate) fn is_moot(&self) -> bool {
        let is_gone = self.reply.as_ref().is_none_or(oneshot::Sender::is_closed);
        is_gone && matches!(self.job, Job::Claim { .. })
    }

    /// Whether the writer itself retries it, because no caller does.
    pub(crate) fn is_owed(&self) -> bool {
        matches!(self.job, Job::Release(_))
    }

    /// About how many bytes it writes.
    pub(crate) fn size(&self) -> usize {
        let size = |record: &Record| record.body().map_or(0, |body| body.payload.len());
        match &self.job {
            Job::Append(checked) => checked.batch.records.iter().map(size).sum(),
            Job::Deliver { payload, .. } => payload.len(),
            Job::KeepPart(_, part) => part.payload.len(),
            _ => 0,
        }
    }

    /// Whether it is a transaction of its own.
    pub(crate) fn is_alone(&self) -> bool {
        match &self.job {
            Job::Claim { .. } => true,
            Job::Append(checked) => !checked.tombstones.is_empty(),
            _ => false,
        }
    }
}
