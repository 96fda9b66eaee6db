//! Signals: what continues or ends a run.
//!
//! A signal goes into the run's inbox, so that it is not lost if this process dies, and counts once. If no other process performs the run, this
//! one continues it at once.

use std::collections::HashMap;

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
};
use mynah::{
    CancelHandle, Engine, ErrorKind, LogReason, Message, OnUncertain, Resume, RunId, SystemWorld,
    World as _, cancel_run, deliver,
    log::{Fact, Hash, Log as _, Queue, RunStatus, RunSummary},
    next_id,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    App, Room,
    actions::{Answer, Body, QUEUE, allowed, in_time, last_event, room},
    live::LiveRun,
    problem::{Problem, Result},
    query::Id,
    runs,
};

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Signal {
    agent: Option<String>,
    key: Option<String>,
    answer: Option<String>,
    approve: Vec<String>,
    approve_with: Map<String, Value>,
    approve_digest: HashMap<String, Hash>,
    reject: Map<String, Value>,
    results: Map<String, Value>,
    message: Option<String>,
    cancel: bool,
    resume: bool,
    on_uncertain: Option<OnUncertain>,
    allow_changed_agent: bool,
}

impl Signal {
    /// What continues a fork.
    pub(crate) fn of_fork(message: Option<String>, allow_changed_agent: bool) -> Self {
        Self { message, allow_changed_agent, ..Self::default() }
    }

    /// Refuses what is no signal, or several.
    fn check(&self) -> Result<()> {
        let decides = !self.approve.is_empty()
            || !self.approve_with.is_empty()
            || !self.approve_digest.is_empty()
            || !self.reject.is_empty()
            || !self.results.is_empty();
        let said =
            [self.answer.is_some(), decides, self.message.is_some(), self.cancel, self.resume];
        match said.into_iter().filter(|said| *said).count() {
            1 => {}
            0 => {
                return Err(Problem::bad(
                    "body: give one of answer, approve, reject, results, message, cancel, resume",
                ));
            }
            _ => return Err(Problem::bad("body: give one signal at a time")),
        }
        // The messages of a signal have ids that begin with its key.
        match self.key.as_ref().is_some_and(|key| key.is_empty() || key.len() > 200) {
            true => Err(Problem::bad("key: give 1 to 200 bytes")),
            false => Ok(()),
        }
    }

    /// Whether it says how this server has to continue the run, which no message can.
    fn is_for_this_server(&self) -> bool {
        self.resume
            || self.on_uncertain.is_some()
            || self.allow_changed_agent
            || !self.approve_digest.is_empty()
    }

    /// The same as messages for the run's inbox.
    fn messages(&self) -> Result<Vec<mynah::Signal>> {
        use mynah::Signal as To;
        let approved = self.approve.iter().map(To::approve);
        let edited = self.approve_with.iter();
        let edited = edited.map(|(call, arguments)| To::approve_with(call, arguments.clone()));
        let mut list: Vec<To> = approved.chain(edited).collect();
        for (call, why) in &self.reject {
            list.push(To::reject(call, reason(call, why)?));
        }
        list.extend(
            self.results.iter().map(|(call, content)| To::tool_result(call, content.clone())),
        );
        list.extend(self.answer.clone().map(To::Answer));
        list.extend(self.message.clone().map(To::Message));
        Ok(list)
    }

    /// Says it to a run that is resumed.
    pub(crate) fn apply(self, mut resume: Resume) -> Result<Resume> {
        if let Some(text) = self.answer {
            resume = resume.answer(text);
        }
        if let Some(text) = self.message {
            resume = resume.message(Message::user(text));
        }
        for call in self.approve {
            resume = resume.approve(call);
        }
        for (call, arguments) in self.approve_with {
            resume = resume.approve_with(call, arguments);
        }
        for (call, digest) in self.approve_digest {
            resume = resume.approve_digest(call, digest);
        }
        for (call, why) in &self.reject {
            resume = resume.reject(call, reason(call, why)?);
        }
        for (call, result) in self.results {
            resume = resume.tool_result(call, result);
        }
        if let Some(policy) = self.on_uncertain {
            resume = resume.on_uncertain(policy);
        }
        if self.allow_changed_agent {
            resume = resume.allow_changed_engine();
        }
        Ok(resume)
    }
}

