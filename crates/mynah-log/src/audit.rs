//! Checking what a log keeps, its index and its list of seals included.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use mynah_data::{Result, RunId};

use crate::{
    Corrupt, Hash, Kind, Log, MAINTENANCE, Pruned, Record, Removals, RunFilter, RunSummary,
    SealedRun, Verifier, VerifyReport, merkle::Tree, record_summary::RecordSummary, removal::Gone,
};

const PORTION: usize = 256;

const OTHER_SEAL: &str = "the log's list of seals has another seal for the run";

/// Verifies the runs of a log one after the other, and reads the log's removals only once.
pub struct Auditor<'l> {
    log: &'l dyn Log,
    removals: Option<Removals>,
}

impl<'l> Auditor<'l> {
    /// Checks this log.
    pub fn new(log: &'l dyn Log) -> Self {
        Self { log, removals: None }
    }

    /// What was removed from the log.
    ///
    /// # Errors
    /// As [`Removals::read`].
    pub async fn removals(&mut self) -> Result<&Removals> {
        let removals = match self.removals.take() {
            Some(removals) => removals,
            None => Removals::read(self.log).await?,
        };
        Ok(self.removals.insert(removals))
    }

    /// Verifies a run: its records, and its entries in the log's index, list of seals and
    /// tombstones. Memory does not grow with the run. A run that grows meanwhile is checked up to
    /// its length at the beginning.
    ///
    /// This verifies that the run is what was written. It does not decode the facts. Writers and
    /// [`import`](crate::bundle::import) store only facts that can be decoded; a reader of one that
    /// cannot be gets an error.
    ///
    /// # Errors
    /// The first thing that is wrong, a missing run, or a log that cannot be read.
    pub async fn verify_run(&mut self, run: &str) -> Result<VerifyReport> {
        loop {
            let log = self.log;
            let found = check_run(log, self.removals().await?, run).await;
            if found.is_ok() || self.is_current().await? {
                return found;
            }
        }
    }

    /// Checks what concerns no single run: that everything in the log belongs to a run, that the
    /// leaves of its tree are the seals of its runs and its tombstones, and that those are of
    /// removed runs. Returns the tree. It reads no run; [`verify_run`](Self::verify_run) does.
    ///
    /// # Errors
    /// The first thing that is wrong, or a log that cannot be read.
    pub async fn verify_seals(&mut self) -> Result<Tree> {
        self.log.check().await?;
        loop {
            let log = self.log;
            let found = check_seals(log, self.removals().await?).await;
            if found.is_ok() || self.is_current().await? {
                return found;
            }
        }
    }

    /// The number of leaves that the log's tree had when this was its root; none if it never was. A
    /// root that was kept elsewhere thus proves that the log still begins with all that it held
    /// then.
    ///
    /// ```
    /// # mod mynah { pub use mynah_log as log; }
    /// use mynah::log::{Auditor, Log, MemoryLog};
    /// use mynah::log::conformance::Sample;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah_data::Result<()> {
    /// # let log = MemoryLog::new();
    /// # log.append(Sample::new("run-1", 0).sealed().batch()).await?;
    /// let kept = Auditor::new(&log).verify_seals().await?.root();
    /// # log.append(Sample::new("run-2", 1).sealed().batch()).await?;
    /// assert_eq!(Auditor::new(&log).leaves_under(&kept).await?, Some(1));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A log that cannot be read.
    pub async fn leaves_under(&self, root: &Hash) -> Result<Option<u64>> {
        let mut tree = Tree::new();
        if tree.root() == *root {
            return Ok(Some(0));
        }
        loop {
            let seals = self.log.seals(tree.size(), PORTION).await?;
            for seal in &seals {
                tree.push(seal.leaf());
                if tree.root() == *root {
                    return Ok(Some(tree.size()));
                }
            }
            if seals.is_empty() {
                return Ok(None);
            }
        }
    }

    /// Whether nothing was removed since the tombstones were read. If something was, they are
    /// forgotten.
    async fn is_current(&mut self) -> Result<bool> {
        let head = self.log.head(MAINTENANCE).await?;
        let is_current = self.removals.as_ref().is_some_and(|removals| removals.head() == head);
        if !is_current {
            self.removals = None;
        }
        Ok(is_current)
    }
}

impl fmt::Debug for Auditor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auditor").field("removals", &self.removals).finish_non_exhaustive()
    }
}

/// Checks one run of a log: see [`Auditor::verify_run`].
///
/// # Errors
/// The first thing that is wrong, a missing run, or a log that cannot be read.
pub async fn verify_run(log: &dyn Log, run: &str) -> Result<VerifyReport> {
    Auditor::new(log).verify_run(run).await
}

