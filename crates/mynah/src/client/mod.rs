//! A client of `mynah serve`: starts runs on a server, follows their events, and sends them signals.
//!
//! ```no_run
//! use mynah::client::Client;
//!
//! # async fn example() -> mynah::Result<()> {
//! let client = Client::new("http://127.0.0.1:7878")?;
//! let run = client.start("Refund order 17").run_id("order-17").send().await?;
//! let mut events = client.events(&run.summary.run_id, None);
//! while let Some(event) = events.try_next().await? {
//!     println!("{} {:?}", event.id, event.event);
//! }
//! # Ok(()) }
//! ```
//!
//! A stream of events reconnects by itself, and gives each event once. Requests that change something have keys, so they can be repeated.

mod error;
mod events;
mod runs;

use std::{sync::Arc, time::Duration};

use http::{Method, Request, header, request::Builder};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use mynah_adapters::http::{AnswerBody, Http, parsed_address};
use mynah_data::{Error, HaltReason, Metadata, RunId, ToolCall};
use mynah_log::{RunStatus, RunSummary};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, json};

pub use self::{
    error::ClientError,
    events::Events,
    runs::{DamagedRun, ListedRun, RunList, RunQuery, TextMatch},
};
use crate::{EventId, Signal, Waiting};

type Result<T> = std::result::Result<T, ClientError>;

type Response = http::Response<AnswerBody>;

/// A client of one server. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: Http,
    /// The address of the server, without a slash at its end.
    base: Arc<str>,
    token: Option<Arc<SecretString>>,
}

/// A run as the server describes it.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct RunInfo {
    /// What the log's index has.
    #[serde(flatten)]
    pub summary: RunSummary,
    /// Whether it runs, and no process holds it.
    pub abandoned: bool,
    /// How it stopped; none while it runs.
    #[serde(default)]
    pub end: Option<RunEnd>,
    /// The error that ended it.
    #[serde(default)]
    pub error: Option<Error>,
    /// What it waits for, if it is suspended.
    #[serde(default, deserialize_with = "waiting")]
    pub waiting: Option<Waiting>,
    /// The agent of the server that performs it.
    #[serde(default)]
    pub agent: Option<String>,
    /// The run whose agent it is.
    #[serde(default)]
    pub caller: Option<RunId>,
}

/// How a run stopped.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct RunEnd {
    /// The status that it has since.
    #[serde(rename = "kind")]
    pub status: RunStatus,
    /// The record that says so.
    pub seq: u64,
    /// Why.
    pub reason: HaltReason,
    /// More on it.
    #[serde(default)]
    pub metadata: Metadata,
    /// Milliseconds that the run was active.
    #[serde(default)]
    pub duration_ms: Option<u64>,
}

/// What a suspended run waits for, as servers write it.
#[derive(Deserialize)]
#[serde(tag = "for", rename_all = "snake_case")]
enum WaitsFor {
    Answer {
        question: Option<String>,
    },
    Approval {
        calls: Vec<ToolCall>,
    },
    Outcome {
        calls: Vec<ToolCall>,
    },
    Resume,
    Time {
        wake_at_ms: Option<u64>,
    },
    #[serde(other)]
    Unknown,
}

impl From<WaitsFor> for Waiting {
    fn from(waits: WaitsFor) -> Self {
        match waits {
            WaitsFor::Answer { question } => Self::Question(question.unwrap_or_default()),
            WaitsFor::Approval { calls } => Self::Approval(calls),
            WaitsFor::Outcome { calls } => Self::Uncertain(calls),
            WaitsFor::Resume => Self::CrashLoop,
            WaitsFor::Time { wake_at_ms } => Self::at(wake_at_ms.unwrap_or_default()),
            WaitsFor::Unknown => Self::Other,
        }
    }
}

fn waiting<'de, D: Deserializer<'de>>(told: D) -> std::result::Result<Option<Waiting>, D::Error> {
    Ok(Option::<WaitsFor>::deserialize(told)?.map(Waiting::from))
}

/// The result of a verification or a replay.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct CheckReport {
    /// What was found.
    pub status: CheckStatus,
    /// Why a run is corrupt, is too new or differs.
    #[serde(default, rename = "err")]
    pub error: Option<Error>,
    /// The rest, as `docs/server.md` describes it.
    #[serde(flatten)]
    pub members: Metadata,
}

