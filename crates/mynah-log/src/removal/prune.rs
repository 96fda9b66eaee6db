//! Taking out whole runs.

use std::collections::{HashMap, HashSet};

use mynah_data::{Error, ErrorKind, LogReason, Result, RunId};
use serde_json::Value;

use super::{MAINTENANCE, Removals, Warrant, bury};
use crate::{Auditor, Corrupt, Log, RunFilter, RunStatus, RunSummary};

/// How many runs go in one commit.
const BATCH: usize = 64;

/// Removes whole runs from a log, the oldest first. By default it removes only ended ones. A
/// tombstone and the seal of each stay in the log: the log's tree only grows.
///
/// A run stays while a later run of its session continues it. So the runs of a session are removed
/// together, at the age of the oldest, or stay together if the limit has no room for all.
///
/// ```
/// # mod mynah { pub use mynah_log as log; }
/// use mynah::log::{Log, MemoryLog, Prune, Warrant};
/// use mynah::log::conformance::Sample;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah_data::Result<()> {
/// # let log = MemoryLog::new();
/// # log.append(Sample::new("run-1", 0).sealed().batch()).await?;
/// let prune = Prune::before(1_000).limit(100);
/// assert_eq!(prune.candidates(&log).await?.len(), 1);
/// let done = prune.perform(&log, &Warrant::new("ann", "older than a month", 2_000)).await?;
/// assert_eq!((done.pruned.len(), log.run("run-1").await?), (1, None));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is removed until `perform` is called"]
#[non_exhaustive]
pub struct Prune {
    /// Those that began before this time, in nanoseconds since 1970.
    pub before: i64,
    /// Only those of this status.
    pub status: Option<RunStatus>,
    /// Also those that have not ended.
    pub unfinished: bool,
    /// At most this many. A session of more stays.
    pub limit: usize,
}

impl Prune {
    /// All runs that ended and began before this time, in nanoseconds since 1970.
    pub fn before(before: i64) -> Self {
        Self { before, status: None, unfinished: false, limit: usize::MAX }
    }

    mynah_data::setters! { self => self;
        /// Only those of this status.
        status(status: RunStatus) = Some(status);

        /// At most this many. A session of more stays.
        limit(limit: usize) = limit;
    }

    /// Also those that have not ended: they cannot be resumed then.
    pub fn include_unfinished(mut self) -> Self {
        self.unfinished = true;
        self
    }

    /// What would go, in the order in which it goes: nothing is changed. The runs of a session stand together, the newest first.
    ///
    /// # Errors
    /// A status of runs that have not ended, unless those are included; a log that cannot be read.
    pub async fn candidates(&self, log: &dyn Log) -> Result<Vec<RunSummary>> {
        let going = spare_needed(log, self.old_enough(log).await?).await?;
        let mut chosen = Vec::new();
        for together in sessions(log, going).await? {
            if together.len() <= self.limit - chosen.len() {
                chosen.extend(together.into_iter().rev());
            }
        }
        Ok(chosen)
    }

    /// The oldest first.
    async fn old_enough(&self, log: &dyn Log) -> Result<Vec<RunSummary>> {
        if let Some(status) = self.status.filter(|status| !self.unfinished && !status.is_ended()) {
            let why = format!("runs that are {} have not ended; include them", status.as_str());
            return Err(Error::invalid_option("status", "unfinished").with_message(why));
        }
        let mut filter = RunFilter::new().before(self.before).oldest_first();
        filter.status = self.status;
        let mut chosen = Vec::new();
        loop {
            let page = log.runs(filter.clone()).await?;
            chosen.extend(page.runs.into_iter().filter(|run| self.picks(run)));
            let Some(next) = page.next else { return Ok(chosen) };
            filter = filter.after(next);
        }
    }

