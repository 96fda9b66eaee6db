//! A log in memory.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mynah_data::{Result, RunId};

use crate::{
    Append, BoxFuture, Hash, Head, Lease, Log, MAINTENANCE, Record, Removed, RunFilter, RunPage,
    RunSummary, SealedRun, Stripped, Tombstone,
    clock::Clock,
    entry::{self, Checked, Entry},
    removal::goes_on_from,
    runs::Place,
    waiters::Waiters,
};

/// A log in memory: for tests, and for runs that nobody needs tomorrow. A clone is the same log.
#[derive(Clone, Debug, Default)]
pub struct MemoryLog {
    state: Arc<Mutex<State>>,
    waiters: Arc<Waiters>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct State {
    runs: HashMap<RunId, Run>,
    order: BTreeMap<Place, RunId>,
    /// How many runs there were ever.
    begun: i64,
    seals: Vec<SealedRun>,
    /// Ids that are not given again.
    pruned: HashSet<RunId>,
}

#[derive(Debug)]
struct Run {
    entry: Entry,
    place: Place,
    records: Vec<Record>,
}

impl MemoryLog {
    /// A log without runs.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same log, whose leases are counted by this clock, in nanoseconds since 1970. It is for tests: two clones that have
    /// each a clock of their own stand for two machines.
    pub fn with_clock(mut self, clock: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        self.clock = Clock::new(clock);
        self
    }

    fn lease_by(
        &self,
        run: &RunId,
        give: impl FnOnce(&mut Entry) -> Result<Lease>,
    ) -> Result<Lease> {
        match self.state().runs.get_mut(run) {
            Some(run) => give(&mut run.entry),
            None => Err(entry::not_found(run)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn append(&mut self, checked: Checked) -> Result<Head> {
        if self.runs.get(&checked.batch.run).is_some_and(|run| run.entry.ends_with(&checked)) {
            return Ok(checked.head);
        }
        for tombstone in &checked.tombstones {
            self.yields(tombstone, checked.now)?;
            self.is_needed(tombstone, &checked)?;
        }
        let gone = checked.tombstones.clone();
        let head = self.extend(checked)?;
        gone.iter().for_each(|tombstone| self.remove(tombstone));
        Ok(head)
    }

    fn extend(&mut self, checked: Checked) -> Result<Head> {
        let tombstones: Vec<Hash> = match *checked.batch.run == *MAINTENANCE {
            true => checked.batch.records.iter().map(Record::hash).collect(),
            false => Vec::new(),
        };
        let entry = match self.runs.get_mut(&checked.batch.run) {
            Some(run) => {
                run.entry.follow(&checked)?;
                run.records.extend(checked.batch.records);
                &mut run.entry
            }
            None if self.pruned.contains(&checked.batch.run) => {
                return Err(entry::pruned(&checked.batch.run));
            }
            None => {
                let entry = Entry::begin(&checked)?;
                let place = Place { started: entry.summary.started, key: self.begun };
                self.begun += 1;
                if *checked.batch.run != *MAINTENANCE {
                    self.order.insert(place, checked.batch.run.clone());
                }
                let run = Run { entry, place, records: checked.batch.records };
                &mut self.runs.entry(checked.batch.run.clone()).or_insert(run).entry
            }
        };
        if checked.sealing {
            entry.summary.seal = Some(self.seals.len() as u64);
            self.seals.push(SealedRun::new(checked.batch.run, entry.summary.hash));
        }
        let head = entry.summary.head();
        self.seals.extend(tombstones.into_iter().map(|hash| SealedRun::new(MAINTENANCE, hash)));
        Ok(head)
    }

    /// Whether what a tombstone names may go.
    fn yields(&self, tombstone: &Tombstone, now: i64) -> Result<()> {
        let Tombstone { run_id, removed, .. } = tombstone;
        let Some(run) = self.runs.get(&**run_id) else {
            return entry::absent(removed, run_id, self.pruned.contains(&**run_id));
        };
        run.entry.yields(removed, now)?;
        let Removed::Bodies(named) = removed else { return Ok(()) };
        let is_other = |seq: u64, hash: Hash| {
            run.records.get(seq as usize - 1).is_some_and(|record| record.hash() != hash)
        };
        match named.iter().find(|named| is_other(named.seq, named.hash)) {
            Some(named) => Err(entry::strange(run_id, named.seq)),
            None => Ok(()),
        }
    }

    /// Refuses to take out a run that one goes on from which stays.
    fn is_needed(&self, tombstone: &Tombstone, checked: &Checked) -> Result<()> {
        let Tombstone { run_id, removed: Removed::Run { .. }, .. } = tombstone else {
            return Ok(());
        };
        let session = self.runs.get(&**run_id).and_then(|run| run.entry.summary.session_id.clone());
        let Some(session) = session else { return Ok(()) };
        let needs = |run: &&Run| {
            run.entry.summary.session_id.as_ref() == Some(&session)
                && !checked.takes_out(&run.entry.summary.run_id)
                && run.records.first().and_then(goes_on_from).as_ref() == Some(run_id)
        };
        match self.runs.values().find(needs) {
            Some(by) => Err(entry::needed(run_id, &by.entry.summary.run_id)),
            None => Ok(()),
        }
    }

    fn remove(&mut self, Tombstone { run_id, removed, .. }: &Tombstone) {
        match removed {
            Removed::Bodies(named) => {
                let Some(run) = self.runs.get_mut(&**run_id) else { return };
                for Stripped { seq, .. } in named {
                    if let Some(record) = run.records.get_mut(*seq as usize - 1) {
                        *record = record.clone().without_body();
                    }
                }
            }
            Removed::Run { .. } => {
                if let Some((run_id, run)) = self.runs.remove_entry(&**run_id) {
                    self.order.remove(&run.place);
                    self.pruned.insert(run_id);
                }
            }
        }
    }

    fn read(&self, run: &str, from: u64, limit: usize) -> Vec<Record> {
        let skipped = usize::try_from(from.saturating_sub(1)).unwrap_or(usize::MAX);
        let records = self.runs.get(run).and_then(|run| run.records.get(skipped..));
        records.unwrap_or_default().iter().take(limit).cloned().collect()
    }

    fn page(&self, filter: &RunFilter) -> Result<RunPage> {
        let size = filter.page_size();
        let places = match (filter.place()?, filter.oldest_first) {
            (Some(place), false) => self.order.range(..place),
            (Some(place), true) => self.order.range((Bound::Excluded(place), Bound::Unbounded)),
            (None, _) => self.order.range(..),
        };
        let matching = |(place, run): (&Place, &RunId)| {
            let run = self.runs.get(run)?.entry.told();
            filter.matches(&run).then_some((*place, Ok(run)))
        };
        let wanted = size.saturating_add(1);
        let found = if filter.oldest_first {
            places.filter_map(matching).take(wanted).collect()
        } else {
            places.rev().filter_map(matching).take(wanted).collect()
        };
        Ok(RunPage::cut(found, size))
    }
}

impl Log for MemoryLog {
    fn append(&self, batch: Append) -> BoxFuture<'_, Result<Head>> {
        Box::pin(async move {
            let checked = Checked::new(batch, || self.clock.now())?;
            let run = checked.batch.run.clone();
            let head = self.state().append(checked)?;
            self.waiters.tell(&run);
            Ok(head)
        })
    }

    fn read(&self, run: &str, from: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Record>>> {
        let run = RunId::from(run);
        Box::pin(async move { Ok(self.state().read(&run, from, limit)) })
    }

    fn head(&self, run: &str) -> BoxFuture<'_, Result<Option<Head>>> {
        let run = RunId::from(run);
        Box::pin(async move { Ok(self.state().runs.get(&run).map(|run| run.entry.summary.head())) })
    }

    fn wait(&self, run: &str, beyond: u64) -> BoxFuture<'_, Result<()>> {
        let run = RunId::from(run);
        Box::pin(async move {
            let mut waiting = self.waiters.join(&run);
            loop {
                match self.state().runs.get(&run).map(|run| &run.entry) {
                    Some(entry) if entry.summary.records > beyond => return Ok(()),
                    Some(entry) if entry.summary.seal.is_some() => return Err(entry::sealed(&run)),
                    _ => {}
                }
                waiting.told().await;
            }
        })
    }

    fn run(&self, run: &str) -> BoxFuture<'_, Result<Option<RunSummary>>> {
        let run = RunId::from(run);
        Box::pin(async move { Ok(self.state().runs.get(&run).map(|run| run.entry.told())) })
    }

