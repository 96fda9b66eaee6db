//! Calling the model from a loop of one's own.

use std::{collections::HashMap, sync::Arc};

use futures_util::StreamExt as _;
use mynah_data::{
    AdapterReason, Breach, Budget, EngineReason, Error, Event, Pricing, Request, Response,
    ResponseBuilder, Result, StreamReason, Usage,
};
use mynah_log::{CutRecorder, Effect, Fact, Hash, Plan, cbor};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{Context, unless_cancelled};
use crate::{
    Adapter, Heard, ModelCall, Spent, Watch,
    budget::estimate,
    check_price, check_raw_hash,
    desk::{Want, gone},
    open_model, price_of, prompt_size,
    recorded::MODEL_CALL,
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
    /// Calls the model once, and hears it out. What went before is written while it answers. One call is made after the other.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use futures_util::stream;
    /// # use mynah_data::{Event, FinishReason, Request, Result, Thread};
    /// # use mynah_log::{Extent, Fact, MemoryLog};
    /// # use mynah_step::{Adapter, BoxFuture, Config, Context, ModelCall, ModelStream};
    /// # struct Parrot;
    /// # impl Adapter for Parrot {
    /// #     fn name(&self) -> &str { "parrot" }
    /// #     fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
    /// #         let events = [Event::message_started(), Event::text_delta("Hello!"), Event::message_completed(Some(FinishReason::Stop))];
    /// #         Box::pin(async move { Ok(Box::pin(stream::iter(events.map(Ok))) as ModelStream) })
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// let context = Context::new(Config::new(&Arc::new(MemoryLog::new()), "run-1").adapter(Parrot))?;
    /// let thread = Thread::from("Hello?");
    /// context.emit(Fact::RunStarted { thread: thread.clone(), extent: Extent::Chat, about: None }).await?;
    /// let answer = context.llm_call(Request::from(thread)).await?;
    /// assert_eq!((answer.turn, &*answer.response.text()), (1, "Hello!"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A provider that refused or broke off, and an answer that is not one: the turn has no answer in the records then, and the
    /// failure is kept. `budget_exceeded`, which is recorded too, and `unknown_price`, which is not. A new run with the id of
    /// another, before the model is asked. Also as [`Context::now`].
    pub async fn llm_call(&self, request: Request) -> Result<Answer> {
        let config = &self.0.config;
        let adapter = config.adapter.clone().ok_or_else(|| {
            Error::engine(EngineReason::MissingAdapter)
                .with_message("engine error: missing_adapter: Config::adapter takes one")
        })?;
        let bytes = cbor::to_vec(&request)
            .map_err(|why| Error::invalid_option("request", why.to_string()))?;
        let pricing = price_of(&request, &config.catalog);
        let prompt = Hash::of(&[&bytes]);
        // Whose turn it is the records tell; whoever asked first would keep the others out.
        if self.is_replaying() {
            self.served(self.0.desk.ask(None, Want::Turn(prompt))).await?;
        }
        let mut turns = self.0.turns.lock().await;
        let size = self.size_of(&request);
        // What was called had its price.
        if !matches!(self.tape().upcoming(), Some(Fact::TurnStarted { .. })) {
            check_price(config.budget.as_ref(), pricing.as_ref(), &request)?;
        }
        let passed =
            |spent: &Spent, to: &Budget| spent.passed_by_calling(to, size, pricing.as_ref());
        let turn = *turns + 1;
        let begun = Fact::TurnStarted { turn, prompt: Some(prompt) };
        let recorded = self.announce(begun, passed).await?;
        *turns = turn;
        self.spent().turn_started(size);
        if recorded && let Some(response) = self.recorded_answer(pricing.as_ref()).await? {
            return Ok(Answer { turn, response });
        }
        self.tape().go_on()?;
        self.begun().await?;
        let mut watch = Watch::model(self.metrics(), request.model.as_ref());
        let mut call = Call { pricing, ..Call::default() };
        let hearing = self.hear(adapter, request, &mut call);
        let heard = unless_cancelled(self.0.cancelled.subscribe(), hearing);
        let heard = match self.served(self.while_there_is_time(heard)).await {
            Ok(heard) => heard.unwrap_or_else(|| Err(Error::stream(StreamReason::Cancelled))),
            Err(breach) => Ok(Some(breach)),
        };
        let begun = call.answer.has_started();
        let cuts = call.cuts.finish();
        let response = call.answer.into_response();
        self.spent().answered(&response, call.pricing.as_ref());
        let failure = match &heard {
            Ok(None) => None,
            Ok(Some(_)) => Some(EngineReason::BudgetExceeded.as_str()),
            Err(error) => Some(error.reason()),
        };
        watch.end(failure, Some(&response.usage));
        match heard {
            Ok(None) => {
                let (plan, kept) = (Plan::Nothing, Box::new(response.clone()));
                let kept =
                    self.put(Fact::AssistantCompleted { response: kept, plan, cuts }).await?;
                Ok(match kept {
                    Some(Fact::AssistantCompleted { response, .. }) => {
                        Answer { turn, response: *response }
                    }
                    _ => Answer { turn, response },
                })
            }
            Ok(Some(breach)) => {
                let partial = begun.then(|| Box::new(response));
                Err(self.exceed(breach, partial, cuts).await?)
            }
            Err(mut error) => {
                if let Some(usage) = taken_by(response) {
                    error = error.with("usage", json!(usage));
                }
                let (name, effect) = (MODEL_CALL.to_owned(), Effect::Failed(error.to_value()));
                let kept =
                    self.put(Fact::SideEffect { inside: None, name, ahead: 0, effect }).await?;
                Err(match kept {
                    Some(Fact::SideEffect { effect: Effect::Failed(error), .. }) => {
                        told(Some(&error))
                    }
                    _ => error,
                })
            }
        }
    }

    /// The size of a prompt; only a budget asks for it.
    fn size_of(&self, request: &Request) -> u64 {
        if self.0.config.budget.is_none() {
            return 0;
        }
        let schemas = request.tools.iter().map(|tool| tool.schema.to_string().len() as u64);
        prompt_size(request.messages.size(), schemas.sum())
    }

    /// What is recorded of an answer, or of how the run ended without it; nothing if its process ended before.
    async fn recorded_answer(&self, pricing: Option<&Pricing>) -> Result<Option<Response>> {
        let Some(fact) = self.served(self.0.desk.ask(None, Want::Answer)).await? else {
            return Ok(None);
        };
        Err(match fact {
            Fact::AssistantCompleted { response, .. } => {
                self.spent().answered(&response, pricing);
                return Ok(Some(*response));
            }
            Fact::BudgetExceeded { breach, partial, .. } => {
                let partial = partial.as_deref();
                match partial {
                    Some(partial) => self.spent().answered(partial, pricing),
                    None => self.spent().took(&Usage::default(), 0, pricing),
                }
                Error::budget_exceeded(&breach, partial)
            }
            Fact::SideEffect { effect: Effect::Failed(error), .. } => {
                let error = told(Some(&error));
                let usage = error.metadata().get("usage").map(Usage::deserialize);
                let usage = usage.and_then(std::result::Result::ok).unwrap_or_default();
                self.spent().took(&usage, 0, pricing);
                error
            }
            Fact::Failed(end) | Fact::Completed(end) => told(end.metadata.get("error")),
            Fact::Cancelled { .. } => Error::stream(StreamReason::Cancelled),
            _ => gone(),
        })
    }

    /// Hears an answer out, or until it passes a limit.
    async fn hear(
        &self,
        adapter: Arc<dyn Adapter>,
        request: Request,
        call: &mut Call,
    ) -> Result<Option<Breach>> {
        let config = &self.0.config;
        let retry = config.retry.clone().unwrap_or_else(|| adapter.default_retry());
        let run_id = Some(Arc::clone(&self.0.run_id));
        let to = ModelCall { request_id: config.world.new_id(), run_id, ..ModelCall::default() };
        let world = Arc::clone(&config.world);
        let provider = Arc::clone(&adapter);
        let mut stream = open_model(adapter, request, to, Arc::new(retry), world).await?;
        let (mut heard, mut order) = (Heard::default(), Order::default());
        while let Some(event) = stream.next().await {
            let mut event = event?;
            order.check(&event)?;
            match &mut event {
                Event::Error { error } => return Err(error.clone()),
                Event::Usage { usage } => {
                    if let Some(pricing) = &call.pricing {
                        pricing.apply(usage);
                    }
                }
                _ => {}
            }
            call.cuts.apply(&event, &mut call.answer);
            if let Some(budget) = &config.budget {
                heard.hear(&event);
                let breach = self.spent().passed_by_answer(budget, &heard, call.pricing.as_ref());
                if breach.is_some() {
                    return Ok(breach);
                }
            }
        }
        if !call.answer.has_completed() {
            return Err(Error::adapter(AdapterReason::NetworkError)
                .with_message("adapter error: network_error: the answer broke off before its end")
                .with_provider(provider.name()));
        }
        if config.require_raw_response_hash {
            check_raw_hash(&call.answer.response(), provider.name())?;
        }
        Ok(None)
    }
}

