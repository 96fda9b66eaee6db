//! The task that writes, and commits for all runs of the process at once.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use mynah_data::{Error, Result, RunId};
use mynah_log::{Lease, backend::Waiters};
use tokio::{
    sync::mpsc::{self, error::TryRecvError},
    time::{Instant, timeout},
};

use crate::{
    BATCH,
    batch::Batch,
    claim::{self, Claim},
    connection::{Connector, Line, PATIENCE},
    fail::{failure, is_conflict, is_refusal, unavailable},
    job::{Ask, Job, Reply},
    removal,
    row::Known,
};

/// How many jobs go into one commit at most.
const GROUP: usize = 256;

/// How many runs are known at most.
pub(crate) const KNOWN: usize = 16_384;

/// How often a group that others are in the way of is attempted before its connection is given up.
const ATTEMPTS: u32 = 8;

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
    pub(crate) beats: HashMap<String, i64>,
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
}

/// Forgets some of what a full cache holds, in no order: what is used often comes back.
pub(crate) fn forget_some<K: Clone + Eq + Hash, V>(known: &mut HashMap<K, V>, limit: usize) {
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

#[cfg(test)]
mod tests {
    use mynah_log::{backend::Checked, conformance::Sample};

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
