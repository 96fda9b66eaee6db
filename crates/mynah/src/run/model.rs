//! The model's part of a run: calling it, hearing it out, and what its answer means.

use std::{pin::Pin, sync::Arc, task::Context, time::Duration};

use mynah_data::{
    AdapterReason, Error, Event, HaltReason, Message, Messages, Metadata, Request, Response,
    ResponseBuilder, StreamReason,
};
use mynah_log::{CutRecorder, End, Extent, Fact, Hash, Plan, cbor, expand};
use mynah_step::{Heard, WallClock, Watch, check_raw_hash, open_model};
use tokio::time::Sleep;

use super::driver::{Driver, Phase};

impl Driver {
    pub(super) fn call_model(&mut self) {
        if self.tape.ran_out() {
            return self.stop_short();
        }
        let index = self.state.steps.len();
        let prompt = self.tape.is_kept().then(|| self.prompt.after(&self.state.thread.messages));
        self.commit(Fact::TurnStarted { turn: index as u32 + 1, prompt });
        self.step = tracing::info_span!(parent: &self.span, "mynah.step", index);
        self.answer = ResponseBuilder::new();
        self.heard = Heard::default();
        self.cuts = CutRecorder::new();
        if self.tape.ran_out() {
            return self.stop_short();
        }
        // The process ended before there was an answer, and another asks with more than the first did.
        if self.is_spoken_to() {
            return;
        }
        if let Some(upcoming) = self.tape.upcoming() {
            self.phase = answer_from(upcoming);
            return;
        }
        let setup = &self.setup;
        let mut call = setup.call.clone();
        call.run_id = self.tape.run_id().cloned();
        let template = match (&setup.final_request, &self.state.conversation) {
            (Some(request), Some(_)) => {
                call.former_tools.clone_from(&setup.request.tools);
                request
            }
            _ => &setup.request,
        };
        let request = Request { messages: self.state.thread.messages.clone(), ..template.clone() };
        self.watch = Watch::model(setup.metrics.as_ref(), request.model.as_ref());
        self.catch_up();
        if let Err(error) = self.tape.go_on() {
            self.fault = Some(error);
        }
        let setup = &self.setup;
        self.limits = CallLimits::begin(setup.call.request_timeout, setup.call.stream_timeout);
        let (adapter, retry) = (Arc::clone(&setup.adapter), Arc::clone(&setup.retry));
        let world = Arc::clone(&setup.world);
        self.phase = Phase::Opening(Box::pin(open_model(adapter, request, call, retry, world)));
    }

    /// Whether a person says something here: as it is recorded, or where the records end. Then it was said.
    pub(super) fn is_spoken_to(&mut self) -> bool {
        let message = match self.tape.upcoming_of("user_message") {
            Some(Fact::UserMessage { message }) => Some(Arc::clone(message)),
            _ if self.is_live() => self.resumption.message.take(),
            _ => None,
        };
        let Some(message) = message else { return false };
        self.commit(Fact::UserMessage { message });
        true
    }

    /// A model call that failed before there was a stream. The first of a call is the caller's `Err`; a later one ends the chat.
    pub(super) fn not_opened(&mut self, error: Error) {
        self.watch.end(Some(error.reason()), None);
        if self.state.conversation.is_some() {
            self.commit(Fact::FinalizeFailed { error });
            self.phase = Phase::Decide;
            return;
        }
        let metadata = Metadata::from_iter([("error".to_owned(), error.to_value())]);
        let end = End::new(HaltReason::Error, metadata);
        self.commit(self.state.end_of_chat(end, &self.setup.policy).into_fact());
        if self.state.steps_of_call().is_empty() || self.state.extent != Extent::Chat {
            self.phase = Phase::Closing(Err(error));
        } else {
            self.ready.push_back(Event::Error { error });
            self.finish();
        }
    }

