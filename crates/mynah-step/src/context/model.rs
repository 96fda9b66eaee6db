//! Calling the model from a custom loop.

use std::sync::Arc;

use futures_util::StreamExt as _;
use mynah_data::{
    Breach, Budget, EngineReason, Error, Event, Pricing, Request, Response, Result, StreamReason,
    Usage,
};
use mynah_log::{Effect, Fact, Hash, Kind, Plan, cbor};
use serde_json::json;
use tokio::time::Instant;

use super::{Context, unless_cancelled};
use crate::{
    Adapter, IncomingAnswer, ModelCall, ReplayCursor, Spent, Watch,
    budget::estimate,
    check_price,
    cursor::MODEL_CALL,
    journal::{Query, gone},
    millis, open_model, price_of, prompt_tokens, recorded_error,
};

/// What the model answered.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelAnswer {
    /// Which call of the run it was, from 1.
    pub turn: u32,
    /// The answer.
    pub response: Response,
}

impl Context {
    /// Calls the model once, and reads its whole answer. Earlier facts are written while it
    /// answers. Calls are made one after the other. A call that is given up, as by a timeout, is
    /// recorded as lost, and its prompt counts.
    ///
    /// ```
    /// # mod mynah { pub use {mynah_data::*, mynah_log as log, mynah_step as step, mynah_step::*}; }
    /// use std::sync::Arc;
    /// use futures_util::stream;
    /// use mynah::{Adapter, BoxFuture, Event, FinishReason, ModelCall, ModelStream, Request, Result};
    /// use mynah::log::MemoryLog;
    /// use mynah::step::{Config, Context};
    ///
    /// struct Parrot;
    ///
    /// impl Adapter for Parrot {
    ///     fn name(&self) -> &str { "parrot" }
    ///
    ///     fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
    ///         let end = Event::message_completed(Some(FinishReason::Stop));
    ///         let events = [Event::message_started(), Event::text_delta("Hello!"), end];
    ///         Box::pin(async move { Ok(Box::pin(stream::iter(events.map(Ok))) as ModelStream) })
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// let context = Context::new(Config::new(&Arc::new(MemoryLog::new()), "run-1").adapter(Parrot))?;
    /// let answer = context.run("Hello?", async |cx| cx.call_model(Request::from("Hello?")).await).await?;
    /// assert_eq!((answer.turn, &*answer.response.text()), (1, "Hello!"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A provider that refused or broke off, and an invalid answer: the turn then has no answer in
    /// the records, and the failure is recorded. `budget_exceeded`, which is recorded too, and
    /// `unknown_price`, which is not. A new run with the id of another, before the model is called.
    /// Also those of [`Context::now`].
    #[doc(alias = "LLMCall")]
    pub async fn call_model(&self, request: Request) -> Result<ModelAnswer> {
        // The future is large, and a loop may hold several of them.
        Box::pin(self.answer_of(request)).await
    }

    async fn answer_of(&self, request: Request) -> Result<ModelAnswer> {
        let config = &self.0.config;
        let adapter = config.adapter.clone().ok_or_else(|| {
            Error::engine(EngineReason::MissingAdapter)
                .with_message("engine error: missing_adapter: Config::adapter takes one")
        })?;
        let bytes = cbor::to_vec(&request)
            .map_err(|why| Error::invalid_option("request", why.to_string()))?;
        let pricing = price_of(&request, &config.catalog);
        let prompt = Hash::of(&[&bytes]);
        let _in_flight = self.0.in_flight.begin()?;
        // The records say whose turn it is; the first to ask would keep the others out.
        if self.is_replaying() {
            self.ask(Query::Turn(prompt)).await?;
        }
        let mut turns = self.0.turns.lock().await;
        let _given_up = GivenUp { context: self, turn: *turns + 1 };
        self.take_turn(&mut turns, adapter, request, prompt, pricing).await
    }

