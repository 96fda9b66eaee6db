//! The task that writes, and commits for all runs of the process at once.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use mynah_data::{Error, Result, RunId};
use mynah_log::{
    AnswerPart, Durability, Head, Lease, MAINTENANCE, Record,
    backend::{self, Checked, IndexEntry, Waiters},
};
use tokio::{
    sync::{
        mpsc::{self, error::TryRecvError},
        oneshot,
    },
    time::{Instant, timeout},
};

use crate::{
    BATCH,
    batch::{Batch, Message},
    claim::{self, Claim},
    connection::{Connector, Line, NOW, PATIENCE, TEXTS, sought},
    fail::{failure, is_conflict, is_refusal, unavailable},
    pending, removal,
    row::{Known, SELECT},
};

/// How many jobs go into one commit at most.
const GROUP: usize = 256;

/// How many runs are known at most.
const KNOWN: usize = 16_384;

/// How often a group that others are in the way of is attempted before its connection is given up.
const ATTEMPTS: u32 = 8;

/// Something to be written.
pub(crate) enum Job {
    Append(Box<Checked>),
    /// With what was seen of the lease, for a run that is taken from a silent owner.
    Lease {
        run: RunId,
        owner: String,
        term: Duration,
        seen: Option<Option<i64>>,
    },
    Release(Lease),
    Beat {
        process: String,
        term: Duration,
    },
    Deliver {
        run: RunId,
        id: String,
        payload: Vec<u8>,
    },
    KeepPart(Lease, AnswerPart),
    Claim {
        owner: String,
        term: Duration,
        queues: Vec<String>,
        limit: usize,
    },
}

/// What a job gives.
#[derive(Debug)]
pub(crate) enum Reply {
    Head(Head),
    Lease(Lease),
    Leases(Vec<Lease>),
    IsNew(bool),
    IsKept(bool),
    Done,
}

/// A job, and who waits for it.
pub(crate) struct Ask {
    pub(crate) job: Job,
    pub(crate) reply: Option<oneshot::Sender<Result<Reply>>>,
    pub(crate) pending: Option<pending::Job>,
}

impl Ask {
    /// Returns the leases that the caller did not take because it is gone.
    fn answer(mut self, result: Result<Reply>) -> Vec<Lease> {
        // Waiters read the current rows.
        self.pending = None;
        match self.reply.take().map(|reply| reply.send(result)) {
            Some(Err(Ok(Reply::Leases(leases)))) => leases,
            _ => Vec::new(),
        }
    }

    /// A lease is given back, and no caller waits for that.
    fn release(lease: Lease) -> Self {
        Self { job: Job::Release(lease), reply: None, pending: None }
    }

    /// Whether it gives something that no caller would take.
    fn is_moot(&self) -> bool {
        let is_gone = self.reply.as_ref().is_none_or(oneshot::Sender::is_closed);
        is_gone && matches!(self.job, Job::Claim { .. })
    }

    /// Whether the writer itself retries it, because no caller does.
    fn is_owed(&self) -> bool {
        matches!(self.job, Job::Release(_))
    }

    /// About how many bytes it writes.
    fn size(&self) -> usize {
        let size = |record: &Record| record.body().map_or(0, |body| body.payload.len());
        match &self.job {
            Job::Append(checked) => checked.batch.records.iter().map(size).sum(),
            Job::Deliver { payload, .. } => payload.len(),
            Job::KeepPart(_, part) => part.payload.len(),
            _ => 0,
        }
    }

    /// Whether it is a transaction of its own.
    fn is_alone(&self) -> bool {
        match &self.job {
            Job::Claim { .. } => true,
            Job::Append(checked) => !checked.tombstones.is_empty(),
            _ => false,
        }
    }
}

/// Why a group was not written.
pub(crate) enum Failed {
    /// Another transaction was faster, or what was known is not true any more.
    Conflict,
    /// The server does not take a statement.
    Refused(tokio_postgres::Error),
    /// The connection is lost, or the server cannot do it now. Whether it was written is not known.
    Lost(Error),
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        if is_conflict(&error) {
            Self::Conflict
        } else if is_refusal(&error) {
            Self::Refused(error)
        } else {
            Self::Lost(failure(error))
        }
    }
}

pub(crate) struct Writer {
    pub(crate) connector: Connector,
    pub(crate) line: Option<Line>,
    /// The runs as they were when this connection last wrote them. That they are so still is checked by the statement that writes.
    pub(crate) known: HashMap<RunId, Known>,
    beats: HashMap<String, i64>,
    owed: Vec<Ask>,
    waiters: Arc<Waiters>,
}

