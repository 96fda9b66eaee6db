//! What a wire format is, and how an answer is read in one.

use std::{borrow::Cow, fmt, time::SystemTime};

use memchr::memchr;
use mynah_data::{Error, Event, Metadata, Request, Result};
use mynah_step::ModelCall;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::{
    draft::Draft,
    failure,
    keys::FoundKey,
    request::unwritable,
    sse::{BYTE_ORDER_MARK, Frame, Framer, SseFramer, too_large},
};

/// One provider's way to write requests and answers. It neither sends nor waits.
///
/// What the formats share is elsewhere: [`SseFramer`] cuts the body into frames, [`Draft`] turns what the model says into
/// events, [`failure`] reads errors, `http` carries it all. A format is left with two mappings, request to JSON and frame to
/// [`Draft`].
///
/// ```
/// # mod mynah { pub use {mynah_adapters as adapters, mynah_data::*, mynah_step::*}; }
/// use std::borrow::Cow;
/// use mynah::{FinishReason, Metadata, ModelCall, Request, Result};
/// use mynah::adapters::draft::Draft;
/// use mynah::adapters::format::{Decoder, Delivery, Format, Reader};
/// use mynah::adapters::sse::{Frame, Framer, LineFramer};
/// use serde_json::{Value, json};
///
/// /// A server that says a word a line, and ends with a dot.
/// struct Words;
///
/// impl Format for Words {
///     fn path(&self, _: &Request) -> Cow<'static, str> {
///         "say".into()
///     }
///
///     fn body(&self, request: &Request, _: &ModelCall) -> Result<Value> {
///         Ok(json!({"prompt": request.messages.last().map(|message| message.text().into_owned())}))
///     }
///
///     fn framer(&self) -> Box<dyn Framer> {
///         Box::new(LineFramer::new())
///     }
///
///     fn decoder(&self, _: &Request) -> Box<dyn Decoder> {
///         Box::new(Word)
///     }
/// }
///
/// struct Word;
///
/// impl Decoder for Word {
///     fn frame(&mut self, frame: Frame<'_>, draft: &mut Draft) -> Result<()> {
///         match frame.data {
///             "." => {
///                 draft.finish(FinishReason::Stop, "end");
///                 draft.end();
///             }
///             word => draft.text(&None, word),
///         }
///         Ok(())
///     }
///
///     fn whole(&mut self, body: &str, draft: &mut Draft) -> Result<()> {
///         body.lines().try_for_each(|data| self.frame(Frame { event: "", data }, draft))
///     }
/// }
///
/// let mut reader = Reader::new(&Words, &Request::from("hi"), Delivery::Streamed);
/// reader.push(b"Hel\nlo\n.")?;
/// assert!(reader.finish(Metadata::new()).is_ok());
/// let events = std::iter::from_fn(|| reader.next_event());
/// assert_eq!(events.map(|event| event.type_name()).collect::<Vec<_>>(),
///     ["message_started", "text_delta", "text_delta", "message_completed"]);
/// # Ok::<(), mynah_data::Error>(())
/// ```
pub trait Format: Send + Sync + 'static {
    /// Where calls go, below the version segment of the base URL.
    fn path(&self, request: &Request) -> Cow<'static, str>;

    /// Where the server is, where the environment says so and the caller does not.
    ///
    /// # Errors
    /// An environment that does not say it.
    fn base_url(&self, call: &ModelCall, setting: Setting<'_>) -> Result<Option<String>> {
        let _ = (call, setting);
        Ok(None)
    }

    /// The JSON of a request. Its options are passed on unchanged, and `tools` among them follow
    /// the request's own.
    ///
    /// # Errors
    /// What the format cannot express.
    fn body(&self, request: &Request, call: &ModelCall) -> Result<Value>;

    /// Writes the JSON of a request, as [`body`](Self::body) has it. A format that can write it without building the JSON first does so
    /// here.
    ///
    /// # Errors
    /// What the format cannot express.
    fn write_body(&self, request: &Request, call: &ModelCall, body: &mut Vec<u8>) -> Result<()> {
        serde_json::to_writer(body, &self.body(request, call)?).map_err(unwritable)
    }

    /// Headers beside the content type and the key.
    fn headers(&self, call: &ModelCall) -> Vec<(Cow<'static, str>, String)> {
        let _ = call;
        Vec::new()
    }

    /// The header that carries the key.
    fn key_header(&self, key: &str) -> (&'static str, String) {
        ("authorization", format!("Bearer {key}"))
    }

    /// What a person without a key can do, where that is not plain from where one was looked for.
    fn key_hint(&self) -> Option<&'static str> {
        None
    }

    /// What a variable would hold, as the provider's own tools keep it in their files. `environment` has the variables that are
    /// set.
    fn stored(&self, name: &str, environment: Setting<'_>) -> Option<String> {
        let _ = (name, environment);
        None
    }

    /// Adapter options equivalent to the environment's endpoint settings. Stored with a call, they
    /// let it be repeated in another environment.
    fn environment_opts(&self, setting: Setting<'_>) -> Metadata {
        let _ = setting;
        Metadata::new()
    }

    /// The headers that let a call in: that of the key, unless the format signs calls instead.
    ///
    /// # Errors
    /// What it would be signed with is missing.
    fn authorize(&self, outgoing: &Outgoing<'_>) -> Result<Vec<(Cow<'static, str>, String)>> {
        let (name, value) = self.key_header(outgoing.key.expose());
        Ok(vec![(name.into(), value)])
    }

    /// How a streamed body is cut into frames.
    fn framer(&self) -> Box<dyn Framer> {
        Box::new(SseFramer::new())
    }

    /// A decoder for the answer to this request.
    fn decoder(&self, request: &Request) -> Box<dyn Decoder>;

    /// The maker of the model, on a server with models of several makers. Data that only one maker
    /// can read is not sent to another.
    fn maker<'r>(&self, request: &'r Request) -> Option<&'r str> {
        let _ = request;
        None
    }

    /// Whether the form of the answer must come from a second call; see [`mynah_step::Adapter`].
    fn needs_structured_finalize(&self, request: &Request) -> bool {
        let _ = request;
        false
    }
}

