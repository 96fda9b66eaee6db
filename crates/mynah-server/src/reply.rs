//! Answers: JSON, and streams of events.

use std::{convert::Infallible, time::Duration};

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{
        IntoResponse as _, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{Stream, StreamExt as _};
use serde::Serialize;

use crate::App;

/// How long a stream may be silent before a comment is sent.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// A value as JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let json = HeaderValue::from_static("application/json");
            (status, [(header::CONTENT_TYPE, json)], body).into_response()
        }
        // Every value that is sent can be written: its maps have text as keys.
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// A value as JSON, and all is well.
pub(crate) fn ok(value: &impl Serialize) -> Response {
    json(StatusCode::OK, value)
}

/// Whether the client wants a stream.
pub(crate) fn wants_stream(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts
        .flat_map(|value| value.split(','))
        .any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == "text/event-stream"))
}

/// An event of a stream, with data as JSON.
pub(crate) fn event(data: &impl Serialize) -> Event {
    // As above: every value can be written.
    Event::default().data(serde_json::to_string(data).unwrap_or_default())
}

/// A stream of events, until it ends or the server stops. The client takes one after the other; what it has not read is not made.
pub(crate) fn stream(app: &App, events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let stopping = app.stopping.clone();
    let open = app.metrics.open_stream();
    let events = events.take_until(stopping.cancelled_owned()).map(move |event| {
        let _ = &open;
        Ok::<_, Infallible>(event)
    });
    let heartbeat = KeepAlive::new().interval(HEARTBEAT).text("");
    let mut response = Sse::new(events).keep_alive(heartbeat).into_response();
    // A proxy that collects the stream would keep it from the client.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
