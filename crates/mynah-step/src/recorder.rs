//! Writing a run's facts.

use std::{
    borrow::Cow,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::{Duration, SystemTime},
};

use mynah_data::{Error, LogReason, Result};
use mynah_log::{Append, Chain, Durability, Fact, Head, Lease, Log, Record, Seal, Totals};
use tokio::{
    task::coop::unconstrained,
    time::{Instant, Sleep},
};

use crate::{BoxFuture, LEASE, MetricsSink, World, take_over};

/// Writes a run's facts into a log.
pub struct Recorder {
    log: Arc<dyn Log>,
    world: Arc<dyn World>,
    pub(crate) chain: Chain,
    /// When the clock was last read, and the first time that a record may tell.
    now: i64,
    not_before: i64,
    totals: Totals,
    /// Whether the last fact says that the run waits or has ended.
    over: bool,
    sealed: bool,
    pending: Vec<Record>,
    /// How many bytes wait to be written.
    waiting: usize,
    /// Whether something waits that must be on its way before anything more is told.
    owes: bool,
    /// Where the log's copy of the chain ends.
    pub(crate) written: Option<Head>,
    writing: Option<BoxFuture<Result<Head>>>,
    /// The longest that an append may take, and when the one under way has taken it.
    emit_timeout: Option<Duration>,
    late: Option<Pin<Box<Sleep>>>,
    failed: Option<Error>,
    durability: Option<Durability>,
    /// Whether the next fact is the first of another process.
    seam: Option<Fact>,
    lease: Option<Lease>,
    /// When it was last asked for: a clock that is set tells nothing of how long it is held.
    held: Instant,
    /// Until when the append under way keeps it, and when that was asked.
    holding: Option<(i64, Instant)>,
    /// Whether the lease is still to be taken, and the taking.
    pub(crate) takes_lease: bool,
    taking: Option<BoxFuture<Result<Lease>>>,
    /// When the lease is to be kept for longer, and the keeping.
    beat: Option<Pin<Box<Sleep>>>,
    keeping: Option<BoxFuture<Result<(Lease, Instant)>>>,
    metrics: Option<Arc<dyn MetricsSink>>,
    /// The kinds of the records that are being written, and since when they are, for who is told.
    began: Option<(Vec<Cow<'static, str>>, Instant)>,
}

/// How many records, and how many bytes, may wait to be written before whoever makes more has to wait: neither a slow disk nor
/// a long turn holds a run in memory.
const MAX_WAITING: (usize, usize) = (1_024, 4 << 20);

/// How often the lease of a run is renewed that is polled and has nothing to write.
const BEAT: Duration = Duration::from_secs(1);

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
            now: i64::MIN,
            not_before: i64::MIN,
            totals,
            over: false,
            sealed: false,
            pending: Vec::new(),
            waiting: 0,
            owes: false,
            written,
            writing: None,
            emit_timeout: None,
            late: None,
            failed: None,
            durability: None,
            seam: None,
            lease: None,
            held: Instant::now(),
            holding: None,
            takes_lease: false,
            taking: None,
            beat: None,
            keeping: None,
            metrics: None,
            began: None,
        }
    }

    /// The same, and tells how long writing takes.
    pub fn metered(mut self, metrics: Option<Arc<dyn MetricsSink>>) -> Self {
        self.metrics = metrics;
        self
    }

    /// The same, by the holder of a lease.
    pub fn with_lease(mut self, lease: Lease) -> Self {
        self.hold(lease);
        self
    }

    /// The same, with records that are this safe; none leaves it to the log.
    pub fn with_durability(mut self, durability: Option<Durability>) -> Self {
        self.durability = durability;
        self
    }

    /// The same, which gives up a log that takes longer than this to append.
    pub fn with_emit_timeout(mut self, limit: Option<Duration>) -> Self {
        self.emit_timeout = limit;
        self
    }

    /// The same, with records of which none is from before this time, whatever the clock says: what follows another run is
    /// told after it.
    pub fn not_before(mut self, time: i64) -> Self {
        self.not_before = time;
        self
    }

    /// The same for a new run, which is this writer's from its first append on.
    pub fn with_new_lease(self) -> Self {
        let owner = new_owner(self.world.as_ref());
        let run = Arc::clone(self.chain.run());
        self.with_lease(Lease::new(run, owner, 1, i64::MIN))
    }

    /// The same for a run that goes on, which becomes this writer's before it does: see [`take_over`].
    pub(crate) fn taking_lease(mut self) -> Self {
        self.takes_lease = true;
        self
    }

    /// The same, in another process than what was written before: whoever reads the records sees where the one ended and
    /// the other began.
    pub(crate) fn after_seam(mut self, seam: Fact) -> Self {
        self.seam = Some(seam);
        self
    }

    /// Takes a fact. One that ends the run is followed by the seal.
    ///
    /// # Errors
    /// A fact that has no deterministic encoding, stands before the beginning or after the end; a log that could not be written
    /// before.
    pub fn commit(&mut self, fact: &Fact) -> Result<()> {
        self.is_ours()?;
        if self.chain.head().is_none() != matches!(fact, Fact::RunStarted { .. }) {
            return Err(Error::invalid_option("fact", "out_of_place").with_message(format!(
                "validation failed: fact: a run begins once, with run_started, and {} is out of its place",
                fact.kind()
            )));
        }
        if self.sealed {
            return Err(Error::log(LogReason::Sealed)
                .with_message(format!("log error: sealed: run {} has ended", self.chain.run())));
        }
        if matches!(fact, Fact::Resumed { .. }) {
            self.seam = None;
        }
        self.go_on()?;
        self.push(fact)?;
        if ends(fact) { self.seal() } else { Ok(()) }
    }

    /// Tells that another process goes on, where it does and has not told yet.
    pub(crate) fn go_on(&mut self) -> Result<()> {
        self.seam.take().map_or(Ok(()), |seam| self.push(&seam))
    }

    /// Seals a run whose end is recorded already.
    ///
    /// # Errors
    /// A seal that has no deterministic encoding.
    pub fn seal(&mut self) -> Result<()> {
        self.sealed = true;
        let seal = Seal::new(self.chain.root(), self.totals.clone());
        self.push(&Fact::Sealed(seal))
    }

    /// The run's id.
    pub fn run_id(&self) -> &Arc<str> {
        self.chain.run()
    }

    /// Takes a fact that is copied from another run: an end in it is not sealed.
    ///
    /// # Errors
    /// A fact that has no deterministic encoding.
    pub fn push(&mut self, fact: &Fact) -> Result<()> {
        self.now = nanos(&*self.world);
        let mut salt = [0; 16];
        salt[..8].copy_from_slice(&self.world.random().to_be_bytes());
        salt[8..].copy_from_slice(&self.world.random().to_be_bytes());
        let record = self.chain.append(self.now.max(self.not_before), salt, fact)?;
        self.totals.count(fact);
        self.over = matches!(fact, Fact::Suspended(_) | Fact::Sealed(_));
        self.owes |= is_owed(fact);
        self.waiting +=
            record.envelope_bytes().len() + record.body().map_or(0, |body| body.payload.len());
        self.pending.push(record);
        Ok(())
    }

    /// From here on the run is this writer's, by this lease.
    pub(crate) fn hold(&mut self, lease: Lease) {
        (self.lease, self.held) = (Some(lease), Instant::now());
    }

    /// Whether so much waits to be written that nothing should be added to it.
    pub(crate) fn is_full(&self) -> bool {
        let (records, bytes) = MAX_WAITING;
        self.pending.len() >= records || self.waiting >= bytes
    }

    /// Whether more can be written.
    pub(crate) fn is_ours(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Nothing more is written, for this reason.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// Waits until the run is this writer's.
    pub(crate) fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if !self.takes_lease {
            return Poll::Ready(Ok(()));
        }
        let taking = self.taking.get_or_insert_with(|| {
            let (log, world) = (Arc::clone(&self.log), Arc::clone(&self.world));
            let (run, head) = (Arc::clone(self.chain.run()), self.written);
            Box::pin(async move { take_over(&*log, &*world, &run, head).await })
        });
        let taken = ready!(taking.as_mut().poll(cx));
        self.taking = None;
        self.takes_lease = false;
        self.hold(taken?);
        Poll::Ready(Ok(()))
    }

    /// Whether the lease of a run that goes on is to be kept now.
    pub(crate) fn is_to_keep(&self) -> bool {
        self.keeping.is_some() || self.beat.as_ref().is_none_or(|beat| beat.is_elapsed())
    }

    /// Keeps the lease of a run that goes on.
    ///
    /// # Errors
    /// The run is not this writer's any more; told once.
    pub(crate) fn poll_keep(&mut self, cx: &mut Context<'_>) -> Result<()> {
        // What was never written belongs to nobody, and what ended to nobody any more: of a run whose end is under way, the log
        // may know before its writer does.
        if self.written.is_none() || self.over || self.failed.is_some() {
            return Ok(());
        }
        while let Some(lease) = &self.lease {
            if self.keeping.is_none() {
                let beat = self.beat.get_or_insert_with(|| Box::pin(tokio::time::sleep(BEAT)));
                // The timer of a task that has used up its turn would not begin.
                if pin!(unconstrained(beat.as_mut())).poll(cx).is_pending() {
                    break;
                }
                self.keeping = Some(self.renewal(lease.clone()));
            }
            match self.poll_renewed(cx) {
                Poll::Ready(renewed) => renewed?,
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Waits until the run is this writer's for certain: a lease that has run out may be another's by now.
    pub(crate) fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.is_ours()?;
        ready!(self.poll_renewed(cx))?;
        match &self.lease {
            // A machine that slept has a clock that knows of it, and one that does not.
            Some(lease) if self.held.elapsed() >= LEASE || lease.until <= nanos(&*self.world) => {
                self.keeping = Some(self.renewal(lease.clone()));
                self.poll_renewed(cx)
            }
            _ => Poll::Ready(Ok(())),
        }
    }

    fn renewal(&self, lease: Lease) -> BoxFuture<Result<(Lease, Instant)>> {
        let (log, now, asked) = (Arc::clone(&self.log), nanos(&*self.world), Instant::now());
        Box::pin(async move {
            let kept = log.lease(&lease.run, &lease.owner, LEASE, now).await?;
            if kept.token == lease.token {
                return Ok((kept, asked));
            }
            // It was another's, who let go of it.
            log.release(&kept).await?;
            Err(Error::log(LogReason::Fenced)
                .with_message(format!(
                    "log error: fenced: run {} was taken over by somebody else",
                    lease.run
                ))
                .with("run_id", &*lease.run))
        })
    }

    /// Waits for the renewal under way.
    fn poll_renewed(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(keeping) = &mut self.keeping else { return Poll::Ready(Ok(())) };
        let renewed = ready!(keeping.as_mut().poll(cx));
        (self.keeping, self.beat) = (None, None);
        match renewed {
            Ok((lease, asked)) => (self.lease, self.held) = (Some(lease), asked),
            Err(error) => self.failed = Some(error),
        }
        Poll::Ready(self.is_ours())
    }

    /// Whether the log knows that the run waits or has ended.
    fn is_over(&self) -> bool {
        self.over && self.pending.is_empty() && self.writing.is_none() && self.failed.is_none()
    }

    /// Waits until the log was given what it must be given before anything more is told. What fails is told when it is flushed.
    pub(crate) fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.owes || self.poll_flush(cx).is_ready() {
            return Poll::Ready(());
        }
        // What was owed may have been given to it just now.
        if self.owes { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Waits until nothing is left to write.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            if let Some(error) = &self.failed {
                return Poll::Ready(Err(error.clone()));
            }
            if let Some(writing) = &mut self.writing {
                let written = match writing.as_mut().poll(cx) {
                    Poll::Ready(written) => written,
                    Poll::Pending => {
                        let late = |late: &mut Pin<Box<Sleep>>| late.as_mut().poll(cx).is_ready();
                        if !self.late.as_mut().is_some_and(late) {
                            return Poll::Pending;
                        }
                        Err(too_late())
                    }
                };
                if let (Some(metrics), Some((kinds, began))) = (&self.metrics, self.began.take()) {
                    let kinds: Vec<&str> = kinds.iter().map(|kind| &**kind).collect();
                    let failure = written.as_ref().err().map(Error::reason);
                    metrics.append(&kinds, failure, began.elapsed());
                }
                match written {
                    Ok(head) => {
                        self.written = Some(head);
                        if let (Some(lease), Some((until, asked))) =
                            (&mut self.lease, self.holding.take())
                        {
                            (lease.until, self.held) = (until, asked);
                        }
                    }
                    Err(error) => self.failed = Some(error),
                }
                self.writing = None;
                continue;
            }
            if self.pending.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let batch = self.batch();
            let kinds = || batch.records.iter().map(|record| record.envelope().kind.clone());
            self.began = self.metrics.as_ref().map(|_| (kinds().collect(), Instant::now()));
            let log = Arc::clone(&self.log);
            self.late = self.emit_timeout.map(|limit| Box::pin(tokio::time::sleep(limit)));
            self.writing = Some(Box::pin(async move { log.append(batch).await }));
        }
    }

    /// What waits to be written. It follows what is being written.
    fn batch(&mut self) -> Append {
        let records = std::mem::take(&mut self.pending);
        (self.waiting, self.owes) = (0, false);
        let expected = records
            .first()
            .map(Record::envelope)
            .and_then(|first| first.prev.map(|hash| Head { seq: first.seq - 1, hash }));
        let batch = Append::new(Arc::clone(self.chain.run()), expected, records);
        let mut batch = batch.durability(self.durability);
        if let Some(lease) = &self.lease {
            batch.fence = expected.map(|_| lease.token);
            // An append that is made anyway keeps the lease, where it is time.
            if lease.until < self.now.saturating_add(span(LEASE - BEAT)) {
                let until = self.now.saturating_add(span(LEASE));
                batch = batch.held(lease.owner.as_str(), until);
                (self.holding, self.beat) = (Some((until, Instant::now())), None);
            }
        }
        batch
    }
}

