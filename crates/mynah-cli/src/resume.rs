//! `mynah resume`: resumes a run that has no end.

mod ending;
mod flags;

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, builder::NonEmptyStringValueParser};
use futures_util::StreamExt as _;
use mynah::{
    ChatResult, Engine, Error, ErrorKind, Event, EventStream, HaltReason, LogReason, Message,
    Options, RecordedCall, Resume, RunId, SessionReason,
    log::{About, End, Extent, Fact, Hash, Log, RunStatus, RunSummary},
    recorded_call,
};
use mynah_agent::answer::misfit;
use serde_json::{Value, json};

pub(crate) use self::flags::limit;
use self::flags::{Policy, digest, rejection, tool_result};
use crate::{
    Failure, LogArgs,
    agent::{self, VarArgs},
    event_printer::EventPrinter,
    generate::{failed, remark},
    ledger::Ledger,
    model::{CallArgs, Tries, cannot_go_on, script},
    play,
    replay::write_fields,
    runtime,
    screen::{Followed, Screen, Stop},
    store::{self, LogLocation},
    text::quoted,
    unless_interrupted,
    waiting::Waiting,
    written,
};

pub(crate) const EXAMPLES: &str = "An agent is the agent file (.toml) that began the run, or a scenario. A run without tools needs none: the model that answered it continues. In a terminal, what the run waits for is asked in place. Give --base-url, --api-key-env and --dotenv again if the run was started with them.

Examples:
  mynah resume last                        continue a model call that was interrupted
  mynah resume last --agent agent.toml     continue after a crash, or after `mynah fork last --at 5`
  mynah resume last --agent agent.toml --answer two
                                           answer a question
  mynah resume last --agent agent.toml 'And in Rome?'
                                           add a message, after a crash or `mynah fork`
  mynah resume last --agent agent.toml --tool-result 'c1={\"celsius\": 21}'
                                           give the result of a tool call
  mynah resume last --agent agent.toml --approve c1 --reject 'c2=too much'
                                           run one call and refuse the other
  mynah resume last --agent agent.toml --approve-with 'c1={\"euros\": 7}'
                                           run a call with other arguments
  mynah resume last --agent agent.toml --on-uncertain rerun
                                           run tools again whose outcome is unknown
  mynah resume last --agent agent.toml --budget turns=20
                                           continue a run that spent its budget, with a larger one

