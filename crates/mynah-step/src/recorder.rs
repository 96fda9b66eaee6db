//! Writing a run's facts.

use std::{
    collections::VecDeque,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use mynah_data::{Error, ErrorKind, LogReason, Result, RunId};
use mynah_log::{
    Append, Chain, Durability, Fact, Head, Interruption, Lease, Log, Queue, Record, Seal, Totals,
    backend::nanos,
};
use tokio::{
    task::coop::unconstrained,
    time::{Instant, Sleep, sleep},
};

use crate::{
    BoxFuture, LEASE, MetricsSink, RecordedFact, World,
    heartbeat::{Held, KeptLease, Moment},
    is_fresh_branch, process, since_1970, take_over,
    world::jittered,
};

use self::sending::SentBatch;

mod sending;

/// Writes a run's facts into a log.
pub struct Recorder {
    log: Arc<dyn Log>,
    world: Arc<dyn World>,
    pub(crate) chain: Chain,
    /// The earliest time that a record may have.
    not_before: i64,
    totals: Totals,
    /// Whether the last fact says that the run waits or has ended.
    over: bool,
    sealed: bool,
    pending: Vec<Record>,
    /// How many bytes are not yet safe: they wait, or are in flight.
    waiting: usize,
    /// Where the log's copy of the chain ends.
    pub(crate) written: Option<Head>,
    /// Batches that are being appended, in order. A log takes them in the order in which it was given them, so the next need not
    /// wait for the one before, and a log that commits in groups commits both at once.
    sent: VecDeque<Box<SentBatch>>,
    /// Looks up how many of them the log has, after an attempt that failed.
    looking: Option<BoxFuture<Result<Option<Head>>>>,
    /// Why the log refused the oldest after an outage. It may have it from an attempt that seemed to fail.
    refused: Option<Error>,
    /// Since when the log is unavailable, if it is.
    outage: Option<Outage>,
    /// How long a batch may take with all attempts, and the deadline of the current one.
    emit_timeout: Option<Duration>,
    late: Option<Pin<Box<Sleep>>>,
    failed: Option<Error>,
    durability: Option<Durability>,
    /// The seam before the next fact, if that is the first of another process.
    seam: Option<Fact>,
    lease: Option<Arc<Held>>,
    /// When the current append started, if it is measured.
    holding: Option<Moment>,
    /// Whether the lease is still to be taken, and the taking.
    takes_lease: bool,
    taking: Option<BoxFuture<Result<KeptLease>>>,
    /// The renewal that is waited for before an effect.
    renewing: Option<BoxFuture<Result<()>>>,
    metrics: Option<Arc<dyn MetricsSink>>,
    /// When the records were made that are being written or wait, if that is measured.
    made: Vec<Instant>,
    /// The queue of a run that has none.
    queue: Option<Queue>,
    /// The messages that are consumed, each with the record that it became.
    consumed: Vec<(u64, String)>,
    /// When the run can continue, if its last record says that it sleeps.
    wake_at: Option<i64>,
}

/// A time in which a log is unavailable.
struct Outage {
    began: Instant,
    /// How long the pause before the next attempt is, without jitter.
    pause: Duration,
    pausing: Pin<Box<Sleep>>,
    error: Error,
}

/// The pause after the first failed attempt, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));

/// How long a log may be unavailable before a run fails, unless an `emit_timeout` is set.
const PATIENCE: Duration = Duration::from_secs(300);

/// How many records and bytes may wait or be in flight before producers must wait. Neither a slow disk nor a
/// long turn holds a run in memory.
const MAX_WAITING: (usize, usize) = (1_024, 4 << 20);

impl Recorder {
    /// Writes a new run.
    pub fn new(log: Arc<dyn Log>, world: Arc<dyn World>, run_id: impl Into<RunId>) -> Self {
        Self::after(log, world, Chain::new(run_id), Totals::default())
    }

    /// Continues a verified run.
    pub fn after(log: Arc<dyn Log>, world: Arc<dyn World>, chain: Chain, totals: Totals) -> Self {
        let written = chain.head();
        Self {
            log,
            world,
            chain,
            not_before: i64::MIN,
            totals,
            over: false,
            sealed: false,
            pending: Vec::new(),
            waiting: 0,
            written,
            sent: VecDeque::new(),
            looking: None,
            refused: None,
            outage: None,
            emit_timeout: None,
            late: None,
            failed: None,
            durability: None,
            seam: None,
            lease: None,
            holding: None,
            takes_lease: false,
            taking: None,
            renewing: None,
            metrics: None,
            made: Vec::new(),
            queue: None,
            consumed: Vec::new(),
            wake_at: None,
        }
    }

    /// The same, and reports how long each record takes to be safe.
    pub fn metered(mut self, metrics: Option<Arc<dyn MetricsSink>>) -> Self {
        self.metrics = metrics;
        self
    }

    /// The same, by the holder of a lease.
    pub fn with_lease(mut self, lease: KeptLease) -> Self {
        self.lease = lease.into_held();
        self
    }

    /// The same for a run that has no queue: workers may claim it from this one.
    pub fn with_queue(mut self, queue: Option<Queue>) -> Self {
        self.queue = queue;
        self
    }

    /// Removes a message from the run's inbox in the commit of the next record.
    pub fn consume(&mut self, message: String) {
        let next = self.chain.head().map_or(0, |head| head.seq) + 1;
        self.consumed.push((next, message));
    }

    /// The log, the lease of the run and its last record, for what belongs to the run and is no record.
    pub(crate) fn lease(&self) -> Option<(Arc<dyn Log>, Lease, u64)> {
        let lease = self.lease.as_ref()?.lease.clone();
        Some((self.log(), lease, self.chain.head()?.seq))
    }

    /// The log that it writes to.
    pub(crate) fn log(&self) -> Arc<dyn Log> {
        Arc::clone(&self.log)
    }

    /// The same, with records that are this safe; none leaves it to the log.
    pub fn with_durability(mut self, durability: Option<Durability>) -> Self {
        self.durability = durability;
        self
    }

    /// Gives up a log that does not append a batch within this time, failed attempts included. If
    /// not set, an attempt has no time limit, and an unavailable log is given up after five
    /// minutes.
    pub fn with_emit_timeout(mut self, limit: Option<Duration>) -> Self {
        self.emit_timeout = limit;
        self
    }

    /// Uses no record time before this one, so that a run is later than the run that it follows.
    pub fn not_before(mut self, time: i64) -> Self {
        self.not_before = time;
        self
    }

    /// The same for a new run, which is this writer's from its first append on.
    pub fn with_new_lease(mut self) -> Self {
        let owner = new_owner(&*self.log, self.world.as_ref());
        let lease = Lease::new(self.chain.run_id().clone(), owner, 1, i64::MIN);
        // It is not held before the first append.
        self.lease = Some(Held::new(&self.log, lease, None));
        self
    }

    /// The same for a user's loop that another process began. The lease is taken before the first record, which is preceded by
    /// a [seam](Fact::SEAM).
    pub(crate) fn resuming(mut self, facts: &[RecordedFact]) -> Self {
        let mut seam = Fact::SEAM;
        if let (true, Fact::Resumed { after, .. }) = (is_fresh_branch(facts), &mut seam) {
            *after = Interruption::Branch;
        }
        (self.takes_lease, self.seam) = (true, Some(seam));
        self
    }

    /// Whether nothing records yet that the process died which had the run, or that the run is a branch: it must be known even if this
    /// process dies before its first record.
    pub(crate) fn owes_seam(&self) -> bool {
        let Some(Fact::Resumed { after, .. }) = self.seam else { return false };
        after != Interruption::Release
    }

    /// Takes the seam of a run that is this writer's now, and returns it.
    pub(crate) fn commit_seam(&mut self) -> Result<Option<Fact>> {
        let seam = self.seam.take();
        seam.iter().try_for_each(|seam| self.push(seam))?;
        Ok(seam)
    }

    /// Takes a fact. One that ends the run is followed by the seal.
    ///
    /// # Errors
    /// A fact that has no deterministic encoding, stands before the beginning or after the end; a log that could not be written
    /// before.
    pub fn commit(&mut self, fact: &Fact) -> Result<()> {
        self.is_ours()?;
        match fact {
            Fact::RunStarted { .. } if self.chain.head().is_some() => {
                let what = "has begun already; another run needs a Context of its own";
                return Err(self.out_of_place(what));
            }
            Fact::RunStarted { .. } => {}
            _ => self.check_begun()?,
        }
        if self.sealed {
            return Err(sealed(self.chain.run_id()));
        }
        if matches!(fact, Fact::Resumed { .. }) {
            self.seam = None;
        }
        // A suspended run has no holder once the log knows that it is suspended.
        self.takes_lease |= self.over && self.pending.is_empty();
        self.commit_seam()?;
        self.push(fact)?;
        if ends(fact) { self.seal() } else { Ok(()) }
    }

    /// Seals a run whose end is recorded already.
    pub fn seal(&mut self) -> Result<()> {
        self.sealed = true;
        let seal = Seal::new(self.chain.root(), self.totals.clone());
        self.push(&Fact::Sealed(seal))
    }

    /// The run's id.
    pub fn run_id(&self) -> &RunId {
        self.chain.run_id()
    }

    /// Takes a fact that is copied from another run: an end in it is not sealed.
    pub fn push(&mut self, fact: &Fact) -> Result<()> {
        let salt = self.world.random_bytes();
        let record = self.chain.append(time_of(&*self.world).max(self.not_before), salt, fact)?;
        self.totals.add(record.adds());
        self.over = matches!(fact, Fact::Suspended(_) | Fact::Sealed(_));
        self.wake_at = match fact {
            Fact::Suspended(end) => end.wake_at_ms().map(|time| nanos(Duration::from_millis(time))),
            _ => None,
        };
        if let Some(held) = &self.lease {
            // Of a run whose end is being written, the log may know before its writer does.
            held.set_over(self.over);
        }
        self.waiting += record.size();
        self.pending.push(record);
        if self.metrics.is_some() {
            self.made.push(Instant::now());
        }
        Ok(())
    }

    /// Whether so much waits to be written that nothing should be added to it.
    pub(crate) fn is_full(&self) -> bool {
        let (records, bytes) = MAX_WAITING;
        let in_flight = self.sent.iter().map(|sent| sent.batch.records.len()).sum::<usize>();
        self.pending.len() + in_flight >= records || self.waiting >= bytes
    }

    /// Refuses requests before the run began, or after it ended.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.sealed { Err(sealed(self.chain.run_id())) } else { self.check_begun() }
    }

    fn check_begun(&self) -> Result<()> {
        let begun = self.chain.head().map(drop);
        begun.ok_or_else(|| self.out_of_place("has not begun; Context::run begins it"))
    }

    fn out_of_place(&self, what: &str) -> Error {
        let why = format!("validation failed: fact: run {} {what}", self.chain.run_id());
        Error::invalid_option("fact", "out_of_place").with_message(why)
    }

    /// Whether more can be written.
    pub(crate) fn is_ours(&self) -> Result<()> {
        let lost = || self.lease.as_ref().and_then(|held| held.lost());
        self.failed.clone().or_else(lost).map_or(Ok(()), Err)
    }

    /// Nothing more is written, for this reason.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
        if let Some(held) = &self.lease {
            held.set_over(true);
        }
    }

    /// Waits until the run is this writer's.
    pub(crate) fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if !self.takes_lease {
            return Poll::Ready(Ok(()));
        }
        let taking = self.taking.get_or_insert_with(|| {
            let (log, world) = (Arc::clone(&self.log), Arc::clone(&self.world));
            let (run, head) = (self.chain.run_id().clone(), self.written);
            Box::pin(async move {
                patiently(&*world, PATIENCE, || take_over(&log, &*world, &run, head)).await
            })
        });
        let taken = ready!(taking.as_mut().poll(cx));
        self.taking = None;
        let lease = taken?;
        self.takes_lease = false;
        if let Some(Fact::Resumed { after, .. }) = &mut self.seam {
            *after = lease.interruption(*after == Interruption::Branch);
        }
        self.lease = lease.into_held();
        Poll::Ready(Ok(()))
    }

    /// Waits until an effect may begin: the log was given all records, and the run is this writer's for certain. A new run is its
    /// writer's once its first records are in the log. A process that was suspended for longer than its lease lasts may have lost
    /// the run without knowing.
    pub fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.written.is_none() {
            return self.poll_flush(cx);
        }
        ready!(self.poll_given(cx))?;
        self.is_ours()?;
        let Some(held) = &self.lease else { return Poll::Ready(Ok(())) };
        if self.renewing.is_none() && held.is_doubtful() {
            let (held, limit) = (Arc::clone(held), self.emit_timeout.unwrap_or(PATIENCE));
            let world = Arc::clone(&self.world);
            self.renewing =
                Some(Box::pin(async move { patiently(&*world, limit, || held.renew()).await }));
        }
        let Some(renewing) = &mut self.renewing else { return Poll::Ready(Ok(())) };
        let renewed = ready!(renewing.as_mut().poll(cx));
        self.renewing = None;
        if let Err(error) = renewed {
            self.fail(error);
        }
        Poll::Ready(self.is_ours())
    }

    /// Whether the log knows that the run waits or has ended.
    fn is_over(&self) -> bool {
        self.over && self.pending.is_empty() && self.sent.is_empty() && self.failed.is_none()
    }

    /// Starts to write what waits, and waits for it only if it is so much that nothing should be added.
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let flushed = self.poll_flush(cx);
        if self.is_full() { flushed } else { Poll::Ready(Ok(())) }
    }

    /// Whether the log was given every record, and failed to take none.
    pub(crate) fn is_given(&self) -> bool {
        self.pending.is_empty() && self.sent.iter().all(|sent| sent.is_given())
    }

    /// Waits until the log was given every record, so that each is kept even if this process dies now. It does not wait until
    /// they are safe; what fails is reported by [`poll_flush`](Self::poll_flush).
    ///
    /// It is ready at once, unless several earlier appends are in flight or the log is unavailable.
    pub fn poll_given(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let is_flushed = self.poll_flush(cx).is_ready();
        if is_flushed || self.is_given() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Waits until nothing is left to write. An unavailable log is retried, with pauses of up to
    /// two seconds.
    ///
    /// # Errors
    /// A log that refuses a batch, or that was unavailable for too long; see [`with_emit_timeout`](Self::with_emit_timeout).
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            if let Some(error) = &self.failed {
                return Poll::Ready(Err(error.clone()));
            }
            match self.poll_attempts(cx) {
                Poll::Ready(true) => {}
                Poll::Ready(false) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    let is_late = |late| poll_timer(late, cx).is_ready();
                    if !self.late.as_mut().is_some_and(is_late) {
                        return Poll::Pending;
                    }
                    let error = too_late(self.outage.as_ref().map(|outage| &outage.error));
                    self.give_up(error);
                }
            }
        }
    }

    /// What waits to be written. It follows what is being written.
    fn batch(&mut self) -> Append {
        let limit = self.log.limits().batch;
        let mut bytes = 0;
        let mut fits = |record: &Record| {
            bytes += record.size();
            bytes <= limit
        };
        let count = self.pending.iter().take_while(|record| fits(record)).count().max(1);
        let rest = self.pending.split_off(count.min(self.pending.len()));
        let records = std::mem::replace(&mut self.pending, rest);
        let expected = records
            .first()
            .map(Record::envelope)
            .and_then(|first| first.prev.map(|hash| Head { seq: first.seq - 1, hash }));
        let last = records.last().map_or(0, Record::seq);
        let consumed = self.consumed.extract_if(.., |(seq, _)| *seq <= last);
        let batch = Append::new(self.chain.run_id().clone(), expected, records);
        let batch = batch.consume(consumed.map(|(_, message)| message));
        let batch = batch.wake_at(self.wake_at.filter(|_| self.pending.is_empty()));
        let batch = batch.durability(self.durability).queue(self.queue.take());
        let mut is_waited_for = batch.records.iter().map(|record| record.kind().is_waited_for());
        let is_waited_for = is_waited_for.any(|is_waited_for| is_waited_for);
        let mut batch = batch.deferrable(!is_waited_for);
        if let Some(held) = &self.lease {
            batch.fence = expected.map(|_| held.lease.token);
            if expected.is_none() {
                batch = batch.held(held.lease.owner.as_str(), LEASE);
                self.holding = Some(Moment::now());
            }
        }
        batch
    }
}

