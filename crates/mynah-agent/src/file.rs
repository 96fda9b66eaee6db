//! The keys of an agent file. Their doc comments are the descriptions in the published JSON Schema.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt,
    num::{NonZeroU32, NonZeroU64},
};

use mynah::{
    Catalog, ModelRef, Pricing,
    adapters::{http::HttpAdapter, keys::Keys, presets::PRESETS},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, IntoDeserializer as _, value::MapAccessDeserializer},
};
use serde_json::{Map, Value};

use crate::place::{near, suggestion};

/// Declares a table that describes an agent: its own keys, and those that all such tables have.
macro_rules! agent_table {
    ($(#[$attribute:meta])* $name:ident { $($own:tt)* }) => {
        #[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
        $(#[$attribute])*
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($own)*
            /// What the agent does. The model of an agent that has this one reads it to decide when to call it.
            pub(crate) description: Option<String>,
            /// Fallback models, in order, for when the one before cannot be reached.
            #[serde(default)]
            pub(crate) fallback: Vec<Model>,
            /// Instructions to the model: a text, or a file that holds it. `{{name}}` stands for a variable.
            pub(crate) system: Option<Prompt>,
            /// Variables of the instructions, with their values. `--var NAME=VALUE` overrides them.
            #[serde(default)]
            pub(crate) vars: BTreeMap<String, String>,
            /// Settings of the model call, such as `temperature` and `max_tokens`, and any of the provider's own.
            #[serde(default)]
            pub(crate) params: BTreeMap<String, Value>,
            /// Ready-made tools.
            #[serde(default)]
            pub(crate) tools: Tools,
            /// Permissions by the name of a tool, such as `write_file`. They replace the permission that the tool has otherwise.
            #[serde(default)]
            pub(crate) approvals: BTreeMap<String, Permission>,
            /// What a run may spend.
            #[serde(default)]
            pub(crate) budget: Limits,
            /// What happens with a conversation that no longer fits the model's context window; `drop` by default.
            pub(crate) context: Option<Context>,
            /// The form of the answer.
            pub(crate) output: Option<Output>,
            /// Names of environment variables that commands of the shell and MCP servers get. Never values.
            #[serde(default)]
            pub(crate) env: Vec<String>,
            /// MCP servers, by name.
            #[serde(default)]
            pub(crate) mcp: BTreeMap<String, McpServer>,
            /// Agents that this one can call, by the names of their tools.
            #[serde(default)]
            pub(crate) agents: BTreeMap<String, SubAgent>,
            /// How deep agents may be nested beneath this one; 4 by default, 8 at most.
            #[schemars(range(max = 8))]
            pub(crate) agent_depth: Option<u32>,
        }
    };
}

agent_table! {
    /// An agent: a model, a prompt, tools and limits.
    #[schemars(title = "Mynah agent")]
    Spec {
        /// The agent's name. By default the file's name without its extension.
        pub(crate) name: Option<String>,
        /// The model to use: ADAPTER:MODEL.
        pub(crate) model: Model,
    }
}

agent_table! {
    /// An agent that another one can call: the file that describes it, or the keys of such a file.
    #[derive(Default)]
    SubAgent {
        /// The agent file, relative to this one.
        pub(crate) file: Option<String>,
        /// Whether the agent takes the conversation over and answers the user. Otherwise it works on a task and reports to the agent that
        /// called it.
        #[serde(default)]
        pub(crate) handoff: bool,
        /// How long it may work, in seconds; 3600 by default.
        #[schemars(range(min = 1))]
        pub(crate) timeout: Option<NonZeroU32>,
        /// The model that is asked; by default that of the agent above, with its fallbacks.
        pub(crate) model: Option<Model>,
    }
}

impl SubAgent {
    /// Whether the keys of the agent stand here, and not in a file.
    pub(crate) fn is_inline(&self) -> bool {
        let Self { file, handoff, timeout, description, .. } = self.clone();
        *self != Self { file, handoff, timeout, description, ..Self::default() }
    }

    /// The agent that is described here.
    pub(crate) fn spec(&self, above: &Spec) -> Spec {
        let all = self.clone();
        let (model, fallback) = match all.model {
            Some(model) => (model, all.fallback),
            None => (above.model.clone(), above.fallback.clone()),
        };
        Spec {
            name: None,
            model,
            description: all.description,
            fallback,
            system: all.system,
            vars: all.vars,
            params: all.params,
            tools: all.tools,
            approvals: all.approvals,
            budget: all.budget,
            context: all.context,
            output: all.output,
            env: all.env,
            mcp: all.mcp,
            agents: all.agents,
            agent_depth: all.agent_depth,
        }
    }
}

/// What happens with a conversation that no longer fits: a word, or a table with more settings.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Context {
    /// What happens with the oldest messages.
    Short(Older),
    /// More settings.
    Table(ContextTable),
}

