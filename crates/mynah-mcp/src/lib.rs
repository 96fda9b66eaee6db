//! Tools from MCP servers, and tools as an MCP server.
//!
//! A [`Server`] is started or called, its tools are checked, and come out as ordinary [`Tool`](mynah_step::Tool)s:
//!
//! ```no_run
//! # async fn f() -> Result<(), mynah_mcp::McpError> {
//! let time = mynah_mcp::Server::stdio(["python", "-m", "mcp_server_time"]).name("time").connect().await?;
//! let tools = time.tools();
//! # Ok(()) }
//! ```
//!
//! The protocol is spoken in the revision 2026-07-28, and in 2025-11-25 and before. Which one a server speaks is found out.
//!
//! # Trust
//!
//! A server is a stranger. What it lists is bounded by [`ServerLimits`] and checked before a model sees it. What it claims of its
//! tools counts only if it is [trusted](Server::trusted): otherwise each call waits for a person. A tool whose description changes
//! after it was handed out is not called any more. A server that dies is started again, a few times.
//!
//! # Records
//!
//! Every tool is [recorded](mynah_step::Tool::recorded): a replay takes the results from the records and contacts no server. With a
//! stored [`Listing`] the tools are there without the server; see [`Server::with_listing`].
//!
//! # Questions and tasks
//!
//! A server that asks a person (*elicitation*) suspends the run. The answer of `resume` goes to the server, which continues the call.
//! A task that takes longer than [`Server::task_wait`] suspends the run too; any answer looks for its result again. Both survive a
//! restart of the process, because the run's record has all that is needed.
//!
//! # Serving
//!
//! [`serve`] offers Mynah's tools to any MCP client.

#![warn(missing_debug_implementations)]

mod call;
mod child;
mod client;
mod content;
mod elicit;
mod error;
mod flight;
mod http_client;
mod listing;
mod serve;
mod server;

pub use child::minimal_environment;
pub use client::Connection;
pub use error::McpError;
pub use listing::{Hints, ListedTool, Listing};
pub use mynah_step::Approval;
pub use serve::{ToolServer, serve};
pub use server::{Protocol, Server, ServerLimits};
