//! Bytes of a body into frames: server-sent events, and JSON lines.
//!
//! Both decoders take bytes as they arrive, cut anywhere, and emit each frame as soon as its last
//! byte has arrived. A frame borrows from the pushed bytes; only the remainder of a cut is copied.

use std::{borrow::Cow, ops::Range};

use memchr::{memchr, memchr2};
use mynah_data::{AdapterReason, Error, Result};

/// One message of a provider's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What kind of message it is, where the framing says so; else empty.
    pub event: &'a str,
    /// What it says.
    pub data: &'a str,
}

impl Frame<'_> {
    /// Whether it is the end mark of those providers that have one, or pass it on.
    pub(crate) fn is_done(&self) -> bool {
        !self.data.starts_with('{') && self.data.trim() == "[DONE]"
    }
}

/// Takes a frame, or ends the reading with an error.
pub type FrameSink<'a> = &'a mut dyn FnMut(Frame<'_>) -> Result<()>;

/// Cuts a body into frames.
pub trait Framer: Send {
    /// Takes more of the body.
    ///
    /// # Errors
    /// What the sink refuses, and a frame beyond the size limit.
    fn push(&mut self, bytes: &[u8], sink: FrameSink<'_>) -> Result<()>;

    /// Ends the body: emits the remainder if it can be a frame.
    ///
    /// # Errors
    /// What the sink refuses.
    fn finish(&mut self, sink: FrameSink<'_>) -> Result<()>;

    /// Whether the body began as no body in these frames does: a server sent something else under their name.
    fn is_foreign(&self) -> bool {
        false
    }

    /// Whether a body in these frames may begin as a JSON document does. One that does although it may not is a JSON document.
    fn begins_with_json(&self) -> bool {
        false
    }
}

/// The default limit of a frame, in bytes. A large image comes in one.
pub const MAX_FRAME: usize = 64 << 20;

/// Decodes `text/event-stream`.
///
/// Follows the standard with three exceptions. `id` and `retry` are skipped, because a model's
/// answer cannot be resumed. An event without its blank line at the end of the body is emitted:
/// some servers leave it out, and the provider's end mark shows whether the answer is complete. And
/// a field `error`, which some servers write, is an event of that name.
///
/// ```
/// # mod mynah { pub use mynah_adapters as adapters; }
/// use mynah::adapters::sse::{Framer, SseFramer};
///
/// let mut heard = Vec::new();
/// let mut framer = SseFramer::new();
/// for bytes in [&b"event: ping\r\nda"[..], b"ta: {}\r", b"\n\r\n"] {
///     framer.push(bytes, &mut |frame| Ok(heard.push((frame.event.to_owned(), frame.data.to_owned()))))?;
/// }
/// assert_eq!(heard, [("ping".to_owned(), "{}".to_owned())]);
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Debug)]
pub struct SseFramer {
    lines: Lines,
    event: Event,
}

impl SseFramer {
    /// At the beginning of a body.
    pub fn new() -> Self {
        Self::with_limit(MAX_FRAME)
    }

    /// With another limit on the size of an event.
    pub fn with_limit(limit: usize) -> Self {
        Self { lines: Lines::new(limit), event: Event::default() }
    }
}

impl Default for SseFramer {
    fn default() -> Self {
        Self::new()
    }
}

impl Framer for SseFramer {
    fn push(&mut self, bytes: &[u8], sink: FrameSink<'_>) -> Result<()> {
        let event = &mut self.event;
        self.lines.push(bytes, &mut |held, line| event.take(held, line, sink))
    }

    fn finish(&mut self, sink: FrameSink<'_>) -> Result<()> {
        let event = &mut self.event;
        self.lines.finish(&mut |held, line| event.take(held, line, sink))?;
        event.dispatch(&self.lines.held, sink)
    }

    fn is_foreign(&self) -> bool {
        self.event.began_well == Some(false)
    }
}

/// Decodes lines of JSON; blank lines are skipped, and the last one need not be ended.
#[derive(Debug)]
pub struct LineFramer {
    lines: Lines,
    /// Whether the first line that says something is as it should be.
    began_well: Option<bool>,
}

impl LineFramer {
    /// At the beginning of a body.
    pub fn new() -> Self {
        Self::with_limit(MAX_FRAME)
    }

    /// With another limit on the size of a line.
    pub fn with_limit(limit: usize) -> Self {
        Self { lines: Lines::new(limit), began_well: None }
    }
}

impl Default for LineFramer {
    fn default() -> Self {
        Self::new()
    }
}

impl Framer for LineFramer {
    fn push(&mut self, bytes: &[u8], sink: FrameSink<'_>) -> Result<()> {
        let began = &mut self.began_well;
        self.lines.push(bytes, &mut |held, line| take_line(began, &held[line], sink))
    }

    fn finish(&mut self, sink: FrameSink<'_>) -> Result<()> {
        let began = &mut self.began_well;
        self.lines.finish(&mut |held, line| take_line(began, &held[line], sink))
    }

    fn is_foreign(&self) -> bool {
        self.began_well == Some(false)
    }

    fn begins_with_json(&self) -> bool {
        true
    }
}

fn take_line(began_well: &mut Option<bool>, line: &[u8], sink: FrameSink<'_>) -> Result<Keep> {
    let data = text_of(line);
    let said = data.trim_start();
    if !said.is_empty() {
        began_well.get_or_insert_with(|| said.starts_with(['{', '[']));
        sink(Frame { event: "", data: &data })?;
    }
    Ok(Keep::Nothing)
}

/// The fields of an event so far, as places in the bytes that are held.
#[derive(Debug, Default)]
struct Event {
    /// Whether the first line of the body is a field.
    began_well: Option<bool>,
    name: Range<usize>,
    data: Vec<Range<usize>>,
}

const FIELDS: [&[u8]; 5] = [b"data", b"error", b"event", b"id", b"retry"];

impl Event {
    fn take(&mut self, held: &[u8], line: Range<usize>, sink: FrameSink<'_>) -> Result<Keep> {
        if line.is_empty() {
            self.dispatch(held, sink)?;
            return Ok(Keep::Nothing);
        }
        let text = &held[line.clone()];
        let colon = memchr(b':', text).unwrap_or(text.len());
        let space = usize::from(text.get(colon + 1) == Some(&b' '));
        let value = (line.start + colon + 1 + space).min(line.end)..line.end;
        let name = &text[..colon];
        // The end of the body may have cut through it.
        let is_field = || FIELDS.iter().any(|field| field.starts_with(name));
        self.began_well.get_or_insert_with(is_field);
        match name {
            b"data" => self.data.push(value),
            b"event" => self.name = value,
            b"error" => {
                self.name = line.start..line.start + colon;
                self.data.push(value);
            }
            _ => {}
        }
        // Comments and unused fields need not be buffered.
        if self.data.is_empty() && self.name.is_empty() {
            self.name = 0..0;
            return Ok(Keep::Nothing);
        }
        Ok(Keep::Lines)
    }

    fn dispatch(&mut self, held: &[u8], sink: FrameSink<'_>) -> Result<()> {
        let name = text_of(&held[std::mem::take(&mut self.name)]);
        let text = |place: &Range<usize>| text_of(&held[place.clone()]);
        let sent = match self.data.as_slice() {
            [] => Ok(()),
            [only] => sink(Frame { event: &name, data: &text(only) }),
            several => {
                let lines: Vec<_> = several.iter().map(text).collect();
                sink(Frame { event: &name, data: &lines.join("\n") })
            }
        };
        self.data.clear();
        sent
    }
}

/// What must stay in memory after a line was looked at.
enum Keep {
    /// This line and those before it, for the frame is not whole.
    Lines,
    Nothing,
}

type LineSink<'a> = &'a mut dyn FnMut(&[u8], Range<usize>) -> Result<Keep>;

/// Cuts bytes into lines that end with LF, CR or CRLF.
#[derive(Debug)]
struct Lines {
    /// The state between two pushes: the lines of an unfinished frame, and the beginning of the
    /// next line.
    held: Vec<u8>,
    /// Where the unfinished line begins in what is held.
    line: usize,
    /// How far it was searched for its end.
    searched: usize,
    /// The last line ended with CR, and an LF that follows belongs to it.
    after_cr: bool,
    /// Nothing was read yet: a byte order mark may come.
    first: bool,
    limit: usize,
}

pub(crate) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

impl Lines {
    fn new(limit: usize) -> Self {
        Self { held: Vec::new(), line: 0, searched: 0, after_cr: false, first: true, limit }
    }

    fn push(&mut self, mut bytes: &[u8], sink: LineSink<'_>) -> Result<()> {
        // Only the frame that a cut went through is put together; the others are read where they lie.
        while !self.held.is_empty() && !bytes.is_empty() {
            let end = memchr2(b'\r', b'\n', bytes).map_or(bytes.len(), |end| end + 1);
            let mut held = std::mem::take(&mut self.held);
            held.extend_from_slice(&bytes[..end]);
            let done = self.scan(&held, sink)?;
            held.drain(..done);
            self.held = held;
            self.forget(done);
            bytes = &bytes[end..];
        }
        if !bytes.is_empty() {
            let done = self.scan(bytes, sink)?;
            self.held.extend_from_slice(&bytes[done..]);
            self.forget(done);
        }
        self.check(self.held.len())
    }

    /// Counts places from behind what is done with.
    fn forget(&mut self, done: usize) {
        self.line -= done;
        self.searched -= done;
    }

    fn check(&self, length: usize) -> Result<()> {
        if length > self.limit {
            return Err(too_large("one event of the answer", self.limit as u64));
        }
        Ok(())
    }

    /// Hands out every whole line, and says up to where the bytes are done with.
    fn scan(&mut self, bytes: &[u8], sink: LineSink<'_>) -> Result<usize> {
        let mut done = 0;
        loop {
            if self.after_cr && self.searched < bytes.len() {
                self.after_cr = false;
                if bytes[self.searched] == b'\n' {
                    let was_done = done == self.line;
                    self.searched += 1;
                    self.line = self.searched;
                    if was_done {
                        done = self.line;
                    }
                }
            }
            let Some(length) = memchr2(b'\r', b'\n', &bytes[self.searched..]) else {
                self.searched = bytes.len();
                return Ok(done);
            };
            let end = self.searched + length;
            self.check(end - done)?;
            let line = self.without_mark(bytes, end);
            // Positions are relative to the kept bytes, so that they stay valid.
            let keep = sink(&bytes[done..], line.start - done..line.end - done)?;
            self.after_cr = bytes[end] == b'\r';
            self.line = end + 1;
            self.searched = self.line;
            if let Keep::Nothing = keep {
                done = self.line;
            }
        }
    }

    /// The line that ends here, without the byte order mark of the body.
    fn without_mark(&mut self, bytes: &[u8], end: usize) -> Range<usize> {
        let marked =
            std::mem::take(&mut self.first) && bytes[self.line..end].starts_with(BYTE_ORDER_MARK);
        self.line + if marked { BYTE_ORDER_MARK.len() } else { 0 }..end
    }

    /// Emits the last line, which has no line end.
    fn finish(&mut self, sink: LineSink<'_>) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        let line = self.without_mark(&held, held.len());
        if !line.is_empty() {
            sink(&held, line)?;
        }
        self.held = held;
        self.line = self.held.len();
        self.searched = self.line;
        Ok(())
    }
}

/// Bytes as text. What is no text is rare, and its replacement slow.
fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(bytes),
    }
}

/// What a body fails with that is larger than it may be.
pub(crate) fn too_large(what: &str, limit: u64) -> Error {
    Error::adapter(AdapterReason::MalformedResponse)
        .with_message(format!(
            "adapter error: malformed_response: {what} is larger than {limit} bytes"
        ))
        .with("limit", limit)
}
