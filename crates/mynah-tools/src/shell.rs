//! Commands.

use std::{
    collections::BTreeMap,
    io,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use mynah_data::ToolOutcome;
use mynah_step::{Approval, Tool};
use rustix::process::{Pid, Signal, kill_process_group};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
};

use crate::typed::{Outcome, refused, typed};

/// The longest command, in bytes.
const MAX_COMMAND: usize = 64 << 10;
/// How long output is awaited after a command has ended: a process that left the group may hold it open.
const LINGER: Duration = Duration::from_millis(500);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The command, in the language of `sh`.
    command: String,
}

#[derive(Serialize)]
struct Ended {
    /// None if a signal ended the command.
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    stdout: String,
    stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
}

/// A tool that runs a command: `shell`.
///
/// It exists only if the feature `shell` is on and the tool is constructed, and a person must approve each call
/// ([`Approval::Ask`]): the run waits with the exact command. `Engine::resume(…).approve(id)` runs it.
///
/// A command runs in `sh`, with an environment of its own ([`env`](Shell::env)), no input, and a process group that is killed when
/// the command ends, when its time is over, and when the call is dropped. Its output is bounded.
///
/// A command has all the rights of this process. One that leaves its process group, such as `setsid`, outlives its call. Run the process in
/// a container if the commands are not trusted.
///
/// ```
/// use std::time::Duration;
///
/// let shell = mynah_tools::shell().timeout(Duration::from_secs(20)).tool();
/// assert_eq!(shell.spec().approval, mynah_step::Approval::Ask);
/// ```
pub fn shell() -> Shell {
    let env = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8")];
    Shell {
        dir: PathBuf::from("."),
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        timeout: Duration::from_secs(60),
        max_output: 32 << 10,
    }
}

/// The settings of [`shell`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Shell {
    dir: PathBuf,
    env: BTreeMap<String, String>,
    timeout: Duration,
    max_output: usize,
}

impl Shell {
    /// The folder in which commands run; the current folder of the process by default.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = dir.into();
        self
    }

    /// Sets a variable of the commands' environment. It has `PATH` and `LANG` by default; nothing is inherited from this process.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// How long a command may take; 60 seconds by default. Then its process group is killed.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// The maximum bytes of standard output, and of standard error, that are kept; 32 KiB by
    /// default. Of more, the beginning and the end are kept.
    pub fn max_output(mut self, bytes: usize) -> Self {
        self.max_output = bytes;
        self
    }

    /// The tool. A person must approve its calls, and a replay answers from the record.
    pub fn tool(self) -> Tool {
        let description = format!(
            "Runs a command with sh and returns its exit code and output. It has no input and {} seconds.",
            self.timeout.as_secs()
        );
        // The tool's own limit reports the output so far.
        let limit = self.timeout.saturating_add(Duration::from_secs(5));
        let shell = Arc::new(self);
        let run = move |args, _| {
            let shell = Arc::clone(&shell);
            async move { shell.run(args).await }
        };
        typed("shell", &description, run).approval(Approval::Ask).recorded().timeout(limit)
    }

    async fn run(&self, Args { command }: Args) -> Outcome<Ended> {
        if command.trim().is_empty() {
            return refused("the command is empty");
        }
        if command.contains('\0') {
            return refused("the command contains a NUL character");
        }
        if command.len() > MAX_COMMAND {
            let length = command.len();
            return refused(format!(
                "a command of {length} bytes is too long; at most {MAX_COMMAND} are allowed"
            ));
        }
        let failed =
            |error: io::Error| ToolOutcome::error(format!("the command cannot be run: {error}"));
        let mut child = Command::new("/bin/sh")
            // Without `--`, a command that begins with a dash would be an option of the shell.
            .args(["-c", "--", &command])
            .env_clear()
            .envs(&self.env)
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let group = Group(child.id());
        let (mut stdout, mut stderr) = (Output::new(self.max_output), Output::new(self.max_output));
        let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
        let ended = {
            let reading = async { tokio::join!(stdout.read(&mut out), stderr.read(&mut err)) };
            let mut reading = std::pin::pin!(reading);
            let waiting = async {
                let status = tokio::select! {
                    status = child.wait() => status,
                    // It closed its output, and may still run.
                    _ = &mut reading => return child.wait().await,
                };
                // Processes in the background would hold the output open.
                drop(group);
                let _ = tokio::time::timeout(LINGER, reading).await;
                status
            };
            tokio::time::timeout(self.timeout, waiting).await
        };
        let truncated = stdout.left_out() + stderr.left_out();
        let truncated = (truncated > 0)
            .then(|| format!("{truncated} bytes in the middle of the output were left out"));
        let (stdout, stderr) = (stdout.text(), stderr.text());
        let status: ExitStatus = match ended {
            Ok(status) => status.map_err(failed)?,
            Err(_) => {
                let limit = self.timeout.as_millis();
                return refused(format!(
                    "the command did not end within {limit} ms and was killed; its output so far:\n{stdout}\n{stderr}"
                ));
            }
        };
        let (exit_code, signal) = (status.code(), status.signal());
        Ok(Ended { exit_code, signal, stdout, stderr, truncated })
    }
}

/// A process group, killed when it is dropped.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        let id = self.0.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(id) = id {
            // It fails if no process of the group is left.
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

/// The begin and the end of an output.
struct Output {
    begin: Vec<u8>,
    end: std::collections::VecDeque<u8>,
    half: usize,
    total: usize,
}

impl Output {
    fn new(max: usize) -> Self {
        Self { begin: Vec::new(), end: std::collections::VecDeque::new(), half: max / 2, total: 0 }
    }

    /// Reads to the end. Output beyond the limit is read and dropped, so that the command does not
    /// block.
    async fn read(&mut self, from: &mut Option<impl AsyncRead + Unpin>) {
        let Some(from) = from else { return };
        let mut buffer = [0; 8 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let bytes = &buffer[..count];
            self.total += count;
            let (begin, rest) = bytes.split_at(count.min(self.half - self.begin.len()));
            self.begin.extend_from_slice(begin);
            self.end.extend(rest);
            let surplus = self.end.len().saturating_sub(self.half);
            self.end.drain(..surplus);
        }
    }

    fn left_out(&self) -> usize {
        self.total - self.begin.len() - self.end.len()
    }

    fn text(mut self) -> String {
        let left_out = self.left_out();
        if left_out > 0 {
            self.begin.extend_from_slice(format!("\n[{left_out} bytes left out]\n").as_bytes());
        }
        self.begin.extend(self.end);
        String::from_utf8_lossy(&self.begin).into_owned()
    }
}