    async fn take_turn(
        &self,
        turns: &mut u32,
        adapter: Arc<dyn Adapter>,
        request: Request,
        prompt: Hash,
        pricing: Option<Pricing>,
    ) -> Result<ModelAnswer> {
        let config = &self.0.config;
        self.spent().set_pricing(pricing);
        // What was called had its price.
        let is_recorded =
            |cursor: &mut ReplayCursor| cursor.upcoming_of(&[Kind::TurnStarted]).map(drop);
        if self.0.journal.records(is_recorded).is_none() {
            check_price(config.budget.as_ref(), pricing.as_ref(), &request)?;
        }
        let (turn, input_tokens) = (*turns + 1, tokens_of(&request));
        let passed = |spent: &Spent, to: &Budget| spent.passed_by_calling(to, input_tokens);
        let begun = Fact::TurnStarted { turn, prompt: Some(prompt), input_tokens };
        *turns = turn;
        while self.announce(begun.clone(), Some(passed)).await? {
            let recorded = self.ask(Query::Answer).await?;
            recorded.iter().for_each(|answer| self.spent().evolve(answer));
            match recorded {
                Some(Fact::TurnLost { .. }) => {}
                Some(answer) => return answered(turn, answer),
                // Its process died: the call counts, and is made again.
                None => {
                    let lost = self.spent().lost(turn);
                    self.put(lost).await?;
                }
            }
        }
        self.in_run(self.held()).await?;
        let mut watch = Watch::model(self.metrics(), request.model.as_ref());
        let (began, mut first_token) = (Instant::now(), None);
        let mut hearing = IncomingAnswer::new(pricing, true);
        let heard = unless_cancelled(
            self.0.cancelled.subscribe(),
            self.hear(adapter, request, &mut hearing, || {
                first_token.get_or_insert_with(|| millis(began.elapsed()));
            }),
        );
        let heard = match self.in_run(self.while_there_is_time(&[], heard)).await {
            Ok(heard) => heard.unwrap_or_else(|| Err(Error::stream(StreamReason::Cancelled))),
            Err(breach) => Ok(Some(breach)),
        };
        let started = hearing.has_started();
        let (response, cuts) = hearing.into_answer();
        let failure = match &heard {
            Ok(None) => None,
            Ok(Some(_)) => Some(EngineReason::BudgetExceeded.as_str()),
            Err(error) => Some(error.reason()),
        };
        watch.end(failure, Some(&response.usage));
        let usage = taken_by(&response);
        let failed = |mut error: Error| {
            if let Some(usage) = &usage {
                error = error.with("usage", json!(usage));
            }
            let effect = Effect::Failed(error.to_value().to_string());
            Fact::SideEffect { inside: None, name: MODEL_CALL.to_owned(), ahead: 0, effect }
        };
        let fact = match heard {
            Ok(None) => {
                let duration_ms = Some(millis(began.elapsed()));
                let (plan, response) = (Plan::Nothing, Box::new(response));
                let first_token_ms = first_token;
                Fact::AssistantCompleted { response, plan, cuts, duration_ms, first_token_ms }
            }
            Ok(Some(breach)) => {
                let partial = started.then(|| Box::new(response));
                return Err(self.exceed(breach, partial, cuts).await?);
            }
            Err(error) => failed(error),
        };
        // An answer that no record can hold is a call that failed.
        answered(turn, self.put_or(fact, failed).await?)
    }

    /// Reads an answer to its end, or until it passes a limit. `on_token` is called with each piece of it.
    async fn hear(
        &self,
        adapter: Arc<dyn Adapter>,
        request: Request,
        hearing: &mut IncomingAnswer,
        mut on_token: impl FnMut(),
    ) -> Result<Option<Breach>> {
        let config = &self.0.config;
        let retry = config.retry.clone().unwrap_or_else(|| adapter.default_retry());
        let run_id = Some(self.0.journal.run_id().clone());
        let to = ModelCall { request_id: config.world.new_id(), run_id, ..ModelCall::default() };
        let world = Arc::clone(&config.world);
        let provider = Arc::clone(&adapter);
        let mut stream = open_model(adapter, request, to, Arc::new(retry), world).await?;
        while let Some(event) = stream.next().await {
            match hearing.hear(event?, None) {
                Event::Error { error } => return Err(error),
                event if event.is_token() => on_token(),
                _ => {}
            }
            if let Some(budget) = &config.budget {
                let breach = hearing.passed(&self.spent(), budget);
                if breach.is_some() {
                    return Ok(breach);
                }
            }
        }
        hearing.check_end(provider.name(), config.require_raw_response_hash)?;
        Ok(None)
    }
}

/// A model call that its caller may give up.
struct GivenUp<'a> {
    context: &'a Context,
    turn: u32,
}

impl Drop for GivenUp<'_> {
    /// A call that is dropped before its answer is recorded as lost.
    fn drop(&mut self) {
        let Self { context, turn } = *self;
        if context.0.in_flight.is_closed() {
            return;
        }
        let lost = || {
            let mut lost = context.spent().lost(turn);
            if let Fact::TurnLost { given_up, .. } = &mut lost {
                *given_up = true;
            }
            lost
        };
        if let Some(lost) = context.0.journal.leave_turn(turn, lost) {
            context.spent().evolve(&lost);
        }
    }
}

/// What the fact of an answer, or of how it failed, gives the loop.
fn answered(turn: u32, fact: Fact) -> Result<ModelAnswer> {
    Err(match fact {
        Fact::AssistantCompleted { response, .. } => {
            return Ok(ModelAnswer { turn, response: *response });
        }
        Fact::BudgetExceeded { breach, partial, .. } => {
            Error::budget_exceeded(&breach, partial.as_deref())
        }
        Fact::SideEffect { effect: Effect::Failed(error), .. } => {
            recorded_error(serde_json::from_str(&error).ok().as_ref())
        }
        Fact::Failed(end) | Fact::Completed(end) => recorded_error(end.metadata.get("error")),
        Fact::Cancelled { .. } => Error::stream(StreamReason::Cancelled),
        _ => gone(),
    })
}

/// The tokens of a prompt, as estimated.
fn tokens_of(request: &Request) -> u64 {
    let schemas = request.tools.iter().map(|tool| tool.schema.to_string().len() as u64);
    prompt_tokens(request.messages.size(), schemas.sum())
}

/// What a call took that failed, as far as it came: counted where it was not reported. Nothing if nothing came.
fn taken_by(response: &Response) -> Option<Usage> {
    let counted = estimate(response.message.size());
    let mut usage = response.usage.clone();
    if counted == 0 && usage == Usage::default() {
        return None;
    }
    usage.output_tokens.get_or_insert(counted);
    Some(usage)
}