Exit codes: 0 the run is done; 1 it failed or was changed, or its answer does not fit the schema; 2 wrong usage; 3 it waits; 4 the log or server cannot be used, or another process holds the run; 130 interrupted, and the run can be resumed.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// Run id, the beginning of one, or `last`.
    run: String,
    /// Answer to the pending question, or the next message of a run that does not wait.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    message: Option<String>,
    /// Agent to continue with: an agent file (.toml) or a scenario [default: the model that answered the run].
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["model", "base_url", "exact_base_url", "api_key_env", "dotenv", "catalog"])]
    agent: Option<PathBuf>,
    #[command(flatten)]
    vars: VarArgs,
    /// Model to continue with [default: the model that answered the run].
    #[arg(long, short, value_name = "ADAPTER:MODEL")]
    model: Option<String>,
    #[command(flatten)]
    call: CallArgs,
    /// Answer the pending question. Fails if there is none.
    #[arg(long, value_name = "TEXT", conflicts_with = "message", value_parser = NonEmptyStringValueParser::new())]
    answer: Option<String>,
    /// Give the result of a pending tool call. Repeatable.
    #[arg(long = "tool-result", value_name = "ID=JSON", value_parser = tool_result)]
    tool_results: Vec<(String, Value)>,
    /// Approve a pending tool call: it runs. Repeatable.
    #[arg(long, value_name = "ID")]
    approve: Vec<String>,
    /// Run a pending tool call with other arguments. Repeatable.
    #[arg(long, value_name = "ID=JSON", value_parser = tool_result)]
    approve_with: Vec<(String, Value)>,
    /// Run a pending tool call whose tool changed since the run asked, if it has this digest. Repeatable.
    #[arg(long, value_name = "ID=DIGEST", value_parser = digest)]
    approve_digest: Vec<(String, Hash)>,
    /// Reject a pending tool call, with a reason for the model. Repeatable.
    #[arg(long, value_name = "ID[=TEXT]")]
    reject: Vec<String>,
    /// Continue even if the agent differs from the one that began the run.
    #[arg(long)]
    allow_changed_agent: bool,
    /// Handle tool calls with an unknown outcome.
    #[arg(long, value_name = "HOW", default_value = "suspend")]
    on_uncertain: Policy,
    /// Change a limit of the run, such as turns=20. Repeatable. Earlier usage counts.
    #[arg(long, value_name = "LIMIT=N", value_parser = limit)]
    budget: Vec<(String, Value)>,
    /// The tools that the agent can run; none if they are not known.
    #[arg(skip)]
    tools: Option<Vec<String>>,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let location = LogLocation::parse(&arguments.log.log)?;
    location.check_room()?;
    let ledger = Arc::new(Ledger::new(location.open_to_write()?));
    runtime()?.block_on(async {
        let found = store::find(ledger.as_ref(), &arguments.run).await?;
        let tries = Tries::default();
        let engine = arguments.engine(&ledger, &found, &tries).await?;
        let arguments = arguments.with_tools_of(&engine);
        let (mut run, mut screen) = (found.run_id, Screen::new(arguments.log.json));
        let work = resume(&engine, &ledger, &mut run, &arguments, &mut screen);
        let resumed = unless_interrupted(work).await;
        // In every case the run has no holder any more.
        ledger.begin(None).await;
        match resumed {
            None | Some(Err(Stop::Interrupted)) => {
                written(screen.end())?;
                Err(arguments.interrupted(&run))
            }
            Some(Ok(())) => arguments.close(&mut screen, &ledger, &run).await,
            Some(Err(Stop::Failed(failure))) => Err(failure),
            Some(Err(Stop::Refused(error))) => {
                let error = spoken(error, &run);
                let refusal = arguments.refusal(&error, &ledger, &run, tries.count()).await;
                let refusal = refusal.unwrap_or_else(|failure| failure);
                if arguments.log.json {
                    // The library names its own functions there.
                    let error = match error.kind() {
                        ErrorKind::Session(_) => error.with_message(refusal.message()),
                        _ => error,
                    };
                    let line = json!({"run_id": run, "err": error});
                    written(writeln!(io::stdout(), "{line}"))?;
                }
                // The line above already reports it.
                Err(refusal.told())
            }
        }
    })
}

impl Arguments {
    /// Resumes a run of this log, without a message.
    pub(crate) fn new(log: LogArgs, run: String, agent: PathBuf, vars: VarArgs) -> Self {
        Self {
            log,
            run,
            message: None,
            agent: Some(agent),
            vars,
            model: None,
            call: CallArgs::default(),
            answer: None,
            tool_results: Vec::new(),
            approve: Vec::new(),
            approve_with: Vec::new(),
            approve_digest: Vec::new(),
            reject: Vec::new(),
            allow_changed_agent: false,
            on_uncertain: Policy::Suspend,
            budget: Vec::new(),
            tools: None,
        }
    }

    /// The same of an agent with the tools of this engine.
    pub(crate) fn with_tools_of(self, engine: &Engine) -> Self {
        if self.agent().is_none() {
            return self;
        }
        let tools = engine.resolve_tools(&Options::new()).into_iter();
        let runs = tools.filter(|tool| tool.get_handler().is_some());
        Self { tools: Some(runs.map(|tool| tool.name().to_owned()).collect()), ..self }
    }

    /// The same of another run.
    pub(crate) fn of_run(self, run: String) -> Self {
        Self { run, ..self }
    }

    /// The same, although the agent is another, or with other limits.
    pub(crate) fn changed(self, allow_changed_agent: bool, budget: Vec<(String, Value)>) -> Self {
        Self { allow_changed_agent, budget, ..self }
    }

    /// The command that resumes a run in the same way.
    pub(crate) fn command(&self, run: &str) -> String {
        self.log.command("resume", run, &self.who())
    }

