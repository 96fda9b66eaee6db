//! Appending tombstones: with them goes, in the same transaction, what they name.

use mynah_data::{LogReason, Result, RunId};
use mynah_log::{
    Head, MAINTENANCE, Record, Removed, Tombstone,
    backend::{self, Checked, IndexEntry, previous_run},
};
use tokio_postgres::types::{ToSql, Type};

use crate::{
    batch::Batch,
    connection::{Line, NUMBERS},
    fail::log_error,
    reads::record,
    round::Loaded,
    row::Known,
    writer::{Failed, Writer},
};

pub(crate) async fn perform(
    writer: &mut Writer,
    checked: &mut Checked,
) -> Result<Result<Head>, Failed> {
    // A process that stops in the middle must not keep its locks.
    begin(writer, "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '10s'").await?;
    let done = remove(writer, checked).await;
    let end = if matches!(done, Ok(Ok(_))) { "COMMIT" } else { "ROLLBACK" };
    begin(writer, end).await?;
    done
}

async fn begin(writer: &Writer, what: &str) -> Result<(), Failed> {
    let line = writer.line.as_ref().ok_or(Failed::Conflict)?;
    Ok(line.client.batch_execute(what).await?)
}

async fn remove(writer: &mut Writer, checked: &mut Checked) -> Result<Result<Head>, Failed> {
    let mut runs: Vec<RunId> =
        checked.tombstones.iter().map(|tombstone| tombstone.run_id.clone()).collect();
    runs.push(RunId::from(MAINTENANCE));
    runs.sort();
    runs.dedup();
    let mut loaded = writer.read(runs, &[]).await?;
    if let Some((_, damage)) = loaded.damaged.drain().next() {
        return Ok(Err(damage));
    }
    checked.now = writer.line.as_ref().map_or(0, Line::now);
    let known = writer.known.get(MAINTENANCE);
    if known.is_some_and(|known| known.entry.ends_with(checked)) {
        return Ok(Ok(checked.head));
    }
    for tombstone in &checked.tombstones {
        let allowed = match may_go(writer, &loaded, tombstone, checked).await {
            Ok(allowed) => allowed,
            Err(failed) => return Err(failed),
        };
        if let Err(refusal) = allowed {
            return Ok(Err(refusal));
        }
    }
    let mut batch = Batch::default();
    let maintenance = RunId::from(MAINTENANCE);
    match writer.known.get_mut(MAINTENANCE) {
        Some(known) => {
            if let Err(refusal) = known.entry.follow(checked) {
                return Ok(Err(refusal));
            }
            known.is_changed = true;
        }
        None => match IndexEntry::begin(checked) {
            Ok(entry) => drop(writer.known.insert(maintenance.clone(), Known::new(entry))),
            Err(refusal) => return Ok(Err(refusal)),
        },
    }
    let leaves = checked.batch.records.iter().map(Record::hash);
    batch.leaves.extend(leaves.map(|hash| (maintenance.clone(), hash)));
    batch.records.extend(checked.batch.records.iter().cloned());
    for tombstone in &checked.tombstones {
        take_away(writer, tombstone).await?;
    }
    writer.commit(&batch, &[maintenance]).await?;
    Ok(Ok(checked.head))
}

/// Whether what a tombstone names may go.
async fn may_go(
    writer: &Writer,
    loaded: &Loaded,
    Tombstone { run_id, removed, .. }: &Tombstone,
    checked: &Checked,
) -> Result<Result<()>, Failed> {
    let line = writer.line.as_ref().ok_or(Failed::Conflict)?;
    let Some(known) = writer.known.get(run_id) else {
        return Ok(backend::check_missing(removed, run_id, loaded.pruned.contains(run_id)));
    };
    if let Err(refusal) = known.entry.check_removal(removed, checked.now) {
        return Ok(Err(refusal));
    }
    let run: &str = run_id;
    match removed {
        Removed::Bodies(named) => {
            let select =
                "SELECT envelope, salt, payload FROM mynah_records WHERE run = $1 AND seq = $2";
            let there = known.entry.summary.records;
            for named in named.iter().filter(|named| named.seq <= there) {
                let seq = named.seq.cast_signed();
                let rows = line
                    .client
                    .query_typed(select, &[(&run, Type::TEXT), (&seq, Type::INT8)])
                    .await?;
                let hash = rows.first().and_then(|row| row.try_get::<_, Vec<u8>>(0).ok());
                let hash = hash.and_then(|envelope| Record::from_parts(envelope, None).ok());
                if hash.map(|record| record.hash()) != Some(named.hash) {
                    return Ok(Err(backend::wrong_tombstone(run, named.seq)));
                }
            }
        }
        Removed::Run { .. } => {
            let select = "SELECT first.envelope, first.salt, first.payload, later.id FROM mynah_runs r \
                          JOIN mynah_runs later ON later.session = r.session AND later.key > r.key \
                          JOIN mynah_records first ON first.run = later.id AND first.seq = 1 WHERE r.id = $1";
            for row in line.client.query_typed(select, &[(&run, Type::TEXT)]).await? {
                let later: String = row.get(3);
                if checked.prunes(&later) {
                    continue;
                }
                let first = record(&row, &later, 1).ok();
                if first.as_ref().and_then(previous_run).as_ref() == Some(run_id) {
                    return Ok(Err(backend::still_needed(run, &later)));
                }
            }
        }
        _ => return Ok(Err(log_error(LogReason::Unusable, "a tombstone of an unknown kind"))),
    }
    Ok(Ok(()))
}

/// Removes what a tombstone names.
async fn take_away(
    writer: &mut Writer,
    Tombstone { run_id, removed, .. }: &Tombstone,
) -> Result<(), Failed> {
    let Some(known) = writer.known.get_mut(run_id) else { return Ok(()) };
    let line = writer.line.as_ref().ok_or(Failed::Conflict)?;
    let (run, version): (&str, i64) = (run_id, known.version);
    let given: [(&(dyn ToSql + Sync), Type); 2] = [(&run, Type::TEXT), (&version, Type::INT8)];
    match removed {
        Removed::Bodies(named) => {
            let seqs: Vec<i64> = named.iter().map(|named| named.seq.cast_signed()).collect();
            let strip = "UPDATE mynah_records SET salt = NULL, payload = NULL WHERE run = $1 AND seq = ANY($2)";
            line.client.execute_typed(strip, &[(&run, Type::TEXT), (&seqs, NUMBERS)]).await?;
            // The next write reads it first.
            let update =
                "UPDATE mynah_heads SET version = version + 1 WHERE run = $1 AND version = $2";
            if line.client.execute_typed(update, &given).await? == 0 {
                return Err(Failed::Conflict);
            }
            known.version += 1;
        }
        Removed::Run { .. } => {
            let delete = "DELETE FROM mynah_heads WHERE run = $1 AND version = $2";
            if line.client.execute_typed(delete, &given).await? == 0 {
                return Err(Failed::Conflict);
            }
            for statement in [
                "DELETE FROM mynah_runs WHERE id = $1",
                "DELETE FROM mynah_records WHERE run = $1",
                "DELETE FROM mynah_inbox WHERE run = $1",
                "DELETE FROM mynah_parts WHERE run = $1",
                "INSERT INTO mynah_pruned (id) VALUES ($1)",
            ] {
                line.client.execute_typed(statement, &given[..1]).await?;
            }
            writer.known.remove(run_id);
        }
        // Unknown members were rejected before.
        _ => {}
    }
    Ok(())
}
