//! The connection to a server: made when it is needed, made again when it ends, checked after each.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    time::Duration,
};

use mynah_step::Tool;
use rmcp::{
    ClientHandler, ErrorData, Peer, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
        ElicitationCapability, FormElicitationCapability, Implementation,
        ProgressNotificationParam, ProtocolVersion, ServerNotification, SubscriptionFilter,
        UrlElicitationCapability,
    },
    service::{
        ClientLifecycleMode, ClientServiceExt as _, NotificationContext, RequestContext,
        RunningService,
    },
    transport::async_rw::AsyncRwTransport,
};
use tokio::{
    sync::{oneshot, watch},
    task::AbortHandle,
    time::{sleep, timeout},
};

use crate::{
    ListedTool, Listing, McpError, Protocol, Server,
    child::{DEPTH, Flood, Lines, Running},
    error::cut,
    flight::{Calls, Note},
    http_client,
    server::Place,
};

/// The tools of a server, and its description. The connection lives as long as this value or one of
/// its tools.
#[derive(Clone, Debug)]
pub struct Connection {
    client: Arc<Client>,
    listing: Listing,
    tools: Vec<Tool>,
    refused: Vec<McpError>,
    /// The changes that came before it.
    changes: watch::Receiver<u64>,
}

impl Connection {
    pub(crate) fn new(client: Arc<Client>, listing: Listing) -> Self {
        let (tools, refused) = Server::offered(&client, &listing);
        for refused in &refused {
            tracing::warn!(%refused, "a tool of an MCP server is not offered");
        }
        let changes = client.changes.subscribe();
        Self { client, listing, tools, refused, changes }
    }

    /// The tools, for an engine.
    pub fn tools(&self) -> Vec<Tool> {
        self.tools.clone()
    }

    /// Everything that the server lists, to be stored or [pinned](Server::pin).
    pub fn listing(&self) -> &Listing {
        &self.listing
    }

    /// Why tools of the server are not among the [tools](Self::tools): each cannot be used, or is not as it was pinned.
    pub fn refused(&self) -> &[McpError] {
        &self.refused
    }

    /// Waits until the server says that its tools changed, or returns at once if it said so since they were listed.
    pub async fn changed(&self) {
        // The sender lives as long as the client.
        let _ = self.changes.clone().changed().await;
    }

    /// Asks the server for its tools again.
    ///
    /// # Errors
    /// As [`Server::connect`].
    pub async fn refresh(&self) -> Result<Self, McpError> {
        self.client.changes.send_modify(|count| *count += 1);
        let listing = self.client.listing().await?;
        Ok(Self::new(Arc::clone(&self.client), listing))
    }
}

impl IntoIterator for Connection {
    type Item = Tool;
    type IntoIter = std::vec::IntoIter<Tool>;

    fn into_iter(self) -> Self::IntoIter {
        self.tools.into_iter()
    }
}

/// A server, and the connection to it if there is one.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) server: Server,
    http: Option<http_client::Bounded>,
    state: tokio::sync::Mutex<State>,
    /// How often the tools may have changed.
    changes: Arc<watch::Sender<u64>>,
    pub(crate) calls: Arc<Calls>,
}

#[derive(Debug, Default)]
struct State {
    live: Option<Live>,
    /// Connections in a row without an answered call.
    connects: u32,
    /// How the last one ended or failed.
    last: String,
    /// What the server listed, and after how many changes.
    listed: Option<(u64, Listing)>,
    /// Whether this server does not survive being asked for its era.
    legacy: bool,
}

#[derive(Debug)]
struct Live {
    // The service is dropped before the process, so that the process can exit first.
    service: RunningService<RoleClient, Arc<Handler>>,
    child: Option<Running>,
    flooded: Arc<OnceLock<Flood>>,
    listener: Option<AbortHandle>,
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

impl Client {
    pub(crate) fn new(server: Server) -> Result<Self, McpError> {
        let http = match &server.place {
            Place::Http { url, .. } => Some(http_client::Bounded::new(&server, url)?),
            Place::Stdio(_) => None,
        };
        let changes = Arc::new(watch::Sender::new(0));
        Ok(Self { server, http, state: Default::default(), changes, calls: Arc::default() })
    }

    /// What the server lists now.
    pub(crate) async fn listing(&self) -> Result<Listing, McpError> {
        let mut state = self.state.lock().await;
        self.checked(&mut state).await?;
        Ok(state.listed.as_ref().map(|(_, listing)| listing.clone()).unwrap_or_default())
    }

