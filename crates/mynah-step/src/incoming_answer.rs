//! A model's answer while it arrives.

use std::sync::Arc;

use mynah_data::{
    AdapterReason, Breach, Budget, Error, Event, EventOrder, Message, Pricing, Response,
    ResponseBuilder, Result, StreamReason,
};
use mynah_log::{Cut, CutRecorder, Hash};
use serde_json::Value;

use crate::{Spent, budget::PartialAnswer};

/// A model's answer while it arrives: checks the order of its events, prices it, and folds it.
#[derive(Default)]
pub struct IncomingAnswer {
    answer: ResponseBuilder,
    heard: PartialAnswer,
    order: EventOrder,
    /// How the answer arrives, if the run is recorded.
    cuts: Option<CutRecorder>,
    pricing: Option<Pricing>,
}

impl IncomingAnswer {
    /// An answer whose tokens have this price, if it is known.
    pub fn new(pricing: Option<Pricing>, recorded: bool) -> Self {
        Self { pricing, cuts: recorded.then(CutRecorder::new), ..Self::default() }
    }

    /// Takes in an event and returns it as the caller sees it. An event that breaks the order becomes an error.
    pub fn hear(&mut self, event: Event, request_id: Option<&str>) -> Event {
        let mut event = match self.order.check(&event) {
            Ok(()) => event,
            Err(error) => Event::Error { error },
        };
        // Facts that only this side has travel with the events, so that a consumer who folds them
        // has them too.
        match (&mut event, request_id, &self.pricing) {
            (Event::MessageStarted { request_id, .. }, Some(id), _) => {
                *request_id = Some(id.to_owned());
            }
            (Event::Usage { usage }, _, Some(pricing)) => pricing.apply(usage),
            _ => {}
        }
        self.heard.hear(&event);
        match &mut self.cuts {
            Some(cuts) => cuts.apply(&event, &mut self.answer),
            None => self.answer.apply(&event),
        }
        // The message that goes to the caller is the one that goes into the thread.
        if let Event::MessageCompleted { message, .. } = &mut event {
            *message = self.answer.seal();
        }
        event
    }

    /// The call was stopped: the answer ends with this error. Nothing arrived.
    pub fn fail(&mut self, error: Error) {
        self.answer.apply(&Event::Error { error });
    }

    /// Whether an event has arrived.
    pub fn has_started(&self) -> bool {
        self.answer.has_started()
    }

    /// Whether the answer is complete.
    pub fn has_completed(&self) -> bool {
        self.answer.has_completed()
    }

    /// Whether the provider paused, to be called again with what it said.
    pub fn is_paused(&self) -> bool {
        self.answer.is_paused()
    }

    /// The first limit that the answer has passed so far.
    pub fn passed(&self, spent: &Spent, budget: &Budget) -> Option<Breach> {
        spent.passed_by_answer(budget, &self.heard)
    }

    /// What is wrong with an answer whose stream ended: it broke off, calls share an id, or the hash of what the provider
    /// sent is missing, which is 32 bytes in hex as `raw_response_hash` in its metadata.
    pub fn check_end(&mut self, provider: &str, needs_raw_hash: bool) -> Result<()> {
        if self.answer.error().is_some() {
            return Ok(());
        }
        if !self.answer.has_completed() {
            return Err(Error::adapter(AdapterReason::NetworkError)
                .with_message("adapter error: network_error: the answer broke off before its end")
                .with_provider(provider));
        }
        if has_twins(&self.answer.seal()) {
            return Err(Error::adapter(AdapterReason::MalformedResponse)
                .with_message("adapter error: malformed_response: two tool calls have the same id")
                .with_provider(provider));
        }
        let has_hash = |answer: Response| {
            let hash = answer.metadata.get("raw_response_hash").and_then(Value::as_str);
            hash.is_some_and(|hash| hash.parse::<Hash>().is_ok())
        };
        match needs_raw_hash && !has_hash(self.answer.response()) {
            true => {
                Err(Error::stream(StreamReason::MissingRawResponseHash).with_provider(provider))
            }
            false => Ok(()),
        }
    }

    /// The received part of the answer, and how it arrived.
    pub fn into_answer(self) -> (Response, Vec<Cut>) {
        (self.answer.into_response(), self.cuts.map(CutRecorder::finish).unwrap_or_default())
    }
}

/// Whether two tool calls have the same id. Their results could not be distinguished.
fn has_twins(message: &Arc<Message>) -> bool {
    if message.tool_calls().nth(1).is_none() {
        return false;
    }
    let mut ids: Vec<&str> = message.tool_calls().map(|call| call.id.as_str()).collect();
    ids.sort_unstable();
    ids.windows(2).any(|pair| pair[0] == pair[1])
}
