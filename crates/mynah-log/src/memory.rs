//! A log in memory.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mynah_data::{Result, RunId};

use crate::{
    AnswerPart, Append, Changes, Hash, Head, InboxMessage, Lease, Log, LogFuture, MAINTENANCE,
    Record, Removed, RunFilter, RunPage, RunSummary, SealedRun, Stripped, Tombstone,
    backend::{self as entry, Checked, Clock, IndexEntry, Place, Waiters, previous_run},
};

/// A log in memory, for tests and for runs that need not outlive the process. A clone is the same
/// log.
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
    /// Ids that are not reused.
    pruned: HashSet<RunId>,
    /// Until when the last beat of each process counts.
    beats: HashMap<String, i64>,
    /// The runs, by when they last changed.
    changed: BTreeMap<u64, RunId>,
    changes: u64,
}

#[derive(Debug)]
struct Run {
    entry: IndexEntry,
    place: Place,
    records: Vec<Record>,
    inbox: Vec<InboxMessage>,
    /// The ids of all messages that it ever got.
    delivered: HashSet<String>,
    /// Parts of the answer that follows the last record.
    parts: BTreeMap<u64, AnswerPart>,
    changed: u64,
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn append(&mut self, checked: Checked) -> Result<Head> {
        if self.runs.get(&checked.batch.run_id).is_some_and(|run| run.entry.ends_with(&checked)) {
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
        let tombstones: Vec<Hash> = match *checked.batch.run_id == *MAINTENANCE {
            true => checked.batch.records.iter().map(Record::hash).collect(),
            false => Vec::new(),
        };
        let id = checked.batch.run_id.clone();
        self.refresh(&id);
        let run = match self.runs.get_mut(&id) {
            Some(run) => {
                run.entry.follow(&checked)?;
                run.records.extend(checked.batch.records);
                run.inbox.retain(|message| !checked.batch.consumed.contains(&message.id));
                run.parts.clear();
                run
            }
            None if self.pruned.contains(&checked.batch.run_id) => {
                return Err(entry::pruned(&checked.batch.run_id));
            }
            None => {
                let entry = IndexEntry::begin(&checked)?;
                let place = Place { started: entry.summary.started, key: self.begun };
                self.begun += 1;
                if *checked.batch.run_id != *MAINTENANCE {
                    self.order.insert(place, checked.batch.run_id.clone());
                }
                let records = checked.batch.records;
                let (inbox, delivered) = (Vec::new(), HashSet::new());
                let parts = BTreeMap::new();
                let run = Run { entry, place, records, inbox, delivered, parts, changed: 0 };
                self.runs.entry(id.clone()).or_insert(run)
            }
        };
        if checked.sealing {
            run.entry.summary.seal = Some(self.seals.len() as u64);
            run.inbox.clear();
            self.seals.push(SealedRun::new(id.clone(), run.entry.summary.hash));
        }
        let head = run.entry.summary.head();
        self.note_beat(&id);
        self.note_change(&id);
        self.seals.extend(tombstones.into_iter().map(|hash| SealedRun::new(MAINTENANCE, hash)));
        Ok(head)
    }

    /// Reads when the term of a run's holder is over.
    fn refresh(&mut self, run: &str) {
        if let Some(run) = self.runs.get_mut(run)
            && let Some(holder) = &mut run.entry.holder
        {
            holder.until = self.beats.get(entry::process(&holder.owner)).copied().unwrap_or(0);
        }
    }

    /// Keeps the beat of the process that holds a run.
    fn note_beat(&mut self, run: &str) {
        if let Some(holder) = self.runs.get(run).and_then(|run| run.entry.holder.as_ref()) {
            self.beats.insert(entry::process(&holder.owner).to_owned(), holder.until);
        }
    }

    fn note_change(&mut self, id: &RunId) {
        if let Some(run) = self.runs.get_mut(id).filter(|_| **id != *MAINTENANCE) {
            self.changes += 1;
            self.changed.remove(&run.changed);
            run.changed = self.changes;
            self.changed.insert(self.changes, id.clone());
        }
    }

    /// What the index returns of a run.
    fn told(&self, run: &Run) -> RunSummary {
        let until = |owner: &str| self.beats.get(entry::process(owner)).copied().unwrap_or(0);
        let held_until = run.entry.holder.as_ref().map(|holder| until(&holder.owner));
        RunSummary { held_until, ..run.entry.summary.clone() }
    }

    fn lease_by(
        &mut self,
        run: &str,
        give: impl FnOnce(&mut IndexEntry) -> Result<Lease>,
    ) -> Result<Lease> {
        self.refresh(run);
        let found = self.runs.get_mut(run).ok_or_else(|| entry::not_found(run))?;
        let lease = give(&mut found.entry)?;
        self.note_beat(run);
        Ok(lease)
    }

    fn claim(
        &mut self,
        owner: &str,
        term: Duration,
        queues: &[String],
        limit: usize,
        now: i64,
    ) -> Result<Vec<Lease>> {
        let ids: Vec<RunId> = self.order.values().cloned().collect();
        ids.iter().for_each(|id| self.refresh(id));
        let (mut ready, mut held) = (Vec::new(), HashMap::<String, u32>::new());
        for run in self.order.values().filter_map(|id| self.runs.get(id)) {
            let Some(queue) = &run.entry.summary.queue else { continue };
            if run.entry.is_held(now) && !run.entry.is_held_by(owner) {
                if let Some(key) = &queue.key {
                    *held.entry(key.clone()).or_default() += 1;
                }
            } else if queues.contains(&queue.name)
                && run.entry.wakes_at(!run.inbox.is_empty()) <= now
            {
                ready.push((run.entry.summary.run_id.clone(), Arc::clone(queue)));
            }
        }
        // Of the same priority, the oldest stay first.
        ready.sort_by_key(|(_, queue)| std::cmp::Reverse(queue.priority));
        let mut leases = Vec::new();
        for (run, queue) in ready {
            if leases.len() == limit {
                break;
            }
            if let Some(key) = &queue.key {
                let held = held.entry(key.clone()).or_default();
                if *held >= queue.limit {
                    continue;
                }
                *held += 1;
            }
            leases.push(self.lease_by(&run, |entry| entry.claim(owner, term, now))?);
        }
        Ok(leases)
    }

    fn deliver(&mut self, id: &RunId, message: InboxMessage) -> Result<bool> {
        let Some(run) = self.runs.get_mut(id) else {
            let is_pruned = self.pruned.contains(id);
            return Err(if is_pruned { entry::pruned(id) } else { entry::not_found(id) });
        };
        if run.delivered.contains(&message.id) {
            return Ok(false);
        }
        if run.entry.has_ended() {
            return Err(entry::ended(id));
        }
        run.delivered.insert(message.id.clone());
        run.inbox.push(message);
        self.note_change(id);
        Ok(true)
    }

    fn changes(&self, cursor: Option<&str>, limit: usize) -> Result<Changes> {
        let Some(cursor) = cursor else {
            return Ok(Changes::new(Vec::new(), self.changes.to_string()));
        };
        let mut last: u64 = cursor.parse().map_err(|_| entry::invalid_cursor())?;
        let mut runs = Vec::new();
        for (n, run) in self.changed.range((Bound::Excluded(last), Bound::Unbounded)).take(limit) {
            last = *n;
            runs.extend(self.runs.get(run).map(|run| run.entry.change(!run.inbox.is_empty())));
        }
        Ok(Changes::new(runs, last.to_string()))
    }

    /// Whether what a tombstone names may go.
    fn yields(&mut self, tombstone: &Tombstone, now: i64) -> Result<()> {
        let Tombstone { run_id, removed, .. } = tombstone;
        self.refresh(run_id);
        let Some(run) = self.runs.get(&**run_id) else {
            return entry::check_missing(removed, run_id, self.pruned.contains(&**run_id));
        };
        run.entry.check_removal(removed, now)?;
        let Removed::Bodies(named) = removed else { return Ok(()) };
        let is_other = |seq: u64, hash: Hash| {
            run.records.get(seq as usize - 1).is_some_and(|record| record.hash() != hash)
        };
        match named.iter().find(|named| is_other(named.seq, named.hash)) {
            Some(named) => Err(entry::wrong_tombstone(run_id, named.seq)),
            None => Ok(()),
        }
    }

    /// Refuses to remove a run that a remaining run continues.
    fn is_needed(&self, tombstone: &Tombstone, checked: &Checked) -> Result<()> {
        let Tombstone { run_id, removed: Removed::Run { .. }, .. } = tombstone else {
            return Ok(());
        };
        let session = self.runs.get(&**run_id).and_then(|run| run.entry.summary.session_id.clone());
        let Some(session) = session else { return Ok(()) };
        let needs = |run: &&Run| {
            run.entry.summary.session_id.as_ref() == Some(&session)
                && !checked.prunes(&run.entry.summary.run_id)
                && run.records.first().and_then(previous_run).as_ref() == Some(run_id)
        };
        match self.runs.values().find(needs) {
            Some(by) => Err(entry::still_needed(run_id, &by.entry.summary.run_id)),
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
                    self.changed.remove(&run.changed);
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
            let run = self.told(self.runs.get(run)?);
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
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        Box::pin(async move {
            let checked = Checked::new(batch, || self.clock.now())?;
            let run = checked.batch.run_id.clone();
            let head = self.state().append(checked)?;
            self.waiters.notify(&run);
            Ok(head)
        })
    }

    fn read(&self, run: &str, from: u64, limit: usize) -> LogFuture<'_, Vec<Record>> {
        let run = RunId::from(run);
        Box::pin(async move { Ok(self.state().read(&run, from, limit)) })
    }

    fn head(&self, run: &str) -> LogFuture<'_, Option<Head>> {
        let run = RunId::from(run);
        Box::pin(async move { Ok(self.state().runs.get(&run).map(|run| run.entry.summary.head())) })
    }

