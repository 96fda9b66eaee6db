//! What moves in any run of the log.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, Uri},
    response::sse::Event,
};
use futures_util::{StreamExt as _, stream};
use mynah::{Result as MynahResult, log::Log};
use serde_json::{Value, json};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use crate::{
    App,
    problem::{Problem, Result},
    query::Query,
    reply,
    runs::Listed,
};

/// How often the log is checked for changes, for any number of clients.
const PACE: Duration = Duration::from_millis(500);

/// How many runs are read at once.
const PORTION: usize = 500;

/// The log's newest position. Clients that are already connected read only this.
pub(crate) struct Changes {
    log: Arc<dyn Log>,
    known: Mutex<Option<(Instant, String)>>,
}

/// Some runs that moved, and the cursor after them.
struct News {
    runs: Vec<Value>,
    cursor: String,
    /// Whether the log forgot what moved before.
    missed: bool,
}

impl Changes {
    pub(crate) fn new(log: Arc<dyn Log>) -> Self {
        Self { log, known: Mutex::default() }
    }

    /// The cursor after all that is known to have moved.
    async fn head(&self) -> MynahResult<String> {
        let mut known = self.known.lock().await;
        let cursor = match &*known {
            Some((looked, cursor)) if looked.elapsed() < PACE => return Ok(cursor.clone()),
            known => known.as_ref().map(|(_, cursor)| cursor.as_str()),
        };
        let cursor = self.log.changes(cursor, PORTION).await?.cursor;
        *known = Some((Instant::now(), cursor.clone()));
        Ok(cursor)
    }

    /// The runs that moved after a cursor, as they are now; none in it means from now on.
    async fn after(&self, cursor: Option<&str>) -> MynahResult<News> {
        let changes = self.log.changes(cursor, PORTION).await?;
        let mut runs = Vec::new();
        for change in changes.runs {
            // One that was pruned since has nothing to show.
            if let Some(run) = self.log.run(&change.run_id).await? {
                let mut run = Listed::from(run);
                run.read_agents(self.log.as_ref()).await?;
                runs.push(json!({"run": run}));
            }
        }
        Ok(News { runs, cursor: changes.cursor, missed: changes.missed })
    }
}

/// `GET /v1/changes`
pub(crate) async fn changes(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Result {
    let mut query = Query::of(&uri);
    let given = query.take("after")?;
    query.end()?;
    let last = headers.get("last-event-id").and_then(|last| last.to_str().ok());
    let given = last.map(str::to_owned).or(given);
    let news = app.changes.after(given.as_deref()).await.map_err(|error| {
        match (given, error.is_validation()) {
            (Some(given), true) => {
                Problem::bad(format!("after={given}: give the cursor of a change"))
            }
            _ => error.into(),
        }
    })?;
    if !reply::wants_stream(&headers) {
        let News { runs, cursor, missed } = news;
        return Ok(reply::ok(&json!({"changes": runs, "next": cursor, "missed": missed})));
    }
    // The first event says where the client is, so that it can come back to there.
    let ready = reply::event(&json!({})).event("ready").id(&news.cursor);
    let first = told(&news).into_iter().chain([ready]).collect::<Vec<_>>();
    let shared = Arc::clone(&app);
    let later = stream::unfold(news.cursor, move |cursor| {
        let app = Arc::clone(&shared);
        async move {
            loop {
                sleep(PACE).await;
                // A log that cannot be read now may be readable soon: the client keeps its place.
                match app.changes.head().await {
                    Ok(head) if head != cursor => {}
                    _ => continue,
                }
                if let Ok(news) = app.changes.after(Some(&cursor)).await
                    && news.cursor != cursor
                {
                    return Some((stream::iter(told(&news)), news.cursor));
                }
            }
        }
    });
    Ok(reply::stream(&app, stream::iter(first).chain(later.flatten())))
}

/// News as events. Only the last has an id: who comes back in their midst gets all of them again.
fn told(news: &News) -> Vec<Event> {
    if news.missed {
        return vec![reply::event(&json!({})).event("reset").id(&news.cursor)];
    }
    let count = news.runs.len();
    let events = news.runs.iter().enumerate().map(|(place, run)| {
        let event = reply::event(run);
        if place + 1 == count { event.id(&news.cursor) } else { event }
    });
    events.collect()
}
