//! What the provider counted: some of it at the beginning of an answer, some at its end.

use std::sync::Arc;

use mynah_data::{Metadata, Usage};
use serde_json::Value;

use crate::{
    draft::Draft,
    loose::{overlay, take_count, telling},
};

/// The counters so far.
#[derive(Default)]
pub(super) struct Counters {
    /// Those of the beginning, overlaid by those of the end.
    known: Vec<(String, Value)>,
    /// The largest prompt that was counted: some gateways end with zeros.
    input_tokens: Option<u64>,
    /// The model that took over where the one that was asked declined.
    served_by: Option<String>,
}

impl Counters {
    /// Merges more counters, and returns all.
    pub(super) fn add(&mut self, counters: Metadata, draft: &mut Draft) {
        overlay(&mut self.known, counters);
        let mut usage = usage(self.known.iter().cloned().collect());
        self.input_tokens = self.input_tokens.max(usage.input_tokens);
        usage.input_tokens = self.input_tokens;
        if let Some(model) = &self.served_by {
            let extra = Arc::make_mut(&mut usage.extra);
            extra.insert("unpriced_model".to_owned(), model.as_str().into());
        }
        draft.usage(usage);
    }

    /// They are another model's, which has its own price.
    pub(super) fn are_of(&mut self, model: &str, draft: &mut Draft) {
        self.served_by = Some(model.to_owned());
        self.add(Metadata::new(), draft);
    }
}

/// The provider counts what was read from and written to its cache beside the rest of the prompt; we count it as part of it.
fn usage(mut counters: Metadata) -> Usage {
    let mut count = |path: &[&str]| take_count(&mut counters, path);
    let fresh = count(&["input_tokens"]);
    let cached = count(&["cache_read_input_tokens"]);
    let written = count(&["cache_creation_input_tokens"]);
    let parts = [cached, written].into_iter().flatten();
    let input_tokens = fresh.map(|fresh| parts.fold(fresh, u64::saturating_add));
    let mut usage = Usage::new(input_tokens, count(&["output_tokens"]));
    usage.cached_input_tokens = cached;
    usage.cache_write_tokens = written;
    usage.reasoning_tokens = count(&["output_tokens_details", "thinking_tokens"]);
    if let Some(Value::Object(counts)) = counters.shift_remove("server_tool_use") {
        usage.tool_usage = counts;
    }
    usage.extra = telling(counters).into();
    usage
}
