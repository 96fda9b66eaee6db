//! Requests that start, continue, end, fork and replay runs.

use std::time::Duration;

use axum::{
    body::Bytes,
    extract::{FromRequest, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};
use mynah::{
    CancelHandle, Error, ErrorKind, EventId, LogReason, Message, ModelRef, RecordedTools,
    Result as MynahResult, Resume, RunEvent, RunId, Session, SessionReason, Status, SystemWorld,
    Thread, World as _, check_own_id, fork_run,
    log::{Fact, Log, Queue, RunStatus},
    replay_run, restore_session,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;
use tokio::time::timeout;

use crate::{
    App, Room,
    agents::Agent,
    events,
    guard::COOKIE,
    live::LiveRun,
    now,
    problem::{Problem, Result},
    query::{Id, Query},
    reply,
    runs::{self, Asks},
    signals::{self, Signal},
    trial,
};

/// How long the body of a request may take.
const BODY: Duration = Duration::from_secs(60);

/// A body of JSON. No body is an empty object.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
        let is_json = kind.eq_ignore_ascii_case("application/json");
        let read = tokio::select! {
            read = timeout(BODY, Bytes::from_request(request, app)) => read,
            () = app.stopping.cancelled() => return Err(stopping()),
        };
        let late =
            |_| Problem::new(StatusCode::REQUEST_TIMEOUT, "body_late", "the body took too long");
        let bytes = read.map_err(late)?.map_err(|refused| {
            let (reason, why) = match refused.status() {
                StatusCode::PAYLOAD_TOO_LARGE => (
                    "body_too_large",
                    format!("it has more than {} bytes, which `--max-body` allows", app.max_body),
                ),
                _ => ("body_unreadable", refused.body_text()),
            };
            Problem::new(refused.status(), reason, format!("body: {why}"))
        })?;
        if !is_json && !bytes.is_empty() {
            let detail = "the body must be application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media_type", detail));
        }
        let text = if bytes.is_empty() { b"{}" } else { &bytes[..] };
        // A list would be read as the members of an object in their order.
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::bad("body: give a JSON object"));
        }
        let read = serde_json::from_slice(text);
        read.map(Self).map_err(|error| {
            Problem::bad(match bytes.is_empty() {
                true => "body: it is empty; give a JSON object".to_owned(),
                false => format!("body: {error}"),
            })
        })
    }
}

/// The server takes no more requests.
pub(crate) fn stopping() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping")
}

pub(crate) fn allowed(app: &App) -> Result<()> {
    if app.stopping.is_cancelled() {
        return Err(stopping());
    }
    match app.allows_actions {
        true => Ok(()),
        false => Err(Problem::forbidden("read_only", "this server allows no actions")),
    }
}

/// Room for what must be performed at once.
pub(crate) fn room(app: &App) -> Result<Room> {
    let detail = "the server performs as many runs as it has room for; send the request again";
    let busy = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail);
    app.room().ok_or_else(busy)
}

/// Gives up on a log that does not take the start of a run. The library waits for minutes, and a client should not.
pub(crate) async fn in_time<T>(start: impl Future<Output = MynahResult<T>>) -> MynahResult<T> {
    const TIME: Duration = Duration::from_secs(10);
    timeout(TIME, start).await.unwrap_or_else(|_| {
        Err(Error::log(LogReason::Unavailable).with_message(format!(
            "log error: unavailable: the log did not take the request within {} seconds; send it again, with the same key",
            TIME.as_secs()
        )))
    })
}

/// How a request wants to be answered.
pub(crate) enum Answer {
    /// At once.
    AtOnce,
    /// When the run has ended or waits, or after this time.
    Wait(Duration),
    /// With its events.
    Stream,
}

impl Answer {
    pub(crate) fn of(uri: &Uri, headers: &HeaderMap) -> Result<Self> {
        let mut query = Query::of(uri);
        let wait = query.parsed::<u64>("wait", "a number of seconds")?;
        query.end()?;
        match wait {
            _ if reply::wants_stream(headers) => Ok(Self::Stream),
            Some(seconds) if seconds > 600 => Err(Problem::bad("wait: give at most 600 seconds")),
            Some(seconds) => Ok(Self::Wait(Duration::from_secs(seconds))),
            None => Ok(Self::AtOnce),
        }
    }

