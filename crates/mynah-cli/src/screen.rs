//! An agent at work: its answer, what its tools do, and its questions to a person.
//!
//! In a terminal the answer is rendered and tools have spinners. Elsewhere the answer is text on standard output, and everything
//! else goes to standard error.

mod decisions;
mod wording;

use std::{
    collections::{HashMap, HashSet},
    io::{self, IsTerminal as _, Write as _},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use anstyle::Style;
use futures_util::{
    Stream, StreamExt as _,
    future::{Either, select},
};
use mynah::{
    ChatResult, Decision, Engine, ErrorKind, Event, FinishReason, HANDOFF, HaltReason, Message,
    Resume, RunId, ToolOutcome,
    log::{Fact, Log as _},
    recorded_call,
};
use mynah_agent::answer::cut_off;
use serde_json::{Value, json};

use self::wording::{arguments_of, brief, head, printed, reached};
pub(crate) use self::wording::{context_room, context_use, thousands, used};
use crate::{
    Failure,
    best_effort::BestEffortWriter,
    describe::{TOOK_OVER, left_out, refusal},
    ledger::Ledger,
    now, store,
    text::{Span, count, for_stdout, line, plain, short},
    tty::{self, ASKS, BAD, DIM, GOOD, Live, Looks, Markdown, Prompt, painted, wrapped},
    written,
};

/// How much of a tool's arguments and result is shown where there are no rows.
const WIDTH: usize = 100;

/// How many rows of a tool's result are shown in a terminal.
const FOLDED: usize = 4;

/// What the model reads in place of the result of a call that was not run.
const CUT_SHORT: &str = "the turn ended before this call had a result";

/// How the note begins that follows the result of a call whose arguments a person changed.
const EDITED: &str = "\n\n[A person changed the arguments of this call";

/// The shortest time between two drawings of rows that change, in nanoseconds.
const FRAME: i64 = 50_000_000;

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// Shows what happens: as text, or one JSON value a line.
pub(crate) struct Screen {
    json: bool,
    pub(crate) looks: Looks,
    live: Live,
    markdown: Markdown,
    /// Whether the line of text has no end yet.
    is_open: bool,
    /// Whether the model formats the answer: JSON, and nothing that it says to a person.
    is_finalizing: bool,
    /// Whether programs read the answer: JSON by a schema.
    is_form: bool,
    tools: Vec<Working>,
    /// The arguments that are not JSON, by the ids of their calls.
    malformed: HashMap<String, String>,
    /// Whether the last rows are those of a tool, so that an answer is set apart from them.
    is_after_tool: bool,
    /// Since when the model has been asked and has shown nothing.
    waits_since: Option<i64>,
    frame: usize,
    /// The last result of a tool.
    result: String,
    /// The tools whose calls a person approved for all of the session.
    always: HashSet<String>,
    /// Decisions that were refused because of their arguments, by the ids of the calls.
    made: HashMap<String, Decision>,
    out: BestEffortWriter<io::Stdout>,
}

/// A tool at work, or one whose result is about to come.
struct Working {
    id: String,
    name: String,
    arguments: String,
    since: i64,
    /// How far it has come, as it says.
    progress: String,
    /// What it does now, as it says, if that has no measure.
    doing: String,
    /// How long it took, and whether it failed.
    done: Option<(i64, bool)>,
}

impl Screen {
    pub(crate) fn new(json: bool) -> Self {
        let looks = Looks::detect();
        let looks = if json { Looks { is_rich: false, colours: false } } else { looks };
        Self {
            json,
            looks,
            live: Live::default(),
            markdown: Markdown::new(looks.colours),
            is_open: false,
            is_finalizing: false,
            is_form: false,
            tools: Vec::new(),
            malformed: HashMap::new(),
            is_after_tool: false,
            waits_since: None,
            frame: 0,
            result: String::new(),
            always: HashSet::new(),
            made: HashMap::new(),
            out: BestEffortWriter::new(io::stdout()),
        }
    }

    /// Shows a stream to its end. The result is none if the stream had none.
    async fn show(
        &mut self,
        stream: &mut (impl Stream<Item = mynah::Result<Event>> + Unpin),
        prompt: Option<&Prompt>,
    ) -> Result<Option<ChatResult>, Stop> {
        #[cfg(unix)]
        let _silenced = prompt.map(Prompt::silenced);
        self.waits_since = Some(now());
        let (mut result, mut drawn, mut is_answered) = (None, 0, false);
        loop {
            // An answer may come in thousands of pieces.
            if self.live.is_empty() || now() >= drawn + FRAME {
                written(self.redraw())?;
                drawn = now();
            }
            let event = match self.looks.is_rich {
                false => stream.next().await,
                true => {
                    let tick = tokio::time::sleep(Duration::from_millis(100));
                    match select(stream.next(), pin!(tick)).await {
                        Either::Left((event, _)) => event,
                        Either::Right(_) => {
                            self.frame += 1;
                            continue;
                        }
                    }
                }
            };
            let Some(event) = event.transpose()? else { break };
            written(self.tell(&event))?;
            match event {
                Event::MessageStarted { .. } | Event::ToolHalt { .. } => is_answered = true,
                Event::ChatCompleted { result: completed } => {
                    self.not_run(&completed);
                    // An answer that was recorded before is not streamed again.
                    let is_new = !is_answered && !completed.is_halted();
                    let is_held = self.holds_text() && !completed.is_halted();
                    if !self.json && (is_new || is_held) {
                        self.is_form = false;
                        written(self.say(&completed.text()))?;
                    }
                    result = Some(*completed);
                }
                _ => {}
            }
        }
        written(self.stop_tools())?;
        written(self.close())?;
        Ok(result)
    }

    /// Shows a stream to its end, and lets a person answer what the run then waits for, until it ends or the person leaves.
    pub(crate) async fn follow(
        &mut self,
        stream: &mut (impl Stream<Item = mynah::Result<Event>> + Unpin),
        run: &Followed<'_>,
    ) -> Result<Option<ChatResult>, Stop> {
        self.tools.clear();
        self.malformed.clear();
        self.is_form = run.engine.get_params().contains_key("response_format");
        match (self.show(stream, run.prompt).await?, run.prompt) {
            (Some(result), Some(prompt)) => self.settle(result, run, prompt).await.map(Some),
            (result, _) => Ok(result),
        }
    }

    /// Lets a person answer what a run waits for, until it ends or the person leaves.
    async fn settle(
        &mut self,
        mut result: ChatResult,
        followed: &Followed<'_>,
        prompt: &Prompt,
    ) -> Result<ChatResult, Stop> {
        while let Some(run) = result.run_id.clone() {
            let resume = (followed.resume)(&run);
            let decided = self.decide(&result, resume, followed.engine, prompt).await?;
            let Some(resume) = decided else { break };
            let mut stream = match resume.stream().started().await {
                Ok(stream) => stream,
                // A person can correct what they entered.
                Err(error) if matches!(error.kind(), ErrorKind::Tool(_)) && prompt.is_terminal => {
                    self.remark(BAD, &error.to_string());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            self.made.clear();
            match self.show(&mut stream, Some(prompt)).await? {
                Some(next) => result = next,
                None => break,
            }
        }
        Ok(result)
    }

    /// Continues a run, or asks what it waits for.
    pub(crate) async fn resume(
        &mut self,
        log: &Arc<Ledger>,
        run: &RunId,
        followed: &Followed<'_>,
    ) -> Result<Option<ChatResult>, Stop> {
        if let (Some(mut waiting), Some(prompt)) =
            (recorded_call(log, run).await?.result, followed.prompt)
        {
            waiting.run_id.get_or_insert_with(|| run.clone());
            // What the model wrote before the call that is asked about.
            let before = waiting.text();
            if !before.is_empty() {
                written(self.say(&before).and_then(|()| self.close()))?;
            }
            return self.settle(waiting, followed, prompt).await.map(Some);
        }
        let mut stream = (followed.resume)(run).stream().started().await?;
        self.follow(&mut stream, followed).await
    }

    /// Where questions are answered: none without a person at a terminal.
    pub(crate) fn prompt(&self) -> Option<Prompt> {
        let asks = !self.json && io::stdin().is_terminal() && io::stderr().is_terminal();
        asks.then(|| Prompt::new(self.looks, &[]))
    }

    fn tell(&mut self, event: &Event) -> io::Result<()> {
        if self.json {
            return self.line(&json!({"event": event}));
        }
        match event {
            Event::MessageStarted { finalizing, .. } => self.is_finalizing = *finalizing,
            Event::TextDelta { delta, .. } if !delta.is_empty() => self.say(delta)?,
            Event::MessageCompleted { .. } => {
                self.close()?;
                self.waits_since = None;
            }
            Event::ToolCallCompleted(call) if call.argument_error().is_some() => {
                self.malformed.insert(call.id.clone(), call.raw_arguments.clone());
            }
            Event::ToolExecutionStarted { id, name, arguments, .. } => {
                self.waits_since = None;
                let raw = self.malformed.get(id).cloned();
                if !self.looks.is_rich {
                    let arguments = line(&raw.clone().unwrap_or_else(|| arguments.to_string()));
                    self.note(&format!("> {name} {}", short(&arguments, WIDTH)));
                }
                let arguments = line(&raw.unwrap_or_else(|| brief(arguments)));
                let (id, name) = (id.clone(), name.clone());
                let (progress, doing) = (String::new(), String::new());
                let (since, done) = (now(), None);
                self.tools.push(Working { id, name, arguments, since, progress, doing, done });
            }
            Event::ToolExecutionProgress { id, progress, total, message, .. } => {
                if let Some(tool) = self.tools.iter_mut().find(|tool| tool.id == *id) {
                    match (total, message) {
                        (None, Some(message)) => tool.doing = line(message),
                        _ => tool.progress = reached(*progress, *total, message.as_deref()),
                    }
                }
            }
            Event::ToolExecutionCompleted { id, result, .. } => {
                let tool = self.tools.iter_mut().find(|tool| tool.id == *id);
                if let Some(tool) = tool {
                    let took = now().saturating_sub(tool.since);
                    tool.done = Some((took, matches!(result, ToolOutcome::Error { .. })));
                }
            }
            Event::ToolResultEncoded { id, content, .. } => self.result(id, content)?,
            // Another agent answers in place of the model.
            Event::ToolHalt { tool_call_id, reason, result: Value::String(answer), .. }
                if reason.as_str() == HANDOFF =>
            {
                self.result(tool_call_id, TOOK_OVER)?;
                self.say(answer)?;
                self.close()?;
            }
            Event::AskUserRequested { tool_call_id, .. } => {
                self.tools.retain(|tool| tool.id != *tool_call_id);
            }
            Event::StepCompleted { response, .. } if cut_off(response).is_some() => {
                let how = cut_off(response).unwrap_or_default();
                self.remark(BAD, &format!("the answer was cut off {how}"));
            }
            // The model is asked again.
            Event::StepCompleted { response, .. }
                if response.finish_reason == Some(FinishReason::ToolCalls) =>
            {
                self.waits_since = Some(now());
            }
            Event::ChatCompleted { .. } => self.waits_since = None,
            _ => {}
        }
        self.out.flush()
    }

    /// Shows a piece of the answer.
    fn say(&mut self, piece: &str) -> io::Result<()> {
        if self.holds_text() {
            return Ok(());
        }
        if !self.looks.is_rich {
            self.is_open = !piece.ends_with('\n');
            return write!(self.out, "{}", for_stdout(piece));
        }
        self.waits_since = None;
        // JSON for programs is no Markdown.
        let fence = if self.is_finalizing && !self.is_open { "```json\n" } else { "" };
        self.is_open = true;
        let rows = self.markdown.push(&format!("{fence}{piece}"), tty::size().0);
        if std::mem::take(&mut self.is_after_tool) {
            self.pause()?;
        }
        self.live.print(&mut self.out, &rows)
    }

    /// Whether nothing is shown before the answer is complete: of what the model says, a program reads only that.
    fn holds_text(&self) -> bool {
        self.is_form && !self.looks.is_rich
    }

    /// Shows the result of a tool: folded in a terminal.
    fn result(&mut self, id: &str, content: &str) -> io::Result<()> {
        let Some(place) = self.tools.iter().position(|tool| tool.id == id) else { return Ok(()) };
        let Working { name, arguments, done, .. } = self.tools.remove(place);
        let (took, is_failed) = done.unwrap_or_default();
        let (own, note) = content.split_at(content.rfind(EDITED).unwrap_or(content.len()));
        let printed =
            serde_json::from_str(own).map_or(content.to_owned(), |value| printed(&value) + note);
        self.result = plain(&printed).trim_end().replace('\t', "    ");
        if !self.looks.is_rich {
            let how = if is_failed { "failed after" } else { "took" };
            self.note(&format!("< {name} {how} {}: {}", Span(took), short(content, WIDTH)));
            return Ok(());
        }
        self.is_after_tool = true;
        let (mark, style) = if is_failed { ("✗", BAD) } else { ("✓", GOOD) };
        let columns = tty::size().0;
        let head = head(&name, &arguments, &Span(took).to_string(), columns);
        let mut rows = vec![format!("{} {head}", self.looks.paint(style, mark))];
        let lines: Vec<&str> = self.result.lines().collect();
        for line in lines.iter().take(FOLDED) {
            let line = format!("  │ {line}");
            rows.push(self.looks.paint(DIM, &short(&line, columns.saturating_sub(1))));
        }
        if lines.len() > FOLDED {
            let more = format!("  … {}", count((lines.len() - FOLDED) as u64, "more line"));
            rows.push(self.looks.paint(DIM, &more));
        }
        self.live.print(&mut self.out, &rows)
    }

    /// Shows the tools that were stopped with their run, and forgets them.
    fn stop_tools(&mut self) -> io::Result<()> {
        let stopped = std::mem::take(&mut self.tools).into_iter();
        for Working { name, arguments, since, .. } in stopped.filter(|tool| tool.done.is_none()) {
            let took = Span(now().saturating_sub(since));
            if !self.looks.is_rich {
                self.note(&format!("< {name} stopped after {took}"));
                continue;
            }
            self.is_after_tool = true;
            let head = head(&name, &arguments, &format!("stopped after {took}"), tty::size().0);
            let row = format!("{} {head}", self.looks.paint(BAD, "✗"));
            self.live.print(&mut self.out, &[row])?;
        }
        Ok(())
    }

    /// Shows a call that a person did not want.
    fn rejected(&mut self, name: &str, why: &str) {
        let told = line(&format!("{name} {}", refusal(why)));
        if !self.looks.is_rich {
            return self.note(&format!("< {told}"));
        }
        self.is_after_tool = true;
        let row = short(&told, tty::size().0.saturating_sub(3));
        // The reader may be gone.
        let _ = self.live.print(&mut self.out, &[format!("{} {row}", self.looks.paint(BAD, "✗"))]);
    }

    /// Names the calls that were not run because their answer also asks a question, which comes first.
    fn not_run(&mut self, result: &ChatResult) {
        if result.halted_reason != HaltReason::AskUser || self.json {
            return;
        }
        let messages = || result.thread.messages.iter().rev();
        let Some(answer) = messages().find(|message| message.tool_calls().next().is_some()) else {
            return;
        };
        for call in answer.tool_calls() {
            let is_dropped = |message: &Message| {
                message.tool_call_id() == Some(&*call.id) && message.text().contains(CUT_SHORT)
            };
            if messages().any(|message| is_dropped(message)) {
                let call = format!("{} {}", call.name, arguments_of(call));
                self.note(&format!("not run, because a question comes first: {}", line(&call)));
            }
        }
    }

    /// Shows the last result of a tool in full.
    pub(crate) fn unfold(&mut self) {
        match std::mem::take(&mut self.result) {
            none if none.is_empty() => self.note("no tool has returned a result yet"),
            result => {
                self.remark(Style::new(), &result);
                self.result = result;
            }
        }
    }

    /// Draws what changes: the block that is being written, the tools at work.
    fn redraw(&mut self) -> io::Result<()> {
        if !self.looks.is_rich {
            return Ok(());
        }
        let columns = tty::size().0;
        let mut rows = self.markdown.pending(columns);
        let spinner = SPINNER[self.frame % SPINNER.len()];
        let seconds = |since: i64| match now().saturating_sub(since) / 1_000_000_000 {
            0 => String::new(),
            seconds => format!("{seconds} s"),
        };
        for tool in self.tools.iter().filter(|tool| tool.done.is_none()) {
            let time = format!("{} {}", tool.progress, seconds(tool.since));
            let head = head(&tool.name, &tool.arguments, time.trim(), columns);
            rows.push(format!("{} {head}", self.looks.paint(ASKS, spinner)));
            if !tool.doing.is_empty() {
                let doing = format!("  │ {}", tool.doing);
                rows.push(self.looks.paint(DIM, &short(&doing, columns.saturating_sub(1))));
            }
        }
        if let Some(since) = self.waits_since {
            let waits = format!("{spinner} thinking {}", seconds(since));
            rows.push(self.looks.paint(DIM, waits.trim_end()));
        }
        self.live.draw(&mut self.out, rows)
    }

    /// Writes a line that is not part of the answer.
    pub(crate) fn note(&mut self, text: &str) {
        self.remark(DIM, text);
    }

    /// Writes something that is not part of the answer, in a style.
    pub(crate) fn remark(&mut self, style: Style, text: &str) {
        // The reader may be gone.
        let _ = self.close();
        let text = plain(text);
        if !self.looks.is_rich {
            let _ = writeln!(io::stderr(), "  {}", text.replace('\n', "\n  "));
            return;
        }
        let columns = tty::size().0.saturating_sub(2);
        let rows = wrapped(text.chars().map(|c| (c, style)), columns);
        let rows = rows.iter().map(|row| format!("  {}", painted(row, self.looks.colours)));
        let _ = self.live.print(&mut self.out, &rows.collect::<Vec<_>>());
        let _ = self.out.flush();
    }

    /// Writes a command to copy. It is not wrapped, so that the terminal copies it as one line.
    pub(crate) fn hint(&mut self, text: &str) {
        let _ = self.close();
        let _ = writeln!(io::stderr(), "  {}", self.looks.paint(DIM, &line(text)));
    }

    /// Sets what follows apart, in a terminal.
    pub(crate) fn pause(&mut self) -> io::Result<()> {
        if self.looks.is_rich { self.live.print(&mut self.out, &[String::new()]) } else { Ok(()) }
    }

    /// Writes what a run and the runs of its agents used.
    pub(crate) async fn totals(&mut self, log: &Ledger, run: &str) -> Result<(), Failure> {
        let summary = log.run(run).await?.filter(|_| !self.json);
        if let Some(mut run) = summary {
            let took = Span(run.updated.saturating_sub(run.started));
            run.totals.add(&mynah::log::agents_totals(log, &run).await?);
            // A budget counts them as turns.
            let facts = store::facts(log, &run.run_id).await?;
            let is_summary = |(_, fact): &&(_, Option<Fact>)| {
                matches!(fact, Some(Fact::ContextTruncated { summary: Some(_), .. }))
            };
            let summaries = match facts.iter().filter(is_summary).count() {
                0 => String::new(),
                made => format!(", {}", count(made as u64, "summary call")),
            };
            self.note(&format!("{}{summaries}, {took}", used(&run.totals)));
        }
        Ok(())
    }

    /// Writes how many messages of the conversation the last request of a run left out.
    pub(crate) async fn left_out(&mut self, log: &Ledger, run: &str) -> Result<(), Failure> {
        let facts = store::facts(log, run).await?;
        let said = left_out(facts.iter().filter_map(|(_, fact)| fact.as_ref()));
        if let Some(said) = said.filter(|_| !self.json) {
            self.note(&said);
        }
        Ok(())
    }

    pub(crate) fn line(&mut self, value: &Value) -> io::Result<()> {
        writeln!(self.out, "{value}")?;
        self.out.flush()
    }

    /// Ends what was begun, and returns the first failure of writing.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.tools.clear();
        self.waits_since = None;
        self.close()?;
        self.out.end()
    }

    fn close(&mut self) -> io::Result<()> {
        let was_open = std::mem::take(&mut self.is_open);
        if self.looks.is_rich {
            let rows = self.markdown.finish(tty::size().0);
            self.live.clear(&mut self.out)?;
            self.live.print(&mut self.out, &rows)?;
        } else if was_open {
            writeln!(self.out)?;
        }
        self.out.flush()
    }
}

/// What a run that is followed needs beside its stream.
pub(crate) struct Followed<'a> {
    /// Whose tools run the calls.
    pub(crate) engine: &'a Engine,
    /// Resumes the run in the same way.
    pub(crate) resume: &'a dyn Fn(&RunId) -> Resume,
    /// Where questions are answered; none if the run then waits.
    pub(crate) prompt: Option<&'a Prompt>,
}

/// Why a run did not continue.
pub(crate) enum Stop {
    /// The person pressed Ctrl-C at a question.
    Interrupted,
    Refused(mynah::Error),
    Failed(Failure),
}

impl From<mynah::Error> for Stop {
    fn from(error: mynah::Error) -> Self {
        Self::Refused(error)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}
