//! A streaming answer: bytes from a connection become events for the caller.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::Stream;
use http::Response;
use hyper::body::{Body as _, Frame};
use mynah_data::{Error, Event, Metadata, Request, ResponseBuilder, Result};
use mynah_step::ModelCall;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, Sleep};

use super::{
    AnswerBody, ErrorContext, HttpAdapter, header_of, longest_silence, origin, secrets::Watch,
};
use crate::{
    failure,
    format::{Delivery, Reader},
};

/// How long an answer that said its end mark is given to end its body, so that the connection can be used again.
const LINGER: Duration = Duration::from_millis(250);

/// How many pieces are read before their events are handled, if they have come. The code of connections and that of events do not fit
/// into a cache of instructions together.
const BURST: usize = 16;

/// The longest that a server may send nothing but keep-alives where the call does not say: some do for a model that is gone.
const MAX_WORDLESS: Duration = Duration::from_secs(1800);

/// An answer as it comes in.
pub(super) struct Answering {
    /// None once it has ended.
    body: Option<AnswerBody>,
    reader: Reader,
    hash: Sha256,
    linger: Option<Pin<Box<Sleep>>>,
    max_silence: Duration,
    max_wordless: Duration,
    /// Since when nothing has come: when the connection was first polled in vain.
    silent_since: Option<Instant>,
    /// When the last event was emitted, or the answer began.
    wordless_since: Instant,
    /// Rings when one of these times may be over. It is set once and moved when it rings, because bytes come far more often.
    alarm: Option<Pin<Box<Sleep>>>,
    /// The error that ended it, held back until all earlier events are emitted.
    failure: Option<Error>,
    has_told: bool,
    /// Whether an event was emitted since the connection was last polled in vain.
    is_heard: bool,
    context: ErrorContext,
    watch: Watch,
    /// Whose answer it is.
    origin: Arc<str>,
}

impl Answering {
    pub(super) fn new(
        adapter: &HttpAdapter,
        request: &Request,
        call: &ModelCall,
        response: Response<AnswerBody>,
        mut context: ErrorContext,
        origin: Arc<str>,
    ) -> Self {
        let header = header_of(response.headers());
        let delivery = Delivery::of(header("content-type"));
        context.called(failure::request_id(&header));
        drop(header);
        Self {
            reader: Reader::new(adapter.format.as_ref(), request, delivery),
            context,
            watch: Watch::default(),
            body: Some(response.into_body()),
            hash: Sha256::new(),
            linger: None,
            max_silence: longest_silence(call),
            // The caller enforces the limits of the call.
            max_wordless: call.stream_timeout.map_or(MAX_WORDLESS, |_| Duration::MAX),
            silent_since: None,
            wordless_since: Instant::now(),
            alarm: None,
            failure: None,
            has_told: false,
            is_heard: false,
            origin,
        }
    }

    /// Reads what has come of the body.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(Ok(()));
        };
        let Poll::Ready(next) = Pin::new(body).poll_frame(cx) else {
            if self.reader.has_ended() {
                let linger =
                    self.linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
                ready!(linger.as_mut().poll(cx));
                return Poll::Ready(self.finish());
            }
            return self.poll_silence(cx).map(Err);
        };
        self.silent_since = None;
        let mut read = self.take(next);
        for _ in 1..BURST {
            let Some(body) = self.body.as_mut().filter(|_| read.is_ok()) else { break };
            let next = Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(next) = next else { break };
            read = self.take(next);
        }
        Poll::Ready(read)
    }

    /// Takes a piece of the body, or its end.
    fn take(&mut self, next: Option<hyper::Result<Frame<Bytes>>>) -> Result<()> {
        match next {
            Some(Ok(frame)) => match frame.data_ref() {
                Some(bytes) => {
                    self.hash.update(bytes);
                    self.watch.look(bytes, &self.context.secrets);
                    self.reader.push(bytes)
                }
                None => Ok(()),
            },
            // What breaks after the answer's end takes nothing from it.
            Some(Err(error)) if !self.reader.has_ended() => {
                Err(self.context.transport_error(error))
            }
            _ => self.finish(),
        }
    }

    /// Fails when nothing, or nothing but keep-alives, came for too long.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        let silent_since = *self.silent_since.get_or_insert_with(Instant::now);
        if std::mem::take(&mut self.is_heard) {
            self.wordless_since = silent_since;
        }
        let ends = [(silent_since, self.max_silence), (self.wordless_since, self.max_wordless)];
        let ends = ends.map(|(since, limit)| since.checked_add(limit));
        let Some(end) = ends.into_iter().flatten().min() else { return Poll::Pending };
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        loop {
            ready!(alarm.as_mut().poll(cx));
            if alarm.deadline() >= end {
                break;
            }
            alarm.as_mut().reset(end);
        }
        Poll::Ready(match self.wordless_since.elapsed() < self.max_wordless {
            true => self.context.was_silent(self.max_silence),
            false => self.context.was_wordless(self.max_wordless),
        })
    }

    fn finish(&mut self) -> Result<()> {
        self.body = None;
        let hash = hex(&self.hash.finalize_reset());
        let mut metadata = Metadata::from_iter([("raw_response_hash".to_owned(), hash.into())]);
        if let Some(id) = &self.context.request_id {
            metadata.insert("provider_request_id".to_owned(), id.as_str().into());
        }
        self.reader.finish(metadata)
    }
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

impl Stream for Answering {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        loop {
            if let Some(event) = self.reader.next_event() {
                (self.has_told, self.is_heard) = (true, true);
                let event = origin::mark(&self.origin, event);
                return Poll::Ready(Some(Ok(match self.watch.has_seen {
                    true => self.context.secrets.out_of_event(event),
                    false => event,
                })));
            }
            if let Some(mut error) = self.failure.take() {
                if !self.has_told {
                    let mut partial = ResponseBuilder::new();
                    self.reader.rest().for_each(|event| partial.apply(&event));
                    partial.apply(&Event::Error { error: error.clone() });
                    error = error.with("partial", json!(partial.into_response()));
                }
                return Poll::Ready(Some(Err(self.context.complete(error))));
            }
            if self.body.is_none() {
                return Poll::Ready(None);
            }
            if let Err(error) = ready!(self.poll_read(cx)) {
                self.body = None;
                self.failure = Some(error);
            }
        }
    }
}
