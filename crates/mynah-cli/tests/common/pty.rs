//! The program in a pseudo terminal.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses a part of this, and a helper may fail the test that calls it"
)]

use std::{
    fs::{File, OpenOptions},
    io::{Read as _, Write as _},
    num::NonZeroU16,
    process::{Child, Command},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::common::Store;

/// The longest that something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A log with an agent beside it whose model answers so.
pub(crate) fn agent(scripts: &str, tools: &str) -> (Store, String) {
    let store = Store::new();
    store.file("script.json", &format!(r#"{{"scripts": [{scripts}]}}"#));
    let agent = store.file("agent.toml", &format!("model = 'scripted:script.json'\n{tools}"));
    (store, agent)
}

/// An answer with this text.
pub(crate) fn says(text: &str) -> String {
    format!(r#"[{{"text": {text:?}}}, {{"finish": "stop"}}]"#)
}

/// An answer that calls the shell.
pub(crate) fn shell(id: &str, command: &str) -> String {
    let call =
        format!(r#"{{"id": "{id}", "name": "shell", "arguments": {{"command": "{command}"}}}}"#);
    format!(r#"[{{"tool_call": {call}}}, {{"finish": "tool_calls"}}]"#)
}

pub(crate) const SHELL: &str = "[tools]\nshell = 'ask'\n";

/// What the terminal received: as its screen shows it, and as bytes.
pub(crate) struct Shown {
    pub(crate) parser: vt100::Parser,
    bytes: Vec<u8>,
    /// When which part of the bytes came.
    pub(crate) pieces: Vec<(Duration, Vec<u8>)>,
}

/// A program in a terminal of its own.
pub(crate) struct Terminal {
    pub(crate) child: Child,
    keyboard: File,
    pub(crate) shown: Arc<(Mutex<Shown>, Condvar)>,
}

impl Terminal {
    /// This program, with the log of the store.
    pub(crate) fn new(
        store: &Store,
        arguments: &[&str],
        columns: u16,
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start(store, &[arguments, &["--log", &store.url()]].concat(), columns, environment)
    }

    /// This program.
    pub(crate) fn start(
        store: &Store,
        arguments: &[&str],
        columns: u16,
        environment: &[(&str, &str)],
    ) -> Self {
        let mut command = Self::command(env!("CARGO_BIN_EXE_mynah"));
        command.args(arguments).env("XDG_STATE_HOME", store.beside("state"));
        command.envs(environment.iter().copied());
        Self::spawn(command, columns, 50)
    }

    /// A program whose terminal is the one that Ctrl-C interrupts.
    pub(crate) fn command(program: &str) -> Command {
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program);
        command.env_remove("NO_COLOR").env_remove("SSH_CONNECTION").env("TERM", "xterm-256color");
        command
    }

    /// Starts a program in a terminal of this size.
    #[expect(clippy::disallowed_methods, reason = "a recording has real times")]
    pub(crate) fn spawn(mut command: Command, columns: u16, rows: u16) -> Self {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap();
        let side = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&side, size).unwrap();
        command.stdin(side.try_clone().unwrap()).stdout(side.try_clone().unwrap()).stderr(side);
        let (child, begun) = (command.spawn().unwrap(), Instant::now());
        drop(command);
        let keyboard = File::from(main);
        let size = |count: u16| NonZeroU16::new(count).unwrap();
        let parser = vt100::Parser::new(size(rows), size(columns), 500);
        let shown = Shown { parser, bytes: Vec::new(), pieces: Vec::new() };
        let shown = Arc::new((Mutex::new(shown), Condvar::new()));
        let (mut screen, watched) = (keyboard.try_clone().unwrap(), Arc::clone(&shown));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                let mut shown = watched.0.lock().unwrap();
                shown.parser.process(&buffer[..count]);
                shown.bytes.extend(&buffer[..count]);
                shown.pieces.push((begun.elapsed(), buffer[..count].to_vec()));
                watched.1.notify_all();
            }
        });
        Self { child, keyboard, shown }
    }

    pub(crate) fn send(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen shows a text, and returns the screen.
    pub(crate) fn wait(&self, text: &str) -> String {
        let (shown, changed) = &*self.shown;
        let lacks = |shown: &mut Shown| !shown.parser.screen().contents().contains(text);
        let (shown, waited) =
            changed.wait_timeout_while(shown.lock().unwrap(), PATIENCE, lacks).unwrap();
        let screen = shown.parser.screen().contents();
        assert!(!waited.timed_out(), "{text:?} is not on the screen:\n{screen}");
        screen
    }

    /// Waits until the prompt for a message is shown after a text.
    pub(crate) fn wait_prompt(&self, text: &str) -> String {
        self.wait_after(text, "›")
    }

    /// Waits until something is shown after a text. What is typed before a question is shown does not answer it.
    pub(crate) fn wait_after(&self, text: &str, then: &str) -> String {
        let (shown, changed) = &*self.shown;
        let lacks = |shown: &mut Shown| {
            let screen = shown.parser.screen().contents();
            !screen.split_once(text).is_some_and(|(_, after)| after.contains(then))
        };
        let (shown, waited) =
            changed.wait_timeout_while(shown.lock().unwrap(), PATIENCE, lacks).unwrap();
        let screen = shown.parser.screen().contents();
        assert!(!waited.timed_out(), "no {then:?} after {text:?}:\n{screen}");
        screen
    }

    /// Waits for the end. Returns the exit code and all that was written.
    #[expect(clippy::disallowed_methods, reason = "the program runs in real time")]
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let begun = Instant::now();
        let code = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status.code(),
                None if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(10)),
                None => {
                    let screen = self.shown.0.lock().unwrap().parser.screen().contents();
                    panic!("the program does not end:\n{screen}");
                }
            }
        };
        let (shown, changed) = &*self.shown;
        let mut shown = shown.lock().unwrap();
        // The terminal may still hold what was written last.
        loop {
            let (before, pause) = (shown.bytes.len(), Duration::from_millis(200));
            let is_same = |shown: &mut Shown| shown.bytes.len() == before;
            let (now, waited) = changed.wait_timeout_while(shown, pause, is_same).unwrap();
            shown = now;
            if waited.timed_out() {
                return (code, String::from_utf8_lossy(&shown.bytes).into_owned());
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A test that failed leaves nothing behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
