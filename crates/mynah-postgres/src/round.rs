//! What a group of jobs changes: reading the rows that it needs, and evaluating its jobs in order.

use std::collections::{HashMap, HashSet};

use mynah_data::{Error, Result, RunId};
use mynah_log::{
    AnswerPart, Durability, Head, Lease, MAINTENANCE, Record,
    backend::{self, Checked, IndexEntry},
};
use tokio_postgres::types::ToSql;

use crate::{
    batch::{Batch, Message},
    connection::{Line, NOW, TEXTS, sought},
    fail::unavailable,
    job::{Ask, Job, Reply},
    row::{Known, SELECT},
    writer::{Failed, KNOWN, Writer, forget_some},
};

impl Writer {
    /// Writes what the jobs of a group change, in one commit, and gives their results.
    pub(crate) async fn write(
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
        let given: [(&(dyn ToSql + Sync), _); 1] = [(&ids, TEXTS)];
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
