//! Binary frames: lengths, headers, a payload, checksums.

use aws_smithy_eventstream::frame::read_message_from;
use mynah_data::Result;
use serde_json::json;

use crate::{
    failure, loose,
    sse::{Frame, FrameSink, Framer, MAX_FRAME, too_large},
};

/// Decodes `application/vnd.amazon.eventstream`.
///
/// An exception among the frames is the error of the call.
///
/// ```
/// # mod mynah { pub use mynah_adapters as adapters; }
/// use mynah::adapters::bedrock::EventStreamFramer;
/// use mynah::adapters::sse::Framer;
///
/// let mut framer = EventStreamFramer::new();
/// assert!(framer.push(b"no frame at all", &mut |_| Ok(())).is_err());
/// ```
#[derive(Debug)]
pub struct EventStreamFramer {
    /// The beginning of a frame whose rest has not come.
    held: Vec<u8>,
    limit: usize,
}

impl EventStreamFramer {
    /// At the beginning of a body.
    pub fn new() -> Self {
        Self::with_limit(MAX_FRAME)
    }

    /// With another limit on the size of a frame.
    pub fn with_limit(limit: usize) -> Self {
        Self { held: Vec::new(), limit }
    }

    /// Hands out every whole frame, and says how many bytes they took.
    fn scan(&self, bytes: &[u8], sink: FrameSink<'_>) -> Result<usize> {
        let mut done = 0;
        while let Some((length, _)) = bytes[done..].split_first_chunk() {
            let length = u32::from_be_bytes(*length) as usize;
            if length > self.limit {
                return Err(too_large("one frame of the answer", self.limit as u64));
            }
            let Some(frame) = bytes[done..].get(..length.max(4)) else { break };
            hand_out(frame, sink)?;
            done += frame.len();
        }
        Ok(done)
    }
}

impl Default for EventStreamFramer {
    fn default() -> Self {
        Self::new()
    }
}

impl Framer for EventStreamFramer {
    fn push(&mut self, bytes: &[u8], sink: FrameSink<'_>) -> Result<()> {
        if self.held.is_empty() {
            let done = self.scan(bytes, sink)?;
            self.held.extend_from_slice(&bytes[done..]);
        } else {
            self.held.extend_from_slice(bytes);
            let done = self.scan(&self.held, sink)?;
            self.held.drain(..done);
        }
        Ok(())
    }

    fn finish(&mut self, _: FrameSink<'_>) -> Result<()> {
        match self.held.is_empty() {
            true => Ok(()),
            false => Err(failure::malformed("the last frame is cut off")),
        }
    }
}

fn hand_out(frame: &[u8], sink: FrameSink<'_>) -> Result<()> {
    let message = read_message_from(frame).map_err(failure::malformed)?;
    let header = |name: &str| {
        let found = message.headers().iter().find(|header| header.name().as_str() == name);
        found.and_then(|header| header.value().as_string().ok()).map_or("", |value| value.as_str())
    };
    let data = String::from_utf8_lossy(message.payload());
    match header(":message-type") {
        "exception" => {
            let said = loose::read_object(&data).unwrap_or_default();
            let why = said.get("message").and_then(|message| message.as_str()).unwrap_or(&data);
            Err(exception(header(":exception-type"), why))
        }
        "error" => Err(exception(header(":error-code"), header(":error-message"))),
        _ => sink(Frame { event: header(":event-type"), data: &data }),
    }
}

fn exception(kind: &str, message: &str) -> mynah_data::Error {
    let message = if message.is_empty() { kind } else { message };
    failure::in_stream(&json!({"type": kind, "message": message}))
}
