//! Requests to a server at an address. What it answers is bounded, which `rmcp`'s own client does for event streams alone.

use std::{borrow::Cow, collections::HashMap, io, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream::BoxStream};
use http::{HeaderName, HeaderValue, StatusCode, header};
use reqwest::{Client, Response, Url, redirect::Policy};
use rmcp::{
    ErrorData,
    model::{ClientJsonRpcMessage, ClientRequest, ServerJsonRpcMessage},
    transport::{
        StreamableHttpClientTransport,
        common::client_side_sse::ExponentialBackoff,
        streamable_http_client::{
            AuthRequiredError, HttpStatusError, SseError, StreamableHttpClient,
            StreamableHttpClientTransportConfig, StreamableHttpError, StreamableHttpPostResponse,
        },
    },
};
use rustls::{ClientConfig, crypto::ring};
use rustls_platform_verifier::BuilderVerifierExt;
use secrecy::ExposeSecret as _;
use sse_stream::{Sse, SseStream};

use crate::{McpError, Server, server::Place};

const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";
const SESSION: &str = "mcp-session-id";

/// A client whose answers are no larger than a limit.
#[derive(Clone, Debug)]
pub(crate) struct Bounded {
    client: Client,
    most: usize,
}

pub(crate) type Failed = StreamableHttpError<reqwest::Error>;

/// Why a request to this address failed, in words for a person or a model.
pub(crate) fn reason(url: &str, error: &Failed) -> String {
    match error {
        StreamableHttpError::Client(error) => {
            // The errors around the innermost one name layers of the client.
            let outer: &dyn std::error::Error = error;
            let causes = std::iter::successors(Some(outer), |error| error.source());
            let cause = causes.last().unwrap_or(outer);
            format!("the request to {url} failed: {cause}")
        }
        StreamableHttpError::HttpStatus(error) => match StatusCode::from_u16(error.status) {
            Ok(status) => format!("{url} answered HTTP {status}"),
            Err(_) => format!("{url} answered HTTP {}", error.status),
        },
        StreamableHttpError::UnexpectedServerResponse(why) => format!("{url}: {why}"),
        StreamableHttpError::UnexpectedContentType(kind) => {
            let kind = kind.as_deref().unwrap_or("no content type");
            format!("{url} answered with {kind} instead of JSON or events; check the path")
        }
        StreamableHttpError::AuthRequired(error) => {
            let challenge = &error.www_authenticate_header;
            format!("{url} requires authorization ({challenge}); check the token")
        }
        StreamableHttpError::SessionExpired => {
            format!("{url} answered HTTP 404: the session ended")
        }
        StreamableHttpError::TransportChannelClosed => format!("the connection to {url} ended"),
        error => format!("{url}: {error}"),
    }
}

/// The status of a refusal, and what the server wrote about it.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    let text = crate::error::cut(String::from_utf8_lossy(body).trim(), 500);
    match text.is_empty() {
        true => format!("HTTP {status}"),
        false => format!("HTTP {status}: {text}"),
    }
}

impl Bounded {
    pub(crate) fn new(server: &Server, url: &str) -> Result<Self, McpError> {
        let invalid = |why: String| McpError::Settings { server: server.name.clone(), why };
        let parsed = Url::parse(url).map_err(|error| invalid(format!("{url}: {error}")))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(invalid(format!("{url} is neither http nor https")));
        }
        let provider = Arc::new(ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(BuilderVerifierExt::with_platform_verifier)
            .map(|tls| tls.with_no_client_auth())
            .map_err(|error| invalid(error.to_string()))?;
        let mut builder = Client::builder()
            .tls_backend_preconfigured(tls)
            .connect_timeout(Duration::from_secs(10))
            // An answer that was not read to its end would stall the next request on its connection.
            .pool_max_idle_per_host(0)
            .redirect(Policy::none())
            .user_agent(concat!("mynah/", env!("CARGO_PKG_VERSION")));
        let is_local = match parsed.host() {
            Some(url::Host::Ipv4(address)) => address.is_loopback(),
            Some(url::Host::Ipv6(address)) => address.is_loopback(),
            Some(url::Host::Domain(name)) => name == "localhost",
            None => false,
        };
        if is_local {
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| invalid(error.to_string()))?;
        Ok(Self { client, most: server.limits.message_bytes })
    }

    pub(crate) fn transport(
        &self,
        server: &Server,
    ) -> Result<StreamableHttpClientTransport<Self>, McpError> {
        let Place::Http { url, token, headers } = &server.place else {
            let why = "it has no address".to_owned();
            return Err(McpError::Settings { server: server.name.clone(), why });
        };
        let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
            .max_sse_event_size(self.most);
        config.auth_header = token.as_ref().map(|token| token.expose_secret().to_owned());
        for (name, value) in headers {
            let header = name.parse().ok().zip(value.expose_secret().parse().ok());
            let (name, value) = header.ok_or_else(|| McpError::Settings {
                server: server.name.clone(),
                why: format!("the header {name:?} is none"),
            })?;
            config.custom_headers.insert(name, value);
        }
        let mut retry = ExponentialBackoff::default();
        retry.max_times = Some(server.limits.reconnects as usize);
        retry.base_duration = server.limits.reconnect_delay;
        retry.max_delay = Some(server.limits.max_reconnect_delay);
        config.retry_config = Arc::new(retry);
        Ok(StreamableHttpClientTransport::with_client(self.clone(), config))
    }

