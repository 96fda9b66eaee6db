//! Gemini.

mod answer;
mod request;
mod schema;

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
/// Beside what every format does: signatures of thoughts, code that the provider ran and what came of it go back where they
/// came. Options go to `generationConfig`, but for those that stand beside it (`cachedContent`, `safetySettings`, `tools`
/// and their like); `stop`, `max_tokens` and names in snake case are understood as other providers mean them.
///
/// Models before Gemini 3 cannot call functions and write JSON in one answer.
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
        !request.tools.is_empty() && has_form && is_before_3(model_name(request))
    }
}

fn is_before_3(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or_default();
    ["gemini-1", "gemini-2"].iter().any(|older| name.starts_with(older))
}