impl Writer {
    pub(crate) fn new(connector: Connector, waiters: Arc<Waiters>) -> Self {
        let (known, beats) = (HashMap::new(), HashMap::new());
        Self { connector, line: None, known, beats, owed: Vec::new(), waiters }
    }

    /// Performs jobs until every sender is gone and nothing is pending.
    pub(crate) async fn serve(mut self, mut jobs: mpsc::UnboundedReceiver<Ask>) {
        /// How long what is owed waits for company.
        const SOON: Duration = Duration::from_millis(500);
        let mut usual = 1;
        loop {
            let mut group = Vec::new();
            let count = if self.owed.is_empty() {
                jobs.recv_many(&mut group, GROUP).await
            } else {
                timeout(SOON, jobs.recv_many(&mut group, GROUP)).await.unwrap_or(1)
            };
            if count == 0 {
                let owed = std::mem::take(&mut self.owed);
                self.perform(owed).await;
                return;
            }
            gather(&mut jobs, &mut group, usual).await;
            usual = group.len();
            let mut asks = std::mem::take(&mut self.owed);
            asks.append(&mut group);
            while !asks.is_empty() {
                let rest = asks.split_off(first_group(&asks));
                self.perform(std::mem::replace(&mut asks, rest)).await;
            }
        }
    }

    /// Does the jobs of a group in one commit, and answers.
    async fn perform(&mut self, mut group: Vec<Ask>) {
        let mut forced = false;
        group.retain(|ask| !ask.is_moot());
        for attempt in 1.. {
            if group.is_empty() {
                return;
            }
            let failed = match self.attempt(&mut group, forced).await {
                Ok(results) => {
                    let pairs = group.into_iter().zip(results);
                    let mut left = Vec::new();
                    for (ask, result) in pairs {
                        self.tell(&ask.job);
                        left.extend(ask.answer(result).into_iter().map(Ask::release));
                    }
                    if !left.is_empty() {
                        // At once: what is asked next may be a claim.
                        Box::pin(self.perform(left)).await;
                    }
                    return;
                }
                Err(failed) => failed,
            };
            self.known.clear();
            match failed {
                Failed::Conflict if attempt < ATTEMPTS => {
                    forced = true;
                    // Those who are in each other's way do not come back at the same time.
                    let jitter = self.line.as_ref().map_or(0, |line| line.now() & 7) as u64;
                    tokio::time::sleep(Duration::from_millis(u64::from(attempt) * jitter)).await;
                }
                Failed::Refused(_) if group.len() > 1 => {
                    // One job caused the failure. Each runs alone, so that the others succeed.
                    for ask in group {
                        Box::pin(self.perform(vec![ask])).await;
                    }
                    return;
                }
                failed => {
                    let error = match failed {
                        Failed::Conflict => {
                            unavailable("others were in the way; the next attempt may succeed")
                        }
                        Failed::Refused(error) => failure(error),
                        Failed::Lost(error) => error,
                    };
                    if error.kind() == unavailable("").kind() {
                        // A statement of a lost connection may still be in progress. The next one
                        // gets a new number.
                        self.line = None;
                        // Readers do not wait for the next attempt.
                        let owed = group.extract_if(.., |ask| ask.is_owed());
                        self.owed.extend(owed.map(|ask| Ask { pending: None, ..ask }));
                    }
                    group.into_iter().for_each(|ask| drop(ask.answer(Err(error.clone()))));
                    return;
                }
            }
        }
    }

    fn tell(&self, job: &Job) {
        match job {
            Job::Append(checked) => self.waiters.notify(&checked.batch.run_id),
            Job::Deliver { run, .. } | Job::KeepPart(Lease { run_id: run, .. }, _) => {
                self.waiters.notify(run);
            }
            _ => {}
        }
    }

    async fn attempt(
        &mut self,
        group: &mut [Ask],
        forced: bool,
    ) -> Result<Vec<Result<Reply>>, Failed> {
        if self.line.as_ref().is_none_or(|line| line.client.is_closed()) {
            self.known.clear();
            self.line = Some(Line::open(&self.connector).await.map_err(Failed::Lost)?);
        }
        let work = async {
            match group {
                [Ask { job: Job::Claim { owner, term, queues, limit }, .. }] => {
                    let claim = Claim { owner, term: *term, queues, limit: *limit };
                    Ok(vec![Ok(Reply::Leases(claim::perform(self, &claim).await?))])
                }
                [Ask { job: Job::Append(checked), .. }] if !checked.tombstones.is_empty() => {
                    Ok(vec![removal::perform(self, checked).await?.map(Reply::Head)])
                }
                group => self.write(group, forced).await,
            }
        };
        let late = |_| Failed::Lost(unavailable("PostgreSQL does not answer"));
        timeout(PATIENCE, work).await.map_err(late)?
    }

