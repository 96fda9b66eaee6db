//! Schema fitting: a JSON Schema as a provider takes it.
//!
//! Every provider takes a part of JSON Schema, and refuses or ignores the rest. [`fit`] rewrites a schema for a [`Dialect`]. It is a pure
//! function, for the schemas of tools and of answers, whether they are hand-written, derived from types or sent by an MCP server. The
//! arguments of calls and answers are checked against the original schema, never against the fitted one.
//!
//! What a dialect cannot express moves into the `description`, where the model reads it, and is [noted](Note).
//!
//! | dialect | strict | objects | references | what else |
//! |---|---|---|---|---|
//! | OpenAI | if nothing is lost, or on request | closed, all members required, optional ones nullable | `$defs`, alone | no `oneOf`, `allOf`, `prefixItems`, lengths |
//! | DeepSeek | on request | as OpenAI | as OpenAI | also no `minItems`, `maxItems` |
//! | Anthropic, Bedrock | on request | closed | `$defs`, no recursion | `minItems` 0 or 1, no other limits |
//! | Gemini, JSON Schema | never | open | `$defs`, alone; recursion only in optional members | no `const`, patterns, lengths |
//! | Gemini, OpenAPI | never | open | none | `nullable`; enums of strings |
//! | Nova | never | root has `type`, `properties`, `required` | none | |
//! | plain | as the caller says | as they are | `$defs` at the root | any JSON Schema |
//!
//! A schema that cannot be strict is written in the plain form. In all forms drafts before 2020-12 are brought up to it, references
//! resolve and point into `$defs` of the root, and definitions that nothing refers to are dropped. Unknown references accept anything.
//!
//! ```
//! # mod mynah { pub use mynah_adapters as adapters; }
//! use mynah::adapters::fit::{Dialect, Target, fit};
//! use serde_json::json;
//!
//! let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
//! let fitted = fit(&schema, Target::arguments(Dialect::OpenAiChat))?;
//! assert!(fitted.strict);
//! assert_eq!(fitted.schema["properties"]["city"]["type"], json!(["string", "null"]));
//! # Ok::<(), mynah_adapters::fit::FitError>(())
//! ```

mod cycles;
mod disjoint;
mod inline;
mod memo;
mod merge;
mod neutral;
mod root;
mod rules;
mod write;

use std::{fmt, sync::Arc};

use mynah_data::{AdapterReason, Error, Metadata, Result, ToolSpec};
use serde_json::Value;

pub(crate) use memo::FittedTool;
use neutral::Neutral;
use write::Writer;

/// The version of the rules in this module.
///
/// It is raised with every change of what [`fit`] returns. Runs record it in the options of their first record, so that a replay with
/// other rules differs.
pub const FIT_VERSION: u32 = 1;

/// The largest number of JSON values in a schema, including the targets of references.
pub const MAX_NODES: usize = 100_000;

/// The deepest nesting of JSON values in a schema.
pub const MAX_DEPTH: usize = 100;

/// What a provider takes of JSON Schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Dialect {
    /// OpenAI Chat Completions.
    OpenAiChat,
    /// OpenAI Responses.
    OpenAiResponses,
    /// Anthropic Messages.
    Anthropic,
    /// Bedrock Converse.
    Bedrock,
    /// Bedrock Converse with an Amazon Nova model.
    Nova,
    /// Gemini's members for JSON Schema: `parametersJsonSchema`, `responseJsonSchema`.
    GeminiJson,
    /// Gemini's members for a subset of OpenAPI: `parameters`, `responseSchema`.
    GeminiOpenApi,
    /// DeepSeek.
    DeepSeek,
    /// Servers that take any JSON Schema, such as llama.cpp.
    Plain,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: &'static [Self] = &[
        Self::OpenAiChat,
        Self::OpenAiResponses,
        Self::Anthropic,
        Self::Bedrock,
        Self::Nova,
        Self::GeminiJson,
        Self::GeminiOpenApi,
        Self::DeepSeek,
        Self::Plain,
    ];

    fn is_openai(self) -> bool {
        matches!(self, Self::OpenAiChat | Self::OpenAiResponses)
    }
}

/// What a schema describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Arguments,
    Answer,
}

/// What a schema is fitted for.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    dialect: Dialect,
    place: Place,
    strict: Option<bool>,
}

impl Target {
    /// The arguments of a tool, which are an object.
    pub const fn arguments(dialect: Dialect) -> Self {
        Self { dialect, place: Place::Arguments, strict: None }
    }

    /// An answer.
    pub const fn answer(dialect: Dialect) -> Self {
        Self { dialect, place: Place::Answer, strict: None }
    }

    /// The same target, with the caller's wish that the model is held to the schema, or is not. By default the dialect decides.
    #[must_use]
    pub const fn strict(mut self, strict: Option<bool>) -> Self {
        self.strict = strict;
        self
    }
}

