//! Resuming a run that has no end.

use std::{future::IntoFuture, sync::Arc};

use mynah_data::{
    ChatResult, Error, ErrorKind, HaltReason, LogReason, Message, Result, Role, RunId, Session,
    SessionReason, ToolCall,
};
use mynah_log::{About, End, Extent, Fact, Hash, Head, Interruption, Log, RunStatus};
use mynah_step::{
    BoxFuture, KeptLease, OnUncertain, RecordedFact, Recorder, World, active, take_over,
};
use serde_json::{Value, json};

use crate::{
    call::chatted,
    cancel::HAS_MOVED,
    code::{SCHEMA_FIT, code_of},
    engine::Engine,
    linked::{advice, continued},
    loaded::{Loaded, StoredRun},
    mailbox::Mailbox,
    options::{Options, option_setters},
    prepare::{CallOrigin, CallPlan, PARK_AFTER, Part, joined},
    run::{Driver, Resumption},
    stream::{EventStream, Filter},
};

mod approved;
mod inbox;

const UNCERTAIN: &str = "the outcome of some of its calls is unknown, because the process died while they ran; decide with Run::decide, \
     give results with Resume::tool_result, or choose a policy with Resume::on_uncertain";

/// What a worker has of a run.
pub(crate) struct Claimed {
    pub(crate) lease: KeptLease,
    /// The messages that its first record becomes of.
    pub(crate) consumed: Vec<String>,
    /// The messages that arrive meanwhile.
    pub(crate) mailbox: Option<Mailbox>,
}

/// A run to resume; see [`Engine::resume`].
#[must_use = "a run is not resumed unless it is awaited or streamed"]
pub struct Resume {
    engine: Engine,
    log: Arc<dyn Log>,
    run: RunId,
    message: Option<Message>,
    /// Whether that is an answer, and nothing else.
    is_answer: bool,
    tool_results: Vec<(String, String)>,
    approved: Vec<String>,
    /// The arguments of those that a person changed.
    edited: Vec<(String, String)>,
    /// The digests of those that were approved by it.
    digests: Vec<(String, Hash)>,
    rejected: Vec<(String, String)>,
    on_uncertain: OnUncertain,
    /// The id of the call, if it is a call of its own.
    request_id: Option<String>,
    /// How far it goes from here, if it is a call of its own.
    extent: Option<Extent>,
    /// The current session, if the run belongs to one.
    session: Option<Session>,
    /// What a worker has of the run.
    claimed: Option<Claimed>,
    /// Whether the time that the run waits for has come, even if the engine's clock is behind.
    woken: bool,
    /// Whether the run takes the messages of its inbox, and those that it took.
    takes_inbox: bool,
    consumed: Vec<String>,
    options: Options,
}

mynah_data::partial_debug! { Resume { run, options } }

option_setters!(Resume, self => self.options; model tools chat call live data key tool_code approval chat_code park keep);

impl Engine {
    /// Resumes a run that has no end: at the exact point where its process ended, or where it
    /// waits. Completed model calls and tools are not repeated. The engine must be the one that the
    /// run ran with.
    ///
    /// Awaited, it returns what the resumed call would have returned. A single call or step returns
    /// a result with that step alone, and a step that waited continues with one more.
    ///
    /// A run that was released or waits continues at once, and so does one whose process ended on this machine. A run that a
    /// process elsewhere holds is watched for three seconds; it is refused (`leased`) if that process lives.
    ///
    /// A run that failed on a model call because its provider was down, overloaded, slow or not reachable, or refused the key, stays sealed
    /// as it is. It is continued in a new run from the last record before that call: `invoice-17` in `invoice-17~2`. So is a run
    /// that its budget or `max_turns` ended, if the [budget](Resume::budget) or [`max_turns`](Resume::max_turns) of this call, or of the
    /// engine if the run had no other, is large enough to continue, and with [`allow_changed_engine`](Resume::allow_changed_engine) a run
    /// whose model call failed for any other reason. What the failed call spent counts in the new run, and its tools keep their
    /// [idempotency keys](crate::ToolContext::idempotency_key). The result's `run_id` names the new run.
    ///
    /// A run that waits is refused (`invalid_status`) without what it waits for. The error's
    /// metadata has it: `pending_question`, `manual_tool_calls` with names and arguments, or the
    /// ids of `uncertain_tool_calls`. [`recorded_call`](crate::recorded_call) returns it without an engine.
    ///
    /// ```
    /// # use mynah::{Engine, Tool, ToolOutcome, testing::Scripted};
    /// # use serde_json::json;
    /// use mynah::log::MemoryLog;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::new([
    /// #     json!([{"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"}]),
    /// #     json!([{"text": "Two it is."}, {"finish": "stop"}]),
    /// # ])?).tool(Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("How many?")));
    /// let log = std::sync::Arc::new(MemoryLog::new());
    /// let waiting = engine.chat("order").record(&log).await?;
    /// assert_eq!(waiting.pending_question.as_deref(), Some("How many?"));
    /// let done = engine.resume(&log, waiting.run_id.unwrap().as_ref()).answer("two").await?;
    /// assert_eq!(done.text(), "Two it is.");
    /// # Ok(()) }
    /// ```
    pub fn resume<L: Log + Clone>(&self, log: &L, run: impl AsRef<str>) -> Resume {
        Resume::new(self.clone(), Arc::new(log.clone()), run.as_ref().into())
    }
}

