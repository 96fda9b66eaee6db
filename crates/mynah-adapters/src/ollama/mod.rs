//! Ollama's own format.

mod answer;
mod request;

use std::borrow::Cow;

use mynah_data::{Request, Result};
use mynah_step::ModelCall;
use serde_json::Value;

use crate::{
    format::{Decoder, Format},
    request::is_barred,
    sse::{Framer, LineFramer},
};

/// The format of `/api/chat`.
///
/// Options that the format has a member for are passed on as such (`think`, `keep_alive`,
/// `truncate`, …). `reasoning_effort` sets `think`, with a level if the model has levels, as
/// gpt-oss does. All others are the model's own and go into its `options`, as do the temperature
/// and the limit on the answer. Images are sent as bytes: the server fetches nothing. A tool call
/// cannot be forced, and an answer with a given format calls none.
///
/// ```
/// # mod mynah { pub use {mynah_adapters as adapters, mynah_data::*, mynah_step::*}; }
/// use mynah::{ModelCall, Request};
/// use mynah::adapters::format::Format;
/// use mynah::adapters::ollama::Ollama;
///
/// let request = Request::from("hi").with_model("qwen3:4b").with_max_tokens(64);
/// let body = Ollama::default().body(&request, &ModelCall::default())?;
/// assert_eq!(body["options"]["num_predict"], 64);
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Ollama;

impl Format for Ollama {
    fn path(&self, _: &Request) -> Cow<'static, str> {
        "chat".into()
    }

    fn body(&self, request: &Request, _: &ModelCall) -> Result<Value> {
        request::body(request)
    }

    fn framer(&self) -> Box<dyn Framer> {
        Box::new(LineFramer::new())
    }

    fn decoder(&self, _: &Request) -> Box<dyn Decoder> {
        Box::new(answer::Answer::default())
    }

    /// What forces the form of the answer keeps the model from calling tools.
    fn needs_structured_finalize(&self, request: &Request) -> bool {
        !request.tools.is_empty() && !is_barred(request) && request::has_form(request)
    }
}
