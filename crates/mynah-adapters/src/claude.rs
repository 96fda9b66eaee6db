//! What Claude models take, by their names: Anthropic and Bedrock both ask.

use mynah_data::{Request, Result, ToolChoice};

use crate::request::{model_name, unsupported};

/// The version in a model's name: (4, 5) of `claude-haiku-4-5-20251001`. A name without one is a
/// custom name or another maker's model.
fn version(model: &str) -> Option<(u32, u32)> {
    let (_, name) = model.split_once("claude-")?;
    let numbers = name.split(['-', '.', '@', ':']).map(|word| word.parse().ok());
    let mut numbers = numbers.skip_while(Option::is_none).map(|number| number.filter(is_no_date));
    Some((numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

fn is_no_date(number: &u32) -> bool {
    *number < 1000
}

/// Whether the provider holds the model to a JSON schema: from 4.5 on.
pub(crate) fn has_native_schemas(model: &str) -> bool {
    version(model).is_none_or(|version| version >= (4, 5))
}

/// Whether Bedrock can cache the model's prompts for an hour: from 4.5 on.
#[cfg(feature = "bedrock")]
pub(crate) fn is_cached_for_an_hour(model: &str) -> bool {
    version(model).is_none_or(|version| version >= (4, 5))
}

/// Whether the model can be made to call a tool. From Fable 5.1, Opus 5.5 and Sonnet 5.5 on it decides itself, but for Haiku.
pub(crate) fn can_be_forced(model: &str) -> bool {
    version(model).is_none_or(|version| version < (5, 1)) || model.contains("haiku")
}

/// Whether the model thinks though it is made to call a tool: from 4.8 on. The others refuse a call that asks for both.
pub(crate) fn thinks_when_forced(model: &str) -> bool {
    version(model).is_none_or(|version| version >= (4, 8))
}

/// Whether the model takes the system's messages within the conversation: from Opus 4.8 on, but for Sonnet 5.
pub(crate) fn takes_instructions_within(model: &str) -> bool {
    let is_sonnet = model.contains("sonnet");
    version(model).is_some_and(|version| version >= (4, 8) && !(is_sonnet && version == (5, 0)))
}

/// Whether the provider takes thinking back only where system, tools and messages before it are what they were: from 5.1 on.
pub(crate) fn binds_thinking(model: &str) -> bool {
    version(model).is_some_and(|version| version >= (5, 1))
}

/// Refuses to force a call on a model that decides itself.
pub(crate) fn check_choice(request: &Request) -> Result<()> {
    const FORCED: [&str; 2] = ["any", "tool"];
    let forces = match &request.tool_choice {
        Some(ToolChoice::Required | ToolChoice::Tool(_)) => true,
        // As Anthropic writes it, and as Bedrock does.
        Some(ToolChoice::Other(own)) => FORCED.iter().any(|word| {
            own.get("type").is_some_and(|kind| kind == word) || own.contains_key(*word)
        }),
        _ => false,
    };
    match forces && !can_be_forced(model_name(request)) {
        true => Err(unsupported("this model cannot be made to call a tool")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn a_name_tells_its_version_wherever_it_stands() {
        for (name, expected) in [
            ("claude-3-haiku-20240307", Some((3, 0))),
            ("claude-3-7-sonnet-latest", Some((3, 7))),
            ("claude-sonnet-4-20250514", Some((4, 0))),
            ("claude-opus-4-1@20250805", Some((4, 1))),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", Some((4, 5))),
            ("anthropic.claude-opus-5-v1:0", Some((5, 0))),
            ("anthropic/claude-fable-5.1", Some((5, 1))),
            ("claude-opus-5-5", Some((5, 5))),
            ("claude-mythos-preview", None),
            ("glm-4.6", None),
        ] {
            assert_eq!(version(name), expected, "{name}");
        }
    }
}