impl Resume {
    pub(crate) fn new(engine: Engine, log: Arc<dyn Log>, run: RunId) -> Self {
        Self {
            engine,
            log,
            run,
            message: None,
            is_answer: false,
            tool_results: Vec::new(),
            approved: Vec::new(),
            edited: Vec::new(),
            digests: Vec::new(),
            rejected: Vec::new(),
            on_uncertain: OnUncertain::default(),
            request_id: None,
            extent: None,
            session: None,
            claimed: None,
            woken: false,
            takes_inbox: false,
            consumed: Vec::new(),
            options: Options::new(),
        }
    }

    /// What a person answered. Refused where the run does not wait.
    pub fn answer(mut self, text: impl Into<String>) -> Self {
        self = self.message(Message::user(text));
        self.is_answer = true;
        self
    }

    /// Adds a user message: the answer, if the run waits for one. In a run that does not wait,
    /// because its process ended or it is a fork, the message comes before the next model call,
    /// after the calls in flight, and instead of the end of the run. If the run suspends first, the
    /// message is not delivered.
    ///
    /// ```
    /// # use mynah::{Engine, Message, fork_run, testing::Scripted};
    /// use mynah::log::MemoryLog;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::says(["It rains in Paris.", "And shines in Rome."]));
    /// let log = MemoryLog::new();
    /// let run = engine.chat("What about Paris?").record(&log).await?.run_id.unwrap();
    /// let fork = fork_run(&log, &*run, 3).await?.run_id;
    /// let done = engine.resume(&log, &fork).message(Message::user("And Rome?")).await?;
    /// assert_eq!(done.text(), "And shines in Rome.");
    /// # Ok(()) }
    /// ```
    pub fn message(mut self, message: Message) -> Self {
        self.message = Some(message);
        self.is_answer = false;
        self
    }

    /// Sets the outcome of a call that the run waits for. Every such call needs a result, an
    /// approval or a rejection. A run whose process ended in a tool waits for the tool's outcome.
    pub fn tool_result(mut self, id: impl Into<String>, content: impl Into<Value>) -> Self {
        let id = id.into();
        let message = Message::tool_result(&id, content);
        self.tool_results.push((id, message.text().into_owned()));
        self
    }

