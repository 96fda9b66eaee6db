//! A run under the caller's id, from its first call to its end.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use mynah_data::{
    ChatResult, Error, ErrorKind, HaltReason, Result, RunId, SessionReason, ToolCall,
};
use mynah_log::{Hash, Log};
use serde_json::Value;

use crate::{
    call::{Chat, chatted},
    engine::Engine,
    loaded::Loaded,
    options::Options,
    resume::Resume,
    stream::EventStream,
};

/// A recorded run that has ended or waits; see [`Chat::start_or_resume`].
#[derive(Clone, Debug)]
#[must_use = "a run may wait for a decision or an answer"]
pub struct Run {
    engine: Engine,
    options: Options,
    run_id: RunId,
    result: ChatResult,
    /// The run's last record when it had this result.
    at: Option<u64>,
}

/// What a run waits for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Waiting {
    /// An answer to this question. Continue with [`Run::answer`].
    Question(String),
    /// A decision about each of these calls. They have not run. Continue with [`Run::decide`].
    Approval(Vec<ToolCall>),
    /// A decision about each of these calls, whose outcome is unknown because the process died while they ran. Continue with
    /// [`Run::decide`]; [`Decision::Approve`] runs a call again. [`Run::idempotency_keys`] has the keys that their services were given.
    Uncertain(Vec<ToolCall>),
    /// A person's attention: its processes died too often. Continue with [`Run::resume`].
    CrashLoop,
    /// This time. [`Run::resume`] and [`Run::decide`] wait for it and continue. A program that ends meanwhile starts the run again then.
    Time(SystemTime),
    /// Something that this version does not know; only a newer server reports it.
    Other,
}

impl Waiting {
    /// The calls that need a decision.
    pub fn calls(&self) -> &[ToolCall] {
        match self {
            Self::Approval(calls) | Self::Uncertain(calls) => calls,
            Self::Question(_) | Self::CrashLoop | Self::Time(_) | Self::Other => &[],
        }
    }

    pub(crate) fn of(result: &ChatResult) -> Option<Self> {
        match result.halted_reason {
            HaltReason::AskUser => {
                Some(Self::Question(result.pending_question.clone().unwrap_or_default()))
            }
            HaltReason::ManualToolCalls => Some(Self::Approval(result.manual_tool_calls())),
            HaltReason::UncertainTools => Some(Self::Uncertain(result.uncertain_tool_calls())),
            HaltReason::CrashLoop => Some(Self::CrashLoop),
            HaltReason::Sleeping => {
                let time = result.metadata.get("wake_at_ms").and_then(Value::as_u64);
                Some(Self::at(time.unwrap_or_default()))
            }
            _ => None,
        }
    }

    pub(crate) fn at(wake_at_ms: u64) -> Self {
        Self::Time(SystemTime::UNIX_EPOCH + Duration::from_millis(wake_at_ms))
    }
}

/// What happens with a call that a run waits for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Decision {
    /// The call runs.
    Approve,
    /// The call runs with these arguments in place of the model's.
    ApproveWith(Value),
    /// The call does not run, and the model reads why.
    Reject(String),
    /// The call does not run: this is its result.
    Result(Value),
}