    /// A connection over which this tool may be called: the server still lists it with the same
    /// specification.
    pub(crate) async fn peer(&self, tool: &ListedTool) -> Result<Peer<RoleClient>, McpError> {
        let mut state = self.state.lock().await;
        let peer = self.checked(&mut state).await?;
        let now = state.listed.as_ref().and_then(|(_, listing)| listing.get(&tool.name));
        let (found, approved) = (now.map(ListedTool::digest).unwrap_or_default(), tool.digest());
        if found == approved {
            return Ok(peer);
        }
        let (server, tool) = (self.server.name.clone(), tool.name.clone());
        Err(McpError::Changed { server, tool, approved, found })
    }

    /// A connection whose listing is known.
    async fn checked(&self, state: &mut State) -> Result<Peer<RoleClient>, McpError> {
        let changes = *self.changes.borrow();
        let connected = self.connected(state).await;
        let peer = connected.inspect_err(|error| state.last = error.to_string())?;
        if state.listed.as_ref().is_none_or(|(at, _)| *at != changes) {
            peer.clear_response_cache().await;
            let fetched = Listing::fetch(&peer, &self.server);
            let listed = match timeout(self.server.connect_timeout, fetched).await {
                Ok(Err(error)) => Err(self.explained(state, error)),
                Ok(listed) => listed,
                Err(_) => Err(self.late("tools/list", self.server.connect_timeout)),
            };
            // A server that does not list its tools is not asked again over this connection.
            let listing = listed.inspect_err(|error| {
                (state.live, state.last) = (None, error.to_string());
            })?;
            state.listed = Some((changes, listing));
        }
        Ok(peer)
    }

    pub(crate) fn late(&self, method: &'static str, after: Duration) -> McpError {
        McpError::Timeout { server: self.server.name.clone(), method, after }
    }

    /// The connection there is, or a new one.
    async fn connected(&self, state: &mut State) -> Result<Peer<RoleClient>, McpError> {
        if let Some(live) = &state.live
            && !live.service.peer().is_transport_closed()
        {
            return Ok(live.service.peer().clone());
        }
        let limits = &self.server.limits;
        if let Some(mut ended) = state.live.take() {
            let how = ended.child.as_mut().and_then(Running::ended);
            state.last = how.unwrap_or_else(|| "the connection ended".to_owned());
        }
        if state.connects > limits.reconnects {
            let (server, connects) = (self.server.name.clone(), state.connects);
            return Err(McpError::GivenUp { server, connects, why: cut(&state.last, 500) });
        }
        if state.connects > 0 {
            let doubled = limits.reconnect_delay.saturating_mul(1 << (state.connects - 1).min(16));
            sleep(doubled.min(limits.max_reconnect_delay)).await;
        }
        state.connects += 1;
        state.listed = None;
        let live = match self.open(state.legacy).await {
            // It may have ended because it was asked for something that it does not know.
            Err(McpError::Connect { .. }) if self.may_be_legacy(state) => {
                let live = self.open(true).await?;
                state.legacy = true;
                live
            }
            opened => opened?,
        };
        let peer = live.service.peer().clone();
        state.live = Some(live);
        Ok(peer)
    }

    fn may_be_legacy(&self, state: &State) -> bool {
        let is_child = matches!(self.server.place, Place::Stdio(_));
        self.server.protocol == Protocol::Auto && is_child && !state.legacy
    }

    async fn open(&self, legacy: bool) -> Result<Live, McpError> {
        let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
        let mode = match (self.server.protocol, legacy) {
            (Protocol::Stateless, _) => ClientLifecycleMode::Discover { preferred_versions },
            (Protocol::Auto, false) => ClientLifecycleMode::Auto {
                preferred_versions,
                legacy_version: Some(ProtocolVersion::V_2025_11_25),
            },
            _ => ClientLifecycleMode::Initialize,
        };
        let handler = Arc::new(Handler {
            calls: Arc::clone(&self.calls),
            changes: Arc::clone(&self.changes),
            server: self.server.name.clone(),
        });
        let flooded = Arc::new(OnceLock::new());
        let mut child = None;
        let limit = self.server.connect_timeout;
        let opened = match &self.server.place {
            Place::Stdio(start) => {
                let (running, stdout, stdin) = start.spawn().map_err(|error| McpError::Start {
                    server: self.server.name.clone(),
                    command: start.shown(),
                    why: error.to_string(),
                })?;
                child = Some(running);
                let most = self.server.limits.message_bytes;
                let lines = Lines::new(stdout, most, Arc::clone(&flooded));
                let transport =
                    AsyncRwTransport::new_client(lines, stdin).with_max_line_length(most);
                timeout(limit, handler.serve_with_lifecycle(transport, mode)).await
            }
            Place::Http { .. } => {
                let Some(http) = &self.http else { return Err(self.no_connection("no client")) };
                let transport = http.transport(&self.server)?;
                timeout(limit, handler.serve_with_lifecycle(transport, mode)).await
            }
        };
        let service = match opened {
            Ok(Ok(service)) => service,
            Err(_) => return Err(self.late("the first request", limit)),
            Ok(Err(error)) => {
                if let Some(flood) = flooded.get() {
                    return Err(self.flooded(*flood));
                }
                let mut failed = McpError::of_start(&self.server, &error);
                if let (McpError::Connect { why, stderr, .. }, Some(child)) =
                    (&mut failed, &mut child)
                {
                    // What it wrote last may still be on its way.
                    sleep(Duration::from_millis(50)).await;
                    *stderr = child.stderr();
                    *why = child.ended().unwrap_or(std::mem::take(why));
                }
                return Err(failed);
            }
        };
        let listener = self.listen(service.peer());
        Ok(Live { service, child, flooded, listener })
    }

