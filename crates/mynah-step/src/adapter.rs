//! Adapters: our code for one provider's wire format.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt as _, stream};
use mynah_data::{
    AdapterReason, Error, Event, Messages, Metadata, Request, Result, RunId, ToolSpec,
};
use secrecy::{ExposeSecret, SecretString};

use crate::{RetryPolicy, World};

/// A future that can be sent to another thread.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A model's answer as it comes in. An `Err` ends it.
pub type ModelStream = Pin<Box<dyn Stream<Item = Result<Event>> + Send>>;

/// Our code for one provider's wire format.
///
/// An adapter turns a request into a stream of [`Event`]s: `MessageStarted`, then the model's
/// output, then `MessageCompleted`. A failure before there is a stream is `Err`; a later one is an
/// `Err` in the stream. A stream that ends without `MessageCompleted` counts as a broken
/// connection. Dropping the stream must end the call. An adapter fails with `timeout` if its server
/// sends nothing at all for the call's `stream_timeout`. The caller enforces the other limits.
///
/// ```
/// # mod mynah { pub use {mynah_data::*, mynah_step::*}; }
/// use std::sync::Arc;
/// use futures_util::stream;
/// use mynah::{Adapter, BoxFuture, Event, FinishReason, ModelCall, ModelStream, Request, Result};
///
/// /// Says the same thing whatever it is asked.
/// struct Parrot(&'static str);
///
/// impl Adapter for Parrot {
///     fn name(&self) -> &str {
///         "parrot"
///     }
///
///     fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
///         let events = vec![
///             Ok(Event::message_started()),
///             Ok(Event::text_delta(self.0)),
///             Ok(Event::message_completed(Some(FinishReason::Stop))),
///         ];
///         Box::pin(async move { Ok(Box::pin(stream::iter(events)) as ModelStream) })
///     }
/// }
/// ```
pub trait Adapter: Send + Sync + 'static {
    /// The name under which errors, stored engines and logs know the adapter.
    fn name(&self) -> &str;

    /// Checks whether a call can be made, without making it: the key exists, the address is valid,
    /// the format can express the request. It runs before a call begins, so that the call is
    /// refused early.
    ///
    /// # Errors
    /// What [`Adapter::open`] would fail with.
    fn preflight(&self, request: &Request, call: &ModelCall) -> Result<()> {
        let _ = (request, call);
        Ok(())
    }

    /// Opens one call of the model.
    fn open(self: Arc<Self>, request: Request, call: ModelCall) -> BoxFuture<Result<ModelStream>>;

    /// Whether this request needs its final form from a second call, because the provider cannot combine tools with it.
    fn needs_structured_finalize(&self, request: &Request) -> bool {
        let _ = request;
        false
    }

    /// The version of the rules by which the adapter rewrites schemas for its provider; none if it sends them as they are.
    ///
    /// A run records it, so that a replay by other rules differs.
    fn schema_fit(&self) -> Option<u32> {
        None
    }

    /// The retry policy for callers that set none.
    fn default_retry(&self) -> RetryPolicy {
        RetryPolicy::default()
    }

    /// How long one attempt may take until its first event; none for no limit. Each attempt has the
    /// whole time.
    fn first_event_timeout(&self, call: &ModelCall) -> Option<Duration> {
        call.stream_timeout
    }
}

impl<A: Adapter + ?Sized> Adapter for Arc<A> {
    fn name(&self) -> &str {
        A::name(self)
    }

    fn preflight(&self, request: &Request, call: &ModelCall) -> Result<()> {
        A::preflight(self, request, call)
    }

    fn open(self: Arc<Self>, request: Request, call: ModelCall) -> BoxFuture<Result<ModelStream>> {
        A::open(Arc::clone(&self), request, call)
    }

    fn needs_structured_finalize(&self, request: &Request) -> bool {
        A::needs_structured_finalize(self, request)
    }

    fn schema_fit(&self) -> Option<u32> {
        A::schema_fit(self)
    }

    fn default_retry(&self) -> RetryPolicy {
        A::default_retry(self)
    }

    fn first_event_timeout(&self, call: &ModelCall) -> Option<Duration> {
        A::first_event_timeout(self, call)
    }
}

/// What an adapter needs to know of a call beside the request. Never stored.
///
/// ```
/// # use mynah_step as mynah;
/// use std::time::Duration;
/// use mynah::ModelCall;
///
/// let mut call = ModelCall::new("request-1").with_api_key("secret");
/// call.stream_timeout = Some(Duration::from_secs(30));
/// assert_eq!(call.exposed_api_key(), Some("secret"));
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct ModelCall {
    /// The id of the call that this is part of.
    pub request_id: String,
    /// The run that it is recorded in; none for unrecorded runs.
    pub run_id: Option<RunId>,
    /// The session it belongs to.
    pub session_id: Option<String>,
    /// The adapter's own options: the engine's, overlaid by the call's.
    pub adapter_opts: Metadata,
    /// The key for this call alone. [`exposed_api_key`](Self::exposed_api_key) reads it; the type is no part of the API.
    #[doc(hidden)]
    pub api_key: Option<SecretString>,
    /// The longest time of the call, including all attempts and the waits between them.
    pub request_timeout: Option<Duration>,
    /// The longest silence of one attempt before its first event and between two events.
    /// Keep-alives do not count. If this is none, adapters over HTTP still limit how long nothing
    /// at all is sent, and nothing but keep-alives.
    pub stream_timeout: Option<Duration>,
    /// Tools of the conversation that the request no longer has: those of a chat whose answer is
    /// being formatted. They must not be called, but a provider may need to see them again.
    pub former_tools: Vec<Arc<ToolSpec>>,
}

