//! Storing an engine, and getting it back.

use std::{collections::HashMap, fmt, sync::Arc};

use mynah_data::{EngineReason, Error, Metadata, ModelRef, Result, ToolSpec};
use mynah_step::{Adapter, Handler, RetryPolicy, Tool, ToolExecutor, ToolResultEncoder};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, IgnoredAny},
};
use serde_json::Value;

use crate::{Options, engine::Engine, values::Values};

/// The param that is a field of a stored engine.
const RETRY: &str = "retry";

/// An engine as plain data. Code is referred to by name, and an [`EngineRegistry`] has the names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct EngineSpec {
    /// The adapter's name.
    pub adapter: Option<String>,
    /// The adapter's options.
    pub adapter_opts: Metadata,
    /// The model.
    pub model: Option<ModelRef>,
    /// The tools.
    pub tools: Vec<ToolEntry>,
    /// The executor's name; none for the default.
    pub tool_executor: Option<String>,
    /// The encoder's name; none for the default.
    pub tool_result_encoder: Option<String>,
    /// Defaults for the options of calls.
    pub params: Metadata,
    /// The policy for failed model calls: an object, a boolean or `"default"`; none for the adapter's own.
    pub retry: Option<Value>,
    /// What tools see.
    pub context: Metadata,
    /// Anything else.
    pub metadata: Metadata,
    #[serde(skip_serializing)]
    middleware: Middleware,
}

/// A name that is kept for later: engines have no middleware yet.
#[derive(Clone, Debug, Default, PartialEq)]
struct Middleware;

impl<'de> Deserialize<'de> for Middleware {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        match Vec::<IgnoredAny>::deserialize(deserializer)?.is_empty() {
            true => Ok(Self),
            false => Err(D::Error::custom(
                "`middleware` must be an empty list: it is reserved and not supported yet",
            )),
        }
    }
}

/// A tool as plain data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ToolEntry {
    /// Its description for the model.
    pub tool: ToolSpec,
    /// The name of its handler; none for a tool that has none.
    #[serde(default)]
    pub handler: Option<String>,
}

/// The code that stored engines name.
///
/// ```
/// use mynah::testing::Scripted;
/// use mynah::{Engine, EngineRegistry, Tool};
/// use serde_json::json;
/// # fn main() -> mynah::Result<()> {
///
/// let adapter = Scripted::default();
/// let echo = Tool::new("echo", "gives its arguments back", json!({})).handler(async |arguments, _| arguments);
/// let registry = EngineRegistry::new().adapter(adapter.clone()).tool("echo", &echo);
///
/// let engine = Engine::new(adapter).model("fake:m").tool(echo.registered_as("echo"));
/// let stored = serde_json::to_string(&engine.spec()?)?;
/// let restored = Engine::from_spec(&serde_json::from_str(&stored)?, &registry)?;
/// assert_eq!(restored.spec()?, engine.spec()?);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
#[must_use = "a registry does nothing unless an engine is made with it"]
pub struct EngineRegistry {
    adapters: HashMap<String, Arc<dyn Adapter>>,
    handlers: HashMap<String, Arc<dyn Handler>>,
    executors: HashMap<String, Arc<dyn ToolExecutor>>,
    encoders: HashMap<String, Arc<dyn ToolResultEncoder>>,
}

impl EngineRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// The registry with an adapter, under the adapter's own name.
    pub fn adapter(mut self, adapter: impl Adapter) -> Self {
        self.adapters.insert(adapter.name().to_owned(), Arc::new(adapter));
        self
    }

    /// The registry with a tool's handler, under this name.
    pub fn tool(mut self, name: &str, tool: &Tool) -> Self {
        if let Some(handler) = tool.get_handler() {
            self.handlers.insert(name.to_owned(), Arc::clone(handler));
        }
        self
    }

    /// The registry with an executor, under the executor's own name.
    pub fn tool_executor(mut self, executor: impl ToolExecutor) -> Self {
        self.executors.insert(executor.name().to_owned(), Arc::new(executor));
        self
    }

    /// The registry with an encoder, under the encoder's own name.
    pub fn tool_result_encoder(mut self, encoder: impl ToolResultEncoder) -> Self {
        self.encoders.insert(encoder.name().to_owned(), Arc::new(encoder));
        self
    }
}

impl fmt::Debug for EngineRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineRegistry")
            .field("adapters", &self.adapters.keys())
            .field("handlers", &self.handlers.keys())
            .field("executors", &self.executors.keys())
            .field("encoders", &self.encoders.keys())
            .finish()
    }
}

