//! A run whose process dies at every record, and what must hold when another process resumes it.

mod process;
mod simulated;
mod violation;

use std::{
    future::{IntoFuture, poll_fn},
    panic::Location,
    pin::{Pin, pin},
    sync::{Arc, OnceLock},
    task::Poll,
};

use mynah_data::{AdapterReason, HaltReason, Result, Thread, ToolCall};
use mynah_log::{Extent, Fact, Kind, Log, MemoryLog, OnUncertain, RunFilter};
use mynah_step::RecordedFact;
use serde::Serialize;
use serde_json::{Value, json};

pub use self::violation::{CrashPoint, CrashViolation, CrashViolationKind};
use self::{
    process::{Answers, Process, Ran, StillWorld},
    simulated::{Simulated, differing},
    violation::{HALT_WHEN, Setting},
};
use crate::{
    Decision, Engine, Options, Resume,
    loaded::Loaded,
    prepare::{Input, Origin, prepare},
    stream::EventStream,
    subagent::AgentCalls,
    testing::difference,
};

/// The id of the simulated run: the same in each, so that the keys of its calls are.
const RUN: &str = "crash_everywhere";

/// Records of runs that stopped while the model answered.
const STOPS: [Kind; 4] =
    [Kind::BudgetExceeded, Kind::Cancelled, Kind::Failed, Kind::FinalizeFailed];

type Closure<'a, T> = Box<dyn Fn() -> T + Send + Sync + 'a>;

/// What decides about a call that the run waits for.
type Decide<'a> = Box<dyn Fn(&ToolCall) -> Decision + Send + Sync + 'a>;

/// Lets the process of a chat die at each of its records, resumes it, and checks the result of the
/// resumed run.
///
/// The closure makes the engine of one process, as the program does when it starts. The chat is performed once in a
/// [`MemoryLog`], and then once for every moment at which its process can die: before and after each record. A process that dies before a
/// record has done what that record would have reported, as a tool whose outcome is lost. The next process has a new engine and the records.
///
/// ```
/// use mynah::{Engine, Tool, testing::{Script, Scripted, crash_everywhere}};
/// use serde_json::json;
///
/// fn engine() -> Engine {
///     let model = Scripted::play([
///         Script::new().tool_call("c0", "price", json!({"dish": "soup"})).call_tools(),
///         Script::new().text("Two euros.").stop(),
///     ]);
///     let price = Tool::new("price", "What a dish costs", json!({})).idempotent(3);
///     Engine::new(model).tool(price.handler(async |_, _| json!({"euros": 2})))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// crash_everywhere(engine, "What is the soup?").await;
/// # }
/// ```
///
/// Of every run it checks:
///
/// - The conversation and the reason of its end are those of a run without a crash. So are those of a second run without a crash.
/// - No tool call and no model call with a recorded outcome is repeated, and a tool starts only after its announcement is recorded.
/// - A call with an unknown outcome runs again if its tool is [`idempotent`](crate::Tool::idempotent), with the same result. Otherwise the run waits
///   for a person ([`HaltReason::UncertainTools`]), unless [`on_uncertain`](CrashEverywhere::on_uncertain) says what to do. If it is a call of
///   an [agent](crate::Engine::as_tool), the run asks about it, and the same policy answers.
/// - A model call whose answer was lost counts in the budget. A run that ends earlier because of it is compared up to there.
/// - What [`observe`](CrashEverywhere::observe) returns is the same, if set: effects that the conversation does not show.
/// - The records verify, and a replay that answers from them is equal.
///
/// Tools run for real in every run. **The model is called in the first run only**: later calls get
/// the recorded answers of the same turn, so that any model is deterministic and [`Scripted`](super::Scripted) need not know how far the run is.
/// [`now`](crate::ToolContext::now) returns one time and [`random`](crate::ToolContext::random) one number in all runs; side effects are executed.
///
/// A run that waits for a person needs [`approve_all`](CrashEverywhere::approve_all), [`decide`](CrashEverywhere::decide) or
/// [`answer`](CrashEverywhere::answer) to continue; [`may_wait`](CrashEverywhere::may_wait) lets it end there.
///
/// Two things are not covered, because the simulated processes share a real one. A task that a tool spawns does not die with its process, so do
/// effects in the tool's own future. And what is in a `static` outlives its process: keep what a process forgets in the engine, or reset it in
/// [`before_each`](CrashEverywhere::before_each).
///
/// A chat of `n` records has `2 n` crash points. If its tools sleep, `#[tokio::test(start_paused = true)]` skips the time.
///
/// # Panics
/// Awaited, at the first violation: with its record, the tool and what to do. [`CrashEverywhere::check`] returns it.
#[track_caller]
pub fn crash_everywhere<'a>(
    engine: impl Fn() -> Engine + Send + Sync + 'a,
    input: impl Into<Thread>,
) -> CrashEverywhere<'a> {
    CrashEverywhere {
        engine: Box::new(engine),
        input: input.into(),
        options: Options::new(),
        crashes: 1,
        answer: None,
        decide: None,
        on_uncertain: OnUncertain::Suspend,
        may_wait: false,
        before_each: None,
        observe: None,
        varying: Vec::new(),
        answers: Answers::default(),
        now: Arc::default(),
        caller: Location::caller(),
    }
}

