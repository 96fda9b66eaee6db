//! Tools whose arguments are a Rust type.

use mynah_data::ToolOutcome;
use mynah_step::Tool;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

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
    A: JsonSchema + DeserializeOwned,
    T: Serialize,
    F: Future<Output = Outcome<T>> + Send + 'static,
{
    described::<A>(name, description).handler(move |arguments, context| {
        let running = parsed(arguments).map(|arguments| run(arguments, context));
        async move {
            match running {
                Ok(running) => encoded(running.await),
                Err(refusal) => refusal,
            }
        }
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
    A: JsonSchema + DeserializeOwned,
    T: Serialize,
{
    described::<A>(name, description)
        .blocking(move |arguments, _| encoded(parsed(arguments).and_then(&run)))
}

/// A tool without a handler whose schema is that of its arguments.
fn described<A: JsonSchema>(name: &str, description: &str) -> Tool {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<A>();
    schema.remove("title");
    schema.remove("description");
    Tool::new(name, description, schema.to_value())
}

fn parsed<A: DeserializeOwned>(arguments: Value) -> Outcome<A> {
    serde_json::from_value(arguments)
        .map_err(|error| ToolOutcome::error(format!("invalid_arguments: {error}")))
}

fn encoded<T: Serialize>(result: Outcome<T>) -> ToolOutcome {
    match result.map(serde_json::to_value) {
        Ok(Ok(value)) => ToolOutcome::Ok(value),
        Ok(Err(error)) => ToolOutcome::error(format!("the result has no JSON form: {error}")),
        Err(outcome) => outcome,
    }
}
