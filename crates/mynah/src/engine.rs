//! Engines: what is needed to run a thread.

use std::{fmt, sync::Arc};

use mynah_data::{
    Catalog, Error, Message, Metadata, ModelRef, Operation, Request, Session, Thread,
};
use mynah_step::{Adapter, IntoTool, MetricsSink, SystemWorld, Tool, ToolContext, World};
use serde_json::Value;

use crate::{
    call::{Chat, Generate, Step},
    options::{Options, option_setters},
    turn::{PendingTurn, StepTurn, Turn},
    values::Values,
};

/// What is needed to run a thread: an adapter, a model, tools, params, context.
///
/// An engine is cheap to clone and never changes: each method gives a new one. It holds no API key.
///
/// ```
/// use mynah::testing::Scripted;
/// use mynah::{Engine, Tool};
/// use serde_json::json;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let adapter = Scripted::new([
/// #     json!([{"tool_call": {"id": "c0", "name": "get_weather", "arguments": {"city": "Boston"}}}, {"finish": "tool_calls"}]),
/// #     json!([{"text": "Mild."}, {"finish": "stop"}]),
/// # ])?;
///
/// let get_weather = Tool::new("get_weather", "The weather in a city", json!({"type": "object"}))
///     .handler(async |arguments, _| json!({"city": arguments["city"], "celsius": 21}));
///
/// let engine = Engine::new(adapter).model("gpt-4.1-mini").tool(get_weather);
/// let result = engine.chat("What's the weather in Boston?").max_turns(4).await?;
/// assert_eq!(result.text(), "Mild.");
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "an engine never changes: each method returns another one"]
pub struct Engine(pub(crate) Arc<Parts>);

#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) adapter: Option<Arc<dyn Adapter>>,
    pub(crate) adapter_opts: Metadata,
    pub(crate) model: Option<ModelRef>,
    /// Defaults for the options of calls, among them the tools.
    pub(crate) options: Options,
    /// Why calls are refused: something was set that an engine cannot have.
    pub(crate) misuse: Option<Error>,
    pub(crate) context: Arc<Metadata>,
    pub(crate) metadata: Metadata,
    pub(crate) world: Arc<dyn World>,
    pub(crate) catalog: Catalog,
    pub(crate) metrics: Option<Arc<dyn MetricsSink>>,
    /// How deep agents may be nested beneath its runs.
    pub(crate) max_agent_depth: Option<u32>,
}

impl Engine {
    /// An engine that speaks through this adapter.
    ///
    /// ```
    /// use mynah::{Engine, testing::Scripted};
    ///
    /// let engine = Engine::new(Scripted::default()).model("fake:m");
    /// let spec = engine.spec()?;
    /// assert_eq!(spec.adapter.as_deref(), Some("scripted"));
    /// assert_eq!(spec.model, Some("fake:m".into()));
    /// assert!(spec.tools.is_empty());
    /// # Ok::<(), mynah::Error>(())
    /// ```
    pub fn new(adapter: impl Adapter) -> Self {
        Self::without_adapter().with(|parts| parts.adapter = Some(Arc::new(adapter)))
    }

    /// An engine for a model of a known server, such as `anthropic:claude-sonnet-5` or `ollama:llama3.2`. Feature `http`; those of
    /// Amazon Bedrock need `bedrock`.
    ///
    /// The key comes from the server's environment variable when a call is made. What else can be set (another address, keys
    /// from elsewhere, a proxy) is set on an [`HttpAdapter`](mynah_adapters::http::HttpAdapter).
    ///
    /// ```
    /// use mynah::Engine;
    ///
    /// let engine = Engine::named("anthropic:claude-sonnet-5")?;
    /// assert_eq!(engine.spec()?.adapter.as_deref(), Some("anthropic"));
    /// // And then: engine.generate("What is a mynah?").await?.text()
    /// # Ok::<(), mynah::Error>(())
    /// ```
    ///
    /// # Errors
    /// A name without an adapter or without a model, and an adapter that is not known.
    #[cfg(feature = "http")]
    pub fn named(model: &str) -> mynah_data::Result<Self> {
        let (adapter, model) = mynah_adapters::http::HttpAdapter::for_model(model)?;
        Ok(Self::new(adapter).model(model))
    }

