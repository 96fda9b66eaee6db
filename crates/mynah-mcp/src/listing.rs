//! The tools of a server as it lists them: fetched with limits, checked, pinned by digest.

use std::collections::{BTreeMap, HashSet};

use rmcp::{Peer, RoleClient, model};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::{McpError, Server, ServerLimits};

/// The tools of a server, as it listed them. Can be stored, so that tools are there without the server.
///
/// ```
/// use mynah_mcp::Listing;
/// use serde_json::json;
///
/// let stored = json!([{"name": "now", "description": "The time", "schema": {"type": "object"}}]);
/// let listing: Listing = serde_json::from_value(stored)?;
/// assert_eq!(listing.digests()["now"].len(), 64);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Listing {
    /// The tools, in the server's order.
    pub tools: Vec<ListedTool>,
}

/// A tool, as its server describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListedTool {
    /// The server's name for it.
    pub name: String,
    /// The description for the model.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of its arguments.
    pub schema: Value,
    /// JSON Schema of its structured result, if the server has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// What the server claims of its behaviour.
    #[serde(default, skip_serializing_if = "Hints::is_empty")]
    pub hints: Hints,
}

/// What a server claims of a tool. It counts only for servers that are marked as [trusted](crate::Server::trusted).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Hints {
    /// The tool changes nothing.
    #[serde(default)]
    pub read_only: bool,
    /// A second call with the same arguments changes nothing more.
    #[serde(default)]
    pub idempotent: bool,
}

impl Hints {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl ListedTool {
    /// SHA-256 over name, description, schema and hints, in hex. The order of members does not count.
    pub fn digest(&self) -> String {
        let told = json!([
            self.name,
            self.description,
            sorted(&self.schema),
            [self.hints.read_only, self.hints.idempotent]
        ]);
        hex_digest(told.to_string().as_bytes())
    }

    fn of(tool: model::Tool) -> Self {
        let object = |object: std::sync::Arc<model::JsonObject>| Value::Object((*object).clone());
        let hints = tool.annotations.as_ref();
        let hint = |read: fn(&model::ToolAnnotations) -> Option<bool>| {
            hints.and_then(read).unwrap_or_default()
        };
        Self {
            name: tool.name.into_owned(),
            description: tool.description.unwrap_or_default().into_owned(),
            schema: object(tool.input_schema),
            output_schema: tool.output_schema.map(object),
            hints: Hints {
                read_only: hint(|hints| hints.read_only_hint),
                idempotent: hint(|hints| hints.idempotent_hint),
            },
        }
    }

    /// Why the tool cannot be offered to a model, if so.
    pub(crate) fn problem(&self, limits: &ServerLimits) -> Option<String> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
        if self.name.is_empty() || self.name.len() > 128 || !self.name.chars().all(legal) {
            return Some("its name is not 1 to 128 of letters, digits, _ - . and /".to_owned());
        }
        if self.description.len() > limits.description_bytes {
            return Some(format!(
                "its description has more than {} bytes",
                limits.description_bytes
            ));
        }
        if !matches!(self.schema.get("type").and_then(Value::as_str), None | Some("object")) {
            return Some("its schema does not describe an object".to_owned());
        }
        for schema in [Some(&self.schema), self.output_schema.as_ref()].into_iter().flatten() {
            let mut left = limits.schema_nodes;
            if !fits(schema, limits.schema_depth, &mut left) {
                return Some(format!(
                    "a schema has more than {} values or {} levels",
                    limits.schema_nodes, limits.schema_depth
                ));
            }
        }
        jsonschema::validator_for(&self.schema).err().map(|error| {
            // Nothing is fetched, so a reference to another document is an error too.
            format!("its schema cannot be used: {error}")
        })
    }
}

impl Listing {
    /// The digest of each tool by its name, to be [pinned](crate::Server::pin).
    pub fn digests(&self) -> BTreeMap<String, String> {
        self.tools.iter().map(|tool| (tool.name.clone(), tool.digest())).collect()
    }

    /// The tool of this name.
    pub fn get(&self, name: &str) -> Option<&ListedTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Asks a server for its tools, page by page.
    pub(crate) async fn fetch(peer: &Peer<RoleClient>, server: &Server) -> Result<Self, McpError> {
        let limits = &server.limits;
        let exceeded = |what, limit| McpError::Limit { server: server.name.clone(), what, limit };
        let (mut tools, mut bytes, mut cursors) = (Vec::new(), 0, HashSet::new());
        let mut cursor: Option<String> = None;
        for _ in 0..limits.pages {
            let mut params = model::PaginatedRequestParams::default();
            params.cursor.clone_from(&cursor);
            let page = peer
                .list_tools(Some(params))
                .await
                .map_err(|error| McpError::of_request(server, "tools/list", error))?;
            for tool in page.tools {
                bytes += serde_json::to_string(&tool).map_or(0, |text| text.len());
                if bytes > limits.listing_bytes {
                    return Err(exceeded("the size of the tools", limits.listing_bytes));
                }
                if tools.len() == limits.tools {
                    return Err(exceeded("the number of tools", limits.tools));
                }
                tools.push(ListedTool::of(tool));
            }
            cursor = match page.next_cursor {
                None => return Ok(Self { tools }),
                Some(next) if !cursors.insert(next.clone()) => {
                    let why = "tools/list gives a page twice".to_owned();
                    return Err(McpError::Protocol { server: server.name.clone(), why });
                }
                next => next,
            };
        }
        Err(exceeded("the number of pages", limits.pages))
    }
}

pub(crate) fn hex_digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The same value with its members in order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members: BTreeMap<_, _> = members.iter().collect();
            let members = members.into_iter().map(|(name, value)| (name.clone(), sorted(value)));
            Value::Object(Map::from_iter(members))
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        value => value.clone(),
    }
}

/// Whether a value has at most this many levels and values.
fn fits(value: &Value, depth: usize, left: &mut usize) -> bool {
    let Some(rest) = left.checked_sub(1) else { return false };
    *left = rest;
    match value {
        Value::Object(members) => {
            depth > 0 && members.values().all(|value| fits(value, depth - 1, left))
        }
        Value::Array(items) => depth > 0 && items.iter().all(|item| fits(item, depth - 1, left)),
        _ => true,
    }
}
