//! The tools of the MCP servers in a file.

use std::time::Duration;

use mynah::Tool;
use mynah_mcp::{Approval, McpError, Server};

use crate::{
    AgentFile, FileError,
    file::{McpServer, Permission},
    place::suggestion,
};

impl AgentFile {
    /// Connects to the servers, and returns their tools with the permissions that they have without `approvals`.
    pub(crate) async fn servers(&self) -> Result<Vec<(Tool, Permission)>, FileError> {
        let mut offered = Vec::new();
        let wanted =
            self.spec.mcp.iter().filter(|(_, server)| server.permission != Permission::Deny);
        for (name, server) in wanted {
            let connection = self.server(name, server)?.connect().await;
            let connection = connection.map_err(|error| match error {
                McpError::UnknownTool { setting, tool, known, .. } => {
                    let known: Vec<&str> = known.iter().map(String::as_str).collect();
                    let why = format!("the server has no tool{}", suggestion(&tool, &known));
                    self.source.error(&["mcp", name, setting], why)
                }
                error => self.source.unreachable(&["mcp", name], error.to_string()),
            })?;
            offered.extend(connection.tools().into_iter().map(|tool| {
                // The client knows which tools of a trusted server only read.
                let asks = tool.spec().manual || tool.spec().approval == mynah::Approval::Ask;
                (tool, if asks { Permission::Ask } else { Permission::Allow })
            }));
        }
        Ok(offered)
    }

    fn server(&self, name: &str, spec: &McpServer) -> Result<Server, FileError> {
        let mut server = match (&*spec.command, &spec.url) {
            ([], Some(url)) => Server::http(url),
            ([_, ..], None) => Server::stdio(&spec.command).current_dir(self.path("")),
            _ => {
                let why = "give either a `command` or a `url`";
                return Err(self.source.error(&["mcp", name], why));
            }
        };
        server = server.name(name).exclude(&spec.exclude).trusted(spec.trusted);
        if let Some(prefix) = &spec.prefix {
            server = server.prefix(prefix);
        }
        if let Some(names) = &spec.include {
            server = server.include(names);
        }
        if let Some(seconds) = spec.timeout {
            let limit = Duration::from_secs(seconds.get().into());
            server = server.timeout(limit).connect_timeout(limit);
        }
        if spec.permission == Permission::Allow {
            server = server.approval(Approval::Never);
        }
        // What the file gives to all commands does not concern an address.
        let shared = self.spec.env.iter().filter(|_| spec.url.is_none());
        for variable in shared.chain(&spec.env) {
            server = server.env(variable, self.variable(variable, &["mcp", name, "env"])?);
        }
        if let Some(variable) = &spec.token_env {
            server = server.token(self.variable(variable, &["mcp", name, "token_env"])?);
        }
        Ok(server)
    }
}
