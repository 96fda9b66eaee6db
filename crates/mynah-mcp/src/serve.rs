//! Tools as an MCP server.

use std::{fmt, io, sync::Arc, time::Duration};

use axum::Router;
use jsonschema::validate;
use mynah_data::{
    CONTINUE, Image, ImageSource, Metadata, Part, ToolCall, ToolOutcome, ToolReason, Wait,
};
use mynah_step::{
    Continuation, HandlerExecutor, JsonEncoder, SystemWorld, Tool, ToolContext, ToolLimits,
    ToolProgress, ToolResultEncoder as _, World as _, run_tool, since_1970,
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    model::{
        CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities,
        CompleteRequestMethod, CompleteRequestParams, CompleteResult, ContentBlock, ElicitRequest,
        ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationCapability,
        Implementation, InputRequest, InputRequests, InputRequiredResult, ListPromptsRequestMethod,
        ListPromptsResult, ListResourceTemplatesRequestMethod, ListResourceTemplatesResult,
        ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
        ProgressNotificationParam, RequestStateCodec, ResultType, SealOptions, ServerCapabilities,
        ServerConfig, ToolAnnotations,
    },
    service::RequestContext,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
};

use crate::listing::hex_digest;

/// Offers tools to MCP clients.
///
/// ```no_run
/// use mynah_step::Tool;
/// use serde_json::json;
///
/// # async fn f() -> std::io::Result<()> {
/// let echo = Tool::new("echo", "Gives its text back", json!({"type": "object"}))
///     .handler(async |arguments, _| arguments);
/// mynah_mcp::serve([echo]).name("echo").stdio().await
/// # }
/// ```
///
/// Arguments are checked against the schema; what does not fit, and what a tool reports as its error, is a result with `isError`,
/// which the model can act on. A tool that asks a person asks the person at the client: the question's hints may have a `name`, and a
/// `schema`, the form of the answer, or `choices`, the texts that the answer can be. What a tool [reports](ToolContext::progress) is sent as progress. A client that cannot ask gets an
/// error result. Whether a call needs approval is the client's decision.
///
/// A result that is an object is also sent as structured content. An object with the members of an
/// MCP result (`content`, optionally `structuredContent`) is sent unchanged, so that a tool may
/// answer with audio or resources.
pub fn serve(tools: impl IntoIterator<Item = Tool>) -> ToolServer {
    let hosts = ["localhost", "127.0.0.1", "[::1]"];
    let world = SystemWorld;
    let key: Vec<u8> = (0..4).flat_map(|_| world.random().to_be_bytes()).collect();
    ToolServer {
        tools: tools.into_iter().collect(),
        info: Implementation::new("mynah", env!("CARGO_PKG_VERSION")),
        instructions: None,
        timeout: Duration::from_secs(60),
        hosts: hosts.map(str::to_owned).into(),
        origins: hosts.map(|host| format!("http://{host}:*")).into(),
        key,
    }
}

/// Tools to be offered; see [`serve`].
#[derive(Clone)]
#[must_use = "tools are offered when they are served on something"]
pub struct ToolServer {
    tools: Vec<Tool>,
    info: Implementation,
    instructions: Option<String>,
    timeout: Duration,
    hosts: Vec<String>,
    origins: Vec<String>,
    key: Vec<u8>,
}