/// Checks a log's list of seals: see [`Auditor::verify_seals`].
///
/// # Errors
/// The first thing that is wrong, or a log that cannot be read.
pub async fn verify_seals(log: &dyn Log) -> Result<Tree> {
    Auditor::new(log).verify_seals().await
}

/// Reads a run up to the length in the index, checks its records, and compares them with the index,
/// for a caller that resumes it. Passes each record to the caller. Returns the sums over the
/// records, including those of redacted ones.
///
/// # Errors
/// The first thing that is wrong, what `visit` gives, or a log that cannot be read.
#[doc(hidden)]
pub async fn walk(
    log: &dyn Log,
    indexed: &RunSummary,
    mut visit: impl FnMut(&Record) -> Result<()>,
) -> Result<(Verifier, RunSummary)> {
    let (mut walk, mut removals) = (RunWalk::begin(log, indexed), None::<Removals>);
    while let Some(records) = walk.next().await? {
        let is_known = |record: &Record| {
            record.body().is_some() || removals.as_ref().is_some_and(|all| all.is_redacted(record))
        };
        if !records.iter().all(is_known) {
            removals = Some(Removals::read(log).await?);
        }
        let gone = removals.as_ref().and_then(|removals| removals.of(&indexed.run_id));
        // A body that is there may have been removed since it was read.
        let gone = |record: &Record| gone.filter(|_| record.body().is_none());
        walk.take(&records, gone, &mut visit).await?;
    }
    walk.end()
}

/// The same, for a caller that knows what was removed from the run.
pub(crate) async fn walk_knowing(
    log: &dyn Log,
    indexed: &RunSummary,
    gone: Option<&Gone>,
    mut visit: impl FnMut(&Record) -> Result<()>,
) -> Result<(Verifier, RunSummary)> {
    let mut walk = RunWalk::begin(log, indexed);
    while let Some(records) = walk.next().await? {
        walk.take(&records, |_| gone, &mut visit).await?;
    }
    walk.end()
}

/// The way through a run.
struct RunWalk<'l> {
    log: &'l dyn Log,
    indexed: &'l RunSummary,
    verifier: Verifier,
    found: Option<RunSummary>,
}

impl<'l> RunWalk<'l> {
    fn begin(log: &'l dyn Log, indexed: &'l RunSummary) -> Self {
        Self { log, indexed, verifier: Verifier::new(&indexed.run_id), found: None }
    }

    /// The next records; none after the last that the index counts.
    async fn next(&self) -> Result<Option<Vec<Record>>> {
        let Self { log, indexed, found, .. } = self;
        let (run, count) = (&*indexed.run_id, indexed.records);
        let seen = found.as_ref().map_or(0, |found| found.records);
        // The last portion is empty, or shows that there are more records than the index counts.
        let wanted = usize::try_from(count - seen).unwrap_or(PORTION).clamp(1, PORTION);
        let records = log.read(run, seen + 1, wanted).await?;
        if seen == count {
            return Ok(None);
        }
        if records.is_empty() {
            let what = format!("it is missing: the index counts {count} records");
            return Err(Corrupt::new(run, seen + 1, what).into());
        }
        Ok(Some(records))
    }

    /// Checks, passes on and counts records. `gone` has the removals of the run.
    async fn take<'g>(
        &mut self,
        records: &[Record],
        gone: impl Fn(&Record) -> Option<&'g Gone>,
        visit: &mut impl FnMut(&Record) -> Result<()>,
    ) -> Result<()> {
        for record in records {
            let counted = Gone::counted(gone(record), record);
            if let Err(wrong) = self.verifier.check_counted(counted.as_ref().unwrap_or(record)) {
                let vouched = expected(self.log, self.indexed, record.seq()).await;
                return Err(self.verifier.blame(wrong, vouched).into());
            }
            let counted = counted?;
            visit(record)?;
            let found = self.found.get_or_insert_with(|| RunSummary::begin(record));
            let kind = record.kind();
            // After the first record only the first model that is named counts.
            let counts = kind == Kind::RunStarted || found.model.is_none();
            if record.body().is_some() || !kind.names() || !counts {
                found.count(&counted);
                continue;
            }
            let stripped = gone(record).and_then(|gone| gone.bodies.get(&record.seq()));
            match stripped.and_then(|stripped| stripped.names) {
                Some(names) => {
                    let gist = named(self.indexed, &counted, names)?;
                    found.count(&counted.with_gist(gist));
                }
                // Nothing is left that confirms what the index has from the record.
                None => {
                    found.count(&counted);
                    found.model.clone_from(&self.indexed.model);
                    if kind == Kind::RunStarted {
                        found.session_id.clone_from(&self.indexed.session_id);
                    }
                }
            }
        }
        Ok(())
    }

    fn end(self) -> Result<(Verifier, RunSummary)> {
        let Self { indexed, verifier, found, .. } = self;
        let run = &*indexed.run_id;
        let found =
            found.ok_or_else(|| Corrupt::new(run, 1, "the index has a run without records"))?;
        compare(indexed, &found).map_err(|what| Corrupt::new(run, found.records, what))?;
        Ok((verifier, found))
    }
}