    /// That a person ended the program, with the command that resumes the run: a tool that was to be re-executed may need the same
    /// policy again.
    pub(crate) fn interrupted(&self, run: &str) -> Failure {
        if self.log.is_lost() {
            return Failure::interrupted("interrupted; nothing of this run was kept", None);
        }
        let uncertain = match self.on_uncertain {
            Policy::Suspend => "",
            Policy::Rerun => " --on-uncertain rerun",
            Policy::Fail => " --on-uncertain fail",
        };
        let command = self.log.command("resume", run, &(self.who() + uncertain));
        let told = format!("interrupted; run {run} can be resumed:\n  {command}");
        Failure::interrupted(told, Some(run))
    }

    /// What a run waits for that stopped so, after these facts.
    fn waiting<'f>(&self, end: &'f End, facts: &[Fact]) -> Waiting<'f> {
        Waiting::new(end, facts).with_tools(self.tools.as_deref())
    }

    /// The flags that choose the engine.
    fn who(&self) -> String {
        match self.agent() {
            Some(agent) => {
                format!(" --agent {}{}", quoted(&agent.to_string_lossy()), self.vars.flags())
            }
            None => {
                let model = self.model.as_deref();
                let model = model.map(|model| format!(" --model {}", quoted(model)));
                model.unwrap_or_default() + &self.call.flags()
            }
        }
    }

    /// The agent file, if an agent resumes the run.
    fn agent(&self) -> Option<&Path> {
        self.agent.as_deref().or_else(|| script(self.model.as_deref()?))
    }

    /// What resumes a run.
    async fn engine(
        &self,
        log: &Arc<Ledger>,
        run: &RunSummary,
        tries: &Tries,
    ) -> Result<Engine, Failure> {
        let RunSummary { run_id: run, status, .. } = run;
        if let Some(agent) = self.agent() {
            let answered = agent::Answered::until(log.as_ref(), run).await?;
            return agent::load(agent, &self.vars, &answered).await;
        }
        // A run that no engine wrote says so here.
        recorded_call(log, run).await?;
        let (about, name) = (play::last_about(log, run).await?, self.model.as_deref());
        match cannot_go_on(&about, name) {
            Some(_) if status.is_ended() => {
                Err(Failure::input(match self.outage(log, run).await? {
                    Some((why, how)) => format!("run {run} has ended: {why}; {how}"),
                    None => {
                        format!("run {run} has ended; fork it to continue")
                    }
                }))
            }
            Some(why) if !self.allow_changed_agent => {
                Err(Failure::input(format!("run {run}: {why}; name the agent with --agent FILE")))
            }
            _ => match self
                .call
                .missing_server(&about, name)
                .filter(|_| !status.is_ended() || *status == RunStatus::Failed)
            {
                Some(server) => Err(Failure::input(format!(
                    "run {run} was not called at the server of its provider; \
                     say which one goes on with it:\n  {}",
                    self.log.command("resume", run, &(server + &self.who()))
                ))),
                None => self.call.engine_of(&about, name, tries),
            },
        }
    }

    /// The exit code for a run that cannot be resumed this way.
    async fn refusal(
        &self,
        error: &Error,
        log: &Ledger,
        run: &str,
        tries: u32,
    ) -> Result<Failure, Failure> {
        match error.kind() {
            ErrorKind::Session(SessionReason::ApprovalStale) => {
                let detail = |name: &str| error.metadata().get(name).and_then(Value::as_str);
                let id = detail("tool_call_id").unwrap_or_default();
                let approval = quoted(&format!("{id}={}", detail("digest").unwrap_or_default()));
                let command = self.command(run);
                Ok(Failure::input(format!("{error}\n  {command} --approve-digest {approval}")))
            }
            ErrorKind::Session(_) => {
                let (command, facts) = (self.command(run), facts(log, run).await?);
                if let Some(Fact::Suspended(end)) = facts.last() {
                    let waiting = self.waiting(end, &facts);
                    let others_need_none = !matches!(self.on_uncertain, Policy::Suspend);
                    if let Some(wrong) = waiting.wrong(&self.named_calls(), others_need_none) {
                        let told = waiting.told(&command);
                        return Ok(Failure::input(format!("run {run}: {wrong}; it {told}")));
                    }
                    if self.answer.is_some() || self.message.is_some() {
                        let told = waiting.told(&command);
                        let wrong = "an answer is not what it waits for";
                        return Ok(Failure::input(format!("run {run}: {wrong}; it {told}")));
                    }
                }
                let uncertain = error.missing_tool_calls();
                if !uncertain.is_empty() && self.message.is_some() {
                    let end = End::uncertain(uncertain);
                    let told = self.waiting(&end, &facts).told(&command);
                    return Ok(Failure::input(format!("run {run} {told}")));
                }
                self.judge(log, run).await?;
                Ok(Failure::input(error.to_string()))
            }
            ErrorKind::Log(LogReason::Sealed) => {
                let last = recorded_call(log, run).await?.run_id;
                let run = match last == *run {
                    true => format!("run {run}"),
                    false => format!("run {run} was continued by run {last}, which"),
                };
                Ok(match self.outage(log, &last).await? {
                    Some((why, how)) => Failure::input(format!("{run} has ended: {why}; {how}")),
                    // The library names its own function here.
                    None => Failure::of(&error.clone().with_message(format!(
                        "log error: sealed: {run} has ended; fork it to continue"
                    ))),
                })
            }
            ErrorKind::Replay(_) => {
                let diff = error.metadata().get("diff").and_then(Value::as_array);
                let mut told = format!("{error}\n").into_bytes();
                let diff = diff.map_or(&[] as &[_], Vec::as_slice);
                written(write_fields(diff, ["recorded", "produced"], &mut told))?;
                Ok(Failure::finding(String::from_utf8_lossy(told.trim_ascii_end())))
            }
            _ => {
                let server = match self.agent() {
                    _ if !error.is_unreachable() => "",
                    Some(_) => "; `base_url` in the agent file names another",
                    None => "; --base-url names another",
                };
                let failure = Failure::of_call(&self.call.spoken(error.clone()), tries);
                let failure = failure.adding(server);
                let outage = self.outage(log, run).await?;
                Ok(failure.adding(&outage.map(|(_, how)| format!("; {how}")).unwrap_or_default()))
            }
        }
    }

    /// The options with which the run continues: its own conditions, and what the flags change.
    fn options(&self, about: &About) -> Result<Options, Failure> {
        let mut options = play::condition(about).overlay(self.call.options());
        let named = self.model.as_deref().and_then(|name| name.split_once(':'));
        let (adapter, named) =
            named.map_or((&*about.adapter, None), |(adapter, id)| (adapter, Some(id)));
        let opts = self.call.adapter_opts(adapter, about.options.get("adapter_opts"));
        // An agent has its own.
        for (name, value) in opts.filter(|_| self.agent().is_none()).into_iter().flatten() {
            options = options.adapter_option(&name, value);
        }
        // What the call itself said of its model counts more than the engine.
        if let Some(id) = named.filter(|_| about.options.contains_key("model")) {
            options = options.model(id);
        }
        if !self.budget.is_empty() {
            let known = about.options.get("budget").or(about.params.get("budget"));
            let mut budget = known.and_then(Value::as_object).cloned().unwrap_or_default();
            budget.extend(self.budget.iter().cloned());
            options = options.overlay(Options::from_json(json!({"budget": budget}))?);
        }
        Ok(options)
    }

    /// The continuation of a run, without what it waits for.
    fn again(&self, engine: &Engine, log: &Arc<Ledger>, run: &str, options: &Options) -> Resume {
        let resume = engine.resume(log, run).on_uncertain(self.on_uncertain.into());
        let resume = resume.options(options.clone());
        if self.allow_changed_agent { resume.allow_changed_engine() } else { resume }
    }

    /// Refuses an agent that cannot continue a fork of a run at this record. What a fork waits for can be given later.
    pub(crate) async fn check_fork(
        &self,
        log: &Arc<dyn Log>,
        run: &RunSummary,
        at: u64,
    ) -> Result<(), Failure> {
        let (ledger, tries) = (Arc::new(Ledger::new(Arc::clone(log))), Tries::default());
        let engine = self.engine(&ledger, run, &tries).await?;
        let options = self.options(&play::last_about(log.as_ref(), &run.run_id).await?)?;
        let resume = self.again(&engine, &ledger, &run.run_id, &options);
        match resume.check_fork(at).await.map_err(|error| spoken(error, &run.run_id)) {
            Err(error) if matches!(error.kind(), ErrorKind::Replay(_)) => {
                let refusal = self.refusal(&error, &ledger, &run.run_id, tries.count()).await?;
                Err(refusal.because(error))
            }
            Err(error) if !matches!(error.kind(), ErrorKind::Session(_) | ErrorKind::Log(_)) => {
                Err(failed(&error, tries.count()))
            }
            _ => Ok(()),
        }
    }

    /// Whether the flags answer what the run waits for.
    fn decides(&self) -> bool {
        let on_uncertain = !matches!(self.on_uncertain, Policy::Suspend);
        let answers = self.answer.is_some() || self.message.is_some();
        answers || on_uncertain || !self.named_calls().is_empty()
    }

    /// The continuation of a run with these answers and decisions.
    fn decided(&self, mut resume: Resume) -> Resume {
        if let Some(text) = &self.answer {
            resume = resume.answer(text);
        }
        if let Some(text) = &self.message {
            resume = resume.message(Message::user(text));
        }
        for (id, content) in &self.tool_results {
            resume = resume.tool_result(id, content.clone());
        }
        // Before approvals, which are refused if their call cannot run: a call that is named twice is the mistake.
        for said in &self.reject {
            let (id, why) = rejection(said);
            resume = resume.reject(id, why);
        }
        for id in &self.approve {
            resume = resume.approve(id);
        }
        for (id, arguments) in &self.approve_with {
            resume = resume.approve_with(id, arguments.clone());
        }
        for (id, digest) in &self.approve_digest {
            resume = resume.approve_digest(id, *digest);
        }
        resume
    }

    /// The calls with a decision.
    fn named_calls(&self) -> Vec<&str> {
        let results = self.tool_results.iter().map(|(id, _)| id.as_str());
        let approved = self.approve.iter().map(String::as_str);
        let edited = self.approve_with.iter().map(|(id, _)| id.as_str());
        let by_digest = self.approve_digest.iter().map(|(id, _)| id.as_str());
        let rejected = self.reject.iter().map(|said| rejection(said).0);
        results.chain(approved).chain(edited).chain(by_digest).chain(rejected).collect()
    }
}

