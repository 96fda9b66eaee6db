//! What an engine sets for its calls.

use mynah_data::Error;
use mynah_step::ErrorPolicy;

use crate::{
    engine::Engine,
    options::{Options, tool_errors},
};

impl Engine {
    /// The same engine with defaults for the options of its calls. Tools, the policies for their errors and approvals, the executor and the
    /// encoder become the engine's own. Calls are refused if the options hold something else that is not plain data: a key, a log, a condition, a
    /// cancel handle or an observer belongs to a call.
    ///
    /// ```
    /// # use mynah::{Engine, Options};
    /// # use serde_json::json;
    /// let options = Options::from_json(json!({"temperature": 0.7, "reasoning_effort": "high"}))?;
    /// let engine = Engine::without_adapter().defaults(options);
    /// assert_eq!(engine.resolve_params(&Options::new())["temperature"], 0.7);
    /// # Ok::<(), mynah::Error>(())
    /// ```
    pub fn defaults(self, options: Options) -> Self {
        let of_call = [
            ("api_key", options.api_key.is_some()),
            ("record", options.log.is_some()),
            ("durability", options.durability.is_some()),
            ("emit_timeout", options.emit_timeout.is_some()),
            ("park_after", options.park_after.is_some()),
            ("halt_when", options.halt_when.is_some()),
            ("cancel_handle", options.cancel.is_some()),
            ("on_event", options.on_event.is_some()),
            ("in_flight", options.in_flight.is_some()),
        ];
        let engine = match of_call.iter().find(|(_, is_set)| *is_set) {
            Some((name, _)) => self.misused("defaults", &format!("{name} belongs to a call")),
            None => self,
        };
        engine.with(|parts| {
            if options.values.on_tool_error.is_some() {
                parts.on_tool_error = None;
            }
            parts.values.overlay(options.values);
            parts.tools.extend(options.tools.unwrap_or_default());
            parts.on_tool_error = options.on_tool_error.or(parts.on_tool_error.take());
            parts.executor = options.executor.or(parts.executor.take());
            parts.encoder = options.encoder.or(parts.encoder.take());
            parts.approval = options.approval.or(parts.approval.take());
        })
    }

    /// Refuses the calls of this engine: something was set that it cannot have.
    pub(crate) fn misused(self, field: &str, why: &str) -> Self {
        let message = format!("validation failed: {field}: {why}");
        let error = Error::invalid_option(field, "belongs_to_a_call").with_message(message);
        self.with(|parts| _ = parts.misuse.get_or_insert(error))
    }

    /// The same engine, with what happens if a tool fails; see [`Chat::on_tool_error`](crate::Chat::on_tool_error). A call may set another policy.
    pub fn on_tool_error(self, policy: ErrorPolicy) -> Self {
        let (word, decide) = tool_errors(policy);
        self.with(|parts| {
            parts.values.on_tool_error = word;
            parts.on_tool_error = decide;
        })
    }
}
