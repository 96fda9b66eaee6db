//! What the formats ask of a request alike.

use mynah_data::{AdapterReason, EngineReason, Error, Message, Part, Request, Result, ToolCall};

/// The model's id as the provider spells it.
pub(crate) fn model_id(request: &Request) -> Result<&str> {
    let model = request.model.as_ref().ok_or_else(|| Error::engine(EngineReason::MissingModel))?;
    Ok(&model.id)
}

/// The texts of a message as one, each on a line of its own.
pub(crate) fn joined_text(message: &Message) -> String {
    let texts = message.parts().iter().filter_map(|part| match part {
        Part::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The argument text of a call, for servers that read it again: what is not whole JSON becomes `{}`.
pub(crate) fn argument_object(call: &ToolCall) -> &str {
    if call.arguments.is_null() || call.raw_arguments.trim().is_empty() {
        "{}"
    } else {
        &call.raw_arguments
    }
}

/// A request that the format cannot express.
pub(crate) fn unsupported(why: &str) -> Error {
    Error::adapter(AdapterReason::UnsupportedFeature)
        .with_message(format!("adapter error: unsupported_feature: {why}"))
}
