//! Filters that the log's index cannot answer: what was said, the agent, cost and duration.
//!
//! They look through the runs one by one, so a request has a limit for what it reads. An answer that reached the limit has a `next`,
//! and may have no runs.

use std::{borrow::Cow, ops::Range, sync::Arc};

use mynah::{
    Message, Part, Result as MynahResult,
    log::{Corrupt, Fact, Log, Record, RunFilter, RunPage, RunSummary, agents_totals},
};
use serde::Serialize;

use crate::{
    App,
    agents::Agents,
    now,
    problem::{Problem, Result},
    query::Query,
    records::readable,
    runs::Listed,
};

/// What one request reads at most: runs of the index, portions of records, records, and bytes of them.
const MOST_RUNS: usize = 20_000;
const MOST_READS: usize = 2_000;
const MOST_RECORDS: usize = 20_000;
const MOST_BYTES: usize = 64 << 20;

/// How many records are read at once.
const PORTION: usize = 256;

/// Pages of the index have at least this size, so that few matches do not make many pages.
const LEAST: usize = 25;

/// The longest text that can be searched for, in characters.
const LONGEST: usize = 200;

/// How much is shown on each side of a match, in characters.
const BESIDE: usize = 60;

/// What runs are searched for.
#[derive(Default)]
pub(crate) struct Search {
    /// In lower case.
    text: Option<String>,
    agent: Option<String>,
    min_cost: Option<f64>,
    min_seconds: Option<f64>,
    /// The word for the status.
    word: Option<&'static str>,
}

/// Where a text was found.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Match {
    seq: u64,
    before: String,
    text: String,
    after: String,
}

/// The runs that fit.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) runs: Vec<Listed>,
    pub(crate) damaged: Vec<Corrupt>,
    pub(crate) next: Option<String>,
    /// How many runs were looked at; none if the index alone could answer.
    pub(crate) searched: Option<usize>,
}

impl From<RunPage> for Found {
    fn from(RunPage { runs, damaged, next, .. }: RunPage) -> Self {
        Self { runs: runs.into_iter().map(Listed::from).collect(), damaged, next, searched: None }
    }
}

/// What was read so far.
#[derive(Default)]
struct Spent {
    reads: usize,
    records: usize,
    bytes: usize,
}

impl Spent {
    fn is_over(&self) -> bool {
        self.reads >= MOST_READS || self.records >= MOST_RECORDS || self.bytes >= MOST_BYTES
    }

    fn count(&mut self, records: &[Record]) {
        let bytes = records.iter().filter_map(Record::body).map(|body| body.payload.len());
        self.reads += 1;
        self.records += records.len();
        self.bytes += bytes.sum::<usize>();
    }
}

impl Search {
    /// Reads what is searched for; none if the index alone can answer.
    pub(crate) fn of(
        query: &mut Query,
        agents: &Agents,
        word: Option<&'static str>,
    ) -> Result<Option<Self>> {
        let text = query.take("text")?.map(|text| text.trim().to_lowercase());
        if text.as_ref().is_some_and(|text| text.chars().count() > LONGEST) {
            return Err(Problem::bad(format!("text: give at most {LONGEST} characters")));
        }
        let search = Self {
            text: text.filter(|text| !text.is_empty()),
            agent: query.take("agent")?,
            min_cost: query.amount("min_cost", "US dollars")?,
            min_seconds: query.amount("min_seconds", "a number of seconds")?,
            word,
        };
        let is_any = search.text.is_none()
            && search.agent.is_none()
            && search.min_cost.is_none()
            && search.min_seconds.is_none()
            && search.word.is_none();
        search.agent.as_deref().map(|agent| agents.named(agent)).transpose()?;
        Ok((!is_any).then_some(search))
    }

    /// Looks for runs from the place on where the filter begins.
    pub(crate) async fn page(&self, app: &App, mut filter: RunFilter) -> MynahResult<Found> {
        let (limit, mut found, mut spent) = (filter.limit, Found::default(), Spent::default());
        let (least, mut searched) = (LEAST.min(limit), 0);
        loop {
            let page = app.log.runs(filter.clone()).await?;
            searched += page.runs.len();
            found.searched = Some(searched);
            found.damaged.extend(page.damaged);
            for run in page.runs {
                if let Some(at) = self.look(app, &run, &mut spent).await? {
                    found.runs.push(Listed::from(run).found_at(at));
                }
            }
            found.next = page.next;
            let room = limit.saturating_sub(found.runs.len());
            let Some(next) = &found.next else { return Ok(found) };
            if room < least || searched >= MOST_RUNS || spent.is_over() {
                return Ok(found);
            }
            filter = filter.after(next).limit(room);
        }
    }

    /// Whether a run fits, and where the text is in it.
    async fn look(
        &self,
        app: &App,
        run: &RunSummary,
        spent: &mut Spent,
    ) -> MynahResult<Option<Option<Match>>> {
        if self.word.is_some_and(|word| run.status_word(now()) != word) {
            return Ok(None);
        }
        let seconds = duration(run) as f64 / 1e9;
        if self.min_seconds.is_some_and(|least| seconds < least) {
            return Ok(None);
        }
        if let Some(least) = self.min_cost {
            let agents = agents_totals(app.log.as_ref(), run).await.unwrap_or_default();
            if run.totals.cost + agents.cost < least {
                return Ok(None);
            }
        }
        if let Some(agent) = &self.agent {
            let first = readable(app.log.as_ref(), &run.run_id, 1, 1).await?;
            spent.count(&first);
            let first = first.first().and_then(|record| record.fact().ok().flatten());
            let likely = first.as_ref().and_then(|first| app.agents.likely(first));
            if likely.is_none_or(|likely| likely.name != *agent) {
                return Ok(None);
            }
        }
        let Some(text) = &self.text else { return Ok(Some(None)) };
        Ok(find_in_run(app.log.as_ref(), run, text, spent).await?.map(Some))
    }
}

