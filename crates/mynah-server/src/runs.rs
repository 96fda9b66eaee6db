//! Runs, from the log's index.

use std::sync::Arc;

use axum::{extract::State, http::Uri};
use futures_util::future::try_join_all;
use mynah::{
    Error, ErrorKind, HaltReason, LogReason, Role, RunId, ToolCall,
    log::{
        Corrupt, End, Fact, Kind, Log, Parent, Previous, Record, Removals, RunFilter, RunStatus,
        RunSummary, Totals, agents_totals,
    },
    next_id,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    App, now,
    problem::{Problem, Result},
    query::{Id, Query},
    records::{is_damage, readable},
    reply,
    search::{Found, Match, Search},
};

/// Words for the status of runs that the index does not distinguish.
pub(crate) const WORDS: [&str; 5] = ["running", "suspended", "abandoned", "queued", "sleeping"];

/// The largest page of anything.
pub(crate) const LARGEST: usize = 1000;

/// A run as lists show it.
#[derive(Serialize)]
pub(crate) struct Listed {
    #[serde(flatten)]
    summary: RunSummary,
    abandoned: bool,
    /// Whether it is a fork that has only the records of its parent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    not_started: bool,
    /// Whether it is known to be damaged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    damaged: bool,
    /// What the runs of its agents used, where there are some.
    #[serde(skip_serializing_if = "Option::is_none")]
    agents: Option<Totals>,
    /// The run whose agent this one is.
    caller: Option<RunId>,
    /// The first words of its input, where they are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<String>,
    /// The run that it was forked from, and whether the records of that answered for its tools, where the input is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    fork_of: Option<RunId>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tried: bool,
    /// The place of the text that was searched for.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    found: Option<Match>,
}

impl From<RunSummary> for Listed {
    fn from(summary: RunSummary) -> Self {
        let abandoned = summary.is_abandoned(now());
        Self {
            abandoned,
            summary,
            not_started: false,
            damaged: false,
            agents: None,
            caller: None,
            input: None,
            fork_of: None,
            tried: false,
            found: None,
        }
    }
}

impl Listed {
    /// With the place of the text that was searched for.
    pub(crate) fn found_at(self, found: Option<Match>) -> Self {
        Self { found, ..self }
    }

    /// Reads how the run and those of agents belong together.
    pub(crate) async fn read_agents(&mut self, log: &dyn Log) -> mynah::Result<()> {
        self.agents = match agents_totals(log, &self.summary).await {
            // A list shows damaged runs too.
            Err(error) if is_damage(error.kind()) => None,
            totals => Some(totals?).filter(|totals| *totals != Totals::default()),
        };
        // The id of an agent's run begins with that of the run that called it.
        if let Some((caller, _)) = self.summary.run_id.rsplit_once('+') {
            self.caller = log.run(caller).await?.map(|caller| caller.run_id);
        }
        Ok(())
    }

    /// A fork that nothing was added to has not started.
    fn set_parent(&mut self, parent: Option<&Parent>) {
        let is_copy = parent.is_some_and(|parent| parent.seq == self.summary.records);
        self.not_started = self.abandoned && is_copy;
    }

    /// Reads whether an abandoned run is a fork that has not started.
    async fn read_parent(&mut self, log: &dyn Log) -> mynah::Result<()> {
        if self.abandoned
            && let first = readable(log, &self.summary.run_id, 1, 1).await?
            && let Some(Fact::RunStarted { about: Some(about), .. }) = first.first().and_then(fact)
        {
            self.set_parent(about.parent.as_ref());
        }
        Ok(())
    }

    /// Reads the first words of the run's input, and whether it is a fork.
    async fn read_input(&mut self, log: &dyn Log) -> mynah::Result<()> {
        const LONGEST: usize = 160;
        let first = readable(log, &self.summary.run_id, 1, 2).await?;
        self.damaged |= (first.len() as u64) < self.summary.records.min(2);
        if let Some(Fact::Resumed { about: Some(about), .. }) = first.get(1).and_then(fact) {
            self.tried = about.answering_run().is_some();
        }
        if let Some(Fact::RunStarted { thread, about, .. }) = first.first().and_then(fact) {
            let parent = about.and_then(|about| about.parent);
            self.set_parent(parent.as_ref());
            let parent = parent.filter(|parent| parent.continues.is_none());
            self.fork_of = parent.map(|parent| parent.run_id);
            let said = thread.messages.iter().rfind(|message| message.role() == Role::User);
            let text = said.map(|message| message.text()).unwrap_or_default();
            let words: Vec<&str> = text.split_whitespace().take(LONGEST).collect();
            self.input = Some(words.join(" ").chars().take(LONGEST).collect());
        }
        Ok(())
    }
}