    /// An engine that has no adapter yet. Calls fail with `missing_adapter` until [`Engine::adapter`] gives it one.
    pub fn without_adapter() -> Self {
        Self(Arc::new(Parts {
            adapter: None,
            adapter_opts: Metadata::new(),
            model: None,
            options: Options::new(),
            misuse: None,
            context: Arc::default(),
            metadata: Metadata::new(),
            world: Arc::new(SystemWorld),
            catalog: Catalog::built_in(),
            metrics: None,
            max_agent_depth: None,
        }))
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Parts)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// The name of its adapter; none if it has no adapter.
    ///
    /// ```
    /// use mynah::{Engine, Tool, testing::Scripted};
    /// use serde_json::json;
    ///
    /// let tool = Tool::new("echo", "", json!({})).handler(async |arguments, _| arguments);
    /// let engine = Engine::new(Scripted::default()).model("fake:m").tool(tool).provider_option("seed", 7);
    /// assert_eq!(engine.get_adapter_name(), Some("scripted"));
    /// assert_eq!(engine.get_model(), Some(&"fake:m".into()));
    /// assert_eq!(engine.get_tools()[0].name(), "echo");
    /// assert_eq!(engine.get_params()["seed"], 7);
    /// ```
    pub fn get_adapter_name(&self) -> Option<&str> {
        self.0.adapter.as_ref().map(|adapter| adapter.name())
    }

    /// Its model; none if it has none.
    pub fn get_model(&self) -> Option<&ModelRef> {
        self.0.model.as_ref()
    }

    /// Its tools, in order.
    pub fn get_tools(&self) -> &[Tool] {
        &self.0.options.tools
    }

    /// Its defaults for the options of calls.
    pub fn get_params(&self) -> Metadata {
        self.0.options.values.to_json()
    }

    /// What its tools see.
    pub fn get_context(&self) -> &Metadata {
        &self.0.context
    }

    /// Its metadata, which is stored with it and never sent.
    pub fn get_metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    /// The same engine with another adapter.
    #[doc(alias = "Provider")]
    pub fn adapter(self, adapter: impl Adapter) -> Self {
        self.with(|parts| parts.adapter = Some(Arc::new(adapter)))
    }

    /// The same engine with one more option for its adapter, such as the `organization` of OpenAI's or the `headers` of any over HTTP.
    /// It is stored with the engine: a header that holds a key belongs to the adapter, or to a call. Calls of an engine with the option
    /// `api_key` are refused.
    pub fn adapter_option(self, name: &str, value: impl Into<Value>) -> Self {
        // A key belongs to a call, never to an engine, which can be stored.
        if name == "api_key" {
            return self.misused("adapter_opts", "api_key belongs to the adapter or to a call");
        }
        self.with(|parts| _ = parts.adapter_opts.insert(name.to_owned(), value.into()))
    }

    /// The same engine with another model.
    ///
    /// ```
    /// use mynah::{Engine, Options};
    ///
    /// let engine = Engine::without_adapter().model("old").model("new");
    /// assert_eq!(engine.resolve_model(&Options::new()), Some("new".into()));
    /// ```
    #[doc(alias = "with_model")]
    pub fn model(self, model: impl Into<ModelRef>) -> Self {
        self.with(|parts| parts.model = Some(model.into()))
    }

    /// The same engine with one more tool: a [`Tool`], or the name of a function with [`#[mynah::tool]`](macro@crate::tool). Two tools of one name are refused when a call is made.
    ///
    /// ```
    /// use mynah::{Engine, Options, Tool};
    /// use serde_json::json;
    ///
    /// let engine = Engine::without_adapter().tool(Tool::new("echo", "echo", json!({})));
    /// assert_eq!(engine.resolve_tools(&Options::new())[0].name(), "echo");
    /// ```
    #[doc(alias = "put_tool")]
    pub fn tool<M>(self, tool: impl IntoTool<M>) -> Self {
        self.tools([tool.into_tool()])
    }

    /// The same engine, calling another server of the same kind: a local one, a gateway, a proxy. Adapters over HTTP use it; a key is
    /// not required for an address on this machine.
    ///
    /// ```
    /// use mynah::Engine;
    ///
    /// let engine = Engine::without_adapter().base_url("http://127.0.0.1:8080");
    /// # Ok::<(), mynah::Error>(())
    /// ```
    pub fn base_url(self, url: impl Into<String>) -> Self {
        self.adapter_option("base_url", url.into())
    }

