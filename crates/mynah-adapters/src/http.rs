//! Adapters over HTTP: a format, an address and a key.

use std::{
    borrow::Cow,
    cell::RefCell,
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request as HttpRequest, Response,
    header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE},
};
use http_body_util::BodyExt as _;
use mynah_data::{Error, Metadata, ModelRef, Request, Result};
use mynah_step::{Adapter, BoxFuture, ModelCall, ModelStream, SystemWorld, World as _};
use secrecy::SecretString;
use serde_json::Value;
use tokio::time::Instant;

#[doc(hidden)]
pub use self::{address::parsed as parsed_address, connection::AnswerBody};
use self::{
    address::{Address, Addresses},
    answering::Answering,
    context::ErrorContext,
    secrets::Secrets,
};
pub use self::{
    client::{Http, HttpBuilder},
    embed::HttpEmbedder,
};
use crate::{
    failure,
    fit::FIT_VERSION,
    format::{Format, Outgoing},
    keys::{FoundKey, Keys},
    presets::{PRESETS, Preset},
    request::unsupported,
};

mod address;
mod answering;
mod client;
mod connection;
mod connector;
mod context;
mod embed;
mod origin;
mod secrets;

/// An adapter for a provider that is called over HTTP. Clones share their connections.
///
/// The metadata of a response has `raw_response_hash`, the SHA-256 of the received body in hex, and
/// `provider_request_id` if the provider sends one. Errors name `provider`, `status`, `request_id`
/// and `retry_after_ms` if they are known. Errors of the network name the `server` and the `proxy`,
/// and `connected` is false if the server could not be reached. An error without information from
/// the server names the called address, without its query.
///
/// An answer has no event before the model's first output. If it fails before that, the error is
/// the first item of the stream, so that the call can be retried or given to another provider. The
/// metadata received so far is in `partial`.
///
/// A key that a server repeats verbatim, in one piece, is in no error, unless it is a word of fewer
/// than 8 letters. It is in no event or response either if it is unmistakable: 16 characters or
/// more, with a digit among them. A key that is escaped, or split over several pieces of text, is
/// not detected.
///
/// What a provider must get back with its reasoning and its calls bears its name, and at a server with models of several
/// makers the maker's: after a switch in one conversation, the next gets the words of the reasoning and neither signatures
/// nor encrypted items.
///
/// Text from a server stays text, even between `<think>` and `</think>`. A server that separates
/// reasoning does so in its format.
///
/// Options of a request go to the provider as they are. Those that stand under the name of a preset, as in
/// `{"anthropic": {"thinking": {"type": "adaptive"}}}`, go to that one alone: so a [`Fallback`](mynah_step::Fallback) gives each of
/// its models what fits it.
///
/// [`ModelCall::adapter_opts`] configures one call: `headers`, an object of texts, override those
/// of [`with_header`](Self::with_header) but not that of the key. OpenAI's formats take an
/// `organization`, and Bedrock's a `region`. The value of a header whose name suggests a key is in
/// no error, and no header of a call is recorded.
///
/// If a server sends nothing for `stream_timeout`, not even keep-alives, the call fails with
/// `timeout`: from the request to its answer, and from one byte to the next. By default that is 5
/// minutes, because models may think for long, and 30 minutes from event to event, where
/// keep-alives do not count. The body of an error is read for at most 10 seconds, or half of the
/// remaining time. The caller that polls the stream enforces `request_timeout`, and
/// `stream_timeout` from event to event. Dropping the stream closes the connection.
///
/// ```
/// # mod mynah { pub use mynah_adapters as adapters; }
/// use mynah::adapters::http::HttpAdapter;
///
/// let adapter = HttpAdapter::named("openai-chat")?.with_base_url("http://localhost:4010/v1")?;
/// assert_eq!(adapter.url("chat/completions")?, "http://localhost:4010/v1/chat/completions");
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Clone)]
pub struct HttpAdapter {
    name: Arc<str>,
    format: Arc<dyn Format>,
    base_url: Option<String>,
    /// The environment variable that names another.
    url_variable: Option<&'static str>,
    version: String,
    key_variables: Vec<String>,
    needs_key: bool,
    keys: Keys,
    headers: HeaderMap,
    /// Made when it is first needed: to read what the system trusts takes a while.
    http: Arc<OnceLock<Http>>,
    addresses: Arc<Addresses>,
}