/// A schema as a provider takes it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Fitted {
    /// The schema.
    pub schema: Value,
    /// Whether the provider may hold the model to it.
    pub strict: bool,
    /// What differs from the original schema.
    pub notes: Vec<Note>,
}

impl Fitted {
    /// The `strict` flag of a request: the caller's, unless the schema cannot be strict.
    pub(crate) fn strict_member(&self, tool: &ToolSpec) -> Option<bool> {
        let is_refused = tool.metadata.get("strict") == Some(&Value::Bool(false));
        (self.strict || is_refused).then_some(self.strict)
    }

    /// Whether the schema expresses every constraint of the original.
    pub fn is_lossless(&self) -> bool {
        self.notes.iter().all(|note| note.change != Change::Lost)
    }
}

/// One difference between a schema and its original.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Note {
    /// JSON pointer to the place in the original schema. What a definition holds is found under `/$defs`.
    pub path: String,
    /// What kind of difference it is.
    pub change: Change,
    /// What was done, for people.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.path.is_empty() { "the root" } else { &self.path };
        write!(f, "{place}: {}", self.text)
    }
}

/// A kind of difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The same constraint in another form.
    Rewritten,
    /// An annotation, such as a default, that moved into the description.
    Described,
    /// A constraint that the schema no longer expresses. It moved into the description.
    Lost,
    /// Why the provider is not asked to hold the model to the schema.
    NotStrict,
}

/// A schema that cannot be fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FitError {
    /// It has more than [`MAX_NODES`] values.
    TooLarge,
    /// Its values are nested deeper than [`MAX_DEPTH`].
    TooDeep,
    /// The arguments of a tool must be an object, and the schema permits none.
    NotAnObject,
}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => write!(f, "it has more than {MAX_NODES} values"),
            Self::TooDeep => write!(f, "it is nested more than {MAX_DEPTH} levels deep"),
            Self::NotAnObject => f.write_str("arguments must be an object, and it permits none"),
        }
    }
}

impl std::error::Error for FitError {}

/// Fits a schema to a target.
///
/// The result fits the same target unchanged.
///
/// # Errors
/// If the schema exceeds [`MAX_NODES`] or [`MAX_DEPTH`], or describes arguments that are no object.
pub fn fit(schema: &Value, target: Target) -> std::result::Result<Fitted, FitError> {
    let mut fitted = fit_once(schema, target)?;
    // What was rewritten may permit more: alternatives that became values become one list.
    for _ in 0..MAX_PASSES {
        match fit_once(&fitted.schema, target) {
            Ok(again) if again.schema != fitted.schema || again.strict != fitted.strict => {
                fitted.notes.extend(again.notes);
                fitted = Fitted { notes: fitted.notes, ..again };
            }
            _ => break,
        }
    }
    Ok(fitted)
}

/// How often what was written is looked at again.
const MAX_PASSES: usize = 8;

fn fit_once(schema: &Value, target: Target) -> std::result::Result<Fitted, FitError> {
    let Target { dialect, place, strict: wish } = target;
    let mut neutral = Neutral::of(schema)?;
    let is_untyped = !neutral.root.contains_key("type");
    if place == Place::Arguments {
        root::as_object(&mut neutral, dialect != Dialect::Plain)?;
        // An object without any keywords has no members. OpenAI would close it.
        if is_untyped && !dialect.is_openai() && neutral.root.len() == 1 {
            neutral.root.insert("properties".to_owned(), Metadata::new().into());
        }
    } else if dialect != Dialect::Plain {
        root::resolve(&mut neutral);
    }
    let rules = match dialect {
        Dialect::Plain => {
            let strict = wish.unwrap_or(false);
            return Ok(neutral.into_fitted(strict));
        }
        Dialect::Nova => {
            let schema = inline::inline(&mut neutral);
            let schema = inline::with_bare_root(schema);
            return Ok(Fitted { schema, strict: false, notes: neutral.notes });
        }
        Dialect::GeminiOpenApi => {
            neutral.root = match inline::inline(&mut neutral) {
                Value::Object(root) => root,
                _ => Metadata::new(),
            };
            neutral.defs = Metadata::new();
            &rules::OPEN_API
        }
        Dialect::GeminiJson => &rules::GEMINI_JSON,
        Dialect::OpenAiChat | Dialect::OpenAiResponses => &rules::OPENAI,
        Dialect::DeepSeek => &rules::DEEPSEEK,
        Dialect::Anthropic | Dialect::Bedrock => &rules::CLAUDE,
    };
    if !rules.closed {
        let (schema, notes, _) = Writer::new(rules, &neutral).write();
        neutral.notes.extend(notes);
        return Ok(Fitted { schema, strict: false, notes: neutral.notes });
    }
    let is_wanted = wish.unwrap_or(dialect.is_openai());
    if is_wanted {
        let (schema, notes, blocked) = Writer::new(rules, &neutral).write();
        let is_lost = notes.iter().any(|note| note.change == Change::Lost);
        match blocked {
            None if wish == Some(true) || !is_lost => {
                neutral.notes.extend(notes);
                return Ok(Fitted { schema, strict: true, notes: neutral.notes });
            }
            Some(why) => neutral.notes.push(why),
            None => neutral.notes.extend(notes.into_iter().find_map(|note| {
                let change = Change::NotStrict;
                (note.change == Change::Lost).then_some(Note { change, ..note })
            })),
        }
    }
    let mut fitted = neutral.into_fitted(false);
    if let (true, Place::Arguments, Value::Object(root)) =
        (dialect.is_openai(), place, &mut fitted.schema)
    {
        // The provider refuses or drops an object without properties. This one has properties of
        // any name.
        if !root.contains_key("properties") {
            root.insert("properties".to_owned(), Metadata::new().into());
            root.entry("additionalProperties").or_insert(true.into());
        }
    }
    Ok(fitted)
}