    /// What [`perform`](Self::perform) would come to at this time, in nanoseconds since 1970, if nothing else happens: nothing is
    /// changed.
    ///
    /// # Errors
    /// As [`candidates`](Self::candidates).
    pub async fn dry_run(&self, log: &dyn Log, now: i64) -> Result<PruneReport> {
        let chosen = self.candidates(log).await?;
        let mut going = ids(&chosen);
        let is_held = |run: &&RunSummary| run.held_until.is_some_and(|until| until > now);
        for run in chosen.iter().filter(is_held) {
            spare(log, &run.run_id, &mut going).await?;
        }
        Ok(PruneReport::of(chosen, &going, HashMap::new()))
    }

    /// Removes them, some dozens in one commit. A run that another process continues stays, and so
    /// do the runs that it continues. Runs that another process removes meanwhile are not reported.
    /// Corrupt runs stay too, as evidence. [`Log::wipe`] then erases their bytes from the log's
    /// files.
    ///
    /// # Errors
    /// Those of [`candidates`](Self::candidates), and a run that is corrupt in its first record:
    /// the run that it continues is unknown.
    pub async fn perform(&self, log: &dyn Log, warrant: &Warrant) -> Result<PruneReport> {
        let mut chosen = self.candidates(log).await?;
        let mut auditor = Auditor::new(log);
        let mut chain = Removals::read(log).await?.into_chain();
        let (mut going, mut gone, mut elsewhere) = (ids(&chosen), HashSet::new(), HashSet::new());
        let mut damaged = HashMap::new();
        for batch in chosen.chunks(BATCH) {
            for run in batch {
                if going.contains(&run.run_id)
                    && let Err(error) = auditor.verify_run(&run.run_id).await
                {
                    let Some(corrupt) = damage(&error, &run.run_id) else {
                        elsewhere.insert(taken_out(error, &mut going)?);
                        continue;
                    };
                    for spared in spare(log, &run.run_id, &mut going).await? {
                        damaged.insert(spared, corrupt.clone());
                    }
                }
            }
            loop {
                let batch = batch.iter().filter(|run| going.contains(&run.run_id));
                let tombstones = batch.clone().map(|run| (warrant.at, warrant.of(run)));
                match bury(log, chain.clone(), &tombstones.collect::<Vec<_>>()).await {
                    Ok(longer) => {
                        chain = longer;
                        gone.extend(batch.map(|run| run.run_id.clone()));
                        break;
                    }
                    Err(error) => match in_use(&error).filter(|run| going.contains(*run)) {
                        Some(run) => drop(spare(log, run, &mut going).await?),
                        None => drop(elsewhere.insert(taken_out(error, &mut going)?)),
                    },
                }
            }
        }
        chosen.retain(|run| !elsewhere.contains(&run.run_id));
        Ok(PruneReport::of(chosen, &gone, damaged))
    }

    fn picks(&self, run: &RunSummary) -> bool {
        run.started < self.before
            && self.status.is_none_or(|status| run.status == status)
            && (self.unfinished || run.status.is_ended())
            && *run.run_id != *MAINTENANCE
    }
}

/// The result of pruning.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PruneReport {
    /// What went.
    pub pruned: Vec<RunSummary>,
    /// Runs that stay because another process holds them, or a run that continues them.
    pub in_use: Vec<RunSummary>,
    /// Runs that stay because they, or a run that continues them, are corrupt; each with the
    /// problem. A dry run does not look for it.
    pub damaged: Vec<(RunSummary, Corrupt)>,
}

impl PruneReport {
    fn of(
        chosen: Vec<RunSummary>,
        going: &HashSet<RunId>,
        mut damaged: HashMap<RunId, Corrupt>,
    ) -> Self {
        let mut report = Self::default();
        for run in chosen {
            match damaged.remove(&run.run_id) {
                Some(corrupt) => report.damaged.push((run, corrupt)),
                None if going.contains(&run.run_id) => report.pruned.push(run),
                None => report.in_use.push(run),
            }
        }
        report
    }
}