    /// Runs a call that the run waits for: one that asks for approval, one of a manual tool, or one whose outcome is unknown.
    ///
    /// An approval is bound to what the run recorded when it asked: the tool's name, its description and schema, and the arguments. If
    /// this engine's tool differs in one of them, the approval is refused with `approval_stale`, also with
    /// [`allow_changed_engine`](Self::allow_changed_engine); [`approve_digest`](Self::approve_digest) approves the call with the new tool.
    ///
    /// ```
    /// # use mynah::{Engine, Tool, testing::Scripted};
    /// # use serde_json::json;
    /// use mynah::log::MemoryLog;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let model = Scripted::new([
    /// #     json!([{"tool_call": {"id": "c0", "name": "pay"}}, {"tool_call": {"id": "c1", "name": "pay"}}, {"finish": "tool_calls"}]),
    /// #     json!([{"text": "Paid once."}, {"finish": "stop"}]),
    /// # ])?;
    /// let pay = Tool::new("pay", "pays the bill", json!({})).manual().handler(async |_, _| "paid");
    /// let engine = Engine::new(model).tool(pay);
    /// let log = MemoryLog::new();
    /// let waiting = engine.chat("pay").record(&log).await?;
    /// assert_eq!(waiting.manual_tool_calls().len(), 2);
    ///
    /// let run = waiting.run_id.unwrap();
    /// let done = engine.resume(&log, &*run).approve("c0").reject("c1", "once is enough").await?;
    /// assert_eq!(done.text(), "Paid once.");
    /// # Ok(()) }
    /// ```
    pub fn approve(mut self, id: impl Into<String>) -> Self {
        self.approved.push(id.into());
        self
    }

    /// Runs a call that the run waits for with other arguments than the model's. They must fit the tool's schema.
    ///
    /// The records have both. The model's call stays in the conversation as it is, and its result says that a person changed the arguments.
    ///
    /// ```
    /// # use mynah::{Approval, Engine, Tool, testing::Scripted};
    /// # use serde_json::json;
    /// use mynah::log::MemoryLog;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let model = Scripted::new([
    /// #     json!([{"tool_call": {"id": "c0", "name": "pay", "arguments": {"euros": 700}}}, {"finish": "tool_calls"}]),
    /// #     json!([{"text": "Paid 7 euros."}, {"finish": "stop"}]),
    /// # ])?;
    /// # let pay = Tool::new("pay", "Pays an invoice", json!({})).approval(Approval::Ask).handler(async |_, _| "paid");
    /// # let engine = Engine::new(model).tool(pay);
    /// let log = MemoryLog::new();
    /// let run = engine.chat("pay").record(&log).await?.run_id.unwrap();
    /// let done = engine.resume(&log, &*run).approve_with("c0", json!({"euros": 7})).await?;
    /// let result = done.thread.messages.get(2).unwrap();
    /// assert_eq!(result.text(), "paid\n\n[A person changed the arguments of this call before it ran, to {\"euros\":7}]");
    /// # Ok(()) }
    /// ```
    pub fn approve_with(mut self, id: impl Into<String>, arguments: impl Into<Value>) -> Self {
        let id = id.into();
        self.edited.push((id.clone(), arguments.into().to_string()));
        self.approve(id)
    }

    /// Approves a call that the run waits for if it has this digest with this engine's tool,
    /// regardless of the recorded one.
    ///
    /// [`recorded_call`](crate::recorded_call) returns the digests of the calls that a run waits for. The error `approval_stale` has that of a tool
    /// that changed since, as `digest` in its metadata, and the recorded one as `recorded_digest`.
    pub fn approve_digest(mut self, id: impl Into<String>, digest: Hash) -> Self {
        let id = id.into();
        self.digests.push((id.clone(), digest));
        self.approve(id)
    }

    /// Answers a call that the run waits for with an error: a person rejected it, for this reason, which may be empty.
    pub fn reject(mut self, id: impl Into<String>, reason: impl Into<String>) -> Self {
        self.rejected.push((id.into(), reason.into()));
        self
    }

    /// Adds options that the records do not hold: functions, and tools of the call.
    pub fn options(mut self, options: Options) -> Self {
        self.options = self.options.overlay(options);
        self
    }

    /// What happens with a tool that was announced, has no outcome, and may do harm if it is run twice.
    pub fn on_uncertain(mut self, policy: OnUncertain) -> Self {
        self.on_uncertain = policy;
        self
    }

    /// Allows an engine whose model, tools or params differ from those of the run. Options that
    /// this call sets need no permission. Completed work stays, and the records note the new
    /// engine. The conversation stays as it is recorded, its system prompt included.
    /// [`Engine::replay`] then compares its engine with the last one; for earlier engines their
    /// records answer.
    pub fn allow_changed_engine(mut self) -> Self {
        self.options.allow_changed = true;
        self
    }

    /// Continues as a worker does that claimed the run.
    pub(crate) fn claimed(mut self, claimed: Claimed) -> Self {
        self.claimed = Some(claimed);
        self
    }