/// Whether all objects of a schema name their members: whether it can be closed.
pub(crate) fn is_closable(schema: &Value) -> bool {
    let Ok(mut neutral) = Neutral::of(schema) else { return false };
    root::resolve(&mut neutral);
    let rules = rules::Rules { recursion: true, ..rules::CLAUDE };
    Writer::new(&rules, &neutral).write().2.is_none()
}

/// The schema of a tool's arguments. The wish to be strict is the tool's: `strict` in its metadata.
pub(crate) fn tool(tool: &Arc<ToolSpec>, dialect: Dialect) -> Result<Arc<FittedTool>> {
    memo::kept(tool, dialect, || {
        let strict = tool.metadata.get("strict").and_then(Value::as_bool);
        let fitted = fit(&tool.schema, Target::arguments(dialect).strict(strict));
        finish(fitted, || format!("tool {:?}", tool.name))
    })
}

/// The schema of an answer.
pub(crate) fn answer(name: &str, schema: &Value, dialect: Dialect, strict: bool) -> Result<Fitted> {
    let fitted = fit(schema, Target::answer(dialect).strict(Some(strict)));
    finish(fitted, || format!("answer {name:?}"))
}

fn finish(
    fitted: std::result::Result<Fitted, FitError>,
    of: impl Fn() -> String,
) -> Result<Fitted> {
    match fitted {
        Ok(fitted) => {
            for note in fitted.notes.iter().filter(|note| note.change != Change::Rewritten) {
                tracing::debug!(of = of(), %note, "schema fitted");
            }
            Ok(fitted)
        }
        Err(why) => Err(Error::adapter(AdapterReason::InvalidRequest).with_message(format!(
            "adapter error: invalid_request: the schema of {} cannot be sent: {why}",
            of()
        ))),
    }
}

/// Members that do not restrict which values are valid.
const ANNOTATIONS: [&str; 15] = [
    "$anchor",
    "$comment",
    "$dynamicAnchor",
    "$id",
    "$schema",
    "default",
    "deprecated",
    "description",
    "example",
    "examples",
    "propertyOrdering",
    "readOnly",
    "title",
    "writeOnly",
    "$vocabulary",
];

fn is_annotation(name: &str) -> bool {
    ANNOTATIONS.contains(&name) || name.starts_with("x-")
}

/// A schema's own types; none if it does not say.
fn types(schema: &Metadata) -> Option<Vec<&str>> {
    match schema.get("type")? {
        Value::String(kind) => Some(vec![kind]),
        Value::Array(kinds) => Some(kinds.iter().filter_map(Value::as_str).collect()),
        _ => None,
    }
}

/// The type of a value, in the words of JSON Schema.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() && number.as_f64().is_some_and(has_fraction) => {
            "number"
        }
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn has_fraction(number: f64) -> bool {
    number.fract() != 0.0
}

fn strings(value: Option<&Value>) -> impl Iterator<Item = &str> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Whether a schema itself requires an object.
fn is_object(schema: &Metadata) -> bool {
    match types(schema) {
        Some(kinds) => kinds.contains(&"object"),
        None => ["properties", "required", "additionalProperties", "patternProperties"]
            .iter()
            .any(|name| schema.contains_key(*name)),
    }
}

/// Adds a sentence to the description.
fn describe(schema: &mut Metadata, text: &str) {
    let known = schema.get("description").and_then(Value::as_str).filter(|text| !text.is_empty());
    let text = known.map_or(text.to_owned(), |known| format!("{known}\n{text}"));
    schema.insert("description".to_owned(), text.into());
}

/// A keyword and its value in words: `Min length: 2.`
fn in_words(name: &str, value: &Value) -> String {
    let mut words = String::new();
    for (index, letter) in name.trim_start_matches('$').char_indices() {
        match letter {
            letter if index == 0 => words.extend(letter.to_uppercase()),
            letter if letter.is_uppercase() => {
                words.push(' ');
                words.extend(letter.to_lowercase());
            }
            letter => words.push(letter),
        }
    }
    match value {
        Value::String(text) => format!("{words}: {text}"),
        value => format!("{words}: {value}"),
    }
}
