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
/// Instructions inside a conversation stay at their place if the model accepts them there, after
/// the user's message: newer models accept their earlier thinking only if nothing before it has
/// changed. For older models all instructions are moved to the top.
///
/// The provider reports a refusal and stops the model. Its explanation is the refusal, and the
/// earlier output stays the text.
///
/// The provider enforces a JSON schema if the model supports it: objects are closed, and
/// constraints that it does not enforce, such as `minimum`, go into the descriptions. Older models
/// must call a tool with that schema, which must be an object, and the tool's input becomes the
/// text of the answer. The same holds for every model that must return any JSON object, or one with
/// members of any name. Models that cannot be forced to call a tool, from Fable 5.1, Opus 5.5 and
/// Sonnet 5.5 on, accept only a schema that names all members. Models before Opus 4.8 cannot be
/// forced to call it while thinking is enabled. That tool changes what the model saw when it
/// thought before, so such a call omits thinking blocks that the provider would refuse.
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
