//! What becomes of facts: nothing, a record, or a comparison with one.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime},
};

use mynah_data::{Error, ErrorKind, MismatchClass, Result};
use mynah_log::{Append, Chain, Durability, Fact, Head, Lease, Log, Record, Seal, Totals, cbor};
use serde_json::{Value, json};
use tokio::time::Sleep;

use crate::{BoxFuture, World};

/// What becomes of a run's facts.
///
/// The loop commits each fact before it takes it in. Unrecorded, that is all. Recorded, the fact joins the run's chain and is
/// written with its neighbours; [`Tape::poll_durable`] waits until nothing is left to write. In a replay it must be the fact
/// that was recorded.
#[derive(Default)]
pub enum Tape {
    /// Nobody keeps the run.
    #[default]
    Blank,
    /// The run is kept.
    Recording(Box<Recorder>),
    /// The run is performed again.
    Replaying(Box<Recorded>),
}

impl Tape {
    /// Whether facts need everything that a record holds.
    pub fn is_kept(&self) -> bool {
        !matches!(self, Self::Blank)
    }

    /// The run's id, if anybody keeps it.
    pub fn run_id(&self) -> Option<&Arc<str>> {
        match self {
            Self::Blank => None,
            Self::Recording(recorder) => Some(recorder.chain.run()),
            Self::Replaying(replay) => Some(&replay.run),
        }
    }

    /// Where the chain of a run that is being kept ends.
    pub fn head(&self) -> Option<Head> {
        match self {
            Self::Recording(recorder) => recorder.chain.head(),
            _ => None,
        }
    }

    /// Takes a fact.
    ///
    /// # Errors
    /// `replay_mismatch` if it is not the one that was recorded.
    pub fn commit(&mut self, fact: &Fact) -> Result<()> {
        match self {
            Self::Blank => Ok(()),
            Self::Recording(recorder) => recorder.commit(fact),
            Self::Replaying(recorded) => {
                recorded.skip_seams();
                match recorded.then.take_if(|_| recorded.facts.is_empty()) {
                    None => {
                        recorded.compare(fact)?;
                        // The process ended between the end and its seal.
                        if ends(fact)
                            && let Some(mut recorder) =
                                recorded.then.take_if(|_| recorded.facts.is_empty())
                        {
                            recorder.seal()?;
                            *self = Self::Recording(recorder);
                        }
                        Ok(())
                    }
                    Some(mut recorder) => {
                        // Whoever reads the records sees where one process ended and another began.
                        if !matches!(fact, Fact::Resumed { .. }) {
                            recorder.commit(&Fact::SEAM)?;
                        }
                        recorder.commit(fact)?;
                        *self = Self::Recording(recorder);
                        Ok(())
                    }
                }
            }
        }
    }

    /// The next recorded fact; none where the world answers.
    pub fn upcoming(&self) -> Option<&Fact> {
        match self {
            Self::Replaying(replay) => {
                replay.facts.iter().map(|(_, fact)| fact).find(|fact| !fact.is_seam())
            }
            _ => None,
        }
    }

    /// What is recorded of the tools that run now, in the order in which they were done.
    pub fn outcomes(&self) -> VecDeque<(String, Fact)> {
        let Self::Replaying(replay) = self else { return VecDeque::new() };
        let facts = replay.facts.iter().map(|(_, fact)| fact).filter(|fact| !fact.is_seam());
        let outcomes = facts.map_while(|fact| match fact {
            Fact::ToolCompleted { call_id, .. } | Fact::ToolFailed { call_id, .. } => {
                Some((call_id.clone(), fact.clone()))
            }
            _ => None,
        });
        outcomes.collect()
    }

    /// Lets the holder of a lease write what follows the records.
    pub fn hold(&mut self, lease: Lease) {
        match self {
            Self::Blank => {}
            Self::Recording(recorder) => recorder.lease = Some(lease),
            Self::Replaying(recorded) => {
                if let Some(recorder) = &mut recorded.then {
                    recorder.lease = Some(lease);
                }
            }
        }
    }

    /// How many recorded facts are left.
    pub fn remaining(&self) -> usize {
        match self {
            Self::Replaying(recorded) => {
                recorded.facts.iter().filter(|(_, fact)| !fact.is_seam()).count()
            }
            _ => 0,
        }
    }

    /// Whether the run is brought back to where it was, to go on from there.
    pub fn is_resuming(&self) -> bool {
        matches!(self, Self::Replaying(recorded) if recorded.then.is_some())
    }

    /// Whether a replay came to the end of records that have no end: there is nothing to compare with.
    pub fn ran_out(&self) -> bool {
        matches!(self, Self::Replaying(recorded) if recorded.then.is_none())
            && self.upcoming().is_none()
    }

    /// Starts writing what waits, without waiting for it.
    pub fn kick(&mut self, cx: &mut Context<'_>) {
        if let Self::Recording(recorder) = self {
            // What fails is told at the next barrier.
            let _ = recorder.poll_flush(cx);
        }
    }

