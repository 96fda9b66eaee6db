//! Who is told how long things take.

use std::time::Duration;

/// Who is told how long things take, and how they went. Called in hot paths and from several threads: it must be quick.
///
/// What failed is told with the reason of its error. Nothing is told of a replay.
///
/// ```
/// use std::{sync::atomic::{AtomicU64, Ordering}, time::Duration};
/// use mynah_step::MetricsSink;
///
/// /// Counts the tokens of all answers.
/// #[derive(Default)]
/// struct Tokens(AtomicU64);
///
/// impl MetricsSink for Tokens {
///     fn model_call(&self, _: &str, _: Option<&str>, _: Duration, _: u64, output_tokens: u64) {
///         self.0.fetch_add(output_tokens, Ordering::Relaxed);
///     }
/// }
/// ```
pub trait MetricsSink: Send + Sync + 'static {
    /// A model was called: which one, the failure if it failed, how long it took from the opening to the end, the tokens of the prompt and
    /// of the answer as reported.
    fn model_call(
        &self,
        model: &str,
        failure: Option<&str>,
        took: Duration,
        input_tokens: u64,
        output_tokens: u64,
    ) {
        let _ = (model, failure, took, input_tokens, output_tokens);
    }

    /// A tool was called: which one, the failure if it failed, how long it took with all its tries.
    fn tool_call(&self, tool: &str, failure: Option<&str>, took: Duration) {
        let _ = (tool, failure, took);
    }

    /// Records were written: how many, the failure if it failed, how long it took until they were safe.
    fn append(&self, records: usize, failure: Option<&str>, took: Duration) {
        let _ = (records, failure, took);
    }

    /// A run passed a limit of its budget.
    fn budget_exceeded(&self, limit: &str) {
        let _ = limit;
    }
}
