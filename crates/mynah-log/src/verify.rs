//! Verifying a run without trusting the log's keeper.

use std::fmt;

use mynah_data::{Error, LogReason, RunId};
use serde::Serialize;

use crate::{Chain, Fact, Hash, Head, Kind, Record, Totals};

/// What is wrong with a run, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Corrupt {
    /// The run; empty where it is unknown.
    pub run_id: RunId,
    /// The first record that is wrong; 0 where it is none of its records.
    pub seq: u64,
    /// How.
    pub what: String,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run_id, seq, what } = self;
        match (run_id.as_str(), seq) {
            ("", _) => f.write_str(what),
            (run, 0) => write!(f, "run {run}: {what}"),
            (run, seq) => write!(f, "run {run}, record {seq}: {what}"),
        }
    }
}

/// How the words begin in which something is described that a newer version of Mynah wrote.
const TOO_NEW: &str = "this version of Mynah does not know ";

/// In words, what this version does not know.
pub(crate) fn too_new(what: impl fmt::Display) -> String {
    format!("{TOO_NEW}{what}; use the version that wrote it, or a newer one")
}

/// The reason of an error in these words.
pub(crate) fn reason_of(what: &str) -> LogReason {
    if what.starts_with(TOO_NEW) { LogReason::TooNew } else { LogReason::Corrupt }
}

impl Corrupt {
    /// This is wrong with a run at this record; 0 where it is none of its records.
    pub fn new(run_id: impl Into<RunId>, seq: u64, what: impl Into<String>) -> Self {
        Self { run_id: run_id.into(), seq, what: what.into() }
    }

    /// A record that holds something which this version does not know.
    pub fn too_new(record: &Record, what: impl fmt::Display) -> Self {
        Self::new(&record.envelope().run_id, record.seq(), too_new(what))
    }

    /// `corrupt`; or `too_new`, if nothing is wrong but that a newer version of Mynah wrote the record.
    pub fn reason(&self) -> LogReason {
        reason_of(&self.what)
    }
}

impl std::error::Error for Corrupt {}

impl From<Corrupt> for Error {
    fn from(corrupt: Corrupt) -> Self {
        let reason = corrupt.reason();
        Self::log(reason)
            .with_message(format!("log error: {reason}: {corrupt}"))
            .with("run_id", corrupt.run_id)
            .with("seq", corrupt.seq)
            .with("what", corrupt.what)
    }
}

mynah_data::words! {
    /// Whether a run that was verified has ended.
    #[non_exhaustive]
    pub enum VerifyStatus {
        /// It has its seal.
        Verified => "verified",
        /// It has no seal yet.
        InProgress => "in_progress",
    }
}

/// What a run was found to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Whether it has ended.
    pub status: VerifyStatus,
    /// How many records there are.
    pub records: u64,
    /// The root that the seal names; none without a seal.
    pub root: Option<Hash>,
    /// The seal's hash; none without a seal.
    pub fingerprint: Option<Hash>,
    /// How many bodies were removed.
    pub redacted: u64,
}

/// Checks a run record by record, in memory that does not grow with the run.
///
/// ```
/// # mod mynah { pub use {mynah_data::*, mynah_log as log}; }
/// use mynah::Thread;
/// use mynah::log::{Chain, Extent, Fact, Verifier, VerifyStatus};
///
/// let mut chain = Chain::new("run-1");
/// let first = chain.append(0, [7; 16], &Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None })?;
/// let mut verifier = Verifier::new("run-1");
/// verifier.check(&first).unwrap();
/// assert_eq!(verifier.report().status, VerifyStatus::InProgress);
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Verifier {
    chain: Chain,
    totals: Totals,
    redacted: u64,
    /// Whether the totals of missing bodies are unknown.
    untold: bool,
    /// The kind of the record before.
    last: Option<Kind>,
    seal: Option<(Hash, Hash)>,
    /// The hash of the record at which the chain broke.
    broken_at: Option<Hash>,
}

impl Verifier {
    /// Checks a run from its first record on.
    pub fn new(run_id: &str) -> Self {
        let (chain, totals) = (Chain::new(run_id), Totals::default());
        Self { chain, totals, redacted: 0, untold: false, last: None, seal: None, broken_at: None }
    }