impl Chat {
    /// Starts the run, or continues the run that has its [id](Chat::run_id), until it ends or waits. One call for a new run, for one whose
    /// process died or whose provider failed, and for one that waits for a person.
    ///
    /// ```
    /// use mynah::{Engine, Tool, testing::Scripted};
    /// use serde_json::json;
    /// use mynah::{Decision, Waiting, log::MemoryLog};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let model = Scripted::new([
    /// #     json!([{"tool_call": {"id": "c0", "name": "pay"}}, {"finish": "tool_calls"}]),
    /// #     json!([{"text": "Paid."}, {"finish": "stop"}]),
    /// # ])?;
    ///
    /// let pay = Tool::new("pay", "Pays an invoice", json!({})).manual().handler(async |_, _| "paid");
    /// let engine = Engine::new(model).tool(pay);
    /// let log = MemoryLog::new();
    ///
    /// let mut run = engine.chat("Pay invoice 17.").record(&log).run_id("invoice-17").start_or_resume().await?;
    /// while let Some(waiting) = run.waiting() {
    ///     run = match waiting {
    ///         Waiting::Question(question) => run.answer(format!("{question} I do not know.")).await?,
    ///         // The process died inside these: to approve one runs it again.
    ///         Waiting::Uncertain(_) => run.decide(|_call| Decision::Reject("it may have run".into())).await?,
    ///         _ => run.decide(|_call| Decision::Approve).await?,
    ///     };
    /// }
    /// assert_eq!(run.result().text(), "Paid.");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As the call itself. A call without a log or an id is refused.
    ///
    /// A model call that fails before its first event, while the chat has no answer, is an error. A later failure, in mid-stream or in a later turn, is
    /// a run that has ended: [`waiting`](Run::waiting) is none, and [`ChatResult::error`] of its result has the failure. Start it again to
    /// continue it once the reason has passed. If the reason does not pass by itself, as with a wrong model name,
    /// [`allow_changed_engine`](Chat::allow_changed_engine) calls the model again.
    pub async fn start_or_resume(self) -> Result<Run> {
        if self.0.run_id.is_none() || self.0.options.log.is_none() {
            return Err(unnamed());
        }
        let (engine, options) = self.settings();
        let mut stream = self.stream();
        let result = chatted(&mut stream).await.map_err(advised)?;
        let run = Run::new(engine, options, result)?.at(&stream);
        if run.waiting().is_some() {
            // Before a person is asked for what this engine could not use.
            run.resumption()?.check_engine().await?;
        }
        Ok(run)
    }
}

/// The error of a run whose model call failed, with how it is called again where that needs permission.
fn advised(error: Error) -> Error {
    match error.run_id() {
        Some(run) if matches!(error.kind(), ErrorKind::Adapter(_)) && !error.is_resumable() => {
            let message = format!(
                "{error}; run {run} has failed; allow_changed_engine() calls the model again, in another run"
            );
            error.with_message(message)
        }
        _ => error,
    }
}

impl Run {
    pub(crate) fn new(engine: Engine, options: Options, result: ChatResult) -> Result<Self> {
        let run_id = result.run_id.clone().ok_or_else(unnamed)?;
        Ok(Self { engine, options, run_id, result, at: None })
    }

    /// Remembers how far the run had come at the end of this stream.
    fn at(mut self, stream: &EventStream) -> Self {
        self.at = stream.last_record();
        self
    }

    /// The id of the run in its log. A run that [continues](Engine::resume) another has its own.
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// The result so far.
    pub fn result(&self) -> &ChatResult {
        &self.result
    }

    /// The result so far.
    pub fn into_result(self) -> ChatResult {
        self.result
    }

    /// What the run waits for; none if it has ended.
    pub fn waiting(&self) -> Option<Waiting> {
        Waiting::of(&self.result)
    }

    /// The digest to which an approval of a call is bound, with the tool that this engine has; none if it has none.
    pub fn digest(&self, call: &ToolCall) -> Option<Hash> {
        let tools = self.engine.resolve_tools(&self.options);
        let tool = tools.iter().find(|tool| tool.name() == call.name)?;
        Some(Hash::of_call(tool.spec(), call))
    }

    /// The [idempotency key](crate::ToolContext::idempotency_key) of each call that the run waits for, by the call's id. A service that
    /// was given the key knows whether a call with an unknown outcome did its work.
    ///
    /// # Errors
    /// A log that cannot be read, and a corrupt run.
    pub async fn idempotency_keys(&self) -> Result<BTreeMap<String, String>> {
        let log = self.options.log.as_ref().ok_or_else(unnamed)?;
        Ok(Loaded::read(&**log, &self.run_id).await?.idempotency_keys())
    }

