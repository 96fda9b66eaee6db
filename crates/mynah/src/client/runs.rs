//! Lists of runs.

use std::time::Duration;

use mynah_data::RunId;
use mynah_log::{RunFilter, RunSummary};
use serde::Deserialize;

/// Which runs a server lists: what the index of its log knows, and what the server looks for in the runs.
///
/// ```
/// use std::time::Duration;
/// use mynah::{client::RunQuery, log::{RunFilter, RunStatus}};
///
/// let failed = RunFilter::new().status(RunStatus::Failed).limit(20);
/// let query = RunQuery::from(failed).text("refund").agent("support").min_duration(Duration::from_secs(60));
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a query does nothing unless it is given to Client::runs"]
pub struct RunQuery {
    filter: RunFilter,
    text: Option<String>,
    agent: Option<String>,
    min_cost: Option<f64>,
    min_duration: Option<Duration>,
    with_input: bool,
}

impl RunQuery {
    mynah_data::setters! { self => self;
        /// Only runs in which this was said: by people, models or tools, in arguments or questions. Case does not matter.
        text(text: impl Into<String>) = Some(text.into());

        /// Only runs that this agent of the server could have begun.
        agent(name: impl Into<String>) = Some(name.into());

        /// Only runs that cost at least so many US dollars.
        min_cost(dollars: f64) = Some(dollars);

        /// Only runs whose last record is at least so long after their first.
        min_duration(time: Duration) = Some(time);

        /// With the first words of each run's [input](ListedRun::input).
        with_input() = true;
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = (&'static str, String)> {
        let Self { filter, text, agent, min_cost, min_duration, with_input } = self;
        let number = |value: Option<i64>| value.map(|value| value.to_string());
        let status = match filter.abandoned {
            Some(_) => Some("abandoned"),
            None => filter.status.map(|status| status.as_str()),
        };
        let members = [
            ("status", status.map(str::to_owned)),
            ("model", filter.model.clone()),
            ("session", filter.session.clone()),
            ("prefix", filter.prefix.clone()),
            ("since", number(filter.since)),
            ("before", number(filter.before)),
            ("order", filter.oldest_first.then(|| "oldest".to_owned())),
            ("after", filter.after.clone()),
            ("limit", (filter.limit > 0).then(|| filter.limit.to_string())),
            ("text", text.clone()),
            ("agent", agent.clone()),
            ("min_cost", min_cost.map(|dollars| dollars.to_string())),
            ("min_seconds", min_duration.map(|time| time.as_secs_f64().to_string())),
            ("input", with_input.then(|| "true".to_owned())),
        ];
        members.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

impl From<RunFilter> for RunQuery {
    fn from(filter: RunFilter) -> Self {
        Self { filter, ..Self::default() }
    }
}

/// Runs of a log, newest first.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct RunList {
    /// The runs.
    pub runs: Vec<ListedRun>,
    /// Runs that the index cannot describe.
    #[serde(default)]
    pub damaged: Vec<DamagedRun>,
    /// Where the next page begins, for [`RunFilter::after`]; none on the last. A page of a search may have no runs and a next page.
    pub next: Option<String>,
}

/// A run in a list.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct ListedRun {
    /// What the log's index has.
    #[serde(flatten)]
    pub summary: RunSummary,
    /// Whether it runs, and no process holds it.
    #[serde(default)]
    pub abandoned: bool,
    /// The first words of its last user message, if they were asked for.
    #[serde(default)]
    pub input: Option<String>,
    /// Where the text is that was searched for.
    #[serde(default, rename = "match")]
    pub found: Option<TextMatch>,
}

/// A place in a run that has the text which was searched for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct TextMatch {
    /// The record.
    pub seq: u64,
    /// The text before it.
    pub before: String,
    /// The text, as it is written there.
    pub text: String,
    /// The text after it.
    pub after: String,
}

/// A run that cannot be described.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct DamagedRun {
    /// The run.
    pub run_id: RunId,
    /// The first record that is wrong; 0 where it is none of its records.
    pub seq: u64,
    /// What is wrong.
    pub what: String,
}
