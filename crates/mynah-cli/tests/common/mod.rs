//! Running the real program.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses a part of this, and a helper may fail the test that calls it"
)]

pub(crate) mod server;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

/// A run that waits, one that is complete, one that failed, one that was cancelled, one without an end.
pub(crate) const RUNS: &str = r#"{
  "engine": {"price": {"input": 1000, "output": 1000}},
  "scripts": [
    [ {"tool_call": {"id": "c0", "name": "ask", "arguments": {"dish": "soup"}}}, {"finish": "tool_calls"} ],
    [ {"text": "Soup comes\u001b[2J."}, {"tool_call": {"id": "c1", "name": "order"}}, {"usage": {"input_tokens": 9, "output_tokens": 2}}, {"finish": "tool_calls"} ],
    [ {"text": "It is on its way."}, {"finish": "stop"} ],
    [ {"text": "well"}, {"error": "rate_limited", "message": "too fast"} ],
    [ {"text": "never heard"}, {"finish": "stop"} ],
    [ {"text": "half of it"}, {"finish": "stop"} ]
  ],
  "tools": [
    {"name": "ask", "returns": {"ask_user": "How many?"}},
    {"name": "order", "returns": {"error": "no bowls"}}
  ],
  "ops": [
    {"op": "chat", "messages": [{"role": "user", "content": "Soup?"}]},
    {"op": "chat", "messages": [{"role": "system", "content": "Be quick."}, {"role": "user", "content": "Soup!"}]},
    {"op": "chat", "messages": [{"role": "user", "content": "hi"}]},
    {"op": "chat", "messages": [{"role": "user", "content": "hi"}], "cancel_after": 1},
    {"op": "chat", "messages": [{"role": "user", "content": "hi"}], "take": 2}
  ]
}"#;

/// The result of running the program.
#[derive(Debug, PartialEq)]
pub(crate) struct Ran {
    /// None if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The program with these arguments, yet to be run.
pub(crate) fn mynah<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mynah"));
    command.args(arguments);
    command
}

/// Runs the program to its end, with nothing to read.
pub(crate) fn run<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Ran {
    feed(mynah(arguments), b"")
}

/// Runs a command to its end, with this as its input.
pub(crate) fn feed(mut command: Command, input: &[u8]) -> Ran {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that refuses its input may be gone before it was read.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A file of this name with this content, for this test alone.
pub(crate) fn file(name: &str, content: impl AsRef<[u8]>) -> String {
    let path: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A log in a file of its own.
pub(crate) struct Store {
    _folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Store {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.db");
        Self { _folder: folder, path }
    }

    /// With the runs of a scenario.
    pub(crate) fn with(scenario: &str) -> Self {
        let store = Self::new();
        store.play(scenario, true);
        store
    }

    pub(crate) fn play(&self, scenario: &str, stable: bool) {
        let url = self.url();
        let arguments =
            ["play", "--log", &url, "-"].into_iter().chain(stable.then_some("--stable"));
        let played = feed(mynah(arguments), scenario.as_bytes());
        assert_eq!((played.code, played.stderr.as_str()), (Some(0), ""));
    }

    /// The path of a file beside the log.
    pub(crate) fn beside(&self, name: &str) -> String {
        self.path.with_file_name(name).to_str().unwrap().to_owned()
    }

    /// A file beside the log, of this name and with this content.
    pub(crate) fn file(&self, name: &str, content: &str) -> String {
        let path = self.beside(name);
        fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        let url = self.url();
        run(arguments.iter().copied().chain(["--log", &url]))
    }

    /// What a verb says that has nothing to complain of.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{arguments:?}");
        ran.stdout
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let ran = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        lines(&ran)
    }

    /// Changes the first page of a table or an index.
    pub(crate) fn damage(&self, name: &str, change: impl FnOnce(&mut [u8])) {
        let select = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
        let log = rusqlite::Connection::open(&self.path).unwrap();
        let page: i64 = log.query_row(select, [name], |row| row.get(0)).unwrap();
        let size: i64 = log.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
        log.close().unwrap();
        let mut bytes = fs::read(&self.path).unwrap();
        let [page, size] = [page, size].map(|n| usize::try_from(n).unwrap());
        let start = (page - 1) * size;
        change(&mut bytes[start..start + size]);
        fs::write(&self.path, bytes).unwrap();
    }

    /// Changes a byte in the body of a record.
    pub(crate) fn change_record(&self, run: &str, seq: usize) {
        let log = rusqlite::Connection::open(&self.path).unwrap();
        let select = "SELECT records.key, payload FROM records JOIN runs ON runs.key = run \
                      WHERE id = ?1 ORDER BY records.key LIMIT 1 OFFSET ?2";
        let (key, mut payload): (i64, Vec<u8>) = log
            .query_row(select, rusqlite::params![run, i64::try_from(seq - 1).unwrap()], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .unwrap();
        *payload.last_mut().unwrap() ^= 1;
        let update = "UPDATE records SET payload = ?1 WHERE key = ?2";
        log.execute(update, rusqlite::params![payload, key]).unwrap();
    }

    /// Writes something else into the file, wherever this stands.
    pub(crate) fn tamper(&self, from: &[u8], to: &[u8]) {
        let mut bytes = fs::read(&self.path).unwrap();
        let mut found = 0;
        for start in 0..bytes.len() - from.len() {
            if bytes[start..].starts_with(from) {
                bytes[start..start + to.len()].copy_from_slice(to);
                found += 1;
            }
        }
        assert!(found > 0, "there is nothing to change");
        fs::write(&self.path, bytes).unwrap();
    }
}

pub(crate) fn lines(ran: &Ran) -> Vec<Value> {
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn text(value: &Value, member: &str) -> String {
    value[member].as_str().unwrap().to_owned()
}

/// Does what control-C does, and gives the exit code and what was said on standard error.
#[cfg(unix)]
pub(crate) fn interrupt(child: Child) -> (Option<i32>, String) {
    end(child, "-INT")
}

/// Sends a signal, and gives the exit code and what was said on standard error.
#[cfg(unix)]
pub(crate) fn end(child: Child, signal: &str) -> (Option<i32>, String) {
    let id = child.id().to_string();
    let signalled = Command::new("kill").args([signal, &id]).status();
    assert!(signalled.unwrap().success());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}