impl HttpAdapter {
    /// The adapter and the model that a name such as `groq:llama-3.3-70b-versatile` means.
    ///
    /// ```
    /// # mod mynah { pub use {mynah_adapters as adapters, mynah_data::*}; }
    /// use mynah::ModelRef;
    /// use mynah::adapters::http::HttpAdapter;
    ///
    /// let (_adapter, model) = HttpAdapter::for_model("openai-chat:gpt-4.1-mini")?;
    /// assert_eq!(model, ModelRef::from(("openai-chat", "gpt-4.1-mini")));
    /// # Ok::<(), mynah_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// A name without an adapter or without a model, and an adapter that is not known.
    pub fn for_model(name: &str) -> Result<(Self, ModelRef)> {
        let (adapter, id) = name.split_once(':').unwrap_or((name, ""));
        if adapter.is_empty() || id.is_empty() {
            return Err(Error::invalid_option("model", "malformed").with_message(format!(
                "{name:?} does not name a model: give ADAPTER:MODEL, such as anthropic:claude-sonnet-5; \
                 known adapters are {}",
                known_names()
            )));
        }
        Ok((Self::named(adapter)?, ModelRef::from((adapter, id))))
    }

    /// The server of this name, with an HTTP client of its own; see [`PRESETS`].
    ///
    /// # Errors
    /// A name that is not known.
    pub fn named(name: &str) -> Result<Self> {
        let preset = Preset::named(name).ok_or_else(|| unknown(name))?;
        let mut adapter = Self::new(preset.name, preset.format());
        adapter = adapter.with_version(preset.version);
        adapter.key_variables = preset.key_variables.iter().map(|&name| name.to_owned()).collect();
        adapter.needs_key = preset.needs_key();
        if let Some(url) = preset.base_url {
            adapter = adapter.with_base_url(url)?;
        }
        adapter.url_variable = preset.url_variable();
        Ok(adapter)
    }

    /// An adapter for your own server. It needs a base URL, and no key unless variables are named.
    pub fn new(name: impl Into<Arc<str>>, format: Arc<dyn Format>) -> Self {
        Self {
            name: name.into(),
            format,
            base_url: None,
            url_variable: None,
            version: String::new(),
            key_variables: Vec::new(),
            needs_key: false,
            keys: Keys::new(),
            headers: HeaderMap::new(),
            http: Arc::default(),
            addresses: Arc::default(),
        }
    }

    /// Calls another server: an origin, or with a path. The version segment is added unless the path has
    /// one, or ends in it, or the query has an `api-version`. One that ends in the path of the call itself, as
    /// `/v1/chat/completions`, is called as it is.
    ///
    /// # Errors
    /// A URL that is none, or that holds a password.
    pub fn with_base_url(mut self, url: &str) -> Result<Self> {
        self.base_url = Some(address::parsed("base_url", url)?.to_string());
        self.url_variable = None;
        Ok(self)
    }