fn reason<'a>(call: &str, why: &'a Value) -> Result<&'a str> {
    why.as_str().ok_or_else(|| Problem::bad(format!("reject.{call}: give the reason as a text")))
}

/// `POST /v1/runs/{id}/signals`
pub(crate) async fn signal(
    State(app): State<App>,
    Id(id): Id,
    uri: Uri,
    headers: HeaderMap,
    Body(mut signal): Body<Signal>,
) -> Result {
    let answer = Answer::of(&uri, &headers)?;
    signal.check()?;
    allowed(&app)?;
    runs::found(&app, &id).await?;
    let after = last_event(&app, &id).await?;
    let key = signal.key.take();
    // A repeated signal changes nothing.
    let run = match taken_by(&app, &id, key.as_deref()).await? {
        Some(run) => run,
        None => match send(&app, &id, signal, key.as_deref()).await {
            Ok((run, live)) => return answer.send(&app, &run, live, after).await,
            // The same signal may have come in between.
            Err(problem) => taken_by(&app, &id, key.as_deref()).await?.ok_or(problem)?,
        },
    };
    answer.send(&app, &run, app.live.run(&run), after).await
}

/// The run that took the signal with this key: this run, or one that continues it.
async fn taken_by(app: &App, id: &str, key: Option<&str>) -> Result<Option<RunId>> {
    let Some(message) = key.map(|key| message_id(key, 0)) else { return Ok(None) };
    let mut run = RunId::from(id);
    while !app.log.was_delivered(&run, &message).await? {
        run = next_id(&run);
        if app.log.head(&run).await?.is_none() {
            return Ok(None);
        }
    }
    // What still waits may be that of a process which died before it took it.
    let inbox = app.log.inbox(&run, usize::MAX).await?;
    let is_taken = inbox.iter().all(|waiting| waiting.id != message);
    Ok((is_taken || app.live.run(&run).is_some()).then_some(run))
}

/// Does what a signal says. Returns the run that it was for, or that continues it.
async fn send(
    app: &App,
    id: &str,
    signal: Signal,
    key: Option<&str>,
) -> Result<(RunId, Option<LiveRun>)> {
    let run = newest(app, id).await?;
    let id = run.run_id;
    if signal.cancel {
        let live = cancel(app, &id, key).await?;
        return Ok((id, live));
    }
    let space = match app.live.run(&id) {
        Some(_) => None,
        None => Some(room(app)?),
    };
    let log = runs::log(app);
    let agent = app.agents.of_run(signal.agent.as_deref(), app.log.as_ref(), &id).await?;
    let engine = agent.engine(&log, Some(&id)).await?;
    // A run that has ended has no inbox.
    if signal.is_for_this_server() || run.seal.is_some() {
        if app.live.run(&id).is_some() {
            let detail = format!("this server performs run {id} now; wait until it ends or waits");
            return Err(Problem::new(StatusCode::CONFLICT, "run_is_live", detail));
        }
        let space = space.map_or_else(|| room(app), Ok)?;
        let resume = signal.apply(engine.resume(&log, &id))?;
        let resume =
            key.into_iter().fold(resume, |resume, key| resume.message_id(message_id(key, 0)));
        let (id, live) = perform(app, resume, space).await?;
        return Ok((id, Some(live)));
    }
    let live = match delivered(app, &engine, &id, signal, key).await? {
        true => continued(app, &engine, &id, space).await?,
        false => app.live.run(&id),
    };
    Ok((id, live))
}

/// The run, or if it has ended, the newest one that continues it.
async fn newest(app: &App, id: &str) -> Result<RunSummary> {
    let mut run = runs::found(app, id).await?;
    while run.seal.is_some()
        && let Some(next) = app.log.run(&next_id(&run.run_id)).await?
        && continues(app, &next.run_id).await?
    {
        run = next;
    }
    Ok(run)
}

