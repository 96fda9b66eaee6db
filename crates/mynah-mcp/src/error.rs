//! What can go wrong between a client and a server.

use std::time::Duration;

use mynah_data::{ErrorKind, ToolOutcome, ToolReason, ValidationReason};
use rmcp::{ServiceError, service::ClientInitializeError, transport::DynamicTransportError};
use serde_json::json;

use crate::{Server, http_client};

/// Why a server, or one of its tools, cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum McpError {
    /// The settings of a server are invalid.
    #[error("the settings of MCP server {server:?} are invalid: {why}")]
    #[non_exhaustive]
    Settings {
        /// The server's name.
        server: String,
        /// What is wrong.
        why: String,
    },
    /// `include` or `exclude` names a tool that the server does not have.
    #[error(
        "{setting} names the tool {tool:?}, which MCP server {server:?} does not have; it has {} \
         (names are without the prefix)",
        named(.known)
    )]
    #[non_exhaustive]
    UnknownTool {
        /// The server's name.
        server: String,
        /// `include` or `exclude`.
        setting: &'static str,
        /// The name that is unknown.
        tool: String,
        /// The tools of the server, by its own names.
        known: Vec<String>,
    },
    /// The command of a server could not be started.
    #[error(
        "MCP server {server:?} cannot be started: {command}: {why}; check the command and PATH"
    )]
    #[non_exhaustive]
    Start {
        /// The server's name.
        server: String,
        /// The command as it was started.
        command: String,
        /// The operating system's reason.
        why: String,
    },
    /// No connection came about.
    #[error("no connection to MCP server {server:?}: {why}{}", shown(.stderr))]
    #[non_exhaustive]
    Connect {
        /// The server's name.
        server: String,
        /// The reason.
        why: String,
        /// The last lines that the server wrote to its standard error.
        stderr: String,
    },
    /// The connection ended while a request was in flight. Whether the server did the work is unknown.
    #[error("the connection to MCP server {server:?} ended: {why}{}", shown(.stderr))]
    #[non_exhaustive]
    Closed {
        /// The server's name.
        server: String,
        /// The reason.
        why: String,
        /// The last lines that the server wrote to its standard error.
        stderr: String,
    },
    /// The server did not answer in time.
    #[error("MCP server {server:?} did not answer {method} within {} ms", .after.as_millis())]
    #[non_exhaustive]
    Timeout {
        /// The server's name.
        server: String,
        /// The request.
        method: &'static str,
        /// The limit that passed.
        after: Duration,
    },
    /// The server exceeds a limit.
    #[error("MCP server {server:?} exceeds a limit: {what} is more than {limit}")]
    #[non_exhaustive]
    Limit {
        /// The server's name.
        server: String,
        /// What exceeds its limit.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The server restarted or disconnected too often.
    #[error("MCP server {server:?} was connected {connects} times and is given up: {why}")]
    #[non_exhaustive]
    GivenUp {
        /// The server's name.
        server: String,
        /// How often it was connected.
        connects: u32,
        /// How the last connection ended or failed.
        why: String,
    },
    /// A tool cannot be offered to a model.
    #[error("tool {tool:?} of MCP server {server:?} cannot be used: {why}")]
    #[non_exhaustive]
    Tool {
        /// The server's name.
        server: String,
        /// The tool, as the server names it.
        tool: String,
        /// What is wrong with it.
        why: String,
    },
    /// A tool is not the one that was approved: its name, description, schema or annotations changed.
    #[error(
        "tool {tool:?} of MCP server {server:?} is not the one that was approved (digest {found}, \
         approved {approved}); look at it and approve it again"
    )]
    #[non_exhaustive]
    Changed {
        /// The server's name.
        server: String,
        /// The tool, as the server names it.
        tool: String,
        /// The digest that was approved; empty if none was.
        approved: String,
        /// The digest of the tool as it is now; empty if it is gone.
        found: String,
    },
    /// The server refused a request.
    #[error("MCP server {server:?} refused the request: {message} (code {code})")]
    #[non_exhaustive]
    Refused {
        /// The server's name.
        server: String,
        /// The code of JSON-RPC or MCP.
        code: i32,
        /// The server's message.
        message: String,
    },
    /// The server's answer does not follow the protocol.
    #[error("MCP server {server:?} broke the protocol: {why}")]
    #[non_exhaustive]
    Protocol {
        /// The server's name.
        server: String,
        /// What it did.
        why: String,
    },
}

