//! Lines that a person types, or that are piped in.

use std::{
    env, fs,
    io::{self, IsTerminal as _},
    path::PathBuf,
    sync::mpsc,
    thread,
};

use rustyline::{
    Cmd, ColorMode, CompletionType, Config, Context, Editor, EventHandler, Helper, KeyCode,
    KeyEvent, Modifiers,
    completion::{Completer, FilenameCompleter, Pair},
    config::BellStyle,
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::FileHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};
use tokio::sync::oneshot;

use super::{Looks, markdown::fence};
use crate::Failure;

/// What a person entered.
#[derive(Debug, PartialEq)]
pub(crate) enum Entered {
    Line(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D, or the end of what is piped in.
    End,
}

/// What is read.
pub(crate) enum Reads {
    /// A message, which may have several lines and joins the history.
    Message,
    /// One line.
    Answer,
    /// One line that begins as this text.
    Edit(String),
}

struct Request {
    prompt: (String, String),
    reads: Reads,
    entered: oneshot::Sender<rustyline::Result<String>>,
}

/// Reads lines on a thread of its own, so that the work beside it continues.
pub(crate) struct Prompt {
    requests: mpsc::Sender<Request>,
    pub(crate) is_terminal: bool,
    looks: Looks,
    #[cfg(unix)]
    mode: Option<rustix::termios::Termios>,
}

impl Prompt {
    /// Completes these words at the beginning of a message.
    pub(crate) fn new(looks: Looks, commands: &'static [&'static str]) -> Self {
        let (requests, receiver) = mpsc::channel();
        let is_terminal = io::stdin().is_terminal();
        let history = is_terminal.then(history_file).flatten();
        thread::spawn(move || read(receiver, looks, commands, history));
        Self {
            requests,
            is_terminal,
            looks,
            #[cfg(unix)]
            mode: rustix::termios::tcgetattr(io::stdin()).ok(),
        }
    }

    /// The same, if a person is there to answer: a line of a pipe answers no question.
    pub(crate) fn of_person(&self) -> Option<&Self> {
        self.is_terminal.then_some(self)
    }

    /// Asks for a line.
    pub(crate) async fn ask(&self, prompt: &str, reads: Reads) -> Result<Entered, Failure> {
        let (sender, entered) = oneshot::channel();
        let styled = self.looks.paint(super::ASKS, prompt);
        let prompt = (prompt.to_owned(), styled);
        let sent = self.requests.send(Request { prompt, reads, entered: sender });
        match (sent, entered.await) {
            (Ok(()), Ok(Ok(line))) => Ok(Entered::Line(line)),
            (Ok(()), Ok(Err(ReadlineError::Interrupted))) => Ok(Entered::Interrupted),
            (Ok(()), Ok(Err(ReadlineError::Eof))) | (Err(_), _) | (_, Err(_)) => Ok(Entered::End),
            (Ok(()), Ok(Err(error))) => Err(Failure::file(format!("standard input: {error}"))),
        }
    }

    /// Keeps what is typed out of an answer while that is shown: the next line begins with it. It is as before when the guard is dropped.
    #[cfg(unix)]
    pub(crate) fn silenced(&self) -> impl Drop + use<'_> {
        use rustix::termios::LocalModes;
        if let Some(mode) = &self.mode {
            let mut silent = mode.clone();
            silent.local_modes.remove(LocalModes::ECHO);
            self.set(&silent);
        }
        Restored(self)
    }

    #[cfg(unix)]
    fn set(&self, mode: &rustix::termios::Termios) {
        // A terminal that cannot be set stays as it is.
        let now = rustix::termios::OptionalActions::Now;
        let _ = rustix::termios::tcsetattr(io::stdin(), now, mode);
    }

    /// Forgets what was typed before a question was shown. What is piped in is meant for it.
    pub(crate) fn forget(&self) {
        #[cfg(unix)]
        if self.is_terminal {
            // What cannot be forgotten is read.
            let _ = rustix::termios::tcflush(io::stdin(), rustix::termios::QueueSelector::IFlush);
        }
    }
}

#[cfg(unix)]
impl Drop for Prompt {
    fn drop(&mut self) {
        // A line that is still being read left the terminal in its own mode.
        self.mode.iter().for_each(|mode| self.set(mode));
    }
}

