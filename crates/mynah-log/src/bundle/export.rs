//! Writing a bundle.

use std::io::Write;

use mynah_data::Result;
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};

use super::{
    Bundle, End, Entry, Header, Inclusion, Line, MAX_LINE, VERSION, reader::unreadable, shown,
};
use crate::{Corrupt, Log, MAINTENANCE, Record, Removals, audit::walk_knowing, entry, merkle};

const PORTION: usize = 256;

/// The greatest depth of an exported fact. JSON parsers give up at some depth.
const DEPTH: usize = 100;

/// Writes a run as a bundle, and returns its description. Memory does not grow with the run. A run
/// that grows meanwhile is written up to its length at the beginning; a corrupt one up to its first
/// bad record.
///
/// # Errors
/// A run that is missing or corrupt, or a log or a file that cannot be used.
pub async fn export(log: &dyn Log, run: &str, mut out: impl Write) -> Result<Bundle> {
    let Some(indexed) = log.run(run).await? else { return Err(entry::not_found(run)) };
    let removals = Removals::read(log).await?;
    let header = Header { version: VERSION, run_id: run.to_owned() };
    write(&mut out, &Line::Bundle(header))?;
    let gone = removals.of(run);
    for seq in gone.iter().flat_map(|gone| &gone.tombstones) {
        for tombstone in log.read(MAINTENANCE, *seq, 1).await? {
            write_record(&mut out, &tombstone, Line::Tombstone)?;
        }
    }
    let write_record = |record: &Record| write_record(&mut out, record, Line::Record);
    let report = walk_knowing(log, &indexed, gone, write_record).await?.0.report();
    let inclusion = match (report.fingerprint, indexed.seal) {
        (Some(_), Some(place)) => Some(inclusion(log, run, place).await?),
        _ => None,
    };
    let end = End::of(&report, indexed.hash, inclusion.clone());
    write(&mut out, &Line::End(end))?;
    out.flush().map_err(unreadable)?;
    Ok(Bundle { run_id: run.into(), report, inclusion })
}

/// Proves that a run's seal is the leaf of the log's tree at this place.
///
/// # Errors
/// A list of seals that has no such place, or a log that cannot be read.
pub async fn inclusion(log: &dyn Log, run: &str, index: u64) -> Result<Inclusion> {
    let mut leaves = Vec::new();
    loop {
        let seals = log.seals(leaves.len() as u64, PORTION).await?;
        if seals.is_empty() {
            break;
        }
        leaves.extend(seals.iter().map(crate::SealedRun::leaf));
    }
    let place = usize::try_from(index).unwrap_or(usize::MAX);
    let what = "the log's list of seals does not have its seal";
    let proof =
        merkle::inclusion_proof(&leaves, place).ok_or_else(|| Corrupt::new(run, 0, what))?;
    Ok(Inclusion { index, size: leaves.len() as u64, root: merkle::root(&leaves), proof })
}

fn write_record(out: &mut impl Write, record: &Record, line: fn(Entry) -> Line) -> Result<()> {
    let wrong = |what| Corrupt::new(&record.envelope().run_id, record.seq(), what);
    let fact = told(record).map_err(wrong)?;
    write(out, &line(Entry::of(record, fact)))
}

/// The fact, as people read it. It is left out where it would keep programs from reading the rest.
fn told(record: &Record) -> std::result::Result<Option<Box<RawValue>>, String> {
    let Some(body) = record.body().filter(|body| body.payload.len() <= MAX_LINE / 4) else {
        return Ok(None);
    };
    let fact = shown(body)?;
    if depth(&fact) > DEPTH {
        return Ok(None);
    }
    let fact = to_raw_value(&fact).map_err(|error| error.to_string())?;
    let room = MAX_LINE.saturating_sub(2 * body.payload.len());
    Ok(Some(fact).filter(|fact| fact.get().len() < room / 2))
}

fn write(out: &mut impl Write, line: &Line) -> Result<()> {
    let mut bytes = serde_json::to_vec(line).map_err(|error| unreadable(error.into()))?;
    bytes.push(b'\n');
    out.write_all(&bytes).map_err(unreadable)
}

fn depth(value: &Value) -> usize {
    1 + match value {
        Value::Array(values) => values.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
