//! The run that recorded a session's last turn.

use std::io;

use serde::{Deserialize, Serialize};

use crate::{Messages, RunId, Thread};

/// The run that recorded a session's last turn.
///
/// The next turn names it. If the session still has the conversation that the run ended with, only
/// new messages are recorded. In JSON the conversation is represented by its length and a checksum.
/// If the session's messages no longer match them, the next turn is recorded as a whole.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SessionRun {
    /// The run's id.
    pub run_id: RunId,
    /// The sequence number of its last record.
    pub seq: u64,
    /// That record's hash, in hexadecimal digits: the run's fingerprint, if it has ended.
    pub hash: String,
    /// Whether the run is suspended and can be resumed.
    pub waits: bool,
    /// The conversation at its end.
    pub messages: Messages,
    /// The run of a later turn that was dropped before its end.
    pub abandoned: Option<RunId>,
}

impl SessionRun {
    /// A run that ended with this conversation.
    #[doc(hidden)]
    pub fn new(
        run_id: impl Into<RunId>,
        seq: u64,
        hash: impl Into<String>,
        waits: bool,
        messages: Messages,
    ) -> Self {
        let (run_id, hash) = (run_id.into(), hash.into());
        Self { run_id, seq, hash, waits, messages, abandoned: None }
    }
}

/// The same in JSON.
#[derive(Serialize, Deserialize)]
#[serde(expecting = "the run of a session")]
pub(crate) struct Wire {
    run_id: RunId,
    seq: u64,
    hash: String,
    #[serde(default)]
    waits: bool,
    messages: usize,
    checksum: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    abandoned: Option<RunId>,
}

impl From<&SessionRun> for Wire {
    fn from(run: &SessionRun) -> Self {
        Self {
            run_id: run.run_id.clone(),
            seq: run.seq,
            hash: run.hash.clone(),
            waits: run.waits,
            messages: run.messages.len(),
            checksum: checksum(&run.messages),
            abandoned: run.abandoned.clone(),
        }
    }
}

impl Wire {
    /// The run of a session with this conversation.
    pub(crate) fn of(self, thread: &Thread) -> SessionRun {
        let began: Messages = thread.messages.iter().take(self.messages).cloned().collect();
        let same = began.len() == self.messages && checksum(&began) == self.checksum;
        let messages = if same { began } else { Messages::new() };
        let run = SessionRun::new(self.run_id, self.seq, self.hash, self.waits && same, messages);
        SessionRun { abandoned: self.abandoned, ..run }
    }
}

/// Detects accidental changes of a conversation: FNV-1a over the messages' JSON. Only the records
/// prove anything.
fn checksum(messages: &Messages) -> String {
    struct Fnv(u64);
    impl io::Write for Fnv {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            for byte in bytes {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut sum = Fnv(0xcbf2_9ce4_8422_2325);
    // Nothing can go wrong: there is no I/O, and a message has a JSON form.
    let _ = serde_json::to_writer(&mut sum, messages);
    format!("{:016x}", sum.0)
}