/// What a verification or a replay found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CheckStatus {
    /// Every record is as it was written, and the run has its seal.
    Verified,
    /// Every record is as it was written, and the run has no seal yet.
    InProgress,
    /// Records are not what they were, or are missing.
    Corrupt,
    /// A newer version of Mynah wrote some of the records.
    TooNew,
    /// The replay did what is recorded.
    Equal,
    /// The replay did something else.
    Differs,
    /// Something that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Client {
    /// A client of the server at this address.
    ///
    /// # Errors
    /// An address that is no URL or holds a password, or a system whose trusted certificates cannot be read.
    pub fn new(url: &str) -> Result<Self> {
        let uri = parsed_address("url", url).map_err(|error| {
            let why = format!("{}; give a URL as http://127.0.0.1:7878", error.message());
            ClientError::local("invalid_url", why)
        })?;
        let url = uri.to_string();
        let base = url.split('?').next().unwrap_or_default().trim_end_matches('/').into();
        let http = Http::new().map_err(|error| ClientError::local("no_client", error))?;
        Ok(Self { http, base, token: None })
    }

    /// The same with a token, which servers that other machines can reach demand.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Arc::new(SecretString::from(token.into())));
        self
    }

    /// Starts a run with this input of the user.
    pub fn start(&self, input: impl Into<String>) -> StartRun<'_> {
        let (agent, run_id, queue, wait) = (None, None, None, None);
        StartRun { client: self, input: input.into(), agent, run_id, queue, wait }
    }

    /// A run.
    ///
    /// # Errors
    /// There is no such run, or the server cannot be reached.
    pub async fn run(&self, run: impl AsRef<str>) -> Result<RunInfo> {
        let url = self.url(&["v1", "runs", run.as_ref()], []);
        self.read(self.send(self.request(Method::GET, url), "").await?).await
    }

    /// The runs that a [`RunFilter`](mynah_log::RunFilter) or a [`RunQuery`] picks. Which runs are abandoned is decided by the server's
    /// clock.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses the query.
    pub async fn runs(&self, query: impl Into<RunQuery>) -> Result<RunList> {
        let url = self.url(&["v1", "runs"], query.into().parameters());
        self.read(self.send(self.request(Method::GET, url), "").await?).await
    }

    /// The events of a run after one, or from its start, and those to come.
    pub fn events(&self, run: impl AsRef<str>, after: impl Into<Option<EventId>>) -> Events {
        Events::new(self.clone(), run.as_ref().into(), after.into())
    }

    /// Sends a signal to a run. A second one with the same key changes nothing.
    ///
    /// # Errors
    /// The run has ended or does not wait for this, or the server cannot be reached.
    pub async fn signal(
        &self,
        run: impl AsRef<str>,
        key: impl AsRef<str>,
        signal: &Signal,
    ) -> Result<RunInfo> {
        let mut body = match signal {
            Signal::Answer(text) => json!({"answer": text}),
            Signal::Message(text) => json!({"message": text}),
            Signal::Approve { call_id, arguments: None } => json!({"approve": [call_id]}),
            Signal::Approve { call_id, arguments: Some(arguments) } => {
                json!({"approve_with": {call_id.as_str(): arguments}})
            }
            Signal::Reject { call_id, reason } => json!({"reject": {call_id.as_str(): reason}}),
            Signal::ToolResult { call_id, content } => {
                json!({"results": {call_id.as_str(): content}})
            }
            Signal::Cancel => json!({"cancel": true}),
        };
        body["key"] = Value::from(key.as_ref());
        self.post(&["v1", "runs", run.as_ref(), "signals"], None, &body).await
    }

    /// The next turn of a session, or its first, with this text of the user.
    pub fn say(&self, session: impl Into<String>, text: impl Into<String>) -> Say<'_> {
        Say { client: self, session: session.into(), text: text.into(), agent: None }
    }

    /// Copies a run up to a record into a new run with this id.
    ///
    /// # Errors
    /// There is no such run or record, the id is taken, or the server cannot be reached.
    pub async fn fork(
        &self,
        run: impl AsRef<str>,
        at: u64,
        run_id: impl Into<RunId>,
    ) -> Result<RunInfo> {
        let body = json!({"at": at, "key": run_id.into()});
        self.post(&["v1", "runs", run.as_ref(), "fork"], None, &body).await
    }

    /// Executes a run again from its records and compares.
    ///
    /// # Errors
    /// There is no such run, or the server cannot be reached.
    pub async fn replay(&self, run: impl AsRef<str>) -> Result<CheckReport> {
        self.post(&["v1", "runs", run.as_ref(), "replay"], None, &json!({})).await
    }

    /// Checks every record of a run.
    ///
    /// # Errors
    /// There is no such run, or the server cannot be reached.
    pub async fn verify(&self, run: impl AsRef<str>) -> Result<CheckReport> {
        self.post(&["v1", "runs", run.as_ref(), "verify"], None, &json!({})).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        wait: Option<Duration>,
        body: &Value,
    ) -> Result<T> {
        let seconds = wait.map(|wait| wait.as_millis().div_ceil(1000).to_string());
        let url = self.url(path, seconds.map(|seconds| ("wait", seconds)));
        let request = self.request(Method::POST, url).header("mynah-request", "1");
        let request = request.header(header::CONTENT_TYPE, "application/json");
        self.read(self.send(request, body.to_string()).await?).await
    }

    /// The address of a path with these parameters.
    fn url(
        &self,
        path: &[&str],
        query: impl IntoIterator<Item = (&'static str, String)>,
    ) -> String {
        const ENCODED: AsciiSet =
            NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
        let encoded = |text: &str| utf8_percent_encode(text, &ENCODED).to_string();
        let mut url = self.base.to_string();
        path.iter().for_each(|segment| url.extend(["/", &encoded(segment)]));
        for (n, (name, value)) in query.into_iter().enumerate() {
            url.extend([if n == 0 { "?" } else { "&" }, name, "=", &encoded(&value)]);
        }
        url
    }

    fn request(&self, method: Method, url: String) -> Builder {
        let request = Request::builder().method(method).uri(url);
        let bearer = |token: &Arc<SecretString>| format!("Bearer {}", token.expose_secret());
        match &self.token {
            Some(token) => request.header(header::AUTHORIZATION, bearer(token)),
            None => request,
        }
    }

    /// Sends a request. What the server refuses is an error.
    async fn send(&self, request: Builder, body: impl Into<Bytes>) -> Result<Response> {
        let request = request.body(Full::new(body.into()));
        let request = request.map_err(|error| ClientError::local("invalid_request", error))?;
        let response = self.http.send(request).await.map_err(|error| self.unreachable(error))?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(ClientError::refused(response).await),
        }
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T> {
        let body = response.into_body().collect().await.map_err(|error| self.unreachable(error))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|error| {
            let why = format!("the server's answer cannot be read: {error}");
            ClientError::local("unexpected_answer", why)
        })
    }

    fn unreachable(&self, error: impl std::error::Error + Send + Sync + 'static) -> ClientError {
        ClientError::unreachable(&self.base, error)
    }
}