    async fn write(
        &mut self,
        group: &mut [Ask],
        forced: bool,
    ) -> Result<Vec<Result<Reply>>, Failed> {
        let loaded = self.load(group, forced).await?;
        let mut round =
            Round { writer: self, loaded, batch: Batch::default(), touched: Vec::new() };
        round.batch.durability = Durability::Relaxed;
        let mut results = Vec::with_capacity(group.len());
        for ask in group {
            results.push(round.evaluate(&mut ask.job)?);
        }
        let Round { batch, touched, .. } = round;
        self.commit(&batch, &touched).await?;
        Ok(results)
    }

    /// Writes what is changed.
    pub(crate) async fn commit(&mut self, batch: &Batch, touched: &[RunId]) -> Result<(), Failed> {
        // Each once, and in the same order in all processes, so that they do not wait for each other in a circle.
        let touched: BTreeSet<&RunId> = touched.iter().collect();
        let changed = |run: &&RunId| self.known.get(*run).filter(|known| known.is_changed);
        let runs: Vec<&Known> = touched.iter().filter_map(changed).collect();
        if runs.is_empty() && batch.is_empty() {
            return Ok(());
        }
        let Some(line) = &mut self.line else { return Err(Failed::Conflict) };
        batch.write(line, &runs).await?;
        line.clear(&self.connector);
        for run in touched {
            if let Some(known) = self.known.get_mut(run) {
                known.wrote();
                if known.entry.summary.seal.is_some() {
                    self.known.remove(run);
                }
            }
        }
        forget_some(&mut self.known, KNOWN);
        Ok(())
    }

    /// Reads what the jobs need and is not known.
    async fn load(&mut self, group: &[Ask], forced: bool) -> Result<Loaded, Failed> {
        let (mut runs, mut messages) = (HashSet::new(), Vec::new());
        for ask in group {
            match &ask.job {
                Job::Append(checked) => {
                    let Checked { batch, .. } = &**checked;
                    let is_known = self.known.contains_key(&batch.run_id);
                    if forced || !is_known && batch.expected.is_some() {
                        runs.insert(&batch.run_id);
                    }
                }
                Job::Lease { run, .. } => drop(runs.insert(run)),
                Job::Release(lease) => drop(runs.insert(&lease.run_id)),
                Job::Deliver { run, id, .. } => {
                    runs.insert(run);
                    messages.push((run.clone(), id.clone()));
                }
                Job::KeepPart(lease, _) if forced || !self.known.contains_key(&lease.run_id) => {
                    runs.insert(&lease.run_id);
                }
                Job::KeepPart(..) | Job::Beat { .. } | Job::Claim { .. } => {}
            }
        }
        let runs: Vec<RunId> = runs.into_iter().cloned().collect();
        self.read(runs, &messages).await
    }

