//! What holds for a call, of all that its options say.

use std::time::Duration;

use mynah_data::{
    Budget, Error, FieldError, Metadata, ModelRef, PromptCache, ResponseFormat, Result, ToolChoice,
    ToolMode, ValidationReason,
};
use mynah_step::{RetryPolicy, SideEffectErrors};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    options::{CODE, DENIED, SHARED},
    run::{ErrorPolicy, OnUnknownTool},
};

/// The options of a call as they hold: the call's, over the engine's, over the library's.
pub(crate) struct Settings {
    pub(crate) model: Option<ModelRef>,
    pub(crate) mode: ToolMode,
    pub(crate) max_turns: u32,
    pub(crate) budget: Option<Budget>,
    pub(crate) temperature: Option<f64>,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) tool_choice: Option<ToolChoice>,
    pub(crate) response_format: Option<ResponseFormat>,
    pub(crate) structured_finalize: bool,
    pub(crate) nudge: Option<String>,
    pub(crate) prompt_cache: Option<PromptCache>,
    pub(crate) tool_timeout: Duration,
    pub(crate) deadline: Option<Duration>,
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) stream_timeout: Option<Duration>,
    pub(crate) max_concurrency: usize,
    pub(crate) max_crashes: u32,
    pub(crate) on_tool_error: ErrorPolicy,
    pub(crate) on_unknown_tool: OnUnknownTool,
    pub(crate) side_effect_errors: SideEffectErrors,
    pub(crate) require_raw_response_hash: bool,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) emit_text_deltas: bool,
    pub(crate) emit_tool_deltas: bool,
    pub(crate) include_raw_chunks: bool,
    pub(crate) context: Option<Metadata>,
    pub(crate) session_id: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) adapter_opts: Metadata,
    /// What Mynah does not know: the provider's.
    pub(crate) rest: Metadata,
}

impl Settings {
    /// Reads merged options, which have the [`SHARED`] names from a request or an engine. Every value that does not fit is reported.
    pub(crate) fn read(values: Metadata) -> Result<Self> {
        let mut reader = Reader { values, errors: Vec::new() };
        let settings = Self {
            model: reader.model(),
            mode: reader.take("mode", "unknown").unwrap_or_default(),
            max_turns: reader.positive("max_turns").unwrap_or(8).min(u64::from(u32::MAX)) as u32,
            budget: reader.budget(),
            temperature: reader.take("temperature", "out_of_range"),
            max_tokens: reader.take("max_tokens", "must_be_positive"),
            tool_choice: reader.take("tool_choice", "invalid_shape"),
            response_format: reader.take("response_format", "invalid_shape"),
            structured_finalize: reader
                .take("structured_finalize", "not_a_boolean")
                .unwrap_or(false),
            nudge: reader.take("structured_finalize_nudge", "not_a_string"),
            prompt_cache: reader.prompt_cache(),
            tool_timeout: reader.duration("tool_timeout").unwrap_or(Duration::from_secs(30)),
            deadline: reader.duration("deadline"),
            request_timeout: reader.duration("request_timeout"),
            stream_timeout: reader.duration("stream_timeout"),
            max_concurrency: reader
                .positive("max_concurrency")
                .map_or(8, |n| usize::try_from(n).unwrap_or(usize::MAX)),
            max_crashes: reader
                .positive("max_crashes")
                .map_or(10, |n| n.try_into().unwrap_or(u32::MAX)),
            on_tool_error: reader.on_tool_error(),
            on_unknown_tool: reader.take("on_unknown_tool", "unknown").unwrap_or_default(),
            side_effect_errors: reader.take("side_effect_errors", "unknown").unwrap_or_default(),
            require_raw_response_hash: reader
                .take("require_raw_response_hash", "not_a_boolean")
                .unwrap_or_default(),
            retry: reader.retry(),
            emit_text_deltas: reader.take("emit_text_deltas", "not_a_boolean").unwrap_or(true),
            emit_tool_deltas: reader.take("emit_tool_deltas", "not_a_boolean").unwrap_or(true),
            include_raw_chunks: reader.take("include_raw_chunks", "not_a_boolean").unwrap_or(false),
            context: reader.take("context", "not_a_map"),
            session_id: reader.take("session_id", "not_a_string"),
            request_id: reader.take("request_id", "not_a_string"),
            adapter_opts: reader.take("adapter_opts", "not_a_map").unwrap_or_default(),
            rest: Metadata::new(),
        };
        for name in CODE.iter().filter(|name| reader.values.contains_key(**name)) {
            reader.errors.push(FieldError::new(*name, "not_data"));
        }
        if !reader.errors.is_empty() {
            return Err(Error::validation(ValidationReason::InvalidOptions, reader.errors));
        }
        let mut rest = reader.values;
        let name_passes = |name: &str| SHARED.contains(&name) || !DENIED.contains(&name);
        rest.retain(|name, _| name_passes(name));
        Ok(Self { rest, ..settings })
    }
}

/// Takes known options out of a map and remembers what did not fit.
struct Reader {
    values: Metadata,
    errors: Vec<FieldError>,
}

impl Reader {
    /// Null counts as not said.
    fn raw(&mut self, name: &str) -> Option<Value> {
        if self.values.is_empty() {
            return None;
        }
        self.values.shift_remove(name).filter(|value| !value.is_null())
    }

    fn refuse<T>(&mut self, name: &str, code: &str) -> Option<T> {
        self.errors.push(FieldError::new(name, code));
        None
    }

    fn take<T: DeserializeOwned>(&mut self, name: &str, code: &str) -> Option<T> {
        let value = self.raw(name)?;
        serde_json::from_value(value).ok().or_else(|| self.refuse(name, code))
    }

    fn positive(&mut self, name: &str) -> Option<u64> {
        let value = self.raw(name)?;
        value.as_u64().filter(|n| *n > 0).or_else(|| self.refuse(name, "must_be_positive"))
    }

    fn duration(&mut self, name: &str) -> Option<Duration> {
        self.positive(name).map(Duration::from_millis)
    }

    fn model(&mut self) -> Option<ModelRef> {
        match self.raw("model")? {
            Value::String(id) => Some(ModelRef::new(id)),
            value => {
                ModelRef::deserialize(value).ok().or_else(|| self.refuse("model", "invalid_shape"))
            }
        }
    }

    fn budget(&mut self) -> Option<Budget> {
        let read = Budget::from_value(&self.raw("budget")?);
        let errors = read.as_ref().err().into_iter().flatten().cloned();
        self.errors.extend(errors.map(|error| error.under(["budget".into()])));
        read.ok()
    }

    fn prompt_cache(&mut self) -> Option<PromptCache> {
        match self.raw("prompt_cache")? {
            Value::Bool(on) => on.then(PromptCache::default),
            value => PromptCache::deserialize(value)
                .ok()
                .or_else(|| self.refuse("prompt_cache", "invalid_shape")),
        }
    }

    fn on_tool_error(&mut self) -> ErrorPolicy {
        match self.raw("on_tool_error").as_ref().map(Value::as_str) {
            None | Some(Some("continue")) => ErrorPolicy::Continue,
            Some(Some("halt")) => ErrorPolicy::Halt,
            Some(_) => self.refuse("on_tool_error", "unknown").unwrap_or_default(),
        }
    }

    fn retry(&mut self) -> Option<RetryPolicy> {
        let value = self.raw("retry")?;
        RetryPolicy::from_json(&value).ok().or_else(|| self.refuse("retry", "invalid_shape"))
    }
}