    /// Checks the next record. After one without its body, the totals of the run are not checked.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn check(&mut self, record: &Record) -> Result<(), Corrupt> {
        self.untold |= record.body().is_none();
        self.check_counted(record)
    }

    /// The same, where a record without its body adds to the totals what the body did.
    pub(crate) fn check_counted(&mut self, record: &Record) -> Result<(), Corrupt> {
        let seq = self.chain.head().map_or(1, |head| head.seq + 1);
        self.judge(record).map_err(|what| Corrupt::new(self.chain.run_id(), seq, what))
    }

    /// Names the record that was changed, given what [`check`](Self::check) found wrong with the last one and the hash that
    /// someone else has for it: the record after it, or the index.
    ///
    /// Where a record does not name the hash of the one before it, either of them may have been changed. If its own hash is the
    /// one that is expected further on, it was not.
    pub(crate) fn blame(&self, found: Corrupt, vouched: Option<Hash>) -> Corrupt {
        if self.broken_at.is_none() || self.broken_at != vouched || found.seq < 2 {
            return found;
        }
        let what = "its hash is not the one that the record after it names".to_owned();
        Corrupt { seq: found.seq - 1, what, ..found }
    }

    fn judge(&mut self, record: &Record) -> Result<(), String> {
        if self.seal.is_some() {
            return Err("it follows the seal".to_owned());
        }
        let is_seal = record.kind() == Kind::Sealed;
        // Only a seal needs the root, and it is the one over what stands before it.
        let root = is_seal.then(|| self.chain.root());
        let before = self.chain.head().map(|head| head.hash);
        self.broken_at = (record.envelope().prev != before).then(|| record.hash());
        self.chain.follow(record).map_err(|corrupt| corrupt.what)?;
        let last = self.last.replace(record.kind());
        if let Some(what) = record.kind().misplaced(self.chain.run_id(), last.is_none()) {
            return Err(what.to_owned());
        }
        if last.is_some_and(Kind::is_end) && !is_seal {
            return Err("it follows the run's end, and only the seal can".to_owned());
        }
        if record.body().is_none() {
            if is_seal {
                return Err("the seal's body is missing, and a seal has nothing to hide".to_owned());
            }
            self.redacted += 1;
        }
        let Some(root) = root else {
            self.totals.add(&record.gist().adds);
            return Ok(());
        };
        if let Some(Fact::Sealed(seal)) = record.strict_fact()? {
            if seal.root != root {
                return Err("the seal's root is not that of the records before it".to_owned());
            }
            if !self.untold && seal.totals != self.totals {
                return Err("the seal's totals are not those of the records before it".to_owned());
            }
        }
        self.seal = Some((root, record.hash()));
        Ok(())
    }

    /// Where the run ends that was checked so far.
    pub(crate) fn head(&self) -> Option<Head> {
        self.chain.head()
    }

    /// What the run was found to be so far.
    pub fn report(&self) -> VerifyReport {
        VerifyReport {
            status: self.seal.map_or(VerifyStatus::InProgress, |_| VerifyStatus::Verified),
            records: self.head().map_or(0, |head| head.seq),
            root: self.seal.map(|(root, _)| root),
            fingerprint: self.seal.map(|(_, fingerprint)| fingerprint),
            redacted: self.redacted,
        }
    }

    /// The chain so far, to continue a verified run.
    #[doc(hidden)]
    pub fn into_chain(self) -> (Chain, Totals) {
        (self.chain, self.totals)
    }
}

/// Checks a whole run.
///
/// # Errors
/// The first thing that is wrong.
pub fn verify<'a>(
    run_id: &str,
    records: impl IntoIterator<Item = &'a Record>,
) -> Result<VerifyReport, Corrupt> {
    let mut verifier = Verifier::new(run_id);
    let mut records = records.into_iter();
    while let Some(record) = records.next() {
        verifier.check(record).map_err(|found| {
            let after = records.next();
            verifier.blame(found, after.and_then(|after| after.envelope().prev))
        })?;
    }
    Ok(verifier.report())
}
