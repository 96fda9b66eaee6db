//! Calling the model from a loop of one's own.

use std::sync::{Arc, atomic::Ordering};

use futures_util::StreamExt as _;
use mynah_data::{
    AdapterReason, EngineReason, Error, Event, Request, Response, ResponseBuilder, Result,
    StreamReason,
};
use mynah_log::{Cut, CutRecorder, Fact, Hash, Plan, cbor};
use serde_json::json;
use tokio::time::Instant;

use super::Context;
use crate::{
    Adapter, ModelCall,
    desk::{Want, gone},
    open_model,
};

/// What the model answered.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// Which call of the run it was, from 1.
    pub turn: u32,
    /// The answer.
    pub response: Response,
}

impl Context {
    /// Calls the model once, and hears it out. What went before is written while it answers.
    ///
    /// # Errors
    /// A provider that refused or broke off, and an answer that is not one; nothing but the beginning of the turn is recorded
    /// then. Also as [`Context::now`].
    pub async fn llm_call(&self, request: Request) -> Result<Answer> {
        let adapter = self.0.config.adapter.clone().ok_or_else(|| {
            Error::engine(EngineReason::MissingAdapter)
                .with_message("engine error: missing_adapter: Config::adapter takes one")
        })?;
        let bytes = cbor::to_vec(&request)
            .map_err(|why| Error::invalid_option("request", why.to_string()))?;
        let turn = self.0.turns.fetch_add(1, Ordering::Relaxed) + 1;
        self.emit(Fact::TurnStarted { turn, prompt: Some(Hash::of(&[&bytes])) }).await?;
        if self.0.replaying {
            let response = self.recorded_answer().await?;
            return Ok(Answer { turn, response });
        }
        let model = request.model.as_ref().map(ToString::to_string).unwrap_or_default();
        let began = Instant::now();
        let heard = self.served(self.hear(adapter, request)).await;
        if let Some(metrics) = self.metrics() {
            let usage = heard.as_ref().ok().map(|(response, _)| &response.usage);
            let tokens = |of: Option<u64>| of.unwrap_or(0);
            let failure = heard.as_ref().err().map(Error::reason);
            let (input, output) = usage
                .map_or((0, 0), |usage| (tokens(usage.input_tokens), tokens(usage.output_tokens)));
            metrics.model_call(&model, failure, began.elapsed(), input, output);
        }
        let (response, cuts) = heard?;
        let plan = Plan::Nothing;
        let fact = Fact::AssistantCompleted { response: Box::new(response.clone()), plan, cuts };
        self.emit(fact).await?;
        Ok(Answer { turn, response })
    }

    /// What is recorded of an answer, or of how the run ended without it.
    async fn recorded_answer(&self) -> Result<Response> {
        match self.served(self.0.desk.ask(None, Want::Answer)).await? {
            Some(Fact::AssistantCompleted { response, .. }) => Ok(*response),
            Some(Fact::Failed(end) | Fact::Completed(end) | Fact::Cancelled { end, .. }) => {
                let told = end.metadata.get("error").map(serde::Deserialize::deserialize);
                Err(told.and_then(std::result::Result::ok).unwrap_or_else(|| {
                    Error::adapter(AdapterReason::Unknown)
                        .with_message("adapter error: unknown: the recorded call has no answer")
                }))
            }
            _ => Err(gone()),
        }
    }

    async fn hear(
        &self,
        adapter: Arc<dyn Adapter>,
        request: Request,
    ) -> Result<(Response, Vec<Cut>)> {
        let config = &self.0.config;
        let retry = config.retry.clone().unwrap_or_else(|| adapter.default_retry());
        let call = ModelCall { request_id: config.world.new_id(), ..ModelCall::default() };
        let world = Arc::clone(&config.world);
        let provider = Arc::clone(&adapter);
        let mut stream = open_model(adapter, request, call, Arc::new(retry), world).await?;
        let (mut answer, mut cuts) = (ResponseBuilder::new(), CutRecorder::new());
        let mut order = Order::default();
        while let Some(event) = stream.next().await {
            let event = event?;
            order.check(&event)?;
            if let Event::Error { error } = event {
                return Err(error);
            }
            cuts.apply(&event, &mut answer);
        }
        if !answer.has_completed() {
            return Err(Error::adapter(AdapterReason::NetworkError)
                .with_message("adapter error: network_error: the answer broke off before its end")
                .with_provider(provider.name()));
        }
        let response = answer.into_response();
        let hash = response.metadata.get("raw_response_hash").and_then(|hash| hash.as_str());
        if config.require_raw_response_hash && hash.and_then(Hash::from_hex).is_none() {
            return Err(
                Error::stream(StreamReason::MissingRawResponseHash).with_provider(provider.name())
            );
        }
        Ok((response, cuts.finish()))
    }
}

/// What the order of a model's events may not be.
#[derive(Default)]
struct Order {
    calls: Vec<String>,
    over: bool,
}

impl Order {
    fn check(&mut self, event: &Event) -> Result<()> {
        let known = |id: &String| self.calls.contains(id);
        let wrong = match event {
            _ if self.over => Some("something came after the end"),
            event if !event.is_from_model() => Some("an adapter may not emit it"),
            Event::ToolCallStarted { id, .. } if known(id) => Some("a call began twice"),
            Event::ToolCallDelta { id, .. } if !known(id) => {
                Some("a call went on that never began")
            }
            _ => None,
        };
        if let Some(why) = wrong {
            let what = event.type_name();
            return Err(Error::stream(StreamReason::MalformedEvent)
                .with_message(format!("stream error: malformed_event: {what}: {why}"))
                .with("event", json!(what)));
        }
        match event {
            Event::ToolCallStarted { id, .. } => self.calls.push(id.clone()),
            Event::MessageCompleted { .. } => self.over = true,
            _ => {}
        }
        Ok(())
    }
}
