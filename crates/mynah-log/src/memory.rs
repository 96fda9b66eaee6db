//! A log in memory.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mynah_data::Result;

use crate::{
    Append, BoxFuture, Head, Lease, Log, Record, RunFilter, RunPage, RunSummary, SealedRun,
    entry::{self, Checked, Entry},
    runs::Place,
    waiters::Waiters,
};

/// A log in memory: for tests, and for runs that nobody needs tomorrow. A clone is the same log.
#[derive(Clone, Debug, Default)]
pub struct MemoryLog {
    state: Arc<Mutex<State>>,
    waiters: Arc<Waiters>,
}

#[derive(Debug, Default)]
struct State {
    runs: HashMap<Arc<str>, Run>,
    order: BTreeMap<Place, Arc<str>>,
    seals: Vec<SealedRun>,
}

#[derive(Debug)]
struct Run {
    entry: Entry,
    records: Vec<Record>,
}

impl MemoryLog {
    /// A log without runs.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn append(&mut self, checked: Checked) -> Result<Head> {
        let entry = match self.runs.get_mut(&checked.batch.run) {
            Some(run) => {
                run.entry.follow(&checked)?;
                run.records.extend(checked.batch.records);
                &mut run.entry
            }
            None => {
                let entry = Entry::begin(&checked)?;
                let place = Place { started: entry.summary.started, key: self.order.len() as i64 };
                self.order.insert(place, Arc::clone(&checked.batch.run));
                let run = Run { entry, records: checked.batch.records };
                &mut self.runs.entry(Arc::clone(&checked.batch.run)).or_insert(run).entry
            }
        };
        if checked.sealing {
            entry.summary.seal = Some(self.seals.len() as u64);
            self.seals.push(SealedRun::new(checked.batch.run, entry.summary.hash));
        }
        Ok(entry.summary.head())
    }

    fn read(&self, run: &str, from: u64, limit: usize) -> Vec<Record> {
        let skipped = usize::try_from(from.saturating_sub(1)).unwrap_or(usize::MAX);
        let records = self.runs.get(run).and_then(|run| run.records.get(skipped..));
        records.unwrap_or_default().iter().take(limit).cloned().collect()
    }

    fn page(&self, filter: &RunFilter) -> Result<RunPage> {
        let size = filter.page_size();
        let places = match filter.place()? {
            Some(place) => self.order.range(..place),
            None => self.order.range(..),
        };
        let found = places.rev().filter_map(|(place, run)| {
            let summary = &self.runs.get(run)?.entry.summary;
            filter.matches(summary).then(|| (*place, summary.clone()))
        });
        Ok(RunPage::cut(found.take(size.saturating_add(1)).collect(), size))
    }
}

impl Log for MemoryLog {
    fn append(&self, batch: Append) -> BoxFuture<'_, Result<Head>> {
        Box::pin(async move {
            let checked = Checked::new(batch)?;
            let run = Arc::clone(&checked.batch.run);
            let head = self.state().append(checked)?;
            self.waiters.tell(&run);
            Ok(head)
        })
    }

    fn read(&self, run: &str, from: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Record>>> {
        let run: Arc<str> = Arc::from(run);
        Box::pin(async move { Ok(self.state().read(&run, from, limit)) })
    }

    fn head(&self, run: &str) -> BoxFuture<'_, Result<Option<Head>>> {
        let run: Arc<str> = Arc::from(run);
        Box::pin(async move { Ok(self.state().runs.get(&run).map(|run| run.entry.summary.head())) })
    }

    fn wait(&self, run: &str, beyond: u64) -> BoxFuture<'_, Result<()>> {
        let run: Arc<str> = Arc::from(run);
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
        let run: Arc<str> = Arc::from(run);
        Box::pin(
            async move { Ok(self.state().runs.get(&run).map(|run| run.entry.summary.clone())) },
        )
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

    fn lease(
        &self,
        run: &str,
        owner: &str,
        term: Duration,
        now: i64,
    ) -> BoxFuture<'_, Result<Lease>> {
        let (run, owner): (Arc<str>, Arc<str>) = (Arc::from(run), Arc::from(owner));
        Box::pin(async move {
            match self.state().runs.get_mut(&run) {
                Some(run) => run.entry.lease(&owner, term, now),
                None => Err(entry::not_found(&run)),
            }
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
