//! Typed tools whose results may be an outcome of another kind.

use mynah_data::ToolOutcome;
use mynah_step::Tool;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};

/// The result of a tool, or an outcome of another kind: an error, a question.
pub(crate) type Outcome<T> = Result<T, ToolOutcome>;

/// An error that does not pass.
pub(crate) fn refused<T>(why: impl Into<String>) -> Outcome<T> {
    Err(ToolOutcome::error(why.into()))
}

/// A tool that is run by an async function of its arguments and its context.
#[cfg(any(
    feature = "ask-user",
    feature = "calculator",
    feature = "fetch",
    feature = "now",
    all(feature = "shell", unix)
))]
pub(crate) fn typed<A, T, F>(
    name: &str,
    description: &str,
    run: impl Fn(A, mynah_step::ToolContext) -> F + Send + Sync + 'static,
) -> Tool
where
    A: JsonSchema + DeserializeOwned + 'static,
    T: Serialize,
    F: Future<Output = Outcome<T>> + Send + 'static,
{
    Tool::typed::<A, _>(name, description, move |arguments, context| {
        let running = run(arguments, context);
        async move { encoded(running.await) }
    })
}

/// A tool that is run by a function of its arguments, on a thread for blocking work.
#[cfg(feature = "files")]
pub(crate) fn blocking<A, T>(
    name: &str,
    description: &str,
    run: impl Fn(A) -> Outcome<T> + Send + Sync + 'static,
) -> Tool
where
    A: JsonSchema + DeserializeOwned + 'static,
    T: Serialize,
{
    Tool::typed_blocking(name, description, move |arguments, _| encoded(run(arguments)))
}

fn encoded<T: Serialize>(result: Outcome<T>) -> ToolOutcome {
    match result.map(serde_json::to_value) {
        Ok(Ok(value)) => ToolOutcome::Ok(value),
        Ok(Err(error)) => ToolOutcome::error(format!("the result has no JSON form: {error}")),
        Err(outcome) => outcome,
    }
}
