//! Sums over time, for charts.

use axum::{extract::State, http::Uri};
use mynah::log::{RunStatus, RunSummary};
use serde::Serialize;
use serde_json::json;

use crate::{
    App, now,
    problem::{Problem, Result},
    query::Query,
    reply, runs,
};

/// How many runs are read at most.
const MOST: usize = 20_000;

const HOUR: i64 = 3_600_000_000_000;

/// The runs that started in a span of time.
#[derive(Clone, Default, Serialize)]
struct Bucket {
    from: i64,
    runs: u64,
    failed: u64,
    input_tokens: u64,
    output_tokens: u64,
    cost: f64,
}

impl Bucket {
    fn count(&mut self, run: &RunSummary) {
        self.runs += 1;
        self.failed += u64::from(run.status == RunStatus::Failed);
        self.input_tokens = self.input_tokens.saturating_add(run.totals.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(run.totals.output_tokens);
        self.cost += run.totals.cost;
    }
}

/// `GET /v1/stats`
pub(crate) async fn stats(State(app): State<App>, uri: Uri) -> Result {
    let mut query = Query::of(&uri);
    let (filter, word) = runs::filter(&mut query)?;
    let mut filter = filter.limit(runs::LARGEST);
    let count = query.count("buckets", 48, runs::LARGEST)?;
    query.end()?;
    let before = *filter.before.get_or_insert_with(|| now().saturating_add(1));
    if filter.since.is_some_and(|since| since >= before) {
        return Err(Problem::bad("since must be earlier than before"));
    }
    let mut runs = Vec::new();
    let complete = loop {
        let page = app.log.runs(filter.clone()).await?;
        let is_wanted = |run: &RunSummary| word.is_none_or(|word| run.status_word(now()) == word);
        runs.extend(page.runs.into_iter().filter(is_wanted));
        match page.next {
            None => break true,
            Some(_) if runs.len() >= MOST => break false,
            Some(next) => filter = filter.after(next),
        }
    };
    // Without a first time, that of the oldest run; and an hour at least.
    let oldest = runs.iter().map(|run| run.started).min().unwrap_or(before);
    let since = filter.since.unwrap_or_else(|| oldest.min(before.saturating_sub(HOUR)));
    // In 128 bits, as the span of two times may not fit into 64.
    let (span, buckets) = (i128::from(before) - i128::from(since), count as i128);
    let start = |bucket: i128| i128::from(since) + span * bucket / buckets;
    let begin = |bucket| Bucket {
        from: i64::try_from(start(bucket)).unwrap_or(i64::MAX),
        ..Bucket::default()
    };
    let mut list: Vec<Bucket> = (0..buckets).map(begin).collect();
    for run in &runs {
        let place = (i128::from(run.started) - i128::from(since)) * buckets / span;
        if let Some(bucket) = usize::try_from(place).ok().and_then(|place| list.get_mut(place)) {
            bucket.count(run);
        }
    }
    Ok(reply::ok(&json!({"since": since, "before": before, "buckets": list, "complete": complete})))
}