    /// Puts this between the base URL and the format's path, unless the URL names a version. Empty text is none.
    pub fn with_version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self.addresses = Arc::default();
        self
    }

    /// Looks for the key in these environment variables, and needs one.
    pub fn with_key_variables(
        mut self,
        names: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.key_variables = names.into_iter().map(Into::into).collect();
        self.needs_key = !self.key_variables.is_empty();
        self
    }

    /// Takes keys from here.
    pub fn with_keys(mut self, keys: Keys) -> Self {
        self.keys = keys;
        self
    }

    /// Uses this HTTP client, and shares its connections.
    pub fn with_http(mut self, http: Http) -> Self {
        self.http = Arc::new(OnceLock::from(http));
        self.addresses = Arc::default();
        self
    }

    /// Sends this header with every call.
    ///
    /// # Errors
    /// What is no header.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self> {
        insert_header(&mut self.headers, name, value)?;
        Ok(self)
    }

    /// Where a call goes that has this path of the format.
    ///
    /// # Errors
    /// No address, and an environment that names what is none.
    pub fn url(&self, path: &str) -> Result<String> {
        self.address(path, &ModelCall::default()).map(|address| address.url.clone())
    }

    /// The address of the server where an environment variable names it, and the caller does not.
    ///
    /// # Errors
    /// What is no address.
    pub fn environment_url(&self) -> Result<Option<String>> {
        let named = self.url_variable.and_then(|name| Some((name, self.variable(name)?)));
        let url = named.map(|(name, value)| {
            let own = self.base_url.as_ref().and_then(|url| url.parse().ok());
            address::named_by(name, &value, own.as_ref()).map(|url| url.to_string())
        });
        url.transpose()
    }

    /// Adapter options equivalent to the environment's endpoint settings, except the address: the
    /// `region` of Bedrock.
    pub fn environment_opts(&self) -> Metadata {
        self.format.environment_opts(&|name| self.setting(name))
    }

    /// Whether a call would find the key that it needs.
    ///
    /// # Errors
    /// `missing_key`, as that call would have it.
    pub fn check_key(&self) -> Result<()> {
        self.admission(&ModelCall::default()).map(drop)
    }

    fn http(&self) -> Result<&Http> {
        match self.http.get() {
            Some(http) => Ok(http),
            None => {
                let http = Http::new()?;
                Ok(self.http.get_or_init(|| http))
            }
        }
    }

    /// The request with the model as the server knows it: `groq:llama` names that of an engine.
    fn with_own_name(&self, mut request: Request) -> Request {
        if let Some(model) = &mut request.model
            && let Some(id) = model.id.strip_prefix(&*self.name).and_then(|id| id.strip_prefix(':'))
        {
            model.id = id.to_owned();
        }
        request
    }

    async fn call(self: Arc<Self>, request: Request, call: ModelCall) -> Result<ModelStream> {
        let Written { request, origin, key, path, body, mut context } =
            self.write(request, &call)?;
        match self.post(&path, body, &call, key.as_ref(), &mut context).await {
            Ok(response) => {
                Ok(Box::pin(Answering::new(&self, &request, &call, response, context, origin)))
            }
            Err(error) => Err(context.complete(error)),
        }
    }

    /// The request as this server takes it, and the key for it.
    fn write(&self, request: Request, call: &ModelCall) -> Result<Written> {
        let mut request = self.with_own_name(request);
        let origin = match self.format.maker(&request) {
            Some(maker) => format!("{}/{maker}", self.name).into(),
            None => Arc::clone(&self.name),
        };
        origin::only_own(&origin, &mut request);
        origin::own_options(&self.name, &mut request.options);
        if let Some(name) = CONVERSATION.iter().find(|name| request.options.contains_key(**name)) {
            return Err(replaces_conversation(name));
        }
        let (key, context) = self.admission(call)?;
        let path = self.format.path(&request);
        let mut body = Vec::with_capacity(BODY);
        let written = match self.format.needs_structured_finalize(&request) {
            true => Err(unsupported(
                "this model cannot call tools and give its answer a form in one call: a chat does it in two",
            )),
            false => self.format.write_body(&request, call, &mut body),
        };
        match written {
            Ok(()) => Ok(Written { request, origin, key, path, body, context }),
            Err(error) => Err(context.complete(error)),
        }
    }

    /// The key for a call, if the server needs one, and the secrets that errors must not contain.
    fn admission(&self, call: &ModelCall) -> Result<(Option<FoundKey>, ErrorContext)> {
        let variables: Vec<&str> = self.key_variables.iter().map(String::as_str).collect();
        let is_ours = !self.keys.wants_key();
        let stored = |name: &&str| Some(FoundKey::stored(name, self.stored(name)?));
        let key = match self.keys.look(&self.name, &variables, call.exposed_api_key()) {
            Some(key) => Some(key),
            None if !self.needs_key && is_ours => None,
            None => match variables.iter().find_map(stored).filter(|_| is_ours) {
                None if self.is_here(call)? && is_ours => None,
                None => {
                    let error = self.keys.missing(&self.name, &variables);
                    return Err(hinted(error, self.format.key_hint()));
                }
                key => key,
            },
        };
        let mut secrets = Secrets::default();
        secrets.add(key.iter().map(|key| SecretString::from(key.expose())));
        Ok((key, ErrorContext::new(Arc::clone(&self.name), secrets)))
    }

    /// Sends JSON to a path. A status that is not success is an error.
    async fn post(
        &self,
        path: &str,
        body: Vec<u8>,
        call: &ModelCall,
        key: Option<&FoundKey>,
        context: &mut ErrorContext,
    ) -> Result<Response<AnswerBody>> {
        let address = self.address(path, call)?;
        let headers = self.headers(&address.url, &body, call, key, context)?;
        let is_keyless = key.is_none() && !headers.contains_key(AUTHORIZATION);
        let (silence, begun_at) = (longest_silence(call), Instant::now());
        let http = self.http()?;
        let mut request = HttpRequest::new(body.into());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = address.way(http)?.uri.clone();
        *request.headers_mut() = headers;
        context.calling(Arc::clone(&address));
        let response = context.unless_silent(silence, http.send(request)).await?;
        if response.status().is_success() {
            return match packing(&response) {
                None => Ok(response),
                Some(packing) => Err(failure::malformed(format!(
                    "the answer is compressed (content-encoding: {packing}), which was not requested"
                ))),
            };
        }
        // A retrying caller waits at most that silence for all of it, and never longer than the
        // call may take.
        let left = call.request_timeout.map(|limit| limit.saturating_sub(begun_at.elapsed()));
        let wait = MAX_ERROR_WAIT.min(left.map_or(silence, |left| left.min(silence)) / 2);
        let error = refusal(response, &address, wait).await;
        let is_unknown = error.metadata().get("status").is_some_and(|status| status == 401);
        let hint = (is_unknown && is_keyless).then(|| self.no_key_hint());
        Err(hinted(error, hint.as_deref()))
    }

    /// The headers of a call.
    fn headers(
        &self,
        url: &str,
        body: &[u8],
        call: &ModelCall,
        key: Option<&FoundKey>,
        context: &mut ErrorContext,
    ) -> Result<HeaderMap> {
        let mut headers = self.headers.clone();
        for (name, value) in self.format.headers(call) {
            insert_header(&mut headers, &name, &value)?;
        }
        if let Some(Value::Object(extra)) = call.adapter_opts.get("headers") {
            for (name, value) in extra {
                insert_header(&mut headers, name, value.as_str().unwrap_or_default())?;
            }
        }
        context.secrets.add_those_of(&headers);
        if let Some(key) = key {
            let now = SystemWorld.now();
            let outgoing = Outgoing::new(key, url, body, now, call);
            self.authorize(outgoing, &mut headers, context)?;
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Nothing is unpacked here, and without a word of it a server may pack.
        headers.entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static("identity"));
        Ok(headers)
    }

    /// Where a request goes: to the server that the caller names, or that the environment does.
    fn address(&self, path: &str, call: &ModelCall) -> Result<Arc<Address>> {
        let named = self.named_url(call)?;
        let own = self.base_url.as_deref().map(Cow::Borrowed);
        let base = match named.map(Cow::Owned).or(own) {
            Some(base) => Some(base),
            None => self.format.base_url(call, &|name| self.setting(name))?.map(Cow::Owned),
        };
        let base = base.ok_or_else(|| {
            let variable = self.url_variable.map(|name| format!(", or set {name}"));
            Error::invalid_option("base_url", "required").with_message(format!(
                "this server has no address of its own: give a base_url (--base-url){}",
                variable.unwrap_or_default()
            ))
        })?;
        Ok(self.addresses.of(&base, &self.version, path))
    }

    /// The server that the caller names, or that the environment does.
    fn named_url(&self, call: &ModelCall) -> Result<Option<String>> {
        match call.adapter_opts.get("base_url").and_then(Value::as_str) {
            Some(url) => Ok(Some(address::parsed("base_url", url)?.to_string())),
            None => self.environment_url(),
        }
    }

    /// Whether the call goes to this machine.
    ///
    /// # Errors
    /// What was named, and is no address.
    fn is_here(&self, call: &ModelCall) -> Result<bool> {
        self.named_url(call)?;
        Ok(self
            .address("", call)
            .is_ok_and(|address| address.url.parse().is_ok_and(|uri| connector::is_local(&uri))))
    }

    fn no_key_hint(&self) -> String {
        let variables = self.key_variables.join(" or ");
        let advice = if variables.is_empty() { "" } else { ": set " };
        format!("no key was sent{advice}{variables}")
    }

    fn setting(&self, name: &str) -> Option<String> {
        self.variable(name).or_else(|| self.stored(name))
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.keys.variable(name)
    }

    fn stored(&self, name: &str) -> Option<String> {
        self.format.stored(name, &|name| self.variable(name))
    }

    /// Adds the headers that let the call in.
    fn authorize(
        &self,
        outgoing: Outgoing<'_>,
        headers: &mut HeaderMap,
        context: &mut ErrorContext,
    ) -> Result<()> {
        let asked = RefCell::new(Vec::new());
        let setting = |name: &str| self.setting(name);
        let secret = |name: &str| {
            // What signs a call is from one place.
            let value = match outgoing.key.is_stored() {
                true => self.stored(name)?,
                false => self.variable(name)?,
            };
            asked.borrow_mut().push(SecretString::from(value.as_str()));
            Some(value)
        };
        let outgoing = Outgoing { setting: &setting, secret: &secret, ..outgoing };
        let added = self.format.authorize(&outgoing);
        context.secrets.add(asked.take());
        for (name, value) in added? {
            let header = HeaderName::try_from(name.as_ref()).ok();
            let header = header.zip(HeaderValue::from_str(&value).ok());
            let (name, mut value) = header.ok_or_else(|| {
                Error::invalid_option("api_key", "malformed").with_message(format!(
                    "the API key from {} cannot be sent in a header",
                    outgoing.key.source()
                ))
            })?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(())
    }
}

