//! What the models on Bedrock take, by their makers and names.

use serde_json::{Value, json};

use crate::{claude, fit::Dialect, form::Forms};

/// `anthropic` in `anthropic.claude-…`, `us.anthropic.claude-…`, and in the name of a resource that ends with one of these.
pub(super) fn maker(model: &str) -> Option<&str> {
    const PLACES: [&str; 8] = ["apac", "au", "ca", "eu", "global", "jp", "us", "us-gov"];
    let (first, rest) = model.rsplit('/').next()?.split_once('.')?;
    match PLACES.contains(&first) {
        true => Some(rest.split_once('.')?.0),
        false => Some(first),
    }
}

/// The name of a Nova behind that word: `2-lite-v1:0`, or `pro-v1:0` of the first ones.
fn nova(model: &str) -> Option<&str> {
    let (_, name) = model.split_once("nova-").filter(|_| maker(model) == Some("amazon"))?;
    Some(name)
}

/// How a model takes cache points.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachePoints {
    /// Also beside tools, their calls and their results.
    pub(super) beside_tools: bool,
    /// Also for an hour.
    pub(super) for_an_hour: bool,
}

/// How the model takes cache points, if it does. A resource with a custom name may be any model; it
/// is treated as Claude.
pub(super) fn cache_points(model: &str) -> Option<CachePoints> {
    match maker(model) {
        None | Some("anthropic") => {
            let for_an_hour = claude::is_cached_for_an_hour(model);
            Some(CachePoints { beside_tools: true, for_an_hour })
        }
        _ => nova(model).map(|_| CachePoints { beside_tools: false, for_an_hour: false }),
    }
}

/// The forms that the model's answers can have. The grammar that Nova's calls are held to lets no object have members that the
/// schema of the tool does not name.
pub(super) fn forms(model: &str) -> Forms {
    const UNHELD: [&str; 4] = ["ai21", "amazon", "cohere", "meta"];
    let is_held = maker(model).is_none_or(|maker| !UNHELD.contains(&maker));
    Forms {
        enforced: is_held && claude::has_native_schemas(model),
        open: nova(model).is_none() && claude::can_be_forced(model),
    }
}

/// The choice that forces a call of this tool, or of any. Converse supports the first for Claude
/// and Nova, and the second for Mistral Large. All other models decide themselves.
pub(super) fn forced(model: &str, tool: &str) -> Option<Value> {
    match maker(model) {
        Some("mistral") if model.contains("mistral-large") => Some(json!({"any": {}})),
        None | Some("anthropic") => Some(json!({"tool": {"name": tool}})),
        _ => nova(model).map(|_| json!({"tool": {"name": tool}})),
    }
}

/// Whether calls come in a stream: `This model doesn't support tool use in streaming mode.`
pub(super) fn streams_calls(model: &str) -> bool {
    const MAKERS: [&str; 2] = ["meta", "writer"];
    /// Of those whose later models do.
    const MODELS: [&str; 4] = ["mistral-large-24", "mistral-small-24", "pixtral", "deepseek.r1"];
    let is_whole =
        |maker| MAKERS.contains(&maker) || MODELS.iter().any(|name| model.contains(name));
    !maker(model).is_some_and(is_whole)
}

/// What the model takes of JSON Schema.
pub(super) fn dialect(model: &str) -> Dialect {
    if nova(model).is_some() { Dialect::Nova } else { Dialect::Bedrock }
}

/// What an option is in the model's own words, where it has others for it. What a model does not know at all is nothing.
pub(super) fn in_own_words(model: &str, option: &str, value: &Value) -> Option<Value> {
    match (option, nova(model)) {
        ("reasoning_effort", None) if model.contains("claude") => {
            Some(json!({"output_config": {"effort": value}}))
        }
        // The first ones do not reason.
        ("reasoning_effort", Some(name)) if !name.starts_with(|c: char| c.is_ascii_digit()) => {
            Some(json!({}))
        }
        ("reasoning_effort", Some(_)) => {
            let effort = match value.as_str() {
                Some("none") => return Some(json!({"reasoningConfig": {"type": "disabled"}})),
                Some("minimal") => "low".into(),
                Some("xhigh" | "max") => "high".into(),
                _ => value.clone(),
            };
            Some(json!({"reasoningConfig": {"type": "enabled", "maxReasoningEffort": effort}}))
        }
        ("top_k", Some(_)) => Some(json!({"inferenceConfig": {"topK": value}})),
        _ => None,
    }
}