    /// Continues a run that waits for a time as if that had come.
    pub(crate) fn woken(mut self) -> Self {
        self.woken = true;
        self
    }

    /// Continues the run like a new call, with its own engine and options, and the session's
    /// current data. The run keeps only its budget, and the result covers only what follows.
    pub(crate) fn with_call(
        mut self,
        request_id: String,
        extent: Extent,
        session: Session,
    ) -> Self {
        self.request_id = Some(request_id);
        self.extent = Some(extent);
        self.session = Some(session);
        self.options.allow_changed = true;
        self
    }

    /// The run as it continues. Events that were emitted before are not repeated.
    ///
    /// The first poll reads the run and takes its lease. The stream is refused if the run does not exist, was changed, has ended, is held by
    /// another process or waits for something else, or if the engine is not the one that it began with.
    pub fn stream(mut self) -> EventStream {
        let cancel = self.options.own_cancel();
        EventStream::starting(Box::pin(self.begin()), cancel)
    }

    async fn begin(self) -> Result<(Driver, Filter)> {
        let mut this = self;
        let loaded = Loaded::read(&*this.log, &this.run).await?;
        let loaded = continued(&this.log, &this.engine, loaded, &this.options).await?;
        this.run.clone_from(&loaded.kept.run);
        if this.takes_inbox {
            this = this.take_messages(&loaded).await?;
        }
        match this.prepare(loaded).await {
            // The last records of a run that was released a moment ago came since it was read.
            Err(error) if error.kind() == HAS_MOVED && this.may_read_again() => {
                this.prepare(Loaded::read(&*this.log, &this.run).await?).await
            }
            prepared => prepared,
        }
    }

    /// Checks that the run as it is now could be resumed so, and changes nothing.
    ///
    /// # Errors
    /// As the resumed run, apart from another process that holds the run.
    pub async fn check(&self) -> Result<()> {
        self.fit(&Loaded::read(&*self.log, &self.run).await?).map(drop)
    }

    /// Checks that this engine may continue the run.
    pub(crate) async fn check_engine(&self) -> Result<()> {
        self.part(&Loaded::read(&*self.log, &self.run).await?).map(drop)
    }

    /// What the run continues with, if it fits the run.
    fn fit(&self, loaded: &Loaded) -> Result<Fitting> {
        self.check_time(loaded).map_err(|error| awaited(error, loaded))?;
        let message = self.said(loaded)?;
        let fact = match message {
            Some(_) => None,
            None => self.resumption(loaded).map_err(|error| awaited(error, loaded))?,
        };
        let (part, changed) = self.part(loaded)?;
        if changed.is_some() {
            self.check_approved(loaded, fact.as_ref())?;
        }
        Ok(Fitting { message, fact, part, changed })
    }

    /// A run that continues, with its lease.
    pub(crate) async fn prepare(&mut self, loaded: Loaded) -> Result<(Driver, Filter)> {
        let world = Arc::clone(&self.engine.0.world);
        let Fitting { message, fact, part, changed } = self.fit(&loaded)?;
        let Part { mut setup, filter, .. } = part;
        if let Some(id) = loaded.request_id() {
            setup.set_request_id(id);
        }
        let (run, head) = (loaded.kept.run.clone(), loaded.kept.chain.head());
        let Claimed { lease, consumed, mailbox } = match self.claimed.take() {
            Some(claimed) if self.log.head(&run).await? == head => claimed,
            Some(_) => return Err(Error::log(LogReason::HeadMismatch)),
            None => self.claim(world.as_ref(), &run, head).await?,
        };
        // A run whose end is recorded lacks nothing but its seal.
        let ended = loaded.has_ended();
        let refusal = if ended { loaded.refusal() } else { None };
        let fact = (!ended).then(|| {
            let mut fact = fact.unwrap_or(Fact::SEAM);
            if let Fact::Resumed { about, on_uncertain, after, .. } = &mut fact {
                (*about, *on_uncertain) = (changed, self.on_uncertain);
                // A process that lets go of its run gives it back.
                *after = match lease.taken_over() {
                    _ if loaded.is_fresh_branch() => Interruption::Branch,
                    true => Interruption::Crash,
                    false => Interruption::Release,
                };
            }
            fact
        });
        let active = active(&loaded.kept.records);
        let (before, state) = (loaded.before.len(), loaded.state());
        let StoredRun { chain, totals, .. } = loaded.kept;
        let mut recorder = Recorder::after(Arc::clone(&self.log), world, chain, totals)
            .with_durability(self.options.durability)
            .with_emit_timeout(self.options.emit_timeout)
            .metered(self.engine.0.metrics.clone())
            .consuming(consumed)
            .with_lease(lease);
        if ended {
            recorder.seal()?;
        }
        let mailbox = mailbox.map(Mailbox::reader);
        let resumption = Resumption { fact, message, active, mailbox, woken: self.woken };
        let cancel = self.options.cancel_handle.as_ref();
        let driver = Driver::resume(setup, (before, state), resumption, refusal, cancel, recorder);
        Ok((driver, filter))
    }