    /// Receives notices of changed tools from a server without a session.
    fn listen(&self, peer: &Peer<RoleClient>) -> Option<AbortHandle> {
        let info = peer.peer_info()?;
        let tells = info.capabilities.tools.as_ref().and_then(|tools| tools.list_changed);
        if tells != Some(true) || info.protocol_version.has_initialize() {
            return None;
        }
        let (peer, changes) = (peer.clone(), Arc::clone(&self.changes));
        let listening = async move {
            let filter = SubscriptionFilter::builder().tools_list_changed().build();
            let Ok(mut subscription) = peer.listen(filter).await else { return };
            while let Ok(Some(notification)) = subscription.next().await {
                if matches!(notification, ServerNotification::ToolListChangedNotification(_)) {
                    changes.send_modify(|count| *count += 1);
                }
            }
        };
        Some(tokio::spawn(listening).abort_handle())
    }

    fn no_connection(&self, why: &str) -> McpError {
        let (server, why) = (self.server.name.clone(), why.to_owned());
        McpError::Connect { server, why, stderr: String::new() }
    }

    fn flooded(&self, flood: Flood) -> McpError {
        let (what, limit) = match flood {
            Flood::Long => ("the size of a message", self.server.limits.message_bytes),
            Flood::Deep => ("the depth of a message", DEPTH),
        };
        McpError::Limit { server: self.server.name.clone(), what, limit }
    }

    /// A call was answered: the connection is good.
    pub(crate) async fn answered(&self) {
        self.state.lock().await.connects = 0;
    }

    /// The same error with details about a server that exited.
    pub(crate) async fn explain(&self, error: McpError) -> McpError {
        sleep(Duration::from_millis(50)).await;
        self.explained(&mut *self.state.lock().await, error)
    }

    fn explained(&self, state: &mut State, error: McpError) -> McpError {
        let Some(live) = &mut state.live else { return error };
        match error {
            McpError::Closed { server, why, .. } => {
                if let Some(flood) = live.flooded.get() {
                    return self.flooded(*flood);
                }
                let Some(child) = &mut live.child else {
                    return McpError::Closed { server, why, stderr: String::new() };
                };
                let why = child.ended().unwrap_or(why);
                McpError::Closed { server, why, stderr: child.stderr() }
            }
            error => error,
        }
    }
}

/// Answers requests of a server, and receives its notifications.
#[derive(Debug)]
struct Handler {
    calls: Arc<Calls>,
    changes: Arc<watch::Sender<u64>>,
    server: String,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::builder().enable_tasks().build();
        let asking = ElicitationCapability::new()
            .with_form(FormElicitationCapability::default())
            .with_url(UrlElicitationCapability::default());
        capabilities.elicitation = Some(asking);
        let name = Implementation::new("mynah", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(capabilities, name).with_protocol_version(ProtocolVersion::V_2025_11_25)
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let cancelled = ElicitResult::new(ElicitationAction::Cancel);
        let Some(call) = self.calls.asking(context.extensions.get()).await else {
            tracing::warn!(
                server = self.server,
                "a question that belongs to no single call is cancelled"
            );
            return Ok(cancelled);
        };
        let (sender, answer) = oneshot::channel();
        if call.send(Note::Elicit(request, sender)).await.is_err() {
            return Ok(cancelled);
        }
        Ok(answer.await.unwrap_or(cancelled))
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        if let Some(call) = self.calls.of_token(&params.progress_token).await {
            // Progress notifications beyond a rate are dropped.
            let _ = call.try_send(Note::Progress(params));
        }
    }

    fn on_tool_list_changed(
        &self,
        _: NotificationContext<RoleClient>,
    ) -> impl Future<Output = ()> + Send + '_ {
        self.changes.send_modify(|count| *count += 1);
        std::future::ready(())
    }

    #[expect(deprecated, reason = "servers of the older era log so")]
    fn on_logging_message(
        &self,
        params: rmcp::model::LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) -> impl Future<Output = ()> + Send + '_ {
        let text = cut(&params.data.to_string(), 2000);
        tracing::debug!(target: "mynah_mcp::log", server = self.server, "{text}");
        std::future::ready(())
    }
}
