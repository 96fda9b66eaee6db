//! Placeholders for a call's code in the records: that there is some, or its name.

use mynah_data::Metadata;
use mynah_log::{About, Extent};
use mynah_step::{HandlerExecutor, JsonEncoder, ToolExecutor as _, ToolResultEncoder as _};
use serde_json::Value;

use crate::{options::Options, prepare::CallPlan};

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
            EXECUTOR => self.tool_executor.is_some(),
            ENCODER => self.tool_result_encoder.is_some(),
            name => self.values.contains(name),
        }
    }
}

impl CallPlan<'_> {
    /// The placeholders for the code among these options, and for that of the adapter.
    pub(crate) fn code(&self, options: &Options) -> Metadata {
        let condition = options.halt_when.as_ref().filter(|_| self.extent == Extent::Chat);
        let fit = self.engine.0.adapter.as_ref().and_then(|adapter| adapter.schema_fit());
        let executor = options.tool_executor.as_ref().map(|executor| executor.name());
        let executor = executor.filter(|name| *name != HandlerExecutor.name());
        let encoder = options.tool_result_encoder.as_ref().map(|encoder| encoder.name());
        let encoder = encoder.filter(|name| *name != JsonEncoder.name());
        let of_tools = [
            (EXECUTOR, executor.map(Value::from)),
            (ENCODER, encoder.map(Value::from)),
            (ON_TOOL_ERROR, options.on_tool_error.is_some().then_some(true.into())),
            (APPROVAL, options.approval.is_some().then_some(true.into())),
        ];
        [(HALT_WHEN, condition.map(|(name, _)| name.clone())), (SCHEMA_FIT, fit.map(Value::from))]
            .into_iter()
            .chain(of_tools.into_iter().filter(|_| self.extent != Extent::Generate))
            .filter_map(|(name, told)| Some((name.to_owned(), told?)))
            .collect()
    }
}