/// The same error, in the words of this program.
fn spoken(error: Error, run: &str) -> Error {
    let ErrorKind::Replay(_) = error.kind() else { return error };
    let said = match lacking_code(&error) {
        Some(code) => format!(
            "run {run} has a {code} that only the program has which began it; \
             --allow-changed-agent goes on without it"
        ),
        None => {
            format!(
                "run {run} began with another agent; to resume it with this one, pass --allow-changed-agent"
            )
        }
    };
    error.with_message(said)
}

/// The code that differs. Records only have a placeholder for it.
fn lacking_code(error: &Error) -> Option<&str> {
    let diff = error.metadata().get("diff")?.as_array()?;
    let options = diff.iter().filter_map(|place| {
        Some((place["path"].as_str()?.strip_prefix("about.options.")?, &place["recorded"]))
    });
    let mut code = options.filter(|(name, told)| match *name {
        "halt_when" | "tool_executor" | "tool_result_encoder" => !told.is_null(),
        "on_tool_error" => told.is_boolean(),
        _ => false,
    });
    code.next().map(|(name, _)| name)
}

/// Resumes a run. In a terminal, what it then waits for is answered in place.
async fn resume(
    engine: &Engine,
    log: &Arc<Ledger>,
    found: &mut RunId,
    arguments: &Arguments,
    screen: &mut Screen,
) -> Result<(), Stop> {
    let about = play::last_about(log, found).await?;
    let mut options = arguments.options(&about)?;
    // A chat that had all its turns gets as many.
    let had_all =
        |fact: &Fact| matches!(fact, Fact::Completed(end) if end.reason == HaltReason::MaxTurns);
    let turns = arguments.budget.iter().find(|(name, _)| name == "max_turns");
    if let Some((_, turns)) = turns
        && facts(log.as_ref(), found).await?.iter().any(had_all)
    {
        options = options.overlay(Options::from_json(json!({"max_turns": turns}))?);
    }
    let again = |run: &RunId| arguments.again(engine, log, run, &options);
    let RecordedCall { extent, result: waiting, .. } = recorded_call(log, &*found).await?;
    let prompt = screen.prompt().filter(|_| extent != Extent::Generate);
    let followed = Followed { engine, resume: &again, prompt: prompt.as_ref() };
    let result = if prompt.is_some() && waiting.is_some() && !arguments.decides() {
        screen.resume(log, found, &followed).await?
    } else {
        let mut stream = arguments.decided(again(found)).stream().started().await?;
        // A run that a model call ended is continued in another.
        if let Some(continued) = stream.run_id().filter(|continued| *continued != found) {
            eprintln!("run {found} has ended; run {continued} continues it");
            *found = continued.clone();
        }
        if arguments.log.json || extent == Extent::Generate {
            return print(&mut stream, log, found, extent, arguments.log.json).await;
        }
        screen.follow(&mut stream, &followed).await?
    };
    if let Some(run) = result.and_then(|result| result.run_id) {
        *found = run;
    }
    Ok(())
}