    /// Takes the run as a worker does that claims it.
    async fn claim(
        &mut self,
        world: &dyn World,
        run: &RunId,
        head: Option<Head>,
    ) -> Result<Claimed> {
        let indexed = self.log.run(run).await?;
        let lease = take_over(&self.log, world, run, head).await?;
        let consumed = self.consumed.clone();
        // Runs that no worker may continue get no messages.
        let has_queue = indexed.is_some_and(|run| run.queue.is_some());
        let mailbox = has_queue.then(|| {
            let mailbox =
                Mailbox::new(Arc::clone(&self.log), run.clone(), self.options.own_cancel());
            mailbox.pass_over(&consumed);
            mailbox
        });
        Ok(Claimed { lease, consumed, mailbox })
    }

    /// What this engine makes of what is left of the run, and what that runs with if it is something else than before.
    fn part(&self, loaded: &Loaded) -> Result<(Part, Option<Box<About>>)> {
        let (_, last) = loaded.stretches();
        let mut recorded = last.about.clone();
        if let (Some(link), Some(session)) = (&mut recorded.session, &self.session) {
            link.context.clone_from(&session.context);
            link.metadata.clone_from(&session.metadata);
        }
        let recorded = &recorded;
        let options = match self.request_id {
            None => Options::of(recorded)?,
            // The budget belongs to the run, unless the call sets another.
            Some(_) => {
                let mut options = Options::of(recorded)?;
                options.values.retain(|name| name == "budget");
                options
            }
        };
        let options = options.overlay(self.options.clone());
        let asked = |past| CallPlan {
            engine: &self.engine,
            conversation: joined(&loaded.before, &loaded.thread),
            given: None,
            options: options.clone(),
            extent: self.extent.unwrap_or(last.extent),
            past,
        };
        // A run that continues with the same engine keeps its price.
        let part = asked(CallOrigin::ReplayAtPrice(recorded)).prepare()?;
        if loaded.difference(part.about.as_deref()).is_none() {
            return Ok((part, None));
        }
        let unsaid = part.about.as_deref().map(|about| self.unsaid(about, recorded));
        if let Some(difference) = loaded.difference(unsaid.as_ref())
            && !self.options.allow_changed
        {
            let has = |name: &String| {
                part.about.as_ref().is_some_and(|about| about.options.contains_key(name))
            };
            let run = &loaded.kept.run;
            let message = match code_of(recorded).keys().find(|name| !has(name)) {
                Some(name) => format!(
                    "replay mismatch: the run has code for {name}, which its records cannot hold; give it again, or \
                     allow_changed_engine() continues without it"
                ),
                None => {
                    let diff = difference.metadata().get("diff");
                    let path = diff.and_then(|diff| diff.pointer("/0/path")?.as_str());
                    format!(
                        "replay mismatch: run {run} ran with another engine: {} differs; \
                         allow_changed_engine() continues the run with this one",
                        path.unwrap_or("a record")
                    )
                }
            };
            return Err(difference.with_message(message));
        }
        let part = asked(CallOrigin::Again(recorded)).prepare()?;
        let about = part.about.clone();
        Ok((part, about))
    }