/// A chat whose process dies everywhere; see [`crash_everywhere`].
#[must_use = "nothing is checked unless it is awaited"]
pub struct CrashEverywhere<'a> {
    engine: Closure<'a, Engine>,
    input: Thread,
    options: Options,
    crashes: usize,
    answer: Option<String>,
    decide: Option<Decide<'a>>,
    on_uncertain: OnUncertain,
    may_wait: bool,
    before_each: Option<Closure<'a, ()>>,
    observe: Option<Closure<'a, Value>>,
    varying: Vec<String>,
    answers: Answers,
    now: Arc<OnceLock<std::time::SystemTime>>,
    caller: &'static Location<'static>,
}

mynah_data::partial_debug! { CrashEverywhere<'a> { input, crashes, on_uncertain, varying } }

/// What was tested when no violation was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CrashReport {
    /// The records of the run without a crash.
    pub records: u64,
    /// The runs in which a process died.
    pub crashed: usize,
    /// Those of them that wait for the outcome of a tool that is not idempotent.
    pub uncertain: usize,
}

impl<'a> CrashEverywhere<'a> {
    /// Sets the options of the chat.
    pub fn options(mut self, options: Options) -> Self {
        self.options = self.options.overlay(options);
        self
    }

    /// Answers every question of the run.
    ///
    /// ```
    /// use mynah::{Engine, Tool, ToolOutcome, testing::{Script, Scripted, crash_everywhere}};
    /// use serde_json::json;
    /// # fn engine() -> Engine {
    /// #     let ask = Tool::new("ask", "", json!({})).idempotent(1).handler(async |_, _| ToolOutcome::ask("How many?"));
    /// #     let call = Script::new().tool_call("c0", "ask", json!({})).call_tools();
    /// #     Engine::new(Scripted::play([call, Script::new().text("Two it is.").stop()])).tool(ask)
    /// # }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    ///
    /// crash_everywhere(engine, "order").answer("two").await;
    /// # }
    /// ```
    pub fn answer(mut self, text: impl Into<String>) -> Self {
        self.answer = Some(text.into());
        self
    }

    /// Approves every call that asks for approval, also those of [agents](crate::Engine::as_tool).
    pub fn approve_all(self) -> Self {
        self.decide(|_| Decision::Approve)
    }

    /// Permits that the run without a crash waits for a person at its end, and compares the runs up to there. Otherwise that is a violation,
    /// because what follows would not be tested.
    pub fn may_wait(mut self) -> Self {
        self.may_wait = true;
        self
    }