/// The summary of a redacted record, with the names from the index if its tombstone commits to
/// them.
fn named(indexed: &RunSummary, record: &Record, names: Hash) -> Result<RecordSummary, Corrupt> {
    let adds = &record.gist().adds;
    for model in [&indexed.model, &None] {
        for session in [&indexed.session_id, &None] {
            let (adds, model, session) = (adds.clone(), model.clone(), session.clone());
            let gist = RecordSummary { adds, model, session };
            if gist.names(&record.envelope().body) == names {
                return Ok(gist);
            }
        }
    }
    let what = "the index has another model or session than its tombstone commits to";
    Err(Corrupt::new(&indexed.run_id, record.seq(), what))
}

async fn check_run(log: &dyn Log, removals: &Removals, run: &str) -> Result<VerifyReport> {
    let Some(indexed) = log.run(run).await? else {
        return Err(removals.absence(run));
    };
    let gone = removals.of(run);
    let walked = walk_knowing(log, &indexed, gone, |_| Ok(())).await?;
    let report = walked.0.report();
    check_not_pruned(removals, run)?;
    let missing = gone.and_then(|gone| gone.bodies.range(indexed.records + 1..).next());
    // Of a run without its seal they may be to come: an import was interrupted.
    if let (Some(_), Some((seq, _))) = (report.fingerprint, missing) {
        let what = "a tombstone names it, and it does not exist";
        return Err(Corrupt::new(run, *seq, what).into());
    }
    check_seal(log, &indexed, &report).await?;
    Ok(report)
}

/// Refuses a tombstone of a run that the index has.
fn check_not_pruned(removals: &Removals, run: &str) -> Result<(), Corrupt> {
    let Some(pruned) = removals.of(run).and_then(|gone| gone.run) else { return Ok(()) };
    let what = format!("it removes run {run}, which still exists");
    Err(Corrupt::new(MAINTENANCE, pruned.tombstone, what))
}

async fn check_seals(log: &dyn Log, removals: &Removals) -> Result<Tree> {
    let mut seals = Seals::read(log, removals).await?;
    let mut filter = RunFilter::new().limit(PORTION);
    loop {
        let page = log.runs(filter.clone()).await?;
        page.runs.iter().try_for_each(|run| seals.find(run, removals))?;
        seals.damaged.extend(page.damaged.into_iter().map(|damaged| damaged.run_id));
        let Some(next) = page.next else { break };
        filter = filter.after(next);
    }
    seals.explain(log, removals).await?;
    match removals.hash(seals.tombstones + 1) {
        Some(_) => {
            let what = "it is a tombstone that is no leaf of the log's tree";
            Err(Corrupt::new(MAINTENANCE, seals.tombstones + 1, what).into())
        }
        None => Ok(seals.tree),
    }
}

/// The leaves of a log's tree, and which of the seals among them no run was found for.
struct Seals {
    tree: Tree,
    tombstones: u64,
    unclaimed: Vec<Option<Hash>>,
    /// Runs in the index that cannot be read.
    damaged: HashSet<RunId>,
}

impl Seals {
    async fn read(log: &dyn Log, removals: &Removals) -> Result<Self> {
        let (tree, unclaimed) = (Tree::new(), Vec::new());
        let mut found = Self { tree, tombstones: 0, unclaimed, damaged: HashSet::new() };
        loop {
            let seals = log.seals(found.tree.size(), PORTION).await?;
            if seals.is_empty() {
                return Ok(found);
            }
            for seal in &seals {
                found.tree.push(seal.leaf());
                let is_tombstone = *seal.run_id == *MAINTENANCE;
                found.unclaimed.push((!is_tombstone).then_some(seal.fingerprint));
                found.tombstones += u64::from(is_tombstone);
                if is_tombstone && removals.hash(found.tombstones) != Some(seal.fingerprint) {
                    let what = "it is not the tombstone that the log's tree has as a leaf";
                    return Err(Corrupt::new(MAINTENANCE, found.tombstones, what).into());
                }
            }
        }
    }

