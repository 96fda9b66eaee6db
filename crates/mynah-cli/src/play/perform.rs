//! Performing operations, one after the other.

use std::{
    collections::HashMap,
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::{Stream, StreamExt as _};
use mynah::{
    CancelHandle, ChatResult, Collector, Engine, Error, Event, Metadata, Options, Request,
    Response, Result, RunId, Session, SessionReason, SessionStream, StepResult, StepTurn, Thread,
    Turn, TurnResult, World, decode,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    hashes::Hashes,
    options,
    scenario::{Input, Kind, Op, Scenario, Verb, Watch},
};
use crate::ledger::Ledger;

/// Performs a scenario, and writes what happens.
pub(super) async fn perform(
    scenario: Scenario,
    world: Arc<dyn World>,
    log: Option<Arc<Ledger>>,
    hashes: Hashes,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut stage = Stage {
        engine: scenario.engine,
        world,
        log,
        stable: matches!(hashes, Hashes::Counted(_)),
        hashes,
        tools: HashMap::new(),
        session: None,
        thread: Thread::new(),
        op: 0,
        out,
    };
    for (index, op) in scenario.ops.into_iter().enumerate() {
        stage.op = index;
        if let Some(log) = &stage.log {
            log.begin(op.crash_after).await;
        }
        let tools = op.options.get("tools").cloned();
        let performed = stage.perform(op).await;
        let run_id = stage.log.as_ref().and_then(|log| log.written());
        if let (Some(run), Some(tools)) = (&run_id, tools) {
            stage.tools.insert(run.clone(), tools);
        }
        match performed {
            Ok(mut told) => {
                told.forget_run();
                // A fork says in its own words which run it wrote.
                let run_id = run_id.filter(|_| !matches!(told, Outcome::Kept(_)));
                stage.write(&Line::Ok { op: index, run_id, ok: &told })?;
            }
            Err(Stop::Refused(error)) => {
                stage.write(&Line::Err { op: index, run_id, err: &error })?;
            }
            Err(Stop::Unwritten(error)) => return Err(error),
        }
    }
    Ok(())
}

/// One line of output.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Event {
        op: usize,
        event: &'a Event,
    },
    Ok {
        op: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        run_id: Option<RunId>,
        ok: &'a Outcome,
    },
    Err {
        op: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        run_id: Option<RunId>,
        err: &'a Error,
    },
}

/// The result of an operation.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Outcome {
    Response(Box<Response>),
    Step(Box<StepResult>),
    Chat(Box<ChatResult>),
    Session {
        session: Box<Session>,
        result: Option<Box<Outcome>>,
    },
    /// Data about a run in addition to its content.
    Kept(Value),
}

impl Outcome {
    /// The line names the run, for every kind of result in the same way.
    fn forget_run(&mut self) {
        match self {
            Self::Response(response) => response.run_id = None,
            Self::Chat(result) => result.run_id = None,
            Self::Step(result) => result.run_id = None,
            Self::Session { session, result } => {
                session.last_run = None;
                result.iter_mut().for_each(|result| result.forget_run());
            }
            _ => {}
        }
    }

    /// The conversation after an operation that began with this one.
    pub(super) fn thread(&self, before: Thread) -> Thread {
        match self {
            Self::Response(response) if response.message.parts().is_empty() => before,
            Self::Response(response) => before.with(Arc::clone(&response.message)),
            Self::Step(step) => step.thread.clone(),
            Self::Chat(result) => result.thread.clone(),
            Self::Session { session, .. } => session.thread.clone(),
            Self::Kept(_) => before,
        }
    }
}

/// Why an operation has no result.
pub(super) enum Stop {
    Refused(Error),
    Unwritten(io::Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Unwritten(error)
    }
}

/// What operations leave for those after them.
pub(super) struct Stage<'a, W> {
    pub(super) engine: Engine,
    /// Where the engine's time and chance come from.
    pub(super) world: Arc<dyn World>,
    pub(super) log: Option<Arc<Ledger>>,
    pub(super) hashes: Hashes,
    /// The tools that were last given for each run: their records do not have the code.
    pub(super) tools: HashMap<RunId, Value>,
    session: Option<Session>,
    /// The thread of the operation before.
    pub(super) thread: Thread,
    /// The index of the current operation.
    op: usize,
    stable: bool,
    out: &'a mut W,
}

