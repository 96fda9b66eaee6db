//! Agents from files: a model, a prompt, tools and limits in a few lines of TOML.
//!
//! ```toml
//! model = "anthropic:claude-sonnet-5"
//! fallback = ["openai:gpt-5.4-mini"]
//! system = "You help with this repository."
//! budget = { usd = 0.50, turns = 30 }
//!
//! [tools]
//! files = { root = ".", write = "ask" }
//! shell = "ask"
//!
//! [mcp.git]
//! command = ["python", "-m", "mcp_server_git", "--repository", "."]
//! include = ["git_log", "git_diff"]
//! ```
//!
//! An agent may have others: `[agents.NAME]` describes one, or names its file.
//!
//! [`Agent::from_file`] reads such a file and makes an [`Engine`] of it. The program adds what it has beyond the file:
//!
//! ```no_run
//! use mynah::Tool;
//! use mynah_agent::Agent;
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let invoices = Tool::new("invoices", "Lists open invoices", json!({"type": "object"})).handler(async |_, _| json!([17]));
//! let engine = Agent::from_file("agent.toml").await?.engine.tool(invoices);
//! println!("{}", engine.chat("What is open?").await?.text());
//! # Ok(()) }
//! ```
//!
//! Paths in a file are relative to the folder of the file. `docs/agents.md` describes every key, and [`schema`] is their JSON Schema.

mod agents;
pub mod answer;
mod build;
mod file;
pub mod golden;
mod place;
mod prompt;
mod servers;
pub mod testing;
mod warnings;

use std::path::Path;

use mynah::Engine;
use serde_json::Value;

pub use agents::EngineOf;
pub use build::{AgentFile, default_context};
pub use place::FileError;

/// An agent: an engine with a name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Agent {
    /// The name that the file gives it, or else the file's own name without its extension.
    pub name: String,
    /// The name of its first model, as `anthropic:claude-sonnet-5` or `scripted:script.json`: its own, or that of the agent above.
    pub model: String,
    /// The engine: model, system prompt, params, tools, budget and response format.
    pub engine: Engine,
    /// The agents that it can call. Its engine has a tool for each.
    pub agents: Vec<Agent>,
    /// What will probably fail when it runs: a key that is not set, a model that its provider ends or that the catalog does not know, a
    /// param whose name looks misspelt.
    pub warnings: Vec<FileError>,
}

impl Agent {
    /// Reads an agent from a file and connects to its MCP servers. [`AgentFile`] sets variables of its prompt first.
    ///
    /// # Errors
    /// A file that cannot be read or does not fit, or a server that cannot be reached; the error names the file, the line and the key.
    pub async fn from_file(path: impl AsRef<Path>) -> Result<Self, FileError> {
        AgentFile::read(path)?.build().await
    }
}

/// The JSON Schema of agent files, for editors. It is published as `docs/agent.schema.json`.
pub fn schema() -> Value {
    schemars::schema_for!(file::Spec).to_value()
}

/// Compiles the code of the chapter.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/agents.md")]
mod book {}