impl McpError {
    /// The kind of the error: one word, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Settings { .. } => "settings",
            Self::UnknownTool { .. } => "unknown_tool",
            Self::Start { .. } => "start",
            Self::Connect { .. } => "connect",
            Self::Closed { .. } => "closed",
            Self::Timeout { .. } => "timeout",
            Self::Limit { .. } => "limit",
            Self::GivenUp { .. } => "given_up",
            Self::Tool { .. } => "tool",
            Self::Changed { .. } => "changed",
            Self::Refused { .. } => "refused",
            Self::Protocol { .. } => "protocol",
        }
    }

    /// Whether another attempt may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Closed { .. } | Self::Timeout { .. })
    }

    /// The error of a request.
    pub(crate) fn of_request(of: &Server, method: &'static str, error: ServiceError) -> Self {
        let server = of.name.clone();
        match error {
            ServiceError::McpError(error) => {
                Self::Refused { server, code: error.code.0, message: cut(&error.message, 2000) }
            }
            ServiceError::Timeout { timeout } => Self::Timeout { server, method, after: timeout },
            ServiceError::TransportSend(error) => {
                Self::Closed { server, why: of_transport(of, &error), stderr: String::new() }
            }
            ServiceError::TransportClosed => {
                let why = "the server closed it".to_owned();
                Self::Closed { server, why, stderr: String::new() }
            }
            error => Self::Protocol { server, why: format!("{method}: {error}") },
        }
    }

    /// The error of the first requests.
    pub(crate) fn of_start(server: &Server, error: &ClientInitializeError) -> Self {
        let why = cut(&of_handshake(server, error), 2000);
        Self::Connect { server: server.name.clone(), why, stderr: String::new() }
    }
}

fn of_handshake(server: &Server, error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => of_transport(server, error),
        // The first attempt only showed that the server does not speak the newer protocol.
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => {
            of_handshake(server, fallback)
        }
        ClientInitializeError::JsonRpcError(error) => {
            let (place, code) = (server.address(), error.code.0);
            format!("{place} refused the first request: {} (code {code})", error.message)
        }
        ClientInitializeError::ConnectionClosed(_) => {
            format!("{} ended the connection before it answered", server.address())
        }
        ClientInitializeError::ExpectedInitResponse(_)
        | ClientInitializeError::ExpectedInitResult(_) => {
            format!("{} answered the first request with something else", server.address())
        }
        error => format!("{}: {error}", server.address()),
    }
}

/// Why a message was not sent. The name of the transport is left out.
fn of_transport(server: &Server, error: &DynamicTransportError) -> String {
    let text = match error.error.downcast_ref() {
        Some(failed) => http_client::reason(&server.address(), failed),
        None => error.error.to_string(),
    };
    cut(&text, 2000)
}

/// The error of a failed call, for the model and the record.
impl From<McpError> for ToolOutcome {
    fn from(error: McpError) -> Self {
        let told = json!({"mcp": error.kind(), "message": error.to_string()});
        if error.is_transient() { Self::transient(told) } else { Self::error(told) }
    }
}

/// For `?` in functions that return [`mynah_data::Result`]. The error is the cause of the other.
impl From<McpError> for mynah_data::Error {
    fn from(error: McpError) -> Self {
        let kind = match error {
            McpError::Settings { .. } | McpError::UnknownTool { .. } => {
                ErrorKind::Validation(ValidationReason::InvalidOptions)
            }
            McpError::Tool { .. } | McpError::Changed { .. } => {
                ErrorKind::Validation(ValidationReason::InvalidTool)
            }
            McpError::Timeout { .. } => ErrorKind::Tool(ToolReason::Timeout),
            _ => ErrorKind::Tool(ToolReason::Failed),
        };
        Self::new(kind).with_message(error.to_string()).with("mcp", error.kind()).caused_by(error)
    }
}

/// The names of a server's tools.
fn named(tools: &[String]) -> String {
    match tools {
        [] => "none".to_owned(),
        tools => cut(&tools.join(", "), 2000),
    }
}

/// The end of an error's message with what the server wrote.
fn shown(stderr: &str) -> String {
    match stderr {
        "" => String::new(),
        stderr => format!("; it wrote:\n{stderr}"),
    }
}

/// Untrusted text, limited to this many bytes.
pub(crate) fn cut(text: &str, most: usize) -> String {
    match text.len() <= most {
        true => text.to_owned(),
        false => format!("{}…", &text[..text.floor_char_boundary(most)]),
    }
}
