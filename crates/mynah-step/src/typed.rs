//! What handlers return and what is a tool: the traits between Rust types and tools.
//!
//! [`IntoOutcome`] turns what a handler returns into a [`ToolOutcome`]. With the feature `typed`, [`Tool::typed`] derives the JSON Schema
//! of a tool from the type of its arguments.

use std::{any::Any, ops::Deref, panic::UnwindSafe, sync::Arc};

use mynah_data::{Part, ToolOutcome};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{Tool, ToolContext};

/// What a tool's handler may return.
///
/// | returned | outcome |
/// |---|---|
/// | any `Serialize` value: `21`, a `String`, a struct, `()` | the value as JSON |
/// | [`ToolOutcome`] | itself: it can also ask the user or halt the chat |
/// | `Result<T, E>`, where `T` is one of the above | that of `T`, or an error that the model reads |
///
/// `E` is any [`std::error::Error`], a boxed one (`Box<dyn Error + Send + Sync>`, `anyhow::Error`), or a `Serialize` value such as
/// `String`. The model reads the value, or the error's `Display` text with those of its [sources](std::error::Error::source). An outcome is
/// recorded as data, so the error itself is dropped: the [`Error`](mynah_data::Error) of a failed call has its text and no source.
///
/// `Marker` distinguishes these cases for the compiler and is inferred. There is one exception. An
/// error type that is both an `Error` and `Serialize` fits two cases; then the marker must be
/// named, as in `Tool::typed::<Args, Fallible<Plain>>(…)` with [markers](crate::markers).
///
/// ```
/// # use mynah_step as mynah;
/// use mynah::{Tool, ToolOutcome};
/// use serde_json::json;
///
/// let tool = |name: &str| Tool::new(name, "", json!({"type": "object"}));
/// tool("number").handler(async |_, _| 21);
/// tool("parse").handler(async |arguments, _| arguments["number"].to_string().parse::<i32>());
/// tool("ask").handler(async |_, _| ToolOutcome::ask("How many?"));
/// tool("any_error").handler(async |_, context| {
///     let bytes = std::fs::read("menu.txt")?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>((bytes.len(), context.random().await?))
/// });
/// ```
#[diagnostic::on_unimplemented(
    message = "a tool cannot return `{Self}`",
    label = "this handler returns `{Self}`",
    note = "return a `Serialize` value, a `ToolOutcome`, or a `Result` of one; its error is a `std::error::Error`, a `Serialize` value, or boxed as `Box<dyn Error + Send + Sync>`"
)]
pub trait IntoOutcome<Marker> {
    /// The outcome of the call.
    fn into_outcome(self) -> ToolOutcome;
}

/// Marks a value that is the result itself.
#[derive(Debug)]
pub struct Plain;

/// Marks a `Result` with an error that implements [`std::error::Error`].
#[derive(Debug)]
pub struct Fallible<M>(M);

/// Marks a `Result` with a boxed error, such as `anyhow::Error`.
#[derive(Debug)]
pub struct Boxed<M>(M);

// `Result` implements `Serialize` if both its types do. Few error types do, and most of those hold another error and are not
// `UnwindSafe`, as Mynah's own: with this bound they fit `Fallible` alone.
impl<T: Serialize + UnwindSafe + 'static> IntoOutcome<Plain> for T {
    fn into_outcome(self) -> ToolOutcome {
        let mut this = Some(self);
        let any: &mut dyn Any = &mut this;
        if let Some(outcome) = any.downcast_mut().and_then(Option::<ToolOutcome>::take) {
            return outcome;
        }
        if let Some(value) = any.downcast_mut().and_then(Option::<Value>::take) {
            return ToolOutcome::Ok(value);
        }
        if let Some(parts) = any.downcast_mut().and_then(Option::<Vec<Part>>::take) {
            return ToolOutcome::Parts(parts);
        }
        match serde_json::to_value(&this) {
            Ok(value) => outcome_of(value, std::any::type_name::<T>()),
            Err(error) => ToolOutcome::error(format!("the result cannot be JSON: {error}")),
        }
    }
}

/// The outcome of a value. A `Result` whose both types are `Serialize` is one too, and serde writes it as `{"Ok": …}` or `{"Err": …}`.
fn outcome_of(value: Value, type_name: &str) -> ToolOutcome {
    let Some(types) = type_name.strip_prefix("core::result::Result<") else {
        return ToolOutcome::Ok(value);
    };
    match value {
        Value::Object(mut result) if result.len() == 1 => {
            if let Some(error) = result.shift_remove("Err") {
                return ToolOutcome::Error { error, transient: false };
            }
            let value = result.shift_remove("Ok").unwrap_or_default();
            if types.starts_with(std::any::type_name::<ToolOutcome>()) {
                let unreadable = |error| ToolOutcome::error(format!("not an outcome: {error}"));
                return serde_json::from_value(value).unwrap_or_else(unreadable);
            }
            outcome_of(value, types)
        }
        value => ToolOutcome::Ok(value),
    }
}