/// Reads which runs are wanted: by the index, and by the word for their status where the index does not tell.
pub(crate) fn filter(query: &mut Query) -> Result<(RunFilter, Option<&'static str>)> {
    let mut filter = RunFilter::new();
    let name = query.take("status")?;
    let word = WORDS.into_iter().find(|word| name.as_deref() == Some(word));
    match name.as_deref() {
        None => {}
        Some("abandoned" | "queued") => filter.abandoned = Some(now()),
        Some("sleeping") => filter.status = Some(RunStatus::Suspended),
        Some(name) => {
            let status = RunStatus::ALL.iter().copied().find(|status| status.as_str() == name);
            let names: Vec<&str> = RunStatus::ALL.iter().map(|status| status.as_str()).collect();
            filter.status = Some(status.ok_or_else(|| {
                Problem::bad(format!(
                    "status={name}: give one of {}, {}",
                    names.join(", "),
                    WORDS[2..].join(", ")
                ))
            })?);
        }
    }
    filter.model = query.take("model")?;
    filter.session = query.take("session")?;
    filter.prefix = query.take("prefix")?;
    (filter.since, filter.before) = (query.time("since")?, query.time("before")?);
    Ok((filter, word))
}

/// `GET /v1/runs`
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result {
    let mut query = Query::of(&uri);
    let (filter, word) = filter(&mut query)?;
    let mut filter = filter.limit(query.count("limit", 100, LARGEST)?);
    filter.oldest_first = match query.take("order")?.as_deref() {
        None | Some("newest") => false,
        Some("oldest") => true,
        Some(order) => return Err(Problem::bad(format!("order={order}: give newest or oldest"))),
    };
    filter.after = query.take("after")?;
    let search = Search::of(&mut query, &app.agents, word)?;
    let with_input = query.flag("input")?;
    query.end()?;
    let after = filter.after.clone();
    let wrong = |error: Error| match (after, error.is_validation()) {
        (Some(after), true) => Problem::bad(format!("after={after}: no page ends there")),
        _ => error.into(),
    };
    let mut page = match search {
        Some(search) => search.page(&app, filter).await,
        None => app.log.runs(filter).await.map(Found::from),
    }
    .map_err(wrong)?;
    try_join_all(page.runs.iter_mut().map(|run| run.read_agents(app.log.as_ref()))).await?;
    let (inputs, parents): (Vec<_>, Vec<_>) = page.runs.iter_mut().partition(|_| with_input);
    try_join_all(inputs.into_iter().map(|run| run.read_input(app.log.as_ref()))).await?;
    try_join_all(parents.into_iter().map(|run| run.read_parent(app.log.as_ref()))).await?;
    for run in &mut page.runs {
        run.damaged |= app.is_damaged(&run.summary.run_id);
    }
    let damaged: Vec<Value> = page.damaged.iter().map(damaged).collect();
    let mut list = json!({"runs": page.runs, "damaged": damaged, "next": page.next});
    if let Some(searched) = page.searched {
        list["searched"] = searched.into();
    }
    Ok(reply::ok(&list))
}

fn damaged(Corrupt { run_id: run, seq, what, .. }: &Corrupt) -> Value {
    json!({"run_id": run, "seq": seq, "what": what})
}

/// `GET /v1/runs/{id}`
pub(crate) async fn one(State(app): State<App>, Id(id): Id, uri: Uri) -> Result {
    Query::of(&uri).end()?;
    Ok(reply::ok(&Described::read(&app, found(&app, &id).await?).await?))
}

