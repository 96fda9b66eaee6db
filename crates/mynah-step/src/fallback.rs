//! A model for when another cannot be had.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use mynah_data::{
    AdapterReason, Catalog, EngineReason, Error, ErrorKind, Event, Metadata, ModelRef, Request,
    Result,
};
use serde_json::json;

use crate::{
    RetryPolicy,
    adapter::{Adapter, BoxFuture, ModelCall, ModelStream, open_once},
};

/// An adapter that asks the next model where one cannot be had.
///
/// The next model is called if a call fails before its first event for a reason that another
/// provider may not share: a missing or rejected key, an unknown model, a rate limit, no capacity,
/// no connection, a prompt that is too long, an invalid answer, a feature that the adapter lacks.
/// An invalid request, or one that was refused for its content, fails at once. A model whose answer
/// has begun is not replaced. If all fail, the error is that of the last model that was called. One
/// without a key was not called, so its error counts only if no model has a key; then it is the
/// first one's. The error names the other models, and its metadata has their errors, in order, as
/// `others`.
///
/// A call's key and adapter options apply to the first model only. The others have their own, or
/// use the environment. Provider options of a request reach every provider; options under a
/// provider's name reach only that one. A retry policy starts again with the first. Tokens are
/// priced by the model that answers. If its price is unknown, they have no cost and `extra` names
/// the `unpriced_model`; a limit in dollars counts them at the first one's price.
///
/// ```
/// # mod mynah { pub use {mynah_data::*, mynah_step::*}; }
/// use std::sync::Arc;
/// use futures_util::{StreamExt as _, stream};
/// use mynah::{
///     Adapter, AdapterReason, BoxFuture, Error, Event, Fallback, ModelCall, ModelStream,
///     Request, Result,
/// };
///
/// struct Busy;
/// # struct Small;
///
/// impl Adapter for Busy {
///     fn name(&self) -> &str {
///         "busy"
///     }
///
///     fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
///         Box::pin(async { Err(Error::adapter(AdapterReason::Overloaded)) })
///     }
/// }
/// # impl Adapter for Small {
/// #     fn name(&self) -> &str {
/// #         "small"
/// #     }
/// #     fn open(self: Arc<Self>, request: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
/// #         assert_eq!(request.model, Some("small-1".into()));
/// #         Box::pin(async { Ok(Box::pin(stream::iter([Ok(Event::message_started())])) as ModelStream) })
/// #     }
/// # }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let adapter = Arc::new(Fallback::new(Busy).or(Small, "small-1"));
/// let mut events = adapter.open(Request::from("hi").with_model("large-1"), ModelCall::default()).await?;
/// assert!(events.next().await.is_some());
/// # Ok(()) }
/// ```
#[must_use = "an adapter does nothing unless an engine or a loop has it"]
pub struct Fallback {
    name: String,
    choices: Arc<[Choice]>,
    patience: Option<Duration>,
}

mynah_data::partial_debug! { Fallback { name, patience } }

#[derive(Clone)]
struct Choice {
    adapter: Arc<dyn Adapter>,
    /// The request's where it is none, as for the first.
    model: Option<ModelRef>,
}

impl Fallback {
    /// Asks this adapter first, for the model that is called.
    pub fn new(adapter: impl Adapter) -> Self {
        Self {
            name: adapter.name().to_owned(),
            choices: Arc::new([Choice { adapter: Arc::new(adapter), model: None }]),
            patience: None,
        }
    }

    /// Adds a fallback with this model. Facts about the model come from the built-in catalog.
    pub fn or(mut self, adapter: impl Adapter, model: impl Into<ModelRef>) -> Self {
        self.name = format!("{}|{}", self.name, adapter.name());
        let model = Some(Catalog::built_in().inform(model.into()));
        let next = Choice { adapter: Arc::new(adapter), model };
        self.choices = self.choices.iter().cloned().chain([next]).collect();
        self
    }

    mynah_data::setters! { self => self;
        /// How long each model but the last may be silent before the next is called. By default that is
        /// the call's `stream_timeout`, separately for each.
        patience(limit: Duration) = Some(limit);
    }
}

impl Adapter for Fallback {
    /// The names of all adapters, in order: `anthropic|openai-chat`.
    fn name(&self) -> &str {
        &self.name
    }

    /// Whether any of them can be called, up to the first whose failure would end the call.
    fn preflight(&self, request: &Request, call: &ModelCall) -> Result<()> {
        let mut failed = Vec::new();
        for choice in self.choices.iter() {
            let (own, to) = (choice.request(request.clone()), choice.call(call.clone()));
            match choice.adapter.preflight(&own, &to) {
                Err(error) if helps(&error) => failed.push(choice.failed(request, error)),
                checked => {
                    return checked
                        .map_err(|error| with_others(choice.failed(request, error), &failed));
                }
            }
        }
        Err(last_called(failed))
    }