    /// Continues the run with a decision for each call that it waits for, until it ends or waits again. A run that waits for a time has
    /// no calls to decide about, and continues then.
    ///
    /// # Errors
    /// As [`Engine::resume`]. A run that waits for an answer is refused, and so is one whose processes died too often. If a tool changed since
    /// the run asked (`approval_stale`), [`Resume::approve_digest`] approves the call with the new one. If the run has continued since it was
    /// returned, the decision may be about something else than what it waits for now, and is refused (`session_moved`).
    ///
    /// After an error, [`Chat::start_or_resume`] with the same id returns the run as it is then.
    pub async fn decide(self, decide: impl FnMut(&ToolCall) -> Decision) -> Result<Self> {
        let calls = match self.waiting() {
            Some(Waiting::Approval(calls) | Waiting::Uncertain(calls)) => calls,
            Some(Waiting::Time(_)) => return self.resume().await,
            Some(Waiting::Question(_)) => {
                return Err(self.refused("it waits for an answer; give it with Run::answer"));
            }
            Some(Waiting::CrashLoop) => {
                return Err(self.refused(
                    "its processes died too often; look at it, then continue with Run::resume",
                ));
            }
            Some(Waiting::Other) | None => return Err(self.refused("it has ended")),
        };
        let resume = self.resumption()?.decided(&calls, decide);
        self.continued(resume).await
    }

    /// Continues the run with the answer to its question, until it ends or waits again.
    ///
    /// # Errors
    /// As [`Engine::resume`]. A run that waits for something else is refused, and so is one that has continued since (`session_moved`). After
    /// an error, [`Chat::start_or_resume`] with the same id returns the run as it is then.
    pub async fn answer(self, text: impl Into<String>) -> Result<Self> {
        let resume = self.resumption()?.answer(text);
        self.continued(resume).await
    }

    /// Continues a run whose processes died too often, or that waits for a time. This call waits for that time, however long it is; to
    /// wait without a process, drop the run and start it again then, or leave it to a [`Worker`](crate::Worker).
    ///
    /// # Errors
    /// As [`Engine::resume`].
    pub async fn resume(self) -> Result<Self> {
        let mut resume = self.resumption()?;
        if matches!(self.waiting(), Some(Waiting::Time(_))) {
            resume = resume.park_after(Duration::MAX);
        }
        self.continued(resume).await
    }

    fn refused(&self, why: &str) -> Error {
        Error::session(SessionReason::InvalidStatus)
            .with_message(format!("session error: invalid_status: run {}: {why}", self.run_id))
            .with("operation", "decide")
            .with("run_id", self.run_id.as_str())
    }

    pub(crate) fn resumption(&self) -> Result<Resume> {
        let mut options = self.options.clone();
        let log: Arc<dyn Log> = options.log.take().ok_or_else(unnamed)?;
        let mut resume = Resume::new(self.engine.clone(), log, self.run_id.clone());
        if let Some(at) = self.at.filter(|_| self.waiting().is_some()) {
            resume = resume.at(at);
        }
        Ok(resume.options(options))
    }

    async fn continued(self, resume: Resume) -> Result<Self> {
        let mut stream = resume.stream();
        let result = chatted(&mut stream).await?;
        Ok(self.with_result(result).at(&stream))
    }

    pub(crate) fn with_result(self, result: ChatResult) -> Self {
        let run_id = result.run_id.clone().unwrap_or(self.run_id);
        Self { run_id, result, at: None, ..self }
    }
}

impl Resume {
    pub(crate) fn decided(
        mut self,
        calls: &[ToolCall],
        mut decide: impl FnMut(&ToolCall) -> Decision,
    ) -> Self {
        for call in calls {
            self = self.decide(&*call.id, decide(call));
        }
        self
    }
}

/// The error of a run that does not wait for this.
pub(crate) fn unnamed() -> Error {
    Error::invalid_option("run_id", "required").with_message(
        "validation failed: run_id: a run that can be resumed needs record(&log) and run_id(id)",
    )
}
