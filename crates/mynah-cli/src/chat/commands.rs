//! The commands of a conversation.

use std::{env, process::Command};

use anstyle::Style;
use mynah::{
    Message, RunId,
    log::{Log as _, RunFilter, RunStatus, RunSummary},
};

use super::{
    Chat, Next, new_id,
    stored::{earlier, emptied, keep, said},
};
use crate::{
    Failure,
    agent::Answered,
    screen::used,
    store,
    text::{self, folded},
    tty::{self, BAD, painted, wrapped},
    written,
};

/// Where the descriptions of the commands begin.
const INDENT: usize = 10;

/// How many lines of a message are shown that is taken back.
const TAKEN: usize = 3;

/// The commands, with what they do.
const COMMANDS: [(&str, &str); 13] = [
    ("/help", "list the commands"),
    ("/cost", "show what this conversation used"),
    ("/model", "show the model, or use another: /model ADAPTER:MODEL"),
    ("/retry", "take the last message back and send it again"),
    ("/undo", "take the last message and its answer back, or more: /undo [N]"),
    ("/fork", "continue in a new conversation, and keep this one: /fork [NAME]"),
    ("/result", "show the last result of a tool in full"),
    ("/runs", "list the runs of this conversation"),
    ("/show", "show the last run: /show [OPTIONS], as of `mynah show`"),
    ("/verify", "verify the last run"),
    ("/export", "write the last run to a file: /export FILE"),
    ("/clear", "begin a new conversation"),
    ("/quit", "leave; Ctrl-D does too"),
];

pub(super) const NAMES: [&str; COMMANDS.len()] = {
    let (mut names, mut place) = ([""; COMMANDS.len()], 0);
    while place < names.len() {
        names[place] = COMMANDS[place].0;
        place += 1;
    }
    names
};

/// Whether a line begins with a command of chats.
pub(crate) fn begins_with_command(line: &str) -> bool {
    line.split_whitespace().next().is_some_and(|word| NAMES.contains(&word))
}

