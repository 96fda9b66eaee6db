//! The settings of a server.

use std::{collections::BTreeMap, ffi::OsString, fmt, path::PathBuf, sync::Arc, time::Duration};

use mynah_step::{Approval, Tool};
use secrecy::SecretString;

use crate::{
    Connection, Listing, McpError, call, child::Start, client::Client, listing::ListedTool,
};

/// A server that offers tools: a command that speaks MCP on its standard input and output, or an address.
///
/// ```no_run
/// use std::time::Duration;
/// use mynah_mcp::{Approval, Server};
///
/// # async fn f() -> Result<(), mynah_mcp::McpError> {
/// let git = Server::stdio(["python", "-m", "mcp_server_git"])
///     .name("git")
///     .exclude(["git_reset"])
///     .inherit_env("GIT_AUTHOR_NAME")
///     .timeout(Duration::from_secs(20))
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a server does nothing before it is connected"]
pub struct Server {
    pub(crate) place: Place,
    pub(crate) name: String,
    pub(crate) prefix: Option<String>,
    pub(crate) protocol: Protocol,
    pub(crate) limits: ServerLimits,
    pub(crate) timeout: Duration,
    pub(crate) max_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) task_wait: Option<Duration>,
    include: Option<Vec<String>>,
    exclude: Vec<String>,
    trusted: bool,
    approval: Approval,
    pins: Option<BTreeMap<String, String>>,
    /// A setting that this kind of server does not have, and the kind that has it.
    misplaced: Option<(&'static str, &'static str)>,
}

#[derive(Clone)]
pub(crate) enum Place {
    Stdio(Start),
    Http { url: String, token: Option<SecretString>, headers: Vec<(String, SecretString)> },
}

/// Which revision of the protocol is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// The server is asked which revision it speaks.
    #[default]
    Auto,
    /// 2025-11-25 and before: a handshake and a session.
    Stateful,
    /// 2026-07-28: no handshake and no session.
    Stateless,
}

/// Limits on what a server may do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Pages of the list of tools: 100.
    pub pages: usize,
    /// Tools: 500.
    pub tools: usize,
    /// Bytes of all tools together: 4 MiB.
    pub listing_bytes: usize,
    /// Bytes of a tool's description: 32 KiB.
    pub description_bytes: usize,
    /// Levels of a schema: 64.
    pub schema_depth: usize,
    /// Values in a schema: 10,000.
    pub schema_nodes: usize,
    /// Bytes of one message: 16 MiB.
    pub message_bytes: usize,
    /// Bytes of a result's text that the model sees: 100,000. The rest is cut off, with a note for
    /// the model.
    pub output_bytes: usize,
    /// Bytes of one image as base64: 5 MiB. A larger one is left out, with a note for the model.
    pub image_bytes: usize,
    /// Connections in a row that end without an answered call: 5.
    pub reconnects: u32,
    /// The pause before the second of them, which doubles: 250 ms.
    pub reconnect_delay: Duration,
    /// The longest pause: 10 s.
    pub max_reconnect_delay: Duration,
    /// Questions of one call to a person: 10.
    pub questions: u32,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            pages: 100,
            tools: 500,
            listing_bytes: 4 << 20,
            description_bytes: 32 << 10,
            schema_depth: 64,
            schema_nodes: 10_000,
            message_bytes: 16 << 20,
            output_bytes: 100_000,
            image_bytes: 5 << 20,
            reconnects: 5,
            reconnect_delay: Duration::from_millis(250),
            max_reconnect_delay: Duration::from_secs(10),
            questions: 10,
        }
    }
}

impl Server {
    /// A server that is a command. It gets a minimal environment ([`minimal_environment`](crate::minimal_environment))
    /// and a process group of its own, which is killed when the last tool is dropped.
    pub fn stdio<W: Into<OsString>>(command: impl IntoIterator<Item = W>) -> Self {
        let command: Vec<OsString> = command.into_iter().map(Into::into).collect();
        let program = command.first().map(|word| word.to_string_lossy().into_owned());
        Self::new(Place::Stdio(Start { command, ..Start::default() }), program.unwrap_or_default())
    }

    /// A server at an address, such as `https://mcp.example.com/mcp`.
    pub fn http(url: impl Into<String>) -> Self {
        let url = url.into();
        let name = url.clone();
        Self::new(Place::Http { url, token: None, headers: Vec::new() }, name)
    }

    fn new(place: Place, name: String) -> Self {
        Self {
            place,
            name,
            prefix: None,
            protocol: Protocol::Auto,
            limits: ServerLimits::default(),
            timeout: Duration::from_secs(60),
            max_timeout: Duration::from_secs(600),
            connect_timeout: Duration::from_secs(30),
            task_wait: None,
            include: None,
            exclude: Vec::new(),
            trusted: false,
            approval: Approval::Ask,
            pins: None,
            misplaced: None,
        }
    }

