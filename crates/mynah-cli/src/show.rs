//! `mynah show`: one run, to be read.

use std::io::{self, BufWriter, Write};

use clap::Args;
use mynah::{
    Error, Image, ImageSource, Message, Part,
    log::{
        About, Corrupt, End, Fact, Kind, Log, Parent, Previous, Record, RunSummary, SUB_RUN,
        Totals, parent,
    },
};
use mynah_agent::answer::cut_off;
use serde_json::{Value, json};

use crate::{
    Failure, LogArgs,
    describe::{
        NOT_PERMITTED, TOOK_OVER, UNKNOWN_OUTCOME, changes, denied, detail, handoff, left_out,
        other_model, refusal, waits,
    },
    runs, runtime,
    store::{self, LogLocation, fact, previous},
    text::{Moment, Span, count, folded, line, plain, short},
    tree, written,
};

pub(crate) const EXAMPLES: &str = "The run is shown as recorded, without verification: use `mynah verify` for that.

Examples:
  mynah show last                          show the newest run as a transcript
  mynah show last --tree                   show a timeline: turns, tools, attempts, side effects, runs of agents
  mynah show last --records                list its records
  mynah show last --record 3               show one record in full
  mynah show last --records --json         print all records in full";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// Run id, the beginning of one, or `last`.
    run: String,
    /// Show a timeline: when each part began, how long it took, and what it contains.
    #[arg(long)]
    tree: bool,
    /// List the records.
    #[arg(long, conflicts_with = "tree")]
    records: bool,
    /// Show one record in full.
    #[arg(long, value_name = "SEQ", conflicts_with_all = ["records", "tree"])]
    record: Option<u64>,
}

/// How many records are read at once.
const PORTION: usize = 256;

/// How many lines of a summary are shown.
const SUMMARY: usize = 10;

/// How much of a record fits on a line.
const LINE: usize = 160;

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: LogArgs { log, json }, run, tree, records, record } = arguments;
    let log = LogLocation::parse(&log)?.open_to_read()?;
    let mut out = BufWriter::new(io::stdout().lock());
    runtime()?.block_on(async {
        let run = store::find(log.as_ref(), &run).await?;
        if let Some(seq) = record {
            let found = log.read(&run.run_id, seq.max(1), 1).await?;
            let Some(record) = found.first().filter(|record| record.seq() == seq) else {
                let last = run.records;
                return Err(Failure::input(format!(
                    "record {seq}: the run has records 1 to {last}"
                )));
            };
            return written(write_whole(&whole(record)?, json, &mut out));
        }
        if !records {
            written(if json {
                let told = runs::told(log.as_ref(), &run).await?;
                write_json(&json!({"type": "run", "run": told}), &mut out)
            } else {
                let parent = parent(log.as_ref(), &run.run_id).await?;
                let mut totals = mynah::log::agents_totals(log.as_ref(), &run).await?;
                totals.add(&run.totals);
                write_summary(&run, &totals, parent.as_ref(), &mut out)
            })?;
        }
        if records && json {
            return write_records(log.as_ref(), &run.run_id, &mut out).await;
        }
        if tree {
            let mut sub_runs = tree::SubRuns::new();
            for started in mynah::log::sub_runs(log.as_ref(), &run.run_id).await? {
                let facts = store::facts(log.as_ref(), &started).await?;
                sub_runs.insert(started, facts);
            }
            let facts = store::facts(log.as_ref(), &run.run_id).await?;
            let nodes = tree::tree(&facts, &mut sub_runs);
            written(match json {
                true => nodes.iter().try_for_each(|node| write_json(&json!(node), &mut out)),
                false => tree::write(&nodes, run.started, &mut out),
            })?;
            return written(out.flush());
        }
        let (mut seen, mut before) = (0, Earlier::default());
        loop {
            let page = log.read(&run.run_id, seen + 1, PORTION).await?;
            let Some(last) = page.last() else { break };
            seen = last.seq();
            for record in &page {
                let done = match (records, json) {
                    (true, _) => write_record(record, run.started, &mut out),
                    (false, true) => each(&told(record, &mut before)?, &mut out, |told, out| {
                        write_json(&told.json(record.seq()), out)
                    }),
                    (false, false) => each(&told(record, &mut before)?, &mut out, Excerpt::write),
                };
                written(done)?;
            }
        }
        written(out.flush())
    })
}