/// Prints the events of a run.
async fn print(
    stream: &mut EventStream,
    log: &Arc<Ledger>,
    run: &RunId,
    extent: Extent,
    json: bool,
) -> Result<(), Stop> {
    let mut printer = EventPrinter::new(json);
    let mut completed: Option<Box<ChatResult>> = None;
    let mut is_answered = false;
    while let Some(event) = stream.next().await.transpose()? {
        written(printer.print(&event))?;
        is_answered |= matches!(event, Event::MessageStarted { .. });
        if let Event::ChatCompleted { result } = event {
            completed = Some(result);
        }
    }
    if json {
        let result = match (completed, stream.last_step(), extent) {
            (Some(result), ..) => json!(result),
            (None, Some(step), Extent::Generate) => json!(step.response),
            (None, step, _) => json!(step),
        };
        let told = match mynah::restore_turn(log, run).await {
            Ok(mut restored) => {
                // The link to the run is beside it.
                restored.session.last_run = None;
                json!({"session": restored.session, "result": result})
            }
            Err(error) if error.kind() == ErrorKind::Session(SessionReason::NoSession) => result,
            Err(error) => return Err(error.into()),
        };
        written(printer.line(&match misfit(&facts(log.as_ref(), run).await?) {
            Some(error) => json!({"run_id": run, "err": error}),
            None => json!({"run_id": run, "ok": told}),
        }))?;
    }
    // An answer that was recorded before is not streamed again.
    if let Some(step) = stream.last_step().filter(|_| !json && !is_answered) {
        written(printer.say(&step.response.text()))?;
    }
    written(printer.end())?;
    match stream.last_step() {
        Some(step) if extent == Extent::Generate && !json => Ok(remark(&step.response)?),
        _ => Ok(()),
    }
}

/// Every fact of a run that is still there.
pub(crate) async fn facts(log: &dyn Log, run: &str) -> Result<Vec<Fact>, Failure> {
    let facts = store::facts(log, run).await?;
    Ok(facts.into_iter().filter_map(|(_, fact)| fact).collect())
}

/// The model's answers in a run, and in the runs that it continues: one list for each run, the
/// earliest first.
pub(crate) async fn answers(log: &dyn Log, run: &str) -> Result<Vec<Vec<Arc<Message>>>, Failure> {
    let answer = |fact| match fact {
        Fact::AssistantCompleted { response, .. }
        | Fact::ContextTruncated { summary: Some(response), .. } => Some(response.message),
        _ => None,
    };
    let mut answers = Vec::new();
    for run in store::needed(log, run).await?.iter().rev().map(RunId::as_str).chain([run]) {
        answers.push(facts(log, run).await?.into_iter().filter_map(answer).collect());
    }
    Ok(answers)
}