/// A run to be started; see [`Client::start`].
#[must_use = "a run is not started before it is sent"]
pub struct StartRun<'c> {
    client: &'c Client,
    input: String,
    agent: Option<String>,
    run_id: Option<RunId>,
    queue: Option<String>,
    wait: Option<Duration>,
}

impl StartRun<'_> {
    mynah_data::setters! { self => self;
        /// The agent; needed if the server has several.
        agent(name: impl Into<String>) = Some(name.into());

        /// The id of the run. A second start with the same id and input attaches to the run.
        run_id(id: impl Into<RunId>) = Some(id.into());

        /// Leaves the run to a worker of this queue.
        queue(name: impl Into<String>) = Some(name.into());

        /// Waits until the run has ended or waits, but no longer than this, rounded up to whole seconds: at most 600.
        wait(time: Duration) = Some(time);
    }

    /// Starts it.
    ///
    /// # Errors
    /// The server refuses it or cannot be reached.
    pub async fn send(self) -> Result<RunInfo> {
        let Self { client, input, agent, run_id, queue, wait } = self;
        let body = json!({"input": input, "agent": agent, "key": run_id, "queue": queue});
        client.post(&["v1", "runs"], wait, &body).await
    }
}

/// A turn of a session to be started; see [`Client::say`].
#[must_use = "a turn is not started before it is sent"]
pub struct Say<'c> {
    client: &'c Client,
    session: String,
    text: String,
    agent: Option<String>,
}

impl Say<'_> {
    mynah_data::setters! { self => self;
        /// The agent; needed if the server has several.
        agent(name: impl Into<String>) = Some(name.into());
    }

    /// Starts it.
    ///
    /// # Errors
    /// The session's last turn has not ended or waits, or the server cannot be reached.
    pub async fn send(self) -> Result<RunInfo> {
        let body = json!({"text": self.text, "agent": self.agent});
        self.client.post(&["v1", "sessions", &self.session, "messages"], None, &body).await
    }
}

// What a person wrote is not printed.
mynah_data::partial_debug! {
    StartRun<'c> { client, agent, run_id, queue, wait }
    Say<'c> { client, session, agent }
}
