//! A process of a run that may die: its log, its world, its model and its tools.

use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};

use futures_util::{Stream, future, stream, task::AtomicWaker};
use mynah_data::{CONTINUE, Error, Event, Request, Result, RunId, ToolCall, ToolOutcome};
use mynah_log::{
    Append, Fact, Head, Lease, Log, LogFuture, MemoryLog, Record, Resolution, forward_log,
};
use mynah_step::{
    Adapter, BoxFuture, HandlerExecutor, ModelCall, ModelStream, RetryPolicy, Tool, ToolContext,
    ToolExecutor, World,
};
use serde_json::{Value, json};

use super::{CrashPoint, CrashViolation, CrashViolationKind, Moment, RUN};

/// A process, and the log as it sees it. Once it is dead, nothing that it asks of its log happens.
pub(super) struct Process {
    log: MemoryLog,
    /// How many records the log was given, by this process and those before it.
    given: AtomicU64,
    dies: Option<Moment>,
    died: Mutex<Option<CrashPoint>>,
    waker: AtomicWaker,
    /// What ran, in this process and those before it.
    ran: Arc<Ran>,
    /// The answers of the model that were recorded when it started.
    before: usize,
    /// The answers that it got itself.
    answers: Arc<AtomicUsize>,
}

impl Process {
    pub(super) fn new(
        (log, given): (MemoryLog, u64),
        dies: Option<Moment>,
        ran: Arc<Ran>,
        before: usize,
    ) -> Arc<Self> {
        let ((died, waker, answers), given) = (Default::default(), given.into());
        Arc::new(Self { log, given, dies, died, waker, ran, before, answers })
    }

    /// Wakes this task when the process dies.
    pub(super) fn watch(&self, cx: &Context<'_>) {
        self.waker.register(cx.waker());
    }

    pub(super) fn died(&self) -> Option<CrashPoint> {
        lock(&self.died).clone()
    }

    pub(super) fn answers(&self) -> usize {
        self.answers.load(Ordering::Acquire)
    }

    pub(super) fn executor(
        &self,
        inner: Option<Arc<dyn ToolExecutor>>,
        reruns: bool,
        varying: &[String],
    ) -> Arc<dyn ToolExecutor> {
        let inner = inner.unwrap_or_else(|| Arc::new(HandlerExecutor));
        let (log, ran) = (self.log.clone(), Arc::clone(&self.ran));
        Arc::new(WatchedExecutor { inner, log, ran, reruns, varying: varying.to_vec() })
    }

    pub(super) fn adapter(&self, inner: Arc<dyn Adapter>, remembered: Answers) -> Arc<dyn Adapter> {
        let answers = Arc::clone(&self.answers);
        Arc::new(RememberingAdapter { inner, remembered, before: self.before, answers })
    }

    fn die_at(&self, record: &Record, durable: bool) {
        let fact = record.fact().ok().flatten();
        let call_id = fact.as_ref().and_then(Fact::attempt).map(|(call, _)| call.to_owned());
        let kind = record.kind();
        *lock(&self.died) = Some(CrashPoint { record: record.seq(), kind, call_id, durable });
        self.waker.wake();
    }
}

impl Log for Process {
    fn append(&self, mut batch: Append) -> LogFuture<'_, Head> {
        Box::pin(async move {
            if self.died().is_some() {
                return future::pending().await;
            }
            // Counted over all runs of the log, so that it dies at each record of agents' runs too.
            let before = self.given.fetch_add(batch.records.len() as u64, Ordering::AcqRel);
            let place =
                self.dies.and_then(|at| usize::try_from(at.record.checked_sub(before + 1)?).ok());
            let Some((place, last)) =
                place.and_then(|place| Some((place, batch.records.get(place)?.clone())))
            else {
                return self.log.append(batch).await;
            };
            let durable = self.dies.is_some_and(|at| at.durable);
            batch.records.truncate(place + usize::from(durable));
            if !batch.records.is_empty() {
                self.log.append(batch).await?;
            }
            self.die_at(&last, durable);
            future::pending().await
        })
    }

    /// The earlier process is dead, so the lease is taken without waiting.
    fn take(&self, run: &str, owner: &str, term: Duration, _: Option<i64>) -> LogFuture<'_, Lease> {
        let (run, owner) = (run.to_owned(), owner.to_owned());
        Box::pin(async move {
            let held_until = self.log.run(&run).await?.and_then(|run| run.held_until);
            self.log.take(&run, &owner, term, held_until).await
        })
    }

    fn release(&self, lease: &Lease) {
        if self.died().is_none() {
            self.log.release(lease);
        }
    }

    forward_log!(self => self.log, except append, take, release);
}