    /// Answers with the run. `after` is the last event before this request.
    pub(crate) async fn send(
        self,
        app: &App,
        id: &str,
        live: Option<LiveRun>,
        after: Option<EventId>,
    ) -> Result {
        let status = match self {
            Self::Stream => {
                let log = runs::log(app);
                let follow = mynah::follow(&log, id, after).in_flight(&app.live.in_flight);
                let is_last = |event: &mynah::FollowedEvent| {
                    matches!(event.event, RunEvent::Suspended(_) | RunEvent::Sealed { .. })
                };
                return Ok(reply::stream(app, events::told(app, None, follow, is_last)));
            }
            Self::AtOnce => StatusCode::ACCEPTED,
            Self::Wait(time) => {
                let stopped = async {
                    if let Some(live) = live {
                        live.done().await;
                    }
                    // Another process may continue what this one released or lost.
                    stopped(app.log.as_ref(), id).await;
                };
                match timeout(time, stopped).await {
                    Ok(()) => StatusCode::OK,
                    Err(_) => StatusCode::ACCEPTED,
                }
            }
        };
        respond(app, status, id).await
    }
}

/// The run, and where it is.
async fn respond(app: &App, status: StatusCode, id: &str) -> Result {
    let run = runs::Described::read(app, runs::found(app, id).await?).await?;
    let mut response = reply::json(status, &run);
    let encoded: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/runs/{}", encoded.replace('+', "%20"))) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// Waits until a run that another process performs has ended or waits.
async fn stopped(log: &dyn Log, id: &str) {
    while let Ok(Some(run)) = log.run(id).await {
        if run.status != RunStatus::Running || log.wait(id, run.records).await.is_err() {
            return;
        }
    }
}

/// What a run begins with.
#[derive(Deserialize)]
#[serde(untagged, expecting = "input: give a text or a list of messages")]
enum Input {
    Text(String),
    Messages(Vec<Message>),
}

impl Input {
    fn thread(self) -> Thread {
        match self {
            Self::Text(text) => text.into(),
            Self::Messages(messages) => Thread::from_iter(messages),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Start {
    agent: Option<String>,
    input: Input,
    key: Option<RunId>,
    session: Option<String>,
    queue: Option<String>,
}

/// The queue of runs that name none. If their process dies, any server or worker continues them.
pub(crate) const QUEUE: &str = "default";

/// `POST /v1/runs`
pub(crate) async fn start(
    State(app): State<App>,
    uri: Uri,
    headers: HeaderMap,
    Body(body): Body<Start>,
) -> Result {
    let answer = Answer::of(&uri, &headers)?;
    let Start { agent, input, key, session, queue } = body;
    allowed(&app)?;
    if queue.as_ref().is_some_and(String::is_empty) {
        return Err(Problem::bad("queue: give the name of a queue"));
    }
    if session.as_ref().is_some_and(String::is_empty) {
        return Err(Problem::bad("session: give the id of a session"));
    }
    if let Some(session) = session {
        return match (input, key, queue) {
            (Input::Text(text), None, None) => {
                turn(&app, answer, agent.as_deref(), &session, text).await
            }
            (_, Some(_), _) => Err(Problem::bad("key: the turn of a session has none")),
            (_, _, Some(_)) => Err(Problem::bad("queue: the turn of a session has none")),
            _ => Err(Problem::bad("input: the turn of a session begins with a text")),
        };
    }
    let log = runs::log(&app);
    let agent = app.agents.chosen(agent.as_deref())?;
    let id = key.unwrap_or_else(|| SystemWorld.new_run_id());
    // A run that this process performs is not started again.
    if let Some(live) = app.live.run(&id) {
        return answer.send(&app, &id, Some(live), None).await;
    }
    let begun = log.head(&id).await?.is_some();
    let engine = agent.engine(&log, begun.then_some(&*id)).await?;
    let cancel = CancelHandle::new();
    let chat = engine.chat(input.thread()).record(&log).run_id(&id).agent(&agent.name);
    // What this server has no room for waits until a worker has.
    let Some(room) = app.room().filter(|_| queue.is_none()) else {
        let queue = queue.as_deref().unwrap_or(QUEUE);
        let id = in_time(chat.queue(Queue::new(queue)).enqueue()).await?;
        return answer.send(&app, &id, None, None).await;
    };
    let chat = chat.queue(Queue::new(QUEUE)).cancel_handle(&cancel);
    let events = match in_time(chat.in_flight(&app.live.in_flight).stream().started()).await {
        Ok(events) => events,
        // Another process performs it.
        Err(error) if error.kind() == ErrorKind::Log(LogReason::Leased) => {
            return answer.send(&app, &id, None, None).await;
        }
        Err(error) => return Err(error.into()),
    };
    let id = events.run_id().cloned().unwrap_or(id);
    let live = app.live.perform(&app.metrics, id.clone(), (cancel, room), events);
    answer.send(&app, &id, Some(live), None).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Said {
    agent: Option<String>,
    text: String,
}

/// `POST /v1/sessions/{id}/messages`
pub(crate) async fn say(
    State(app): State<App>,
    Id(id): Id,
    uri: Uri,
    headers: HeaderMap,
    Body(Said { agent, text }): Body<Said>,
) -> Result {
    let answer = Answer::of(&uri, &headers)?;
    allowed(&app)?;
    turn(&app, answer, agent.as_deref(), &id, text).await
}

/// The next turn of a session, or its first.
async fn turn(
    app: &App,
    answer: Answer,
    agent: Option<&str>,
    session: &str,
    text: String,
) -> Result {
    let (log, agent) = (runs::log(app), app.agents.chosen(agent)?);
    let room = room(app)?;
    let restored = match restore_session(&log, session).await {
        Ok(restored) => Some(restored),
        Err(error) if error.kind() == ErrorKind::Session(SessionReason::NoSession) => None,
        Err(error) => return Err(error.into()),
    };
    if let Some(run) = restored.as_ref().and_then(|restored| restored.unfinished.as_ref()) {
        let detail = format!("run {run} of the session has no end; resume or cancel it first");
        return Err(Problem::new(StatusCode::CONFLICT, "unfinished_turn", detail));
    }
    if let Some(restored) = &restored
        && let Status::AwaitingUser | Status::AwaitingTools = restored.session.status()
    {
        let last = restored.session.last_run.as_ref().map(|last| &*last.run_id).unwrap_or_default();
        let waits = match restored.session.pending_question() {
            Some(question) => format!("waits for the answer to {question:?}; answer it"),
            None => "waits for a decision about calls; decide".to_owned(),
        };
        let detail =
            format!("run {last} of the session {waits} in that run, or cancel the run first");
        return Err(Problem::new(StatusCode::CONFLICT, "unfinished_turn", detail));
    }
    let turn = match restored {
        Some(restored) => {
            let last = restored.session.last_run.as_ref().map(|last| last.run_id.clone());
            let engine = agent.engine(&log, last.as_deref()).await?;
            engine.reply(&restored.session, text)
        }
        None => {
            let engine = agent.engine(&log, None).await?;
            engine.start(Session::from(text).with_id(session))
        }
    };
    let cancel = CancelHandle::new();
    let turn = turn.record(&log).in_flight(&app.live.in_flight).cancel_handle(&cancel);
    let turn = turn.agent(&agent.name).queue(Queue::new(QUEUE));
    let events = in_time(turn.stream().started()).await?;
    let Some(id) = events.run_id().cloned() else {
        return Err(Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "no_run",
            "the turn has no run",
        ));
    };
    let live = app.live.perform(&app.metrics, id.clone(), (cancel, room), events);
    begun(app, &id, &live).await?;
    answer.send(app, &id, Some(live), None).await
}

/// Waits until the log has a run.
async fn begun(app: &App, id: &str, live: &LiveRun) -> Result<()> {
    while app.log.head(id).await?.is_none() && !live.is_done() {
        let pause = Duration::from_millis(10);
        // Some logs wake only readers of runs that they have.
        let _ = timeout(pause, app.log.wait(id, 0)).await;
    }
    Ok(())
}

/// The last event that a run has now.
pub(crate) async fn last_event(app: &App, id: &str) -> Result<Option<EventId>> {
    let head = app.log.head(id).await?;
    Ok(head.map(|head| EventId::recorded(head.seq, u64::MAX - 1)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkAt {
    at: u64,
    key: Option<RunId>,
    agent: Option<String>,
    message: Option<String>,
    #[serde(default)]
    resume: bool,
    #[serde(default)]
    allow_changed_agent: bool,
    system: Option<String>,
    input: Option<String>,
    model: Option<String>,
    #[serde(default)]
    recorded_tools: bool,
}

impl ForkAt {
    /// Refuses what a fork that is not resumed cannot have.
    fn check(&self) -> Result<()> {
        let of_resume = [
            ("message", self.message.is_some()),
            ("model", self.model.is_some()),
            ("recorded_tools", self.recorded_tools),
        ];
        match of_resume.into_iter().find(|(_, is_given)| *is_given && !self.resume) {
            Some((name, _)) => Err(Problem::bad(format!(
                "{name}: a fork that is not resumed has none; give resume too"
            ))),
            None => Ok(()),
        }
    }

    /// What continues a run as the fork is to continue.
    async fn resumed(
        &self,
        app: &App,
        agent: &Agent,
        model: Option<&ModelRef>,
        run: &str,
    ) -> Result<Resume> {
        let log = runs::log(app);
        let engine = agent.engine(&log, Some(run)).await?;
        // Another model is what was asked for.
        let allow = self.allow_changed_agent || model.is_some();
        let signal = Signal::of_fork(self.message.clone(), allow);
        let resume = signal.apply(engine.resume(&log, run))?;
        Ok(model.cloned().into_iter().fold(resume, Resume::model))
    }
}

/// `POST /v1/runs/{id}/fork`
pub(crate) async fn fork(
    State(app): State<App>,
    Id(id): Id,
    uri: Uri,
    Body(fork): Body<ForkAt>,
) -> Result {
    Query::of(&uri).end()?;
    allowed(&app)?;
    fork.check()?;
    fork.key.as_ref().map_or(Ok(()), check_own_id)?;
    let run = runs::found(&app, &id).await?;
    let log = runs::log(&app);
    // A fork that waits for a person is left to that person, unless the request answers its question.
    let is_persons = match (runs::asks_at(log.as_ref(), &id, fork.at).await?, &fork.message) {
        (Some(Asks::Decision), Some(_)) => {
            let detail = format!(
                "run {id} waits at record {} for a decision about calls; fork it without a message, and decide in the fork",
                fork.at
            );
            return Err(Problem::new(StatusCode::CONFLICT, "waits_for_decision", detail));
        }
        (Some(Asks::Question), Some(_)) | (None, _) => false,
        (Some(_), None) => true,
    };
    // A run is not forked for a missing agent.
    let agent = match fork.resume {
        true => Some(app.agents.of_run(fork.agent.as_deref(), log.as_ref(), &id).await?),
        false => None,
    };
    let asked = match (agent, &fork.model) {
        (Some(agent), Some(model)) => Some(agent.other_model(model)?),
        _ => None,
    };
    let continues = agent.filter(|_| !is_persons);
    let room = continues.map(|_| room(&app)).transpose()?;
    // A fork that its agent cannot continue would be left behind.
    let can_be_forked = fork.at <= run.records - u64::from(run.seal.is_some());
    if let Some(agent) = continues.filter(|_| can_be_forked) {
        let resume = fork.resumed(&app, agent, asked.as_ref(), &id).await?;
        match resume.check_fork(fork.at).await {
            // Its copy may end before what was removed.
            Err(error) if error.kind() == ErrorKind::Log(LogReason::Redacted) => {}
            checked => checked?,
        }
    }
    let copy = fork_run(&log, &id, fork.at);
    let copy = fork.key.clone().into_iter().fold(copy, mynah::Fork::run_id);
    let copy = fork.system.iter().fold(copy, mynah::Fork::system);
    let copy = fork.input.iter().fold(copy, mynah::Fork::message);
    // A branch that another model answers is listed under that model.
    let of_agent = agent.filter(|_| fork.agent.is_some()).and_then(Agent::model);
    let is_other =
        |model: &String| run.model.as_ref().is_none_or(|known| !known.ends_with(&**model));
    let model = asked.clone().or(of_agent.filter(is_other).map(Into::into));
    let copy = model.into_iter().fold(copy, mynah::Fork::model);
    let copy = continues.iter().fold(copy, |copy, agent| copy.agent(&agent.name));
    let (forked, is_left) = match (copy.await, fork.key.clone()) {
        (Ok(forked), _) => (forked.run_id, true),
        // The same request came before, and may not have continued it.
        (Err(_), Some(key)) if is_fork(&app, &key, (&id, fork.at)).await? => {
            let is_left = runs::found(&app, &key).await?.is_abandoned(now());
            (key, is_left)
        }
        (Err(error), _) => return Err(error.into()),
    };
    if let (Some(agent), Some(room), true) = (continues, room, is_left) {
        let resume = fork.resumed(&app, agent, asked.as_ref(), &forked).await?;
        match fork.recorded_tools {
            true => {
                let recorded = RecordedTools::of_run(log.as_ref(), &id).await?;
                trial::perform(&app, agent, resume, recorded, room).await?;
            }
            false => drop(signals::perform(&app, resume, room).await?),
        }
    }
    respond(&app, StatusCode::CREATED, &forked).await
}

/// Whether a run was branched off another at this record.
async fn is_fork(app: &App, run: &str, (of, at): (&str, u64)) -> Result<bool> {
    let first = app.log.read(run, 1, 1).await?;
    let first = first.first().and_then(|record| record.fact().ok().flatten());
    Ok(matches!(first, Some(Fact::RunStarted { about: Some(about), .. })
        if about.parent.as_ref().is_some_and(|parent| parent.run_id == *of && parent.seq == at)))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReplayWith {
    agent: Option<String>,
    system: Option<String>,
    rerun_tools: bool,
    allow_changed_agent: bool,
}

/// `POST /v1/runs/{id}/replay`
pub(crate) async fn replay(
    State(app): State<App>,
    Id(id): Id,
    uri: Uri,
    Body(with): Body<ReplayWith>,
) -> Result {
    Query::of(&uri).end()?;
    let ReplayWith { agent, system, rerun_tools, allow_changed_agent } = with;
    runs::found(&app, &id).await?;
    let log = runs::log(&app);
    if rerun_tools {
        allowed(&app)?;
    }
    // Tools are run by an agent, and records answer for themselves.
    let agent = match (&agent, rerun_tools) {
        (None, false) => None,
        _ => Some(app.agents.of_run(agent.as_deref(), log.as_ref(), &id).await?),
    };
    let mut replay = match agent {
        Some(agent) => agent.engine(&log, None).await?.replay(&log, &id),
        None => replay_run(&log, &id),
    };
    if let Some(system) = system {
        replay = replay.system(system);
    }
    if rerun_tools {
        replay = replay.rerun_tools();
    }
    if allow_changed_agent {
        replay = replay.allow_changed_engine();
    }
    match replay.await {
        Ok(replayed) => Ok(reply::ok(&json!(replayed))),
        Err(error) if matches!(error.kind(), ErrorKind::Replay(_)) => {
            Ok(reply::ok(&json!({"status": "differs", "err": error})))
        }
        Err(error) => Err(error.into()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    token: String,
}

/// `POST /v1/login`
pub(crate) async fn login(
    State(app): State<App>,
    uri: Uri,
    Body(Login { token }): Body<Login>,
) -> Result<Response> {
    Query::of(&uri).end()?;
    if !app.guard.is_token(&token) {
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "token_wrong", "the token is wrong"));
    }
    let cookie = format!("{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/");
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}
