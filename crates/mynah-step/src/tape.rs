//! What becomes of facts: nothing, a record, or a comparison with one.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll},
    time::SystemTime,
};

use mynah_data::{Error, ErrorKind, MismatchClass, Result};
use mynah_log::{Append, Chain, Fact, Head, Lease, Log, Record, Seal, Totals, cbor};
use serde_json::{Value, json};

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

    /// Waits until every fact is safe, and lets go of the run.
    pub fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            Self::Recording(recorder) => recorder.poll_close(cx),
            _ => Poll::Ready(Ok(())),
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
    pending: Vec<Record>,
    /// Where the log's copy of the chain ends.
    written: Option<Head>,
    writing: Option<BoxFuture<Result<Head>>>,
    failed: Option<Error>,
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
            lease: None,
            releasing: None,
        }
    }

    /// The same, by the holder of a lease.
    pub fn with_lease(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
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

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
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
            let mut batch = Append::new(Arc::clone(self.chain.run()), self.written, records);
            batch.fence = self.lease.as_ref().map(|lease| lease.token);
            let log = Arc::clone(&self.log);
            self.writing = Some(Box::pin(async move { log.append(batch).await }));
        }
    }
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