    /// The engine's configuration, without the options that this call sets explicitly. Schema rules
    /// of a newer version of the library do not make another engine.
    fn unsaid(&self, about: &About, recorded: &About) -> About {
        let is_said = |name: &String| self.options.says(name) || name == SCHEMA_FIT;
        let mut options = about.options.clone();
        options.retain(|name, _| !is_said(name));
        let said = recorded.options.iter().filter(|(name, _)| is_said(name));
        options.extend(said.map(|(name, value)| (name.clone(), value.clone())));
        let mut params = about.params.clone();
        params.retain(|name, _| name != "budget");
        params.extend(recorded.params.get_key_value("budget").map(|(n, v)| (n.clone(), v.clone())));
        About { options, params, finalizes: recorded.finalizes, ..about.clone() }
    }

    /// What a person says to a run that does not wait.
    fn said(&self, loaded: &Loaded) -> Result<Option<Arc<Message>>> {
        let is_answer = self.is_answer || self.request_id.is_some() || self.names_calls();
        let Some(message) = self.message.as_ref().filter(|_| !is_answer) else { return Ok(None) };
        match loaded.kept.last() {
            Some(Fact::Suspended(end))
                if !matches!(end.reason, HaltReason::CrashLoop | HaltReason::Sleeping) =>
            {
                return Ok(None);
            }
            Some(
                Fact::BudgetExceeded { .. }
                | Fact::Completed(_)
                | Fact::Failed(_)
                | Fact::Cancelled { .. }
                | Fact::Sealed(_),
            ) => return Err(self.has_ended(loaded)),
            _ => {}
        }
        let refused = |why| Err(self.refused(RunStatus::Running, why));
        if message.role() != Role::User {
            return refused("only a user message can be added to it");
        }
        match self.uncertain(loaded).filter(|_| self.on_uncertain == OnUncertain::Suspend) {
            Some(end) => refused(UNCERTAIN).map_err(|error| {
                let calls = end.metadata.get("uncertain_tool_calls").cloned().unwrap_or_default();
                error.with("missing_tool_calls", calls)
            }),
            None => Ok(Some(Arc::new(message.clone()))),
        }
    }

    /// Refuses a run that waits for a time which is far away.
    fn check_time(&self, loaded: &Loaded) -> Result<()> {
        let left = loaded.sleeps_for(self.engine.0.world.as_ref());
        let longest = self.options.park_after.unwrap_or(PARK_AFTER);
        match left.filter(|left| !self.woken && *left > longest) {
            Some(left) => {
                let why = format!("it sleeps for another {} s; resume it then", left.as_secs());
                Err(self.refused(RunStatus::Suspended, &why))
            }
            None => Ok(()),
        }
    }

    fn says_something(&self) -> bool {
        self.message.is_some() || self.names_calls()
    }

    /// Whether nothing is said that may be meant for the run as it was when it was read.
    fn may_read_again(&self) -> bool {
        !self.says_something() && self.on_uncertain == OnUncertain::Suspend
    }

    /// Whether something is said of calls.
    fn names_calls(&self) -> bool {
        !(self.tool_results.is_empty() && self.approved.is_empty() && self.rejected.is_empty())
    }

    fn has_ended(&self, loaded: &Loaded) -> Error {
        let advice = match self.names_calls() {
            true => "its calls were decided before",
            false => advice(loaded),
        };
        let message = format!("log error: sealed: run {} has ended; {advice}", self.run);
        Error::log(LogReason::Sealed).with_message(message).with("run_id", self.run.as_str())
    }