impl Drop for Recorder {
    /// Writes the remaining records of a dropped run and releases it, so that the next process need
    /// not wait for the lease to expire. Both are started once and not awaited.
    fn drop(&mut self) {
        let begun = self.written.is_some() || !self.sent.is_empty();
        if let Some(held) = &self.lease {
            held.set_over(true);
        }
        if !begun || self.is_over() {
            return;
        }
        if !self.takes_lease && self.failed.is_none() {
            // Batches in flight were already started.
            let sent = std::mem::take(&mut self.sent).into_iter();
            let mut left: VecDeque<Append> =
                sent.filter(|sent| !sent.is_given()).map(|sent| sent.batch).collect();
            while !left.is_empty() || !self.pending.is_empty() {
                let (log, batch) = (Arc::clone(&self.log), left.pop_front());
                let batch = batch.unwrap_or_else(|| self.batch());
                // It completes on its own.
                let appended = pin!(async move { log.append(batch).await });
                let _ = appended.poll(&mut Context::from_waker(Waker::noop()));
            }
        }
        if let Some(held) = self.lease.take() {
            self.log.release(&held.lease);
        }
    }
}

fn too_late(last: Option<&Error>) -> Error {
    let last = last.map(|error| format!("; the last attempt: {error}")).unwrap_or_default();
    Error::log(LogReason::Unavailable).with_message(format!(
        "log error: unavailable: records were not safe within the emit_timeout{last}"
    ))
}