/// What ran in the processes of a run.
#[derive(Default)]
pub(super) struct Ran(Mutex<RanState>);

#[derive(Default)]
struct RanState {
    /// The attempts that began, by the key of their call.
    begun: HashMap<String, HashSet<u32>>,
    /// The outcomes of calls when they first ran.
    outcomes: HashMap<String, ToolOutcome>,
    violation: Option<CrashViolation>,
}

impl Ran {
    /// The first thing that should not have happened.
    pub(super) fn violation(&self) -> Option<CrashViolation> {
        lock(&self.0).violation.clone()
    }

    /// Notes that an attempt begins, with these records in the log.
    fn begin(&self, tool: &Tool, context: &ToolContext, records: &[Record], reruns: bool) {
        use CrashViolationKind::{NotAnnounced, Repeated};
        let (call, attempt) = (&*context.call, context.attempt());
        let (is_announced, is_over) = recorded_of(records, call, attempt);
        let mut state = lock(&self.0);
        let attempts = state.begun.entry(context.idempotency_key()).or_default();
        let (is_first, is_new) = (attempts.is_empty(), attempts.insert(attempt));
        drop(state);
        let (kind, what) = if is_over {
            (Repeated, "a call with a recorded outcome was repeated")
        } else if !is_new {
            (Repeated, "an attempt was repeated")
        } else if !(is_first
            || reruns
            || tool.spec().idempotent
            || context.continuation().is_some())
        {
            (Repeated, "a tool that is not idempotent was run again")
        } else if !is_announced {
            (NotAnnounced, "a tool started unannounced")
        } else {
            return;
        };
        let what = format!("{what}: attempt {attempt} of call {}", call.id);
        self.report(CrashViolation::new(kind, what).of_tool(tool.name()));
    }

    /// Notes the outcome of an attempt.
    fn end(&self, tool: &Tool, context: &ToolContext, outcome: &ToolOutcome) {
        // The next attempt may succeed, and that is another outcome.
        if matches!(outcome, ToolOutcome::Error { transient: true, .. } | ToolOutcome::Later { .. })
        {
            return;
        }
        // So is that of a call which continues with an answer.
        let key = format!("{} {:?}", context.idempotency_key(), context.continuation());
        let first = lock(&self.0).outcomes.entry(key).or_insert_with(|| outcome.clone()).clone();
        if tool.spec().idempotent && first != *outcome {
            let what = format!(
                "a tool that is marked idempotent gave another result when call {} ran again\n    \
                 first: {}\n    then:  {}",
                context.call.id,
                json!(first),
                json!(outcome)
            );
            let kind = CrashViolationKind::NotIdempotent;
            self.report(CrashViolation::new(kind, what).of_tool(tool.name()));
        }
    }

    fn report(&self, violation: CrashViolation) {
        lock(&self.0).violation.get_or_insert(violation);
    }
}

/// Whether an attempt of a call of the last answer is announced in these records, and whether the call has its outcome.
fn recorded_of(records: &[Record], called: &ToolCall, number: u32) -> (bool, bool) {
    let (mut is_announced, mut is_over) = (false, false);
    for fact in records.iter().rev().filter_map(|record| record.fact().ok().flatten()) {
        match fact {
            // Other answers may have calls with the same id.
            Fact::AssistantCompleted { .. } => break,
            Fact::ToolScheduled { call_id, attempt, .. } => {
                is_announced |= call_id == called.id && attempt == number;
            }
            Fact::ToolFailed { resolution: Resolution::Retried, .. } => {}
            Fact::ToolCompleted { outcome: ToolOutcome::Later { .. }, .. } => {}
            // It continues with the answer.
            Fact::ToolCompleted { outcome: ToolOutcome::AskUser { opts, .. }, .. }
                if opts.contains_key(CONTINUE) => {}
            Fact::ToolCompleted { call_id, .. } | Fact::ToolFailed { call_id, .. } => {
                is_over |= call_id == called.id;
            }
            Fact::RunStarted { .. }
            | Fact::Resumed { .. }
            | Fact::UserMessage { .. }
            | Fact::TurnStarted { .. }
            | Fact::TurnLost { .. }
            | Fact::FinalizeStarted { .. }
            | Fact::FinalizeFailed { .. }
            | Fact::SideEffect { .. }
            | Fact::ContextTruncated { .. }
            | Fact::BudgetExceeded { .. }
            | Fact::Suspended(_)
            | Fact::Completed(_)
            | Fact::Failed(_)
            | Fact::Cancelled { .. }
            | Fact::Sealed(_)
            | Fact::Removed(_) => {}
        }
    }
    (is_announced, is_over)
}

