//! Reading a bundle as if anyone could have written it.

use std::io::{BufRead, Read as _};

use mynah_data::{Error, LogReason, Result, RunId};

use super::{Bundle, End, Entry, Header, Line, MAX_LINE, VERSION};
use crate::{
    Corrupt, MAINTENANCE, Record, Removed, Tombstone, Verifier, entry, merkle,
    removal::Gone,
    verify::{reason_of, too_new},
};

/// Gives what a bundle holds, piece by piece, each checked.
pub(super) struct Reader<R> {
    lines: Lines<R>,
    run: RunId,
    verifier: Verifier,
    gone: Gone,
}

pub(super) enum Item {
    /// A removal, and when it was.
    Tombstone(i64, Tombstone),
    Record(Record),
    /// All was checked, and there is no more.
    End(Bundle),
}

impl<R: BufRead> Reader<R> {
    pub(super) fn open(input: R) -> Result<Self> {
        let mut lines = Lines { input, line: Vec::new(), number: 0 };
        let run = match lines.next()? {
            Some(Line::Bundle(header)) if header.version == VERSION => header.run_id,
            Some(Line::Bundle(Header { version: 0, .. })) => {
                return Err(lines.wrong("there is no version 0 of bundles"));
            }
            Some(Line::Bundle(header)) => {
                let version = format!("version {} of bundles", header.version);
                return Err(lines.wrong(&too_new(version)));
            }
            _ => return Err(lines.wrong("it does not begin as a bundle does")),
        };
        entry::check_id(&run).map_err(|error| lines.wrong(&error.to_string()))?;
        let (verifier, gone) = (Verifier::new(&run), Gone::default());
        Ok(Self { lines, run: run.into(), verifier, gone })
    }

    pub(super) fn run(&self) -> &str {
        &self.run
    }

    pub(super) fn next(&mut self) -> Result<Item> {
        match self.lines.next()? {
            Some(Line::Tombstone(entry)) if self.verifier.head().is_none() => self.tombstone(entry),
            Some(Line::Record(entry)) => self.record(entry),
            Some(Line::End(end)) => self.end(&end),
            Some(Line::Bundle(_) | Line::Tombstone(_)) => {
                Err(self.lines.wrong("it does not belong here"))
            }
            None => Err(self.lines.wrong("the bundle ends too early")),
        }
    }

    fn tombstone(&mut self, entry: Entry) -> Result<Item> {
        let judge = || {
            let record = entry.record()?;
            if *record.envelope().run_id != *MAINTENANCE {
                return Err("it is not a tombstone".to_owned());
            }
            let tombstone = Tombstone::of(&record)?;
            let Removed::Bodies(bodies) = &tombstone.removed else {
                return Err("it is the tombstone of a whole run".to_owned());
            };
            if tombstone.run_id != self.run {
                return Err(format!("it is a tombstone of run {}", tombstone.run_id));
            }
            self.gone.strip(bodies.iter().cloned());
            Ok(Item::Tombstone(record.envelope().ts, tombstone))
        };
        judge().map_err(|what| self.lines.wrong(&what))
    }

    fn record(&mut self, entry: Entry) -> Result<Item> {
        let seq = self.verifier.head().map_or(1, |head| head.seq.saturating_add(1));
        let wrong = |what| Corrupt { run_id: self.run.clone(), seq, what };
        let judged = entry.record().map_err(wrong).and_then(|record| {
            let counted = Gone::counted(Some(&self.gone), &record);
            self.verifier.check_counted(counted.as_ref().unwrap_or(&record))?;
            // The file is untrusted. A fact that cannot be decoded is rejected.
            record.strict_fact().map_err(wrong)?;
            counted
        });
        judged.map(Item::Record).map_err(|corrupt| self.lines.corrupt(corrupt))
    }

    fn end(&mut self, end: &End) -> Result<Item> {
        let report = self.verifier.report();
        let is_ended = report.fingerprint.is_some();
        let lacks = |seq: &u64| is_ended && *seq > report.records;
        let is_lacking = self.gone.bodies.keys().any(lacks);
        let Some(head) = self.verifier.head().filter(|_| !is_lacking) else {
            return Err(self.lines.wrong("records are missing before it"));
        };
        if End::of(&report, head.hash, end.inclusion.clone()) != *end {
            return Err(self.lines.wrong("it contradicts the records"));
        }
        let is_proven = match (&end.fingerprint, &end.inclusion) {
            (None, None) => true,
            (Some(fingerprint), Some(tree)) => {
                let leaf = merkle::leaf(&fingerprint.0);
                merkle::verify_inclusion(&leaf, tree.index, tree.size, &tree.root, &tree.proof)
            }
            _ => false,
        };
        if !is_proven {
            return Err(self.lines.wrong("it does not prove that the seal is in the log's tree"));
        }
        if self.lines.next()?.is_some() {
            return Err(self.lines.wrong("it follows the end"));
        }
        let inclusion = end.inclusion.clone();
        Ok(Item::End(Bundle { run_id: self.run.clone(), report, inclusion }))
    }
}

struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    /// The next line; none at the end.
    fn next(&mut self) -> Result<Option<Line>> {
        self.line.clear();
        self.number += 1;
        let limit = MAX_LINE as u64 + 1;
        let read = (&mut self.input).take(limit).read_until(b'\n', &mut self.line);
        match read.map_err(unreadable)? {
            0 => return Ok(None),
            _ if self.line.pop() == Some(b'\n') => {}
            read if read as u64 == limit => {
                return Err(self.wrong(&format!("it is longer than {MAX_LINE} bytes")));
            }
            _ => return Err(self.wrong("it has no end: the file was cut off")),
        }
        let line = serde_json::from_slice(&self.line);
        line.map(Some)
            .map_err(|error| self.wrong(&format!("it is not a line of a bundle: {error}")))
    }

    fn wrong(&self, what: &str) -> Error {
        self.found(reason_of(what), what)
    }

    fn found(&self, reason: LogReason, what: &str) -> Error {
        let number = self.number;
        Error::log(reason)
            .with_message(format!("log error: {reason}: line {number} of the bundle: {what}"))
            .with("line", number)
            .with("what", format!("line {number}: {what}"))
    }

    fn corrupt(&self, corrupt: Corrupt) -> Error {
        let found = self.found(corrupt.reason(), &corrupt.to_string());
        found.with("run_id", corrupt.run_id).with("seq", corrupt.seq)
    }
}

pub(super) fn unreadable(error: std::io::Error) -> Error {
    Error::log(LogReason::Unavailable)
        .with_message(format!("log error: unavailable: the bundle: {error}"))
        .caused_by(error)
}
