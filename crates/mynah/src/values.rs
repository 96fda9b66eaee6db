//! The options of a call that are plain data.

use mynah_data::{
    Budget, Error, FieldError, Metadata, ModelRef, PathSegment, PromptCache, ResponseFormat,
    Result, ToolChoice, ToolMode, ValidationReason,
};
use mynah_step::{RetryPolicy, SideEffectErrors};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    ContextPolicy,
    code::HALT_WHEN,
    run::{OnToolError, OnUnknownTool},
};

/// Names that belong to the engine or to the call itself. As options of a call they never reach a provider.
const DENIED: [&str; 13] = [
    "adapter",
    "adapter_opts",
    "model",
    "tools",
    "tool_executor",
    "tool_result_encoder",
    "image_adapter",
    "params",
    "context",
    "retry",
    "middleware",
    "metadata",
    "api_key",
];

/// Denied names that providers use too. Among a request's own options and an engine's params they are the provider's.
const SHARED: [&str; 2] = ["tools", "metadata"];

/// Options that concern only the caller. They do not change a run, so records do not hold them.
const UNRECORDED: [&str; 5] =
    ["emit_text_deltas", "emit_tool_deltas", "include_raw_chunks", "durable_events", "request_id"];

/// Options that are functions. JSON cannot hold them, so they are refused there.
const CODE: [&str; 2] = [HALT_WHEN, "on_event"];

/// Options that are times.
const IN_MILLISECONDS: [&str; 4] =
    ["tool_timeout", "deadline", "request_timeout", "stream_timeout"];

/// What a tool error does, where that is not a function.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToolErrors {
    Continue,
    Halt,
}

impl From<ToolErrors> for OnToolError {
    fn from(policy: ToolErrors) -> Self {
        match policy {
            ToolErrors::Continue => Self::Continue,
            ToolErrors::Halt => Self::Halt,
        }
    }
}

/// Declares the options: name, type, the function that reads it from JSON, and the code of the error where that fails.
macro_rules! values {
    ($($name:ident: $type:ty, $read:path, $code:literal;)*) => {
        /// Options as plain data. If one is not set, the engine's value applies, then the library's
        /// default.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub(crate) struct Values {
            $(pub(crate) $name: Option<$type>,)*
            /// Options of the provider, sent as they are.
            pub(crate) provider: Metadata,
            /// The shared names, which are the provider's in an engine, a request and a record.
            pub(crate) shared: Metadata,
            /// Values that do not fit, by the name of their option.
            pub(crate) invalid: Vec<Invalid>,
        }

        /// The names of all options that are plain data.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];

        impl Values {
            /// Sets one option from JSON. Null counts as not set.
            pub(crate) fn set(&mut self, name: &str, value: Value) {
                if value.is_null() {
                    return;
                }
                self.invalid.retain(|broken| broken.name != name);
                let read = match name {
                    $(stringify!($name) => $read(value, $code).map(|value| self.$name = value),)*
                    name if CODE.contains(&name) => Err(broken("not_data", "")),
                    name if SHARED.contains(&name) => {
                        self.shared.insert(name.to_owned(), value);
                        return;
                    }
                    name if DENIED.contains(&name) => return,
                    name => {
                        self.provider.insert(name.to_owned(), value);
                        return;
                    }
                };
                let unit = if IN_MILLISECONDS.contains(&name) { " of milliseconds" } else { "" };
                for (error, why) in read.err().into_iter().flatten() {
                    let error = error.under([name.into()]);
                    let why = match why.is_empty() {
                        true => why,
                        false => format!("{}: {why}{unit}", error.path_text()),
                    };
                    self.invalid.push(Invalid { name: name.to_owned(), error, why });
                }
            }

            /// Adds options that count more than those set so far.
            pub(crate) fn overlay(&mut self, over: Self) {
                $(if over.$name.is_some() {
                    self.invalid.retain(|broken| broken.name != stringify!($name));
                    self.$name = over.$name;
                })*
                self.provider.extend(over.provider);
                self.shared.extend(over.shared);
                self.invalid.extend(over.invalid);
            }

            pub(crate) fn retain(&mut self, passes: impl Fn(&str) -> bool) {
                $(self.$name.take_if(|_| !passes(stringify!($name)));)*
                self.provider.retain(|name, _| passes(name));
                self.shared.retain(|name, _| passes(name));
                self.invalid.retain(|broken| passes(&broken.name));
            }

            pub(crate) fn contains(&self, name: &str) -> bool {
                match name {
                    $(stringify!($name) => self.$name.is_some(),)*
                    name => self.provider.contains_key(name) || self.shared.contains_key(name),
                }
            }

            /// Returns the options as JSON, those of Mynah first.
            pub(crate) fn to_json(&self) -> Metadata {
                let mut values = Metadata::new();
                $(if let Some(value) = &self.$name {
                    values.insert(stringify!($name).to_owned(), plain(json!(value)));
                })*
                values.extend(self.provider.clone());
                values.extend(self.shared.clone());
                values
            }
        }
    };
}

