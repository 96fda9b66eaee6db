//! Who is told how long things take.

use std::{sync::Arc, time::Duration};

use mynah_data::{Breach, ModelRef, Usage};
use tokio::time::Instant;

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
    #[doc(alias = "ObserveProviderCall")]
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
    #[doc(alias = "ObserveToolCall")]
    fn tool_call(&self, tool: &str, failure: Option<&str>, took: Duration) {
        let _ = (tool, failure, took);
    }

    /// A record was written: its kind, the failure if it failed, how long it took from the fact until it was safe.
    #[doc(alias = "ObserveEventlogAppend")]
    fn append(&self, kind: &str, failure: Option<&str>, took: Duration) {
        let _ = (kind, failure, took);
    }

    /// A run passed a limit of its budget.
    #[doc(alias = "ObserveBudgetExceeded")]
    fn budget_exceeded(&self, limit: &str) {
        let _ = limit;
    }
}

/// Tells that a run passed a limit of its budget, in the world: whoever is told of it, and whoever watches the program.
pub fn tell_exceeded(
    run_id: Option<&str>,
    breach: &Breach,
    metrics: Option<&Arc<dyn MetricsSink>>,
) {
    let Breach { limit, cap, actual, when, .. } = breach;
    tracing::warn!(run_id, %limit, %cap, %actual, "where" = when.as_str(), "budget exceeded");
    if let Some(metrics) = metrics {
        metrics.budget_exceeded(limit.as_str());
    }
}

/// A call under way, of which somebody is told once, however it ends: one that is dropped was `cancelled`.
#[derive(Default)]
pub struct Watch(Option<Watched>);

struct Watched {
    metrics: Arc<dyn MetricsSink>,
    name: String,
    is_model: bool,
    began: Instant,
}

impl Watch {
    /// A call of a model begins.
    pub fn model(metrics: Option<&Arc<dyn MetricsSink>>, model: Option<&ModelRef>) -> Self {
        Self::begin(metrics, true, || model.map(ToString::to_string).unwrap_or_default())
    }

    /// A call of a tool begins.
    pub fn tool(metrics: Option<&Arc<dyn MetricsSink>>, tool: &str) -> Self {
        Self::begin(metrics, false, || tool.to_owned())
    }

    fn begin(
        metrics: Option<&Arc<dyn MetricsSink>>,
        is_model: bool,
        name: impl FnOnce() -> String,
    ) -> Self {
        let watched = |metrics: &Arc<dyn MetricsSink>| Watched {
            metrics: Arc::clone(metrics),
            name: name(),
            is_model,
            began: Instant::now(),
        };
        Self(metrics.map(watched))
    }

    /// The call ended, unless it ended before.
    pub fn end(&mut self, failure: Option<&str>, usage: Option<&Usage>) {
        let Some(Watched { metrics, name, is_model, began }) = self.0.take() else { return };
        let took = began.elapsed();
        if is_model {
            let tokens = |of: fn(&Usage) -> Option<u64>| usage.and_then(of).unwrap_or(0);
            let (input, output) = (tokens(|u| u.input_tokens), tokens(|u| u.output_tokens));
            metrics.model_call(&name, failure, took, input, output);
        } else {
            metrics.tool_call(&name, failure, took);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end(Some("cancelled"), None);
    }
}
