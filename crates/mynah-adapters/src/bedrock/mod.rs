//! Amazon Bedrock, by its Converse interface.

mod answer;
mod frames;
mod model;
mod profile;
mod request;
mod sign;

use std::borrow::Cow;

use mynah_data::{Error, Metadata, Request, Result};
use mynah_step::ModelCall;
use serde_json::Value;

#[doc(hidden)]
pub use self::frames::EventStreamFramer;
use crate::{
    form::Form,
    format::{Decoder, Format, Outgoing, Setting},
    request::{is_barred, model_name, path_segment},
    sse::Framer,
};

/// The format of `ConverseStream`.
///
/// A key that was given or set, or that is in `AWS_BEARER_TOKEN_BEDROCK`, goes as it is. Without one, calls are signed with
/// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, where there is one, `AWS_SESSION_TOKEN`. `AWS_REGION` or
/// `AWS_DEFAULT_REGION` says where the server is; so does the adapter option `region`.
///
/// Settings that these variables do not have are read from the files of Amazon's own tools,
/// `~/.aws/credentials` and `~/.aws/config`, or from `AWS_SHARED_CREDENTIALS_FILE` and
/// `AWS_CONFIG_FILE`: keys and region of the profile `AWS_PROFILE`, or else `default`. For a
/// profile without keys of its own, `aws configure export-credentials --format env` prints the
/// variables.
///
/// Beside what every format does: `cache_control` in the metadata of a text part, a message or a tool, and
/// [`Request::prompt_cache`], become cache points where the model takes them: for Claude, and for Nova in texts, for five minutes.
/// Options that Converse knows go to their places, all others to the model
/// itself, as `additionalModelRequestFields`: `reasoning_effort` as Claude and Nova have it, and `top_k` as Nova has it.
///
/// The objects of a schema for an answer are closed, as with
/// [`Anthropic`](crate::anthropic::Anthropic). Models that do not enforce a schema, such as Nova,
/// Llama and Claude before 4.5, get a tool of that format, which must be an object, and its input
/// becomes the text of the answer. The same holds for every model that must return any JSON object,
/// or one with members of any name. But Nova, and Claude models that cannot be forced to call a
/// tool, accept only a schema that names all members. Claude and Nova are forced to call that tool.
/// Models that Converse cannot force, such as Llama, Command and Jamba, are instructed to call it.
/// If they answer in words, the words are the answer.
///
/// Converse does not stream Llama's tool calls. A request with tools uses `Converse` instead.
///
/// All instructions stand above the conversation. Converse names a role for those within it, which its models refuse so far; and as
/// words of the user they would be no instructions any more. Claude models that take thoughts back only below the same instructions
/// do not get those from before the last of them.
///
/// ```
/// # mod mynah { pub use mynah_adapters as adapters; }
/// use mynah::adapters::bedrock::Bedrock;
/// use mynah::adapters::format::Format;
///
/// let region = |name: &str| (name == "AWS_REGION").then(|| "eu-west-1".to_owned());
/// let url = Bedrock::default().base_url(&mynah_step::ModelCall::default(), &region)?;
/// assert_eq!(url.as_deref(), Some("https://bedrock-runtime.eu-west-1.amazonaws.com"));
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Bedrock;

impl Format for Bedrock {
    fn path(&self, request: &Request) -> Cow<'static, str> {
        let model = model_name(request);
        let operation = match request::describes_tools(request) && !model::streams_calls(model) {
            true => "converse",
            false => "converse-stream",
        };
        format!("model/{}/{operation}", path_segment(model)).into()
    }

    fn base_url(&self, call: &ModelCall, setting: Setting<'_>) -> Result<Option<String>> {
        let region = region(call, setting)?;
        let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
        Ok(Some(format!("https://bedrock-runtime.{region}.amazonaws.com{suffix}")))
    }

    fn body(&self, request: &Request, call: &ModelCall) -> Result<Value> {
        request::body(request, call)
    }

    fn headers(&self, _: &ModelCall) -> Vec<(Cow<'static, str>, String)> {
        let accept = "application/vnd.amazon.eventstream, application/json";
        vec![("accept".into(), accept.to_owned())]
    }

    fn key_hint(&self) -> Option<&'static str> {
        Some(
            "the profile AWS_PROFILE of ~/.aws is read where it holds keys itself: \
             `aws configure export-credentials --format env` gives the variables of any other",
        )
    }

    fn stored(&self, name: &str, environment: Setting<'_>) -> Option<String> {
        profile::value(name, environment)
    }

    fn environment_opts(&self, setting: Setting<'_>) -> Metadata {
        let region = environment_region(setting).filter(|region| is_region(region));
        region.map(|region| ("region".to_owned(), region.into())).into_iter().collect()
    }

    fn authorize(&self, outgoing: &Outgoing<'_>) -> Result<Vec<(Cow<'static, str>, String)>> {
        if outgoing.key.source().starts_with(sign::ACCESS_KEY) {
            return sign::headers(outgoing, &region(outgoing.call, outgoing.setting)?);
        }
        let (name, value) = self.key_header(outgoing.key.expose());
        Ok(vec![(name.into(), value)])
    }

    fn framer(&self) -> Box<dyn Framer> {
        Box::new(EventStreamFramer::new())
    }

    fn decoder(&self, request: &Request) -> Box<dyn Decoder> {
        Box::new(answer::Answer::new(Form::new(request::form_tool(request))))
    }

    fn maker<'r>(&self, request: &'r Request) -> Option<&'r str> {
        model::maker(model_name(request))
    }

    /// A model that must call a tool for the format of its answer must not call others.
    fn needs_structured_finalize(&self, request: &Request) -> bool {
        !request.tools.is_empty() && !is_barred(request) && request::form_tool(request).is_some()
    }
}

/// What a region's name may hold: it becomes part of an address.
fn is_region(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn region(call: &ModelCall, setting: Setting<'_>) -> Result<String> {
    let named = call.adapter_opts.get("region").and_then(Value::as_str).map(str::to_owned);
    let region = named.or_else(|| environment_region(setting)).ok_or_else(|| {
        Error::invalid_option("region", "required").with_message(
            "no region; looked at the option region, AWS_REGION, AWS_DEFAULT_REGION, the profile",
        )
    })?;
    if is_region(&region) { Ok(region) } else { Err(Error::invalid_option("region", "malformed")) }
}

fn environment_region(setting: Setting<'_>) -> Option<String> {
    setting("AWS_REGION").or_else(|| setting("AWS_DEFAULT_REGION"))
}