    /// Takes in an event of the model, and gives back what the caller is told.
    pub(super) fn hear(&mut self, mut event: Event) -> Event {
        if !event.is_from_model() {
            let name = event.type_name();
            let error = Error::stream(StreamReason::MalformedEvent).with_message(format!(
                "stream error: malformed_event: an adapter may not emit {name}"
            ));
            return self.hear(Event::Error { error });
        }
        // What only this side knows of the call travels with its events, so that whoever folds them knows it too.
        match &mut event {
            Event::MessageStarted { request_id, .. } => {
                *request_id = Some(self.setup.call.request_id.clone())
            }
            Event::Usage { usage } => {
                if let Some(pricing) = &self.setup.meter.pricing {
                    pricing.apply(usage);
                }
            }
            _ => {}
        }
        if self.setup.policy.budget.is_some() {
            self.heard.hear(&event);
        }
        if self.tape.is_kept() {
            self.cuts.apply(&event, &mut self.answer);
        } else {
            self.answer.apply(&event);
        }
        // The message that goes to the caller is the one that goes into the thread.
        let event = match event {
            Event::MessageCompleted {
                finish_reason, raw_finish_reason, paused, metadata, ..
            } => {
                let message = self.answer.seal();
                Event::MessageCompleted {
                    message,
                    finish_reason,
                    raw_finish_reason,
                    paused,
                    metadata,
                }
            }
            event => event,
        };
        if let Some(on_event) = self.setup.on_event.as_ref().filter(|_| !self.behind) {
            on_event(&event);
        }
        event
    }

    /// The model's stream failed.
    pub(super) fn broke_off(&mut self, error: Error) {
        let event = self.hear(Event::Error { error });
        self.ready.push_back(event);
        self.answered();
    }

    /// What a model call fails with that takes too long, or is silent for too long.
    pub(super) fn timed_out(&mut self, cx: &mut Context<'_>) -> Option<Error> {
        let why = match self.phase {
            Phase::Opening(_) | Phase::Answering(_) => self.limits.poll_passed(cx)?,
            _ => return None,
        };
        let error = Error::adapter(AdapterReason::Timeout)
            .with_message(format!("adapter error: timeout: {why}"))
            .with_provider(self.setup.adapter.name());
        Some(error)
    }

    /// The model's stream is over.
    pub(super) fn answered(&mut self) {
        if let Some(reason) = self.cancelled_here() {
            return self.interrupt(reason);
        }
        if let Some(breach) = self.tape.upcoming().and_then(WallClock::recorded) {
            return self.exceed(breach.clone());
        }
        if !self.answer.has_completed() && self.answer.error().is_none() {
            let error = Error::adapter(AdapterReason::NetworkError)
                .with_message("adapter error: network_error: the answer broke off before its end")
                .with_provider(self.setup.adapter.name());
            let event = self.hear(Event::Error { error });
            self.ready.push_back(event);
        }
        if self.answer.error().is_none() && has_twins(&self.answer.seal()) {
            let error = Error::adapter(AdapterReason::MalformedResponse)
                .with_message("adapter error: malformed_response: two tool calls have the same id")
                .with_provider(self.setup.adapter.name());
            let event = self.hear(Event::Error { error });
            self.ready.push_back(event);
        }
        if self.answer.error().is_none() && self.setup.require_raw_response_hash {
            let checked = check_raw_hash(&self.answer.response(), self.setup.adapter.name());
            if let Err(error) = checked {
                let event = self.hear(Event::Error { error });
                self.ready.push_back(event);
            }
        }
        self.phase = Phase::Decide;
        let paused = self.answer.is_paused();
        let failure = self.answer.error().map(Error::reason);
        let response = self.take_answer();
        self.watch.end(failure, Some(&response.usage));
        let plan = match self.tape.upcoming() {
            // What was planned is not planned anew, whatever the engine is now.
            Some(Fact::AssistantCompleted { plan, .. }) if self.tape.is_resuming() => plan.clone(),
            _ => self.setup.policy.plan(&self.state, &response, paused),
        };
        if let Plan::Unknown { tool_name } = &plan {
            self.ready.push_back(Event::Error { error: Error::unknown_tool(tool_name) });
        }
        let cuts = std::mem::take(&mut self.cuts).finish();
        self.commit(Fact::AssistantCompleted { response: Box::new(response), plan, cuts });
    }