fn each<W: Write>(
    list: &[Excerpt],
    out: &mut W,
    mut write: impl FnMut(&Excerpt, &mut W) -> io::Result<()>,
) -> io::Result<()> {
    list.iter().try_for_each(|told| write(told, out))
}

fn write_json(value: &Value, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{value}")
}

fn write_summary(
    run: &RunSummary,
    totals: &Totals,
    parent: Option<&Parent>,
    out: &mut impl Write,
) -> io::Result<()> {
    let status = runs::shown_status(run);
    let took = Span(run.updated.saturating_sub(run.started));
    writeln!(out, "run {}  {status}", line(&run.run_id))?;
    if let Some(Parent { run_id, seq, .. }) = parent {
        writeln!(out, "forked from {} at record {seq}", line(run_id))?;
    }
    let model = run.model.as_deref().map(|model| format!(", {}", plain(model)));
    writeln!(out, "{} UTC, {took}{}", Moment(run.started), model.unwrap_or_default())?;
    let agents = if totals == &run.totals { "" } else { ", agents included" };
    writeln!(
        out,
        "{}, {}, {} + {} tokens{agents}, {}\n",
        count(totals.turns, "turn"),
        count(totals.tool_calls, "tool call"),
        totals.input_tokens,
        totals.output_tokens,
        count(run.records, "record"),
    )
}

/// Writes every record of a run, one a line.
pub(crate) async fn write_records(
    log: &dyn Log,
    run: &str,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let mut seen = 0;
    loop {
        let page = log.read(run, seen + 1, PORTION).await?;
        let Some(last) = page.last() else { return written(out.flush()) };
        seen = last.seq();
        for record in &page {
            written(write_json(&whole(record)?, out))?;
        }
    }
}

/// A record with all its data.
fn whole(record: &Record) -> Result<Value, Failure> {
    let view = record.view();
    match view.unreadable {
        Some(what) => Err(Error::from(Corrupt::new(view.run_id, view.seq, what)).into()),
        None => Ok(json!(view)),
    }
}

fn write_whole(value: &Value, json: bool, out: &mut impl Write) -> io::Result<()> {
    if json {
        write_json(value, out)?;
    } else {
        writeln!(out, "{}", plain(&format!("{value:#}")))?;
    }
    out.flush()
}

fn write_record(record: &Record, started: i64, out: &mut impl Write) -> io::Result<()> {
    let envelope = record.envelope();
    let after = Span(envelope.ts.saturating_sub(started)).to_string();
    let held = match record.fact() {
        Ok(Some(fact)) => {
            let mut value = json!(fact);
            if let Value::Object(members) = &mut value {
                members.shift_remove("kind");
            }
            short(&value.to_string(), LINE)
        }
        Ok(None) => "(redacted)".to_owned(),
        Err(corrupt) => format!("(unreadable: {})", short(&corrupt.what, LINE)),
    };
    writeln!(out, "{:>4}  {after:>10}  {:<20}  {held}", envelope.seq, record.kind())
}

