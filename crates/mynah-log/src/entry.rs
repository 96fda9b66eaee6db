//! What a backend keeps of a run beside its records, and the rules for changing it: the same in
//! every backend.

use std::{collections::HashSet, sync::Arc, time::Duration};

use mynah_data::{Error, LogReason, Result, RunId};

use crate::{
    Append, Corrupt, Head, Kind, Lease, MAINTENANCE, MAX_RUN_ID, Queue, Removed, RunChange,
    RunStatus, RunSummary, Tombstone, clock::nanos,
};

/// A batch whose records form a chain onto the head that it expects.
#[derive(Debug)]
pub struct Checked {
    /// The batch.
    pub batch: Append,
    /// The tombstones among its records.
    pub tombstones: Vec<Tombstone>,
    /// Whether it ends with the run's seal.
    pub sealing: bool,
    /// Where the chain ends with it.
    pub head: Head,
    /// The log's time in nanoseconds since 1970; 0 if it is not needed.
    pub now: i64,
}

impl Checked {
    /// Whether it removes this run.
    pub fn prunes(&self, run: &str) -> bool {
        self.tombstones.iter().any(|tombstone| {
            matches!(tombstone.removed, Removed::Run { .. }) && tombstone.run_id == run
        })
    }

    /// Checks a batch that arrives at this time, without regard to the run.
    pub fn new(batch: Append, now: impl FnOnce() -> i64) -> Result<Self> {
        let (mut head, mut sealing) = (batch.expected, false);
        let (mut gone, mut tombstones) = (HashSet::new(), Vec::new());
        for record in &batch.records {
            let seq = head.map_or(1, |head| head.seq.saturating_add(1));
            let wrong = |what: String| Corrupt { run_id: batch.run_id.clone(), seq, what };
            if sealing {
                return Err(wrong("it follows the seal".to_owned()).into());
            }
            record.check_after(&batch.run_id, head).map_err(wrong)?;
            let kind = record.kind();
            if let Some(what) = kind.misplaced(&batch.run_id, seq == 1) {
                return Err(wrong(what.to_owned()).into());
            }
            if kind == Kind::Removed {
                let tombstone = Tombstone::of(record).map_err(wrong)?;
                check_tombstone(&tombstone, &mut gone).map_err(wrong)?;
                tombstones.push(tombstone);
            }
            sealing = kind == Kind::Sealed;
            head = Some(Head { seq, hash: record.hash() });
        }
        let head = head.filter(|_| !batch.records.is_empty()).ok_or_else(|| {
            let seq = batch.expected.map_or(1, |head| head.seq.saturating_add(1));
            Corrupt::new(&batch.run_id, seq, "an append holds at least one record")
        })?;
        // Most appends do not need the time.
        let needs_time = batch.hold.is_some() || !tombstones.is_empty();
        let now = if needs_time { now() } else { 0 };
        Ok(Self { batch, tombstones, sealing, head, now })
    }
}

/// Whether a tombstone can be applied, after those of runs that are removed by then.
fn check_tombstone(
    tombstone: &Tombstone,
    gone: &mut HashSet<RunId>,
) -> std::result::Result<(), String> {
    let Tombstone { run_id, removed, .. } = tombstone;
    if run_id == MAINTENANCE {
        return Err("tombstones cannot be removed".to_owned());
    }
    let is_gone = match removed {
        Removed::Run { .. } => !gone.insert(run_id.clone()),
        Removed::Bodies(_) => gone.contains(run_id),
    };
    if is_gone { Err(format!("run {run_id} is gone by then")) } else { Ok(()) }
}

/// The index entry of a run. What a method refuses, it refuses with the error that the log returns.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexEntry {
    /// What the index returns, apart from who holds the run.
    pub summary: RunSummary,
    /// The token of the last lease; 0 if there was none.
    pub token: u64,
    /// Who has the lease, with the last beat of its process.
    pub holder: Option<Holder>,
}

/// Who holds a run, and until when by the log's time: the last beat of its [process](process) decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// The owner's name.
    pub owner: String,
    /// When the term of the last beat is over, in nanoseconds since 1970.
    pub until: i64,
}

/// The part of an owner's name whose beat keeps its leases.
pub fn process(owner: &str) -> &str {
    owner.split_once('/').map_or(owner, |(process, _)| process)
}