    /// What the run continues with; none if it does not wait.
    fn resumption(&self, loaded: &Loaded) -> Result<Option<Fact>> {
        let uncertain;
        let (end, status) = match loaded.kept.last() {
            Some(Fact::Sealed(_)) => return Err(self.has_ended(loaded)),
            Some(Fact::Suspended(end)) => (end, RunStatus::Suspended),
            _ if !self.says_something() => return Ok(None),
            _ => {
                let nothing = || self.refused(RunStatus::Running, "it does not wait for anything");
                let waits = self.uncertain(loaded).filter(|_| self.names_calls());
                uncertain = waits.ok_or_else(nothing)?;
                (&uncertain, RunStatus::Running)
            }
        };
        let refused = |why: &str| self.refused(status, why);
        match &self.message {
            None if end.reason == HaltReason::AskUser => {
                return Err(refused("it waits for an answer; give it with Resume::answer"));
            }
            Some(_) if matches!(end.reason, HaltReason::CrashLoop | HaltReason::Sleeping) => {
                return Err(refused(
                    "it waits for no answer; resume it without one, or add a Resume::message",
                ));
            }
            Some(message) if message.role() != Role::User => {
                return Err(refused("it waits for an answer of the user"));
            }
            _ => {}
        }
        let facts = loaded.kept.records.iter().map(RecordedFact::fact);
        let mut missing = self.unanswered(end.waiting_calls(facts), loaded)?;
        let (mut approved, mut given_up) = (self.approved.clone(), Vec::new());
        if end.reason == HaltReason::UncertainTools {
            match self.on_uncertain {
                OnUncertain::Rerun => approved.append(&mut missing),
                OnUncertain::Fail => given_up.append(&mut missing),
                _ => {}
            }
        }
        if self.message.is_some() && !approved.is_empty() {
            return Err(refused("a message can follow the approved calls when they are done"));
        }
        if !missing.is_empty() {
            let waits = match end.reason {
                HaltReason::UncertainTools => UNCERTAIN.to_owned(),
                _ => format!(
                    "it waits for the calls {}; decide about each with Run::decide, or with Resume::approve, reject or tool_result",
                    missing.join(", ")
                ),
            };
            return Err(refused(&waits).with("missing_tool_calls", missing));
        }
        let (_, last) = loaded.stretches();
        Ok(Some(Fact::Resumed {
            message: self.message.clone().map(Arc::new),
            tool_results: self.tool_results.clone(),
            approved,
            edited: self.edited.clone(),
            rejected: self.rejected.clone(),
            given_up,
            request_id: self.request_id.clone(),
            extent: self.extent.filter(|extent| *extent != last.extent),
            about: None,
            on_uncertain: self.on_uncertain,
            after: Interruption::default(),
        }))
    }

    /// The tool calls that a resumed run waits for: those with an unknown outcome, because the
    /// process died while they ran, and those that the caller decided about.
    fn uncertain(&self, loaded: &Loaded) -> Option<End> {
        let state = loaded.state();
        let tools = self.engine.resolve_tools(&self.options);
        let is_harmless = |call: &ToolCall| {
            tools.iter().any(|tool| tool.name() == call.name && tool.spec().idempotent)
        };
        let results = self.tool_results.iter().chain(&self.rejected).map(|(id, _)| id);
        let named: Vec<&String> = results.chain(&self.approved).collect();
        let mut left = state.left_open();
        left.retain(|(call, _)| named.contains(&&call.id) || !is_harmless(call));
        let edited = left.iter().filter(|(_, edited)| *edited).map(|(call, _)| &**call);
        let ids = left.iter().map(|(call, _)| call.id.as_str());
        (!left.is_empty()).then(|| End::uncertain(ids).with_edited(edited))
    }

    fn refused(&self, status: RunStatus, why: &str) -> Error {
        Error::session(SessionReason::InvalidStatus)
            .with_message(format!("session error: invalid_status: run {}: {why}", self.run))
            .with("operation", "resume")
            .with("status", status.as_str())
            .with("run_id", self.run.as_str())
    }
}

/// What a run continues with.
struct Fitting {
    /// What the user says to a run that does not wait.
    message: Option<Arc<Message>>,
    fact: Option<Fact>,
    part: Part,
    /// What the engine runs with, if it is something else than before.
    changed: Option<Box<About>>,
}

/// The same refusal, with what the run waits for where it waits.
fn awaited(error: Error, loaded: &Loaded) -> Error {
    let (ErrorKind::Session(_), Some(Fact::Suspended(end))) = (error.kind(), loaded.kept.last())
    else {
        return error;
    };
    let told = end.metadata.clone().into_iter();
    let error = told.fold(error, |error, (name, value)| error.with(&name, value));
    match end.reason {
        HaltReason::ManualToolCalls => {
            let facts = loaded.kept.records.iter().map(RecordedFact::fact);
            error.with("manual_tool_calls", json!(end.waiting_calls(facts)))
        }
        _ => error,
    }
}

impl IntoFuture for Resume {
    type Output = Result<ChatResult>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { chatted(&mut self.stream()).await })
    }
}
