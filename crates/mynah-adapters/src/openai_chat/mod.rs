//! OpenAI Chat Completions, and the servers that speak it.
//!
//! What differs between servers is a [`ChatDialect`]: data, not code.

mod answer;
mod request;

use std::borrow::Cow;

use mynah_data::{Request, Result};
use mynah_step::ModelCall;
use serde_json::{Value, to_value, to_writer};

use crate::{
    fit,
    format::{Decoder, Format},
    request::{has_tools, key_header, model_name, openai_headers, unwritable},
};

/// The Chat Completions format. Calls of a custom tool have its text as their argument `input`.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenAiChat {
    dialect: ChatDialect,
}

impl OpenAiChat {
    /// As this server speaks it.
    pub const fn new(dialect: ChatDialect) -> Self {
        Self { dialect }
    }
}

/// How a server differs from OpenAI's own.
///
/// ```
/// # mod mynah { pub use mynah_adapters as adapters; }
/// use mynah::adapters::openai_chat::{ChatDialect, OpenAiChat, ReasoningBack};
///
/// let mut dialect = ChatDialect::COMPATIBLE;
/// dialect.usage_on_request = false;
/// dialect.reasoning_back = ReasoningBack::Field("reasoning_content");
/// let format = OpenAiChat::new(dialect);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChatDialect {
    /// Whether usage must be asked for with `stream_options`.
    pub usage_on_request: bool,
    /// Which models take `max_completion_tokens` for the limit, instead of `max_tokens`.
    pub max_completion_tokens: CompletionTokens,
    /// How the server is asked to cache a prompt.
    pub prompt_cache: PromptCaching,
    /// Which calls may ask for an answer that fits a JSON schema.
    pub json_schema: JsonSchemas,
    /// What the server takes of JSON Schema.
    pub schemas: fit::Dialect,
    /// Whether messages may name their author.
    pub names: bool,
    /// Whether user and model must take turns below all instructions. What the same one says in a row is then one message.
    pub turns: bool,
    /// Whether the id of a call must be nine letters or digits. It must wherever a model is one of `mistralai/`.
    pub short_call_ids: bool,
    /// How reasoning goes back.
    pub reasoning_back: ReasoningBack,
    /// Whether a model with the name of an OpenAI model is one. From gpt-5.6 on, those call tools
    /// here only without reasoning. A call with tools switches reasoning off unless it sets it, and
    /// is refused for models that cannot switch it off.
    pub openai_models: bool,
    /// Whether users name the models, so that a name is not reliable. If it is reliable,
    /// `reasoning_effort` is left out for OpenAI's models that do not reason.
    pub deployments: bool,
    /// The header of the key, where it is not `Authorization`.
    pub key_header: Option<&'static str>,
}

/// Which models know the newer name of the limit. Those that reason know no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompletionTokens {
    /// None.
    Never,
    /// Those that are called as OpenAI's newer models are.
    NewerModels,
    /// All that are not called as OpenAI's oldest models are: for servers where users name the models.
    NotTheOldest,
}

/// Which calls may hold a JSON schema in `response_format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JsonSchemas {
    /// None.
    Never,
    /// Those without tools whose answer comes in one piece: such answers are not streamed.
    Alone,
    /// All.
    Always,
}

/// How a server is asked to cache a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PromptCaching {
    /// Not at all.
    Never,
    /// As OpenAI: with `prompt_cache_key`. For models from gpt-5.6 on, `cache_control` in the metadata of a text part, an image
    /// or a message becomes a `prompt_cache_breakpoint`; for those before, `prompt_cache_retention` says how long.
    OpenAi,
    /// As Anthropic: with `cache_control`, in marked parts of all models, and for all of the prompt in calls of `anthropic/`.
    CacheControl,
}

/// How the reasoning of earlier answers goes back to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReasoningBack {
    /// Not at all.
    Never,
    /// As text in this member of the message.
    Field(&'static str),
    /// As text in this member, for models that are called as those that reason are: the others refuse it.
    FieldOfReasoners(&'static str),
    /// As `reasoning_details`, as they came.
    Details,
    /// As a part of the content, of type `thinking`.
    Thinking,
}

impl ChatDialect {
    /// OpenAI itself.
    pub const OPENAI: Self = Self {
        usage_on_request: true,
        max_completion_tokens: CompletionTokens::NewerModels,
        prompt_cache: PromptCaching::OpenAi,
        json_schema: JsonSchemas::Always,
        schemas: fit::Dialect::OpenAiChat,
        names: true,
        turns: false,
        short_call_ids: false,
        reasoning_back: ReasoningBack::Never,
        openai_models: true,
        deployments: false,
        key_header: None,
    };

    /// What most other servers understand.
    pub const COMPATIBLE: Self = Self {
        max_completion_tokens: CompletionTokens::Never,
        prompt_cache: PromptCaching::Never,
        schemas: fit::Dialect::Plain,
        names: false,
        openai_models: false,
        ..Self::OPENAI
    };
}

impl Default for ChatDialect {
    fn default() -> Self {
        Self::OPENAI
    }
}

impl Format for OpenAiChat {
    fn path(&self, _: &Request) -> Cow<'static, str> {
        "chat/completions".into()
    }

    fn body(&self, request: &Request, call: &ModelCall) -> Result<Value> {
        to_value(request::body(&self.dialect, request, call)?).map_err(unwritable)
    }

    fn write_body(&self, request: &Request, call: &ModelCall, body: &mut Vec<u8>) -> Result<()> {
        let written = request::body(&self.dialect, request, call)?;
        to_writer(body, &written).map_err(unwritable)
    }

    fn headers(&self, call: &ModelCall) -> Vec<(Cow<'static, str>, String)> {
        openai_headers(call)
    }

    fn key_header(&self, key: &str) -> (&'static str, String) {
        key_header(self.dialect.key_header, key)
    }

    fn decoder(&self, _: &Request) -> Box<dyn Decoder> {
        Box::new(answer::Answer::new())
    }

    /// Where a schema stands alone, the tools must have been called before.
    fn needs_structured_finalize(&self, request: &Request) -> bool {
        has_tools(request) && request::stands_alone(&self.dialect, request)
    }

    /// A gateway names the maker before the model.
    fn maker<'r>(&self, request: &'r Request) -> Option<&'r str> {
        let is_gateway = self.dialect.reasoning_back == ReasoningBack::Details;
        let (maker, _) = model_name(request).split_once('/').filter(|_| is_gateway)?;
        Some(maker)
    }
}