    fn open(self: Arc<Self>, request: Request, call: ModelCall) -> BoxFuture<Result<ModelStream>> {
        Box::pin(async move {
            let mut failed = Vec::new();
            for (index, choice) in self.choices.iter().enumerate() {
                let patience = self.patience.filter(|_| index + 1 < self.choices.len());
                match choice.open(&request, &call, patience).await {
                    Err(error) if helps(&error) => {
                        tracing::warn!(
                            provider = choice.adapter.name(),
                            reason = error.reason(),
                            request_id = call.request_id,
                            run_id = call.run_id.as_deref(),
                            "a model could not be called"
                        );
                        failed.push(choice.failed(&request, error));
                    }
                    opened => {
                        return opened
                            .map_err(|error| with_others(choice.failed(&request, error), &failed));
                    }
                }
            }
            Err(last_called(failed))
        })
    }

    /// If any of them needs it.
    fn needs_structured_finalize(&self, request: &Request) -> bool {
        self.choices.iter().any(|choice| {
            choice.adapter.needs_structured_finalize(&choice.request(request.clone()))
        })
    }

    /// The newest of all.
    fn schema_fit(&self) -> Option<u32> {
        self.choices.iter().filter_map(|choice| choice.adapter.schema_fit()).max()
    }

    /// The first one's.
    fn default_retry(&self) -> RetryPolicy {
        self.choices
            .first()
            .map_or_else(RetryPolicy::default, |first| first.adapter.default_retry())
    }

    /// None for all together: each of them has its own.
    fn first_event_timeout(&self, _: &ModelCall) -> Option<Duration> {
        None
    }
}

impl Choice {
    /// An error of this one, with whose it is.
    fn failed<'a>(&'a self, request: &'a Request, error: Error) -> Failed<'a> {
        let model = self.model.as_ref().or(request.model.as_ref());
        (self.adapter.name(), model.map(|model| &*model.id), error)
    }

    /// A stream that has said something.
    async fn open(
        &self,
        request: &Request,
        call: &ModelCall,
        patience: Option<Duration>,
    ) -> Result<ModelStream> {
        let (request, call) = (self.request(request.clone()), self.call(call.clone()));
        let stream = open_once(&self.adapter, request, call, patience).await?;
        // The caller knows the price of the first.
        let Some(model) = self.model.clone() else {
            return Ok(stream);
        };
        Ok(Box::pin(stream.map(move |event| {
            event.map(|mut event| {
                if let Event::Usage { usage } = &mut event {
                    match model.pricing {
                        Some(pricing) => pricing.apply(usage),
                        None => {
                            let extra = Arc::make_mut(&mut usage.extra);
                            extra.insert("unpriced_model".into(), model.id.as_str().into());
                        }
                    }
                }
                event
            })
        })))
    }

    fn request(&self, mut request: Request) -> Request {
        request.model = self.model.clone().or(request.model);
        request
    }

    /// What is meant for the first, its key above all, must not reach another provider.
    fn call(&self, call: ModelCall) -> ModelCall {
        match self.model {
            None => call,
            Some(_) => ModelCall { api_key: None, adapter_opts: Metadata::new(), ..call },
        }
    }
}

/// A provider, its model and its error.
type Failed<'a> = (&'a str, Option<&'a str>, Error);

/// The error of the last model that was called; of the first if none has a key.
fn last_called(mut failed: Vec<Failed<'_>>) -> Error {
    let last = failed.iter().rposition(|(_, _, error)| !is_missing_key(error)).unwrap_or(0);
    match failed.is_empty() {
        true => Error::engine(EngineReason::MissingAdapter),
        false => with_others(failed.remove(last), &failed),
    }
}

/// The error with those of the other models. Its message names its own model and details, so that they are not taken for another's.
fn with_others((provider, model, error): Failed<'_>, others: &[Failed<'_>]) -> Error {
    if others.is_empty() {
        return error;
    }
    let short = others
        .iter()
        .map(|(provider, model, error)| format!("{}: {}", named(provider, *model), error.reason()));
    let short = short.collect::<Vec<_>>().join(", ");
    let own = error.to_string();
    let own = own.strip_prefix(&format!("{provider}: ")).unwrap_or(&own);
    let message = format!("{}: {own}; other models: {short}", named(provider, model));
    let whole = others.iter().map(
        |(provider, model, error)| json!({"provider": provider, "model": model, "error": error}),
    );
    error.with_message(message).with("others", whole.collect::<Vec<_>>())
}

fn named(provider: &str, model: Option<&str>) -> String {
    model.map_or_else(|| provider.to_owned(), |model| format!("{provider}:{model}"))
}

/// Whether another provider may succeed where one failed so.
fn helps(error: &Error) -> bool {
    use AdapterReason::*;
    match error.kind() {
        ErrorKind::Adapter(reason) => !matches!(reason, InvalidRequest | ContentFilter | Unknown),
        _ => is_missing_key(error),
    }
}

fn is_missing_key(error: &Error) -> bool {
    error.kind() == ErrorKind::Engine(EngineReason::MissingKey)
}
