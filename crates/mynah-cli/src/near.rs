//! Option names that are almost one of Mynah's.

use mynah::{Metadata, Options};

use crate::text::quoted;

/// Names that scenario files have beside the options of the library.
const SCENARIO: [&str; 2] = ["halt_when", "tools"];

/// Warns on stderr of options that go to the provider because their name is unknown, and is probably misspelt.
pub(crate) fn warn(place: &str, options: &Metadata) {
    for name in options.keys() {
        if let Some(meant) = Options::meant(name, &SCENARIO) {
            let name = quoted(name);
            eprintln!(
                "warning: {place}: {name} goes to the provider as it is; did you mean {meant}?"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use mynah::Options;

    use super::SCENARIO;

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
            assert_eq!(Options::meant(name, &SCENARIO), Some(option), "{name}");
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
            assert_eq!(Options::meant(name, &SCENARIO), None, "{name}");
        }
    }
}