impl ModelCall {
    /// A call with this id, and nothing else set.
    pub fn new(request_id: impl Into<String>) -> Self {
        Self { request_id: request_id.into(), ..Self::default() }
    }

    /// The same call with a key of its own.
    pub fn with_api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(SecretString::from(key.into()));
        self
    }

    /// The key for this call alone, in the clear: for the header that needs it, and nothing else.
    pub fn exposed_api_key(&self) -> Option<&str> {
        self.api_key.as_ref().map(ExposeSecret::expose_secret)
    }
}

impl fmt::Debug for ModelCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelCall")
            .field("request_id", &self.request_id)
            .field("run_id", &self.run_id)
            .field("session_id", &self.session_id)
            // Headers among them may hold keys.
            .field("adapter_opts", &self.adapter_opts.keys().collect::<Vec<_>>())
            .field("api_key", &self.api_key.as_ref().map(|_| "…"))
            .field("request_timeout", &self.request_timeout)
            .field("stream_timeout", &self.stream_timeout)
            .field("former_tools", &self.former_tools)
            .finish()
    }
}

/// Opens a model's stream, with retries until one has an event; fails as the last attempt did. Each attempt may be silent for the
/// adapter's [`Adapter::first_event_timeout`]. A wait that does not fit into the time of the whole call is not begun.
pub async fn open_model(
    adapter: Arc<dyn Adapter>,
    request: Request,
    call: ModelCall,
    retry: Arc<RetryPolicy>,
    world: Arc<dyn World>,
) -> Result<ModelStream> {
    let (mut request, parking) = (request, Parking::default());
    let messages = std::mem::take(&mut request.messages);
    let asked = Arc::new((request, call));
    match open_or_park(adapter, asked, messages, retry, world, parking).await? {
        Opened::Stream(stream) => Ok(stream),
        Opened::Later { error, .. } => Err(error),
    }
}

/// The result of opening a model's stream.
pub enum Opened {
    /// It is open.
    Stream(ModelStream),
    /// It failed, and is worth another attempt after a delay that is too long to wait for in place.
    Later {
        /// The delay.
        delay: Duration,
        /// How many attempts there were.
        attempts: u32,
        /// How the last of them failed.
        error: Error,
    },
}

/// How long a call may wait in place between two attempts.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Parking {
    /// How many attempts there were before.
    pub attempts: u32,
    /// The longest wait; none if it waits as long as it takes.
    pub after: Option<Duration>,
}

impl Parking {
    /// After so many attempts, with this longest wait.
    pub fn new(attempts: u32, after: Option<Duration>) -> Self {
        Self { attempts, after }
    }
}

/// The same as [`open_model`], for a call that does not wait for long: it returns when it would. The request has these messages instead
/// of its own, so that the calls of a run share the rest of it.
pub async fn open_or_park(
    adapter: Arc<dyn Adapter>,
    asked: Arc<(Request, ModelCall)>,
    messages: Messages,
    retry: Arc<RetryPolicy>,
    world: Arc<dyn World>,
    parking: Parking,
) -> Result<Opened> {
    let begun_at = tokio::time::Instant::now();
    let elapsed = retry.max_elapsed_ms.map(Duration::from_millis);
    let limit = elapsed.into_iter().chain(asked.1.request_timeout).min();
    let request = || {
        let mut request = asked.0.clone();
        request.messages = messages.clone();
        request
    };
    for attempt in parking.attempts.saturating_add(1)..retry.max_attempts {
        let error = match open_once(&adapter, request(), asked.1.clone(), None).await {
            Ok(stream) => return Ok(Opened::Stream(stream)),
            Err(error) => error,
        };
        let Some(delay) = retry.delay(attempt, &error, world.as_ref()) else {
            return Err(error);
        };
        if limit.is_some_and(|limit| begun_at.elapsed() + delay > limit) {
            return Err(error);
        }
        if parking.after.is_some_and(|longest| delay > longest) {
            return Ok(Opened::Later { delay, attempts: attempt, error });
        }
        tracing::info!(
            attempt,
            delay_ms = delay.as_millis() as u64,
            reason = error.reason(),
            provider = adapter.name(),
            request_id = asked.1.request_id,
            run_id = asked.1.run_id.as_deref(),
            "model call failed; retrying"
        );
        tokio::time::sleep(delay).await;
    }
    open_once(&adapter, request(), asked.1.clone(), None).await.map(Opened::Stream)
}

/// A stream with its first event. Some providers accept a call and refuse it with their first
/// event. The consumer has seen nothing yet, so the call can still be retried. The same holds for a
/// stream that is silent for too long.
pub(crate) fn open_once(
    adapter: &Arc<dyn Adapter>,
    request: Request,
    call: ModelCall,
    patience: Option<Duration>,
) -> impl Future<Output = Result<ModelStream>> + Send {
    let limit = patience.into_iter().chain(adapter.first_event_timeout(&call)).min();
    let opening = Arc::clone(adapter).open(request, call);
    async move {
        let first = async {
            let mut stream = opening.await?;
            match stream.next().await {
                Some(Err(error)) => Err(error),
                first => Ok(Box::pin(stream::iter(first).chain(stream)) as ModelStream),
            }
        };
        let Some(limit) = limit else { return first.await };
        tokio::time::timeout(limit, first).await.unwrap_or_else(|_| {
            Err(Error::adapter(AdapterReason::Timeout)
                .with_message(format!("adapter error: timeout: nothing came for {limit:?}"))
                .with_provider(adapter.name()))
        })
    }
}
