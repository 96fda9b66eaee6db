//! Writing a run's facts.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::SystemTime,
};

use mynah_data::{Error, LogReason, Result};
use mynah_log::{Append, Chain, Fact, Head, Lease, Log, Record, Seal, Totals};

use tokio::time::Instant;

use crate::{BoxFuture, MetricsSink, World};

/// Writes a run's facts into a log.
pub struct Recorder {
    log: Arc<dyn Log>,
    world: Arc<dyn World>,
    pub(crate) chain: Chain,
    totals: Totals,
    pending: Vec<Record>,
    /// Where the log's copy of the chain ends.
    written: Option<Head>,
    writing: Option<BoxFuture<Result<Head>>>,
    failed: Option<Error>,
    sealed: bool,
    metrics: Option<Arc<dyn MetricsSink>>,
    /// How many records are being written, and since when.
    began: Option<(usize, Instant)>,
    lease: Option<Lease>,
    releasing: Option<BoxFuture<Result<()>>>,
}

impl Recorder {
    /// Writes a new run.
    pub fn new(log: Arc<dyn Log>, world: Arc<dyn World>, run_id: impl Into<Arc<str>>) -> Self {
        Self::after(log, world, Chain::new(run_id), Totals::default())
    }

    /// Goes on with a run that was verified.
    pub fn after(log: Arc<dyn Log>, world: Arc<dyn World>, chain: Chain, totals: Totals) -> Self {
        let written = chain.head();
        Self {
            log,
            world,
            chain,
            totals,
            pending: Vec::new(),
            written,
            writing: None,
            failed: None,
            sealed: false,
            metrics: None,
            began: None,
            lease: None,
            releasing: None,
        }
    }

    /// The same, and tells how long writing takes.
    pub fn metered(mut self, metrics: Option<Arc<dyn MetricsSink>>) -> Self {
        self.metrics = metrics;
        self
    }

    /// The same, by the holder of a lease.
    pub fn with_lease(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Takes a fact. One that ends the run is followed by the seal.
    ///
    /// # Errors
    /// A fact that has no deterministic encoding, or comes after the end; a log that could not be written before.
    pub fn commit(&mut self, fact: &Fact) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.sealed {
            return Err(Error::log(LogReason::Sealed)
                .with_message(format!("log error: sealed: run {} has ended", self.chain.run())));
        }
        self.push(fact)?;
        if ends(fact) { self.seal() } else { Ok(()) }
    }

    pub(crate) fn seal(&mut self) -> Result<()> {
        self.sealed = true;
        let seal = Seal::new(self.chain.root(), self.totals.clone());
        self.push(&Fact::Sealed(seal))
    }

    /// The run's id.
    pub fn run_id(&self) -> &Arc<str> {
        self.chain.run()
    }

    /// Takes a fact that is copied from another run: an end in it is not this run's.
    ///
    /// # Errors
    /// A fact that has no deterministic encoding.
    pub fn push(&mut self, fact: &Fact) -> Result<()> {
        let since = self.world.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut salt = [0; 16];
        salt[..8].copy_from_slice(&self.world.random().to_be_bytes());
        salt[8..].copy_from_slice(&self.world.random().to_be_bytes());
        let record =
            self.chain.append(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX), salt, fact)?;
        self.totals.count(fact);
        self.pending.push(record);
        Ok(())
    }

    pub(crate) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        std::task::ready!(self.poll_flush(cx))?;
        if let Some(lease) = self.lease.take() {
            let log = Arc::clone(&self.log);
            self.releasing = Some(Box::pin(async move { log.release(&lease).await }));
        }
        match &mut self.releasing {
            // What was not given back runs out by itself.
            Some(releasing) => releasing.as_mut().poll(cx).map(|_| Ok(())),
            None => Poll::Ready(Ok(())),
        }
    }

    /// Waits until nothing is left to write.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            if let Some(error) = &self.failed {
                return Poll::Ready(Err(error.clone()));
            }
            if let Some(writing) = &mut self.writing {
                let written = std::task::ready!(writing.as_mut().poll(cx));
                if let (Some(metrics), Some((records, began))) = (&self.metrics, self.began.take())
                {
                    let failure = written.as_ref().err().map(Error::reason);
                    metrics.append(records, failure, began.elapsed());
                }
                match written {
                    Ok(head) => self.written = Some(head),
                    Err(error) => self.failed = Some(error),
                }
                self.writing = None;
                continue;
            }
            if self.pending.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let records = std::mem::take(&mut self.pending);
            self.began = self.metrics.as_ref().map(|_| (records.len(), Instant::now()));
            let mut batch = Append::new(Arc::clone(self.chain.run()), self.written, records);
            batch.fence = self.lease.as_ref().map(|lease| lease.token);
            let log = Arc::clone(&self.log);
            self.writing = Some(Box::pin(async move { log.append(batch).await }));
        }
    }
}

/// Whether nothing but the seal can follow.
pub(crate) fn ends(fact: &Fact) -> bool {
    matches!(fact, Fact::Completed(_) | Fact::Failed(_) | Fact::Cancelled { .. })
}