    /// Reads these runs, and which of these messages they got before.
    pub(crate) async fn read(
        &mut self,
        runs: Vec<RunId>,
        messages: &[(RunId, String)],
    ) -> Result<Loaded, Failed> {
        let mut loaded = Loaded::default();
        if runs.is_empty() {
            return Ok(loaded);
        }
        let Some(line) = &mut self.line else { return Err(Failed::Conflict) };
        let ids: Vec<Option<&str>> = runs.iter().map(|run| sought(run)).collect();
        let select = format!("{SELECT} WHERE r.id = ANY($1)");
        let given: [(&(dyn tokio_postgres::types::ToSql + Sync), _); 1] = [(&ids, TEXTS)];
        let found = line.client.query_typed(&select, &given);
        let pruned =
            line.client.query_typed("SELECT id FROM mynah_pruned WHERE id = ANY($1)", &given);
        let of: Vec<Option<&str>> = messages.iter().map(|(run, _)| sought(run)).collect();
        let names: Vec<&str> = messages.iter().map(|(_, id)| &**id).collect();
        let old = async {
            if messages.is_empty() {
                return Ok(Vec::new());
            }
            let select = "SELECT i.run, i.id FROM unnest($1::text[], $2::text[]) AS v(run, id) \
                          JOIN mynah_inbox i ON i.run = v.run AND i.id = v.id";
            line.client.query_typed(select, &[(&of, TEXTS), (&names, TEXTS)]).await
        };
        // What another process wrote counts from the server's time on, which this one may be behind.
        let now = format!("SELECT {NOW}");
        let now = line.client.query_typed(&now, &[]);
        // In one go: the answers come together.
        let (found, pruned, old, now) = tokio::join!(found, pruned, old, now);
        if let Some(now) = now?.first() {
            line.set_clock(now.get(0));
        }
        for run in &runs {
            self.known.remove(run);
        }
        for row in found? {
            match Known::read(&row) {
                Ok(known) => {
                    self.known.insert(known.entry.summary.run_id.clone(), known);
                }
                Err(corrupt) => drop(loaded.damaged.insert(corrupt.run_id.clone(), corrupt.into())),
            }
        }
        loaded.pruned = pruned?.iter().map(|row| RunId::from(row.get::<_, &str>(0))).collect();
        let pair = |row: &tokio_postgres::Row| (RunId::from(row.get::<_, &str>(0)), row.get(1));
        loaded.delivered = old?.iter().map(pair).collect();
        loaded.fresh = runs.into_iter().collect();
        Ok(loaded)
    }
}

/// Forgets some of what a full cache holds, in no order: what is used often comes back.
fn forget_some<K: Clone + Eq + Hash, V>(known: &mut HashMap<K, V>, limit: usize) {
    if known.len() > limit {
        let some: Vec<K> = known.keys().take(limit / 8).cloned().collect();
        some.iter().for_each(|key| drop(known.remove(key)));
    }
}

/// How many of these jobs, from the first on, go into one commit.
fn first_group(asks: &[Ask]) -> usize {
    let mut bytes = 0_usize;
    let fits = |ask: &&Ask| {
        bytes = bytes.saturating_add(ask.size());
        bytes <= BATCH && !ask.is_alone()
    };
    asks.iter().take_while(fits).count().max(1)
}

/// Waits a moment for as many jobs as there were the last time: those who were here then are likely to come again. A timer would
/// wait for longer than a commit takes.
async fn gather(jobs: &mut mpsc::UnboundedReceiver<Ask>, group: &mut Vec<Ask>, usual: usize) {
    /// How long the next job may take to come, and how long it takes at most until all are there.
    const PATIENCE: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(1)];
    let began = Instant::now();
    let mut last = began;
    while group.len() < usual.min(GROUP)
        && last.elapsed() < PATIENCE[0]
        && began.elapsed() < PATIENCE[1]
    {
        match jobs.try_recv() {
            Ok(job) => {
                group.push(job);
                last = Instant::now();
            }
            Err(TryRecvError::Empty) => tokio::task::yield_now().await,
            Err(TryRecvError::Disconnected) => return,
        }
    }
}

/// What was read for a group.
#[derive(Default)]
pub(crate) struct Loaded {
    /// The runs that were looked for.
    fresh: HashSet<RunId>,
    pub(crate) pruned: HashSet<RunId>,
    delivered: HashSet<(RunId, String)>,
    pub(crate) damaged: HashMap<RunId, Error>,
}

/// The evaluation of a group: the results of its jobs in order, and what must be written.
struct Round<'w> {
    writer: &'w mut Writer,
    loaded: Loaded,
    batch: Batch,
    touched: Vec<RunId>,
}