impl<T: IntoOutcome<M>, E: std::error::Error, M> IntoOutcome<Fallible<M>> for Result<T, E> {
    fn into_outcome(self) -> ToolOutcome {
        self.map_or_else(|error| ToolOutcome::error(text_of(&error)), T::into_outcome)
    }
}

impl<T, E, M> IntoOutcome<Boxed<M>> for Result<T, E>
where
    T: IntoOutcome<M>,
    E: Deref<Target = dyn std::error::Error + Send + Sync>,
{
    fn into_outcome(self) -> ToolOutcome {
        self.map_or_else(|error| ToolOutcome::error(text_of(&*error)), T::into_outcome)
    }
}

/// The text of an error and of its causes, unless it has that of the innermost one itself.
fn text_of(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    let mut text = error.to_string();
    if causes.last().is_some_and(|innermost| !text.contains(innermost.as_str())) {
        for cause in causes {
            text = if text.contains(&cause) { text } else { format!("{text}: {cause}") };
        }
    }
    text
}

/// An async function of arguments and [context](ToolContext): what [`Tool::typed`] takes.
///
/// Implemented for `async |args: Args, cx| …`. Such a closure cannot hold state; see [`Tool::typed_with_state`].
pub trait ToolFn<A, M>:
    AsyncFn(A, ToolContext) -> <Self as ToolFn<A, M>>::Returned + Send + Sync + 'static
{
    /// What it returns.
    type Returned: IntoOutcome<M> + 'static;
    /// What it is while it runs.
    type Running: Future<Output = Self::Returned> + Send + 'static;

    /// Runs one call.
    fn run(&self, arguments: A, context: ToolContext) -> Self::Running;
}

impl<F, A, Fut, R, M> ToolFn<A, M> for F
where
    F: Fn(A, ToolContext) -> Fut + AsyncFn(A, ToolContext) -> R + Send + Sync + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: IntoOutcome<M> + 'static,
{
    type Returned = R;
    type Running = Fut;

    fn run(&self, arguments: A, context: ToolContext) -> Fut {
        self(arguments, context)
    }
}

/// What is a tool: a [`Tool`], or a function that returns one, as `#[mynah::tool]` makes them.
///
/// `Marker` distinguishes these cases for the compiler and is inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tool",
    note = "a tool is a `Tool`, or the name of a function with #[mynah::tool]; `.tools(…)` takes several"
)]
pub trait IntoTool<Marker> {
    /// The tool.
    fn into_tool(self) -> Tool;
}

impl<T: Into<Tool>> IntoTool<Tool> for T {
    fn into_tool(self) -> Tool {
        self.into()
    }
}

impl<F: Fn() -> Tool> IntoTool<fn() -> Tool> for F {
    fn into_tool(self) -> Tool {
        self()
    }
}

/// A value whose methods are tools. `#[mynah::tools]` on an impl block implements it.
pub trait ToolSet: Send + Sync + 'static {
    /// The tools, which share the value.
    fn tools(self: Arc<Self>) -> Vec<Tool>;
}

/// What an engine can take its tools from: a `Vec`, an array or an iterator of tools, a [`ToolSet`], or an `Arc` of one.
///
/// `Marker` distinguishes these cases for the compiler and is inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` holds no tools",
    note = "pass tools in an array, a `Vec` or an iterator, or a value whose impl block has #[mynah::tools]; `.tool(…)` takes a single tool",
    note = "a function with #[mynah::tool] returns its tool: write `.tools([a(), b()])`"
)]
pub trait IntoTools<Marker: ?Sized> {
    /// The tools.
    fn into_tools(self) -> Vec<Tool>;
}

impl<I: IntoIterator<Item = Tool>> IntoTools<Vec<Tool>> for I {
    fn into_tools(self) -> Vec<Tool> {
        self.into_iter().collect()
    }
}

impl<T: ToolSet> IntoTools<dyn ToolSet> for T {
    fn into_tools(self) -> Vec<Tool> {
        Arc::new(self).tools()
    }
}

impl<T: ToolSet> IntoTools<Arc<dyn ToolSet>> for Arc<T> {
    fn into_tools(self) -> Vec<Tool> {
        self.tools()
    }
}

impl Tool {
    /// Asks the provider to enforce the schema, if it can. Sets `strict` in the metadata of the
    /// tool's [spec](Tool::spec).
    pub fn strict(self) -> Self {
        self.with(|spec| _ = spec.metadata.insert("strict".to_owned(), json!(true)))
    }
}
