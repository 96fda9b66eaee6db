//! Conversations over several runs.

use axum::{extract::State, http::Uri};
use futures_util::future::try_join_all;
use mynah::{log::RunFilter, restore_session};
use serde_json::json;

use crate::{
    App,
    problem::Result,
    query::{Id, Query},
    reply,
    runs::{self, Listed},
};

/// `GET /v1/sessions/{id}`
pub(crate) async fn one(State(app): State<App>, Id(id): Id, uri: Uri) -> Result {
    Query::of(&uri).end()?;
    let restored = restore_session(&runs::log(&app), &id).await?;
    let mut list: Vec<Listed> = Vec::new();
    let mut filter = RunFilter::new().session(&*id).oldest_first().limit(runs::LARGEST);
    loop {
        let page = app.log.runs(filter.clone()).await?;
        list.extend(page.runs.into_iter().map(Listed::from));
        let Some(next) = page.next else { break };
        filter = filter.after(next);
    }
    try_join_all(list.iter_mut().map(|run| run.read_agents(app.log.as_ref()))).await?;
    Ok(reply::ok(&json!({
        "session_id": id,
        "session": restored.session,
        "unfinished": restored.unfinished,
        "runs": list,
    })))
}
