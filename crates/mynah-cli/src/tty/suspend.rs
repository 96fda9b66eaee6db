//! Ctrl-Z while a line is typed.

use std::{
    io::{self, Write as _},
    thread,
    time::Duration,
};

use rustix::{
    process::{Signal, getpgrp, kill_process_group},
    termios::{OptionalActions, Termios, tcgetattr, tcsetattr},
};
use rustyline::{Cmd, ConditionalEventHandler, Event, EventContext, RepeatCount};

/// Suspends the program, and draws the line again when it continues.
///
/// The editor's own command does not wait: the signal stops another thread first, and the line is drawn before the program stops.
pub(super) struct Suspend {
    /// How the terminal was before the line.
    pub(super) mode: Termios,
}

impl ConditionalEventHandler for Suspend {
    #[expect(clippy::disallowed_methods, reason = "the program stops meanwhile")]
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        let set = |mode: &Termios| tcsetattr(io::stdin(), OptionalActions::Now, mode);
        let editing = tcgetattr(io::stdin()).ok()?;
        set(&self.mode).ok()?;
        if kill_process_group(getpgrp(), Signal::TSTP).is_ok() {
            thread::sleep(Duration::from_millis(100));
        }
        set(&editing).ok()?;
        // The shell has turned off that pasted texts are marked.
        let _ = io::stdout().write_all(b"\x1b[?2004h");
        Some(Cmd::Repaint)
    }
}