impl<W: Write> Stage<'_, W> {
    async fn perform(&mut self, op: Op) -> Result<Outcome, Stop> {
        let Op { verb, options, watch, .. } = op;
        match verb {
            Verb::Call { kind, input } => self.call(kind, input, options, watch).await,
            Verb::Start { messages, id, context } => {
                let mut session = Session::from(decode::thread(&messages)?).with_context(context);
                session.id = id;
                let options = options::read(options, &session.thread)?;
                // A scenario may be played again into the same log.
                self.turn(self.engine.start(session).branch(), options, watch).await
            }
            Verb::Reply { text } => {
                let session = self.session()?;
                let options = options::read(options, &session.thread)?;
                self.turn(self.engine.reply(session, text), options, watch).await
            }
            Verb::Continue { message } => {
                let session = self.session()?;
                let message = message.as_ref().map(decode::message).transpose()?;
                let mut thread = session.thread.clone();
                thread.extend(message.clone());
                let options = options::read(options, &thread)?;
                self.turn(self.engine.continue_session(session, message), options, watch).await
            }
            Verb::SessionStep => {
                let session = self.session()?;
                let options = options::read(options, &session.thread)?;
                self.step_turn(self.engine.step_session(session), options, watch).await
            }
            Verb::SubmitToolResults { results } => {
                let session = self.session()?.submit_tool_results(results)?;
                Ok(self.keep(session, None))
            }
            Verb::SaveAndLoad => {
                let text = serde_json::to_string(self.session()?).map_err(Error::from)?;
                let session = decode::session(&text)?;
                Ok(self.keep(session, None))
            }
            Verb::Recover => {
                let session = self.session()?.recover();
                Ok(self.keep(session, None))
            }
            Verb::Kept { run_id, act } => self.on_kept(run_id, act, options, watch).await,
        }
    }

    /// A call that needs no session.
    async fn call(
        &mut self,
        kind: Kind,
        input: Input,
        options: Metadata,
        watch: Watch,
    ) -> Result<Outcome, Stop> {
        let thread = match input {
            Input::Messages(messages) => decode::thread(&messages)?,
            Input::Last => self.thread.clone(),
        };
        let options = options::read(options, &thread)?;
        let told = self.perform_call(kind, &thread, self.recorded(options), watch).await?;
        self.thread = told.thread(thread);
        Ok(told)
    }

    async fn perform_call(
        &mut self,
        kind: Kind,
        thread: &Thread,
        options: Options,
        watch: Watch,
    ) -> Result<Outcome, Stop> {
        let engine = &self.engine;
        let request = || Request::from(thread.clone());
        if !watch.is_needed() {
            return Ok(match kind {
                Kind::Generate => {
                    Outcome::Response(Box::new(engine.generate(request()).options(options).await?))
                }
                Kind::Step => Outcome::Step(Box::new(engine.step(thread).options(options).await?)),
                Kind::Chat => Outcome::Chat(Box::new(engine.chat(thread).options(options).await?)),
            });
        }
        let fold = Fold::new(thread.clone());
        let options = fold.listen(options);
        let mut stream = match kind {
            Kind::Generate => engine.generate(request()).options(options).stream(),
            Kind::Step => engine.step(thread).options(options).stream(),
            Kind::Chat => engine.chat(thread).options(options).stream(),
        };
        if let Some(error) = stream.refusal() {
            return Err(error.clone().into());
        }
        let cancel = stream.cancel_handle();
        self.follow(&mut stream, &cancel, watch, |event| fold.saw(event)).await?;
        Ok(fold.told(kind))
    }

    /// A session's chat.
    async fn turn(&mut self, turn: Turn, options: Options, watch: Watch) -> Result<Outcome, Stop> {
        let turn = turn.options(self.recorded(options));
        if watch.is_needed() {
            return self.watched_turn(turn.stream(), watch).await;
        }
        let (session, result) = turn.await?;
        Ok(self.keep(session, Some(Outcome::Chat(Box::new(result)))))
    }

    /// A session's step.
    async fn step_turn(
        &mut self,
        turn: StepTurn,
        options: Options,
        watch: Watch,
    ) -> Result<Outcome, Stop> {
        let turn = turn.options(self.recorded(options));
        if watch.is_needed() {
            return self.watched_turn(turn.stream(), watch).await;
        }
        let (session, result) = turn.await?;
        Ok(self.keep(session, Some(Outcome::Step(Box::new(result)))))
    }

    async fn watched_turn(
        &mut self,
        mut stream: SessionStream,
        watch: Watch,
    ) -> Result<Outcome, Stop> {
        if let Some(error) = stream.refusal() {
            return Err(error.clone().into());
        }
        let cancel = stream.cancel_handle();
        self.follow(&mut stream, &cancel, watch, |_| ()).await?;
        let (session, result) = stream.finish();
        let result = match result {
            TurnResult::Step(result) => Some(Outcome::Step(result)),
            TurnResult::Chat(result) => Some(Outcome::Chat(result)),
            _ => None,
        };
        Ok(self.keep(session, result))
    }

    /// The options of a recorded call, if there is a log.
    fn recorded(&self, options: Options) -> Options {
        match &self.log {
            Some(log) => options.record(log),
            None => options,
        }
    }

    /// Follows a stream to its end, or to the requested event.
    pub(super) async fn follow(
        &mut self,
        stream: &mut (impl Stream<Item = Result<Event>> + Unpin),
        cancel: &CancelHandle,
        watch: Watch,
        see: impl Fn(&Event),
    ) -> Result<(), Stop> {
        for count in 0.. {
            if watch.cancel_after == Some(count) {
                cancel.cancel();
            }
            if watch.take == Some(count) {
                break;
            }
            let Some(mut event) = stream.next().await.transpose()? else { break };
            see(&event);
            if let Event::ChatCompleted { result } = &mut event {
                result.run_id = None;
            }
            if watch.print {
                self.write(&Line::Event { op: self.op, event: &event })?;
            }
        }
        Ok(())
    }

    fn session(&self) -> Result<&Session> {
        self.session.as_ref().ok_or_else(|| {
            Error::session(SessionReason::NoSession)
                .with_message("session error: no_session: session.start comes first")
        })
    }

    pub(super) fn keep(&mut self, session: Session, result: Option<Outcome>) -> Outcome {
        self.thread = session.thread.clone();
        self.session = Some(session.clone());
        Outcome::Session { session: Box::new(session), result: result.map(Box::new) }
    }

    /// Flushes each line.
    fn write(&mut self, line: &Line<'_>) -> io::Result<()> {
        if self.stable {
            let mut line = serde_json::to_value(line)?;
            forget_time(&mut line);
            serde_json::to_writer(&mut *self.out, &line)?;
        } else {
            serde_json::to_writer(&mut *self.out, line)?;
        }
        self.out.write_all(b"\n")?;
        self.out.flush()
    }
}

