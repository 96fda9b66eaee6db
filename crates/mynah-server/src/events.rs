//! The events of a run.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse as _, Response, sse::Event},
};
use futures_util::{Stream, stream};
use mynah::{EventId, Follow, FollowedEvent, follow};
use serde_json::json;
use std::sync::atomic::Ordering::Relaxed;

use crate::{
    App,
    problem::{Problem, Result},
    query::{Id, Query},
    reply, runs,
};

/// `GET /v1/runs/{id}/events`
pub(crate) async fn events(
    State(app): State<App>,
    Id(id): Id,
    uri: Uri,
    headers: HeaderMap,
) -> Result {
    let mut query = Query::of(&uri);
    let mut after = query.parsed("after", "the id of an event")?;
    let limit = query.count("limit", 100, runs::LARGEST)?;
    query.end()?;
    if let Some(last) = headers.get("last-event-id") {
        let last = last.to_str().unwrap_or_default();
        let wrong = || Problem::bad(format!("Last-Event-ID: {last}: give the id of an event"));
        after = Some(last.parse().map_err(|_| wrong())?);
    }
    runs::found(&app, &id).await?;
    let mut events = follow(&runs::log(&app), &id, after).in_flight(&app.live.in_flight);
    if !reply::wants_stream(&headers) {
        return page(events, after, limit).await;
    }
    // Existing records are read first, so that an error of the log is an answer and not a broken
    // stream.
    let first = events.next_ready().await?;
    if first.is_none() && events.is_over() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(reply::stream(&app, told(&app, first, events, |_| false)))
}

async fn page(mut events: Follow, after: Option<EventId>, limit: usize) -> Result<Response> {
    let (mut list, mut next) = (Vec::new(), after);
    while list.len() < limit
        && let Some(event) = events.next_ready().await?
    {
        next = Some(event.id);
        list.push(event);
    }
    // The last event of a page may be the last of the run.
    Ok(reply::ok(&json!({"events": list, "next": next, "done": events.is_over()})))
}

/// The events of a run as a client reads them, up to its seal or to an event after which nothing more is wanted. A run that this process
/// loses or releases is continued by another.
pub(crate) fn told(
    app: &App,
    first: Option<FollowedEvent>,
    events: Follow,
    is_last: fn(&FollowedEvent) -> bool,
) -> impl Stream<Item = Event> + Send + use<> {
    enum Next {
        Event(Option<Box<FollowedEvent>>),
        End,
        Nothing,
    }
    let metrics = std::sync::Arc::clone(&app.metrics);
    stream::unfold((Next::Event(first.map(Box::new)), events), move |(next, mut events)| {
        let metrics = std::sync::Arc::clone(&metrics);
        async move {
            let event = match next {
                Next::Nothing => return None,
                Next::End => Ok(None),
                Next::Event(Some(event)) => Ok(Some(*event)),
                Next::Event(None) => events.try_next().await,
            };
            Some(match event {
                Ok(Some(event)) => {
                    metrics.events.fetch_add(1, Relaxed);
                    let next = if is_last(&event) { Next::End } else { Next::Event(None) };
                    (reply::event(&event).id(event.id.to_string()), (next, events))
                }
                Ok(None) => (reply::event(&json!({})).event("end"), (Next::Nothing, events)),
                Err(error) => {
                    let problem = reply::event(&Problem::from(error)).event("problem");
                    (problem, (Next::Nothing, events))
                }
            })
        }
    })
}