/// What happens with the oldest messages when a conversation no longer fits. Old tool results are cleared first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Older {
    /// They are left out of requests.
    #[default]
    Drop,
    /// The model summarises them, which is a call of its own.
    Summarise,
    /// Nothing: the whole conversation is sent.
    Keep,
}

/// Settings for a conversation that no longer fits.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContextTable {
    /// What happens with the oldest messages.
    #[serde(default)]
    pub(crate) older: Older,
    /// How many tokens a prompt may have; by default three quarters of the model's context window, and 32000 if that is not known.
    #[schemars(range(min = 1))]
    pub(crate) max_tokens: Option<NonZeroU64>,
    /// How many of the last answers stay whole, with their tool results; 4 by default.
    pub(crate) keep_turns: Option<usize>,
    /// Whether old tool results are cleared before messages are left out; true by default.
    pub(crate) clear_tool_results: Option<bool>,
}

/// A model: its name, or a table with more about it.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Model {
    /// ADAPTER:MODEL, such as `anthropic:claude-sonnet-5`.
    Short(String),
    /// More about a model.
    Table(ModelTable),
}

impl Model {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Short(name) | Self::Table(ModelTable { name, .. }) => name,
        }
    }

    /// The model with its price and context window, from the file or the catalog.
    pub(crate) fn informed(&self, mut model: ModelRef) -> ModelRef {
        if let Self::Table(ModelTable { price, context_window, .. }) = self {
            if let Some(price) = price {
                let mut pricing = Pricing::new(price.input, price.output);
                pricing.cached_input = price.cached_input;
                model.pricing = Some(pricing);
            }
            let window = context_window.map(|window| ("context".to_owned(), window.get().into()));
            model.limits.extend(window);
        }
        Catalog::built_in().inform(model)
    }

    /// The adapter that calls the model, and what is known of it.
    ///
    /// # Errors
    /// Why it cannot be called.
    pub(crate) fn adapter(&self) -> Result<(HttpAdapter, ModelRef), String> {
        let wrong = |error: mynah::Error| error.to_string();
        let named = HttpAdapter::for_model(self.name());
        let (mut adapter, id) = named.map_err(|error| match nearest_adapter(self.name()) {
            Some(near) => format!("no adapter is named{near}"),
            None => error.to_string(),
        })?;
        if let Self::Table(ModelTable { base_url, api_key_env, price, .. }) = self {
            if let Some(url) = base_url {
                adapter = adapter.with_base_url(url).map_err(wrong)?;
            }
            if let Some(variable) = api_key_env {
                adapter = adapter.with_keys(Keys::new().with_variable(variable));
            }
            let is_price = |price: f64| price.is_finite() && price >= 0.0;
            if let Some(Price { input, output, cached_input }) = price
                && ![*input, *output, cached_input.unwrap_or(0.0)].into_iter().all(is_price)
            {
                return Err("give a `price` in dollars, 0 or more".to_owned());
            }
        }
        Ok((adapter, self.informed(id)))
    }
}

/// The adapter that a name was probably meant to have, if it names one that does not exist.
pub(crate) fn nearest_adapter(model: &str) -> Option<String> {
    let (adapter, _) = model.split_once(':')?;
    let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
    near(adapter, &names).filter(|near| *near != adapter).map(|_| suggestion(adapter, &names))
}