    /// The same engine with a fallback: the model to use if the one before cannot be reached. The [`base_url`](Self::base_url) is that of
    /// the first model alone. See [`Fallback`](crate::Fallback).
    ///
    /// ```
    /// use mynah::Engine;
    ///
    /// let engine = Engine::named("anthropic:claude-sonnet-5")?.or("openai:gpt-5.4-mini")?;
    /// # Ok::<(), mynah::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Engine::named`].
    #[cfg(feature = "http")]
    pub fn or(self, model: &str) -> mynah_data::Result<Self> {
        let (next, id) = mynah_adapters::http::HttpAdapter::for_model(model)?;
        Ok(match self.0.adapter.clone() {
            Some(first) => self.adapter(mynah_step::Fallback::new(first).or(next, id)),
            None => self.adapter(next).model(id),
        })
    }

    /// The same engine with one more entry of context data for its tools. The [context of a call](crate::Chat::context), or else that of
    /// its session, counts instead of the engine's.
    ///
    /// ```
    /// use mynah::Engine;
    ///
    /// let engine = Engine::without_adapter().context("user_id", 42);
    /// assert_eq!(engine.spec()?.context["user_id"], 42);
    /// # Ok::<(), mynah::Error>(())
    /// ```
    #[doc(alias = "put_context")]
    pub fn context(self, key: &str, value: impl Into<Value>) -> Self {
        self.with(|parts| {
            _ = Arc::make_mut(&mut parts.context).insert(key.to_owned(), value.into())
        })
    }

    /// The same engine with one more metadata member, stored with the engine and never sent.
    pub fn metadata(self, key: &str, value: impl Into<Value>) -> Self {
        self.with(|parts| _ = parts.metadata.insert(key.to_owned(), value.into()))
    }

    /// The same engine with defaults for the options of its calls. Tools, the policies for their errors and approvals, the executor and the
    /// encoder become the engine's own. Calls are refused if the options hold something else that is not plain data: a key, a log, a condition, a
    /// cancel handle or an observer belongs to a call.
    ///
    /// ```
    /// use mynah::{Engine, Options};
    /// use serde_json::json;
    ///
    /// let options = Options::from_json(json!({"temperature": 0.7, "reasoning_effort": "high"}))?;
    /// let engine = Engine::without_adapter().defaults(options);
    /// assert_eq!(engine.resolve_params(&Options::new())["temperature"], 0.7);
    /// # Ok::<(), mynah::Error>(())
    /// ```
    pub fn defaults(self, mut options: Options) -> Self {
        let of_call = [
            ("api_key", options.api_key.is_some()),
            ("record", options.log.is_some()),
            ("durability", options.durability.is_some()),
            ("emit_timeout", options.emit_timeout.is_some()),
            ("park_after", options.park_after.is_some()),
            ("halt_when", options.halt_when.is_some()),
            ("cancel_handle", options.cancel_handle.is_some()),
            ("on_event", options.on_event.is_some()),
            ("in_flight", options.in_flight.is_some()),
        ];
        if let Some((name, _)) = of_call.iter().find(|(_, is_set)| *is_set) {
            return self.misused("defaults", &format!("{name} belongs to a call"));
        }
        let tools = std::mem::take(&mut options.tools);
        let engine = self.with(|parts| {
            parts.options = std::mem::take(&mut parts.options).overlay(options);
        });
        engine.tools(tools)
    }

    /// Refuses the calls of this engine: something was set that it cannot have.
    fn misused(self, field: &str, why: &str) -> Self {
        let message = format!("validation failed: {field}: {why}");
        let error = Error::invalid_option(field, "belongs_to_a_call").with_message(message);
        self.with(|parts| _ = parts.misuse.get_or_insert(error))
    }

    /// The same engine with other knowledge of models: prices, limits, what they cannot do. What is said with the model itself
    /// counts more. A call that needs what its model cannot do is refused before it is made.
    ///
    /// ```
    /// use mynah::{Engine, testing::Scripted};
    /// use serde_json::json;
    /// use mynah::{Catalog, ModelInfo, Pricing};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let adapter = Scripted::new([json!([{"usage": {"input_tokens": 1000, "output_tokens": 1}}, {"finish": "stop"}])])?;
    ///
    /// let own = ModelInfo::new("local", "tiny").with_pricing(Pricing::new(2.0, 0.0));
    /// let engine = Engine::new(adapter).model("tiny").catalog(Catalog::built_in().with_model(own)?);
    /// assert_eq!(engine.generate("hi").await?.usage.total_cost, Some(0.002));
    /// # Ok(()) }
    /// ```
    pub fn catalog(self, catalog: Catalog) -> Self {
        self.with(|parts| parts.catalog = catalog)
    }

