//! Resuming a run that has no end.

use std::sync::Arc;

use mynah_data::{ChatResult, Message, Result, RunId, Session};
use mynah_log::{Extent, Hash, Log, Queue};
use mynah_step::{KeptLease, OnUncertain};
use serde_json::Value;

use crate::{
    Decision,
    call::{awaited, chatted},
    engine::Engine,
    linked::continuable,
    loaded::Loaded,
    mailbox::Mailbox,
    options::{Options, option_setters},
    stream::EventStream,
};

mod approved;
mod begin;
mod fit;
mod inbox;

/// What a worker has of a run.
pub(crate) struct Claimed {
    pub(crate) lease: KeptLease,
    /// The messages that its first record becomes of.
    pub(crate) consumed: Vec<String>,
    /// The messages that arrive meanwhile.
    pub(crate) mailbox: Option<Mailbox>,
}

/// A turn of a session that continues a run: a call of its own, with the session as it is now.
pub(crate) struct TurnCall {
    pub(crate) request_id: String,
    /// How far it goes from here.
    pub(crate) extent: Extent,
    pub(crate) session: Session,
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
    /// What happens with calls, by their ids.
    decisions: Vec<(String, Decision)>,
    /// The digests of calls that were approved by it.
    digests: Vec<(String, Hash)>,
    /// The last record of the run that it continues.
    at: Option<u64>,
    on_uncertain: OnUncertain,
    /// The turn of a session that continues the run.
    turn: Option<TurnCall>,
    /// What a worker has of the run.
    claimed: Option<Claimed>,
    /// Whether the time that the run waits for has come, even if the engine's clock is behind.
    woken: bool,
    /// Whether the run takes the messages of its inbox, and those that it took.
    takes_inbox: bool,
    consumed: Vec<String>,
    /// The id of the message that it counts as.
    message_id: Option<String>,
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
    /// use mynah::{Engine, Tool, ToolOutcome, testing::Scripted};
    /// use serde_json::json;
    /// use mynah::log::MemoryLog;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::new([
    /// #     json!([{"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"}]),
    /// #     json!([{"text": "Two it is."}, {"finish": "stop"}]),
    /// # ])?).tool(Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("How many?")));
    ///
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
            decisions: Vec::new(),
            digests: Vec::new(),
            at: None,
            on_uncertain: OnUncertain::default(),
            turn: None,
            claimed: None,
            woken: false,
            takes_inbox: false,
            consumed: Vec::new(),
            message_id: None,
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
    /// use mynah::{Engine, Message, fork_run, testing::Scripted};
    /// use mynah::log::MemoryLog;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::says(["It rains in Paris.", "And shines in Rome."]));
    ///
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
    pub fn tool_result(self, id: impl Into<String>, content: impl Into<Value>) -> Self {
        self.decide(id, Decision::Result(content.into()))
    }

    /// Runs a call that the run waits for: one that asks for approval, one of a manual tool, or one whose outcome is unknown.
    ///
    /// If the process died in an approved call, the same approval again is refused: a repeated request must not run the call twice. Resume the
    /// run without a decision; it then waits for one about the unknown outcome.
    ///
    /// An approval is bound to what the run recorded when it asked: the tool's name, its description and schema, and the arguments. If
    /// this engine's tool differs in one of them, the approval is refused with `approval_stale`, also with
    /// [`allow_changed_engine`](Self::allow_changed_engine); [`approve_digest`](Self::approve_digest) approves the call with the new tool.
    ///
    /// ```
    /// use mynah::{Engine, Tool, testing::Scripted};
    /// use serde_json::json;
    /// use mynah::log::MemoryLog;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let model = Scripted::new([
    /// #     json!([{"tool_call": {"id": "c0", "name": "pay"}}, {"tool_call": {"id": "c1", "name": "pay"}}, {"finish": "tool_calls"}]),
    /// #     json!([{"text": "Paid once."}, {"finish": "stop"}]),
    /// # ])?;
    ///
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
    pub fn approve(self, id: impl Into<String>) -> Self {
        self.decide(id, Decision::Approve)
    }

