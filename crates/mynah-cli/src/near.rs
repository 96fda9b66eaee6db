//! Option names that are almost one of Mynah's.

use mynah::{Metadata, Options};

use crate::text::quoted;

/// Names that scenario files have beside the options of the library.
const SCENARIO: [&str; 2] = ["halt_when", "tools"];

/// Warns on stderr of options that go to the provider because their name is unknown, and is probably misspelt.
pub(crate) fn warn(place: &str, options: &Metadata) {
    for name in options.keys() {
        if let Some(meant) = meant(name) {
            let name = quoted(name);
            eprintln!(
                "warning: {place}: {name} goes to the provider as it is; did you mean {meant}?"
            );
        }
    }
}

/// Returns the option that this name is a misspelling of.
fn meant(name: &str) -> Option<&'static str> {
    let known = || Options::NAMES.iter().copied().chain(SCENARIO);
    if known().any(|known| known == name) {
        return None;
    }
    let plain = name.to_lowercase().replace('-', "_");
    // Short names are near to many others.
    let near = known()
        .map(|known| (strsim::osa_distance(&plain, known), known))
        .filter(|(distance, known)| *distance <= if known.len() < 7 { 1 } else { 2 });
    near.min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::meant;

    #[test]
    fn misspelt_options_are_recognized() {
        let misspelt = [
            ("max_turn", "max_turns"),
            ("maxTurns", "max_turns"),
            ("max-turns", "max_turns"),
            ("Max_Tokens", "max_tokens"),
            ("temprature", "temperature"),
            ("tool_chioce", "tool_choice"),
            ("on_tool_errors", "on_tool_error"),
            ("tool", "tools"),
        ];
        for (name, option) in misspelt {
            assert_eq!(meant(name), Some(option), "{name}");
        }
    }

    #[test]
    fn options_of_mynah_and_of_providers_are_not_misspelt() {
        let provider = "top_p top_k seed stop n user store stream logprobs logit_bias thinking reasoning reasoning_effort verbosity \
             max_completion_tokens max_output_tokens max_tool_calls parallel_tool_calls service_tier safety_identifier prompt_cache_key \
             prompt_cache_retention presence_penalty frequency_penalty stop_sequences num_ctx keep_alive think format truncation include \
             generationConfig safety_settings cached_content mcp_servers container betas modalities";
        let known = mynah::Options::NAMES.iter().copied();
        for name in provider.split_whitespace().chain(known).chain(["halt_when", "metadata"]) {
            assert_eq!(meant(name), None, "{name}");
        }
    }
}