    /// Keeps the run this writer's, as long as it is polled.
    pub fn keep(&mut self, cx: &mut Context<'_>) {
        if let Self::Recording(recorder) = self {
            recorder.poll_keep(cx);
        }
    }

    /// Waits until every fact is as safe as the log makes it.
    pub fn poll_durable(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            Self::Recording(recorder) => recorder.poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }
}

/// Writes a run's facts into a log.
pub struct Recorder {
    log: Arc<dyn Log>,
    world: Arc<dyn World>,
    chain: Chain,
    totals: Totals,
    /// Whether the last fact says that the run waits or has ended.
    over: bool,
    pending: Vec<Record>,
    /// Where the log's copy of the chain ends.
    written: Option<Head>,
    writing: Option<BoxFuture<Result<Head>>>,
    failed: Option<Error>,
    durability: Option<Durability>,
    lease: Option<Lease>,
    /// When the lease is to be kept for longer, and the keeping.
    beat: Option<Pin<Box<Sleep>>>,
    keeping: Option<BoxFuture<Result<Lease>>>,
}

/// For how long a run is nobody else's. A process that does not poll its run for so long keeps it all the same, unless
/// another takes it over; it is told at its next append.
pub const LEASE: Duration = Duration::from_secs(6);

/// How often the lease of a run is renewed that is polled and has nothing to write.
const BEAT: Duration = Duration::from_secs(2);

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
            over: false,
            pending: Vec::new(),
            written,
            writing: None,
            failed: None,
            durability: None,
            lease: None,
            beat: None,
            keeping: None,
        }
    }

    /// The same, by the holder of a lease.
    pub fn with_lease(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// The same, with records that are this safe; none leaves it to the log.
    pub fn with_durability(mut self, durability: Option<Durability>) -> Self {
        self.durability = durability;
        self
    }

    /// The same for a new run, which is this writer's from its first append on.
    pub fn with_new_lease(self) -> Self {
        let owner = new_owner(self.world.as_ref());
        let run = Arc::clone(self.chain.run());
        self.with_lease(Lease::new(run, owner, 1, i64::MIN))
    }

    /// Takes a fact. One that ends the run is followed by the seal.
    ///
    /// # Errors
    /// A fact that has no deterministic encoding.
    pub fn commit(&mut self, fact: &Fact) -> Result<()> {
        self.push(fact)?;
        if ends(fact) { self.seal() } else { Ok(()) }
    }

    fn seal(&mut self) -> Result<()> {
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
        let now = nanos(&*self.world);
        let mut salt = [0; 16];
        salt[..8].copy_from_slice(&self.world.random().to_be_bytes());
        salt[8..].copy_from_slice(&self.world.random().to_be_bytes());
        let record = self.chain.append(now, salt, fact)?;
        self.totals.count(fact);
        self.over = matches!(fact, Fact::Suspended(_) | Fact::Sealed(_));
        self.pending.push(record);
        Ok(())
    }

    /// Keeps the lease of a run that goes on.
    fn poll_keep(&mut self, cx: &mut Context<'_>) {
        // What was never written belongs to nobody, and what ended to nobody any more.
        if self.lease.is_none() || self.written.is_none() || self.is_over() {
            return;
        }
        loop {
            if let Some(keeping) = &mut self.keeping {
                let Poll::Ready(kept) = keeping.as_mut().poll(cx) else { return };
                self.keeping = None;
                match kept {
                    Ok(lease) => self.lease = Some(lease),
                    Err(error) => return self.failed = Some(error),
                }
            }
            let beat = self.beat.get_or_insert_with(|| Box::pin(tokio::time::sleep(BEAT)));
            if beat.as_mut().poll(cx).is_pending() {
                return;
            }
            self.beat = None;
            let (log, now) = (Arc::clone(&self.log), nanos(&*self.world));
            self.keeping = self.lease.clone().map(|lease| -> BoxFuture<_> {
                Box::pin(async move { log.lease(&lease.run, &lease.owner, LEASE, now).await })
            });
        }
    }

    /// Whether the log knows that the run waits or has ended.
    fn is_over(&self) -> bool {
        self.over && self.pending.is_empty() && self.writing.is_none() && self.failed.is_none()
    }

    /// Waits until nothing is left to write.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            if let Some(error) = &self.failed {
                return Poll::Ready(Err(error.clone()));
            }
            if let Some(writing) = &mut self.writing {
                match std::task::ready!(writing.as_mut().poll(cx)) {
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
            let now = records.last().map_or(0, |record| record.envelope().ts);
            let batch = Append::new(Arc::clone(self.chain.run()), self.written, records);
            let mut batch = batch.durability(self.durability);
            if let Some(lease) = &mut self.lease {
                batch.fence = self.written.map(|_| lease.token);
                // An append that is made anyway keeps the lease, where it is time.
                if lease.until < now.saturating_add(span(LEASE - BEAT)) {
                    lease.until = now.saturating_add(span(LEASE));
                    batch = batch.held(lease.owner.as_str(), lease.until);
                    self.beat = None;
                }
            }
            let log = Arc::clone(&self.log);
            self.writing = Some(Box::pin(async move { log.append(batch).await }));
        }
    }
}