    /// Finds the seal of a run that the index has.
    fn find(&mut self, run: &RunSummary, removals: &Removals) -> Result<(), Corrupt> {
        check_not_pruned(removals, &run.run_id)?;
        let place = run.seal.and_then(|place| usize::try_from(place).ok());
        // One that has its seal since the list was read is not in it.
        let Some(seal) = place.and_then(|place| self.unclaimed.get_mut(place)) else {
            return Ok(());
        };
        if seal.take() == Some(run.hash) {
            return Ok(());
        }
        Err(Corrupt::new(&run.run_id, run.records, OTHER_SEAL))
    }

    /// Finds the tombstones of the runs whose seals are left.
    async fn explain(&mut self, log: &dyn Log, removals: &Removals) -> Result<()> {
        let mut pruned: HashMap<&str, Pruned> =
            removals.pruned().filter(|(_, pruned)| pruned.sealed).collect();
        let mut place = 0;
        while let Some(left) = self.unclaimed.iter().skip(place).position(Option::is_some) {
            place += left;
            let seals = log.seals(place as u64, PORTION).await?;
            for (SealedRun { run_id: run, .. }, fingerprint) in
                seals.iter().zip(&self.unclaimed[place..])
            {
                let Some(fingerprint) = fingerprint else { continue };
                let what = match pruned.remove(&**run) {
                    Some(pruned) if pruned.hash == *fingerprint => continue,
                    Some(_) => OTHER_SEAL,
                    // A problem of that run is reported when it is verified itself.
                    None if self.damaged.contains(&**run) => continue,
                    None => "the log has its seal, but no such run, and no tombstone for it",
                };
                return Err(Corrupt::new(run, 0, what).into());
            }
            place += seals.len().max(1);
        }
        match pruned.into_iter().min_by_key(|(_, pruned)| pruned.tombstone) {
            Some((run, pruned)) => {
                let what =
                    format!("it says that run {run} had a seal, and the log has none for it");
                Err(Corrupt::new(MAINTENANCE, pruned.tombstone, what).into())
            }
            None => Ok(()),
        }
    }
}

/// The hash that a record must have, according to the next record or the index.
async fn expected(log: &dyn Log, indexed: &RunSummary, seq: u64) -> Option<Hash> {
    if seq == indexed.records {
        return Some(indexed.hash);
    }
    let after = log.read(&indexed.run_id, seq.checked_add(1)?, 1).await.ok()?;
    after.first()?.envelope().prev
}

/// The differences between the index and the records.
fn compare(indexed: &RunSummary, found: &RunSummary) -> Result<(), String> {
    // As text, since a sum that is not a number does not equal itself.
    let mut pairs = told(indexed).into_iter().zip(told(found));
    match pairs.find(|((_, indexed), (_, found))| indexed != found) {
        Some(((what, indexed), (_, found))) => {
            Err(format!("{what}: the index says {indexed}, the records say {found}"))
        }
        None => Ok(()),
    }
}

/// The index entry of a run.
fn told(run: &RunSummary) -> [(&'static str, String); 11] {
    let text = |text: &Option<Arc<str>>| {
        text.as_ref().map_or("none".to_owned(), |text| format!("{text:?}"))
    };
    let totals = &run.totals;
    [
        ("status", run.status.as_str().to_owned()),
        ("started", run.started.to_string()),
        ("updated", run.updated.to_string()),
        ("hash", run.hash.to_string()),
        ("model", text(&run.model)),
        ("session", text(&run.session_id)),
        ("turns", totals.turns.to_string()),
        ("tool calls", totals.tool_calls.to_string()),
        ("input tokens", totals.input_tokens.to_string()),
        ("output tokens", totals.output_tokens.to_string()),
        ("cost", totals.cost.to_string()),
    ]
}

/// Whether the log's list of seals has a run's seal, at the place that the index names.
async fn check_seal(log: &dyn Log, indexed: &RunSummary, report: &VerifyReport) -> Result<()> {
    let run = &indexed.run_id;
    let what = match (report.fingerprint, indexed.seal) {
        (None, None) => return Ok(()),
        (Some(_), None) => "the log's list of seals does not have the seal of the run",
        (None, Some(_)) => "the log's list of seals has a seal for the run, which has none",
        (Some(fingerprint), Some(place)) => {
            let listed = log.seals(place, 1).await?;
            if listed == [SealedRun::new(run.clone(), fingerprint)] {
                return Ok(());
            }
            OTHER_SEAL
        }
    };
    Err(Corrupt::new(run, indexed.records, what).into())
}