    fn run(&self, run: &str) -> LogFuture<'_, Option<RunSummary>> {
        let run = RunId::from(run);
        Box::pin(async move {
            let state = self.state();
            Ok(state.runs.get(&run).map(|run| state.told(run)))
        })
    }

    fn runs(&self, filter: RunFilter) -> LogFuture<'_, RunPage> {
        Box::pin(async move { self.state().page(&filter) })
    }

    fn seals(&self, from: u64, limit: usize) -> LogFuture<'_, Vec<SealedRun>> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        Box::pin(
            async move { Ok(self.state().seals.iter().skip(from).take(limit).cloned().collect()) },
        )
    }

    fn lease(&self, run: &str, owner: &str, term: Duration) -> LogFuture<'_, Lease> {
        let (run, owner) = (RunId::from(run), owner.to_owned());
        Box::pin(async move {
            let now = self.clock.now();
            self.state().lease_by(&run, |entry| entry.lease(&owner, term, now))
        })
    }

    fn take(
        &self,
        run: &str,
        owner: &str,
        term: Duration,
        seen: Option<i64>,
    ) -> LogFuture<'_, Lease> {
        let (run, owner) = (RunId::from(run), owner.to_owned());
        Box::pin(async move {
            let now = self.clock.now();
            self.state().lease_by(&run, |entry| entry.take(&owner, term, now, seen))
        })
    }

    fn beat(&self, owner: &str, term: Duration) -> LogFuture<'_, ()> {
        let process = entry::process(owner).to_owned();
        Box::pin(async move {
            let (now, mut state) = (self.clock.now(), self.state());
            let until = entry::beat(state.beats.get(&process).copied(), term, now);
            state.beats.insert(process, until);
            Ok(())
        })
    }

    fn release(&self, lease: &Lease) {
        if let Some(run) = self.state().runs.get_mut(&lease.run_id) {
            run.entry.release(lease);
        }
    }

    fn claim(
        &self,
        owner: &str,
        term: Duration,
        queues: &[&str],
        limit: usize,
    ) -> LogFuture<'_, Vec<Lease>> {
        let owner = owner.to_owned();
        let queues: Vec<String> = queues.iter().map(|&queue| queue.to_owned()).collect();
        Box::pin(async move {
            let now = self.clock.now();
            self.state().claim(&owner, term, &queues, limit, now)
        })
    }

    fn deliver(&self, run: &str, id: &str, payload: Vec<u8>) -> LogFuture<'_, bool> {
        let (run, id) = (RunId::from(run), id.to_owned());
        Box::pin(async move {
            entry::check_message_id(&id)?;
            let message = InboxMessage::new(id, self.clock.now(), payload);
            let is_new = self.state().deliver(&run, message)?;
            self.waiters.notify(&run);
            Ok(is_new)
        })
    }

    fn inbox(&self, run: &str, limit: usize) -> LogFuture<'_, Vec<InboxMessage>> {
        let run = RunId::from(run);
        Box::pin(async move {
            let state = self.state();
            let inbox = state.runs.get(&run).map(|run| run.inbox.iter().take(limit).cloned());
            Ok(inbox.into_iter().flatten().collect())
        })
    }

    fn was_delivered(&self, run: &str, id: &str) -> LogFuture<'_, bool> {
        let (run, id) = (RunId::from(run), id.to_owned());
        Box::pin(async move {
            Ok(self.state().runs.get(&run).is_some_and(|run| run.delivered.contains(&id)))
        })
    }

    fn keep_part(&self, lease: &Lease, part: AnswerPart) -> LogFuture<'_, ()> {
        let lease = lease.clone();
        Box::pin(async move {
            let mut state = self.state();
            let run = state.runs.get_mut(&lease.run_id);
            if let Some(run) = run.filter(|run| run.entry.admits_part(&lease, part.seq)) {
                run.parts.insert(part.first, part);
            }
            drop(state);
            self.waiters.notify(&lease.run_id);
            Ok(())
        })
    }

    fn parts(&self, run: &str, seq: u64, first: u64) -> LogFuture<'_, Vec<AnswerPart>> {
        let run = RunId::from(run);
        Box::pin(async move {
            let mut waiting = self.waiters.subscribe(&run);
            loop {
                if let Some(Run { entry, parts, .. }) = self.state().runs.get(&run) {
                    if entry.summary.records > seq {
                        return Ok(Vec::new());
                    }
                    if entry.summary.seal.is_some() {
                        return Err(entry::sealed(&run));
                    }
                    let new = parts.values().filter(|part| part.seq == seq && part.ends() > first);
                    let new: Vec<_> = new.cloned().collect();
                    if !new.is_empty() {
                        return Ok(new);
                    }
                }
                waiting.notified().await;
            }
        })
    }

    fn changes(&self, cursor: Option<&str>, limit: usize) -> LogFuture<'_, Changes> {
        let cursor = cursor.map(str::to_owned);
        Box::pin(async move { self.state().changes(cursor.as_deref(), limit) })
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.state).addr()
    }
}
