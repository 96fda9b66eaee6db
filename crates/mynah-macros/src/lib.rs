//! The attributes `#[mynah::tool]` and `#[mynah::tools]`. Use them through `mynah`, which documents them.

mod options;
mod tool;

use proc_macro::TokenStream;
use syn::parse_macro_input;

/// Turns a function into a tool.
///
/// The name, the description and the JSON Schema of the arguments come from the signature and its doc comments:
///
/// ```
/// use mynah::{Engine, ToolContext};
///
/// /// The weather in a city.
/// #[mynah::tool(idempotent, timeout = "10s")]
/// async fn get_weather(
///     /// Name of the city, in English.
///     city: String,
///     /// Days from today; today if left out.
///     days: Option<u8>,
///     cx: &ToolContext,
/// ) -> Result<String, std::num::ParseIntError> {
///     Ok(format!("21 °C in {city}, call {}", cx.call.id))
/// }
///
/// let engine = Engine::without_adapter().tool(get_weather);
/// # use mynah::Options;
/// # let tool = engine.resolve_tools(&Options::new()).remove(0);
/// # assert_eq!(tool.spec().description, "The weather in a city.");
/// # assert_eq!(tool.spec().schema["required"], serde_json::json!(["city"]));
/// ```
///
/// - Each parameter becomes a property. Its type is `Deserialize` and `JsonSchema`. An `Option` may be left out. `#[serde(…)]` and
///   `#[schemars(…)]` on a parameter are those of a field, as `#[serde(default)]`.
/// - A parameter of the type `&ToolContext`, in any place, is the context of the call and no property.
/// - The function returns anything that is `IntoOutcome`: a `Serialize` value, a `ToolOutcome`, or a `Result` of one.
/// - A function that is not `async` runs on a thread of its own, as `Tool::blocking` does.
///
/// The attribute replaces the function by one of the same name that returns the `Tool`: `get_weather()`. `engine.tool(get_weather)` calls it.
/// The function as it was written is `get_weather::call(city, days, &cx)`.
///
/// # Options
///
/// | option | effect |
/// |---|---|
/// | `name = "…"` | the tool's name, if not that of the function |
/// | `manual` | calls are returned to the caller instead of being run |
/// | `approval` | a person must approve each call before it runs; `approval = "deny"`: calls never run |
/// | `idempotent` | a call whose outcome is unknown may be run again |
/// | `retries = 2` | retries after transient failures; needs `idempotent` |
/// | `timeout = "10s"` | the time limit of an attempt, in `ms`, `s`, `m` or `h` |
/// | `replay = "recorded"` | a replay that runs tools again takes the recorded outcome of this one |
/// | `strict` | the provider enforces the schema, where it can |
/// | `crate = path` | the path of the `mynah` crate, if it has another name |
///
/// The types of parameters derive `JsonSchema`. A crate that does not depend on `schemars` derives it from `mynah::schemars`, with
/// `#[schemars(crate = "mynah::schemars")]`.
#[proc_macro_attribute]
pub fn tool(options: TokenStream, item: TokenStream) -> TokenStream {
    let options = parse_macro_input!(options as options::Options);
    let function = parse_macro_input!(item as syn::ItemFn);
    tool::function(&options, function).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Turns methods of a type into tools that share its value.
///
/// Each method with `#[tool]`, which takes the options of [`tool`](macro@tool), becomes a tool. The methods stay methods.
///
/// ```
/// use mynah::Engine;
///
/// struct Crm { names: Vec<String> }
///
/// #[mynah::tools]
/// impl Crm {
///     /// Looks a customer up.
///     #[tool(idempotent, timeout = "10s")]
///     async fn customer(&self, id: usize) -> Result<String, String> {
///         self.names.get(id).cloned().ok_or_else(|| format!("no customer {id}"))
///     }
/// }
///
/// let engine = Engine::without_adapter().tools(Crm { names: vec!["Ada".into()] });
/// # assert_eq!(engine.resolve_tools(&mynah::Options::new())[0].name(), "customer");
/// ```
///
/// The type is `Send + Sync + 'static`. `engine.tools` also takes an `Arc` of it.
#[proc_macro_attribute]
pub fn tools(options: TokenStream, item: TokenStream) -> TokenStream {
    let options = parse_macro_input!(options as options::CratePath);
    let block = parse_macro_input!(item as syn::ItemImpl);
    tool::methods(&options, block).unwrap_or_else(|error| error.to_compile_error()).into()
}