impl IndexEntry {
    /// The entry of a run that begins with this batch.
    pub fn begin(checked: &Checked) -> Result<Self> {
        let Append { run_id: run, expected, fence, records, hold, queue, .. } = &checked.batch;
        match records.first() {
            Some(first) if expected.is_none() && fence.is_none() => {
                check_id(run)?;
                let mut summary = RunSummary::begin(first);
                summary.queue = queue.clone().map(Arc::new);
                let mut entry = Self { summary, token: 0, holder: None };
                if let Some(hold) = hold {
                    entry.token = 1;
                    entry.hold(&hold.owner, hold.term, checked.now);
                }
                entry.count(checked);
                entry.check_names()?;
                Ok(entry)
            }
            _ => Err(not_found(run)),
        }
    }

    /// Whether the names that the index is searched by can be stored.
    fn check_names(&self) -> Result<()> {
        let RunSummary { session_id, queue, .. } = &self.summary;
        session_id.as_deref().map_or(Ok(()), |session| check_name("session", session))?;
        queue.as_deref().map_or(Ok(()), check_queue)
    }

    /// The summary for readers of the index.
    pub fn to_summary(&self) -> RunSummary {
        let held_until = self.holder.as_ref().map(|hold| hold.until);
        RunSummary { held_until, ..self.summary.clone() }
    }

    /// Whether this batch was appended before, and nothing since: its writer did not get the answer. Whose the run is by now
    /// makes no difference, as the records are there.
    pub fn ends_with(&self, checked: &Checked) -> bool {
        self.summary.head() == checked.head
    }

    /// Takes in one more batch, if it may follow.
    pub fn follow(&mut self, checked: &Checked) -> Result<()> {
        self.admit(&checked.batch)?;
        if let (None, Some(queue)) = (&self.summary.queue, &checked.batch.queue) {
            check_queue(queue)?;
            self.summary.queue = Some(Arc::new(queue.clone()));
        }
        if let (Some(hold), Some(_)) = (&checked.batch.hold, checked.batch.fence) {
            self.hold(&hold.owner, hold.term, checked.now);
        }
        self.count(checked);
        Ok(())
    }

    fn count(&mut self, checked: &Checked) {
        checked.batch.records.iter().for_each(|record| self.summary.count(record));
        self.summary.wake_at = checked.batch.wake_at;
        // A caller with the answer may continue a waiting run. An ended run cannot be continued.
        let is_parked = self.summary.wake_at.is_some();
        if checked.sealing || is_parked || self.summary.status == RunStatus::Suspended {
            self.holder = None;
        }
    }

    /// From when on the run can continue, if messages wait for it or not: [`i64::MAX`] for never, [`i64::MIN`] for at once.
    pub fn wakes_at(&self, has_messages: bool) -> i64 {
        match (self.summary.status, self.summary.wake_at) {
            _ if self.has_ended() => i64::MAX,
            _ if has_messages => i64::MIN,
            (_, Some(time)) => time,
            (RunStatus::Running, None) => i64::MIN,
            _ => i64::MAX,
        }
    }

    /// Whether nothing can follow but the seal, if that is missing.
    pub fn has_ended(&self) -> bool {
        self.summary.seal.is_some() || self.summary.status.is_ended()
    }

