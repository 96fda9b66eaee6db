//! `mynah chat`: a conversation with an agent in the terminal.

mod message;
mod who;

use std::{collections::HashMap, env, path::PathBuf, pin::pin, process::Command, sync::Arc};

use clap::Args;
use futures_util::future::{Either, select};
use mynah::{
    CancelHandle, ChatResult, Engine, Error, ErrorKind, Message, Options, Role, RunId, Session,
    SessionReason, Status, Tool, cancel_run,
    log::{Log as _, RunFilter, Totals},
    restore_session, restore_turn,
};

use self::{
    message::{is_command, message},
    who::{AGENT, Who, newest},
};
use crate::{
    Failure, LogArgs,
    agent::{Answered, VarArgs},
    generate::failed,
    interrupt::interrupted,
    ledger::Ledger,
    log_flag,
    model::CallArgs,
    now, resume, runtime,
    screen::{Followed, Screen, Stop, context_use, used},
    store::{self, LogLocation},
    text::{count, quoted, short},
    tty::{BAD, Entered, Prompt, Reads},
    unless_interrupted, written,
};

pub(crate) const EXAMPLES: &str = "Examples:
  mynah chat agent.toml
  mynah chat -m anthropic:claude-sonnet-5
  mynah chat agent.toml --session trip     begin or continue a conversation by its name
  mynah chat agent.toml --continue         the newest conversation of this agent