impl fmt::Debug for HttpAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpAdapter")
            .field("name", &self.name)
            .field("base_url", &self.base_url.as_deref().map(without_query))
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

impl Adapter for HttpAdapter {
    fn name(&self) -> &str {
        &self.name
    }

    fn preflight(&self, request: &Request, call: &ModelCall) -> Result<()> {
        let Written { key, path, mut context, .. } = self.write(request.clone(), call)?;
        // What stands in the body does not decide whether it can be signed.
        let headers = self
            .address(&path, call)
            .and_then(|to| self.headers(&to.url, &[], call, key.as_ref(), &mut context));
        headers.map(drop).map_err(|error| context.complete(error))
    }

    fn schema_fit(&self) -> Option<u32> {
        Some(FIT_VERSION)
    }

    fn open(self: Arc<Self>, request: Request, call: ModelCall) -> BoxFuture<Result<ModelStream>> {
        Box::pin(self.call(request, call))
    }

    fn needs_structured_finalize(&self, request: &Request) -> bool {
        self.format.needs_structured_finalize(&self.with_own_name(request.clone()))
    }
}

/// A request that is ready to be sent.
struct Written {
    request: Request,
    origin: Arc<str>,
    key: Option<FoundKey>,
    path: Cow<'static, str>,
    body: Vec<u8>,
    context: ErrorContext,
}

