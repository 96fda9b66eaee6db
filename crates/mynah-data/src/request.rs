//! Requests to a model.

use std::sync::Arc;

use serde::{Deserialize, Serialize, de};
use serde_json::{Value, json};

use crate::{Message, Messages, Metadata, ModelRef, Thread, ToolSpec, tool::SharedSpecs};

/// One call of a model.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::{Message, Request};
/// let mut request = Request::new([Message::user("hi")]).with_model("gpt-5.4-mini");
/// request.stream = true;
/// assert!(request.tools.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Request {
    /// The model; the engine's where it is none.
    #[serde(default)]
    pub model: Option<ModelRef>,
    /// The conversation.
    pub messages: Messages,
    /// The tools that the model may call.
    #[serde(default)]
    pub tools: SharedSpecs,
    /// Whether the model must call a tool, and which.
    #[serde(default)]
    pub tool_choice: Option<ToolChoice>,
    /// Sampling temperature, 0 to 2.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// The most tokens that the model may write.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// Whether the caller watches the stream. For the adapter's information only: every call is a stream.
    #[serde(default)]
    pub stream: bool,
    /// The form of the answer.
    #[serde(default)]
    pub response_format: Option<ResponseFormat>,
    /// Whether the answer is formatted by a second call after the tools.
    #[serde(default)]
    pub structured_finalize: bool,
    /// The provider's own parameters, passed on as they are.
    #[serde(default)]
    pub options: Metadata,
    /// How the provider should cache the prompt.
    #[serde(default)]
    pub prompt_cache: Option<PromptCache>,
    /// Anything else; never sent.
    #[serde(default)]
    pub metadata: Metadata,
}

impl Request {
    /// A request with nothing but messages.
    pub fn new<M: Into<Arc<Message>>>(messages: impl IntoIterator<Item = M>) -> Self {
        Self { messages: messages.into_iter().collect(), ..Self::default() }
    }

    /// The same request for this model.
    pub fn with_model(mut self, model: impl Into<ModelRef>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// The same request with this temperature.
    pub fn with_temperature(mut self, temperature: f64) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// The same request with this limit on the answer.
    pub fn with_max_tokens(mut self, max_tokens: u64) -> Self {
        self.max_tokens = Some(max_tokens);
        self
    }

    /// The same request with tools that are described and never run.
    pub fn with_tools(mut self, tools: impl IntoIterator<Item = impl Into<Arc<ToolSpec>>>) -> Self {
        self.tools = tools.into_iter().map(Into::into).collect();
        self
    }

    /// The same request, in which the model must or must not call a tool.
    pub fn with_tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = Some(choice);
        self
    }

    /// The same request for an answer in this form.
    pub fn with_response_format(mut self, format: ResponseFormat) -> Self {
        self.response_format = Some(format);
        self
    }

    /// The same request with these parameters of the provider, in place of others.
    pub fn with_options(mut self, options: Metadata) -> Self {
        self.options = options;
        self
    }

    /// The same request with a cached prompt.
    pub fn with_prompt_cache(mut self, cache: PromptCache) -> Self {
        self.prompt_cache = Some(cache);
        self
    }
}

/// Whether the model must call a tool, and which.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// No tool.
    None,
    /// Some tool.
    Required,
    /// This tool.
    Tool(String),
    /// A provider's own form, passed on as it is.
    Other(Metadata),
}

impl Serialize for ToolChoice {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::None => serializer.serialize_str("none"),
            Self::Required => serializer.serialize_str("required"),
            Self::Tool(name) => serializer.serialize_str(name),
            Self::Other(map) => map.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(match text.as_str() {
                "auto" => Self::Auto,
                "none" => Self::None,
                "required" => Self::Required,
                _ => Self::Tool(text),
            }),
            Value::Object(map) => Ok(match map.get("tool").and_then(Value::as_str) {
                Some(name) if map.len() == 1 => Self::Tool(name.to_owned()),
                _ => Self::Other(map),
            }),
            _ => {
                Err(de::Error::custom("expected auto, none, required, a tool's name or an object"))
            }
        }
    }
}

/// The form of the answer.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::ResponseFormat;
/// use serde_json::json;
/// let format = ResponseFormat::json_schema("person", json!({"type": "object"}));
/// let text = serde_json::to_string(&format)?;
/// assert_eq!(text, r#"{"type":"json_schema","name":"person","schema":{"type":"object"},"strict":true}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ResponseFormat {
    /// Free text.
    Text,
    /// Some JSON object.
    JsonObject,
    /// JSON that fits a schema.
    JsonSchema {
        /// A name for the schema.
        name: String,
        /// The schema.
        schema: Value,
        /// Whether the provider must enforce it.
        strict: bool,
    },
    /// A provider's own form, passed on as it is.
    Other(Metadata),
}

impl ResponseFormat {
    /// JSON that must fit a schema.
    pub fn json_schema(name: impl Into<String>, schema: Value) -> Self {
        Self::JsonSchema { name: name.into(), schema, strict: true }
    }

    /// JSON that should fit a schema.
    pub fn lenient_json_schema(name: impl Into<String>, schema: Value) -> Self {
        Self::JsonSchema { name: name.into(), schema, strict: false }
    }
}

impl Serialize for ResponseFormat {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text => serializer.serialize_str("text"),
            Self::JsonObject => json!({"type": "json_object"}).serialize(serializer),
            Self::JsonSchema { name, schema, strict } => {
                json!({"type": "json_schema", "name": name, "schema": schema, "strict": strict})
                    .serialize(serializer)
            }
            Self::Other(map) => map.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ResponseFormat {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) if text == "text" => Ok(Self::Text),
            Value::Object(map) => Ok(Self::from_map(map)),
            _ => Err(de::Error::custom("expected \"text\" or an object")),
        }
    }
}

impl ResponseFormat {
    fn from_map(mut map: Metadata) -> Self {
        match map.get("type").and_then(Value::as_str) {
            Some("json_object") if map.len() == 1 => Self::JsonObject,
            Some("json_schema") => {
                let strict = map.get("strict").map_or(Some(true), Value::as_bool);
                let expected = 3 + usize::from(map.contains_key("strict"));
                match (map.get("name").and_then(Value::as_str).map(str::to_owned), strict) {
                    (Some(name), Some(strict))
                        if map.len() == expected && map.contains_key("schema") =>
                    {
                        let schema = map.swap_remove("schema").unwrap_or_default();
                        Self::JsonSchema { name, schema, strict }
                    }
                    _ => Self::Other(map),
                }
            }
            _ => Self::Other(map),
        }
    }
}

/// How the provider should cache the prompt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PromptCache {
    /// A key that groups requests with the same beginning; the session's id where there is none.
    #[serde(default)]
    pub key: Option<String>,
    /// How long.
    #[serde(default)]
    pub retention: CacheRetention,
}

crate::words! {
    /// How long a prompt stays cached.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum CacheRetention {
        /// The provider's default, minutes.
        #[default]
        Short => "short",
        /// The provider's longest.
        Long => "long",
    }
}

impl From<Thread> for Request {
    fn from(thread: Thread) -> Self {
        Self { messages: thread.messages, ..Self::default() }
    }
}

impl From<&str> for Request {
    fn from(text: &str) -> Self {
        Self::new([Message::user(text)])
    }
}

impl From<String> for Request {
    fn from(text: String) -> Self {
        Self::new([Message::user(text)])
    }
}

impl From<Vec<Message>> for Request {
    fn from(messages: Vec<Message>) -> Self {
        Self::new(messages)
    }
}