/// From a run's start to its end, or to now if it has not ended, in nanoseconds.
fn duration(run: &RunSummary) -> i64 {
    let end = if run.status.is_ended() { run.updated } else { run.updated.max(now()) };
    end.saturating_sub(run.started)
}

/// The first place of a text in a run, among the records that one request may read.
async fn find_in_run(
    log: &dyn Log,
    run: &RunSummary,
    text: &str,
    spent: &mut Spent,
) -> MynahResult<Option<Match>> {
    let (mut from, mut here) = (1, Spent::default());
    while !here.is_over() {
        let records = readable(log, &run.run_id, from, PORTION).await?;
        here.count(&records);
        spent.count(&records);
        let found = records.iter().find_map(|record| find_in_record(record, text));
        match records.last() {
            Some(last) if found.is_none() && last.seq() < run.records => from = last.seq() + 1,
            _ => return Ok(found),
        }
    }
    Ok(None)
}

/// The first place of a text in what a record says.
fn find_in_record(record: &Record, text: &str) -> Option<Match> {
    let fact = record.fact().ok().flatten()?;
    said(&fact).iter().find_map(|said| {
        let Range { start, end } = find(said, text)?;
        let before = said[..start].char_indices().rev().nth(BESIDE - 1).map_or(0, |(at, _)| at);
        let after = said[end..].char_indices().nth(BESIDE).map_or(said.len(), |(at, _)| end + at);
        Some(Match {
            seq: record.seq(),
            before: said[before..start].to_owned(),
            text: said[start..end].to_owned(),
            after: said[end..after].to_owned(),
        })
    })
}

/// What people, models and tools said in a fact.
fn said(fact: &Fact) -> Vec<Cow<'_, str>> {
    match fact {
        Fact::RunStarted { thread, .. } => thread.messages.iter().flat_map(said_in).collect(),
        Fact::UserMessage { message } => said_in(message).collect(),
        Fact::AssistantCompleted { response, .. }
        | Fact::ContextTruncated { summary: Some(response), .. } => {
            said_in(&response.message).collect()
        }
        Fact::BudgetExceeded { partial: Some(partial), .. }
        | Fact::Cancelled { partial: Some(partial), .. } => said_in(&partial.message).collect(),
        Fact::ToolCompleted { content, .. } | Fact::ToolFailed { content, .. } => {
            vec![content.into()]
        }
        Fact::Resumed { message, tool_results, edited, rejected, .. } => {
            let texts = [tool_results, edited, rejected].into_iter().flatten();
            let texts = texts.map(|(_, text)| Cow::from(text));
            message.iter().flat_map(said_in).chain(texts).collect()
        }
        Fact::Suspended(end) => {
            let question = end.metadata.get("pending_question").and_then(|text| text.as_str());
            question.map(Cow::from).into_iter().collect()
        }
        Fact::TurnStarted { .. }
        | Fact::TurnLost { .. }
        | Fact::FinalizeStarted { .. }
        | Fact::FinalizeFailed { .. }
        | Fact::ToolScheduled { .. }
        | Fact::SideEffect { .. }
        | Fact::ContextTruncated { summary: None, .. }
        | Fact::BudgetExceeded { partial: None, .. }
        | Fact::Completed(_)
        | Fact::Failed(_)
        | Fact::Cancelled { partial: None, .. }
        | Fact::Sealed(_)
        | Fact::Removed(_) => Vec::new(),
    }
}

fn said_in(message: &Arc<Message>) -> impl Iterator<Item = Cow<'_, str>> {
    message.parts().iter().filter_map(|part| match part {
        Part::Text { text, .. } | Part::Reasoning { text, .. } | Part::Refusal { text } => {
            Some(text.into())
        }
        Part::ToolCall(call) => Some(format!("{} {}", call.name, call.raw_arguments).into()),
        _ => None,
    })
}

/// The first place of a text in lower case, in a text of any case.
fn find(said: &str, text: &str) -> Option<Range<usize>> {
    let lower = said.to_lowercase();
    let start = lower.find(text)?;
    // A letter may have another length in lower case.
    let (mut start_of, mut place) = (None, 0);
    for (at, letter) in said.char_indices() {
        if place >= start && start_of.is_none() {
            start_of = Some(at);
        }
        place += letter.to_lowercase().map(char::len_utf8).sum::<usize>();
        if place >= start + text.len() {
            return Some(start_of.unwrap_or(at)..at + letter.len_utf8());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use mynah::Response;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_summary_is_searched() {
        let message = json!({"role": "assistant", "content": "They like blue."});
        let summary: Response =
            serde_json::from_value(json!({"message": message})).expect("a response");
        let fact = Fact::ContextTruncated {
            strategy: "summarize".to_owned(),
            tokens_before: 9,
            tokens_after: 4,
            messages_before: 5,
            messages_after: 2,
            dropped: 3,
            cleared: 0,
            summary: Some(Box::new(summary)),
        };
        assert_eq!(said(&fact), ["They like blue."]);
    }

    #[test]
    fn a_text_is_found_in_any_case_and_at_its_place() {
        for (said, text, found) in [
            ("Refund 5 EUR", "refund", Some("Refund")),
            ("İstanbul im Schnee", "schnee", Some("Schnee")),
            ("ΣΊΣΥΦΟΣ rollt", "σίσυφος", Some("ΣΊΣΥΦΟΣ")),
            ("nothing", "refund", None),
            ("", "a", None),
        ] {
            assert_eq!(find(said, text).map(|range| &said[range]), found, "{said}");
        }
    }
}
