//! What moves in any run of the log.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use axum::{
    extract::State,
    http::{HeaderMap, Uri},
    response::sse::Event,
};
use futures_util::{StreamExt as _, stream};
use mynah::{
    Result as MynahResult, RunId,
    log::{Log, RunFilter, RunStatus, RunSummary},
};
use serde_json::{Value, json};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use crate::{
    App, now,
    problem::{Problem, Result},
    query::Query,
    reply,
    runs::Listed,
};

/// How often the index is read, however many clients there are.
const PACE: Duration = Duration::from_millis(500);

/// How many changes are kept for clients that come back.
const KEPT: usize = 4096;

/// How many runs of each kind are watched: the newest, those that run, those that wait.
const WATCHED: usize = 1000;

/// What moved, as far as it is remembered. Clients read the index through it, so that it is read once for all of them.
pub(crate) struct Changes {
    log: Arc<dyn Log>,
    /// Tells cursors of this process from those of another.
    epoch: i64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    looked: Option<Instant>,
    runs: HashMap<RunId, Sign>,
    /// The number of the last change.
    last: u64,
    changes: VecDeque<RunSummary>,
}

/// What a change is a change of.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sign {
    records: u64,
    status: RunStatus,
    abandoned: bool,
}

impl Sign {
    fn of(run: &RunSummary) -> Self {
        Self { records: run.records, status: run.status, abandoned: run.is_abandoned(now()) }
    }
}

/// Some changes, and the cursor after them.
struct News {
    runs: Vec<RunSummary>,
    last: u64,
    /// Whether some are forgotten that the client has not had.
    reset: bool,
}

impl Changes {
    pub(crate) fn new(log: Arc<dyn Log>) -> Self {
        Self { log, epoch: now(), seen: Mutex::default() }
    }

    fn cursor(&self, last: u64) -> String {
        format!("{:x}.{last}", self.epoch)
    }

    /// The changes after a cursor; none in it means from now on.
    async fn after(&self, after: Option<u64>) -> MynahResult<News> {
        let mut seen = self.seen.lock().await;
        self.look(&mut seen).await?;
        let last = seen.last;
        let Some(after) = after else { return Ok(News { runs: Vec::new(), last, reset: false }) };
        let missed = usize::try_from(last.saturating_sub(after)).unwrap_or(usize::MAX);
        if after > last || missed > seen.changes.len() {
            return Ok(News { runs: Vec::new(), last, reset: true });
        }
        let runs = seen.changes.iter().skip(seen.changes.len() - missed).cloned().collect();
        Ok(News { runs, last, reset: false })
    }

    /// Reads the index, unless that was done just now.
    async fn look(&self, seen: &mut Seen) -> MynahResult<()> {
        if seen.looked.is_some_and(|looked| looked.elapsed() < PACE) {
            return Ok(());
        }
        let mut found: HashMap<RunId, RunSummary> = HashMap::new();
        let open = [RunStatus::Running, RunStatus::Suspended];
        let filters = open.map(|status| RunFilter::new().status(status));
        for filter in filters.into_iter().chain([RunFilter::new()]) {
            let page = self.log.runs(filter.limit(WATCHED)).await?;
            found.extend(page.runs.into_iter().map(|run| (run.run_id.clone(), run)));
        }
        // A run that was open and is in no list any more has ended.
        let left = seen.runs.iter().filter(|(_, sign)| !sign.status.is_ended());
        let left: Vec<RunId> =
            left.map(|(id, _)| id).filter(|id| !found.contains_key(*id)).cloned().collect();
        for id in left {
            if let Some(run) = self.log.run(&id).await? {
                found.insert(id, run);
            }
        }
        let is_first = seen.looked.is_none();
        let runs = found.iter().map(|(id, run)| (id.clone(), Sign::of(run))).collect();
        let before = std::mem::replace(&mut seen.runs, runs);
        let moved = found
            .into_values()
            .filter(|run| !is_first && before.get(&run.run_id) != Some(&Sign::of(run)));
        let mut moved: Vec<RunSummary> = moved.collect();
        moved.sort_by_key(|run| (run.updated, run.run_id.clone()));
        seen.last += moved.len() as u64;
        seen.changes.extend(moved);
        let forgotten = seen.changes.len().saturating_sub(KEPT);
        seen.changes.drain(..forgotten);
        seen.looked = Some(Instant::now());
        Ok(())
    }

    /// Reads a cursor. One of another process, or of a process before this one, stands before everything.
    fn parse(&self, cursor: &str) -> Result<Option<u64>> {
        let parsed = cursor.split_once('.').and_then(|(epoch, last)| {
            Some((i64::from_str_radix(epoch, 16).ok()?, last.parse().ok()?))
        });
        match parsed {
            Some((epoch, last)) if epoch == self.epoch => Ok(Some(last)),
            Some(_) => Ok(None),
            None => Err(Problem::bad(format!("after={cursor}: give the cursor of a change"))),
        }
    }
}

/// `GET /v1/changes`
pub(crate) async fn changes(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Result {
    let mut query = Query::of(&uri);
    let given = query.take("after")?;
    query.end()?;
    let last = headers.get("last-event-id").and_then(|last| last.to_str().ok());
    let given = last.map(str::to_owned).or(given);
    let (mut after, mut reset) = (None, false);
    if let Some(given) = given {
        after = app.changes.parse(&given)?;
        reset = after.is_none();
    }
    let mut news = app.changes.after(after).await?;
    news.reset |= reset;
    if !reply::wants_stream(&headers) {
        let News { runs, last, reset } = news;
        let list: Vec<Value> = runs.into_iter().map(change).collect();
        let next = app.changes.cursor(last);
        return Ok(reply::ok(&json!({"changes": list, "next": next, "reset": reset})));
    }
    let shared = Arc::clone(&app);
    let batches = stream::unfold(Some((news, true)), move |state| {
        let app = Arc::clone(&shared);
        async move {
            let (news, is_first) = state?;
            let batch = told(&app.changes, &news, is_first);
            sleep(PACE).await;
            let next = app.changes.after(Some(news.last)).await;
            // A log that cannot be read now may be readable soon: the client keeps its place.
            let next = next.unwrap_or(News { runs: Vec::new(), last: news.last, reset: false });
            Some((stream::iter(batch), Some((next, false))))
        }
    });
    Ok(reply::stream(&app, batches.flatten()))
}

fn change(run: RunSummary) -> Value {
    json!({"run": Listed::from(run)})
}

/// News as events. The first says where the client is, so that it can come back to there.
fn told(changes: &Changes, news: &News, is_first: bool) -> Vec<Event> {
    let before = news.last - news.runs.len() as u64;
    let mut events = Vec::new();
    if news.reset || is_first {
        let name = if news.reset { "reset" } else { "ready" };
        events.push(reply::event(&json!({})).event(name).id(changes.cursor(before)));
    }
    events.extend(
        news.runs
            .iter()
            .zip(before + 1..)
            .map(|(run, place)| reply::event(&change(run.clone())).id(changes.cursor(place))),
    );
    events
}