    /// The same engine in another world: with a clock and chance of the caller's own.
    pub fn world(self, world: impl World) -> Self {
        self.with(|parts| parts.world = Arc::new(world))
    }

    /// The same engine, which reports to this sink how long its calls take and how they end.
    ///
    /// ```
    /// use mynah::{Engine, testing::Scripted};
    /// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
    /// use mynah::{MetricsSink, step::ModelCallMetric};
    ///
    /// #[derive(Default)]
    /// struct Calls(AtomicU64);
    ///
    /// impl MetricsSink for Calls {
    ///     fn model_call(&self, _: &ModelCallMetric<'_>) {
    ///         self.0.fetch_add(1, Ordering::Relaxed);
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let adapter = Scripted::says(["A bird."]);
    /// let calls = Arc::new(Calls::default());
    /// Engine::new(adapter).metrics(calls.clone()).generate("What is a mynah?").await?;
    /// assert_eq!(calls.0.load(Ordering::Relaxed), 1);
    /// # Ok(()) }
    /// ```
    pub fn metrics(self, sink: impl MetricsSink) -> Self {
        self.with(|parts| parts.metrics = Some(Arc::new(sink)))
    }

    /// The engine that runs a tool's call. What a tool asks of it is the world to the run, so it belongs into a side effect:
    ///
    /// ```
    /// use mynah::{Engine, Tool, ToolContext, log::MemoryLog, testing::Scripted};
    /// use serde_json::json;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// let translate = Tool::new("translate", "", json!({})).handler(async |word, context: ToolContext| {
    ///     let engine = Engine::of(&context).unwrap_or_else(Engine::without_adapter);
    ///     let asked = async { Ok::<_, mynah::Error>(engine.generate(word.to_string()).await?.text().to_string()) };
    ///     context.side_effect("translation", asked).await
    /// });
    /// let model = Scripted::new([
    ///     json!([{"tool_call": {"id": "c0", "name": "translate"}}, {"finish": "tool_calls"}]),
    ///     json!([{"text": "oiseau"}, {"finish": "stop"}]),
    ///     json!([{"text": "In French: oiseau."}, {"finish": "stop"}]),
    /// ])?;
    /// let (log, engine) = (MemoryLog::new(), Engine::new(model).tool(translate));
    /// let run = engine.chat("What is a bird?").record(&log).await?.run_id.unwrap();
    /// // The scripts are used up: the model is not called again.
    /// assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    /// # Ok(()) }
    /// ```
    pub fn of(context: &ToolContext) -> Option<Self> {
        let parts = Arc::clone(context.engine.as_ref()?).downcast::<Parts>().ok()?;
        Some(Self(parts))
    }

    /// One model call. Tools are described to the model and never run.
    ///
    /// ```
    /// use mynah::{Engine, testing::Scripted};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::says(["A bird."]));
    ///
    /// let response = engine.generate("What is a mynah?").temperature(0.2).await?;
    /// assert_eq!(response.text(), "A bird.");
    /// # Ok(()) }
    /// ```
    #[doc(alias = "stream_generate")]
    pub fn generate(&self, request: impl Into<Request>) -> Generate {
        Generate::new(self.clone(), request.into())
    }

    /// One model call and the tools it asks for.
    ///
    /// ```
    /// use mynah::{Engine, Tool, testing::Scripted};
    /// use serde_json::json;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::new([
    /// #     json!([{"tool_call": {"id": "c0", "name": "echo", "arguments": {"x": 1}}}, {"finish": "tool_calls"}])])?)
    /// #     .tool(Tool::new("echo", "", json!({})).handler(async |arguments, _| arguments));
    ///
    /// let step = engine.step("echo please").await?;
    /// assert!(!step.done);
    /// assert_eq!(step.tool_results.len(), 1);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "stream_step")]
    pub fn step(&self, thread: impl Into<Thread>) -> Step {
        Step::new(self.clone(), thread.into())
    }