/// Whether a run continues another. A fork may have the id of such a run.
async fn continues(app: &App, run: &str) -> Result<bool> {
    let first = app.log.read(run, 1, 1).await?;
    let first = first.first().and_then(|record| record.fact().ok().flatten());
    Ok(matches!(first, Some(Fact::RunStarted { about: Some(about), .. })
        if about.parent.as_ref().is_some_and(|parent| parent.continues.is_some())))
}

/// Ends a run, whichever process performs it.
async fn cancel(app: &App, id: &str, key: Option<&str>) -> Result<Option<LiveRun>> {
    let message = key.map(|key| message_id(key, 0));
    if let Some(live) = app.live.run(id) {
        if let Some(message) = message {
            deliver(&app.log, id, &message, &mynah::Signal::Cancel).await?;
        }
        live.cancel();
        return Ok(Some(live));
    }
    let cancel = cancel_run(&runs::log(app), id);
    match message.iter().fold(cancel, mynah::Cancel::message_id).await {
        Ok(_) => Ok(None),
        // The process that holds it reads its inbox.
        Err(error) if error.kind() == ErrorKind::Log(LogReason::Leased) => {
            let message = message.unwrap_or_else(|| message_id(&new_key(), 0));
            deliver(&app.log, id, &message, &mynah::Signal::Cancel).await?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Puts a signal that fits the run into its inbox. Returns whether messages wait there.
async fn delivered(
    app: &App,
    engine: &Engine,
    id: &str,
    signal: Signal,
    key: Option<&str>,
) -> Result<bool> {
    let messages = signal.messages()?;
    // A run in progress reads what a user says to it at its next boundary, also if it runs a tool now.
    let is_in_progress = app.live.run(id).is_some()
        || app.log.run(id).await?.is_some_and(|run| run.held_until.is_some());
    if signal.message.is_none() || !is_in_progress {
        signal.apply(engine.resume(&runs::log(app), id))?.check().await?;
    }
    let key = key.map_or_else(new_key, str::to_owned);
    for (n, message) in messages.iter().enumerate() {
        deliver(&app.log, id, &message_id(&key, n), message).await?;
    }
    Ok(!app.log.inbox(id, 1).await?.is_empty())
}

/// The id of a message of the signal with this key.
fn message_id(key: &str, n: usize) -> String {
    format!("{key}.{n}")
}

/// Continues a run with the messages in its inbox, unless another process does.
async fn continued(
    app: &App,
    engine: &Engine,
    id: &str,
    space: Option<Room>,
) -> Result<Option<LiveRun>> {
    if let Some(live) = app.live.run(id) {
        return Ok(Some(live));
    }
    // What was delivered is there for any worker.
    let Some(space) = space.or_else(|| app.room()) else { return Ok(None) };
    match perform(app, engine.resume(&runs::log(app), id).inbox(), space).await {
        Ok((_, live)) => Ok(Some(live)),
        // What was delivered is taken by the process that has the run, or was taken already.
        Err(_) if is_taken(app, id).await? => Ok(app.live.run(id)),
        Err(problem) => Err(problem),
    }
}

/// Whether what was delivered to a run is taken: the run has an owner or an end, or nothing is left in its inbox.
async fn is_taken(app: &App, id: &str) -> Result<bool> {
    let Some(run) = app.log.run(id).await? else { return Ok(false) };
    let is_elsewhere = app.live.run(id).is_some()
        || run.held_until.is_some()
        || run.status != RunStatus::Suspended;
    Ok(is_elsewhere || app.log.inbox(id, 1).await?.is_empty())
}

/// Continues a run in this process.
pub(crate) async fn perform(app: &App, resume: Resume, room: Room) -> Result<(RunId, LiveRun)> {
    let cancel = CancelHandle::new();
    let resume = resume.in_flight(&app.live.in_flight).cancel_handle(&cancel);
    // If this process dies, any server continues the run.
    let resume = resume.queue(Queue::new(QUEUE));
    let events = in_time(resume.stream().started()).await?;
    // A run that a model call ended is continued in another.
    let id = events.run_id().cloned().unwrap_or_default();
    let live = app.live.perform(&app.metrics, id.clone(), (cancel, room), events);
    Ok((id, live))
}

fn new_key() -> String {
    SystemWorld.new_run_id().to_string()
}