impl ToolServer {
    /// The name of the server.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.info.name = name.into();
        self
    }

    /// The version of the server.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.info.version = version.into();
        self
    }

    /// Instructions for the client's model.
    pub fn instructions(mut self, text: impl Into<String>) -> Self {
        self.instructions = Some(text.into());
        self
    }

    /// How long a call may take, unless the tool says: 60 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Accepts requests over HTTP for this host, such as `tools.example.com`, beside those for this machine.
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// Accepts requests of web pages from this origin, such as `https://app.example.com:443`, beside those from this machine.
    pub fn allow_origin(mut self, origin: impl Into<String>) -> Self {
        self.origins.push(origin.into());
        self
    }

    /// Signs the state of calls that ask a person with this key of at least 32 bytes. By default it is made by chance; several processes
    /// behind one address need the same.
    pub fn state_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = key.into();
        self
    }

    /// Serves one client on standard input and output, until it closes them.
    ///
    /// # Errors
    /// A client that does not speak MCP.
    pub async fn stdio(self) -> io::Result<()> {
        let (read, write) = rmcp::transport::stdio();
        self.streams(read, write).await
    }

    /// Serves one client on any two streams of bytes, until it closes them.
    ///
    /// # Errors
    /// As [`stdio`](Self::stdio).
    pub async fn streams(
        self,
        read: impl AsyncRead + Send + Unpin + 'static,
        write: impl AsyncWrite + Send + Unpin + 'static,
    ) -> io::Result<()> {
        let serving = self.handler()?.serve((read, write)).await.map_err(io::Error::other)?;
        serving.waiting().await.map_err(io::Error::other)?;
        Ok(())
    }

    /// Serves clients over HTTP, at `/mcp`.
    ///
    /// # Errors
    /// A listener that fails.
    pub async fn http(self, listener: TcpListener) -> io::Result<()> {
        axum::serve(listener, self.router()?).await
    }

    fn router(self) -> io::Result<Router> {
        let mut config = StreamableHttpServerConfig::default()
            .with_allowed_hosts(self.hosts.clone())
            .enforce_origin_validation();
        config.allowed_origins.clone_from(&self.origins);
        let handler = self.handler()?;
        let sessions = Arc::<LocalSessionManager>::default();
        let service = StreamableHttpService::new(move || Ok(handler.clone()), sessions, config);
        Ok(Router::new().route_service("/mcp", service))
    }

    fn handler(&self) -> io::Result<Handler> {
        let codec = RequestStateCodec::try_new(self.key.clone()).map_err(io::Error::other)?;
        Ok(Handler(Arc::new(Offered { server: self.clone(), codec })))
    }
}

impl fmt::Debug for ToolServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolServer").field("tools", &self.tools).finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct Handler(Arc<Offered>);

struct Offered {
    server: ToolServer,
    codec: RequestStateCodec,
}

/// Sends the progress of a call to a client that wants it, in order and before the result.
struct Reporter {
    sender: mpsc::Sender<ToolProgress>,
    task: JoinHandle<()>,
}

impl Reporter {
    fn of(context: &RequestContext<RoleServer>) -> Option<Self> {
        let token = context.meta.get_progress_token()?;
        let (sender, mut reports) = mpsc::channel::<ToolProgress>(64);
        let peer = context.peer.clone();
        let task = tokio::spawn(async move {
            while let Some(report) = reports.recv().await {
                let mut told = ProgressNotificationParam::new(token.clone(), report.progress);
                (told.total, told.message) = (report.total, report.message);
                if peer.notify_progress(told).await.is_err() {
                    return;
                }
            }
        });
        Some(Self { sender, task })
    }

    async fn end(self) {
        let Self { sender, task } = self;
        drop(sender);
        // A tool that keeps its context may report after the call ended. Such reports are dropped.
        let _ = tokio::time::timeout(Duration::from_secs(1), task).await;
    }
}

/// A question that was asked, as it travels to the client and back.
#[derive(Serialize, Deserialize)]
struct PendingQuestion {
    /// The client's name for it.
    key: String,
    schema: Value,
    /// The state of a call that continues; none if the answer is its result.
    state: Option<Value>,
}

/// The name of a question without a name, and of the one member of a question without a form.
const ANSWER: &str = "answer";

impl Offered {
    fn tool(&self, name: &str) -> Option<&Tool> {
        self.server.tools.iter().find(|tool| tool.name() == name)
    }

