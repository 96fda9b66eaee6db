//! Metrics: how long things take.

use std::{sync::Arc, time::Duration};

use mynah_data::{Breach, ModelRef, Usage};
use mynah_log::Kind;
use tokio::time::Instant;

/// A sink for metrics: how long calls and appends take, and how they end. It is called in hot paths and from several threads, so it must be
/// quick. A replay reports nothing.
///
/// ```
/// # mod mynah { pub use {mynah_step as step, mynah_step::*}; }
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use mynah::MetricsSink;
/// use mynah::step::ModelCallMetric;
///
/// /// Counts the tokens of all answers.
/// #[derive(Default)]
/// struct Tokens(AtomicU64);
///
/// impl MetricsSink for Tokens {
///     fn model_call(&self, call: &ModelCallMetric<'_>) {
///         self.0.fetch_add(call.output_tokens, Ordering::Relaxed);
///     }
/// }
/// ```
pub trait MetricsSink: Send + Sync + 'static {
    /// A model call ended.
    #[doc(alias = "ObserveProviderCall")]
    fn model_call(&self, call: &ModelCallMetric<'_>) {
        let _ = call;
    }

    /// A tool call ended.
    #[doc(alias = "ObserveToolCall")]
    fn tool_call(&self, call: &ToolCallMetric<'_>) {
        let _ = call;
    }

    /// A record was written, or could not be.
    #[doc(alias = "ObserveEventlogAppend")]
    fn append(&self, record: &AppendMetric<'_>) {
        let _ = record;
    }

    /// A run passed a limit of its budget.
    #[doc(alias = "ObserveBudgetExceeded")]
    fn budget_exceeded(&self, breach: &Breach) {
        let _ = breach;
    }
}

/// A sink that is shared.
impl<T: MetricsSink + ?Sized> MetricsSink for Arc<T> {
    fn model_call(&self, call: &ModelCallMetric<'_>) {
        (**self).model_call(call);
    }

    fn tool_call(&self, call: &ToolCallMetric<'_>) {
        (**self).tool_call(call);
    }

    fn append(&self, record: &AppendMetric<'_>) {
        (**self).append(record);
    }

    fn budget_exceeded(&self, breach: &Breach) {
        (**self).budget_exceeded(breach);
    }
}

/// A model call that ended; see [`MetricsSink::model_call`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ModelCallMetric<'a> {
    /// The model; empty if the request names none.
    pub model: &'a str,
    /// The reason of its error, if it failed.
    pub failure: Option<&'a str>,
    /// The time from the opening to the end.
    pub took: Duration,
    /// Tokens of the prompt, as reported.
    pub input_tokens: u64,
    /// Tokens of the answer, as reported.
    pub output_tokens: u64,
}

/// A tool call that ended; see [`MetricsSink::tool_call`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ToolCallMetric<'a> {
    /// The name of the tool.
    pub tool: &'a str,
    /// The reason of its error, if it failed.
    pub failure: Option<&'a str>,
    /// The time that it took, with all its attempts.
    pub took: Duration,
}

/// A record that was written, or could not be; see [`MetricsSink::append`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AppendMetric<'a> {
    /// The kind of the record.
    pub kind: Kind,
    /// The reason of the log's error, if it failed.
    pub failure: Option<&'a str>,
    /// The time from the fact until it was safe.
    pub took: Duration,
}

/// Reports that a run passed a limit of its budget, to the metrics sink and as a log event.
pub fn tell_exceeded(
    run_id: Option<&str>,
    breach: &Breach,
    metrics: Option<&Arc<dyn MetricsSink>>,
) {
    let Breach { limit, cap, actual, when, .. } = breach;
    tracing::warn!(run_id, %limit, %cap, %actual, "where" = when.as_str(), "budget exceeded");
    if let Some(metrics) = metrics {
        metrics.budget_exceeded(breach);
    }
}

/// A call in progress, reported once when it ends. A dropped one is reported as `cancelled`.
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
            let input_tokens = tokens(|usage| usage.input_tokens);
            let output_tokens = tokens(|usage| usage.output_tokens);
            let model = name.as_str();
            let call = ModelCallMetric { model, failure, took, input_tokens, output_tokens };
            metrics.model_call(&call);
        } else {
            metrics.tool_call(&ToolCallMetric { tool: &name, failure, took });
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end(Some("cancelled"), None);
    }
}