    /// Decides about every call that asks for approval: approves it, rejects it or gives its result.
    ///
    /// ```
    /// use mynah::{Decision, Engine, Tool, testing::{Script, Scripted, crash_everywhere}};
    /// use serde_json::json;
    /// # fn engine() -> Engine {
    /// #     let pick = Tool::new("pick", "", json!({})).manual();
    /// #     let call = Script::new().tool_call("c0", "pick", json!({})).call_tools();
    /// #     Engine::new(Scripted::play([call, Script::new().text("Red.").stop()])).tool(pick)
    /// # }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    ///
    /// crash_everywhere(engine, "Pick one").decide(|_| Decision::Result(json!("red"))).await;
    /// # }
    /// ```
    pub fn decide(mut self, decide: impl Fn(&ToolCall) -> Decision + Send + Sync + 'a) -> Self {
        self.decide = Some(Box::new(decide));
        self
    }

    mynah_data::setters! { self => self;
        /// Sets what happens with a call whose outcome is unknown, if its tool is not idempotent.
        ///
        /// By default the run waits for a person, and its conversation up to there is compared. With
        /// [`OnUncertain::Rerun`] it must end in the same way. With [`OnUncertain::Fail`] the model
        /// reads that the outcome is unknown; all other messages are compared.
        on_uncertain(policy: OnUncertain) = policy;

        /// Sets how many processes of one run die, one after the other; by default one. Two take time that grows with the square of the records.
        crashes(crashes: usize) = crashes;

        /// Prepares the world before each run: empties the table that the tools write to, restarts the service that they call.
        before_each(prepare: impl Fn() + Send + Sync + 'a) = Some(Box::new(prepare));
    }

    /// Compares the world after each run: rows of a table, calls that a fake service got. A run that waits for the outcome of a tool is not
    /// compared.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use mynah::{Engine, Tool, testing::{Script, Scripted, crash_everywhere}};
    /// use serde_json::json;
    /// # fn engine(sent: &Arc<Mutex<Vec<String>>>) -> Engine {
    /// #     let sent = Arc::clone(sent);
    /// #     let send = Tool::new("send", "", json!({})).idempotent(3).handler(move |_, context| {
    /// #         let (sent, key) = (Arc::clone(&sent), context.idempotency_key());
    /// #         async move {
    /// #             let mut sent = sent.lock().unwrap();
    /// #             if !sent.contains(&key) { sent.push(key) }
    /// #             "sent"
    /// #         }
    /// #     });
    /// #     let call = Script::new().tool_call("c0", "send", json!({})).call_tools();
    /// #     Engine::new(Scripted::play([call, Script::new().text("done").stop()])).tool(send)
    /// # }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    ///
    /// let mails = Arc::new(Mutex::new(Vec::new()));
    /// crash_everywhere(|| engine(&mails), "Tell Ada")
    ///     .before_each(|| mails.lock().unwrap().clear())
    ///     .observe(|| mails.lock().unwrap().len())
    ///     .await;
    /// # }
    /// ```
    pub fn observe<T: Serialize>(mut self, look: impl Fn() -> T + Send + Sync + 'a) -> Self {
        self.observe = Some(Box::new(move || {
            serde_json::to_value(look()).unwrap_or_else(|error| json!(error.to_string()))
        }));
        self
    }

    /// Names a tool whose result may differ from run to run, as the weather does: its results are not compared.
    pub fn varying(mut self, tool: impl Into<String>) -> Self {
        self.varying.push(tool.into());
        self
    }

    /// Returns what was tested, or the first violation.
    ///
    /// # Errors
    /// The first violation.
    pub async fn check(self) -> std::result::Result<CrashReport, Box<CrashViolation>> {
        self.tested().await.map_err(|violation| violation.advised(&self.setting()).into())
    }

    /// What may be the cause of a violation.
    fn setting(&self) -> Setting {
        let engine = (self.engine)();
        let options = engine.0.options.clone().overlay(self.options.clone());
        let functions = [
            (options.approval.is_some(), "the approval function"),
            (options.halt_when.is_some(), HALT_WHEN),
            (options.on_event.is_some(), "on_event"),
        ];
        let functions = functions.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name);
        let tools = engine.resolve_tools(&self.options);
        let idempotent = tools.iter().filter(|tool| tool.spec().idempotent);
        Setting {
            functions: functions.collect(),
            idempotent: idempotent.map(|tool| tool.name().to_owned()).collect(),
            resets: self.before_each.is_some(),
            reruns: self.on_uncertain == OnUncertain::Rerun,
        }
    }