    fn listed(tool: &Tool) -> rmcp::model::Tool {
        let spec = tool.spec();
        let mut schema = spec.schema.as_object().cloned().unwrap_or_default();
        if !schema.contains_key("type") {
            schema.insert("type".to_owned(), json!("object"));
        }
        let listed = rmcp::model::Tool::new(spec.name.clone(), spec.description.clone(), schema);
        match spec.idempotent {
            true => listed.with_annotations(ToolAnnotations::new().idempotent(true)),
            false => listed,
        }
    }

    /// Runs a call, and continues it after its waits and while the client answers its questions.
    async fn call(
        &self,
        tool: &Tool,
        mut request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.clone().unwrap_or_default());
        // A question belongs to one call with its arguments.
        let bound = hex_digest(format!("{}\n{arguments}", tool.name()).as_bytes());
        let mut continuation = None;
        if let Some(sealed) = &request.request_state {
            let asked: PendingQuestion = self
                .codec
                .open_json_with(sealed, bound.as_bytes())
                .map_err(|error| ErrorData::invalid_params(error.to_string(), None))?;
            match asked.given_in(&mut request) {
                Some(Answer::Continue(next)) => continuation = Some(Arc::new(next)),
                Some(Answer::End(result)) => return Ok((*result).into()),
                None => {
                    let question = "An answer that fits the form is missing.";
                    return self.ask(question, &asked, &bound);
                }
            }
        }
        loop {
            let outcome = self.run(tool, &arguments, continuation.clone(), context).await?;
            let (question, opts) = match outcome {
                ToolOutcome::AskUser { question, opts } => (question, opts),
                ToolOutcome::Later { wait: Wait::UntilMs(time), state } => {
                    wait_until(time, context).await?;
                    if let Some(state) = state {
                        continuation = Some(Arc::new(Continuation::new(state, None)));
                    }
                    continue;
                }
                outcome => return Ok(result(outcome).into()),
            };
            let asked = PendingQuestion::new(&opts);
            let is_modern =
                context.protocol_version().is_some_and(|version| !version.has_initialize());
            let capabilities = context.client_capabilities().unwrap_or_default();
            if capabilities.elicitation.is_none() {
                return cannot_ask(&question, is_modern);
            }
            let answer = match is_modern {
                // A client may answer before it is asked. This call asks itself, so it needs no state.
                true => match asked.given_in(&mut request) {
                    Some(answer) => answer,
                    None => return self.ask(&question, &asked, &bound),
                },
                false => {
                    let answered = context.peer.create_elicitation(asked.request(&question)?).await;
                    let answered = answered
                        .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
                    let misfit = || Answer::error("the answer does not fit the question");
                    asked.answer(answered).unwrap_or_else(misfit)
                }
            };
            match answer {
                Answer::Continue(next) => continuation = Some(Arc::new(next)),
                Answer::End(result) => return Ok((*result).into()),
            }
        }
    }

    /// Runs a call up to its result, its next question or its next wait. An error that the client's model can act on is an outcome.
    async fn run(
        &self,
        tool: &Tool,
        arguments: &Value,
        continuation: Option<Arc<Continuation>>,
        context: &RequestContext<RoleServer>,
    ) -> Result<ToolOutcome, ErrorData> {
        let call = ToolCall::from_value(context.id.to_string(), tool.name(), arguments.clone());
        let mut run = ToolContext::new(call, Arc::new(SystemWorld)).continued(continuation);
        let reporter = Reporter::of(context);
        if let Some(reporter) = &reporter {
            let sender = reporter.sender.clone();
            // Reports that come faster than the client reads are dropped.
            run = run.on_progress(move |progress| _ = sender.try_send(progress.clone()));
        }
        let limits = ToolLimits::new(self.server.timeout);
        let running = run_tool(Arc::new(HandlerExecutor), tool.clone(), run, limits);
        let settled = tokio::select! {
            settled = running => settled,
            () = context.ct.cancelled() => return Err(cancelled()),
        };
        if let Some(reporter) = reporter {
            reporter.end().await;
        }
        Ok(settled.outcome.unwrap_or_else(|error| {
            let text = error.to_string();
            match error.reason() == ToolReason::InvalidArguments.as_str() {
                true => ToolOutcome::error(text),
                false => ToolOutcome::error(json!({"error": text})),
            }
        }))
    }

    fn ask(
        &self,
        question: &str,
        asked: &PendingQuestion,
        bound: &str,
    ) -> Result<CallToolResponse, ErrorData> {
        let options = SealOptions::new().associated_data(bound.as_bytes());
        let state = self
            .codec
            .seal_json_with(asked, &options)
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        let request = ElicitRequest::new(asked.request(question)?);
        let requests =
            InputRequests::from([(asked.key.clone(), InputRequest::Elicitation(request))]);
        Ok(InputRequiredResult::new(Some(requests), Some(state)).into())
    }
}