    fn runs(&self, filter: RunFilter) -> BoxFuture<'_, Result<RunPage>> {
        Box::pin(async move { self.state().page(&filter) })
    }

    fn seals(&self, from: u64, limit: usize) -> BoxFuture<'_, Result<Vec<SealedRun>>> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        Box::pin(
            async move { Ok(self.state().seals.iter().skip(from).take(limit).cloned().collect()) },
        )
    }

    fn lease(&self, run: &str, owner: &str, term: Duration) -> BoxFuture<'_, Result<Lease>> {
        let (run, owner) = (RunId::from(run), Arc::<str>::from(owner));
        Box::pin(
            async move { self.lease_by(&run, |entry| entry.lease(&owner, term, self.clock.now())) },
        )
    }

    fn take(
        &self,
        run: &str,
        owner: &str,
        term: Duration,
        seen: Option<i64>,
    ) -> BoxFuture<'_, Result<Lease>> {
        let (run, owner) = (RunId::from(run), Arc::<str>::from(owner));
        Box::pin(async move {
            self.lease_by(&run, |entry| entry.take(&owner, term, self.clock.now(), seen))
        })
    }

    fn release(&self, lease: &Lease) -> BoxFuture<'_, Result<()>> {
        let lease = lease.clone();
        Box::pin(async move {
            if let Some(run) = self.state().runs.get_mut(&lease.run) {
                run.entry.release(&lease);
            }
            Ok(())
        })
    }
}