    async fn tested(&self) -> std::result::Result<CrashReport, Box<CrashViolation>> {
        let Some(reference) = self.simulate(&[]).await? else { return Ok(CrashReport::default()) };
        if let Some(why) = self.untested(&reference) {
            return Err(CrashViolation::new(CrashViolationKind::NotTested, why).into());
        }
        self.examine(&reference, None).await?;
        if let Some(second) = self.simulate(&[]).await? {
            self.examine(&second, Some(&reference)).await?;
        }
        let records = reference.records.len() as u64;
        let mut report = CrashReport { records, ..CrashReport::default() };
        self.explore(&mut Vec::new(), 0, &reference, &mut report).await.map(|()| report)
    }

    /// Why the check cannot fail for this agent.
    fn untested(&self, reference: &Simulated) -> Option<String> {
        let tools = (self.engine)().resolve_tools(&self.options);
        let is_unknown = |name: &&String| !tools.iter().any(|tool| tool.name() == *name);
        if let Some(name) = self.varying.iter().find(is_unknown) {
            return Some(format!("varying({name:?}) names no tool of the engine"));
        }
        let error = reference.result.error();
        match error.filter(|error| error.reason() == AdapterReason::NoScriptedResponse.as_str()) {
            Some(error) => Some(format!("the model has too few scripts for the run: {error}")),
            None if !self.may_wait && reference.waits().is_some() => reference.waits(),
            None => (self.crashes == 0).then(|| "crashes(0) lets no process die".to_owned()),
        }
    }

