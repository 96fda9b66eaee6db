//! The events of a run over connections that may break.

use std::{collections::VecDeque, time::Duration};

use http::{Method, StatusCode, header};
use http_body_util::BodyExt as _;
use mynah_adapters::{
    http::AnswerBody,
    sse::{Framer as _, SseFramer},
};
use mynah_data::RunId;
use tokio::time::{Instant, sleep};

use super::{Client, ClientError, Result};
use crate::{EventId, FollowedEvent};

/// The pause after the first connection that broke, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// A server that sends nothing for so long is gone: it sends a comment every 15 seconds.
const SILENCE: Duration = Duration::from_secs(45);

/// The events of a run; see [`Client::events`].
///
/// If the connection breaks or the server is restarted, it connects again and continues after the last event, so each event comes once.
#[derive(Debug)]
#[must_use = "no event is read unless it is asked for"]
pub struct Events {
    client: Client,
    run: RunId,
    last: Option<EventId>,
    patience: Duration,
    open: Option<Open>,
    ready: VecDeque<FollowedEvent>,
    is_over: bool,
    /// Since when no server answers, and the pause before the next attempt.
    outage: Option<(Instant, Duration)>,
}

struct Open {
    body: AnswerBody,
    framer: SseFramer,
}

mynah_data::partial_debug! { Open {} }

impl Events {
    pub(super) fn new(client: Client, run: RunId, last: Option<EventId>) -> Self {
        Self {
            client,
            run,
            last,
            patience: Duration::from_secs(60),
            open: None,
            ready: VecDeque::new(),
            is_over: false,
            outage: None,
        }
    }

    mynah_data::setters! { self => self;
        /// How long a server may be unreachable before that is an error. By default a minute.
        patience(time: Duration) = time;
    }

    /// The id of the last event, for [`Client::events`].
    pub fn last(&self) -> Option<EventId> {
        self.last
    }

    /// The next event; none after the run's seal. Dropping the future loses no event.
    ///
    /// # Errors
    /// Those of [`try_next`](Self::try_next).
    pub async fn next(&mut self) -> Option<Result<FollowedEvent>> {
        self.try_next().await.transpose()
    }

    /// As [`next`](Self::next), with the error outside.
    ///
    /// # Errors
    /// The server refuses the request, or cannot be reached for longer than the [`patience`](Self::patience). The next call attempts it
    /// again.
    pub async fn try_next(&mut self) -> Result<Option<FollowedEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.last = Some(event.id);
                return Ok(Some(event));
            }
            if self.is_over {
                return Ok(None);
            }
            if let Err(error) = self.advance().await {
                self.open = None;
                self.pause(error).await?;
            }
        }
    }

    /// Connects, or reads more.
    async fn advance(&mut self) -> Result<()> {
        let Some(open) = &mut self.open else { return self.connect().await };
        let silent = || ClientError::local("unreachable", "the server sends nothing any more");
        let frame = tokio::time::timeout(SILENCE, open.body.frame()).await.map_err(|_| silent())?;
        // A stream has an end; a connection breaks.
        let closed = || ClientError::local("unreachable", "the connection was closed");
        let frame = frame.ok_or_else(closed)?.map_err(|error| self.client.unreachable(error))?;
        let Some(chunk) = frame.data_ref() else { return Ok(()) };
        self.outage = None;
        let (ready, is_over) = (&mut self.ready, &mut self.is_over);
        let mut problem = None;
        let read = open.framer.push(chunk, &mut |frame| {
            match frame.event {
                // The next connection begins at the event that could not be read.
                _ if problem.is_some() => {}
                "end" => *is_over = true,
                "problem" => problem = Some(ClientError::local("stream_problem", frame.data)),
                _ => match serde_json::from_str(frame.data) {
                    Ok(event) => ready.push_back(event),
                    Err(error) => {
                        problem = Some(ClientError::local("unexpected_answer", error));
                    }
                },
            }
            Ok(())
        });
        read.map_err(|error| ClientError::local("unexpected_answer", error))?;
        match problem {
            // What came before it is given first, and the next connection continues from there.
            Some(_) if !self.ready.is_empty() => {
                self.open = None;
                Ok(())
            }
            Some(problem) => Err(problem),
            None => Ok(()),
        }
    }

    async fn connect(&mut self) -> Result<()> {
        let url = self.client.url(&["v1", "runs", &self.run, "events"], []);
        let request = self.client.request(Method::GET, url);
        let mut request = request.header(header::ACCEPT, "text/event-stream");
        if let Some(last) = self.last {
            request = request.header("last-event-id", last.to_string());
        }
        let response = self.client.send(request, "").await?;
        match response.status() == StatusCode::NO_CONTENT {
            true => self.is_over = true,
            false => {
                self.open = Some(Open { body: response.into_body(), framer: SseFramer::new() });
            }
        }
        Ok(())
    }

    /// Waits before the next attempt, unless there is none.
    async fn pause(&mut self, error: ClientError) -> Result<()> {
        let (since, pause) = self.outage.unwrap_or_else(|| (Instant::now(), PAUSES.0));
        if !error.is_temporary() || since.elapsed() >= self.patience {
            self.outage = None;
            return Err(error);
        }
        self.outage = Some((since, PAUSES.1.min(pause * 2)));
        sleep(pause).await;
        Ok(())
    }
}