/// Room for the body of a short conversation.
const BODY: usize = 4 << 10;

/// The error with what else a person can do.
fn hinted(error: Error, hint: Option<&str>) -> Error {
    match hint {
        Some(hint) => {
            let message = format!("{}; {hint}", error.message());
            error.with_message(message)
        }
        None => error,
    }
}

fn unknown(name: &str) -> Error {
    let message = match name {
        "bedrock" => {
            "adapter \"bedrock\" needs the feature `bedrock`, which this program was built without"
                .to_owned()
        }
        _ => format!("no adapter is named {name:?}; known are {}", known_names()),
    };
    Error::invalid_option("adapter", "unknown").with_message(message)
}

fn known_names() -> String {
    PRESETS.iter().map(|preset| preset.name).collect::<Vec<_>>().join(", ")
}

/// Some servers take a key as a query.
fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or_default()
}

fn insert_header(headers: &mut HeaderMap, name: &str, value: &str) -> Result<()> {
    let header = HeaderName::try_from(name).ok().zip(HeaderValue::from_str(value).ok());
    let (name, value) = header.ok_or_else(|| {
        Error::invalid_option("headers", "malformed").with_message(format!("{name:?} is no header"))
    })?;
    headers.insert(name, value);
    Ok(())
}

/// Members that hold the conversation in some format. As options of a request they would replace it.
const CONVERSATION: [&str; 3] = ["messages", "input", "contents"];

