//! Binary frames from lines.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use aws_smithy_eventstream::frame::write_message_to;
use aws_smithy_types::event_stream::{Header, HeaderValue, Message};

/// A body with a frame for each line: the name of the event and its JSON. An exclamation mark makes it an exception.
pub fn stream<'l>(lines: impl IntoIterator<Item = &'l str>) -> Vec<u8> {
    let mut body = Vec::new();
    for line in lines {
        let (name, payload) = line.split_once(' ').unwrap_or((line, ""));
        let headers = match name.strip_prefix('!') {
            Some(name) => [(":exception-type", name), (":message-type", "exception")],
            None => [(":event-type", name), (":message-type", "event")],
        };
        body.extend(frame(&headers, payload.as_bytes()));
    }
    body
}

/// One frame.
pub fn frame(headers: &[(&str, &str)], payload: &[u8]) -> Vec<u8> {
    let mut message = Message::new(payload.to_vec());
    for (name, value) in headers {
        let value = HeaderValue::String((*value).to_owned().into());
        message = message.add_header(Header::new((*name).to_owned(), value));
    }
    let mut written = Vec::new();
    write_message_to(&message, &mut written).expect("a frame");
    written
}