/// The index entry of a run that must exist.
pub(crate) async fn found(app: &App, id: &str) -> Result<RunSummary> {
    if let Some(run) = app.log.run(id).await? {
        return Ok(run);
    }
    let removals = Removals::read(app.log.as_ref()).await?;
    let is_pruned = removals.pruned().any(|(run, _)| run == id);
    let (reason, what) = match is_pruned {
        true => (LogReason::Pruned, format!("run {id} was removed from this log")),
        false => (LogReason::RunNotFound, format!("there is no run {id} in this log")),
    };
    Err(Error::log(reason).with_message(what).with("run_id", id).into())
}

/// A run with data from its first and last records.
#[derive(Serialize)]
pub(crate) struct Described {
    #[serde(flatten)]
    run: Listed,
    fingerprint: Option<mynah::log::Hash>,
    parent: Option<Link>,
    previous: Option<Previous>,
    end: Option<Ended>,
    /// The text of the model's last answer, if the run is completed.
    answer: Option<String>,
    resumable: Option<bool>,
    continued_in: Option<RunId>,
    error: Option<Error>,
    waiting: Option<Waiting>,
    agent: Option<String>,
}

/// Where a run was forked from another.
#[derive(Serialize)]
struct Link {
    run_id: mynah::RunId,
    seq: u64,
    hash: mynah::log::Hash,
}

#[derive(Serialize)]
struct Ended {
    kind: &'static str,
    seq: u64,
    #[serde(flatten)]
    end: End,
}

impl Ended {
    /// Whether a resume asks the model again whose call failed; false if it does so only with a changed agent. None if the run did not
    /// fail on a model call.
    fn resumable(&self) -> Option<bool> {
        let error = self.end.error().filter(|_| self.kind == "failed")?;
        let of_model = matches!(error.kind(), ErrorKind::Adapter(_) | ErrorKind::Stream(_));
        (of_model && self.end.reason == HaltReason::Error).then(|| error.is_resumable())
    }
}

/// What a run waits for.
#[derive(Serialize)]
#[serde(tag = "for", rename_all = "snake_case")]
enum Waiting {
    Answer {
        question: Option<String>,
        /// The answers that it offers.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        choices: Vec<Value>,
        /// The calls that the question is about, if an agent beneath the run asks.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        calls: Vec<ToolCall>,
        /// Whether they need an approval, or have an unknown outcome.
        #[serde(skip_serializing_if = "Option::is_none")]
        about: Option<String>,
    },
    Approval {
        calls: Vec<ToolCall>,
    },
    Outcome {
        calls: Vec<ToolCall>,
    },
    Resume,
    Time {
        wake_at_ms: Option<u64>,
    },
}

impl Described {
    pub(crate) async fn read(app: &App, run: RunSummary) -> Result<Self> {
        let log = app.log.as_ref();
        let first = readable(log, &run.run_id, 1, 1).await?.first().and_then(fact);
        let agent = app.agents.name_of(first.as_ref()).map(str::to_owned);
        let about = match first {
            Some(Fact::RunStarted { about, .. }) => about.map(|about| *about).unwrap_or_default(),
            _ => mynah::log::About::default(),
        };
        let parent = about.parent;
        let end = last_end(log, &run).await?;
        let waiting = match &end {
            Some(Ended { kind: "suspended", seq, end }) => {
                Some(waiting(log, &run, *seq, end).await?)
            }
            _ => None,
        };
        let answer = match &end {
            Some(ended) if ended.kind == "completed" => last_answer(log, &run, ended.seq).await?,
            _ => None,
        };
        // Without one that calls an agent which answers in place of the model.
        let answer = match answer {
            Some(Fact::AssistantCompleted { response, .. })
                if response.message.tool_calls().next().is_none() =>
            {
                Some(response.message.text().into_owned())
            }
            _ => None,
        };
        let mut listed = Listed::from(run);
        listed.read_agents(log).await?;
        listed.set_parent(parent.as_ref());
        let run = &listed.summary;
        let continued_in = match end.is_some() {
            true => log.run(&next_id(&run.run_id)).await?.map(|next| next.run_id),
            false => None,
        };
        Ok(Self {
            fingerprint: run.seal.map(|_| run.hash),
            parent: parent.map(|Parent { run_id, seq, hash, .. }| Link { run_id, seq, hash }),
            answer,
            resumable: end.as_ref().and_then(Ended::resumable),
            continued_in,
            previous: about.session.and_then(|session| session.previous),
            error: match &end {
                Some(ended) => ended.end.error(),
                None => app.live.failure(&run.run_id),
            },
            waiting,
            agent,
            end,
            run: listed,
        })
    }
}