    /// Whether an owner holds the run whose last beat counts at this time, in nanoseconds since 1970.
    pub fn is_held(&self, now: i64) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.until > now)
    }

    /// Whether this owner holds the run.
    pub fn is_held_by(&self, owner: &str) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.owner == owner)
    }

    /// Whether a part of the answer after this record may be kept for the holder of a lease.
    pub fn admits_part(&self, lease: &Lease, seq: u64) -> bool {
        self.summary.records == seq && self.token == lease.token && self.is_held_by(&lease.owner)
    }

    /// What changed, as a log returns it.
    pub fn change(&self, has_messages: bool) -> RunChange {
        let RunSummary { run_id, status, .. } = &self.summary;
        RunChange::new(run_id.clone(), self.summary.head(), *status, has_messages)
    }

    /// Whether a batch may follow. A lost lease is reported first, because it explains a changed
    /// head.
    fn admit(&self, batch: &Append) -> Result<()> {
        if self.summary.seal.is_some() {
            return Err(sealed(&batch.run_id));
        }
        match (batch.fence, &self.holder) {
            (None, None) => {}
            // Another run already has the id. It keeps the id after its holder is gone.
            (None, Some(_)) if batch.expected.is_none() => {}
            (Some(token), Some(_)) if token == self.token => {}
            (Some(token), _) => return Err(fenced(&batch.run_id, token)),
            (None, Some(holder)) => return Err(leased(&batch.run_id, holder)),
        }
        let head = self.summary.head();
        if batch.expected == Some(head) {
            Ok(())
        } else {
            Err(head_mismatch(&batch.run_id, batch.expected, head))
        }
    }

    /// Leases the run to an owner, if it is free now.
    pub fn lease(&mut self, owner: &str, term: Duration, now: i64) -> Result<Lease> {
        self.give(owner, term, now, |holder| holder.until <= now)
    }

    /// Leases the run to an owner that claims it. A run that the owner has is from a claim whose answer was lost, and gets a new
    /// token.
    pub fn claim(&mut self, owner: &str, term: Duration, now: i64) -> Result<Lease> {
        if self.is_held_by(owner) {
            self.holder = None;
        }
        self.lease(owner, term, now)
    }

    /// Leases the run to an owner, if its holder has not renewed its lease since this
    /// end of it was seen.
    pub fn take(
        &mut self,
        owner: &str,
        term: Duration,
        now: i64,
        seen: Option<i64>,
    ) -> Result<Lease> {
        self.give(owner, term, now, |holder| seen == Some(holder.until))
    }

    fn give(
        &mut self,
        owner: &str,
        term: Duration,
        now: i64,
        is_free: impl FnOnce(&Holder) -> bool,
    ) -> Result<Lease> {
        let run = self.summary.run_id.clone();
        if self.summary.seal.is_some() {
            return Err(sealed(&run));
        }
        let other = self.holder.as_ref().filter(|holder| holder.owner != owner);
        if let Some(holder) = other.filter(|holder| !is_free(holder)) {
            return Err(leased(&run, holder));
        }
        let taken_over = other.is_some();
        self.token += u64::from(taken_over || self.holder.is_none());
        let until = self.hold(owner, term, now);
        Ok(Lease::new(run, owner, self.token, until).taken_over(taken_over))
    }

    /// Writes down who holds the run. It is a beat.
    fn hold(&mut self, owner: &str, term: Duration, now: i64) -> i64 {
        let until = beat(self.holder.as_ref().map(|holder| holder.until), term, now);
        self.holder = Some(Holder { owner: owner.to_owned(), until });
        until
    }

    /// Checks whether what a tombstone names may be removed now. The backend compares the hashes of
    /// the records.
    pub fn check_removal(&self, removed: &Removed, now: i64) -> Result<()> {
        let RunSummary { run_id, records, hash, seal, .. } = &self.summary;
        match removed {
            Removed::Run { records: named, hash: named_hash, sealed } => {
                if (named, named_hash, *sealed) != (records, hash, seal.is_some()) {
                    let named = Head { seq: *named, hash: *named_hash };
                    return Err(head_mismatch(run_id, Some(named), self.summary.head()));
                }
                let holder = self.holder.as_ref().filter(|holder| holder.until > now);
                holder.map_or(Ok(()), |holder| Err(leased(run_id, holder)))
            }
            Removed::Bodies(named) => {
                // A run without a seal may continue. Later records may be imported without their
                // bodies.
                let last = if seal.is_some() { records.saturating_sub(1) } else { u64::MAX };
                if let Some(named) = named.iter().find(|named| !(1..=last).contains(&named.seq)) {
                    return Err(wrong_tombstone(run_id, named.seq));
                }
                // Only the holder may append next.
                let is_ahead = named.iter().any(|named| named.seq > *records);
                let holder = self.holder.as_ref().filter(|_| is_ahead);
                holder.map_or(Ok(()), |holder| Err(leased(run_id, holder)))
            }
        }
    }

    /// Takes the run back from a lease.
    pub fn release(&mut self, lease: &Lease) {
        // A caller that failed to start a run under a taken id has a lease with the same token.
        if self.token == lease.token && self.is_held_by(&lease.owner) {
            self.holder = None;
        }
    }
}

/// Until when a beat counts, in nanoseconds since 1970. It differs from the one before even where the clock stands, as it is a sign of life.
pub fn beat(before: Option<i64>, term: Duration, now: i64) -> i64 {
    let until = now.saturating_add(nanos(term));
    if before == Some(until) { until.checked_add(1).unwrap_or(until - 1) } else { until }
}

/// Whether a run may have this id.
pub(crate) fn check_id(run: &str) -> Result<()> {
    check_name("run_id", run)
}

/// Whether a message may have this id.
///
/// # Errors
/// One that the id of a run may not be either: empty, too long, or with the character U+0000.
pub fn check_message_id(id: &str) -> Result<()> {
    check_name("message_id", id)
}

