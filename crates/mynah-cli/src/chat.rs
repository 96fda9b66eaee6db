//! `mynah chat`: a conversation with an agent, line by line.

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
    sync::Arc,
};

use clap::Args;
use mynah::{
    Engine, Session, kept_call,
    log::{Log as _, RunFilter, Totals},
    restore_session, restore_turn,
};

use crate::{
    Failure, LogArgs,
    agent::{self, VarArgs},
    generate::failed,
    ledger::Ledger,
    log_flag, now, resume, runtime,
    screen::{Lines, Screen, Stop, used},
    store::Place,
    text::quoted,
    unless_interrupted, written,
};

pub(crate) const EXAMPLES: &str = "Examples:
  mynah chat agent.toml
  mynah chat agent.toml --continue         the newest conversation of the log

Each line is a message. /help lists the commands. Calls that need approval and questions are answered by the next line.
Ctrl-C stops an answer and keeps the conversation; Ctrl-D or /quit leaves.
Exit codes: 0 done; 2 wrong usage, a bad agent file; 3 a run waits; 4 a log or file that could not be used.";

const HELP: &str = "/cost  what this conversation used\n  /runs  its runs\n  /quit  leave; --continue returns\n  /help  this list";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// The agent file, or a scenario.
    agent: PathBuf,
    /// Continue the newest conversation of the log.
    #[arg(long = "continue")]
    resumes: bool,
    #[command(flatten)]
    vars: VarArgs,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: place, agent, resumes, vars } = arguments;
    let log = Arc::new(Ledger::new(Place::parse(&place.log)?.open()?));
    runtime()?.block_on(async {
        let session = if resumes { Some(newest(&log).await?) } else { None };
        let answers = match session.as_ref().and_then(|session| session.last_run.as_ref()) {
            Some(last) => resume::answers(&log, &last.run_id).await?,
            None => Vec::new(),
        };
        let mut chat = Chat {
            engine: agent::load(&agent, &vars, &answers).await?,
            id: session.as_ref().and_then(|session| session.id.clone()).unwrap_or_else(new_id),
            session,
            branches: false,
            screen: Screen::new(place.json),
            lines: Lines::new(),
            log,
        };
        let waits = chat.converse().await?;
        written(chat.screen.end())?;
        if let Some(run) = waits {
            return resume::Arguments::new(place, run.clone(), agent, vars)
                .judge(&chat.log, &run)
                .await;
        }
        if chat.session.is_some() && !place.json {
            let who = quoted(&agent.to_string_lossy());
            let flags = format!("{}{}", vars.flags(), log_flag(&place.log));
            chat.screen.note(&format!("continue with: mynah chat {who} --continue{flags}"));
        }
        Ok(())
    })
}

fn new_id() -> String {
    format!("chat-{:x}", now())
}

/// The newest conversation of a log.
async fn newest(log: &Arc<Ledger>) -> Result<Session, Failure> {
    let mut filter = RunFilter::new().limit(256);
    loop {
        let page = log.runs(filter.clone()).await?;
        let mut ids = page.runs.iter().filter_map(|run| run.session_id.as_deref());
        if let Some(id) = ids.find(|id| id.starts_with("chat-")) {
            return Ok(restore_session(log, id).await?.session);
        }
        let Some(next) = page.next else {
            return Err(Failure::input("there is no conversation in this log to continue"));
        };
        filter = filter.after(next);
    }
}

struct Chat {
    engine: Engine,
    log: Arc<Ledger>,
    id: String,
    /// None before the first answer.
    session: Option<Session>,
    /// Whether a turn was left behind, so that the next one starts beside it.
    branches: bool,
    screen: Screen,
    lines: Lines,
}

