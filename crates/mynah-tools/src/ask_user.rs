//! A question to the user.

use mynah_data::{Metadata, ToolOutcome};
use mynah_step::Tool;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::{
    text::control_character,
    typed::{Outcome, refused, typed},
};

/// The most choices that a question may offer.
const MAX_CHOICES: usize = 20;
/// The longest question or choice, in bytes.
const MAX_LENGTH: usize = 4_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The question, as the user reads it.
    question: String,
    /// Answers that the user can choose from. Leave it out for a free answer.
    choices: Option<Vec<String>>,
}

/// A tool that asks the user a question: `ask_user`.
///
/// The conversation is suspended until the user answers. The choices, if there are any, are in the `opts` of the question, as
/// `choices`.
///
/// A question with control characters is refused, because a terminal would obey them.
///
/// ```
/// assert_eq!(mynah_tools::ask_user().name(), "ask_user");
/// ```
pub fn ask_user() -> Tool {
    let description = "Asks the user a question and waits for the answer. \
        Use it when you need a decision or a fact that only the user has.";
    typed("ask_user", description, async |args, _| ask(args)).idempotent(1)
}

fn ask(Args { question, choices }: Args) -> Outcome<()> {
    let choices = choices.unwrap_or_default();
    if question.trim().is_empty() {
        return refused("the question is empty");
    }
    if choices.len() > MAX_CHOICES {
        let count = choices.len();
        return refused(format!("{count} choices are too many; offer at most {MAX_CHOICES}"));
    }
    for text in [&question].into_iter().chain(&choices) {
        if text.len() > MAX_LENGTH {
            let length = text.len();
            return refused(format!(
                "a text of {length} bytes is too long for a question; use at most {MAX_LENGTH}"
            ));
        }
        if let Some(found) = control_character(text) {
            return refused(format!(
                "the question contains the control character {found:?}; use plain text"
            ));
        }
    }
    let mut opts = Metadata::new();
    if !choices.is_empty() {
        opts.insert("choices".to_owned(), json!(choices));
    }
    Err(ToolOutcome::ask_with(question, opts))
}
