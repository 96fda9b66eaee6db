//! `mynah chat`: a conversation with an agent in the terminal.

mod catch_up;
pub(crate) mod commands;
mod message;
mod stored;
mod who;

use std::{collections::HashMap, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use clap::Args;
use futures_util::future::{Either, select};
use mynah::{
    CancelHandle, ChatResult, Engine, Error, ErrorKind, HaltReason, Message, Options, Role, RunId,
    Session, SessionReason, Tool, cancel_run,
    log::{Log as _, RunFilter, Totals},
    restore_turn,
};
use mynah_agent::answer::misfit;
use serde_json::Value;

use self::{
    commands::NAMES,
    message::{is_command, message},
    stored::{OpenTurn, StoredSession, found, said},
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
    screen::{Followed, Screen, Stop, context_room, context_use, thousands},
    store::LogLocation,
    text::{cost, count, quoted, short},
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

/// How long a line that was piped in may take to be read.
const REST: Duration = Duration::from_millis(200);

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
    let location = LogLocation::parse(&place.log)?;
    location.check_room()?;
    let log = Arc::new(Ledger::new(location.open()?));
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
        let StoredSession { session, open, branches } = restored.unwrap_or_default();
        let last = open.as_ref().map(|open| open.run.clone());
        let last = last.or_else(|| Some(session.as_ref()?.last_run.as_ref()?.run_id.clone()));
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
            is_changed: false,
            session,
            agents: HashMap::new(),
            prompt: Prompt::new(screen.looks, &NAMES),
            screen,
            log,
            place: place.log.clone(),
            location,
        };
        let waits = chat.converse(open).await;
        written(chat.screen.end())?;
        let waits = waits?;
        let continues = chat.session.is_some() || waits.is_some();
        if continues && !place.json && !place.is_lost() {
            let (who, flags) = chat.who.words();
            let (id, log) = (quoted(&chat.id), log_flag(&place.log));
            chat.screen
                .hint(&format!("continue with: mynah chat {who} --session {id}{flags}{log}"));
        }
        match (waits, chat.who) {
            (Some(run), Who::File(agent, vars)) => {
                let resume = resume::Arguments::new(place, run.clone(), agent, vars);
                let resume =
                    resume.with_tools_of(&chat.engine).changed(chat.is_changed, Vec::new());
                resume.judge(&chat.log, &run).await
            }
            _ => Ok(()),
        }
    })
}

fn new_id() -> String {
    format!("chat-{:x}", now())
}