/// An executor that notes what runs.
struct WatchedExecutor {
    inner: Arc<dyn ToolExecutor>,
    log: MemoryLog,
    ran: Arc<Ran>,
    /// Whether calls of tools that are not idempotent may run again.
    reruns: bool,
    varying: Vec<String>,
}

impl ToolExecutor for WatchedExecutor {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn execute(
        &self,
        tool: &Tool,
        arguments: Value,
        context: ToolContext,
    ) -> BoxFuture<Result<ToolOutcome>> {
        let (inner, log, ran) = (Arc::clone(&self.inner), self.log.clone(), Arc::clone(&self.ran));
        let varies = self.varying.iter().any(|name| name == tool.name());
        let (tool, reruns) = (tool.clone(), self.reruns);
        Box::pin(async move {
            ran.begin(&tool, &context, &log.read(RUN, 1, usize::MAX).await?, reruns);
            let outcome = inner.execute(&tool, arguments, context.clone()).await?;
            if !varies {
                ran.end(&tool, &context, &outcome);
            }
            Ok(outcome)
        })
    }
}

/// What the model said when it was first called in each turn.
#[derive(Clone, Default)]
pub(super) struct Answers(Arc<Mutex<Remembered>>);

#[derive(Default)]
struct Remembered {
    answers: Vec<Vec<Result<Event>>>,
    /// Why the call after these was refused, if it was.
    refused: Option<Error>,
}

/// An adapter that calls the model once for each turn, in all runs together.
struct RememberingAdapter {
    inner: Arc<dyn Adapter>,
    remembered: Answers,
    before: usize,
    answers: Arc<AtomicUsize>,
}

impl Adapter for RememberingAdapter {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn preflight(&self, request: &Request, call: &ModelCall) -> Result<()> {
        self.inner.preflight(request, call)
    }

    fn open(self: Arc<Self>, request: Request, call: ModelCall) -> BoxFuture<Result<ModelStream>> {
        // A model call inside a tool is the tool's effect.
        if call.run_id.as_deref() != Some(RUN) {
            return Arc::clone(&self.inner).open(request, call);
        }
        Box::pin(async move {
            let turn = self.before + self.answers.load(Ordering::Acquire);
            let (remembered, refused) = {
                let all = lock(&self.remembered.0);
                (all.answers.get(turn).cloned(), all.refused.clone())
            };
            let answer = match (remembered, refused) {
                (Some(events), _) => Box::pin(stream::iter(events)),
                (None, Some(error)) => return Err(error),
                (None, None) => match Arc::clone(&self.inner).open(request, call).await {
                    Ok(answer) => answer,
                    Err(error) => {
                        lock(&self.remembered.0).refused = Some(error.clone());
                        return Err(error);
                    }
                },
            };
            let (remembered, answers) = (self.remembered.clone(), Arc::clone(&self.answers));
            let heard = Vec::new();
            let answer = Answer { inner: answer, turn, heard, is_over: false, remembered, answers };
            Ok(Box::pin(answer) as ModelStream)
        })
    }

    fn needs_structured_finalize(&self, request: &Request) -> bool {
        self.inner.needs_structured_finalize(request)
    }

    fn schema_fit(&self) -> Option<u32> {
        self.inner.schema_fit()
    }

    fn default_retry(&self) -> RetryPolicy {
        self.inner.default_retry()
    }

    fn first_event_timeout(&self, call: &ModelCall) -> Option<Duration> {
        self.inner.first_event_timeout(call)
    }
}

