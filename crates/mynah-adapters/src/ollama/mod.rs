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
/// Of the options, those that the format has a member for are passed on as such (`think`, `keep_alive`, `truncate`, …), and
/// `reasoning_effort` says whether to `think`, and how much where the model has levels, as gpt-oss; all others are the model's own and go into its `options`, as do the temperature and the
/// limit on the answer. Images go as
/// their bytes: the server fetches nothing. It cannot be told to call a tool, and an answer whose form is given calls none.
///
/// ```
/// use mynah_adapters::{format::Format, ollama::Ollama};
/// use mynah_data::Request;
/// use mynah_step::ModelCall;
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