    /// Lets a process die at each record after the first `survived`, where others died before it.
    fn explore<'s>(
        &'s self,
        died: &'s mut Vec<Moment>,
        survived: u64,
        reference: &'s Simulated,
        report: &'s mut CrashReport,
    ) -> Pin<Box<dyn Future<Output = Checked> + Send + 's>> {
        Box::pin(async move {
            if died.len() == self.crashes {
                return Ok(());
            }
            for record in survived + 1.. {
                for durable in [false, true] {
                    died.push(Moment { record, durable });
                    let Some(run) = self.simulate(died).await? else {
                        died.pop();
                        return Ok(());
                    };
                    self.examine(&run, Some(reference)).await?;
                    report.crashed += 1;
                    report.uncertain += usize::from(run.is_uncertain());
                    let survived = if durable { record } else { record - 1 };
                    self.explore(died, survived, reference, report).await?;
                    died.pop();
                }
            }
            Ok(())
        })
    }

    /// Performs the run in processes that die at these moments, and a last one that does not. None if a moment never came.
    async fn simulate(
        &self,
        died: &[Moment],
    ) -> std::result::Result<Option<Simulated>, Box<CrashViolation>> {
        if let Some(prepare) = &self.before_each {
            prepare();
        }
        let (log, ran) = (MemoryLog::new(), Arc::new(Ran::default()));
        let mut crashes = Vec::new();
        for dies in died.iter().copied().map(Some).chain([None]) {
            let before = answered(&records(&log).await);
            let runs = log.runs(RunFilter::new().limit(usize::MAX)).await.unwrap_or_default();
            let given = runs.runs.iter().map(|run| run.records).sum();
            let process = Process::new((log.clone(), given), dies, Arc::clone(&ran), before);
            let (engine, options) = self.equip(&process);
            let ended = {
                let process_log: Arc<dyn Log> = process.clone();
                let mut live = pin!(self.perform(&engine, &process_log, &options));
                poll_fn(|cx| {
                    process.watch(cx);
                    match live.as_mut().poll(cx) {
                        Poll::Ready(ended) => Poll::Ready(Some(ended)),
                        Poll::Pending if process.died().is_some() => Poll::Ready(None),
                        Poll::Pending => Poll::Pending,
                    }
                })
                .await
            };
            crashes.extend(process.died());
            let found = |kind, what: String| CrashViolation::new(kind, what).after(&crashes);
            let records = records(&log).await;
            if let Some(violation) = ran.violation() {
                return Err(violation.after(&crashes).at_last_crash(&records).into());
            }
            // A process that died may have lost answers, and one that was stopped has the last one in another record.
            let stopped = records.iter().any(|kept| STOPS.iter().any(|kind| kept.is(*kind)));
            let expected = answered(&records) - before + usize::from(stopped);
            if ended.is_some() && process.answers() > expected {
                let what = "a model call with a recorded answer was repeated".to_owned();
                let violation = found(CrashViolationKind::Repeated, what);
                return Err(violation.at_last_crash(&records).into());
            }
            match ended {
                Some(Err(error)) => {
                    let is_new = records.is_empty() && died.is_empty();
                    let kind = match is_new {
                        true => CrashViolationKind::NotTested,
                        false => CrashViolationKind::NotResumed,
                    };
                    let what = if is_new { "started" } else { "continued" };
                    let what = format!("the run could not be {what}: {}", difference(&error));
                    let violation = found(kind, what);
                    return Err(violation.at_error(&records, &error).into());
                }
                Some(Ok(())) if dies.is_some() => return Ok(None),
                Some(Ok(())) | None => {}
            }
        }
        let world = self.observe.as_ref().map(|look| look());
        match Loaded::read(&log, RUN).await {
            Ok(run) => Ok(Some(Simulated::new(log, run, crashes, world, self.on_uncertain))),
            Err(error) => {
                let what = format!("the records do not verify: {error}");
                let violation = CrashViolation::new(CrashViolationKind::NotVerified, what);
                Err(violation.after(&crashes).at_error(&records(&log).await, &error).into())
            }
        }
    }

    /// An engine for a process, whose world and effects are watched, and the options of its calls.
    fn equip(&self, process: &Arc<Process>) -> (Engine, Options) {
        let engine = (self.engine)();
        let mut options = Options::new().request_id(RUN).overlay(self.options.clone());
        let reruns = self.on_uncertain == OnUncertain::Rerun;
        let own = options.tool_executor.as_ref().or(engine.0.options.tool_executor.as_ref());
        options.tool_executor = Some(process.executor(own.cloned(), reruns, &self.varying));
        let engine = engine.with(|parts| {
            let (inner, now) = (Arc::clone(&parts.world), Arc::clone(&self.now));
            parts.world = Arc::new(StillWorld { inner, now });
            parts.adapter = parts
                .adapter
                .as_ref()
                .map(|adapter| process.adapter(Arc::clone(adapter), self.answers.clone()));
        });
        (engine, options)
    }

    /// Starts or continues the run, until it ends or waits for something that has no decision.
    async fn perform(&self, engine: &Engine, log: &Arc<dyn Log>, options: &Options) -> Result<()> {
        loop {
            let mut stream = match log.head(RUN).await? {
                None => {
                    let mut options = options.clone();
                    options.log = Some(Arc::clone(log));
                    let origin = Origin { run_id: Some(RUN.into()), ..Origin::default() };
                    let input = Input::Thread(self.input.clone());
                    EventStream::new(prepare(engine, input, options, Extent::Chat, origin))
                }
                Some(_) => match self.decided(engine, log, &Loaded::read(log, RUN).await?)? {
                    Some(resume) => resume.options(options.clone()).stream().started().await?,
                    None => return Ok(()),
                },
            };
            if let Err(error) = stream.drain(drop).await {
                let run = log.run(RUN).await?;
                // A run that failed has its end like any other.
                return if run.is_some_and(|run| run.seal.is_some()) { Ok(()) } else { Err(error) };
            }
        }
    }

    /// How the run continues; none if it has ended, or waits for something that has no decision.
    fn decided(&self, engine: &Engine, log: &Arc<dyn Log>, run: &Loaded) -> Result<Option<Resume>> {
        let resume = || engine.resume(log, RUN).on_uncertain(self.on_uncertain);
        let decide = |calls: &[&ToolCall]| {
            let decide = self.decide.as_ref()?;
            Some(calls.iter().fold(resume(), |resume, call| resume.decide(&*call.id, decide(call))))
        };
        Ok(match run.last() {
            Some(Fact::Sealed(_)) => None,
            Some(Fact::Suspended(end)) => match end.reason {
                HaltReason::AskUser => {
                    let answer = match AgentCalls::asked(&end.metadata) {
                        Some(AgentCalls { may_have_run: true, .. }) => match self.on_uncertain {
                            OnUncertain::Rerun => Some("yes".to_owned()),
                            OnUncertain::Fail => Some("no, it may have run".to_owned()),
                            _ => None,
                        },
                        Some(AgentCalls { calls, .. }) => {
                            let decided = decide(&calls.iter().collect::<Vec<_>>());
                            let decided = decided.map(|decided| decided.as_answer());
                            decided.or_else(|| self.answer.clone())
                        }
                        None => self.answer.clone(),
                    };
                    answer.map(|answer| resume().answer(answer))
                }
                HaltReason::ManualToolCalls => {
                    let calls = end.waiting_calls(run.facts());
                    decide(&calls.iter().map(|call| &**call).collect::<Vec<_>>())
                }
                HaltReason::UncertainTools if self.on_uncertain != OnUncertain::Suspend => {
                    Some(resume())
                }
                // The clock of the run stands still.
                HaltReason::Sleeping => Some(resume().woken()),
                _ => None,
            },
            _ => Some(resume()),
        })
    }

    async fn examine(&self, run: &Simulated, reference: Option<&Simulated>) -> Checked {
        if let Some(reference) = reference {
            self.compare(run, reference)?;
        }
        let replay = (self.engine)().replay(&run.log, RUN).options(self.options.clone());
        if let Err(error) = replay.await {
            let what = format!("a replay differs: {}", difference(&error));
            let violation = CrashViolation::new(CrashViolationKind::ReplayDiffers, what);
            return Err(violation.after(&run.crashes).at_error(&run.records, &error).into());
        }
        Ok(())
    }

    /// Compares a run with the one without a crash.
    fn compare(&self, run: &Simulated, reference: &Simulated) -> Checked {
        let found = |kind, what: String| CrashViolation::new(kind, what).after(&run.crashes);
        let (expected, produced) = (self.said(reference, run), self.said(run, run));
        let mut unmatched = expected.iter();
        for (place, said) in produced.iter().enumerate() {
            let wanted = match run.is_shorter() {
                true => unmatched.find(|wanted| wanted.content == said.content),
                false => unmatched.next().filter(|wanted| wanted.content == said.content),
            };
            if wanted.is_none() {
                let without = expected.get(place).map_or("nothing", |said| &said.content);
                let when = match run.crashes.is_empty() {
                    true => "in a second run without a crash",
                    false => "after the crash",
                };
                let what = format!(
                    "message {place} of the conversation differs {when}\n    first: {without}\n    then:  {}",
                    said.content
                );
                let violation = found(CrashViolationKind::ResultDiffers, what);
                return Err(violation.at_message(&run.records, said).into());
            }
        }
        if run.is_shorter() {
            return Ok(());
        }
        let (first, then) = (&reference.result.halted_reason, &run.result.halted_reason);
        let ends_alike = first == then && unmatched.next().is_none();
        let differs = match ends_alike {
            false => {
                Some(format!("the run ended otherwise\n    first: {first}\n    then:  {then}"))
            }
            // Steps show that an agent's call was asked about.
            true if !self.varying.is_empty() || run.asked_about_outcome() => None,
            true => differing(&reference.result, &run.result),
        };
        if let Some(what) = differs {
            let violation = found(CrashViolationKind::ResultDiffers, what);
            return Err(violation.at_record(&run.records, run.records.len() as u64).into());
        }
        if run.world != reference.world {
            let [first, then] = [reference, run].map(|run| json!(run.world));
            let what = format!(
                "what was observed after the run differs\n    first: {first}\n    then:  {then}"
            );
            let violation = found(CrashViolationKind::WorldDiffers, what);
            return Err(violation.at_last_crash(&run.records).into());
        }
        Ok(())
    }

    /// The messages of a run that are compared, if the outcomes that are unknown in another are left out.
    fn said(&self, run: &Simulated, doubtful: &Simulated) -> Vec<Said> {
        let (mut tools, mut said) = (Vec::new(), Vec::new());
        for message in run.result.thread.messages.iter() {
            tools.extend(message.tool_calls().map(|call| (call.id.clone(), call.name.clone())));
            let id = message.tool_call_id();
            let named = |(id, _): &&(String, String)| message.tool_call_id() == Some(id);
            let tool = tools.iter().rfind(named).map(|(_, name)| name.clone());
            // Questions about a call and the answer of an agent that took over name their call.
            let named = ["tool_call_id", "handoff_tool_call_id"]
                .iter()
                .find_map(|key| message.metadata().get(*key)?.as_str());
            let about = id.or(named);
            if about.is_some_and(|id| doubtful.in_doubt.iter().any(|other| other == id)) {
                continue;
            }
            let varies = tool.as_ref().is_some_and(|tool| self.varying.contains(tool));
            let content = match varies {
                true => text(&id),
                // Members are compared in their order, as the model reads them.
                false => text(message),
            };
            said.push(Said { content, call_id: id.map(str::to_owned), tool });
        }
        if run.is_spent() {
            // The pass that formats the answer comes earlier, or the budget cut the last answer off.
            let nudge = run.finalizes().and_then(|(_, nudge)| nudge).map(text);
            match nudge.and_then(|nudge| said.iter().rposition(|said| said.content == nudge)) {
                Some(place) => said.truncate(place),
                None => drop(said.pop_if(|said| said.call_id.is_none())),
            }
        }
        said
    }
}