/// Puts a terminal back into its mode.
#[cfg(unix)]
struct Restored<'a>(&'a Prompt);

#[cfg(unix)]
impl Drop for Restored<'_> {
    fn drop(&mut self) {
        self.0.mode.iter().for_each(|mode| self.0.set(mode));
    }
}

fn read(
    requests: mpsc::Receiver<Request>,
    looks: Looks,
    commands: &'static [&'static str],
    history: Option<PathBuf>,
) {
    let colours = if looks.colours { ColorMode::Enabled } else { ColorMode::Disabled };
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .bell_style(BellStyle::None)
        .color_mode(colours)
        // Esc alone is no beginning of the next key.
        .keyseq_timeout(Some(100))
        .build();
    let editor = |is_message| {
        let mut editor = Editor::<Words, FileHistory>::with_config(config.clone())?;
        let files = FilenameCompleter::new();
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        #[cfg(unix)]
        if let Ok(mode) = rustix::termios::tcgetattr(io::stdin()) {
            let suspend = super::suspend::Suspend { mode };
            editor.bind_sequence(KeyEvent::ctrl('Z'), EventHandler::Conditional(Box::new(suspend)));
        }
        editor.set_helper(Some(Words { commands, files, is_message }));
        rustyline::Result::Ok(editor)
    };
    let Ok(mut messages) = editor(true) else { return };
    if let Some(file) = &history {
        // A missing history is empty.
        let _ = messages.load_history(file);
    }
    while let Ok(Request { prompt, reads, entered }) = requests.recv() {
        let is_message = matches!(reads, Reads::Message);
        // An editor keeps what was typed after a line for the next one. That is no answer to a question which was not shown yet.
        let mut line = match &reads {
            Reads::Message => messages.readline(&prompt),
            Reads::Answer => editor(false).and_then(|mut editor| editor.readline(&prompt)),
            Reads::Edit(text) => editor(false)
                .and_then(|mut editor| editor.readline_with_initial(&prompt, (text, ""))),
        };
        if let (true, Ok(text)) = (is_message, &mut line) {
            if !text.trim().is_empty() && messages.add_history_entry(&*text).unwrap_or(false) {
                // A history that cannot be written stops no conversation.
                let _ = history.as_ref().map(|file| messages.append_history(file));
            }
            *text = text.replace("\\\n", "\n");
        }
        if entered.send(line).is_err() {
            break;
        }
    }
}

/// The path of the history: in the XDG folders, or as on Windows.
fn history_file() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).filter(|set| !set.is_empty()).map(PathBuf::from);
    let state = folder("XDG_STATE_HOME")
        .or_else(|| folder("LOCALAPPDATA"))
        .or_else(|| folder("HOME").map(|home| home.join(".local/state")))?;
    let folder = state.join("mynah");
    fs::create_dir_all(&folder).ok()?;
    Some(folder.join("history"))
}

/// Completes commands and file names, and knows when a message is complete.
struct Words {
    commands: &'static [&'static str],
    files: FilenameCompleter,
    is_message: bool,
}

impl Completer for Words {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        place: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..place];
        if self.is_message && typed.starts_with('/') && !typed.contains(' ') {
            let fits = self.commands.iter().filter(|command| command.starts_with(typed));
            let pair = |command: &&str| Pair {
                display: (*command).to_owned(),
                replacement: format!("{command} "),
            };
            let found: Vec<Pair> = fits.map(pair).collect();
            if !found.is_empty() {
                return Ok((0, found));
            }
        }
        self.files.complete(line, place, context)
    }
}

impl Validator for Words {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let text = context.input();
        let in_fence =
            text.lines().fold(None, |open: Option<&str>, line| match (open, fence(line)) {
                (None, found) => found.map(|(mark, _)| mark),
                (Some(open), Some((end, ""))) if end.starts_with(open) => None,
                _ => open,
            });
        let is_open = self.is_message && (text.ends_with('\\') || in_fence.is_some());
        Ok(if is_open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Highlighter for Words {}

impl Hinter for Words {
    type Hint = String;
}

impl Helper for Words {}