/// A model with its server, price and context window.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelTable {
    /// ADAPTER:MODEL, such as `anthropic:claude-sonnet-5`.
    pub(crate) name: String,
    /// The server to call instead of the adapter's own.
    pub(crate) base_url: Option<String>,
    /// The environment variable that holds the key, instead of the adapter's own.
    pub(crate) api_key_env: Option<String>,
    /// What tokens cost; by default the price in the catalog.
    pub(crate) price: Option<Price>,
    /// How many tokens a prompt and its answer may have; by default the number in the catalog.
    #[schemars(range(min = 1))]
    pub(crate) context_window: Option<NonZeroU64>,
}

/// What tokens cost, in US dollars per million.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Price {
    /// Input tokens.
    #[schemars(range(min = 0.0))]
    pub(crate) input: f64,
    /// Output tokens.
    #[schemars(range(min = 0.0))]
    pub(crate) output: f64,
    /// Input tokens from the provider's cache; by default as other input.
    #[schemars(range(min = 0.0))]
    pub(crate) cached_input: Option<f64>,
}

/// Instructions to the model.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Prompt {
    /// The instructions.
    Short(String),
    /// The file that holds them.
    Table(PromptFile),
}

/// A file that holds instructions.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PromptFile {
    /// The path, relative to the agent file.
    pub(crate) file: String,
}

/// Whether a tool may be used. `true` is `allow`, `false` is `deny`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Permission {
    /// A person approves each call.
    Ask,
    /// Calls run without a question.
    Allow,
    /// The model is not offered the tool.
    #[default]
    Deny,
}

impl Permission {
    const NAMES: [&str; 3] = ["ask", "allow", "deny"];
}

impl<'de> Deserialize<'de> for Permission {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Permission;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"ask\", \"allow\", \"deny\", true or false")
            }

            fn visit_bool<E>(self, allowed: bool) -> Result<Permission, E> {
                Ok(if allowed { Permission::Allow } else { Permission::Deny })
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Permission, E> {
                match name {
                    "ask" => Ok(Permission::Ask),
                    "allow" => Ok(Permission::Allow),
                    "deny" => Ok(Permission::Deny),
                    name => Err(E::unknown_variant(name, &Permission::NAMES)),
                }
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Permission {
    fn schema_name() -> Cow<'static, str> {
        "Permission".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "ask: a person approves each call. allow or true: calls run without a question. deny or false: the model is not offered the tool.",
            "enum": ["ask", "allow", "deny", true, false],
        })
    }
}

/// Ready-made tools. A tool that is not named is not offered to the model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tools {
    /// Reads, searches and writes the files of a folder.
    pub(crate) files: Option<Files>,
    /// Runs commands. They have all rights of this program.
    pub(crate) shell: Option<Shell>,
    /// Reads web pages on the public internet.
    #[serde(default)]
    pub(crate) fetch: Permission,
    /// Evaluates arithmetic expressions.
    #[serde(default)]
    pub(crate) calculator: Permission,
    /// Returns the date and time.
    #[serde(default)]
    pub(crate) now: Permission,
    /// Asks the user a question.
    #[serde(default)]
    pub(crate) ask_user: bool,
}

/// The file tools.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Files {
    /// The folder, relative to the agent file. The tools cannot leave it.
    pub(crate) root: String,
    /// Whether files may be written; `deny` by default.
    #[serde(default)]
    pub(crate) write: Permission,
}

/// The shell: a permission, or a table with more settings.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Shell {
    /// Whether commands may run.
    Short(Permission),
    /// More settings.
    Table(ShellTable),
}

/// Settings of the shell.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShellTable {
    /// Whether commands may run; `ask` by default.
    #[serde(default = "ask")]
    pub(crate) permission: Permission,
    /// The folder in which commands run, relative to the agent file; its own folder by default.
    pub(crate) dir: Option<String>,
    /// How long a command may take, in seconds; 60 by default.
    #[schemars(range(min = 1))]
    pub(crate) timeout: Option<NonZeroU32>,
}