/// The fact in a record, if it can be read.
fn fact(record: &Record) -> Option<Fact> {
    record.fact().ok().flatten()
}

/// How the run stopped last, if it has not continued since.
async fn last_end(log: &dyn Log, run: &RunSummary) -> Result<Option<Ended>> {
    let last = run.records.saturating_sub(u64::from(run.seal.is_some()));
    if run.status == RunStatus::Running || last == 0 {
        return Ok(None);
    }
    let record = readable(log, &run.run_id, last, 1).await?.into_iter().next();
    let Some(record) = record.filter(|record| record.seq() == last) else { return Ok(None) };
    let (kind, seq) = (record.kind().as_str(), record.seq());
    Ok(match fact(&record) {
        Some(Fact::Suspended(end) | Fact::Completed(end) | Fact::Failed(end)) => {
            Some(Ended { kind, seq, end })
        }
        Some(Fact::Cancelled { end, .. }) => Some(Ended { kind, seq, end }),
        _ => None,
    })
}

/// What a run asks a person.
pub(crate) enum Asks {
    Question,
    /// What becomes of calls.
    Decision,
}

/// What a run asks a person at this record; none if it does not wait there, or waits for something else.
pub(crate) async fn asks_at(log: &dyn Log, run: &str, seq: u64) -> Result<Option<Asks>> {
    let records = log.read(run, seq, 1).await?;
    let Some(Fact::Suspended(end)) = records.first().and_then(fact) else { return Ok(None) };
    Ok(match end.reason {
        HaltReason::ManualToolCalls | HaltReason::UncertainTools => Some(Asks::Decision),
        HaltReason::CrashLoop | HaltReason::Sleeping => None,
        _ => Some(Asks::Question),
    })
}

/// What a run waits for that stopped so at this record.
async fn waiting(log: &dyn Log, run: &RunSummary, seq: u64, end: &End) -> Result<Waiting> {
    let calls = async || {
        Ok::<_, Problem>(match last_answer(log, run, seq).await? {
            Some(answer) => {
                end.waiting_calls([&answer]).into_iter().map(std::borrow::Cow::into_owned).collect()
            }
            None => Vec::new(),
        })
    };
    Ok(match end.reason {
        HaltReason::ManualToolCalls => Waiting::Approval { calls: calls().await? },
        HaltReason::UncertainTools => Waiting::Outcome { calls: calls().await? },
        HaltReason::CrashLoop => Waiting::Resume,
        HaltReason::Sleeping => Waiting::Time { wake_at_ms: end.wake_at_ms() },
        _ => {
            let question = end.metadata.get("pending_question").or(end.metadata.get("question"));
            let hint = |name: &str| Some(end.metadata.get("ask_user_opts")?.get(name)?.clone());
            let about = hint("for").and_then(|about| about.as_str().map(str::to_owned));
            let calls = hint("calls").filter(|_| about.is_some());
            let calls = calls.and_then(|calls| serde_json::from_value(calls).ok());
            let choices = hint("choices").and_then(|all| serde_json::from_value(all).ok());
            Waiting::Answer {
                choices: choices.unwrap_or_default(),
                question: question.and_then(Value::as_str).map(str::to_owned),
                calls: calls.unwrap_or_default(),
                about,
            }
        }
    })
}

/// The last answer before a record.
async fn last_answer(log: &dyn Log, run: &RunSummary, mut seq: u64) -> Result<Option<Fact>> {
    const PORTION: u64 = 64;
    while seq > 1 {
        let from = seq.saturating_sub(PORTION).max(1);
        let wanted = usize::try_from(seq - from).unwrap_or(usize::MAX);
        let records = readable(log, &run.run_id, from, wanted).await?;
        let answer = records
            .iter()
            .rev()
            .find(|record| record.kind() == Kind::AssistantCompleted && record.seq() < seq);
        if let Some(record) = answer {
            return Ok(fact(record));
        }
        seq = from;
    }
    Ok(None)
}

/// The log, for what takes one that can be cloned.
pub(crate) fn log(app: &App) -> Arc<dyn Log> {
    Arc::clone(&app.log)
}