/// Waits for a timer. That of a task that has used up its turn would not begin.
fn poll_timer(timer: &mut Pin<Box<Sleep>>, cx: &mut Context<'_>) -> Poll<()> {
    pin!(unconstrained(timer.as_mut())).poll(cx)
}

/// Asks a log again within this time if it is unavailable.
pub(crate) async fn patiently<T, F: Future<Output = Result<T>>>(
    world: &dyn World,
    limit: Duration,
    ask: impl Fn() -> F,
) -> Result<T> {
    let (mut pause, longest) = PAUSES;
    let began = Instant::now();
    loop {
        match ask().await {
            Err(error) if is_temporary(&error) && began.elapsed() < limit => {}
            answer => return answer,
        }
        sleep(jittered(world, pause, 0.5)).await;
        pause = longest.min(pause * 2);
    }
}

/// Whether a log that failed may succeed the next time.
pub(crate) fn is_temporary(error: &Error) -> bool {
    error.kind() == ErrorKind::Log(LogReason::Unavailable)
}

/// The error of a run that has ended.
pub(crate) fn sealed(run: &str) -> Error {
    Error::log(LogReason::Sealed).with_message(format!("log error: sealed: run {run} has ended"))
}

/// A name for an owner of leases in this log that is unique. This process beats for it while a run is recorded with a lease
/// of this owner.
pub fn new_owner(log: &dyn Log, world: &dyn World) -> String {
    let process = process::beat_name(log.identity());
    format!("{process}/{:016x}{:016x}", world.random(), world.random())
}

/// The time, as logs count it.
pub(crate) fn time_of(world: &dyn World) -> i64 {
    nanos(since_1970(world.now()))
}

/// Whether nothing but the seal can follow.
pub(crate) fn ends(fact: &Fact) -> bool {
    matches!(fact, Fact::Completed(_) | Fact::Failed(_) | Fact::Cancelled { .. })
}