/// An answer of the model that is remembered as far as it was polled.
struct Answer {
    inner: ModelStream,
    turn: usize,
    heard: Vec<Result<Event>>,
    is_over: bool,
    remembered: Answers,
    answers: Arc<AtomicUsize>,
}

impl Stream for Answer {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = ready!(self.inner.as_mut().poll_next(cx));
        let ends = match &item {
            Some(Ok(event)) => matches!(event, Event::MessageCompleted { .. }),
            // A call that fails with its first event may be retried.
            Some(Err(_)) => !self.heard.is_empty(),
            None => true,
        };
        if ends && !self.is_over {
            self.is_over = true;
            self.answers.fetch_add(1, Ordering::AcqRel);
        }
        self.heard.extend(item.clone());
        Poll::Ready(item)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let mut remembered = lock(&self.remembered.0);
        if remembered.answers.len() != self.turn {
            return;
        }
        match &mut self.heard[..] {
            [Err(error)] => remembered.refused = Some(error.clone()),
            [] if !self.is_over => {}
            _ => {
                remembered.answers.push(std::mem::take(&mut self.heard));
                remembered.refused = None;
            }
        }
    }
}

/// A world in which time and chance are the same in all runs. Ids are fresh.
pub(super) struct StillWorld {
    pub(super) inner: Arc<dyn World>,
    pub(super) now: Arc<OnceLock<SystemTime>>,
}

impl World for StillWorld {
    fn now(&self) -> SystemTime {
        *self.now.get_or_init(|| self.inner.now())
    }

    fn random(&self) -> u64 {
        4
    }

    fn new_id(&self) -> String {
        self.inner.new_id()
    }

    fn new_run_id(&self) -> RunId {
        self.inner.new_run_id()
    }

    fn run_id_at(&self, place: &str, reached: SystemTime) -> RunId {
        self.inner.run_id_at(place, reached)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use mynah_adapters::scripted::{Script, Scripted};
    use mynah_step::{SystemWorld, Tool};

    use super::*;
    use crate::Engine;

    #[tokio::test]
    async fn what_runs_without_an_announcement_or_twice_is_reported() -> Result<()> {
        let log = MemoryLog::new();
        let tool = Tool::new("pay", "", json!({}));
        let call = Script::new().tool_call("c0", "pay", json!({})).call_tools();
        let engine = Engine::new(Scripted::play([call, Script::new().text("done").stop()]));
        let engine = engine.tool(tool.clone().handler(async |_, _| "paid"));
        engine.chat("go").record(&log).run_id(RUN).await?;
        let records = log.read(RUN, 1, usize::MAX).await?;
        let until = |kind: &str| {
            let last = records.iter().position(|record| record.kind().as_str() == kind);
            &records[..=last.unwrap_or_default()]
        };
        let scheduled = until("tool_scheduled");
        let context = |id: &str| {
            let call = ToolCall::from_value(id, "pay", json!({}));
            ToolContext::new(call, Arc::new(SystemWorld)).in_run(Some(RUN.into()), 0)
        };
        let reported = |ran: &Ran| ran.violation().map(|found| (found.kind(), found.to_string()));
        let begin = |records: &[Record], times: usize| {
            let ran = Ran::default();
            (0..times).for_each(|_| ran.begin(&tool, &context("c0"), records, false));
            reported(&ran)
        };
        assert_eq!(begin(scheduled, 1), None);
        let is = |found: Option<(CrashViolationKind, String)>, kind, what: &str| {
            let (found, text) = found.unwrap_or((CrashViolationKind::NotResumed, String::new()));
            assert!(found == kind && text.contains(what), "{found:?} {text}");
        };
        is(begin(until("assistant_completed"), 1), CrashViolationKind::NotAnnounced, "unannounced");
        is(begin(until("tool_completed"), 1), CrashViolationKind::Repeated, "recorded outcome");
        is(begin(scheduled, 2), CrashViolationKind::Repeated, "an attempt was repeated");
        let ran = Ran::default();
        ran.begin(&tool, &context("c0"), scheduled, false);
        lock(&ran.0).begun.values_mut().for_each(|attempts| *attempts = HashSet::from([7]));
        ran.begin(&tool, &context("c0"), scheduled, false);
        is(reported(&ran), CrashViolationKind::Repeated, "is not idempotent");
        Ok(())
    }
}