    /// The body of an answer, if it is not too large.
    async fn body(&self, response: Response) -> Result<Vec<u8>, Failed> {
        let mut body = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(StreamableHttpError::Client)?;
            if body.len() + chunk.len() > self.most {
                let why = format!("an answer has more than {} bytes", self.most);
                return Err(StreamableHttpError::UnexpectedServerResponse(Cow::Owned(why)));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// An answer that is a refusal.
    async fn refused(
        &self,
        response: Response,
        message: &ClientJsonRpcMessage,
        in_session: bool,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let (status, headers) = (response.status(), response.headers().clone());
        let unauthorized = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if let Some(challenge) = headers.get(header::WWW_AUTHENTICATE).filter(|_| unauthorized) {
            let challenge = String::from_utf8_lossy(challenge.as_bytes()).into_owned();
            return Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge)));
        }
        if status == StatusCode::NOT_FOUND && in_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let retry_after = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.filter(|value| value.len() < 64).map(str::to_owned);
        let body = self.body(response).await.unwrap_or_default();
        let told = match serde_json::from_slice(&body) {
            Ok(ServerJsonRpcMessage::Error(told)) if !unauthorized => Some(told),
            _ => None,
        };
        let asked = match message {
            ClientJsonRpcMessage::Request(request) => Some(request),
            _ => None,
        };
        // A server that refuses to be asked for its era speaks the older protocol.
        if let Some(request) = asked
            && matches!(request.request, ClientRequest::DiscoverRequest(_))
            && !in_session
            && status.is_client_error()
            && !unauthorized
        {
            let why = || ErrorData::invalid_request(refusal(status, &body), None);
            let error = told.map_or_else(why, |told| told.error);
            let error = ServerJsonRpcMessage::error(error, Some(request.id.clone()));
            return Ok(StreamableHttpPostResponse::Json(error, None));
        }
        if let Some(told) = told {
            return Ok(StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Error(told), None));
        }
        if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
            return Err(HttpStatusError::new(status.as_u16(), retry_after).into());
        }
        let why = refusal(status, &body);
        Err(StreamableHttpError::UnexpectedServerResponse(Cow::Owned(why)))
    }
}

impl StreamableHttpClient for Bounded {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let in_session = session_id.is_some();
        let mut request = self.client.post(uri.as_ref()).header(header::ACCEPT, ACCEPTED);
        request = request.headers(custom_headers.into_iter().collect());
        if let Some(token) = auth_header {
            request = request.bearer_auth(token);
        }
        if let Some(session) = session_id {
            request = request.header(SESSION, session.as_ref());
        }
        let body = serde_json::to_vec(&message).unwrap_or_default();
        let request = request.header(header::CONTENT_TYPE, JSON).body(body);
        let response = request.send().await.map_err(StreamableHttpError::Client)?;
        let status = response.status();
        if !status.is_success() {
            return self.refused(response, &message, in_session).await;
        }
        let waits = matches!(message, ClientJsonRpcMessage::Request(_));
        if !waits || matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let text = |name: &str| {
            let value = response.headers().get(name)?.to_str().ok()?;
            Some(value.to_owned())
        };
        let (session, kind) = (text(SESSION), text(header::CONTENT_TYPE.as_str()));
        match kind.as_deref() {
            Some(kind) if kind.starts_with(EVENTS) => {
                Ok(StreamableHttpPostResponse::Sse(events(response, self.most), session))
            }
            Some(kind) if kind.starts_with(JSON) => {
                let body = self.body(response).await?;
                let message = serde_json::from_slice(&body).map_err(|error| {
                    let why = format!("the answer is no message of JSON-RPC: {error}");
                    StreamableHttpError::UnexpectedServerResponse(Cow::Owned(why))
                })?;
                Ok(StreamableHttpPostResponse::Json(message, session))
            }
            _ => Err(StreamableHttpError::UnexpectedContentType(kind)),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failed> {
        self.client.delete_session(uri, session_id, auth_header, custom_headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        let (client, most) = (&self.client, self.most);
        let (session, last) = (session_id, last_event_id);
        client
            .get_stream_with_max_sse_event_size(
                uri,
                session,
                last,
                auth_header,
                custom_headers,
                most,
            )
            .await
    }
}

const ACCEPTED: &str = "text/event-stream, application/json";

/// The events of an answer, none of them larger than a limit.
fn events(response: Response, most: usize) -> BoxStream<'static, Result<Sse, SseError>> {
    // An event ends with an empty line. Counting from the last one bounds what is kept.
    let (mut current, mut ends) = (0, 0);
    let bounded = response.bytes_stream().map(move |chunk| {
        let chunk = chunk.map_err(io::Error::other)?;
        for byte in &chunk {
            match byte {
                b'\n' => ends += 1,
                b'\r' => {}
                _ => ends = 0,
            }
            current = if ends > 1 { 0 } else { current + 1 };
        }
        match current > most {
            true => Err(io::Error::other(format!("an event has more than {most} bytes"))),
            false => Ok(chunk),
        }
    });
    SseStream::from_bytes_stream(bounded).boxed()
}