    /// Steps until something ends or suspends the conversation.
    ///
    /// ```
    /// use mynah::{Engine, Event, testing::Scripted};
    /// use serde_json::json;
    /// use futures_util::StreamExt;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::new([json!([{"text": "hel"}, {"text": "lo"}, {"finish": "stop"}])])?);
    ///
    /// let mut said = String::new();
    /// let mut events = engine.chat("hi").stream();
    /// while let Some(event) = events.next().await {
    ///     if let Event::TextDelta { delta, .. } = event? {
    ///         said.push_str(&delta);
    ///     }
    /// }
    /// assert_eq!(said, "hello");
    /// # Ok(()) }
    /// ```
    #[doc(alias("run", "stream"))]
    pub fn chat(&self, thread: impl Into<Thread>) -> Chat {
        Chat::new(self.clone(), thread.into())
    }

    /// Starts a session from a session, a thread, messages or text.
    ///
    /// ```
    /// use mynah::{Engine, Status, testing::Scripted};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::says(["hi"]));
    ///
    /// let (session, result) = engine.start("hello").await?;
    /// assert_eq!(session.status(), Status::Completed);
    /// assert_eq!(result.halted_reason.as_str(), "completed");
    /// # Ok(()) }
    /// ```
    #[doc(alias = "stream_start")]
    pub fn start(&self, input: impl Into<Session>) -> Turn {
        Turn(PendingTurn::new(self.clone(), input.into(), Operation::Start, None))
    }

    /// Continues a session with a message of the user, such as the answer to a tool's question.
    ///
    /// A session is a value, so an unrecorded session can be continued from any of its states. A recorded session is continued once
    /// from each: a second reply to the same one is refused with `session_moved`, unless it is a [`branch`](Turn::branch).
    ///
    /// ```
    /// use mynah::{Engine, testing::Scripted};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::says(["ok", "again"]));
    ///
    /// let (session, _) = engine.start("hi").await?;
    /// let (longer, _) = engine.reply(&session, "again").await?;
    /// assert_eq!(longer.thread.messages.len(), session.thread.messages.len() + 2);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "stream_reply")]
    pub fn reply(&self, session: &Session, text: impl Into<String>) -> Turn {
        let message = Some(Message::user(text));
        Turn(PendingTurn::new(self.clone(), session.clone(), Operation::Reply, message))
    }

    /// Continues a session, with or without a message: for example after tool results were
    /// submitted.
    ///
    /// ```
    /// use mynah::{Engine, Message, Status, testing::Scripted};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::says(["first", "second"]));
    ///
    /// let (session, _) = engine.start("hi").await?;
    /// let (session, _) = engine.continue_session(&session, Some(Message::user("more"))).await?;
    /// assert_eq!(session.status(), Status::Completed);
    /// # Ok(()) }
    /// ```
    #[doc(alias("continue", "stream_continue"))]
    pub fn continue_session(&self, session: &Session, message: Option<Message>) -> Turn {
        Turn(PendingTurn::new(self.clone(), session.clone(), Operation::Continue, message))
    }

    /// One step on a session.
    ///
    /// ```
    /// use mynah::{Engine, Session, Status, testing::Scripted};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::says(["hi"]));
    ///
    /// let (session, step) = engine.step_session(&Session::from("hi")).await?;
    /// assert!(step.done);
    /// assert_eq!(session.status(), Status::Completed);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "stream_step")]
    pub fn step_session(&self, session: &Session) -> StepTurn {
        StepTurn(PendingTurn::new(self.clone(), session.clone(), Operation::Step, None))
    }

    /// The model of a call with these options, with facts from the engine's catalog.
    ///
    /// ```
    /// use mynah::{Engine, Options};
    /// let engine = Engine::without_adapter().model("fake:m");
    /// assert_eq!(engine.resolve_model(&Options::new()), Some("fake:m".into()));
    /// assert_eq!(engine.resolve_model(&Options::new().model("override")), Some("override".into()));
    ///
    /// let engine = engine.model(("openai", "gpt-x"));
    /// assert_eq!(engine.resolve_model(&Options::new()), Some(("openai", "gpt-x").into()));
    ///
    /// let known = engine.resolve_model(&Options::new().model("gpt-4.1-mini")).unwrap();
    /// assert_eq!(known.limits["context"], 1_047_576);
    /// ```
    pub fn resolve_model(&self, options: &Options) -> Option<ModelRef> {
        Some(self.0.catalog.inform(self.chosen_model(options)?))
    }

    fn chosen_model(&self, options: &Options) -> Option<ModelRef> {
        options.values.model.clone().or_else(|| self.0.model.clone())
    }