    /// Names the server, in errors and in front of the names of its tools: `time` makes `convert` `time_convert`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self.prefix.get_or_insert_with(|| format!("{}_", self.name));
        self
    }

    /// Puts this text in front of the names of its tools. May be empty.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Offers these tools and no others, by the server's own names, without the prefix.
    pub fn include<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.include.get_or_insert_default().extend(names.into_iter().map(Into::into));
        self
    }

    /// Does not offer these tools, by the server's own names, without the prefix.
    pub fn exclude<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.exclude.extend(names.into_iter().map(Into::into));
        self
    }

    /// Sets a variable in the environment of the command.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let Some(start) = self.start_for("env") {
            start.set.push((name.into(), value.into()));
        }
        self
    }

    /// Passes a variable of this process's environment on to the command, if it is set.
    pub fn inherit_env(mut self, name: impl Into<String>) -> Self {
        if let Some(start) = self.start_for("inherit_env") {
            start.inherited.push(name.into());
        }
        self
    }

    /// Starts the command in this folder.
    pub fn current_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        if let Some(start) = self.start_for("current_dir") {
            start.folder = Some(folder.into());
        }
        self
    }

    /// How the command is started. A setting of commands is refused for an address, when it is connected.
    fn start_for(&mut self, setting: &'static str) -> Option<&mut Start> {
        let Place::Stdio(start) = &mut self.place else {
            self.misplaced = Some((setting, "a command"));
            return None;
        };
        Some(start)
    }

    /// Sends this bearer token to an address.
    pub fn token(mut self, secret: impl Into<String>) -> Self {
        match &mut self.place {
            Place::Http { token, .. } => *token = Some(SecretString::from(secret.into())),
            Place::Stdio(_) => self.misplaced = Some(("token", "an address")),
        }
        self
    }

    /// Sends this header to an address.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        match &mut self.place {
            Place::Http { headers, .. } => {
                headers.push((name.into(), SecretString::from(value.into())));
            }
            Place::Stdio(_) => self.misplaced = Some(("header", "an address")),
        }
        self
    }

    /// The revision of the protocol, if it is not to be found out.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// How long a call may be silent: 60 s. A progress notification restarts the time.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self.max_timeout = self.max_timeout.max(limit);
        self
    }

    /// How long a call may take in all: 10 minutes.
    pub fn max_timeout(mut self, limit: Duration) -> Self {
        self.max_timeout = limit;
        self.timeout = self.timeout.min(limit);
        self
    }

    /// How long it may take to connect and to list the tools: 30 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long a call waits for a task of the server before the run is suspended. By default it is
    /// the time that a call may be silent. With zero the run is suspended at once, so that the task
    /// is found again even if the process dies.
    pub fn task_wait(mut self, limit: Duration) -> Self {
        self.task_wait = Some(limit);
        self
    }

    /// Changes the limits.
    ///
    /// ```
    /// let server = mynah_mcp::Server::http("https://mcp.example.com/mcp").limits(|limits| limits.tools = 20);
    /// ```
    pub fn limits(mut self, change: impl FnOnce(&mut ServerLimits)) -> Self {
        change(&mut self.limits);
        self
    }

    /// Believes what the server claims of its tools: read-only ones need no approval, and idempotent ones may be run twice.
    pub fn trusted(mut self, trusted: bool) -> Self {
        self.trusted = trusted;
        self
    }

    /// Whether a person must approve calls: [`Approval::Ask`] if not set. Read-only tools of a [trusted](Self::trusted) server do not ask.
    pub fn approval(mut self, approval: Approval) -> Self {
        self.approval = approval;
        self
    }

    /// Offers only tools that have these digests; see [`Listing::digests`]. Others are [refused](Connection::refused).
    pub fn pin<N: Into<String>, D: Into<String>>(
        mut self,
        digests: impl IntoIterator<Item = (N, D)>,
    ) -> Self {
        let digests = digests.into_iter().map(|(name, digest)| (name.into(), digest.into()));
        self.pins.get_or_insert_default().extend(digests);
        self
    }

    /// Connects to the server and asks for its tools.
    ///
    /// # Errors
    /// A server that cannot be reached, or exceeds a limit; a name in [`include`](Self::include) or
    /// [`exclude`](Self::exclude) that the server does not have. A single tool that cannot be used is no error; see
    /// [`Connection::refused`].
    pub async fn connect(self) -> Result<Connection, McpError> {
        let client = Arc::new(Client::new(self.checked()?)?);
        let listing = client.listing().await?;
        client.server.check_names(&listing)?;
        Ok(Connection::new(client, listing))
    }

    /// Refuses a setting that would have no effect.
    fn checked(self) -> Result<Self, McpError> {
        match self.misplaced {
            None => Ok(self),
            Some((setting, kind)) => {
                let why = format!("{setting} applies only to a server that is {kind}");
                Err(McpError::Settings { server: self.name, why })
            }
        }
    }

    /// A misspelt name would otherwise leave a tool out, or offer one that must not be offered.
    fn check_names(&self, listing: &Listing) -> Result<(), McpError> {
        let included = self.include.iter().flatten().map(|tool| ("include", tool));
        let excluded = self.exclude.iter().map(|tool| ("exclude", tool));
        match included.chain(excluded).find(|(_, tool)| listing.get(tool).is_none()) {
            None => Ok(()),
            Some((setting, tool)) => Err(McpError::UnknownTool {
                server: self.name.clone(),
                setting,
                tool: tool.clone(),
                known: listing.tools.iter().map(|tool| tool.name.clone()).collect(),
            }),
        }
    }

    /// The tools of a stored listing. The server is not contacted before one of them is called, so a run can be replayed when the
    /// server is gone. A tool that is not what the listing says is not called.
    ///
    /// # Errors
    /// Invalid settings.
    pub fn with_listing(self, listing: Listing) -> Result<Connection, McpError> {
        Ok(Connection::new(Arc::new(Client::new(self.checked()?)?), listing))
    }

    /// The address for errors: without a user, a password and a query, which may be secrets.
    pub(crate) fn address(&self) -> String {
        let Place::Http { url, .. } = &self.place else { return "its command".to_owned() };
        let parsed = reqwest::Url::parse(url).ok();
        parsed.map_or_else(String::new, |url| {
            format!("{}{}", url.origin().ascii_serialization(), url.path())
        })
    }

    /// The tools for the model, and the reasons for leaving others away.
    pub(crate) fn offered(client: &Arc<Client>, listing: &Listing) -> (Vec<Tool>, Vec<McpError>) {
        let server = &client.server;
        let (mut tools, mut refused): (Vec<Tool>, Vec<McpError>) = Default::default();
        let mut seen = std::collections::HashSet::new();
        for listed in &listing.tools {
            let refuse = |why: String| {
                let (server, tool) = (server.name.clone(), listed.name.clone());
                McpError::Tool { server, tool, why }
            };
            let wanted = server.include.as_ref().is_none_or(|names| names.contains(&listed.name));
            if !seen.insert(&listed.name) {
                refused.push(refuse("it is listed twice".to_owned()));
            } else if !wanted || server.exclude.contains(&listed.name) {
                continue;
            } else if let Some(why) = listed.problem(&server.limits) {
                refused.push(refuse(why));
            } else if let Some(changed) = server.unpinned(listed) {
                refused.push(changed);
            } else {
                let tool = server.tool(client, listed);
                match tools.iter().any(|other| other.name() == tool.name()) {
                    true => refused.push(refuse("another tool has its name for the model".into())),
                    false => tools.push(tool),
                }
            }
        }
        (tools, refused)
    }

    /// The refusal of a tool that is not pinned as it is.
    fn unpinned(&self, listed: &ListedTool) -> Option<McpError> {
        let pins = self.pins.as_ref()?;
        let (found, approved) = (listed.digest(), pins.get(&listed.name).cloned());
        let approved = approved.unwrap_or_default();
        let (server, tool) = (self.name.clone(), listed.name.clone());
        (approved != found).then_some(McpError::Changed { server, tool, approved, found })
    }

    fn tool(&self, client: &Arc<Client>, listed: &ListedTool) -> Tool {
        let name = self.name_for_model(&listed.name);
        let tool = Tool::new(name, &listed.description, listed.schema.clone())
            .handler(call::handler(client, listed))
            // The limits of a call are kept by the call itself; this one catches what it does not.
            .timeout(self.max_timeout + self.connect_timeout + Duration::from_secs(5))
            .recorded();
        let hints = if self.trusted { listed.hints } else { Default::default() };
        let tool = match hints.idempotent || hints.read_only {
            true => tool.idempotent(2),
            false => tool,
        };
        match self.approval {
            Approval::Ask if hints.read_only => tool,
            approval => tool.approval(approval),
        }
    }

    /// The name that the model calls: 1 to 64 of letters, digits, `_` and `-`.
    fn name_for_model(&self, name: &str) -> String {
        let legal = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let whole = format!("{}{name}", self.prefix.as_deref().unwrap_or_default());
        let mut legible: String = whole.chars().map(legal).collect();
        if legible.len() > 64 {
            let digest = crate::listing::hex_digest(whole.as_bytes());
            legible.truncate(55);
            legible = format!("{legible}_{}", &digest[..8]);
        }
        legible
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("name", &self.name).finish_non_exhaustive()
    }
}