impl Drop for Recorder {
    /// A run that is left has its records, and whoever goes on with it need not wait for the lease to run out. The log is asked
    /// once, and nobody waits for it: what comes of it is its own affair.
    fn drop(&mut self) {
        let begun = self.written.is_some() || self.writing.is_some();
        if !begun || self.is_over() {
            return;
        }
        if !self.pending.is_empty() && !self.takes_lease && self.failed.is_none() {
            let (log, batch) = (Arc::clone(&self.log), self.batch());
            ask_once(async move { log.append(batch).await.map(drop) });
        }
        if let Some(lease) = self.lease.take() {
            let log = Arc::clone(&self.log);
            ask_once(async move { log.release(&lease).await });
        }
    }
}

/// Lets something begin that goes on by itself.
fn ask_once(asked: impl Future<Output = Result<()>> + Send + 'static) {
    let _ = Box::pin(asked).as_mut().poll(&mut Context::from_waker(Waker::noop()));
}

fn too_late() -> Error {
    Error::log(LogReason::Unavailable)
        .with_message("log error: unavailable: records were not safe within the emit_timeout")
}

/// A name that nobody else has.
pub(crate) fn new_owner(world: &dyn World) -> String {
    format!("{:016x}{:016x}", world.random(), world.random())
}

/// The time, as logs count it.
pub(crate) fn nanos(world: &dyn World) -> i64 {
    span(world.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

pub(crate) fn span(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Whether a fact must be on its way to the log before anything more is told: what came of a tool and what a person said, which
/// nobody can do again, that the model was asked, by this process or again by another, whose answer is told, and what it said.
fn is_owed(fact: &Fact) -> bool {
    use Fact::{AssistantCompleted, Resumed, ToolCompleted, ToolFailed, TurnStarted, UserMessage};
    matches!(
        fact,
        ToolCompleted { .. }
            | ToolFailed { .. }
            | TurnStarted { .. }
            | AssistantCompleted { .. }
            | Resumed { .. }
            | UserMessage { .. }
    )
}

/// Whether nothing but the seal can follow.
pub(crate) fn ends(fact: &Fact) -> bool {
    matches!(fact, Fact::Completed(_) | Fact::Failed(_) | Fact::Cancelled { .. })
}