    /// The tools of a call with these options: the engine's in their order, those of the same name
    /// replaced in place, new ones at the end.
    ///
    /// ```
    /// use mynah::{Engine, Options, Tool};
    /// use serde_json::json;
    ///
    /// let tool = |name: &str, description: &str| Tool::new(name, description, json!({}));
    /// let engine = Engine::without_adapter().tools([tool("a", ""), tool("b", ""), tool("c", "")]);
    /// let tools = engine.resolve_tools(&Options::new().tools([tool("b", "another"), tool("d", "")]));
    /// assert_eq!(tools.iter().map(Tool::name).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    /// assert_eq!(tools[1].spec().description, "another");
    /// ```
    pub fn resolve_tools(&self, options: &Options) -> Vec<Tool> {
        overlay_tools(&self.0.options.tools, &options.tools)
    }

    /// The params of a call with these options: the engine's, overlaid by the call's. Of the call's, those that have the name of
    /// something else that an engine has, such as `model`, `tools` or `metadata`, are no params.
    ///
    /// ```
    /// use mynah::{Engine, Options};
    /// use serde_json::{Value, json};
    ///
    /// let engine = Engine::without_adapter().temperature(0.2).provider_option("top_p", 1.0);
    /// let params = engine.resolve_params(&Options::new().temperature(0.7));
    /// assert_eq!(Value::Object(params), json!({"temperature": 0.7, "top_p": 1.0}));
    ///
    /// let params = engine.resolve_params(&Options::new().model("x").provider_option("reasoning_effort", "high"));
    /// assert_eq!(Value::Object(params), json!({"temperature": 0.2, "top_p": 1.0, "reasoning_effort": "high"}));
    /// ```
    pub fn resolve_params(&self, options: &Options) -> Metadata {
        let mut values = self.0.options.values.clone();
        values.overlay(options.values.clone().params());
        values.to_json()
    }

    /// The engine with a call's model, tools, `params` and `context` made its own. Other options are ignored.
    ///
    /// ```
    /// use mynah::{Engine, Options, Tool};
    /// use serde_json::json;
    ///
    /// let tool = |name: &str| Tool::new(name, name, json!({}));
    /// let engine = Engine::without_adapter().model("old").tool(tool("a"));
    /// let options = Options::from_json(json!({"model": "new", "params": {"temperature": 0.9}}))?.tools([tool("b")]);
    /// let merged = engine.merge(&options).spec()?;
    /// assert_eq!(merged.model, Some("new".into()));
    /// assert_eq!(merged.tools.iter().map(|entry| entry.tool.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    /// assert_eq!(merged.params["temperature"], 0.9);
    /// # Ok::<(), mynah::Error>(())
    /// ```
    #[doc(alias = "merge_opts")]
    pub fn merge(&self, options: &Options) -> Self {
        let (model, tools) = (self.chosen_model(options), self.resolve_tools(options));
        let Values { params, context, .. } = options.values.clone();
        self.clone().with(|parts| {
            parts.model = model;
            parts.options.tools = tools;
            parts.options.values.overlay(Values::from_json(params.unwrap_or_default()));
            Arc::make_mut(&mut parts.context).extend(context.unwrap_or_default());
        })
    }
}

option_setters!(Engine, self => Arc::make_mut(&mut self.0).options; prompt model tools chat tool_code approval);

/// `base` in its order, tools of the same name replaced in place, new ones at the end. A second one of the same name stays,
/// so that the request is refused for it.
pub(crate) fn overlay_tools(base: &[Tool], over: &[Tool]) -> Vec<Tool> {
    let named = |tools: &[Tool], name: &str| tools.iter().find(|tool| tool.name() == name).cloned();
    let replaced = |tool: &Tool| named(over, tool.name()).unwrap_or_else(|| tool.clone());
    let is_new = |&(index, tool): &(usize, &Tool)| {
        named(base, tool.name()).is_none() || named(&over[..index], tool.name()).is_some()
    };
    let added = over.iter().enumerate().filter(is_new).map(|(_, tool)| tool.clone());
    base.iter().map(replaced).chain(added).collect()
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = &self.0;
        f.debug_struct("Engine")
            .field("adapter", &parts.adapter.as_ref().map(|adapter| adapter.name()))
            .field("model", &parts.model)
            .field("tools", &parts.options.tools.iter().map(Tool::name).collect::<Vec<_>>())
            .field("params", &parts.options.values.to_json())
            .field("context", &parts.context)
            .finish_non_exhaustive()
    }
}
