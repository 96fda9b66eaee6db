//! Anthropic Messages.

mod answer;
mod counters;
mod request;

use std::borrow::Cow;

use mynah_data::{Request, Result};
use mynah_step::ModelCall;
use serde_json::Value;

use crate::{
    form::Form,
    format::{Decoder, Format},
    request::is_barred,
};

/// The Messages format.
///
/// Beside what every format does: reasoning goes back with its signature, and each block that means nothing to others as it
/// came. `cache_control` in the metadata of a text part, a message or a tool marks a place up
/// to which the prompt is cached; [`Request::prompt_cache`] leaves the place to the provider. Of the options, `stop`,
/// `parallel_tool_calls` and `reasoning_effort` are understood as other providers mean them, and all others are passed on.
///
/// Instructions that come in the middle of a conversation stay there where the model takes them, behind what the user says: newer
/// models take their thinking back only where nothing before it has changed. For older ones all instructions stand above.
///
/// A refusal is told by the provider, which keeps the model from going on: its explanation is the refusal, and what the model
/// had said before stays the text.
///
/// A JSON schema is enforced by the provider where the model can do that: objects are closed, and what the provider does not
/// enforce, such as `minimum`, goes into the descriptions. Older models are made to call a tool with that
/// schema, which must be one of an object, and what they give it is the text of the answer. So is every model that is to give
/// any JSON object, or one that has an object with members of any name in it; those that cannot be made to call a tool, from
/// Fable 5.1, Opus 5.5 and Sonnet 5.5 on, take a schema that names all members alone.
/// Models before Opus 4.8 cannot be made to call it where the options let them think.
/// That tool changes what the model saw when it thought before, so such a call leaves thoughts away where the provider would refuse
/// them.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Anthropic;

/// The version of the interface that is spoken.
const VERSION: &str = "2023-06-01";

impl Format for Anthropic {
    fn path(&self, _: &Request) -> Cow<'static, str> {
        "messages".into()
    }

    fn body(&self, request: &Request, call: &ModelCall) -> Result<Value> {
        request::body(request, call)
    }

    fn headers(&self, _: &ModelCall) -> Vec<(Cow<'static, str>, String)> {
        vec![("anthropic-version".into(), VERSION.to_owned())]
    }

    fn key_header(&self, key: &str) -> (&'static str, String) {
        ("x-api-key", key.to_owned())
    }

    fn decoder(&self, request: &Request) -> Box<dyn Decoder> {
        Box::new(answer::Answer::new(Form::new(request::form_tool(request))))
    }

    /// A model that is made to call a tool for the form of its answer cannot call others.
    fn needs_structured_finalize(&self, request: &Request) -> bool {
        !request.tools.is_empty() && !is_barred(request) && request::form_tool(request).is_some()
    }
}