impl Chat {
    pub(super) async fn command(&mut self, command: &str, rest: &str) -> Result<Next, Failure> {
        match command {
            "/quit" => return Ok(Next::Leave),
            "/help" => {
                // What does not fit on a row continues below itself, and not below the name.
                let is_rich = self.screen.looks.is_rich;
                let room =
                    if is_rich { tty::size().0.saturating_sub(INDENT + 2) } else { usize::MAX };
                let lines = COMMANDS.map(|(name, what)| {
                    let rows = wrapped(what.chars().map(|c| (c, Style::new())), room);
                    let rows: Vec<String> = rows.iter().map(|row| painted(row, false)).collect();
                    format!("{name:<8}  {}", rows.join(&format!("\n{:INDENT$}", "")))
                });
                self.screen.note(&lines.join("\n"));
            }
            "/cost" => {
                let totals = self.spent().await?;
                self.screen.note(&used(&totals));
            }
            "/runs" => self.runs().await?,
            "/result" => self.screen.unfold(),
            "/model" => self.model(rest).await,
            "/undo" => match rest.parse() {
                count if count == Ok(0) || count.is_err() && !rest.is_empty() => {
                    self.screen.note("how many messages? /undo N takes back N of them");
                }
                count => {
                    if let Some(taken) = self.undo(count.unwrap_or(1)).await? {
                        self.keep_place(&taken).await?;
                    }
                }
            },
            "/retry" => {
                let message = match self.unsent.take() {
                    Some((_, message)) => Some(message),
                    None => self.undo(1).await?,
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
                self.unsent = None;
                self.screen.forget_approvals();
                if let Some(session) = self.session.take() {
                    let session = session.with_id(&*self.id);
                    self.session = Some(keep(&self.log, &self.engine, &session).await?);
                    self.branches = false;
                }
                self.screen.note(&format!("this is the conversation {} now", self.id));
            }
            "/clear" => {
                (self.id, self.session, self.branches) = (new_id(), None, false);
                (self.before, self.unsent) = (Vec::new(), None);
                self.screen.forget_approvals();
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

    async fn runs(&mut self) -> Result<(), Failure> {
        let filter = RunFilter::new().session(&*self.id).oldest_first().limit(1000);
        for run in self.log.runs(filter).await?.runs.iter().filter(|run| !is_place(run)) {
            self.screen.note(&format!("{}  {}", run.run_id, used(&run.totals)));
        }
        Ok(())
    }

    /// Shows the model, or changes it. The agent is built anew, so that limits and context fit the model.
    async fn model(&mut self, name: &str) {
        if !name.is_empty() {
            match self.who.engine(Some(name), &Answered::default()).await {
                Ok(engine) => {
                    self.engine = engine;
                    for warning in self.who.warnings(name) {
                        self.screen.remark(BAD, &warning);
                    }
                }
                Err(failure) => self.screen.remark(BAD, failure.message()),
            }
        }
        let model = self.model_name();
        self.screen.note(&format!("model: {}", model.as_deref().unwrap_or("unknown")));
    }

    /// Returns to before the last messages, so many. Returns the first of them.
    async fn undo(&mut self, count: usize) -> Result<Option<Message>, Failure> {
        let all = self.session.iter().flat_map(|session| said(session.messages())).count();
        if all > 0 && count > all {
            let all = text::count(all as u64, "message");
            self.screen.note(&format!("the conversation has {all}; nothing was taken back"));
            return Ok(None);
        }
        self.unsent = None;
        let mut first = None;
        for _ in 0..count {
            let known = match (self.before.pop(), &self.session) {
                (None, Some(session)) => earlier(&self.log, session).await?,
                (known, _) => known,
            };
            let Some((session, message)) = known else {
                self.screen.note("there is nothing to take back");
                break;
            };
            // The conversation may have been forked since.
            self.session = session.map(|session| session.with_id(&*self.id));
            self.branches = true;
            self.screen.note(&format!("took back: {}", folded(&message.text(), TAKEN)));
            first = Some(message);
        }
        Ok(first)
    }

    /// Records that the conversation continues from here, and that this message was taken back.
    pub(super) async fn keep_place(&mut self, taken: &Message) -> Result<(), Failure> {
        self.log.begin(None).await;
        match &self.session {
            Some(session) => {
                self.session = Some(keep(&self.log, &self.engine, session).await?);
                self.branches = false;
            }
            None => {
                keep(&self.log, &self.engine, &emptied(self.begun(), taken)).await?;
                self.branches = true;
            }
        }
        Ok(())
    }

    /// The last run of the conversation that asked a model.
    async fn last_run(&self) -> Result<Option<RunId>, Failure> {
        let last = self.session.as_ref().and_then(|session| session.last_run.as_ref());
        let mut next = last.map(|last| last.run_id.clone());
        while let Some(run) = &next
            && self.log.run(run).await?.is_some_and(|run| is_place(&run))
        {
            next = store::needed(self.log.as_ref(), run).await?.into_iter().next();
        }
        Ok(next)
    }

    /// Runs another verb of this program on the last run.
    async fn verb(&mut self, verb: &str, words: &[&str]) -> Result<(), Failure> {
        let why = match self.last_run().await? {
            None => "nothing was said yet",
            Some(_) if self.place == "memory:" => {
                "the log is in memory, where no other program can read it; --log names a file"
            }
            Some(run) => return self.verb_on(&run, verb, words).await,
        };
        self.screen.note(why);
        Ok(())
    }

    async fn verb_on(&mut self, run: &RunId, verb: &str, words: &[&str]) -> Result<(), Failure> {
        written(self.screen.end())?;
        self.log.begin(None).await;
        let program = env::current_exe().map_err(|error| Failure::file(error.to_string()))?;
        let run = Command::new(program)
            .arg(verb)
            .arg(&**run)
            .args(words)
            .args(["--log", &self.place])
            .status();
        if let Err(error) = run {
            self.screen.remark(BAD, &format!("mynah {verb}: {error}"));
        }
        Ok(())
    }
}

/// Whether a run asked no model, and only keeps the place of a conversation.
fn is_place(run: &RunSummary) -> bool {
    run.status == RunStatus::Cancelled && run.totals.turns == 0
}
