//! The records of a run.

use std::num::NonZeroU64;

use axum::{extract::State, http::Uri};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use mynah::{
    ErrorKind, LogReason,
    log::{Body, Log, Record, RecordView},
};
use serde::Serialize;
use serde_json::json;

use crate::{
    App,
    problem::Result,
    query::{Id, Query},
    reply, runs,
};

/// A record, with its bytes if they are wanted.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    view: RecordView,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<Raw>,
}

/// The bytes of a record in base64.
#[derive(Serialize)]
struct Raw {
    envelope: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    salt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
}

impl Raw {
    fn of(record: &Record) -> Self {
        let text = |bytes: &[u8]| BASE64_STANDARD.encode(bytes);
        Self {
            envelope: text(record.envelope_bytes()),
            salt: record.body().map(|Body { salt, .. }| text(salt)),
            payload: record.body().map(|Body { payload, .. }| text(payload)),
        }
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
    let records = sound(app.log.as_ref(), &id, from, limit).await?;
    let last = records.last().map_or(from.saturating_sub(1), Record::seq);
    let next = (last < run.records && !records.is_empty()).then_some(last + 1);
    let shown = records
        .iter()
        .map(|record| Shown { view: record.view(), raw: raw.then(|| Raw::of(record)) });
    let shown: Vec<Shown> = shown.collect();
    Ok(reply::ok(&json!({"records": shown, "next": next})))
}

/// Records up to the first that is damaged. That one is the error of the next page.
async fn sound(log: &dyn Log, run: &str, from: u64, limit: usize) -> Result<Vec<Record>> {
    match log.read(run, from, limit).await {
        Err(error) if is_damage(error.kind()) => match error.seq() {
            Some(seq) if seq > from => {
                let before = usize::try_from(seq - from).unwrap_or(limit).min(limit);
                Ok(log.read(run, from, before).await?)
            }
            _ => Err(error.into()),
        },
        records => Ok(records?),
    }
}

/// Whether something is wrong with what was read.
pub(crate) fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Log(LogReason::Corrupt | LogReason::TooNew))
}
