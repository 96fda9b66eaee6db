//! Starting a run under the caller's id, or attaching to the run that has it.

use std::{future::poll_fn, sync::Arc};

use mynah_data::{Error, ErrorKind, LogReason, Message, Result, Role, RunId, Thread};
use mynah_log::{About, Extent, Fact, Log, MAINTENANCE, MAX_RUN_ID, cbor};
use mynah_step::{RecordedFact, mismatch};
use serde_json::Value;

use crate::{
    cancel::HAS_MOVED,
    code::{code_of, is_code},
    engine::Engine,
    handle::unnamed,
    linked::{check_own_id, continued, is_final},
    loaded::Loaded,
    options::Options,
    prepare::{Input, Origin, first_record, prepare},
    replay::Replay,
    resume::Resume,
    run::Driver,
    stream::EventStream,
};

/// The error of a lease for a run that has ended.
const HAS_ENDED: ErrorKind = ErrorKind::Log(LogReason::Sealed);

/// The bytes of `~` and a number.
const RESERVED: usize = 11;

/// A call: where and how its run starts.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) engine: Engine,
    pub(crate) input: Input,
    pub(crate) options: Options,
    pub(crate) extent: Extent,
    /// The caller's own id for the run.
    pub(crate) run_id: Option<RunId>,
}

impl Start {
    /// The events of the run: under an id of the caller's from any process that started it.
    pub(crate) fn events(mut self) -> EventStream {
        let Some(run_id) = self.run_id.clone() else {
            let Self { engine, input, options, extent, .. } = self;
            return EventStream::new(prepare(&engine, input, options, extent, Origin::default()));
        };
        let Some(log) = self.options.log.take() else {
            return EventStream::new(Err(refused(
                "not_recorded",
                "a call with a run_id needs record(&log)",
            )));
        };
        if run_id == MAINTENANCE {
            return EventStream::new(Err(refused("reserved", "the log uses this id itself")));
        }
        let cancel = self.options.own_cancel();
        // An invalid call is refused before anything is looked up.
        if let Err(error) = self.prepare(&run_id, None) {
            return EventStream::new(Err(error));
        }
        let started = async move {
            let started = self.start_or_attach(&run_id, log).await;
            started.map_err(|error| error.of_run(Some(&run_id)))
        };
        EventStream::starting(Box::pin(started), cancel)
    }

    fn prepare(&self, run: &RunId, log: Option<&Arc<dyn Log>>) -> Result<Driver> {
        // The run that continues it has a longer id.
        const LONGEST: usize = MAX_RUN_ID - RESERVED;
        if run.is_empty() || run.len() > LONGEST {
            let code = if run.is_empty() { "empty" } else { "too_long" };
            let why = format!("it has {} bytes; the id of a run has 1 to {LONGEST}", run.len());
            return Err(refused(code, &why));
        }
        let mut options = self.options.clone();
        options.log = log.cloned();
        let origin = Origin { run_id: Some(run.clone()), ..Origin::default() };
        prepare(&self.engine, self.input.clone(), options, self.extent, origin)
    }

    async fn start_or_attach(self, run: &RunId, log: Arc<dyn Log>) -> Result<Driver> {
        loop {
            if let Some(begun) = self.begin(run, &log).await? {
                return Ok(begun);
            }
            match self.attach(run, &log).await {
                // Another process resumed or ended the run after it was read.
                Err(error) if [HAS_MOVED, HAS_ENDED].contains(&error.kind()) => {}
                attached => return attached,
            }
        }
    }

    /// Begins the run; none if the log has it already.
    async fn begin(&self, run: &RunId, log: &Arc<dyn Log>) -> Result<Option<Driver>> {
        if log.head(run).await?.is_some() {
            return Ok(None);
        }
        check_own_id(run)?;
        let mut driver = self.prepare(run, Some(log))?;
        // Only the log can decide whether the id is free, so no model is called before the log
        // has the first record.
        match poll_fn(|cx| driver.poll_durable(cx)).await {
            Ok(()) => Ok(Some(driver)),
            Err(error) if log.head(run).await?.is_none() => Err(error),
            Err(_) => Ok(None),
        }
    }

    pub(crate) async fn enqueue(mut self) -> Result<RunId> {
        let log = self.options.log.take().ok_or_else(unnamed)?;
        let run = self.run_id.take().unwrap_or_else(|| self.engine.0.world.new_run_id());
        if self.begin(&run, &log).await?.is_none() {
            self.compare(&Loaded::read(&*log, &run).await?)?;
        }
        Ok(run)
    }