/// Looks up a variable of the environment, or of the file that replaces it.
pub type Setting<'c> = &'c dyn Fn(&str) -> Option<String>;

/// A call that is about to be sent.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Outgoing<'c> {
    /// The key that was found for it.
    pub key: &'c FoundKey,
    /// Where it goes.
    pub url: &'c str,
    /// What it says.
    pub body: &'c [u8],
    /// When.
    pub now: SystemTime,
    /// Further facts about it.
    pub call: &'c ModelCall,
    /// Variables.
    pub setting: Setting<'c>,
    /// Variables that belong to the key. Their values are kept out of errors.
    pub secret: Setting<'c>,
}

impl<'c> Outgoing<'c> {
    /// A call to this address that says this, with nothing in its environment.
    pub fn new(
        key: &'c FoundKey,
        url: &'c str,
        body: &'c [u8],
        now: SystemTime,
        call: &'c ModelCall,
    ) -> Self {
        Self { key, url, body, now, call, setting: &|_| None, secret: &|_| None }
    }
}

/// Leaves out what it says.
impl fmt::Debug for Outgoing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing").field("key", self.key).finish_non_exhaustive()
    }
}

/// Reads one answer.
///
/// What it does not know it hands to [`Draft::raw`]; it fails only where the provider says that the call failed, or where
/// the answer is no JSON at all.
pub trait Decoder: Send {
    /// Takes one frame of a streamed answer. When the provider says that this was all, it calls [`Draft::end`].
    ///
    /// # Errors
    /// A frame that is not JSON, or that reports a failure.
    fn frame(&mut self, frame: Frame<'_>, draft: &mut Draft) -> Result<()>;

    /// Takes an answer that came in one piece, because the server does not stream.
    ///
    /// # Errors
    /// As for a frame.
    fn whole(&mut self, body: &str, draft: &mut Draft) -> Result<()>;

    /// The body of a stream has ended where it may, without an end mark.
    fn ended(&mut self, draft: &mut Draft) {
        let _ = draft;
    }

    /// What a stream fails with that ended before the provider said so. It broke off, unless the decoder knows better.
    fn unfinished(&self) -> Error {
        failure::broke_off()
    }
}

/// How a body comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// In frames.
    Streamed,
    /// As one JSON document.
    Whole,
}

impl Delivery {
    /// From the content type of a response.
    pub fn of(content_type: Option<&str>) -> Self {
        let kind = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        if kind.eq_ignore_ascii_case("application/json") { Self::Whole } else { Self::Streamed }
    }
}

/// The default limit of a body, in bytes.
pub const MAX_BODY: u64 = 256 << 20;