/// The run that could not be removed, because another process holds it.
fn in_use(error: &Error) -> Option<&str> {
    match error.kind() {
        ErrorKind::Log(LogReason::Leased | LogReason::HeadMismatch) => {
            error.metadata().get("run_id").and_then(Value::as_str)
        }
        _ => None,
    }
}

/// The problem of a run after its first record, which names the run that it continues.
fn damage(error: &Error, run: &str) -> Option<Corrupt> {
    let is_corrupt = error.kind() == ErrorKind::Log(LogReason::Corrupt);
    let told = error.metadata();
    let seq = told.get("seq").and_then(Value::as_u64).filter(|seq| *seq > 1 && is_corrupt)?;
    let found = told.get("run_id").and_then(Value::as_str).filter(|found| *found == run)?;
    Some(Corrupt::new(found, seq, told.get("what").and_then(Value::as_str)?))
}

/// The run that another process removed since it was chosen.
///
/// # Errors
/// Anything else that went wrong.
fn taken_out(error: Error, going: &mut HashSet<RunId>) -> Result<RunId> {
    let run = error.metadata().get("run_id").and_then(Value::as_str);
    let run = run.filter(|_| error.kind() == ErrorKind::Log(LogReason::Pruned));
    run.and_then(|run| going.take(run)).ok_or(error)
}

fn ids(runs: &[RunSummary]) -> HashSet<RunId> {
    runs.iter().map(|run| run.run_id.clone()).collect()
}

/// Keeps a run, and the runs that it continues. Returns those that would have been removed.
async fn spare(log: &dyn Log, run: &str, going: &mut HashSet<RunId>) -> Result<Vec<RunId>> {
    let (mut spared, mut needed) = (Vec::new(), Some(RunId::from(run)));
    while let Some(run) = needed.and_then(|run| going.take(&*run)) {
        needed = previous(log, &run).await?;
        spared.push(run);
    }
    Ok(spared)
}

/// Leaves out runs that a remaining run continues. The link is in its first record, not in the
/// session's name.
async fn spare_needed(log: &dyn Log, mut chosen: Vec<RunSummary>) -> Result<Vec<RunSummary>> {
    let mut going = ids(&chosen);
    let mut filter = RunFilter::new();
    while !going.is_empty() {
        let page = log.runs(filter.clone()).await?;
        // The run that a damaged run continues is unknown.
        for run in page.sound()? {
            if !going.contains(&run.run_id)
                && let Some(needed) = previous(log, &run.run_id).await?
            {
                spare(log, &needed, &mut going).await?;
            }
        }
        let Some(next) = page.next else { break };
        filter = filter.after(next);
    }
    chosen.retain(|run| going.contains(&run.run_id));
    Ok(chosen)
}

/// These runs, each followed by those that continue it, in the order of the first of each.
async fn sessions(log: &dyn Log, runs: Vec<RunSummary>) -> Result<Vec<Vec<RunSummary>>> {
    let (mut sessions, mut places) = (Vec::<Vec<RunSummary>>::new(), HashMap::new());
    for run in runs {
        let before = previous(log, &run.run_id).await?;
        let place = before.and_then(|before| places.get(&*before).copied());
        let place = place.unwrap_or(sessions.len());
        places.insert(run.run_id.clone(), place);
        match sessions.get_mut(place) {
            Some(session) => session.push(run),
            None => sessions.push(vec![run]),
        }
    }
    Ok(sessions)
}