A message ends with Enter. Alt-Enter, or \\ at the end of a line, begins another line; so does an open ``` fence.
@FILE in a message attaches an image or a text file. /help lists the commands. Tab completes commands and file names.
Questions and calls that need approval are answered in place. Ctrl-C stops an answer and keeps the conversation; Ctrl-D leaves.
Exit codes: 0 done; 1 a call failed in a pipe; 2 wrong usage, a bad agent file, no key; 3 a run waits; 4 a log, file or server that could not be used.";

/// How much of the last message and answer is shown when a conversation continues.
const RECAP: usize = 160;

/// The commands, with what they do.
const COMMANDS: [(&str, &str); 13] = [
    ("/help", "list the commands"),
    ("/cost", "show what this conversation used"),
    ("/model", "show the model, or use another: /model ADAPTER:MODEL"),
    ("/retry", "take the last message back and send it again"),
    ("/undo", "take the last message and its answer back"),
    ("/fork", "continue in a new conversation, and keep this one: /fork [NAME]"),
    ("/result", "show the last result of a tool in full"),
    ("/runs", "list the runs of this conversation"),
    ("/show", "show the last run: /show [OPTIONS], as of `mynah show`"),
    ("/verify", "verify the last run"),
    ("/export", "write the last run to a file: /export FILE"),
    ("/clear", "begin a new conversation"),
    ("/quit", "leave; Ctrl-D does too"),
];

const NAMES: [&str; COMMANDS.len()] = {
    let (mut names, mut place) = ([""; COMMANDS.len()], 0);
    while place < names.len() {
        names[place] = COMMANDS[place].0;
        place += 1;
    }
    names
};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// The agent file, or a scenario.
    #[arg(conflicts_with_all = ["model", "base_url", "exact_base_url", "api_key_env", "dotenv", "catalog", "retries", "timeout"])]
    agent: Option<PathBuf>,
    /// Talk to this model, without tools.
    #[arg(long, short, value_name = "ADAPTER:MODEL")]
    model: Option<String>,
    /// Begin or continue the conversation of this name.
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Continue the newest conversation of this agent.
    #[arg(long = "continue", conflicts_with = "session")]
    resumes: bool,
    #[command(flatten)]
    vars: VarArgs,
    #[command(flatten)]
    call: CallArgs,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: place, agent, model, session, resumes, vars, call } = arguments;
    let who = match (agent, model) {
        (Some(agent), _) => Who::File(agent, vars),
        (None, Some(_)) if !vars.flags().is_empty() => {
            return Err(Failure::input("only an agent file has variables for --var"));
        }
        (None, Some(model)) => Who::Model(model, Box::new(call)),
        (None, None) => {
            let model = "mynah chat -m anthropic:claude-sonnet-5-5";
            let why = format!("name an agent file, or a model with -m, such as\n  {model}");
            return Err(Failure::input(why));
        }
    };
    let log = Arc::new(Ledger::new(LogLocation::parse(&place.log)?.open()?));
    runtime()?.block_on(async {
        let named = match session {
            Some(name) => Some(name),
            None if resumes => Some(newest(&log, who.file().as_deref()).await?),
            None => None,
        };
        let restored = match &named {
            Some(name) => found(&log, name).await?,
            None => None,
        };
        let StoredSession { session, unfinished, branches } = restored.unwrap_or_default();
        let last = unfinished
            .clone()
            .or_else(|| Some(session.as_ref()?.last_run.as_ref()?.run_id.clone()));
        let answers = match &last {
            Some(run) => Answered::until(&log, run).await?,
            None => Answered::default(),
        };
        let engine = who.engine(None, &answers).await?;
        let screen = Screen::new(place.json);
        let mut chat = Chat {
            engine,
            who,
            id: named.unwrap_or_else(new_id),
            before: Vec::new(),
            unsent: None,
            branches,
            session,
            agents: HashMap::new(),
            prompt: Prompt::new(screen.looks, &NAMES),
            screen,
            log,
            place: place.log.clone(),
        };
        let waits = chat.converse(unfinished).await;
        written(chat.screen.end())?;
        let waits = waits?;
        let (id, has_session) = (chat.id.clone(), chat.session.is_some());
        if let Some(run) = waits {
            let Who::File(agent, vars) = chat.who else { return Ok(()) };
            return resume::Arguments::new(place, run.clone(), agent, vars)
                .judge(&chat.log, &run)
                .await;
        }
        if has_session && !place.json {
            let (who, flags) = chat.who.words();
            let (id, log) = (quoted(&id), log_flag(&place.log));
            chat.screen
                .hint(&format!("continue with: mynah chat {who} --session {id}{flags}{log}"));
        }
        Ok(())
    })
}

fn new_id() -> String {
    format!("chat-{:x}", now())
}

/// A conversation as the log has it.
#[derive(Default)]
struct StoredSession {
    /// None before the first answer.
    session: Option<Session>,
    /// The run of a turn whose process died.
    unfinished: Option<RunId>,
    /// Whether the last turn failed, so that the next one starts beside it.
    branches: bool,
}

/// A conversation by its name, if the log has it.
async fn found(log: &Arc<Ledger>, id: &str) -> Result<Option<StoredSession>, Failure> {
    if log.runs(RunFilter::new().session(id).limit(1)).await?.runs.is_empty() {
        return Ok(None);
    }
    let restored = restore_session(log, id).await?;
    let mut session = Some(restored.session).filter(|session| session.last_run.is_some());
    let mut branches = session.is_none() && restored.unfinished.is_none();
    if let Some(failed) = session.take_if(|session| session.status() == Status::Error) {
        (session, branches) = (before(log, &failed).await?, true);
    }
    Ok(Some(StoredSession { session, unfinished: restored.unfinished, branches }))
}

/// The session before its last turn; none if that was its first.
async fn before(log: &Arc<Ledger>, session: &Session) -> Result<Option<Session>, Failure> {
    let Some(last) = &session.last_run else { return Ok(None) };
    Ok(match store::needed(log.as_ref(), &last.run_id).await?.first() {
        Some(run) => Some(restore_turn(log, run).await?.session),
        None => None,
    })
}

struct Chat {
    engine: Engine,
    who: Who,
    log: Arc<Ledger>,
    /// The address of the log.
    place: String,
    id: String,
    /// None before the first answer.
    session: Option<Session>,
    /// The sessions before the turns that this process made, with the message of each turn.
    before: Vec<(Option<Session>, Message)>,
    /// The same of the turn that has no answer: it is under way, it failed, or it was stopped.
    unsent: Option<(Option<Session>, Message)>,
    /// Whether a turn was left behind, so that the next one starts beside it.
    branches: bool,
    /// What the agents of each run used when the run had so many records.
    agents: HashMap<RunId, (u64, Totals)>,
    screen: Screen,
    prompt: Prompt,
}

/// What follows a line.
enum Next {
    Continue,
    Leave,
    /// The run waits, and the input ended.
    Waits(RunId),
}

impl Chat {
    /// Takes line after line. Returns a run that waits for an answer that did not come.
    async fn converse(&mut self, unfinished: Option<RunId>) -> Result<Option<String>, Failure> {
        if self.prompt.is_terminal {
            self.welcome();
        }
        if let Next::Waits(run) = self.catch_up(unfinished).await? {
            return Ok(Some(run.to_string()));
        }
        let shown = if self.prompt.is_terminal { "› " } else { "" };
        loop {
            let asked = unless_interrupted(self.prompt.ask(shown, Reads::Message)).await;
            let Some(line) = asked.transpose()? else { break };
            let next = match line {
                Entered::End => break,
                Entered::Interrupted => {
                    self.screen.note("Ctrl-D leaves; /help lists the commands");
                    Next::Continue
                }
                Entered::Line(line) => self.line(&line).await?,
            };
            match next {
                Next::Continue => {}
                Next::Leave => break,
                Next::Waits(run) => return Ok(Some(run.to_string())),
            }
        }
        Ok(None)
    }

    /// Shows who answers and, of a conversation that continues, where it was left.
    fn welcome(&mut self) {
        let tools = self.engine.resolve_tools(&Options::new()).len() as u64;
        let model = self.engine.get_model().map(ToString::to_string);
        let parts = [
            model,
            (tools > 0).then(|| count(tools, "tool")),
            Some("/help lists the commands".to_owned()),
        ];
        let mut told = parts.into_iter().flatten().collect::<Vec<_>>().join(" · ");
        // The last words of a turn that waits are its question, which is asked again or was answered.
        let last = self.session.as_ref().and_then(|session| session.last_run.as_ref());
        let waits = last.is_some_and(|last| last.waits);
        let mut recap = Vec::new();
        for message in self.session.iter().flat_map(|session| session.messages().iter().rev()) {
            let text = short(&message.text(), RECAP);
            match message.role() {
                Role::User => {
                    recap.push(format!("\nyou: {text}"));
                    break;
                }
                Role::Assistant if recap.is_empty() && !text.is_empty() && !waits => {
                    recap.push(format!("\nanswer: {text}"));
                }
                _ => {}
            }
        }
        told.extend(recap.into_iter().rev());
        self.screen.note(&told);
    }

    /// Continues a turn that was interrupted by the end of its process, or asks again what it waits for.
    async fn catch_up(&mut self, unfinished: Option<RunId>) -> Result<Next, Failure> {
        if unfinished.is_some() {
            self.screen.note("the last turn was interrupted; it continues");
        }
        let last = self.session.as_ref().and_then(|session| session.last_run.as_ref());
        let waits = last.filter(|last| last.waits).map(|last| last.run_id.clone());
        let Some(run) = unfinished.or(waits) else { return Ok(Next::Continue) };
        let cancel = CancelHandle::new();
        let resume = |run: &RunId| self.engine.resume(&self.log, run).cancel_handle(&cancel);
        let followed = Followed { resume: &resume, prompt: Some(&self.prompt) };
        let done = stoppable(&cancel, self.screen.resume(&self.log, &run, &followed)).await;
        self.ended(done, Some(run)).await
    }

    async fn line(&mut self, line: &str) -> Result<Next, Failure> {
        let line = line.trim();
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match command {
            "" => Ok(Next::Continue),
            command if NAMES.contains(&command) => self.command(command, rest.trim()).await,
            command if is_command(command) => {
                self.screen.note(&format!("no command is called {command}; /help lists them"));
                Ok(Next::Continue)
            }
            _ => match message(line) {
                Ok((message, notes)) => {
                    notes.iter().for_each(|note| self.screen.note(note));
                    self.turn(message).await
                }
                Err(failure) => {
                    self.screen.remark(BAD, failure.message());
                    Ok(Next::Continue)
                }
            },
        }
    }

    async fn command(&mut self, command: &str, rest: &str) -> Result<Next, Failure> {
        match command {
            "/quit" => return Ok(Next::Leave),
            "/help" => {
                let lines = COMMANDS.map(|(name, what)| format!("{name:<8}  {what}"));
                self.screen.note(&lines.join("\n"));
            }
            "/cost" => {
                let totals = self.spent().await?;
                self.screen.note(&used(&totals));
            }
            "/runs" => self.runs().await?,
            "/result" => self.screen.unfold(),
            "/model" => self.model(rest).await,
            "/undo" => {
                self.undo().await?;
            }
            "/retry" => {
                let message = match self.unsent.take() {
                    Some((_, message)) => Some(message),
                    None => self.undo().await?,
                };
                if let Some(message) = message {
                    return self.turn(message).await;
                }
            }
            "/fork" if rest == self.id || self.has(rest).await? => {
                self.screen
                    .note(&format!("there is a conversation {rest} already; give another name"));
            }
            "/fork" => {
                self.id = if rest.is_empty() { new_id() } else { rest.to_owned() };
                self.session = self.session.take().map(|session| session.with_id(&*self.id));
                self.branches = true;
                self.screen.note(&format!("this is the conversation {} now", self.id));
            }
            "/clear" => {
                (self.id, self.session, self.branches) = (new_id(), None, false);
                (self.before, self.unsent) = (Vec::new(), None);
                self.screen.note(&format!("a new conversation begins: {}", self.id));
            }
            "/export" if rest.is_empty() => self.screen.note("name a file: /export FILE"),
            "/export" => {
                let (file, flags) = rest.split_once(" --").unwrap_or((rest, ""));
                let flags = flags.split_whitespace().map(|flag| format!("--{flag}"));
                let flags: Vec<String> = flags.collect();
                let words = ["-o", file].into_iter().chain(flags.iter().map(String::as_str));
                self.verb("export", &words.collect::<Vec<_>>()).await?;
            }
            verb => {
                let words: Vec<&str> = rest.split_whitespace().collect();
                self.verb(verb.trim_start_matches('/'), &words).await?;
            }
        }
        Ok(Next::Continue)
    }

    /// Says something to the agent, and shows what it does.
    async fn turn(&mut self, message: Message) -> Result<Next, Failure> {
        self.log.begin(None).await;
        self.unsent = Some((self.session.clone(), message.clone()));
        let is_new = self.session.is_none() && !self.branches;
        if is_new && self.has(&self.id).await? {
            return self.reload().await;
        }
        let turn = match &self.session {
            Some(session) => self.engine.continue_session(session, Some(message)),
            None => {
                let session = Session::new().append(message).with_id(&*self.id);
                let file = self.who.file();
                self.engine.start(match file {
                    Some(file) => session.with_metadata(AGENT, file),
                    None => session,
                })
            }
        };
        let turn = if std::mem::take(&mut self.branches) { turn.branch() } else { turn };
        let cancel = CancelHandle::new();
        let mut stream = turn.record(&self.log).cancel_handle(&cancel).stream();
        let resume = |run: &RunId| self.engine.resume(&self.log, run).cancel_handle(&cancel);
        let followed = Followed { resume: &resume, prompt: Some(&self.prompt) };
        let done = stoppable(&cancel, self.screen.follow(&mut stream, &followed)).await;
        drop(stream);
        let run = self.log.written();
        self.ended(done, run).await
    }

    /// Takes in how a turn ended.
    async fn ended(
        &mut self,
        done: Result<Option<ChatResult>, Stop>,
        run: Option<RunId>,
    ) -> Result<Next, Failure> {
        let result = match done {
            Err(Stop::Failed(failure)) => return Err(failure),
            Err(Stop::Refused(error)) => return self.left(&error).await,
            Err(Stop::Interrupted) => {
                written(self.screen.end())?;
                self.log.begin(None).await;
                if let Some(run) = &run {
                    // A run that is not sealed would be continued the next time.
                    let _ = cancel_run(&self.log, run).await;
                }
                self.branches = true;
                self.screen.note(
                    "stopped; the conversation is as it was before this message; /retry sends it again",
                );
                return Ok(Next::Continue);
            }
            Ok(None) => return Ok(Next::Continue),
            Ok(Some(result)) => result,
        };
        let Some(run) = result.run_id.clone().or(run) else { return Ok(Next::Continue) };
        if let Some(error) = result.error() {
            return self.left(&error).await;
        }
        let session = restore_turn(&self.log, &run).await?.session;
        let waits = session.last_run.as_ref().is_some_and(|last| last.waits);
        self.session = Some(session);
        self.before.extend(self.unsent.take());
        if waits {
            return Ok(Next::Waits(run));
        }
        self.screen.left_out(&self.log, &run).await?;
        self.status(&result).await?;
        if let Some(breach) = result.breach() {
            let why = format!("{}: {breach}", result.halted_reason);
            if !self.prompt.is_terminal {
                return Err(Failure::finding(why));
            }
            self.screen.remark(BAD, &why);
            self.screen.note("each message has the whole budget; say how to continue");
        }
        Ok(Next::Continue)
    }

    /// A turn that failed is left behind, and the conversation continues from before it.
    async fn left(&mut self, error: &Error) -> Result<Next, Failure> {
        // Without a terminal, no user can retry.
        if !self.prompt.is_terminal {
            return Err(failed(error, 1));
        }
        if error.kind() == ErrorKind::Session(SessionReason::SessionMoved) {
            return self.reload().await;
        }
        self.branches = true;
        self.screen.remark(BAD, &format!("failed: {error}"));
        self.screen
            .note("the conversation is as it was before this message; /retry sends it again");
        Ok(Next::Continue)
    }

    /// Loads a conversation that another process has continued meanwhile.
    async fn reload(&mut self) -> Result<Next, Failure> {
        let stored = found(&self.log, &self.id).await?.unwrap_or_default();
        (self.session, self.branches) = (stored.session, stored.branches);
        self.before.clear();
        self.screen.note(
            "another process continued this conversation, and it was loaded; /retry sends the message",
        );
        Ok(Next::Continue)
    }

    /// Shows the model, and what the conversation used so far.
    async fn status(&mut self, result: &ChatResult) -> Result<(), Failure> {
        let model = self.engine.get_model().cloned();
        let totals = self.spent().await?;
        let stopped = (result.halted_reason == mynah::HaltReason::Cancelled)
            .then(|| "stopped; the received text stays".to_owned());
        let name = model.as_ref().map(ToString::to_string);
        let tokens = format!("{} + {} tokens", totals.input_tokens, totals.output_tokens);
        let cost = (totals.cost > 0.0).then(|| format!("${:.4}", totals.cost));
        let context = context_use(model.as_ref(), result);
        let parts = [stopped, name, Some(tokens), context, cost];
        self.screen.note(&parts.into_iter().flatten().collect::<Vec<_>>().join(" · "));
        written(self.screen.pause())
    }

    /// What the runs of this conversation used.
    async fn spent(&mut self) -> Result<Totals, Failure> {
        let page = self.log.runs(RunFilter::new().session(&*self.id).limit(1000)).await?;
        let has_agents = self.engine.get_tools().iter().any(Tool::is_delegating);
        let mut all = Totals::default();
        for run in &page.runs {
            all.add(&run.totals);
            if !has_agents || run.totals.tool_calls == 0 {
                continue;
            }
            // The records of a run are read once.
            let known = self.agents.get(&run.run_id).filter(|(records, _)| *records == run.records);
            let agents = match known {
                Some((_, totals)) => totals.clone(),
                None => store::agents_totals(self.log.as_ref(), &run.run_id).await?,
            };
            all.add(&agents);
            self.agents.insert(run.run_id.clone(), (run.records, agents));
        }
        Ok(all)
    }

    async fn runs(&mut self) -> Result<(), Failure> {
        let filter = RunFilter::new().session(&*self.id).oldest_first().limit(1000);
        for run in &self.log.runs(filter).await?.runs {
            self.screen.note(&format!("{}  {}", run.run_id, used(&run.totals)));
        }
        Ok(())
    }

    /// Whether the log has a conversation of this name.
    async fn has(&self, name: &str) -> Result<bool, Failure> {
        let filter = RunFilter::new().session(name).limit(1);
        Ok(!name.is_empty() && !self.log.runs(filter).await?.runs.is_empty())
    }

    /// Shows the model, or changes it. The agent is built anew, so that limits and context fit the model.
    async fn model(&mut self, name: &str) {
        if !name.is_empty() {
            match self.who.engine(Some(name), &Answered::default()).await {
                Ok(engine) => self.engine = engine,
                Err(failure) => return self.screen.remark(BAD, failure.message()),
            }
        }
        let model = self.engine.get_model().map(ToString::to_string);
        self.screen.note(&format!("model: {}", model.as_deref().unwrap_or("unknown")));
    }

    /// Returns to before the last message. Gives that message.
    async fn undo(&mut self) -> Result<Option<Message>, Failure> {
        if self.before.is_empty()
            && let Some(taken) = self.earlier().await?
        {
            self.before.push(taken);
        }
        self.unsent = None;
        let Some((session, message)) = self.before.pop() else {
            self.screen.note("there is nothing to take back");
            return Ok(None);
        };
        // The conversation may have been forked since.
        self.session = session.map(|session| session.with_id(&*self.id));
        self.branches = true;
        self.screen.note(&format!("took back: {}", message.text()));
        Ok(Some(message))
    }

    /// The session before the last turn of a conversation that another process began, and the message of that turn.
    async fn earlier(&self) -> Result<Option<(Option<Session>, Message)>, Failure> {
        let Some(session) = &self.session else { return Ok(None) };
        let message = session.messages().iter().rev().find(|message| message.role() == Role::User);
        let Some(message) = message else { return Ok(None) };
        Ok(Some((before(&self.log, session).await?, (**message).clone())))
    }

    /// Runs another verb of this program on the last run.
    async fn verb(&mut self, verb: &str, words: &[&str]) -> Result<(), Failure> {
        let last = self.session.as_ref().and_then(|session| session.last_run.as_ref());
        let Some(last) = last.filter(|_| self.place != "memory:") else {
            self.screen.note("there is no run in a file yet");
            return Ok(());
        };
        written(self.screen.end())?;
        self.log.begin(None).await;
        let program = env::current_exe().map_err(|error| Failure::file(error.to_string()))?;
        let run = Command::new(program)
            .arg(verb)
            .arg(&*last.run_id)
            .args(words)
            .args(["--log", &self.place])
            .status();
        if let Err(error) = run {
            self.screen.remark(BAD, &format!("mynah {verb}: {error}"));
        }
        Ok(())
    }
}

/// Lets work end early: the first interruption cancels it and keeps what it did, a second one leaves it.
async fn stoppable(
    cancel: &CancelHandle,
    work: impl Future<Output = Result<Option<ChatResult>, Stop>>,
) -> Result<Option<ChatResult>, Stop> {
    let mut work = pin!(work);
    match select(pin!(interrupted()), work.as_mut()).await {
        Either::Right((done, _)) => return done,
        Either::Left(_) => cancel.cancel(),
    }
    match select(pin!(interrupted()), work).await {
        Either::Right((done, _)) => done,
        Either::Left(_) => Err(Stop::Interrupted),
    }
}