/// Bytes of a body into events.
///
/// ```
/// use mynah_adapters::{format::{Delivery, Reader}, openai_chat::OpenAiChat};
/// use mynah_data::{Metadata, Request, ResponseBuilder};
///
/// let body = concat!(
///     r#"data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}"#, "\n\n",
///     r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#, "\n\n",
///     "data: [DONE]\n\n",
/// );
/// let mut reader = Reader::new(&OpenAiChat::default(), &Request::from("hello"), Delivery::Streamed);
/// reader.push(body.as_bytes())?;
/// reader.finish(Metadata::new())?;
/// let mut answer = ResponseBuilder::new();
/// while let Some(event) = reader.next_event() {
///     answer.apply(&event);
/// }
/// assert_eq!(answer.response().text(), "hi");
/// # Ok::<(), mynah_data::Error>(())
/// ```
pub struct Reader {
    framer: Box<dyn Framer>,
    decoder: Box<dyn Decoder>,
    draft: Draft,
    delivery: Delivery,
    /// Whether the delivery was compared with what comes.
    is_sure: bool,
    /// The body so far, where it comes in one piece, or has not said yet how it comes.
    whole: Vec<u8>,
    read: u64,
    limit: u64,
}

/// Leaves out what was read.
impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { delivery, read, limit, .. } = self;
        f.debug_struct("Reader")
            .field("delivery", delivery)
            .field("read", read)
            .field("limit", limit)
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// Reads the answer to a request.
    pub fn new(format: &dyn Format, request: &Request, delivery: Delivery) -> Self {
        Self {
            framer: format.framer(),
            decoder: format.decoder(request),
            draft: Draft::for_request(request),
            delivery,
            is_sure: false,
            whole: Vec::new(),
            read: 0,
            limit: MAX_BODY,
        }
    }

    /// With another limit on the size of the body.
    pub fn with_limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// Takes more of the body.
    ///
    /// # Errors
    /// An error that the provider reports, input outside of the format, and a body beyond its
    /// limit. Nothing can be pushed after that.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.read = self.read.saturating_add(bytes.len() as u64);
        if self.read > self.limit {
            return Err(too_large("the answer", self.limit));
        }
        self.look(bytes);
        if self.delivery == Delivery::Whole || !self.is_sure {
            self.whole.extend_from_slice(bytes);
            return Ok(());
        }
        let (decoder, draft) = (&mut self.decoder, &mut self.draft);
        let held = std::mem::take(&mut self.whole);
        for bytes in [held.as_slice(), bytes] {
            self.framer.push(bytes, &mut |frame| take(frame, decoder.as_mut(), draft))?;
        }
        Ok(())
    }

    /// Servers also mislabel bodies: a stream as JSON; an error, a whole answer or a page as a
    /// stream. The first byte decides.
    fn look(&mut self, bytes: &[u8]) {
        let speaks = |byte: &&u8| !byte.is_ascii_whitespace() && !BYTE_ORDER_MARK.contains(byte);
        if let (false, Some(first)) = (self.is_sure, bytes.iter().find(speaks)) {
            self.is_sure = true;
            self.delivery = match (self.delivery, first) {
                (Delivery::Streamed, b'{' | b'[') if !self.framer.begins_with_json() => {
                    Delivery::Whole
                }
                (_, b'<') => Delivery::Whole,
                (Delivery::Whole, b'd' | b'e' | b'i' | b'r' | b':') => Delivery::Streamed,
                (told, _) => told,
            };
        }
    }

    /// The body has ended. `metadata` goes to the response.
    ///
    /// # Errors
    /// `network_error` if the provider did not send its end mark, `malformed_response` if it sent
    /// nothing in this format.
    pub fn finish(&mut self, metadata: Metadata) -> Result<()> {
        let (decoder, draft) = (&mut self.decoder, &mut self.draft);
        match self.delivery {
            Delivery::Whole => {
                let body = String::from_utf8_lossy(&self.whole);
                let body = body.trim_start_matches('\u{feff}');
                if body.trim_start().starts_with('<') {
                    return Err(failure::malformed("the server sent a page, not an answer"));
                }
                let body = without_halves(body);
                let mut read = decoder.whole(&body, draft);
                if let Some(body) = with_known_words(&body).filter(|_| is_malformed(&read)) {
                    read = decoder.whole(&body, draft);
                }
                read.map_err(|error| if is_cut(&body) { failure::broke_off() } else { error })?;
                draft.check()?;
            }
            Delivery::Streamed => {
                let last = self.framer.finish(&mut |frame| take(frame, decoder.as_mut(), draft));
                if self.framer.is_foreign() && !draft.may_end() {
                    return Err(failure::malformed(
                        "the server sent something else than an answer",
                    ));
                }
                // A frame that the end of the body cut off proves only that the provider was not
                // done.
                if !draft.may_end() || (last.is_err() && !draft.has_ended()) {
                    return Err(match last {
                        Err(error) if !failure::is_malformed(&error) => error,
                        Err(_) => failure::broke_off(),
                        Ok(()) => decoder.unfinished(),
                    });
                }
                if !draft.has_ended() {
                    decoder.ended(draft);
                }
            }
        }
        draft.complete(metadata);
        Ok(())
    }

    /// The next event that is ready; none before the model has said something.
    pub fn next_event(&mut self) -> Option<Event> {
        self.draft.next_event()
    }

    /// The metadata of an answer that failed before the model's first output.
    #[cfg(feature = "http")]
    pub(crate) fn rest(&mut self) -> impl Iterator<Item = Event> {
        self.draft.rest()
    }

    /// Whether the provider has said that this was all.
    pub fn has_ended(&self) -> bool {
        self.draft.has_ended()
    }
}

