//! What must hold for any bytes at all, one function for each way in. `tests/hostile.rs` calls them with some bytes in every test
//! run, the targets in `fuzz/` with many.

#![allow(clippy::expect_used, reason = "helpers fail as tests do")]
#![allow(unreachable_pub, reason = "the fuzzer is another crate")]

#[path = "../common/frames.rs"]
mod frames;

use mynah_adapters::{
    bedrock::EventStreamFramer,
    format::{Delivery, Reader},
    presets::Preset,
    sse::{Framer, LineFramer, SseFramer},
};
use mynah_data::{Error, Event, Metadata, Request, ResponseBuilder};

/// The largest frame in these tests, so that few bytes reach the limit.
const LIMIT: usize = 1 << 10;

/// Server-sent events: wherever the bytes are cut, the same events come out, and none is beyond its limit.
pub fn sse(bytes: &[u8]) {
    framed(bytes, || Box::new(SseFramer::with_limit(LIMIT)));
}

/// Lines of JSON, as [`sse`].
pub fn lines(bytes: &[u8]) {
    framed(bytes, || Box::new(LineFramer::with_limit(LIMIT)));
}

/// Binary frames, as [`sse`].
pub fn event_stream(bytes: &[u8]) {
    framed(bytes, || Box::new(EventStreamFramer::with_limit(LIMIT)));
}

/// The answer of the server of this name: wherever the bytes are cut, the same events come out, no more than the bytes can
/// have said, and they make an answer.
pub fn answer(name: &str, bytes: &[u8]) {
    let body = match name {
        // Bytes are hardly ever frames: their lines are made into some.
        "bedrock" => frames::stream(String::from_utf8_lossy(bytes).lines()),
        _ => bytes.to_vec(),
    };
    for delivery in [Delivery::Streamed, Delivery::Whole] {
        let whole = read(name, delivery, [&body[..]]);
        let (first, second) = body.split_at(place(&body));
        assert_eq!(read(name, delivery, [first, second]), whole);
        if body.len() <= 4 * LIMIT {
            assert_eq!(read(name, delivery, body.chunks(1)), whole);
        }
        let mut answer = ResponseBuilder::new();
        whole.0.iter().for_each(|event| answer.apply(event));
        let told: usize =
            whole.0.iter().map(|event| serde_json::json!(event).to_string().len()).sum();
        // An event has a frame of its own around what it tells, and an answer counters that come again.
        assert!(told <= 1_000 * (body.len() + 10), "{} bytes became {told}", body.len());
        let _ = answer.into_response();
    }
}

fn framed(bytes: &[u8], framer: impl Fn() -> Box<dyn Framer>) {
    let whole = cut(framer(), [bytes]);
    let (first, second) = bytes.split_at(place(bytes));
    assert_eq!(cut(framer(), [first, second]), whole);
    assert_eq!(cut(framer(), bytes.chunks(1)), whole);
    for (_, data) in &whole.0 {
        // What is no text is replaced, three bytes for one.
        assert!(data.len() <= 3 * LIMIT);
    }
}

fn cut<'b>(
    mut framer: Box<dyn Framer>,
    pieces: impl IntoIterator<Item = &'b [u8]>,
) -> (Vec<(String, String)>, bool) {
    let mut frames = Vec::new();
    let mut keep = |frame: mynah_adapters::sse::Frame<'_>| {
        frames.push((frame.event.to_owned(), frame.data.to_owned()));
        Ok(())
    };
    let pushed = pieces.into_iter().try_for_each(|piece| framer.push(piece, &mut keep));
    let ended = pushed.and_then(|()| framer.finish(&mut keep)).is_ok();
    (frames, ended)
}

fn read<'b>(
    name: &str,
    delivery: Delivery,
    pieces: impl IntoIterator<Item = &'b [u8]>,
) -> (Vec<Event>, Option<Error>) {
    let format = Preset::named(name).expect("a preset").format();
    let mut reader = Reader::new(&*format, &Request::from("hi"), delivery).with_limit(1 << 20);
    let read = pieces.into_iter().try_for_each(|piece| reader.push(piece));
    let read = read.and_then(|()| reader.finish(Metadata::new()));
    (std::iter::from_fn(|| reader.next_event()).collect(), read.err())
}

/// Where to cut: somewhere that the bytes themselves decide.
fn place(bytes: &[u8]) -> usize {
    let sum = bytes.iter().fold(bytes.len(), |sum, byte| sum.wrapping_mul(31) ^ usize::from(*byte));
    sum % (bytes.len() + 1)
}