/// A call of the model under way.
#[derive(Default)]
struct Call {
    answer: ResponseBuilder,
    cuts: CutRecorder,
    pricing: Option<Pricing>,
}

/// An error as it is recorded.
fn told(error: Option<&Value>) -> Error {
    let error = error.and_then(|error| Error::deserialize(error).ok());
    error.unwrap_or_else(|| {
        Error::adapter(AdapterReason::Unknown)
            .with_message("adapter error: unknown: the recorded call has no answer")
    })
}

/// What a call took that failed, as far as it came: counted where it was not reported. Nothing if nothing came.
fn taken_by(response: Response) -> Option<Usage> {
    let counted = estimate(response.message.size());
    let mut usage = response.usage;
    if counted == 0 && usage == Usage::default() {
        return None;
    }
    usage.output_tokens.get_or_insert(counted);
    Some(usage)
}

/// What the order of a model's events may not be.
#[derive(Default)]
struct Order {
    /// The calls so far, and whether they are complete.
    calls: HashMap<String, bool>,
    over: bool,
}

impl Order {
    fn check(&mut self, event: &Event) -> Result<()> {
        let wrong = match event {
            // Some tell what an answer took when it is over.
            Event::Usage { .. } => None,
            _ if self.over => Some("something came after the end"),
            event if !event.is_from_model() => Some("an adapter may not emit it"),
            Event::ToolCallStarted { id, .. } if id.is_empty() => Some("a call has no id"),
            Event::ToolCallStarted { id, .. } if self.calls.contains_key(id) => {
                Some("a call began twice")
            }
            Event::ToolCallDelta { id, .. } => match self.calls.get(id) {
                None => Some("a call went on that never began"),
                Some(true) => Some("a call went on that was complete"),
                Some(false) => None,
            },
            _ => None,
        };
        if let Some(why) = wrong {
            let what = event.type_name();
            return Err(Error::stream(StreamReason::MalformedEvent)
                .with_message(format!("stream error: malformed_event: {what}: {why}"))
                .with("event", json!(what)));
        }
        match event {
            Event::ToolCallStarted { id, .. } => _ = self.calls.insert(id.clone(), false),
            Event::ToolCallCompleted(call) => _ = self.calls.insert(call.id.clone(), true),
            Event::MessageCompleted { .. } => self.over = true,
            _ => {}
        }
        Ok(())
    }
}