struct Chat {
    engine: Engine,
    who: Who,
    log: Arc<Ledger>,
    /// The address of the log.
    place: String,
    location: LogLocation,
    id: String,
    /// None before the first answer.
    session: Option<Session>,
    /// The sessions before the turns that this process made, with the message of each turn.
    before: Vec<(Option<Session>, Message)>,
    /// The same of the turn that has no answer: it is under way, it failed, or it was stopped.
    unsent: Option<(Option<Session>, Message)>,
    /// Whether a turn was left behind, so that the next one starts beside it.
    branches: bool,
    /// Whether the turn began with another agent.
    is_changed: bool,
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
    async fn converse(&mut self, open: Option<OpenTurn>) -> Result<Option<String>, Failure> {
        if self.prompt.is_terminal {
            self.welcome(open.as_ref());
        }
        if let Some(open) = open
            && let Next::Waits(run) = self.catch_up(open).await?
        {
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
                Entered::Line(line) => match self.line(&line).await {
                    Ok(next) => next,
                    Err(failure) => {
                        self.note_unsent().await;
                        return Err(failure);
                    }
                },
            };
            match next {
                Next::Continue => {}
                Next::Leave => break,
                Next::Waits(run) => return Ok(Some(run.to_string())),
            }
        }
        Ok(None)
    }

    /// Notes that the rest of what is piped in is not sent. Nothing is waited for that may come later.
    async fn note_unsent(&mut self) {
        let rest = self.prompt.ask("", Reads::Message);
        if !self.prompt.is_terminal
            && let Ok(Ok(Entered::Line(_))) = tokio::time::timeout(REST, rest).await
        {
            self.screen.note("the lines after this message were not sent");
        }
    }

    /// Shows who answers and, of a conversation that continues, where it was left.
    fn welcome(&mut self, open: Option<&OpenTurn>) {
        let tools = self.engine.resolve_tools(&Options::new()).len() as u64;
        let parts = [
            self.model_name(),
            (tools > 0).then(|| count(tools, "tool")),
            Some("/help lists the commands".to_owned()),
        ];
        let mut told = parts.into_iter().flatten().collect::<Vec<_>>().join(" · ");
        let messages = self.session.as_ref().map(Session::messages);
        let open = open.and_then(|open| open.message.as_ref());
        let asked = open.or_else(|| said(messages?).last());
        let since = messages.into_iter().flat_map(|messages| messages.iter().rev());
        let mut since = since.take_while(|message| open.is_none() && message.role() != Role::User);
        let answer = since.find(|it| it.role() == Role::Assistant && !it.text().is_empty());
        for (who, message) in [("you", asked), ("answer", answer.map(AsRef::as_ref))] {
            let text = message.map(|message| short(&message.text(), RECAP));
            told.extend(text.map(|text| format!("\n{who}: {text}")));
        }
        self.screen.note(&told);
    }

    /// The model, or what stands for one.
    fn model_name(&self) -> Option<String> {
        let model = self.engine.get_model().map(ToString::to_string);
        model.or_else(|| self.engine.get_adapter_name().map(str::to_owned))
    }

    /// A session of this name in which nothing was said.
    fn begun(&self) -> Session {
        let session = Session::new().with_id(&*self.id);
        match self.who.file() {
            Some(file) => session.with_metadata(AGENT, file),
            None => session,
        }
    }

    async fn line(&mut self, line: &str) -> Result<Next, Failure> {
        let line = line.trim();
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match &*command.to_lowercase() {
            "" => Ok(Next::Continue),
            command if NAMES.contains(&command) => self.command(command, rest.trim()).await,
            _ if is_command(command) => {
                self.screen.note(&format!("no command is called {command}; /help lists them"));
                Ok(Next::Continue)
            }
            _ => match message(line) {
                Ok((message, notes)) => {
                    notes.iter().for_each(|note| self.screen.note(note));
                    let room = context_room(&self.engine);
                    // About four characters are a token.
                    let tokens = message.text().len() as u64 / 4;
                    if let Some(room) = room.filter(|room| tokens > *room) {
                        let (tokens, room) = (thousands(tokens), thousands(room));
                        let room = format!("about {tokens} tokens, of at most {room}");
                        self.screen.remark(
                            BAD,
                            &format!("this message may be too long for the model: {room}"),
                        );
                    }
                    self.turn(message).await
                }
                // A person can send another message.
                Err(failure) if self.prompt.is_terminal => {
                    self.screen.remark(BAD, failure.message());
                    self.screen.note("the message was not sent");
                    Ok(Next::Continue)
                }
                Err(failure) => Err(failure),
            },
        }
    }

    /// Says something to the agent, and shows what it does.
    async fn turn(&mut self, message: Message) -> Result<Next, Failure> {
        self.log.begin(None).await;
        self.is_changed = false;
        self.unsent = Some((self.session.clone(), message.clone()));
        if let Err(failure) = self.location.check_room() {
            if !self.prompt.is_terminal {
                return Err(failure);
            }
            self.screen.remark(BAD, failure.message());
            self.screen.note("/retry sends the message");
            return Ok(Next::Continue);
        }
        let is_new = self.session.is_none() && !self.branches;
        if is_new && self.has(&self.id).await? {
            return self.reload().await;
        }
        if let Some((session, told)) = self.session.as_ref().and_then(|it| self.prompted(it)) {
            self.session = Some(session);
            self.screen.note(told);
        }
        let turn = match &self.session {
            Some(session) => self.engine.continue_session(session, Some(message)),
            None => self.engine.start(self.begun().append(message)),
        };
        let turn = if std::mem::take(&mut self.branches) { turn.branch() } else { turn };
        let cancel = CancelHandle::new();
        let mut stream = turn.record(&self.log).cancel_handle(&cancel).stream();
        let resume = |run: &RunId| self.engine.resume(&self.log, run).cancel_handle(&cancel);
        let followed =
            Followed { engine: &self.engine, resume: &resume, prompt: self.prompt.of_person() };
        let work = self.screen.follow(&mut stream, &followed);
        let done = stoppable(&cancel, &self.log, work).await;
        drop(stream);
        let run = self.log.written();
        self.ended(done, run).await
    }

    /// The session with the agent's prompt in place of another one, and what a person should know. The next turn records the whole
    /// conversation.
    fn prompted(&self, session: &Session) -> Option<(Session, &'static str)> {
        let params = self.engine.get_params();
        let prompt = params.get("system").and_then(Value::as_str).filter(|it| !it.is_empty());
        let messages = session.messages();
        let own = messages.iter().next().filter(|first| first.role() == Role::System);
        if own.map(|own| own.text()).as_deref() == prompt {
            return None;
        }
        let rest = messages.iter().skip(usize::from(own.is_some())).cloned();
        let first = prompt.map(|prompt| Arc::new(Message::system(prompt)));
        let mut session = session.clone();
        session.thread.messages = first.into_iter().chain(rest).collect();
        Some((
            session,
            match prompt {
                Some(_) => "the agent's prompt changed; the new one is sent from now on",
                None => "this agent has no prompt; the earlier one is no longer sent",
            },
        ))
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
                let lost = match self.log.is_unavailable() {
                    true => " the log cannot be written;",
                    false => "",
                };
                self.leave_turn(run.as_ref()).await?;
                self.screen.note(&format!(
                    "stopped;{lost} the conversation is as it was before this message; /retry sends it again",
                ));
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
        if let Some(error) = misfit(&resume::facts(self.log.as_ref(), &run).await?) {
            let why = format!("run {run}: {error}");
            if !self.prompt.is_terminal {
                return Err(Failure::finding(why).because(error));
            }
            self.screen.remark(BAD, &why);
            self.screen.note("/retry asks again");
        }
        Ok(Next::Continue)
    }

    /// Ends a turn, and records that the conversation continues from before it.
    async fn leave_turn(&mut self, run: Option<&RunId>) -> Result<(), Failure> {
        self.branches = true;
        // Nothing can be recorded now, and a person would wait for it.
        if self.log.is_unavailable() {
            return Ok(());
        }
        self.log.begin(None).await;
        let (Some(run), Some((_, message))) = (run, &self.unsent) else { return Ok(()) };
        // A run that is not sealed would be continued the next time.
        let _ = cancel_run(&self.log, run).await;
        let message = message.clone();
        self.keep_place(&message).await
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
        self.screen.note(match stored.open {
            Some(_) => {
                "another process has this conversation; /retry sends the message when its turn has ended"
            }
            None => {
                "another process continued this conversation, and it was loaded; /retry sends the message"
            }
        });
        Ok(Next::Continue)
    }

    /// Shows the model, and what the conversation used so far.
    async fn status(&mut self, result: &ChatResult) -> Result<(), Failure> {
        let totals = self.spent().await?;
        // Providers report the tokens at the end of an answer.
        let stopped = (result.halted_reason == HaltReason::Cancelled)
            .then(|| "stopped; the received text stays, and its tokens are not counted".to_owned());
        let name = self.model_name();
        let tokens = format!("{} + {} tokens", totals.input_tokens, totals.output_tokens);
        let cost = cost(totals.cost, "$");
        let context = context_use(&self.engine, result);
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
                None => mynah::log::agents_totals(self.log.as_ref(), run).await?,
            };
            all.add(&agents);
            self.agents.insert(run.run_id.clone(), (run.records, agents));
        }
        Ok(all)
    }

    /// Whether the log has a conversation of this name.
    async fn has(&self, name: &str) -> Result<bool, Failure> {
        let filter = RunFilter::new().session(name).limit(1);
        Ok(!name.is_empty() && !self.log.runs(filter).await?.runs.is_empty())
    }
}

/// Lets work end early: the first interruption cancels it and keeps what it did, a second one leaves it. So does the first if nothing can be
/// kept, because the log is unavailable.
async fn stoppable(
    cancel: &CancelHandle,
    log: &Ledger,
    work: impl Future<Output = Result<Option<ChatResult>, Stop>>,
) -> Result<Option<ChatResult>, Stop> {
    let mut work = pin!(work);
    match select(pin!(interrupted()), work.as_mut()).await {
        Either::Right((done, _)) => return done,
        Either::Left(_) if log.is_unavailable() => return Err(Stop::Interrupted),
        Either::Left(_) => cancel.cancel(),
    }
    match select(pin!(interrupted()), work).await {
        Either::Right((done, _)) => done,
        Either::Left(_) => Err(Stop::Interrupted),
    }
}