impl Round<'_> {
    /// The result of a job. Rows that were not read for this group may have changed, so nothing is
    /// refused because of them, and no append found to be there.
    fn evaluate(&mut self, job: &mut Job) -> Result<Result<Reply>, Failed> {
        let now = self.writer.line.as_ref().map_or(0, Line::now);
        let mut is_there = false;
        let (run, result) = match job {
            Job::Append(checked) => {
                checked.now = now;
                let known = self.writer.known.get(&checked.batch.run_id);
                is_there = known.is_some_and(|known| known.entry.ends_with(checked));
                let durability = checked.batch.durability.unwrap_or_default();
                self.batch.durability = self.batch.durability.max(durability);
                (&checked.batch.run_id, self.append(checked).map(Reply::Head))
            }
            Job::Lease { run, owner, term, seen } => {
                self.batch.durability = Durability::Full;
                let lease = self.lease(run, |entry| match seen {
                    Some(seen) => entry.take(owner, *term, now, *seen),
                    None => entry.lease(owner, *term, now),
                });
                (&*run, lease.map(Reply::Lease))
            }
            Job::Release(lease) => {
                if let Some(known) = self.writer.known.get_mut(&lease.run_id) {
                    known.entry.release(lease);
                    known.is_changed = true;
                    self.touched.push(lease.run_id.clone());
                }
                return Ok(Ok(Reply::Done));
            }
            Job::Beat { process, term } => {
                let until = backend::beat(self.writer.beats.get(process).copied(), *term, now);
                self.beat(process, until);
                return Ok(Ok(Reply::Done));
            }
            Job::Deliver { run, id, payload } => {
                self.batch.durability = Durability::Full;
                (&*run, self.deliver(run, id, payload).map(Reply::IsNew))
            }
            Job::KeepPart(lease, part) => (&lease.run_id, self.keep_part(lease, part)),
            Job::Claim { .. } => return Ok(Err(unavailable("runs are claimed alone"))),
        };
        let is_refused = matches!(result, Err(_) | Ok(Reply::IsKept(false)));
        if (is_refused || is_there) && !self.loaded.fresh.contains(run) {
            return Err(Failed::Conflict);
        }
        Ok(result)
    }

    /// The run, if it was read or known; an error if it is damaged.
    fn find(&mut self, run: &RunId) -> Result<Option<&mut Known>> {
        if let Some(damage) = self.loaded.damaged.get(run) {
            return Err(damage.clone());
        }
        let known = self.writer.known.get_mut(run);
        Ok(known.inspect(|_| self.touched.push(run.clone())))
    }

    fn append(&mut self, checked: &Checked) -> Result<Head> {
        let run = &checked.batch.run_id;
        let is_pruned = self.loaded.pruned.contains(run);
        match self.find(run)? {
            Some(known) if known.entry.ends_with(checked) => return Ok(checked.head),
            Some(known) => known.entry.follow(checked)?,
            None if is_pruned => return Err(backend::pruned(run)),
            None => {
                let entry = IndexEntry::begin(checked)?;
                self.writer.known.insert(run.clone(), Known::new(entry));
                self.touched.push(run.clone());
            }
        }
        let Some(known) = self.writer.known.get_mut(run) else { return Ok(checked.head) };
        known.is_changed = true;
        if std::mem::take(&mut known.may_have_parts) {
            self.batch.without_parts.insert(run.clone());
            self.batch.parts.retain(|(of, ..), _| of != run);
        }
        for id in &checked.batch.consumed {
            known.messages.retain(|message| message != id);
            self.batch.consumed.insert((run.clone(), id.clone()));
        }
        if checked.sealing {
            for id in std::mem::take(&mut known.messages) {
                self.batch.consumed.insert((run.clone(), id));
            }
            known.entry.summary.seal = Some(u64::MAX);
            self.batch.leaves.push((run.clone(), known.entry.summary.hash));
        }
        let head = known.entry.summary.head();
        let holder = checked.batch.hold.is_some().then(|| known.entry.holder.clone()).flatten();
        if **run == *MAINTENANCE {
            let leaves = checked.batch.records.iter().map(Record::hash);
            self.batch.leaves.extend(leaves.map(|hash| (run.clone(), hash)));
        }
        self.batch.records.extend(checked.batch.records.iter().cloned());
        if let Some(holder) = holder {
            self.beat(backend::process(&holder.owner), holder.until);
        }
        Ok(head)
    }

    fn lease(
        &mut self,
        run: &RunId,
        give: impl FnOnce(&mut IndexEntry) -> Result<Lease>,
    ) -> Result<Lease> {
        let beats = self.batch.beats.clone();
        let known = self.find(run)?.ok_or_else(|| backend::not_found(run))?;
        if let Some(holder) = &mut known.entry.holder
            && let Some(until) = beats.get(backend::process(&holder.owner))
        {
            holder.until = *until;
        }
        let lease = give(&mut known.entry)?;
        known.is_changed = true;
        self.beat(backend::process(&lease.owner), lease.until);
        Ok(lease)
    }

    fn deliver(&mut self, run: &RunId, id: &str, payload: &[u8]) -> Result<bool> {
        let is_pruned = self.loaded.pruned.contains(run);
        let key = (run.clone(), id.to_owned());
        let is_known = !self.loaded.delivered.insert(key);
        let Some(known) = self.find(run)? else {
            return Err(if is_pruned { backend::pruned(run) } else { backend::not_found(run) });
        };
        if is_known {
            return Ok(false);
        }
        if known.entry.has_ended() {
            return Err(backend::ended(run));
        }
        known.delivered += 1;
        known.is_changed = true;
        known.messages.push(id.to_owned());
        let (n, payload) = (known.delivered, payload.to_vec());
        self.batch.delivered.push(Message { run: run.clone(), id: id.to_owned(), n, payload });
        Ok(true)
    }

    fn keep_part(&mut self, lease: &Lease, part: &AnswerPart) -> Result<Reply> {
        let known = self.find(&lease.run_id)?;
        let known = known.filter(|known| known.entry.admits_part(lease, part.seq));
        let is_kept = known.is_some();
        if let Some(known) = known {
            known.may_have_parts = true;
            // The row is written with it, so that the part of a process that lost the run is refused.
            known.is_changed = true;
            let [seq, first] = [part.seq, part.first].map(u64::cast_signed);
            self.batch.parts.insert((lease.run_id.clone(), seq, first), part.clone());
        }
        Ok(Reply::IsKept(is_kept))
    }

    fn beat(&mut self, process: &str, until: i64) {
        self.batch.beats.insert(process.to_owned(), until);
        forget_some(&mut self.writer.beats, KNOWN);
        self.writer.beats.insert(process.to_owned(), until);
    }
}