/// Folds the events of a call. Those that the filters hide belong to the result as well, so the model's events are taken
/// from the observer, and the others from the stream.
#[derive(Clone)]
pub(super) struct Fold(Arc<Mutex<Collector>>);

impl Fold {
    pub(super) fn new(thread: Thread) -> Self {
        Self(Arc::new(Mutex::new(Collector::new(thread))))
    }

    pub(super) fn listen(&self, options: Options) -> Options {
        let fold = self.clone();
        options.on_event(move |event| fold.apply(event))
    }

    pub(super) fn saw(&self, event: &Event) {
        // The error may be the step's own. Handling it twice changes nothing.
        if !event.is_from_model() || matches!(event, Event::Error { .. }) {
            self.apply(event);
        }
    }

    pub(super) fn apply(&self, event: &Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).apply(event);
    }

    pub(super) fn told(&self, kind: Kind) -> Outcome {
        let collector = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kind {
            Kind::Generate => Outcome::Response(Box::new(collector.response())),
            Kind::Step => Outcome::Step(Box::new(collector.step_result())),
            Kind::Chat => Outcome::Chat(Box::new(collector.chat_result())),
        }
    }
}

/// Reports that a time limit was passed, without the amount: no two runs take equally long.
fn forget_time(value: &mut Value) {
    match value {
        Value::Object(members) if members.get("limit") == Some(&json!("wall_clock")) => {
            let cap = members.get("cap").and_then(Value::as_u64).unwrap_or(0);
            members.insert("actual".to_owned(), json!(cap.saturating_add(1)));
        }
        Value::Object(members) => members.values_mut().for_each(forget_time),
        Value::Array(list) => list.iter_mut().for_each(forget_time),
        _ => {}
    }
}
