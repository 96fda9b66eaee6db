//! Reading bodies without a network.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

pub mod chat;
pub mod messages;
pub mod responses;

use mynah_adapters::format::{Delivery, Format, Reader};
use mynah_data::{Event, Metadata, Request, Response, ResponseBuilder, Result};

/// The events of a body that comes in these pieces.
pub fn events<'b>(
    format: &dyn Format,
    request: &Request,
    delivery: Delivery,
    pieces: impl IntoIterator<Item = &'b [u8]>,
) -> (Vec<Event>, Result<()>) {
    let mut reader = Reader::new(format, request, delivery);
    let read = pieces.into_iter().try_for_each(|piece| reader.push(piece));
    let read = read.and_then(|()| reader.finish(Metadata::new()));
    (std::iter::from_fn(|| reader.next_event()).collect(), read)
}

/// The events of a streamed body, which must be whole.
pub fn streamed(format: &dyn Format, body: &str) -> Vec<Event> {
    let (events, read) =
        events(format, &Request::from("hi"), Delivery::Streamed, [body.as_bytes()]);
    read.unwrap_or_else(|error| panic!("{error:?}\n{body}"));
    events
}

/// The answer that events make.
pub fn folded(events: &[Event]) -> Response {
    let mut answer = ResponseBuilder::new();
    events.iter().for_each(|event| answer.apply(event));
    answer.into_response()
}

/// Server-sent events from the JSON of their data.
pub fn sse<'d>(data: impl IntoIterator<Item = &'d str>) -> String {
    data.into_iter().map(|data| format!("data: {data}\n\n")).collect()
}