impl Chat {
    /// Takes line after line. Returns a run that waits for an answer that did not come.
    async fn converse(&mut self) -> Result<Option<String>, Failure> {
        // A question that was left open is asked again.
        let last = self.session.as_ref().and_then(|session| session.last_run.clone());
        if let Some(last) = last.filter(|last| last.waits)
            && let Some(mut result) = kept_call(&self.log, &last.run_id).await?.waiting
        {
            result.run_id.get_or_insert_with(|| last.run_id.clone());
            let settled =
                self.screen.settle(result, &self.engine, &self.log, &mut self.lines).await;
            if let Some(run) = self.ended(settled.map(Some)).await? {
                return Ok(Some(run));
            }
        }
        let prompt = if io::stdin().is_terminal() { "\n> " } else { "" };
        loop {
            let Some(line) = unless_interrupted(self.lines.ask(prompt)).await else { break };
            let Some(line) = line? else { break };
            match line.trim() {
                "" => {}
                "/quit" | "/exit" => break,
                "/help" => self.screen.note(HELP),
                "/cost" => self.cost().await?,
                "/runs" => self.runs().await?,
                other if other.starts_with('/') && !other.contains(' ') => {
                    self.screen.note(&format!("no command is called {other}; /help lists them"));
                }
                text => {
                    if let Some(run) = self.turn(text).await? {
                        return Ok(Some(run));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Says something to the agent, and shows what it does.
    async fn turn(&mut self, text: &str) -> Result<Option<String>, Failure> {
        self.log.begin(None).await;
        let turn = match &self.session {
            Some(session) => self.engine.reply(session, text),
            None => self.engine.start(Session::from(text).with_id(&*self.id)),
        };
        let turn = if std::mem::take(&mut self.branches) { turn.branch() } else { turn };
        let mut stream = turn.record(&self.log).stream();
        let work = self.screen.follow(&mut stream, &self.engine, &self.log, Some(&mut self.lines));
        let done = unless_interrupted(work).await;
        drop(stream);
        match done {
            Some(done) => self.ended(done).await,
            None => {
                self.branches = true;
                self.screen.note("stopped; the conversation is as it was before");
                Ok(None)
            }
        }
    }

    /// Takes in how a turn ended. Returns the run if it waits.
    async fn ended(
        &mut self,
        done: Result<Option<mynah::ChatResult>, Stop>,
    ) -> Result<Option<String>, Failure> {
        let result = match done {
            Err(Stop::Failed(failure)) => return Err(failure),
            // Before the first answer there is nothing to return to.
            Err(Stop::Refused(error)) if self.session.is_none() => return Err(failed(&error, 1)),
            Err(Stop::Refused(error)) => {
                self.branches = true;
                self.screen.note(&format!("failed: {error}"));
                return Ok(None);
            }
            Ok(None) => return Ok(None),
            Ok(Some(result)) => result,
        };
        let Some(run) = result.run_id.clone() else { return Ok(None) };
        self.screen.totals(&self.log, &run).await?;
        if let Some(error) = result.error() {
            self.branches = true;
            self.screen.note(&format!("failed: {error}"));
            return Ok(None);
        }
        let session = restore_turn(&self.log, &run).await?.session;
        let waits = session.last_run.as_ref().is_some_and(|last| last.waits);
        self.session = Some(session);
        Ok(waits.then(|| run.to_string()))
    }

    async fn cost(&mut self) -> Result<(), Failure> {
        let page = self.log.runs(RunFilter::new().session(&*self.id).limit(1000)).await?;
        let mut all = Totals::default();
        for run in &page.runs {
            all.turns += run.totals.turns;
            all.tool_calls += run.totals.tool_calls;
            all.input_tokens += run.totals.input_tokens;
            all.output_tokens += run.totals.output_tokens;
            all.cost += run.totals.cost;
        }
        self.screen.note(&used(&all));
        Ok(())
    }

    async fn runs(&mut self) -> Result<(), Failure> {
        let filter = RunFilter::new().session(&*self.id).oldest_first().limit(1000);
        for run in &self.log.runs(filter).await?.runs {
            self.screen.note(&format!("{}  {}", run.run_id, used(&run.totals)));
        }
        Ok(())
    }
}