impl PendingQuestion {
    fn new(opts: &Metadata) -> Self {
        let choices = opts.get("choices").and_then(Value::as_array).filter(|choices| {
            !choices.is_empty() && choices.iter().all(|choice| choice.is_string())
        });
        let answer = match choices {
            Some(choices) => json!({"type": "string", "enum": choices}),
            None => json!({"type": "string"}),
        };
        let plain =
            || json!({"type": "object", "properties": {ANSWER: answer}, "required": [ANSWER]});
        let schema = opts.get("schema").cloned().unwrap_or_else(plain);
        let key = opts.get("name").and_then(Value::as_str).unwrap_or(ANSWER).to_owned();
        Self { key, schema, state: opts.get(CONTINUE).cloned() }
    }

    /// What the client's answer to this question leads to; none if there is none that fits. Other answers are ignored.
    fn given_in(&self, request: &mut CallToolRequestParams) -> Option<Answer> {
        let given = request.input_responses.as_mut()?.remove(&self.key)?;
        self.answer(ElicitResult::deserialize(given).ok()?)
    }

    /// What the person's answer leads to; none if it does not fit the form. A tool reads it as text, or as the JSON of its form.
    fn answer(&self, result: ElicitResult) -> Option<Answer> {
        if result.action != ElicitationAction::Accept {
            return Some(Answer::error("the person did not answer"));
        }
        let content = result.content.unwrap_or_else(|| json!({}));
        if validate(&self.schema, &content).is_err() {
            return None;
        }
        let only = content.as_object().filter(|members| members.len() == 1);
        let text = match only.and_then(|members| members.get(ANSWER)) {
            Some(Value::String(text)) => text.clone(),
            _ => content.to_string(),
        };
        Some(match self.state.clone() {
            Some(state) => Answer::Continue(Continuation::new(state, Some(text))),
            None => Answer::End(Box::new(CallToolResult::success(vec![ContentBlock::text(text)]))),
        })
    }

    fn request(&self, question: &str) -> Result<ElicitRequestParams, ErrorData> {
        let requested_schema = serde_json::from_value(self.schema.clone())
            .map_err(|error| ErrorData::internal_error(format!("the form: {error}"), None))?;
        let message = question.to_owned();
        Ok(ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema })
    }
}

/// What an answer leads to.
enum Answer {
    Continue(Continuation),
    End(Box<CallToolResult>),
}

impl Answer {
    fn error(text: &str) -> Self {
        Self::End(Box::new(CallToolResult::error(vec![ContentBlock::text(text)])))
    }
}

/// The answer to a call that must ask, for a client that cannot.
fn cannot_ask(question: &str, is_modern: bool) -> Result<CallToolResponse, ErrorData> {
    if is_modern {
        let mut needed = ClientCapabilities::default();
        needed.elicitation = Some(ElicitationCapability::new());
        return Err(ErrorData::missing_required_client_capability(needed));
    }
    let text = format!("a person must answer, and the client cannot ask: {question}");
    Ok(CallToolResult::error(vec![ContentBlock::text(text)]).into())
}