fn ask() -> Permission {
    Permission::Ask
}

/// What a run may spend. A run that passes a limit ends, and can be resumed with a larger one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    /// Dollars. The price of the model must be known.
    #[schemars(range(min = 0.0))]
    pub(crate) usd: Option<f64>,
    /// Model calls; 50 by default.
    #[schemars(range(min = 1))]
    pub(crate) turns: Option<u32>,
    /// Tool calls.
    pub(crate) tool_calls: Option<u32>,
    /// Input tokens.
    pub(crate) input_tokens: Option<u64>,
    /// Output tokens.
    pub(crate) output_tokens: Option<u64>,
    /// Tokens in all.
    pub(crate) total_tokens: Option<u64>,
    /// Seconds from the start of the run.
    pub(crate) seconds: Option<u32>,
    /// Whether the model reads in each request what is left.
    #[serde(default)]
    pub(crate) note: bool,
}

/// The form of the answer.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Output {
    /// The JSON Schema of the answer: a table, or the path of a JSON file relative to the agent file.
    pub(crate) schema: OutputSchema,
    /// A name for the schema; `answer` by default.
    pub(crate) name: Option<String>,
}

/// The JSON Schema of an answer.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum OutputSchema {
    /// The path of a JSON file.
    Short(String),
    /// The schema.
    Table(Map<String, Value>),
}

/// An MCP server: a command that is started, or the URL of one that runs.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct McpServer {
    /// The command that starts the server, with its arguments. It runs in the folder of the agent file.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// The URL of a server that runs.
    pub(crate) url: Option<String>,
    /// The tools that are offered, by the server's own names; all by default.
    pub(crate) include: Option<Vec<String>>,
    /// Tools that are not offered, by the server's own names.
    #[serde(default)]
    pub(crate) exclude: Vec<String>,
    /// The text in front of the names of its tools; the server's name and `_` by default. May be empty.
    pub(crate) prefix: Option<String>,
    /// Whether its tools may be used; `ask` by default. Read-only tools of a trusted server are not asked for.
    #[serde(default = "ask")]
    pub(crate) permission: Permission,
    /// Whether to believe what the server claims of its tools: which are read-only, and which may run twice.
    #[serde(default)]
    pub(crate) trusted: bool,
    /// Names of environment variables for the server, besides those of `env`. Never values.
    #[serde(default)]
    pub(crate) env: Vec<String>,
    /// The environment variable that holds the bearer token for the URL.
    pub(crate) token_env: Option<String>,
    /// How long a call may be silent, in seconds; 60 by default.
    #[schemars(range(min = 1))]
    pub(crate) timeout: Option<NonZeroU32>,
}

/// Implements `Deserialize` for what is written short or as a table. An untagged enum would report neither the line nor the key.
macro_rules! short_or_table {
    ($($type:ident, $expected:literal;)*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;

                impl<'de> de::Visitor<'de> for Visitor {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        Deserialize::deserialize(text.into_deserializer()).map($type::Short)
                    }

                    fn visit_bool<E: de::Error>(self, value: bool) -> Result<$type, E> {
                        let short = Deserialize::deserialize(value.into_deserializer());
                        short.map($type::Short).map_err(|_: E| {
                            E::invalid_type(de::Unexpected::Bool(value), &self)
                        })
                    }

                    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<$type, A::Error> {
                        Deserialize::deserialize(MapAccessDeserializer::new(map)).map($type::Table)
                    }
                }

                deserializer.deserialize_any(Visitor)
            }
        }
    )*};
}

short_or_table! {
    Model, "a name such as \"anthropic:claude-sonnet-5\", or a table with a `name`";
    Prompt, "a text, or a table with a `file`";
    Shell, "\"ask\", \"allow\", \"deny\", true or false, or a table";
    OutputSchema, "the path of a JSON file, or a table";
    Context, "\"drop\", \"summarise\" or \"keep\", or a table";
}