    /// Runs a call that the run waits for with other arguments than the model's. They must fit the tool's schema.
    ///
    /// The records have both. The model's call stays in the conversation as it is, and its result says that a person changed the arguments.
    ///
    /// ```
    /// use mynah::{Approval, Engine, Tool, testing::Scripted};
    /// use serde_json::json;
    /// use mynah::log::MemoryLog;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let model = Scripted::new([
    /// #     json!([{"tool_call": {"id": "c0", "name": "pay", "arguments": {"euros": 700}}}, {"finish": "tool_calls"}]),
    /// #     json!([{"text": "Paid 7 euros."}, {"finish": "stop"}]),
    /// # ])?;
    /// # let pay = Tool::new("pay", "Pays an invoice", json!({})).approval(Approval::Ask).handler(async |_, _| "paid");
    /// # let engine = Engine::new(model).tool(pay);
    ///
    /// let log = MemoryLog::new();
    /// let run = engine.chat("pay").record(&log).await?.run_id.unwrap();
    /// let done = engine.resume(&log, &*run).approve_with("c0", json!({"euros": 7})).await?;
    /// let result = done.thread.messages.get(2).unwrap();
    /// assert_eq!(result.text(), "paid\n\n[A person changed the arguments of this call before it ran, to {\"euros\":7}]");
    /// # Ok(()) }
    /// ```
    pub fn approve_with(self, id: impl Into<String>, arguments: impl Into<Value>) -> Self {
        self.decide(id, Decision::ApproveWith(arguments.into()))
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
    pub fn reject(self, id: impl Into<String>, reason: impl Into<String>) -> Self {
        self.decide(id, Decision::Reject(reason.into()))
    }

    /// Continues the run only if this is its last record, so that an answer or a decision is about what a person was shown. If the run has
    /// continued since, it is refused (`session_moved`). [`recorded_call`](crate::recorded_call) returns the number.
    ///
    /// ```
    /// use mynah::{Engine, Tool, ToolOutcome, testing::Scripted};
    /// use serde_json::json;
    /// use mynah::log::MemoryLog;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let ask = |id: &str| json!([{"tool_call": {"id": id, "name": "ask"}}, {"finish": "tool_calls"}]);
    /// # let engine = Engine::new(Scripted::new([ask("c0"), ask("c1"), json!([{"text": "Done."}, {"finish": "stop"}])])?)
    /// #     .tool(Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("How many?")));
    ///
    /// let log = MemoryLog::new();
    /// let run = engine.chat("order").record(&log).await?.run_id.unwrap();
    /// let shown = mynah::recorded_call(&log, &*run).await?;
    ///
    /// engine.resume(&log, &*run).answer("two").at(shown.last_record).await?;
    /// // The run asks again, and this answer was meant for the first question.
    /// let late = engine.resume(&log, &*run).answer("three").at(shown.last_record).await;
    /// assert_eq!(late.unwrap_err().reason(), "session_moved");
    /// # Ok(()) }
    /// ```
    pub fn at(mut self, last_record: u64) -> Self {
        self.at = Some(last_record);
        self
    }

    /// Decides about a call that the run waits for: [`approve`](Self::approve), [`approve_with`](Self::approve_with), [`reject`](Self::reject)
    /// or [`tool_result`](Self::tool_result), as a value.
    pub fn decide(mut self, id: impl Into<String>, decision: Decision) -> Self {
        self.decisions.push((id.into(), decision));
        self
    }

    /// Adds options that the records do not hold: functions, and tools of the call.
    pub fn options(mut self, options: Options) -> Self {
        self.options = self.options.overlay(options);
        self
    }

    mynah_data::setters! { self => self;
        /// What happens with a tool that was announced, has no outcome, and may do harm if it is run twice.
        on_uncertain(policy: OnUncertain) = policy;
    }

    /// Allows an engine whose model, tools or params differ from those of the run. Options that
    /// this call sets need no permission. Completed work stays, and the records note the new
    /// engine. If the system prompt differs, the model reads the new one; a conversation that had one of its own keeps it.
    /// [`Engine::replay`] then compares its engine with the last one; for earlier engines their
    /// records answer.
    pub fn allow_changed_engine(mut self) -> Self {
        self.options.allow_changed = true;
        self
    }

    /// Counts as the [message](crate::deliver) with this id, which is consumed in the commit of the first record that follows.
    #[doc(hidden)]
    pub fn message_id(mut self, id: impl Into<String>) -> Self {
        self.message_id = Some(id.into());
        self
    }

    /// The queue from which workers claim the run from the first record on that follows, if it names its agent and has no queue.
    #[doc(hidden)]
    pub fn queue(mut self, queue: Queue) -> Self {
        self.options.queue = Some(queue);
        self
    }

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
    pub(crate) fn with_turn(mut self, turn: TurnCall) -> Self {
        self.turn = Some(turn);
        self.options.allow_changed = true;
        self
    }

    /// The run as it continues. Events that were emitted before are not repeated.
    ///
    /// The first poll reads the run and takes its lease. The stream is refused if the run does not exist, was changed, has ended, is held by
    /// another process or waits for something else, or if the engine is not the one that it began with.
    pub fn stream(mut self) -> EventStream {
        let (cancel, run) = (self.options.own_cancel(), self.run.clone());
        let begun = async move { self.begin().await.map_err(|error| error.of_run(Some(&run))) };
        EventStream::starting(Box::pin(begun), cancel)
    }

    /// Checks that the run as it is now could be resumed so, and changes nothing.
    ///
    /// # Errors
    /// As the resumed run, apart from another process that holds the run.
    pub async fn check(&self) -> Result<()> {
        let run = continuable(&*self.log, &self.engine, &self.run, &self.options).await?;
        self.fit(&run).map(drop)
    }

    /// Checks that a [fork](crate::fork_run) of the run at this record could be resumed so, before it is made.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    #[doc(hidden)]
    pub async fn check_fork(&self, at: u64) -> Result<()> {
        self.fit(&Loaded::read(&*self.log, &self.run).await?.cut(at)).map(drop)
    }

    pub(crate) async fn check_engine(&self) -> Result<()> {
        self.part(&Loaded::read(&*self.log, &self.run).await?).map(drop)
    }
}

awaited! { Resume => ChatResult, resume => chatted(&mut resume.stream()).await }
