//! Placeholders for a call's code in the records: that there is some, or its name.

use std::sync::Arc;

use mynah_data::Metadata;
use mynah_log::{About, Extent};
use mynah_step::{HandlerExecutor, JsonEncoder, ToolExecutor, ToolResultEncoder};
use serde_json::Value;

use crate::{options::Options, prepare::CallPlan, run::ErrorPolicy};

/// A condition of the caller's own, asked after each step: its name, or `true`.
pub(crate) const HALT_WHEN: &str = "halt_when";

/// A policy for tool errors: `true` where it is a function, and otherwise a word, which is no code.
const ON_TOOL_ERROR: &str = "on_tool_error";

/// A function that decides which calls a person must approve: `true`.
pub(crate) const APPROVAL: &str = "approval";

/// The names of what runs tools and encodes their results, where that is not the default.
const EXECUTOR: &str = "tool_executor";
const ENCODER: &str = "tool_result_encoder";

/// The version of the rules by which the adapter rewrites schemas, where it does.
pub(crate) const SCHEMA_FIT: &str = "schema_fit";

/// The recorded placeholder of code.
pub(crate) fn code_of(about: &About) -> Metadata {
    let mut code = about.options.clone();
    code.retain(|name, told| is_code(name, told));
    code
}

/// Whether a recorded option stands for code.
pub(crate) fn is_code(name: &str, told: &Value) -> bool {
    match name {
        HALT_WHEN | EXECUTOR | ENCODER | SCHEMA_FIT => true,
        ON_TOOL_ERROR | APPROVAL => told.is_boolean(),
        _ => false,
    }
}

impl Options {
    /// Whether something is said under this name, be it in code. A condition is not: who has another means another run.
    pub(crate) fn says(&self, name: &str) -> bool {
        match name {
            ON_TOOL_ERROR if self.on_tool_error.is_some() => true,
            APPROVAL if self.approval.is_some() => true,
            EXECUTOR => self.executor.is_some(),
            ENCODER => self.encoder.is_some(),
            name => self.values.contains(name),
        }
    }
}

impl CallPlan<'_> {
    /// The placeholder for code that has a name of its own.
    pub(crate) fn code(&self) -> Metadata {
        let mut code = Metadata::new();
        if let (Some((name, _)), Extent::Chat) = (&self.options.halt_when, self.extent) {
            code.insert(HALT_WHEN.to_owned(), name.clone());
        }
        if let Some(version) =
            self.engine.0.adapter.as_ref().and_then(|adapter| adapter.schema_fit())
        {
            code.insert(SCHEMA_FIT.to_owned(), version.into());
        }
        if self.extent == Extent::Generate {
            return code;
        }
        let (executor, encoder) = (self.executor(), self.encoder());
        if executor.name() != HandlerExecutor.name() {
            code.insert(EXECUTOR.to_owned(), executor.name().into());
        }
        if encoder.name() != JsonEncoder.name() {
            code.insert(ENCODER.to_owned(), encoder.name().into());
        }
        if self.decides().is_some() {
            code.insert(ON_TOOL_ERROR.to_owned(), true.into());
        }
        if self.options.approval.is_some() || self.engine.0.approval.is_some() {
            code.insert(APPROVAL.to_owned(), true.into());
        }
        code
    }

    /// The function that decides what happens if a tool fails, if there is one. A word of the call counts more than a function of the engine.
    pub(crate) fn decides(&self) -> Option<&ErrorPolicy> {
        let of_engine = self.engine.0.on_tool_error.as_ref();
        let own = self.options.on_tool_error.as_ref();
        own.or_else(|| of_engine.filter(|_| self.options.values.on_tool_error.is_none()))
    }

    /// What runs the tools.
    pub(crate) fn executor(&self) -> Arc<dyn ToolExecutor> {
        let own = self.options.executor.as_ref().or(self.engine.0.executor.as_ref());
        own.cloned().unwrap_or_else(|| Arc::new(HandlerExecutor))
    }

    /// What turns their results into text.
    pub(crate) fn encoder(&self) -> Arc<dyn ToolResultEncoder> {
        let own = self.options.encoder.as_ref().or(self.engine.0.encoder.as_ref());
        own.cloned().unwrap_or_else(|| Arc::new(JsonEncoder))
    }
}
