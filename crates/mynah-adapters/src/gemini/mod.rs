//! Gemini.

mod answer;
mod counters;
mod pieces;
mod request;

use std::borrow::Cow;

use mynah_data::{Request, ResponseFormat, Result};
use mynah_step::ModelCall;
use serde_json::Value;

use crate::{
    format::{Decoder, Format},
    request::{model_name, path_segment},
};

/// The format of `generateContent`, streamed.
///
/// In addition to the common features: signatures of thoughts, code that the provider ran and its
/// results go back unchanged. Options go to `generationConfig`, except those beside it
/// (`cachedContent`, `safetySettings`, `tools` and similar). `stop`, `max_tokens`,
/// `reasoning_effort` and names in snake case have the meaning that other providers give them.
///
/// Models before Gemini 3 cannot call functions and write JSON in one answer.
///
/// ```
/// # mod mynah { pub use mynah_adapters as adapters; }
/// use mynah::adapters::format::Format;
/// use mynah::adapters::gemini::Gemini;
///
/// let request = mynah_data::Request::from("hi").with_model("gemini-2.5-flash");
/// assert_eq!(Gemini::default().path(&request), "models/gemini-2.5-flash:streamGenerateContent?alt=sse");
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Gemini;

impl Format for Gemini {
    fn path(&self, request: &Request) -> Cow<'static, str> {
        let id = model_name(request);
        let name: Vec<String> = id.split('/').map(path_segment).collect();
        let folder = if name.len() == 1 { "models/" } else { "" };
        format!("{folder}{}:streamGenerateContent?alt=sse", name.join("/")).into()
    }

    fn body(&self, request: &Request, _: &ModelCall) -> Result<Value> {
        request::body(request)
    }

    fn key_header(&self, key: &str) -> (&'static str, String) {
        ("x-goog-api-key", key.to_owned())
    }

    fn decoder(&self, _: &Request) -> Box<dyn Decoder> {
        Box::new(answer::Answer::default())
    }

    fn needs_structured_finalize(&self, request: &Request) -> bool {
        let has_form = !matches!(request.response_format, None | Some(ResponseFormat::Text));
        !request.tools.is_empty()
            && has_form
            && generation(model_name(request)).is_some_and(|number| number < 3)
    }
}

/// The number in `gemini-3-pro-preview`; none if the name has none.
fn generation(model: &str) -> Option<u32> {
    let version = model.rsplit('/').next()?.strip_prefix("gemini-")?;
    version.split(['-', '.']).next()?.parse().ok()
}

/// Whether a model is a Gemini 3, or came after it: so did all that are called the latest ones, as `gemini-flash-latest` is.
fn is_third(model: &str) -> bool {
    match generation(model) {
        Some(number) => number >= 3,
        None => model.contains("gemini-") && model.ends_with("-latest"),
    }
}