impl Engine {
    /// The engine as plain data.
    ///
    /// # Errors
    /// `invalid_engine` if a tool's handler is a function without a registered name, or if the engine has a function for
    /// [approvals](Engine::approval) or for [errors of tools](Engine::on_tool_error).
    pub fn spec(&self) -> Result<EngineSpec> {
        let (parts, options) = (&self.0, &self.0.options);
        let functions = [
            ("approval", options.approval.is_some()),
            ("on_tool_error", options.on_tool_error.is_some()),
        ];
        if let Some((field, _)) = functions.into_iter().find(|(_, is_there)| *is_there) {
            let why = "a function cannot be stored; store the engine without it, and add it to the restored one";
            return Err(invalid(field, &format!("{field}: {why}")));
        }
        let mut params = options.values.to_json();
        Ok(EngineSpec {
            adapter: parts.adapter.as_ref().map(|adapter| adapter.name().to_owned()),
            adapter_opts: parts.adapter_opts.clone(),
            model: parts.model.clone(),
            tools: options.tools.iter().enumerate().map(tool_entry).collect::<Result<_>>()?,
            tool_executor: options
                .tool_executor
                .as_ref()
                .map(|executor| executor.name().to_owned()),
            tool_result_encoder: options
                .tool_result_encoder
                .as_ref()
                .map(|encoder| encoder.name().to_owned()),
            retry: params.shift_remove(RETRY),
            params,
            context: (*parts.context).clone(),
            metadata: parts.metadata.clone(),
            middleware: Middleware,
        })
    }

    /// Builds an engine from plain data, with code from the registry.
    ///
    /// # Errors
    /// `invalid_engine`, naming the field, if the registry lacks an adapter, handler, executor or
    /// encoder, or if `retry` is not a policy.
    pub fn from_spec(spec: &EngineSpec, registry: &EngineRegistry) -> Result<Self> {
        let adapter = find(&registry.adapters, "adapter", spec.adapter.as_deref())?;
        let tool_executor =
            find(&registry.executors, "tool_executor", spec.tool_executor.as_deref())?;
        let tool_result_encoder =
            find(&registry.encoders, "tool_result_encoder", spec.tool_result_encoder.as_deref())?;
        let restore = |(index, entry): (usize, &ToolEntry)| {
            let field = format!("tools.{index}.handler");
            let handler = find(&registry.handlers, &field, entry.handler.as_deref())?;
            let tool = Tool::from_spec(entry.tool.clone());
            Ok(match (handler, &entry.handler) {
                (Some(handler), Some(name)) => tool.with_handler(handler).registered_as(name),
                _ => tool,
            })
        };
        if let Some(Err(why)) = spec.retry.as_ref().map(RetryPolicy::deserialize) {
            return Err(invalid(RETRY, &format!("retry: {why}")));
        }
        let tools: Vec<Tool> = spec.tools.iter().enumerate().map(restore).collect::<Result<_>>()?;
        Ok(Self::without_adapter().with(|parts| {
            parts.adapter = adapter;
            parts.adapter_opts = spec.adapter_opts.clone();
            parts.model = spec.model.clone();
            let mut values = Values::from_json(spec.params.clone());
            if let Some(policy) = spec.retry.clone() {
                values.set(RETRY, policy);
            }
            parts.options =
                Options { values, tools, tool_executor, tool_result_encoder, ..Options::new() };
            parts.context = Arc::new(spec.context.clone());
            parts.metadata = spec.metadata.clone();
        }))
    }
}

fn tool_entry((index, tool): (usize, &Tool)) -> Result<ToolEntry> {
    match (tool.get_handler(), tool.registered_name()) {
        (Some(_), None) => {
            let why = format!(
                "the handler of tool {:?} is a function without a registered name; Tool::registered_as gives it one",
                tool.name()
            );
            Err(invalid(&format!("tools.{index}.handler"), &why).with("tool_name", tool.name()))
        }
        (_, name) => {
            Ok(ToolEntry { tool: (**tool.spec()).clone(), handler: name.map(str::to_owned) })
        }
    }
}

fn find<T: ?Sized>(
    known: &HashMap<String, Arc<T>>,
    field: &str,
    name: Option<&str>,
) -> Result<Option<Arc<T>>> {
    let Some(name) = name else { return Ok(None) };
    known.get(name).cloned().map(Some).ok_or_else(|| {
        invalid(field, &format!("{field}: {name:?} is not registered")).with("name", name)
    })
}

fn invalid(field: &str, why: &str) -> Error {
    Error::engine(EngineReason::InvalidEngine)
        .with_message(format!("engine error: invalid_engine: {why}"))
        .with("field", field)
}