    pub(super) fn take_answer(&mut self) -> Response {
        std::mem::take(&mut self.answer).into_response()
    }
}

/// The digest of what joined the conversation in a run, with what it began; what the runs before it hold is not part of it.
/// Carried forward message by message: its cost follows what is new.
pub(super) struct PromptDigest {
    messages: usize,
    digest: Hash,
    writer: cbor::Writer,
}

impl PromptDigest {
    /// Of nothing yet, after so many messages that earlier runs hold.
    pub(super) fn new(messages: usize) -> Self {
        Self { messages, digest: Hash::of(&[]), writer: cbor::Writer::default() }
    }

    fn after(&mut self, messages: &Messages) -> Hash {
        while let Some(message) = messages.get(self.messages) {
            // What has no encoding was refused before it could be asked.
            let bytes = self.writer.encode(&**message).unwrap_or_default();
            self.digest = Hash::of(&[&self.digest.0, bytes]);
            self.messages += 1;
        }
        self.digest
    }
}

/// How long a model call may take, and be silent.
#[derive(Default)]
pub(super) struct CallLimits {
    whole: Option<Pin<Box<Sleep>>>,
    max_silence: Option<Duration>,
    /// From the first event on: until then each try has its own.
    silence: Option<Pin<Box<Sleep>>>,
}

impl CallLimits {
    fn begin(whole: Option<Duration>, max_silence: Option<Duration>) -> Self {
        let whole = whole.map(|limit| Box::pin(tokio::time::sleep(limit)));
        Self { whole, max_silence, silence: None }
    }

    /// Silence is counted anew.
    pub(super) fn heard(&mut self) {
        let Some(limit) = self.max_silence else { return };
        match &mut self.silence {
            Some(timer) => timer.as_mut().reset(tokio::time::Instant::now() + limit),
            None => self.silence = Some(Box::pin(tokio::time::sleep(limit))),
        }
    }

    fn poll_passed(&mut self, cx: &mut Context<'_>) -> Option<&'static str> {
        let mut passed = |timer: &mut Option<Pin<Box<Sleep>>>| {
            timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready())
        };
        if passed(&mut self.whole) {
            return Some("the call took longer than request_timeout");
        }
        passed(&mut self.silence).then_some("nothing came for longer than stream_timeout")
    }
}

/// Whether two tool calls have the same id: nobody could tell whose result is whose.
fn has_twins(message: &Message) -> bool {
    if message.tool_calls().nth(1).is_none() {
        return false;
    }
    let mut ids: Vec<&str> = message.tool_calls().map(|call| call.id.as_str()).collect();
    ids.sort_unstable();
    ids.windows(2).any(|pair| pair[0] == pair[1])
}

/// The model's answer, from what is recorded of it.
fn answer_from(upcoming: &Fact) -> Phase {
    let recorded = |error: Option<&serde_json::Value>| {
        let error = error.and_then(|error| serde::Deserialize::deserialize(error).ok());
        let error = error.unwrap_or_else(|| Error::adapter(AdapterReason::Unknown));
        Phase::Opening(Box::pin(std::future::ready(Err(error))))
    };
    match upcoming {
        Fact::AssistantCompleted { response, cuts, .. } => answering(cuts, response),
        Fact::Cancelled { partial: Some(response), cuts, .. }
        | Fact::BudgetExceeded { partial: Some(response), cuts, .. } => answering(cuts, response),
        Fact::FinalizeFailed { error } => recorded(Some(&error.to_value())),
        Fact::Failed(end) => recorded(end.metadata.get("error")),
        // Whatever else is recorded is not what follows; the comparison will say so.
        _ => Phase::Answering(Box::pin(futures_util::stream::empty())),
    }
}

fn answering(cuts: &[mynah_log::Cut], response: &Response) -> Phase {
    Phase::Answering(Box::pin(futures_util::stream::iter(
        expand(cuts, response).into_iter().map(Ok),
    )))
}
