//! Answers by a JSON Schema: whether one is as its run asked for it.

use mynah::{
    AdapterReason, Error, FinishReason, HaltReason, Response, ResponseFormat,
    log::{About, Fact},
    misfits, unfenced,
};
use serde_json::{Value, json};

/// Checks an answer with a schema. An answer that calls tools is not checked.
///
/// Not every provider enforces a schema, and none can in an answer that it cuts off.
///
/// # Errors
/// An answer that is not JSON or does not fit (`malformed_response`).
pub fn check(schema: &Value, response: &Response) -> mynah::Result<()> {
    if response.finish_reason == Some(FinishReason::ToolCalls) {
        return Ok(());
    }
    let Err(why) = fits(schema, &response.text()) else { return Ok(()) };
    let cut_off = cut_off(response).map(|how| format!("was cut off {how} and so "));
    let cut_off = cut_off.unwrap_or_default();
    let message = format!("adapter error: malformed_response: the answer {cut_off}{why}");
    Err(Error::adapter(AdapterReason::MalformedResponse)
        .with_message(message)
        .with("response", json!(response)))
}

/// Why the answer of a completed run does not fit the schema that the run asked for; none if it fits, or if there is neither.
pub fn misfit<'f>(facts: impl IntoIterator<Item = &'f Fact>) -> Option<Error> {
    let (mut schema, mut answer, mut failure, mut is_done) = (None, None, None, false);
    for fact in facts {
        match fact {
            Fact::RunStarted { about: Some(about), .. }
            | Fact::Resumed { about: Some(about), .. } => schema = schema_of(about),
            Fact::AssistantCompleted { response, .. } => answer = Some(response),
            Fact::FinalizeFailed { error } => failure = Some(error),
            Fact::Completed(end) => is_done = end.reason == HaltReason::Completed,
            _ => {}
        }
    }
    let (schema, answer) = schema.zip(answer).filter(|_| is_done)?;
    let misfit = check(&schema, answer).err()?;
    // The call that would have formatted the answer failed: that is why.
    Some(failure.cloned().unwrap_or(misfit))
}

/// How the provider cut an answer off, if it did.
pub fn cut_off(response: &Response) -> Option<&'static str> {
    match response.finish_reason {
        Some(FinishReason::Length) => Some("at its token limit"),
        Some(FinishReason::ContentFilter) => Some("by a content filter"),
        _ => None,
    }
}

/// The schema of the answers of a recorded run.
fn schema_of(about: &About) -> Option<Value> {
    let name = "response_format";
    let format = about.options.get(name).or_else(|| about.params.get(name))?;
    match serde_json::from_value(format.clone()).ok()? {
        ResponseFormat::JsonSchema { schema, .. } => Some(schema),
        _ => None,
    }
}

/// An answer as JSON. A Markdown fence around it is left out, as [`Response::into_json`] does.
pub(crate) fn read(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(unfenced(text))
}

/// The message for an answer that does not fit, with every place.
fn fits(schema: &Value, text: &str) -> Result<(), String> {
    // Another schema was refused before.
    if jsonschema::validator_for(schema).is_err() {
        return Ok(());
    }
    let answer = read(text).map_err(|error| format!("is not JSON: {error}"))?;
    match misfits(schema, &answer, "the answer") {
        Some(why) => Err(format!("does not fit the schema: {why}")),
        None => Ok(()),
    }
}