/// The part of the conversation in a record.
enum Excerpt {
    Earlier(Previous),
    Message(Message),
    Image(Image),
    AnsweredBy { model: String },
    CutOff { how: &'static str },
    Call { id: String, name: String, arguments: String },
    Result { id: String, content: String, failed: bool },
    Approved { id: String, arguments: Option<String> },
    Rejected { id: String, why: String },
    Resumed { changed: Vec<String> },
    Waits { end: End, says: String },
    Ended { how: Kind, end: End },
    Lost { turn: u32, given_up: bool },
    LeftOut { says: String, before: u64, after: u64, summary: Option<String> },
    Redacted { kind: String },
    SubRun { run_id: String },
}

/// State from earlier records.
#[derive(Default)]
struct Earlier {
    /// The last answer.
    answer: Option<Fact>,
    /// What the run ran with.
    about: Option<Box<About>>,
}

/// The part of the conversation in a record that follows these.
fn told(record: &Record, before: &mut Earlier) -> Result<Vec<Excerpt>, Failure> {
    let Some(fact) = fact(record)? else {
        return Ok(vec![Excerpt::Redacted { kind: record.kind().to_string() }]);
    };
    let message = |message: &Message| Excerpt::Message(message.clone());
    let result = |id: String, content: String, failed| Excerpt::Result { id, content, failed };
    Ok(match fact {
        Fact::RunStarted { ref thread, ref about, .. } => {
            let earlier = previous(&fact).cloned();
            let before_it = earlier.as_ref().map_or(0, |earlier| earlier.messages);
            let without = earlier.as_ref().and_then(|earlier| earlier.left_out.as_ref());
            let after = before_it - without.map_or(0, |without| without.dropped.min(before_it));
            let out = left_out([&fact]).map(|says| Excerpt::LeftOut {
                says,
                before: before_it,
                after,
                summary: None,
            });
            let earlier = earlier.map(Excerpt::Earlier).into_iter().chain(out);
            let said = thread.messages.iter().flat_map(|message| parts_of(message));
            before.about.clone_from(about);
            earlier.chain(said).collect()
        }
        Fact::Resumed {
            message: said,
            tool_results,
            approved,
            edited,
            rejected,
            given_up,
            about,
            ..
        } => {
            let (changed, prompt) = match (&before.about, &about) {
                (Some(before), Some(about)) => {
                    let new = prompt(about).filter(|new| prompt(before) != Some(*new));
                    (changes(before, about), new.map(Message::system).map(Excerpt::Message))
                }
                _ => (Vec::new(), None),
            };
            before.about = about.or(before.about.take());
            let results = tool_results.into_iter().map(|(id, content)| result(id, content, false));
            let arguments = |id: &String| {
                let edited = edited.iter().find(|(edited, _)| edited == id);
                edited.map(|(_, arguments)| arguments.clone())
            };
            let approved =
                approved.into_iter().map(|id| Excerpt::Approved { arguments: arguments(&id), id });
            let rejected = rejected.into_iter().map(|(id, why)| Excerpt::Rejected { id, why });
            let given_up =
                given_up.into_iter().map(|id| result(id, UNKNOWN_OUTCOME.to_owned(), true));
            let given = results.chain(approved).chain(rejected).chain(given_up);
            let said = said.iter().flat_map(|message| parts_of(message));
            let resumed = std::iter::once(Excerpt::Resumed { changed });
            resumed.chain(prompt).chain(given).chain(said).collect()
        }
        Fact::UserMessage { message: added } => parts_of(&added),
        Fact::FinalizeStarted { nudge, .. } => nudge.iter().map(|nudge| message(nudge)).collect(),
        Fact::AssistantCompleted { ref response, ref plan, .. } => {
            let other = other_model(before.about.as_deref(), response);
            let other = other.map(|model| Excerpt::AnsweredBy { model: model.to_owned() });
            let cut_off = cut_off(response).map(|how| Excerpt::CutOff { how });
            let denied = denied(plan).iter();
            let denied = denied.map(|id| result(id.clone(), NOT_PERMITTED.to_owned(), true));
            let said = parts_of(&response.message).into_iter().chain(cut_off).chain(denied);
            let list = other.into_iter().chain(said).collect();
            before.answer = Some(fact);
            list
        }
        Fact::ToolCompleted { call_id, content, outcome, .. } => match handoff(&outcome) {
            Some(answer) => vec![
                result(call_id, TOOK_OVER.to_owned(), false),
                Excerpt::Message(Message::assistant(answer)),
            ],
            None => vec![result(call_id, content, false)],
        },
        Fact::ToolFailed { call_id, error, content, .. } => {
            // What no model read has no text of its own.
            let says = if content.is_empty() { error.to_string() } else { content };
            vec![result(call_id, says, true)]
        }
        Fact::Suspended(end) => {
            let says = waits(&end, before.answer.as_ref(), before.about.as_deref());
            vec![Excerpt::Waits { end, says }]
        }
        Fact::Completed(end) => vec![Excerpt::Ended { how: Kind::Completed, end }],
        Fact::Failed(end) => vec![Excerpt::Ended { how: Kind::Failed, end }],
        Fact::BudgetExceeded { partial: Some(partial), .. } => parts_of(&partial.message),
        Fact::Cancelled { end, partial, .. } => {
            let mut list = partial.map_or_else(Vec::new, |partial| parts_of(&partial.message));
            list.push(Excerpt::Ended { how: Kind::Cancelled, end });
            list
        }
        Fact::TurnLost { turn, given_up, .. } => vec![Excerpt::Lost { turn, given_up }],
        Fact::ContextTruncated {
            messages_before: before,
            messages_after: after,
            ref summary,
            ..
        } => {
            let summary = summary.as_ref().map(|summary| summary.text().into_owned());
            let says = left_out([&fact]).into_iter();
            says.map(|says| Excerpt::LeftOut { says, before, after, summary: summary.clone() })
                .collect()
        }
        Fact::SideEffect { ref name, .. } if name == SUB_RUN => {
            let run = fact.sub_run().map(|(run, _)| run.to_owned());
            run.into_iter().map(|run_id| Excerpt::SubRun { run_id }).collect()
        }
        // Nothing of the conversation.
        Fact::TurnStarted { .. }
        | Fact::FinalizeFailed { .. }
        | Fact::ToolScheduled { .. }
        | Fact::SideEffect { .. }
        | Fact::BudgetExceeded { partial: None, .. }
        | Fact::Sealed(_)
        | Fact::Removed(_) => Vec::new(),
    })
}

/// The prompt that a run ran with.
fn prompt(about: &About) -> Option<&str> {
    let prompt = about.options.get("system").or_else(|| about.params.get("system"));
    prompt.and_then(Value::as_str).filter(|prompt| !prompt.is_empty())
}

/// A message, and the images and calls in it.
fn parts_of(message: &Message) -> Vec<Excerpt> {
    if let Some(id) = message.tool_call_id() {
        let (id, content) = (id.to_owned(), message.text().into_owned());
        return vec![Excerpt::Result { id, content, failed: false }];
    }
    let calls = message.tool_calls().map(|call| Excerpt::Call {
        id: call.id.clone(),
        name: call.name.clone(),
        arguments: call.arguments.to_string(),
    });
    let speaks = !message.text().is_empty() || message.tool_calls().next().is_none();
    let images = message.parts().iter().filter_map(|part| match part {
        Part::Image { image, .. } => Some(Excerpt::Image(image.clone())),
        _ => None,
    });
    let text = speaks.then(|| Excerpt::Message(message.clone()));
    text.into_iter().chain(images).chain(calls).collect()
}

/// How many bytes of an image the record has, or where they are.
fn source(image: &Image) -> (Option<u64>, Option<String>) {
    match &image.source {
        ImageSource::Binary(bytes) => (Some(bytes.len() as u64), None),
        ImageSource::Base64(text) => (Some(text.trim_end_matches('=').len() as u64 * 3 / 4), None),
        ImageSource::Url(url) => (None, Some(url.clone())),
        ImageSource::File(file) => (None, Some(file.to_string_lossy().into_owned())),
        _ => (None, None),
    }
}

impl Excerpt {
    fn json(&self, seq: u64) -> Value {
        match self {
            Self::Earlier(Previous { run_id, messages, .. }) => {
                json!({"type": "before", "seq": seq, "run_id": run_id, "messages": messages})
            }
            Self::Message(message) => {
                json!({"type": "message", "seq": seq, "role": message.role(), "text": message.text()})
            }
            Self::Image(image) => {
                let (bytes, at) = source(image);
                json!({"type": "image", "seq": seq, "mime_type": image.mime_type, "bytes": bytes, "source": at})
            }
            Self::AnsweredBy { model } => {
                json!({"type": "answered_by", "seq": seq, "model": model})
            }
            Self::CutOff { how } => json!({"type": "cut_off", "seq": seq, "how": how}),
            Self::Call { id, name, arguments } => {
                json!({"type": "tool_call", "seq": seq, "id": id, "name": name, "arguments": arguments})
            }
            Self::Result { id, content, failed } => {
                json!({"type": "tool_result", "seq": seq, "id": id, "content": content, "failed": failed})
            }
            Self::Approved { id, arguments: None } => {
                json!({"type": "approved", "seq": seq, "id": id})
            }
            Self::Approved { id, arguments } => {
                json!({"type": "approved", "seq": seq, "id": id, "arguments": arguments})
            }
            Self::Rejected { id, why } => {
                json!({"type": "rejected", "seq": seq, "id": id, "why": why})
            }
            Self::Resumed { changed } => {
                json!({"type": "resumed", "seq": seq, "changed": changed})
            }
            Self::Waits { end, says } => {
                json!({"type": "suspended", "seq": seq, "reason": end.reason, "metadata": end.metadata, "says": says})
            }
            Self::Ended { how, end } => {
                json!({"type": how.as_str(), "seq": seq, "reason": end.reason, "metadata": end.metadata})
            }
            Self::Lost { turn, given_up } => {
                json!({"type": "turn_lost", "seq": seq, "turn": turn, "given_up": given_up})
            }
            Self::LeftOut { before, after, summary, .. } => {
                json!({"type": "left_out", "seq": seq, "messages_before": before, "messages_after": after, "summary": summary})
            }
            Self::Redacted { kind } => json!({"type": "redacted", "seq": seq, "kind": kind}),
            Self::SubRun { run_id } => json!({"type": "sub_run", "seq": seq, "run_id": run_id}),
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Earlier(Previous { run_id, messages, .. }) => {
                let messages = count(*messages, "message");
                writeln!(out, "-- {messages} before, up to run {}\n", plain(run_id))
            }
            Self::Message(message) => {
                writeln!(out, "{}: {}\n", message.role().as_str(), plain(&message.text()))
            }
            Self::Image(image) => {
                let kind = image.mime_type.as_deref().unwrap_or("unknown type");
                let (bytes, at) = source(image);
                let size = bytes.map(|bytes| match bytes {
                    0..1000 => count(bytes, "byte"),
                    _ => format!("{} kB", bytes.div_ceil(1000)),
                });
                let parts = [Some(kind.to_owned()), size, at];
                let parts = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
                writeln!(out, "[image: {}]\n", plain(&parts))
            }
            Self::AnsweredBy { model } => writeln!(out, "-- answered by {}\n", plain(model)),
            Self::CutOff { how } => writeln!(out, "-- the answer was cut off {how}\n"),
            Self::Call { id, name, arguments } => {
                writeln!(out, "  > {} {}  [{}]", plain(name), plain(arguments), plain(id))
            }
            Self::Result { id, content, failed } => {
                let mark = if *failed { "failed: " } else { "" };
                writeln!(out, "  < [{}] {mark}{}\n", plain(id), plain(content))
            }
            Self::Approved { id, arguments: None } => {
                writeln!(out, "  < [{}] approved\n", plain(id))
            }
            Self::Approved { id, arguments: Some(arguments) } => {
                writeln!(out, "  < [{}] approved with {}\n", plain(id), plain(arguments))
            }
            Self::Rejected { id, why } => {
                writeln!(out, "  < [{}] {}\n", plain(id), plain(&refusal(why)))
            }
            Self::Resumed { changed } if changed.is_empty() => writeln!(out, "-- resumed\n"),
            Self::Resumed { changed } => {
                writeln!(out, "-- resumed, changed: {}\n", plain(&changed.join("; ")))
            }
            Self::Waits { says, .. } => writeln!(out, "-- waits: {}\n", plain(says)),
            Self::Ended { how, end } => {
                let how = how.as_str();
                let reason = match end.reason.as_str() {
                    reason if reason == how => String::new(),
                    reason => format!(": {}", plain(reason)),
                };
                writeln!(out, "-- {how}{reason}{}", plain(&detail(end)))
            }
            Self::Lost { turn, given_up: true } => {
                writeln!(out, "-- the loop gave turn {turn} up\n")
            }
            Self::Lost { turn, given_up: false } => {
                writeln!(out, "-- the answer of turn {turn} was lost with its process\n")
            }
            Self::LeftOut { says, summary, .. } => {
                let summary = folded(summary.as_deref().unwrap_or_default(), SUMMARY);
                let lines: String = summary.lines().map(|line| format!("   {line}\n")).collect();
                writeln!(out, "-- {says}\n{lines}")
            }
            Self::Redacted { kind } => writeln!(out, "  ({kind}: redacted)\n"),
            Self::SubRun { run_id } => writeln!(out, "  - run {}\n", plain(run_id)),
        }
    }
}