/// Waits for a time, in milliseconds since 1970, at which a tool is run again. The client may cancel the call meanwhile.
async fn wait_until(time: u64, context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
    let left = Duration::from_millis(time).saturating_sub(since_1970(SystemWorld.now()));
    tokio::select! {
        () = tokio::time::sleep(left) => Ok(()),
        () = context.ct.cancelled() => Err(cancelled()),
    }
}

fn cancelled() -> ErrorData {
    ErrorData::internal_error("the call was cancelled", None)
}

/// The result that a client gets.
fn result(outcome: ToolOutcome) -> CallToolResult {
    let text = |value: &Value| {
        let text = JsonEncoder.encode(value).unwrap_or_default();
        vec![ContentBlock::text(text)]
    };
    match outcome {
        ToolOutcome::Ok(value) | ToolOutcome::Halt { result: value, .. } => {
            let own = value.get("content").is_some_and(Value::is_array);
            if let (true, Ok(mut result)) = (own, CallToolResult::deserialize(&value)) {
                result.result_type = Some(ResultType::COMPLETE);
                return result;
            }
            let mut result = CallToolResult::success(text(&value));
            result.structured_content = Some(value).filter(Value::is_object);
            result
        }
        ToolOutcome::Error { error, .. } => CallToolResult::error(text(&error)),
        ToolOutcome::Parts(parts) => CallToolResult::success(parts.iter().map(block).collect()),
        _ => CallToolResult::error(vec![ContentBlock::text("an outcome that MCP does not have")]),
    }
}

fn block(part: &Part) -> ContentBlock {
    match part {
        Part::Text { text, .. } => ContentBlock::text(text.clone()),
        Part::Image { image, .. } => image_block(image),
        _ => ContentBlock::text("[not shown]"),
    }
}

fn image_block(image: &Image) -> ContentBlock {
    if let ImageSource::Url(url) = &image.source {
        return ContentBlock::text(format!("[image {url}]"));
    }
    // `data:` type `;base64,` bytes
    let uri = image.to_data_uri(|path| std::fs::read(path)).unwrap_or_default();
    match uri.strip_prefix("data:").and_then(|uri| uri.split_once(";base64,")) {
        Some((mime, data)) => ContentBlock::image(data, mime),
        None => ContentBlock::text("[an image that cannot be read]"),
    }
}

/// Methods that the server does not have: it has tools and nothing else. `rmcp` would answer them with empty lists.
macro_rules! refused {
    ($($name:ident($params:ty) -> $result:ty, $method:ty;)*) => {$(
        async fn $name(
            &self,
            _: $params,
            _: RequestContext<RoleServer>,
        ) -> Result<$result, ErrorData> {
            Err(ErrorData::method_not_found::<$method>())
        }
    )*};
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let server = &self.0.server;
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let mut info = ServerConfig::new(capabilities).with_server_info(server.info.clone());
        info.instructions.clone_from(&server.instructions);
        info
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.0.server.tools.iter().map(Offered::listed).collect();
        // The tools of a process do not change.
        let listed = ListToolsResult::with_all_items(tools).with_ttl_ms(60_000);
        Ok(listed.with_cache_scope(CacheScope::Public))
    }

    refused! {
        list_prompts(Option<PaginatedRequestParams>) -> ListPromptsResult, ListPromptsRequestMethod;
        list_resources(Option<PaginatedRequestParams>) -> ListResourcesResult, ListResourcesRequestMethod;
        list_resource_templates(Option<PaginatedRequestParams>)
            -> ListResourceTemplatesResult, ListResourceTemplatesRequestMethod;
        complete(CompleteRequestParams) -> CompleteResult, CompleteRequestMethod;
    }

    fn get_tool(&self, name: &str) -> Option<rmcp::model::Tool> {
        self.0.tool(name).map(Offered::listed)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.0.tool(&request.name) else {
            let names: Vec<&str> = self.0.server.tools.iter().map(Tool::name).collect();
            let why = format!("unknown tool {:?}; there are {}", request.name, names.join(", "));
            return Err(ErrorData::invalid_params(why, None));
        };
        self.0.call(tool, request, &context).await
    }
}