values! {
    model: ModelRef, model, "invalid_shape";
    system: String, read, "not_a_string";
    mode: ToolMode, read, "unknown";
    max_turns: u64, read, "must_be_positive";
    budget: Budget, budget, "";
    budget_note: bool, read, "not_a_boolean";
    temperature: f64, read, "out_of_range";
    max_tokens: u64, read, "must_be_positive";
    tool_choice: ToolChoice, read, "invalid_shape";
    response_format: ResponseFormat, read, "invalid_shape";
    structured_finalize: bool, read, "not_a_boolean";
    structured_finalize_nudge: String, read, "not_a_string";
    prompt_cache: PromptCache, prompt_cache, "invalid_shape";
    tool_timeout: u64, read, "must_be_positive";
    deadline: u64, read, "must_be_positive";
    request_timeout: u64, read, "must_be_positive";
    stream_timeout: u64, read, "must_be_positive";
    max_concurrency: u64, read, "must_be_positive";
    max_crashes: u64, read, "must_be_positive";
    on_tool_error: ToolErrors, read, "unknown";
    on_unknown_tool: OnUnknownTool, read, "unknown";
    agent: String, read, "not_a_string";
    context_policy: ContextPolicy, read, "invalid_shape";
    side_effect_errors: SideEffectErrors, read, "unknown";
    require_raw_response_hash: bool, read, "not_a_boolean";
    retry: RetryPolicy, read, "invalid_shape";
    emit_text_deltas: bool, read, "not_a_boolean";
    emit_tool_deltas: bool, read, "not_a_boolean";
    include_raw_chunks: bool, read, "not_a_boolean";
    durable_events: bool, read, "not_a_boolean";
    context: Metadata, read, "not_a_map";
    session_id: String, read, "not_a_string";
    request_id: String, read, "not_a_string";
    adapter_opts: Metadata, read, "not_a_map";
    params: Metadata, params, "";
}

/// Writes whole numbers without a fraction, as people do: 90 dollars, not 90.0.
fn plain(mut value: Value) -> Value {
    let number = match &mut value {
        Value::Object(budget) if budget.contains_key("max_usd") => budget.get_mut("max_usd"),
        value => Some(value),
    };
    if let Some(number) = number
        && let Some(float) = number.as_f64().filter(|_| number.is_f64())
        && float.fract() == 0.0
        && float.abs() < 1e15
    {
        *number = json!(float as i64);
    }
    value
}

/// A value that does not fit, and why, for people; the reason may be empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Invalid {
    name: String,
    error: FieldError,
    why: String,
}

type Read<T> = std::result::Result<Option<T>, Vec<(FieldError, String)>>;

fn broken(code: &str, why: impl Into<String>) -> Vec<(FieldError, String)> {
    vec![(FieldError::at([], code), why.into())]
}

/// Reads an option. The reason of a failure names the value, so it is given for numbers and choices alone: others may hold secrets.
fn read<T: DeserializeOwned>(value: Value, code: &str) -> Read<T> {
    serde_json::from_value(value).map(Some).map_err(|error| match code {
        "must_be_positive" | "out_of_range" | "unknown" => {
            let why = error.to_string().replace("expected u64", "expected a positive whole number");
            broken(code, why.replace("expected f64", "expected a number"))
        }
        _ => broken(code, ""),
    })
}

fn model(value: Value, code: &str) -> Read<ModelRef> {
    match value {
        Value::String(id) => Ok(Some(ModelRef::new(id))),
        value => read(value, code),
    }
}

fn budget(value: Value, _: &str) -> Read<Budget> {
    Budget::from_json(&value)
        .map(Some)
        .map_err(|errors| errors.into_iter().map(|error| (error, String::new())).collect())
}

