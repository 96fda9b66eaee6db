//! Prints the events of a call as they arrive: those of a single model call as text, those of any run as JSON.

use std::io::{self, Write as _};

use mynah::Event;
use serde_json::{Value, json};

use crate::{
    best_effort::BestEffortWriter,
    text::{for_stdout, plain},
};

/// Prints events: as growing text, or one JSON value a line. A failed write stops nothing; see
/// [`end`](Self::end).
pub(crate) struct EventPrinter {
    json: bool,
    /// Whether the line has an end yet.
    is_open: bool,
    out: BestEffortWriter<io::Stdout>,
}

impl EventPrinter {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, is_open: false, out: BestEffortWriter::new(io::stdout()) }
    }

    pub(crate) fn print(&mut self, event: &Event) -> io::Result<()> {
        if self.json {
            return self.line(&json!({"event": event}));
        }
        match event {
            Event::TextDelta { delta, .. } => self.say(delta)?,
            Event::ToolCallCompleted(call) => {
                self.close()?;
                let (name, arguments) = (plain(&call.name), plain(&call.raw_arguments));
                writeln!(self.out, "  > {name} {arguments}  [{}]", plain(&call.id))?;
            }
            Event::MessageCompleted { .. } => self.close()?,
            _ => {}
        }
        self.out.flush()
    }

    /// Prints a piece of an answer.
    pub(crate) fn say(&mut self, piece: &str) -> io::Result<()> {
        self.is_open = true;
        write!(self.out, "{}", for_stdout(piece))
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
