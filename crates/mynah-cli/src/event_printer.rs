//! Prints the events of a call as they arrive.

use std::io::{self, Write as _};

use mynah::{Event, HANDOFF, log::Extent};
use serde_json::{Value, json};

use crate::{
    best_effort::BestEffortWriter,
    text::{for_stdout, plain},
};

/// Prints events: as growing text, or one JSON value a line. A failed write stops nothing; see
/// [`end`](Self::end).
pub(crate) struct EventPrinter {
    json: bool,
    /// The kind of call. The tool calls of a single call are its answer; those of others are
    /// printed when they run.
    extent: Extent,
    /// Whether the line has an end yet.
    is_open: bool,
    /// Whether the model formats the answer: JSON, and nothing that it says to a person.
    is_finalizing: bool,
    out: BestEffortWriter<io::Stdout>,
}

impl EventPrinter {
    pub(crate) fn new(json: bool, extent: Extent) -> Self {
        Self {
            json,
            extent,
            is_open: false,
            is_finalizing: false,
            out: BestEffortWriter::new(io::stdout()),
        }
    }

    pub(crate) fn print(&mut self, event: &Event) -> io::Result<()> {
        if self.json {
            return self.line(&json!({"event": event}));
        }
        match event {
            Event::MessageStarted { finalizing, .. } => self.is_finalizing = *finalizing,
            Event::TextDelta { delta, .. } if !self.is_finalizing => {
                self.is_open = true;
                write!(self.out, "{}", for_stdout(delta))?;
            }
            Event::ToolCallCompleted(call) if self.extent == Extent::Generate => {
                self.call(&call.id, &call.name, &call.raw_arguments)?;
            }
            Event::ToolExecutionStarted { id, name, arguments } => {
                self.call(id, name, &arguments.to_string())?;
            }
            Event::ToolResultEncoded { id, content } => {
                self.close()?;
                writeln!(self.out, "  < [{}] {}", plain(id), plain(content))?;
            }
            Event::ToolHalt { reason, result: Value::String(answer), .. }
                if reason.as_str() == HANDOFF =>
            {
                self.close()?;
                writeln!(self.out, "{}", for_stdout(answer))?;
            }
            Event::MessageCompleted { message, .. } => {
                self.close()?;
                if self.is_finalizing {
                    writeln!(self.out, "  = {}", plain(&message.text()))?;
                }
            }
            _ => {}
        }
        self.out.flush()
    }

    /// Prints a tool call.
    fn call(&mut self, id: &str, name: &str, arguments: &str) -> io::Result<()> {
        self.close()?;
        writeln!(self.out, "  > {} {}  [{}]", plain(name), plain(arguments), plain(id))
    }

    pub(crate) fn line(&mut self, value: &Value) -> io::Result<()> {
        writeln!(self.out, "{value}")?;
        self.out.flush()
    }

    /// Ends a line that was begun, and returns the result of all writes.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.close()?;
        self.out.end()
    }

    /// Ends a line that was begun, also after printing stopped.
    fn close(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_open) { writeln!(self.out) } else { Ok(()) }
    }
}

impl Drop for EventPrinter {
    fn drop(&mut self) {
        // The output may be closed.
        let _ = self.close();
    }
}
