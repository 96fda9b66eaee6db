//! A server of the program, for tests in a browser.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test file uses a part of this, and a helper may fail the test that calls it"
)]

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use crate::common::{Store, mynah};

/// A server of the program, which ends with this value.
pub(crate) struct Served {
    child: Child,
    pub(crate) address: String,
}

impl Served {
    /// Inspects a log, with nothing to act on.
    pub(crate) fn inspect(store: &Store) -> Self {
        Self::start(&mut mynah(["inspect", "--json", "--log", &store.url()]))
    }

    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.args(["--listen", "127.0.0.1:0"]).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let at = line.find("http://").unwrap_or_else(|| panic!("no address in {line:?}"));
        let address = line[at..].split(['"', ' ', '\n']).next().unwrap().trim_end_matches('/');
        Self { child, address: address.to_owned() }
    }

    /// The address of a page.
    pub(crate) fn page(&self, query: &[(&str, &str)]) -> String {
        let encode = |text: &str| {
            let bytes = text.bytes().map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' => {
                    char::from(byte).to_string()
                }
                byte => format!("%{byte:02X}"),
            });
            bytes.collect::<String>()
        };
        let pairs = query.iter().map(|(name, value)| format!("{name}={}", encode(value)));
        format!("{}/?{}", self.address, pairs.collect::<Vec<_>>().join("&"))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