fn check_queue(queue: &Queue) -> Result<()> {
    check_name("queue", &queue.name)?;
    queue.key.as_deref().map_or(Ok(()), |key| check_name("concurrency_key", key))
}

/// Whether this can be an id that logs are searched by: of a run, a message, a session or a queue. `name` is what the error calls it.
///
/// # Errors
/// One that is empty or too long, or has the character U+0000.
pub fn check_name(name: &str, id: &str) -> Result<()> {
    let (code, what) = match id.len() {
        0 => ("empty", format!("it is empty; an id has 1 to {MAX_RUN_ID} bytes")),
        // PostgreSQL has no text with it.
        _ if id.contains('\0') => ("nul", "an id cannot have the character U+0000".to_owned()),
        1..=MAX_RUN_ID => return Ok(()),
        length => ("too_long", format!("it has {length} bytes; an id has 1 to {MAX_RUN_ID} bytes")),
    };
    let why = format!("validation failed: {name}: {what}");
    Err(Error::invalid_option(name, code).with_message(why))
}

fn refused(reason: LogReason, run: &str, why: impl std::fmt::Display) -> Error {
    Error::log(reason).with_message(format!("log error: {reason}: {why}")).with("run_id", run)
}

/// There is no such run.
pub fn not_found(run: &str) -> Error {
    let named = if run.is_empty() { "with an empty id" } else { run };
    let why = format!("there is no run {named} in this log; list the log's runs to find its id");
    refused(LogReason::RunNotFound, run, why)
}

/// The run was removed.
pub fn pruned(run: &str) -> Error {
    let why =
        format!("run {run} was removed from this log; import it into another to have it back");
    refused(LogReason::Pruned, run, why)
}

/// Whether a tombstone may name a run that does not exist. It may announce that future records come
/// without their bodies.
pub fn check_missing(removed: &Removed, run: &str, is_pruned: bool) -> Result<()> {
    match removed {
        _ if is_pruned => Err(pruned(run)),
        Removed::Run { .. } => Err(not_found(run)),
        Removed::Bodies(_) => Ok(()),
    }
}

/// A tombstone names a record that is not there, or is another one, or keeps its body.
pub fn wrong_tombstone(run: &str, seq: u64) -> Error {
    Corrupt::new(run, seq, "a tombstone names it, and its body cannot be removed").into()
}

/// The run has its seal.
pub fn sealed(run: &str) -> Error {
    let why = format!("run {run} has ended and nothing can follow its seal; fork it to continue");
    refused(LogReason::Sealed, run, why)
}

/// A text that is not a cursor of this log's changes.
pub fn invalid_cursor() -> Error {
    Error::invalid_option("cursor", "not_a_cursor")
}

/// A message came for a run that has ended.
pub fn ended(run: &str) -> Error {
    let why = format!("run {run} has ended and takes no messages; fork it to continue");
    refused(LogReason::Sealed, run, why)
}

/// The error for a run that cannot be removed, because a remaining run continues it.
pub fn still_needed(run: &str, by: &str) -> Error {
    let why = format!("run {by} continues run {run}; remove both together");
    refused(LogReason::HeadMismatch, run, why).with("needed_by", by)
}

fn fenced(run: &str, token: u64) -> Error {
    let why = format!(
        "lease {token} of run {run} was given back or taken over; \
         stop here, or take a new lease and go on from the run's head"
    );
    refused(LogReason::Fenced, run, why).with("token", token)
}

fn leased(run: &str, holder: &Holder) -> Error {
    let Holder { owner, until } = holder;
    let why =
        format!("run {run} is held by another process; wait until it ends or stop it, then resume");
    let error = refused(LogReason::Leased, run, why);
    error.with("owner", owner.as_str()).with("until", *until)
}

fn head_mismatch(run: &str, expected: Option<Head>, found: Head) -> Error {
    let expected_seq = expected.map_or(0, |head| head.seq);
    let go_on = "another writer appended; read the run again and append at its end";
    let why = match expected_seq {
        0 => format!(
            "run {run} exists already, up to record {}, and has not ended; resume it, or give the new one another id",
            found.seq
        ),
        seq if seq == found.seq => format!("record {seq} of run {run} is another one: {go_on}"),
        seq => format!("run {run} ends at record {}, not at {seq}: {go_on}", found.seq),
    };
    let error = refused(LogReason::HeadMismatch, run, why);
    error.with("expected_seq", expected_seq).with("seq", found.seq)
}