/// The run that a run continues.
async fn previous(log: &dyn Log, run: &str) -> Result<Option<RunId>> {
    let first = log.read(run, 1, 1).await?;
    Ok(first.first().and_then(super::previous_run))
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::{
        About, Append, Head, LogFuture, MemoryLog, Previous, SessionLink, conformance::Sample,
        forward_log,
    };

    /// A log in which another process removes a run before this one does.
    struct Shared {
        log: MemoryLog,
        rival: Mutex<Option<&'static str>>,
        /// Whether that happens when the run is read, or when it is removed.
        early: bool,
    }

    impl Shared {
        async fn take_out(&self) -> Result<()> {
            let run = self.rival.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(run) = run else { return Ok(()) };
            let Some(run) = self.log.run(run).await? else { return Ok(()) };
            let chain = Removals::read(&self.log).await?.into_chain();
            let tombstone = Warrant::new("rival", "age", 90).of(&run);
            bury(&self.log, chain, &[(90, tombstone)]).await.map(drop)
        }
    }

    impl Log for Shared {
        fn append(&self, batch: Append) -> LogFuture<'_, Head> {
            Box::pin(async move {
                self.take_out().await?;
                self.log.append(batch).await
            })
        }

        fn run(&self, run: &str) -> LogFuture<'_, Option<RunSummary>> {
            let run = run.to_owned();
            Box::pin(async move {
                if self.early {
                    self.take_out().await?;
                }
                self.log.run(&run).await
            })
        }

        forward_log!(self => self.log, except append, run);
    }

    #[tokio::test]
    async fn what_somebody_else_takes_out_meanwhile_stops_nobody() {
        for early in [true, false] {
            let log = MemoryLog::new();
            for (n, run) in ["a", "b", "c"].into_iter().enumerate() {
                let mut sample = Sample::new(run, n as i64).sealed();
                log.append(sample.batch()).await.expect("a run");
            }
            let log = Shared { log, rival: Mutex::new(Some("b")), early };
            let report = Prune::before(50).perform(&log, &Warrant::new("me", "age", 100)).await;
            let report = report.expect("the rest is taken out");
            let pruned: Vec<&str> = report.pruned.iter().map(|run| &*run.run_id).collect();
            assert_eq!((pruned, report.in_use), (vec!["a", "c"], vec![]), "early: {early}");
            let left = log.runs(RunFilter::new()).await.expect("a page");
            assert!(left.runs.is_empty(), "early: {early}");
        }
    }

    #[tokio::test]
    async fn a_run_that_a_kept_run_of_its_session_goes_on_from_stays() {
        let log = MemoryLog::new();
        let mut heads = HashMap::new();
        for (run, previous, at) in [
            ("a1", "", 1),
            ("alone", "", 2),
            ("b1", "", 3),
            ("a2", "a1", 4),
            ("b2", "b1", 5),
            ("a3", "a2", 60),
            ("late", "", 70),
        ] {
            let previous = heads.get(previous).map(|(run_id, head): &(&str, Head)| Previous {
                run_id: (*run_id).into(),
                seq: head.seq,
                hash: head.hash,
                messages: 1,
                left_out: None,
            });
            let session = Some(SessionLink { previous, ..SessionLink::default() });
            let about = About { session, ..About::default() };
            let mut sample = Sample::about(run, at, Some(Box::new(about))).sealed();
            log.append(sample.batch()).await.expect("a run");
            heads.insert(run, (run, sample.head()));
        }
        let chosen = async |prune: Prune| {
            let found = prune.candidates(&log).await.expect("a dry run");
            found.iter().map(|run| run.run_id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(chosen(Prune::before(50)).await, ["alone", "b2", "b1"], "a3 stays");
        assert_eq!(chosen(Prune::before(50).limit(2)).await, ["alone"], "b2 and b1 go together");
        assert_eq!(chosen(Prune::before(50).limit(3)).await, ["alone", "b2", "b1"]);
        assert_eq!(chosen(Prune::before(50).limit(0)).await, [""; 0]);
        assert_eq!(chosen(Prune::before(100).limit(2)).await, ["alone", "late"]);
        let all = ["a3", "a2", "a1", "alone", "b2", "b1", "late"];
        assert_eq!(chosen(Prune::before(100)).await, all);
    }
}