/// Whether JSON ends before it is whole.
fn is_cut(body: &str) -> bool {
    let read = serde_json::from_str::<IgnoredAny>(body);
    !body.trim().is_empty() && read.is_err_and(|error| error.is_eof())
}

/// Hands a frame on. Some servers keep the connection alive with empty ones.
fn take(frame: Frame<'_>, decoder: &mut dyn Decoder, draft: &mut Draft) -> Result<()> {
    if frame.data.trim_start().is_empty() || draft.has_ended() {
        return Ok(());
    }
    let data = without_halves(frame.data);
    let frame = Frame { data: &data, ..frame };
    if frame.event == "error" {
        let said = serde_json::from_str(frame.data).unwrap_or_else(|_| frame.data.into());
        return Err(failure::in_stream(&said));
    }
    let mut read = decoder.frame(frame, draft);
    if is_malformed(&read)
        && let Some(data) = with_known_words(frame.data)
    {
        read = decoder.frame(Frame { data: &data, ..frame }, draft);
    }
    read?;
    draft.check()
}

fn is_malformed(read: &Result<()>) -> bool {
    read.as_ref().is_err_and(failure::is_malformed)
}

/// JSON with `null` for each word and number that no reader takes, such as `NaN` and `1e999`; none if there is nothing of that
/// kind. Servers in Python write them for likelihoods.
fn with_known_words(json: &str) -> Option<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let mut known = String::with_capacity(json.len());
    let (mut in_string, mut is_escaped) = (false, false);
    let mut at = 0;
    while let Some(next) = json[at..].chars().next() {
        let mut length = next.len_utf8();
        if in_string {
            in_string = is_escaped || next != '"';
            is_escaped = next == '\\' && !is_escaped;
        } else if is_word(next) {
            length = json[at..].find(|c| !is_word(c)).unwrap_or(json.len() - at);
        } else {
            in_string = next == '"';
        }
        let token = &json[at..at + length];
        let is_known = in_string || !is_word(next) || serde_json::from_str::<Value>(token).is_ok();
        known.push_str(if is_known { token } else { "null" });
        at += length;
    }
    (known != json).then_some(known)
}

/// JSON with U+FFFD for each escaped half of a character that stands alone. Gateways that cut text where its UTF-16 is write such
/// halves, and no reader of JSON takes them.
fn without_halves(json: &str) -> Cow<'_, str> {
    const MARK: &str = "\\ufffd";
    let mut whole = String::new();
    let (mut done, mut at) = (0, 0);
    while let Some(found) = memchr(b'\\', &json.as_bytes()[at..]) {
        at += found;
        at += match (half(&json[at..]), half(json.get(at + 6..).unwrap_or_default())) {
            (Some(Half::High), Some(Half::Low)) => 12,
            (Some(_), _) => {
                whole.push_str(&json[done..at]);
                whole.push_str(MARK);
                done = at + 6;
                6
            }
            // What is escaped may be a backslash itself.
            (None, _) => 1 + json[at + 1..].chars().next().map_or(0, char::len_utf8),
        };
    }
    if done == 0 {
        return Cow::Borrowed(json);
    }
    whole.push_str(&json[done..]);
    Cow::Owned(whole)
}

#[derive(Clone, Copy)]
enum Half {
    High,
    Low,
}

/// The half of a character whose escape this begins with.
fn half(json: &str) -> Option<Half> {
    let digits = json.strip_prefix("\\u")?.get(..4)?;
    match u16::from_str_radix(digits, 16).ok()? {
        0xd800..=0xdbff => Some(Half::High),
        0xdc00..=0xdfff => Some(Half::Low),
        _ => None,
    }
}