    /// The run that has the id: its records if it has ended or waits, what is left of it if its process died.
    async fn attach(&self, run: &RunId, log: &Arc<dyn Log>) -> Result<Driver> {
        let loaded = Loaded::read(&**log, run).await?;
        self.compare(&loaded)?;
        let mut options = self.options.clone();
        options.values.budget = options.new_budget.take().or(options.values.budget);
        let loaded = continued(log, &self.engine, loaded, &options).await?;
        let run = loaded.run.clone();
        let is_due = loaded.sleeps_until().is_some()
            && loaded.sleeps_for(self.engine.0.world.as_ref()).is_none();
        if loaded.was_told() && !is_due {
            let options = self.options.as_watched();
            return Replay::alone(Arc::clone(log), run, options).perform(loaded);
        }
        let resume = Resume::new(self.engine.clone(), Arc::clone(log), run.clone());
        let mut driver = resume.options(options).prepare(loaded).await?;
        let past = Loaded::to_compare(&**log, &run).await?;
        let mut options = self.options.as_watched();
        options.cancel_handle = None;
        let past = Replay::alone(Arc::clone(log), run, options).perform(past)?;
        driver.tell_first(past);
        Ok(driver)
    }

    /// Refuses an input that differs from the one that the run began with. The adapter, model and
    /// tools of the engine are not part of the input, and functions cannot be compared.
    fn compare(&self, loaded: &Loaded) -> Result<()> {
        let (thread, made) =
            first_record(&self.engine, self.input.clone(), self.options.clone(), self.extent)?;
        let recorded = &*loaded.about;
        let mut options = made.options;
        options.retain(|name, value| !is_code(name, value));
        options.extend(code_of(recorded));
        let is_input = |name: &str| made.described.iter().any(|described| described == name);
        let mut tools = recorded.tools.clone();
        for tool in made.tools.into_iter().filter(|tool| is_input(&tool.name)) {
            match tools.iter_mut().find(|recorded| recorded.name == tool.name) {
                Some(place) => *place = tool,
                None => tools.push(tool),
            }
        }
        let (params, described) = (made.params, made.described);
        let about = About { tools, params, options, described, session: None, ..recorded.clone() };
        let Some(found) = loaded.records.first().map(RecordedFact::fact) else {
            return Ok(());
        };
        let (mut wanted, asked) = (found.clone(), thread.clone());
        if let Fact::RunStarted { thread: begun, extent, about: ran, .. } = &mut wanted {
            *extent = self.extent;
            let is_allowed = self.options.allow_changed;
            if !is_allowed || !without_system(begun).eq(without_system(&thread)) {
                *begun = thread;
            }
            if !is_allowed {
                *ran = Some(Box::new(about));
            }
        }
        if cbor::to_vec(found).ok() == cbor::to_vec(&wanted).ok() {
            return Ok(());
        }
        let run = loaded.run.as_str();
        let difference = mismatch(run, 1, Some(found), Some(&wanted));
        let diff = difference.metadata().get("diff").cloned().unwrap_or_default();
        let path = diff.pointer("/0/path").and_then(Value::as_str).unwrap_or_default();
        let is_same_input = match found {
            Fact::RunStarted { thread: begun, extent, .. } => {
                *extent == self.extent && without_system(begun).eq(without_system(&asked))
            }
            _ => false,
        };
        let (what, advice) = match self.extent {
            Extent::Chat if is_same_input && is_final(loaded) => (
                "another prompt, or other params or options",
                "the run has ended: allow_changed_engine() returns its result, mynah::fork_run continues it, and another run id starts a new one",
            ),
            Extent::Chat if is_same_input => (
                "another prompt, or other params or options",
                "allow_changed_engine() continues the run with them, and another run id starts a new one",
            ),
            _ if is_same_input => {
                ("another prompt, or other params or options", "they need another run id")
            }
            _ => ("another input", "another input needs another run id"),
        };
        Err(Error::new(ErrorKind::Log(LogReason::RunExists))
            .with_message(format!(
                "log error: run_exists: run {run} exists and began with {what}: {path} differs; {advice}"
            ))
            .with("run_id", run)
            .with("diff", diff))
    }
}

fn without_system(thread: &Thread) -> impl Iterator<Item = &Arc<Message>> {
    thread.messages.iter().filter(|message| message.role() != Role::System)
}

fn refused(code: &str, why: &str) -> Error {
    Error::invalid_option("run_id", code).with_message(format!("validation failed: run_id: {why}"))
}
