//! A server as a child process: its own process group, a minimal environment, its standard error kept.

use std::{
    collections::VecDeque,
    ffi::OsString,
    path::PathBuf,
    pin::Pin,
    process::Stdio,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader, ReadBuf},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
};

/// The variables that a command gets without being named: what it takes to find programs, settings and a place for files.
const BASIC: [&str; 13] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TMPDIR",
    "LANG",
    "TZ",
    // Without these nothing starts on Windows.
    "SystemRoot",
    "PATHEXT",
    "TEMP",
    "USERPROFILE",
];

/// The variables of this process that a server gets without being named: `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`, `TERM`, `TMPDIR`,
/// `LANG`, `LC_*` and `TZ`, and what programs need to start on Windows. Agents give them to other commands too.
pub fn minimal_environment() -> impl Iterator<Item = (String, OsString)> {
    let is_basic = |name: &str| BASIC.contains(&name) || name.starts_with("LC_");
    let named =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    named.filter(move |(name, _)| is_basic(name))
}

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    pub(crate) command: Vec<OsString>,
    pub(crate) folder: Option<PathBuf>,
    /// Variables that it gets as they are here.
    pub(crate) inherited: Vec<String>,
    /// Variables with a value of their own.
    pub(crate) set: Vec<(String, String)>,
}

/// A running server. Dropping it kills it and everything that it started.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    /// The process group, which may outlive its first process.
    #[cfg(unix)]
    group: Option<rustix::process::Pid>,
    stderr: Arc<Mutex<VecDeque<String>>>,
}

/// How many lines of standard error are kept, and how much of each.
const LINES: usize = 20;
const LINE: u64 = 500;

impl Start {
    pub(crate) fn shown(&self) -> String {
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    /// Starts the server.
    pub(crate) fn spawn(&self) -> std::io::Result<(Running, ChildStdout, ChildStdin)> {
        let missing = || std::io::Error::other("the command is empty");
        let (program, arguments) = self.command.split_first().ok_or_else(missing)?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().kill_on_drop(true);
        command.envs(minimal_environment());
        for name in &self.inherited {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.envs(self.set.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn()?;
        let piped = || std::io::Error::other("a pipe is missing");
        let stdout = child.stdout.take().ok_or_else(piped)?;
        let stdin = child.stdin.take().ok_or_else(piped)?;
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(pipe) = child.stderr.take() {
            tokio::spawn(keep(pipe, Arc::clone(&stderr)));
        }
        #[cfg(unix)]
        let group = child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
        let running = Running {
            child,
            #[cfg(unix)]
            group,
            stderr,
        };
        Ok((running, stdout, stdin))
    }
}

impl Running {
    /// The last lines that it wrote to its standard error.
    pub(crate) fn stderr(&self) -> String {
        let lines = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| format!("it ended with {status}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(group) = self.group {
            // It fails if everything has ended already.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.start_kill();
    }
}

/// Reads to the end, and keeps the last lines. A line without an end is cut.
async fn keep(pipe: ChildStderr, lines: Arc<Mutex<VecDeque<String>>>) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut pipe).take(LINE).read_until(b'\n', &mut line).await {
            Ok(read) if read > 0 => {}
            _ => return,
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        tracing::debug!(target: "mynah_mcp::stderr", "{text}");
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(text);
    }
}

/// What a server may not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flood {
    Long,
    Deep,
}

/// How deep a message may be nested. The parser of `rmcp` passes over deeper ones, and the request would wait in vain.
pub(crate) const DEPTH: usize = 120;

/// A reader that fails when a line becomes too long, or its JSON too deep.
pub(crate) struct Lines<R> {
    reader: R,
    most: usize,
    length: usize,
    depth: usize,
    /// Whether the next byte is in a string, and whether it is escaped there.
    string: Option<bool>,
    flooded: Arc<OnceLock<Flood>>,
}

impl<R> Lines<R> {
    pub(crate) fn new(reader: R, most: usize, flooded: Arc<OnceLock<Flood>>) -> Self {
        Self { reader, most, length: 0, depth: 0, string: None, flooded }
    }

    fn take_in(&mut self, byte: u8) -> Option<Flood> {
        self.length += 1;
        match (byte, self.string) {
            (b'\n', _) => (self.length, self.depth, self.string) = (0, 0, None),
            (_, Some(true)) => self.string = Some(false),
            (b'\\', Some(false)) => self.string = Some(true),
            (b'"', Some(false)) => self.string = None,
            (_, Some(false)) => {}
            (b'"', None) => self.string = Some(false),
            (b'{' | b'[', None) => self.depth += 1,
            (b'}' | b']', None) => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        match () {
            () if self.length > self.most => Some(Flood::Long),
            () if self.depth > DEPTH => Some(Flood::Deep),
            () => None,
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Lines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.reader).poll_read(cx, buffer);
        for byte in &buffer.filled()[before..] {
            if let Some(flood) = self.take_in(*byte) {
                let _ = self.flooded.set(flood);
                return Poll::Ready(Err(std::io::Error::other("a message is too large")));
            }
        }
        polled
    }
}
