//! The records of a run.

use std::num::NonZeroU64;

use axum::{extract::State, http::Uri};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use mynah::{
    ErrorKind, LogReason, Result as MynahResult,
    log::{Body, Log, Record},
};
use serde_json::{Value, json};

use crate::{
    App,
    problem::Result,
    query::{Id, Query},
    reply, runs,
};

/// A record that the log has, or why it cannot be read.
struct Place {
    seq: u64,
    record: std::result::Result<Record, String>,
}

impl Place {
    /// As JSON, with the bytes in base64 if they are wanted.
    fn shown(&self, run: &str, raw: bool) -> Value {
        let record = match &self.record {
            Ok(record) => record,
            Err(what) => {
                return json!({
                    "run_id": run, "seq": self.seq, "ts": null, "kind": null, "prev": null, "hash": null,
                    "fact": null, "unreadable": what,
                });
            }
        };
        let mut shown = json!(record.view());
        if raw {
            let text = |bytes: &[u8]| BASE64_STANDARD.encode(bytes);
            shown["raw"] = json!({"envelope": text(record.envelope_bytes())});
            if let Some(Body { salt, payload, .. }) = record.body() {
                shown["raw"]["salt"] = text(salt).into();
                shown["raw"]["payload"] = text(payload).into();
            }
        }
        shown
    }
}

/// `GET /v1/runs/{id}/records`
pub(crate) async fn list(State(app): State<App>, Id(id): Id, uri: Uri) -> Result {
    let mut query = Query::of(&uri);
    let from = query.parsed::<NonZeroU64>("from", "the number of a record, from 1")?;
    let from = from.map_or(1, NonZeroU64::get);
    let limit = query.count("limit", 100, runs::LARGEST)?;
    let raw = query.flag("raw")?;
    query.end()?;
    let run = runs::found(&app, &id).await?;
    let places = places(app.log.as_ref(), &id, from, limit).await?;
    let last = places.last().map_or(from.saturating_sub(1), |place| place.seq);
    let next = (last < run.records && !places.is_empty()).then_some(last + 1);
    let shown: Vec<Value> = places.iter().map(|place| place.shown(&id, raw)).collect();
    Ok(reply::ok(&json!({"records": shown, "next": next})))
}

/// The records of a run that can be read.
pub(crate) async fn readable(
    log: &dyn Log,
    run: &str,
    from: u64,
    limit: usize,
) -> MynahResult<Vec<Record>> {
    let places = places(log, run, from, limit).await?;
    Ok(places.into_iter().filter_map(|place| place.record.ok()).collect())
}

/// The records of a run. A damaged one is in its place.
async fn places(log: &dyn Log, run: &str, from: u64, limit: usize) -> MynahResult<Vec<Place>> {
    let (mut places, mut from, mut wanted) = (Vec::new(), from, limit);
    while wanted > 0 {
        let (damaged, error) = match log.read(run, from, wanted).await {
            Err(error) if is_damage(error.kind()) => match error.seq() {
                Some(seq) if seq >= from => (seq, error),
                _ => return Err(error),
            },
            records => {
                places.extend(records?.into_iter().map(of));
                return Ok(places);
            }
        };
        let before = usize::try_from(damaged - from).unwrap_or(wanted).min(wanted);
        if before > 0 {
            let records = log.read(run, from, before).await?;
            let is_short = records.len() < before;
            places.extend(records.into_iter().map(of));
            // So many are read at once. The next page begins there.
            if is_short {
                return Ok(places);
            }
        }
        let what = error.damage().unwrap_or_default().to_owned();
        places.push(Place { seq: damaged, record: Err(what) });
        from = damaged + 1;
        wanted = wanted.saturating_sub(before + 1);
    }
    Ok(places)
}

fn of(record: Record) -> Place {
    Place { seq: record.seq(), record: Ok(record) }
}

/// Whether something is wrong with what was read.
pub(crate) fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Log(LogReason::Corrupt | LogReason::TooNew))
}
