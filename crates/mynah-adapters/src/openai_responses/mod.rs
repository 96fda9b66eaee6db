//! OpenAI Responses, and the servers that speak it.

mod answer;
mod items;
mod request;

use std::borrow::Cow;

use mynah_data::{Request, Result};
use mynah_step::ModelCall;
use serde_json::Value;

use crate::{
    fit,
    format::{Decoder, Format},
    request::{key_header, openai_headers},
};

/// The Responses format.
///
/// The provider stores nothing: calls have `store: false`, and encrypted reasoning comes back with
/// the next call. For a deployment whose name does not show its model, reasoning is requested if
/// the options configure reasoning, or in `include`. With `store`, `previous_response_id`,
/// `conversation` or `background` among the options the provider stores the conversation. All
/// options are passed on. `tools` and `include` are added to ours, the members of `text` and
/// `reasoning` go beside ours, and `reasoning_effort`, `reasoning_summary` and `verbosity` are put
/// where this format has them.
///
/// Every item that is neither a message nor a call goes back unchanged, and so does the phase of a
/// message. Calls of a custom tool have its text as their argument `input`, those of `apply_patch`
/// its `operation`. Actions on a computer or a shell are not calls: a shell may be the provider's
/// own, with the same item, and a computer is answered with a picture only, so that a failure could
/// not be reported. For models from gpt-5.6 on, `cache_control` in the metadata of a text part, an
/// image or a message becomes a `prompt_cache_breakpoint`.
///
/// ```
/// # mod mynah { pub use {mynah_adapters as adapters, mynah_data::*, mynah_step::*}; }
/// use mynah::{ModelCall, Request};
/// use mynah::adapters::format::Format;
/// use mynah::adapters::openai_responses::OpenAiResponses;
///
/// let request = Request::from("hi").with_model("gpt-4.1");
/// let body = OpenAiResponses::default().body(&request, &ModelCall::default())?;
/// assert_eq!(body["input"][0]["content"], "hi");
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenAiResponses {
    dialect: ResponsesDialect,
}

impl OpenAiResponses {
    /// As this server speaks it.
    pub const fn new(dialect: ResponsesDialect) -> Self {
        Self { dialect }
    }
}

/// How a server differs from OpenAI's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResponsesDialect {
    /// Whether models that do not reason may be asked for encrypted reasoning. OpenAI refuses such a call.
    pub always_encrypted: bool,
    /// Whether `prompt_cache_retention` is known, which OpenAI takes for models before gpt-5.6.
    pub cache_retention: bool,
    /// What the server takes of JSON Schema.
    pub schemas: fit::Dialect,
    /// Whether users name the models, so that a name is not reliable. If it is reliable,
    /// `reasoning_effort` and `reasoning_summary` are left out for OpenAI's models that do not
    /// reason.
    pub deployments: bool,
    /// The header of the key, where it is not `Authorization`.
    pub key_header: Option<&'static str>,
}

impl ResponsesDialect {
    /// OpenAI itself.
    pub const OPENAI: Self = Self {
        always_encrypted: false,
        cache_retention: true,
        schemas: fit::Dialect::OpenAiResponses,
        deployments: false,
        key_header: None,
    };
}

impl Default for ResponsesDialect {
    fn default() -> Self {
        Self::OPENAI
    }
}

impl Format for OpenAiResponses {
    fn path(&self, _: &Request) -> Cow<'static, str> {
        "responses".into()
    }

    fn body(&self, request: &Request, call: &ModelCall) -> Result<Value> {
        request::body(&self.dialect, request, call)
    }

    fn headers(&self, call: &ModelCall) -> Vec<(Cow<'static, str>, String)> {
        openai_headers(call)
    }

    fn key_header(&self, key: &str) -> (&'static str, String) {
        key_header(self.dialect.key_header, key)
    }

    fn decoder(&self, _: &Request) -> Box<dyn Decoder> {
        Box::new(answer::Answer::default())
    }
}