fn replaces_conversation(name: &str) -> Error {
    Error::invalid_option(name, "replaces_conversation").with_message(format!(
        "validation failed: {name}: a provider option of this name would replace the conversation; give the messages to the call itself"
    ))
}

/// The largest error body that is read.
const MAX_ERROR_BODY: usize = 64 << 10;

/// The longest that it is waited for.
const MAX_ERROR_WAIT: Duration = Duration::from_secs(10);

/// The error of a response whose status is not success.
async fn refusal(response: Response<AnswerBody>, address: &Address, wait: Duration) -> Error {
    let packed = packing(&response).map(str::to_owned);
    let (head, mut answer) = response.into_parts();
    let mut body = Vec::new();
    let read = async {
        while packed.is_none()
            && body.len() < MAX_ERROR_BODY
            && let Some(Ok(frame)) = answer.frame().await
        {
            body.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    };
    // However far that came: the status says enough.
    let _ = tokio::time::timeout(wait, read).await;
    let header = header_of(&head.headers);
    let mut error = failure::of_response(head.status.as_u16(), header, &body);
    // It may not be the address that was meant.
    if failure::is_wordless(&error) {
        let message = format!("{}, calling {}", error.message(), without_query(&address.url));
        error = error.with_message(message).with("server", address.server());
    }
    let Some(packing) = packed else { return error };
    let message =
        format!("{}; its body is compressed (content-encoding: {packing})", error.message());
    error.with_message(message)
}

/// The unrequested encoding of a body. Nothing is decompressed here.
fn packing(response: &Response<AnswerBody>) -> Option<&str> {
    let packing = response.headers().get(CONTENT_ENCODING)?.to_str().ok()?;
    (!matches!(packing.trim(), "" | "identity")).then_some(packing)
}

fn header_of<'h>(headers: &'h HeaderMap) -> impl Fn(&str) -> Option<&'h str> {
    move |name| headers.get(name).and_then(|value| value.to_str().ok())
}

/// The longest silence of a server where the call does not say.
const MAX_SILENCE: Duration = Duration::from_secs(300);

fn longest_silence(call: &ModelCall) -> Duration {
    call.stream_timeout.unwrap_or(MAX_SILENCE)
}

#[cfg(test)]
mod tests {
    use super::unknown;

    #[test]
    fn a_server_that_only_a_feature_knows_names_the_feature() {
        assert!(unknown("bedrock").to_string().contains("needs the feature `bedrock`"));
        assert!(unknown("bedrok").to_string().contains("known are openai"));
    }
}