impl Drop for Recorder {
    /// Whoever goes on with an abandoned run need not wait for the lease to run out. The log is asked once, and nobody waits
    /// for it: what comes of it is its own affair.
    fn drop(&mut self) {
        let begun = self.written.is_some() || self.writing.is_some();
        let Some(lease) = self.lease.take().filter(|_| begun && !self.is_over()) else { return };
        let log = Arc::clone(&self.log);
        let mut release = Box::pin(async move { log.release(&lease).await });
        let _ = release.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}

/// A name that nobody else has.
pub fn new_owner(world: &dyn World) -> String {
    format!("{:016x}{:016x}", world.random(), world.random())
}

/// The time, as logs count it.
pub fn nanos(world: &dyn World) -> i64 {
    span(world.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

fn span(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// A run's records, to be performed again.
pub struct Recorded {
    run: Arc<str>,
    facts: VecDeque<(Record, Fact)>,
    last: u64,
    /// Who writes what follows: there in a run that is resumed.
    then: Option<Box<Recorder>>,
}

impl Recorded {
    /// Compares with these records.
    pub fn new(run: Arc<str>, records: Vec<(Record, Fact)>) -> Self {
        let last = records.last().map_or(0, |(record, _)| record.seq());
        // The seal was verified; the loop does not make it.
        let facts = records.into_iter().filter(|(_, fact)| !matches!(fact, Fact::Sealed(_)));
        Self { run, facts: facts.collect(), last, then: None }
    }

    /// The same, and writes what follows the records.
    pub fn then(mut self, recorder: Recorder) -> Self {
        self.then = Some(Box::new(recorder));
        self
    }

    /// A seam is not made by the loop.
    fn skip_seams(&mut self) {
        while self.facts.front().is_some_and(|(_, fact)| fact.is_seam()) {
            self.facts.pop_front();
        }
    }

    fn compare(&mut self, fact: &Fact) -> Result<()> {
        let Some((record, recorded)) = self.facts.pop_front() else {
            return Err(self.mismatch(MismatchClass::Exhausted, self.last + 1, fact, None));
        };
        let produced = cbor::to_vec(fact).unwrap_or_default();
        if record.body().is_some_and(|body| *body.payload == *produced) {
            return Ok(());
        }
        let class = if fact.kind() == recorded.kind() {
            MismatchClass::Payload
        } else {
            MismatchClass::Kind
        };
        Err(self.mismatch(class, record.seq(), fact, Some(&recorded)))
    }

    fn mismatch(
        &self,
        class: MismatchClass,
        seq: u64,
        fact: &Fact,
        recorded: Option<&Fact>,
    ) -> Error {
        let mut diff = Vec::new();
        if let (MismatchClass::Payload, Some(recorded)) = (class, recorded) {
            compare_values("", &json!(recorded), &json!(fact), &mut diff);
        }
        let expected = recorded.map(Fact::kind);
        let what = match (expected, diff.first()) {
            (Some(_), Some(first)) => {
                format!("{} differs at {}", fact.kind(), first["path"].as_str().unwrap_or(""))
            }
            (Some(expected), None) => format!("expected {expected}, got {}", fact.kind()),
            (None, _) => format!("{} has no record", fact.kind()),
        };
        Error::new(ErrorKind::Replay(class))
            .with_message(format!(
                "replay mismatch: {class}: run {}, record {seq}: {what}",
                self.run
            ))
            .with("run_id", &*self.run)
            .with("seq", seq)
            .with("kind", fact.kind())
            .with("expected_kind", json!(expected))
            .with("diff", diff)
    }
}

/// Whether nothing but the seal can follow.
fn ends(fact: &Fact) -> bool {
    matches!(fact, Fact::Completed(_) | Fact::Failed(_) | Fact::Cancelled { .. })
}

/// Every place where two values differ.
fn compare_values(path: &str, recorded: &Value, produced: &Value, diff: &mut Vec<Value>) {
    let step = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (recorded, produced) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in a {
                compare_values(&step(key), value, b.get(key).unwrap_or(&Value::Null), diff);
            }
            for (key, value) in b.iter().filter(|(key, _)| !a.contains_key(*key)) {
                compare_values(&step(key), &Value::Null, value, diff);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for index in 0..a.len().max(b.len()) {
                let at = |list: &[Value]| list.get(index).cloned().unwrap_or_default();
                compare_values(&step(&index.to_string()), &at(a), &at(b), diff);
            }
        }
        (a, b) if a == b => {}
        (a, b) => diff.push(json!({"path": path, "recorded": a, "produced": b})),
    }
}