fn prompt_cache(value: Value, code: &str) -> Read<PromptCache> {
    match value {
        Value::Bool(on) => Ok(on.then(PromptCache::default)),
        value => read(value, code),
    }
}

/// Only merging uses them, and it ignores values that are not maps.
fn params(value: Value, _: &str) -> Read<Metadata> {
    match value {
        Value::Object(params) => Ok(Some(params)),
        _ => Ok(None),
    }
}

impl Values {
    /// Reads options from JSON. Values that do not fit are reported by [`Values::check`].
    pub(crate) fn from_json(values: Metadata) -> Self {
        let mut read = Self::default();
        values.into_iter().for_each(|(name, value)| read.set(&name, value));
        read
    }

    /// Sets an option of the provider. Names that are Mynah's are refused when the call is made.
    pub(crate) fn set_provider(&mut self, name: &str, value: Value) {
        let is_denied = DENIED.contains(&name) && !SHARED.contains(&name);
        if NAMES.contains(&name) || CODE.contains(&name) || is_denied {
            return self.refuse_known(name);
        }
        self.provider.insert(name.to_owned(), value);
    }

    fn refuse_known(&mut self, name: &str) {
        let error = FieldError::new(name, "known_option");
        let why = format!("{name} is an option of Mynah; set it with its own setter");
        self.invalid.push(Invalid { name: name.to_owned(), error, why });
    }

    /// Sets an option of the adapter. Options are recorded, so a key is refused when the call is made.
    pub(crate) fn set_adapter_option(&mut self, name: &str, value: Value) {
        if name == "api_key" {
            return self.refuse_known(name);
        }
        self.adapter_opts.get_or_insert_default().insert(name.to_owned(), value);
    }

    pub(crate) fn check(&self) -> Result<()> {
        let counts = [
            ("max_turns", self.max_turns),
            ("tool_timeout", self.tool_timeout),
            ("deadline", self.deadline),
            ("request_timeout", self.request_timeout),
            ("stream_timeout", self.stream_timeout),
            ("max_concurrency", self.max_concurrency),
            ("max_crashes", self.max_crashes),
        ];
        let zero = counts.into_iter().filter(|(_, count)| *count == Some(0));
        let zero = zero.map(|(name, _)| FieldError::new(name, "must_be_positive"));
        let dollars = self.budget.as_ref().and_then(|budget| budget.max_usd);
        let dollars = dollars.filter(|dollars| !dollars.is_finite() || *dollars < 0.0);
        let dollars =
            dollars.map(|_| FieldError::new("max_usd", "out_of_range").under(["budget".into()]));
        let heat = self.temperature.filter(|heat| !heat.is_finite());
        let heat = heat.map(|_| FieldError::new("temperature", "out_of_range"));
        let wrong = zero.chain(dollars).chain(heat).map(|error| (error, String::new()));
        let broken = self.invalid.iter().map(|broken| (broken.error.clone(), broken.why.clone()));
        let mut errors: Vec<(FieldError, String)> = broken.chain(wrong).collect();
        if errors.is_empty() {
            return Ok(());
        }
        // In the order of the options, not in the order in which they were set.
        errors.sort_by_key(|(error, _)| {
            let is_of = |name: &&str| error.path.first() == Some(&PathSegment::from(*name));
            NAMES.iter().position(is_of).unwrap_or(NAMES.len())
        });
        let (errors, mut why): (Vec<_>, Vec<_>) = errors.into_iter().unzip();
        why.retain(|why| !why.is_empty());
        Err(Error::validation(ValidationReason::InvalidOptions, errors).because(&why))
    }

    /// Returns what records hold of the options. Headers may hold keys, which belong to a call.
    pub(crate) fn recorded(&self) -> Metadata {
        let mut values = self.to_json();
        values.retain(|name, _| !UNRECORDED.contains(&name.as_str()));
        if let Some(Value::Object(opts)) = values.get_mut("adapter_opts") {
            opts.shift_remove("headers");
            if opts.is_empty() {
                values.shift_remove("adapter_opts");
            }
        }
        values
    }

    /// Keeps what belongs to the caller alone.
    pub(crate) fn unrecorded(mut self) -> Self {
        self.retain(|name| UNRECORDED.contains(&name));
        self
    }

    /// Keeps what may stand among the params of an engine.
    pub(crate) fn params(mut self) -> Self {
        self.retain(|name| !DENIED.contains(&name));
        self
    }
}