impl<'a> IntoFuture for CrashEverywhere<'a> {
    type Output = CrashReport;
    type IntoFuture = Pin<Box<dyn Future<Output = CrashReport> + Send + 'a>>;

    #[expect(clippy::panic, reason = "an assertion reports by panicking")]
    fn into_future(self) -> Self::IntoFuture {
        let caller = self.caller;
        Box::pin(async move {
            match self.check().await {
                Ok(report) => report,
                Err(violation) => panic!("at {caller}: {violation}"),
            }
        })
    }
}

type Checked = std::result::Result<(), Box<CrashViolation>>;

/// When a process dies: before a record is durable or after it.
#[derive(Clone, Copy, Debug)]
struct Moment {
    /// Counted over all runs of the log.
    record: u64,
    durable: bool,
}

/// A message that is compared, and the tool that it is from.
struct Said {
    content: String,
    call_id: Option<String>,
    tool: Option<String>,
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

async fn records(log: &MemoryLog) -> Vec<RecordedFact> {
    let records = log.read(RUN, 1, usize::MAX).await.unwrap_or_default();
    records.iter().filter_map(|record| RecordedFact::read(record).ok().flatten()).collect()
}

fn answered(records: &[RecordedFact]) -> usize {
    let is_answer = |kept: &&RecordedFact| match kept.is(Kind::ContextTruncated) {
        true => matches!(kept.fact(), Fact::ContextTruncated { summary: Some(_), .. }),
        false => kept.is(Kind::AssistantCompleted),
    };
    records.iter().filter(is_answer).count()
}
