//! An agent at work in a terminal: its text on standard output, everything else on standard error.

use std::{
    collections::HashMap,
    env,
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    sync::Arc,
    thread,
};

use futures_util::{Stream, StreamExt as _};
use mynah::{
    ChatResult, Engine, Event, HaltReason, ToolOutcome,
    log::{Log as _, Totals},
};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::{
    Failure,
    ledger::Ledger,
    now,
    steady::Steady,
    text::{Span, count, for_stdout, plain, short},
    written,
};

/// How much of a tool's arguments and result is shown.
const WIDTH: usize = 100;

/// Lines of standard input, which are read beside the work.
pub(crate) struct Lines {
    lines: UnboundedReceiver<io::Result<String>>,
    is_terminal: bool,
}

impl Lines {
    pub(crate) fn new() -> Self {
        let (sender, lines) = unbounded_channel();
        // A thread of its own: one of the runtime's would have to end before the program can.
        thread::spawn(move || {
            for line in io::stdin().lock().lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { lines, is_terminal: io::stdin().is_terminal() }
    }

    /// Asks for a line; none at the end of the input.
    pub(crate) async fn ask(&mut self, prompt: &str) -> Result<Option<String>, Failure> {
        let _ = write!(io::stderr(), "{prompt}");
        let _ = io::stderr().flush();
        let line = self.lines.recv().await.transpose();
        if !self.is_terminal {
            let _ = writeln!(io::stderr());
        }
        line.map_err(|error| Failure::file(format!("standard input: {error}")))
    }

    /// Forgets what was typed before a question was shown. What is piped in is meant for it.
    fn forget(&mut self) {
        while self.is_terminal && self.lines.try_recv().is_ok() {}
    }
}

/// Shows what happens: as text, or one JSON value a line.
pub(crate) struct Screen {
    json: bool,
    /// Whether the line of text has no end yet.
    is_open: bool,
    /// Whether standard error shows colours.
    colours: bool,
    /// The tools at work: their names, and when they began. Then how long they took, and whether they failed.
    tools: HashMap<String, (String, i64, bool)>,
    out: Steady<io::Stdout>,
}

impl Screen {
    pub(crate) fn new(json: bool) -> Self {
        let wanted = env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
        Self {
            json,
            is_open: false,
            colours: wanted && io::stderr().is_terminal(),
            tools: HashMap::new(),
            out: Steady::new(io::stdout()),
        }
    }

    /// Shows a stream to its end. The result is none if the stream had none.
    async fn show(
        &mut self,
        stream: &mut (impl Stream<Item = mynah::Result<Event>> + Unpin),
    ) -> Result<Option<ChatResult>, Stop> {
        let mut result = None;
        while let Some(event) = stream.next().await {
            let event = event.map_err(Stop::Refused)?;
            written(self.tell(&event))?;
            if let Event::ChatCompleted { result: completed } = event {
                result = Some(*completed);
            }
        }
        written(self.close())?;
        Ok(result)
    }

    /// Shows a stream to its end, and lets a person answer what the run then waits for, until it ends or nobody answers.
    pub(crate) async fn follow(
        &mut self,
        stream: &mut (impl Stream<Item = mynah::Result<Event>> + Unpin),
        engine: &Engine,
        log: &Arc<Ledger>,
        lines: Option<&mut Lines>,
    ) -> Result<Option<ChatResult>, Stop> {
        let result = self.show(stream).await?;
        match (result, lines) {
            (Some(result), Some(lines)) => self.settle(result, engine, log, lines).await.map(Some),
            (result, _) => Ok(result),
        }
    }

    /// Lets a person answer what a run waits for, until it ends or nobody answers.
    pub(crate) async fn settle(
        &mut self,
        mut result: ChatResult,
        engine: &Engine,
        log: &Arc<Ledger>,
        lines: &mut Lines,
    ) -> Result<ChatResult, Stop> {
        while let Some(run) = result.run_id.clone() {
            let mut resume = engine.resume(log, &*run);
            match result.halted_reason {
                HaltReason::AskUser => {
                    let question = plain(result.pending_question.as_deref().unwrap_or_default());
                    lines.forget();
                    let Some(answer) = lines.ask(&format!("{question}\n? ")).await? else { break };
                    resume = resume.answer(answer);
                }
                HaltReason::ManualToolCalls => {
                    let calls = result.manual_tool_calls();
                    let mut decided = 0;
                    for call in &calls {
                        lines.forget();
                        let arguments = plain(&call.arguments.to_string());
                        let question =
                            format!("run {} {arguments}? [y/N, or why not] ", plain(&call.name));
                        let Some(said) = lines.ask(&question).await? else { break };
                        resume = match said.trim() {
                            "y" | "Y" | "yes" => resume.approve(&call.id),
                            "" | "n" | "N" | "no" => resume.reject(&call.id, ""),
                            why => resume.reject(&call.id, why),
                        };
                        decided += 1;
                    }
                    if decided < calls.len() {
                        break;
                    }
                }
                _ => break,
            }
            let mut stream = resume.stream().started().await.map_err(Stop::Refused)?;
            match self.show(&mut stream).await? {
                Some(next) => result = next,
                None => break,
            }
        }
        Ok(result)
    }

    fn tell(&mut self, event: &Event) -> io::Result<()> {
        if self.json {
            return self.line(&json!({"event": event}));
        }
        match event {
            Event::TextDelta { delta, .. } if !delta.is_empty() => {
                self.is_open = !delta.ends_with('\n');
                write!(self.out, "{}", for_stdout(delta))?;
            }
            Event::MessageCompleted { .. } => self.close()?,
            Event::ToolExecutionStarted { id, name, arguments } => {
                self.tools.insert(id.clone(), (name.clone(), now(), false));
                self.note(&format!("> {name} {}", short(&arguments.to_string(), WIDTH)));
            }
            Event::ToolExecutionCompleted { id, result, .. } => {
                if let Some((_, since, is_failed)) = self.tools.get_mut(id) {
                    *since = now().saturating_sub(*since);
                    *is_failed = matches!(result, ToolOutcome::Error { .. });
                }
            }
            Event::ToolResultEncoded { id, content } => {
                if let Some((name, took, is_failed)) = self.tools.remove(id) {
                    let how = if is_failed { "failed after" } else { "took" };
                    let content = short(content, WIDTH);
                    self.note(&format!("< {name} {how} {}: {content}", Span(took)));
                }
            }
            _ => {}
        }
        self.out.flush()
    }

    /// Writes a line that is not part of the answer.
    pub(crate) fn note(&mut self, text: &str) {
        // Nobody may be left to read it.
        let (dim, end) = if self.colours { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        let _ = self.close();
        let _ = writeln!(io::stderr(), "{dim}  {}{end}", plain(text));
    }

    /// Writes what a run used.
    pub(crate) async fn totals(&mut self, log: &Ledger, run: &str) -> Result<(), Failure> {
        let summary = log.run(run).await?.filter(|_| !self.json);
        if let Some(run) = summary {
            let took = Span(run.updated.saturating_sub(run.started));
            self.note(&format!("{}, {took}", used(&run.totals)));
        }
        Ok(())
    }

    pub(crate) fn line(&mut self, value: &Value) -> io::Result<()> {
        writeln!(self.out, "{value}")?;
        self.out.flush()
    }

    /// Ends a line that was begun, and returns what writing came to.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.close()?;
        self.out.end()
    }

    fn close(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_open) {
            writeln!(self.out)?
        }
        self.out.flush()
    }
}

/// What was used, in a few words.
pub(crate) fn used(totals: &Totals) -> String {
    let cost = if totals.cost > 0.0 { format!(", ${:.4}", totals.cost) } else { String::new() };
    format!(
        "{}, {}, {} + {} tokens{cost}",
        count(totals.turns, "turn"),
        count(totals.tool_calls, "tool call"),
        totals.input_tokens,
        totals.output_tokens
    )
}

/// Why a run did not continue.
pub(crate) enum Stop {
    Refused(mynah::Error),
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}