#[cfg(test)]
mod tests {
    use mynah_log::conformance::Sample;

    use super::*;
    use crate::{connection::server, target::Target};

    fn ask(job: Job) -> Ask {
        Ask { job, reply: None, pending: None }
    }

    fn message(bytes: usize) -> Ask {
        ask(Job::Deliver { run: "run".into(), id: "id".to_owned(), payload: vec![0; bytes] })
    }

    #[test]
    fn a_commit_has_as_many_jobs_as_fit() {
        let claim = || {
            let (owner, term, queues) = ("me".to_owned(), Duration::ZERO, Vec::new());
            ask(Job::Claim { owner, term, queues, limit: 1 })
        };
        for (asks, count) in [
            (vec![message(1), message(1), message(1)], 3),
            (vec![message(BATCH / 2), message(BATCH / 2), message(1)], 2),
            (vec![message(BATCH + 1), message(1)], 1),
            (vec![message(1), claim(), message(1)], 1),
            (vec![claim(), claim()], 1),
        ] {
            assert_eq!(first_group(&asks), count);
        }
    }

    #[tokio::test]
    async fn commits_are_removed_when_no_reader_needs_them() -> Result<()> {
        let Some(server) = server::start() else { return Ok(()) };
        let connector = Connector::new(Target::parse(&server.fresh())?);
        let client = connector.connect().await?;
        // Of a process that ended long ago.
        let old = "INSERT INTO mynah_writers (key, at) VALUES (-1, 0); \
                   INSERT INTO mynah_commits (writer, no, runs) SELECT -1, n, '{old}' FROM generate_series(1, 10001) AS n";
        client.batch_execute(old).await.map_err(failure)?;
        let mut writer = Writer::new(connector, Arc::default());
        let mut run = Sample::new("run", 0);
        for hour in 0..30 {
            if let Some(line) = &mut writer.line {
                line.age(Duration::from_secs(3_600));
            }
            let checked = Checked::new(run.batch(), || 0)?;
            writer.perform(vec![ask(Job::Append(Box::new(checked)))]).await;
            assert_eq!(writer.known.len(), 1, "hour {hour}");
            run = run.user("more");
        }
        // Those of 24 hours ago and later, and the last one.
        let left = async || {
            let select = "SELECT min(no), max(no), count(*), min(writer), (SELECT min(key) FROM mynah_writers) FROM mynah_commits";
            let row = client.query_typed_one(select, &[]).await.map_err(failure)?;
            Ok::<_, Error>([0, 1, 2, 3, 4].map(|at| row.get::<_, i64>(at)))
        };
        let key = writer.line.map_or(0, |line| line.writer);
        let expected = [6, 30, 25, key, key];
        for _ in 0..1_000 {
            if left().await? == expected {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(left().await?, expected);
        Ok(())
    }

    #[test]
    fn a_full_cache_forgets_some_of_what_it_has() {
        let mut known: HashMap<u32, ()> = (0..100).map(|n| (n, ())).collect();
        forget_some(&mut known, 100);
        assert_eq!(known.len(), 100);
        known.insert(100, ());
        forget_some(&mut known, 100);
        assert_eq!(known.len(), 101 - 12);
    }
}
