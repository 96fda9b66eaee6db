//! What the formats ask of a request alike.

use std::{borrow::Cow, collections::BTreeSet, fs, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use mynah_data::{
    AdapterReason, CacheRetention, EngineReason, Error, Image, ImageDetail, ImageError,
    ImageSource, Message, Metadata, Part, Request, Result, Role, ToolCall, ToolChoice, ToolSpec,
};
use mynah_step::ModelCall;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    fit::{self, FittedTool},
    loose::tells,
    openai,
};

/// The model's id as the provider spells it.
pub(crate) fn model_id(request: &Request) -> Result<&str> {
    let model = request.model.as_ref().ok_or_else(missing_model)?;
    Ok(&model.id)
}

fn missing_model() -> Error {
    Error::engine(EngineReason::MissingModel).with_message(
        "engine error: missing_model: no model is named; set one with Engine::named or Engine::model, or name it in the request",
    )
}

/// As [`model_id`], for where nothing can fail; empty if there is none.
pub(crate) fn model_name(request: &Request) -> &str {
    request.model.as_ref().map_or("", |model| model.id.as_str())
}

/// Logs that a part of a request is not sent, because the model does not accept it.
pub(crate) fn tell_left_away(option: &str, request: &Request) {
    tracing::debug!(
        option,
        model = model_name(request),
        "an option is left away that the model does not take"
    );
}

/// Logs that the detail of images is not sent, for formats that cannot express it.
pub(crate) fn tell_no_detail(request: &Request) {
    let mut parts = request.messages.iter().flat_map(|message| message.parts());
    if parts.any(|part| matches!(part, Part::Image { detail, .. } if *detail != ImageDetail::Auto))
    {
        tell_left_away("detail", request);
    }
}

/// Text as one segment of a URL's path.
pub(crate) fn path_segment(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let mut written = String::with_capacity(text.len());
    for byte in text.bytes() {
        match is_plain(byte) {
            true => written.push(char::from(byte)),
            false => written.push_str(&format!("%{byte:02X}")),
        }
    }
    written
}

/// The turns of each side: consecutive messages of one side are merged, and empty ones are left
/// out.
pub(crate) fn turns<S: PartialEq>(
    said: impl Iterator<Item = Result<(S, Vec<Value>)>>,
) -> Result<Vec<(S, Vec<Value>)>> {
    let mut turns: Vec<(S, Vec<Value>)> = Vec::new();
    for said in said {
        let (side, mut parts) = said?;
        match turns.last_mut() {
            _ if parts.is_empty() => {}
            Some((last, known)) if *last == side => known.append(&mut parts),
            _ => turns.push((side, parts)),
        }
    }
    Ok(turns)
}

/// The conversation without the system's messages.
pub(crate) fn dialogue(request: &Request) -> impl Iterator<Item = &Message> {
    request.messages.iter().map(AsRef::as_ref).filter(|message| message.role() != Role::System)
}

/// The texts of a message as one, each on a line of its own.
pub(crate) fn joined_text(message: &Message) -> Cow<'_, str> {
    let mut texts = message.parts().iter().filter_map(|part| match part {
        Part::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    let mut joined = Cow::Borrowed(texts.next().unwrap_or_default());
    for text in texts {
        let joined = joined.to_mut();
        joined.push('\n');
        joined.push_str(text);
    }
    joined
}

/// Refuses to forbid several calls at once, for formats that cannot say it.
pub(crate) fn check_parallel(parallel: &Value, request: &Request) -> Result<()> {
    match parallel.as_bool() {
        Some(false) if !request.tools.is_empty() => {
            Err(unsupported("this provider cannot be kept from calling several tools at once"))
        }
        _ => Ok(()),
    }
}

/// Whether the choice of a tool says anything. Without tools it is refused, and only a call that was demanded is missed.
pub(crate) fn chooses(request: &Request) -> bool {
    has_tools(request) || !matches!(request.tool_choice, Some(ToolChoice::Auto | ToolChoice::None))
}

/// Whether there is any tool, ours or the provider's own.
pub(crate) fn has_tools(request: &Request) -> bool {
    !request.tools.is_empty() || request.options.get("tools").is_some_and(tells)
}

/// Whether no tool may be called. Formats that cannot express it for the provider's own tools leave
/// those out.
pub(crate) fn is_barred(request: &Request) -> bool {
    request.tool_choice == Some(ToolChoice::None)
}

/// Adds the tools that stand among a request's options, one or several, in the provider's own words. Ours come first.
pub(crate) fn add_tools(body: &mut Metadata, own: Value) {
    if let (true, Value::Array(own)) = (tells(&own), several(own)) {
        match body.get_mut("tools") {
            Some(Value::Array(tools)) => tools.extend(own),
            _ => drop(body.insert("tools".to_owned(), own.into())),
        }
    }
}

/// The argument text of a call, for servers that parse it again: incomplete JSON becomes `{}`.
pub(crate) fn argument_object(call: &ToolCall) -> &str {
    if call.arguments.is_null() || call.raw_arguments.trim().is_empty() {
        "{}"
    } else {
        &call.raw_arguments
    }
}

/// The arguments of a call, for servers that take them as an object.
pub(crate) fn argument_map(call: &ToolCall) -> Value {
    if call.arguments.is_object() { call.arguments.clone() } else { json!({}) }
}

/// Whether text is blank. Some servers refuse it.
pub(crate) fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// Whether a tool's result is a failure.
pub(crate) fn is_error(result: &Message) -> bool {
    result.metadata().get("is_error").and_then(Value::as_bool) == Some(true)
}

/// The text of a tool's result, for formats that have no other place for a failure.
pub(crate) fn result_text(result: &Message) -> Cow<'_, str> {
    let text = joined_text(result);
    match is_error(result) && !tells_failure(&text) {
        true => format!("error: {text}").into(),
        false => text,
    }
}

/// Whether text itself reports a failure: in its first word, or as an object with an `error`.
fn tells_failure(text: &str) -> bool {
    let word = text.trim_start().get(.."error".len());
    let object = || serde_json::from_str::<Metadata>(text);
    word.is_some_and(|word| word.eq_ignore_ascii_case("error"))
        || object().is_ok_and(|object| object.contains_key("error"))
}

/// The media type of an image and its bytes as base64.
pub(crate) fn inline_image(image: &Image) -> Result<(&str, String)> {
    let media_type = image.mime_type.as_deref().ok_or(ImageError::MissingMimeType);
    Ok((media_type.map_err(invalid_image)?, image_base64(image)?))
}

/// Ids of other providers may hold what this one refuses.
pub(crate) fn plain_id(id: &str) -> String {
    id.chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' })
        .collect()
}

/// The tools that were called in the conversation, by name only.
pub(crate) fn called_tools(request: &Request) -> Vec<Arc<ToolSpec>> {
    let calls = request.messages.iter().flat_map(|message| message.tool_calls());
    let names: BTreeSet<&str> = calls.map(|call| call.name.as_str()).collect();
    let tool = |name| Arc::new(ToolSpec::new(name, "", json!({"type": "object"})));
    names.into_iter().map(tool).collect()
}

/// `top_p` as `topP`.
pub(crate) fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut written = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        written.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        written.push_str(letters.as_str());
    }
    written
}

/// One or several, for servers that want a list.
pub(crate) fn several(value: Value) -> Value {
    if value.is_array() { value } else { json!([value]) }
}

/// Adds to a member that is an object, and makes it if need be.
pub(crate) fn extend_member(body: &mut Metadata, name: &str, members: Metadata) {
    if members.is_empty() {
        return;
    }
    match body.get_mut(name) {
        Some(Value::Object(known)) => known.extend(members),
        _ => drop(body.insert(name.to_owned(), Value::Object(members))),
    }
}

/// A tool as OpenAI describes it, and servers that follow it.
#[derive(Serialize)]
pub(crate) struct Function<'t> {
    name: &'t str,
    description: &'t str,
    parameters: Arc<FittedTool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

/// The tool with its schema as the dialect takes it.
pub(crate) fn function(tool: &Arc<ToolSpec>, dialect: fit::Dialect) -> Result<Function<'_>> {
    let parameters = fit::tool(tool, dialect)?;
    let strict = parameters.fitted.strict_member(tool);
    Ok(Function { name: &tool.name, description: &tool.description, parameters, strict })
}

/// How OpenAI is asked to cache a prompt.
pub(crate) fn prompt_cache(
    request: &Request,
    call: &ModelCall,
    retention: bool,
) -> Vec<(&'static str, Value)> {
    let mut members = Vec::new();
    if let Some(cache) = &request.prompt_cache {
        if let Some(key) = cache.key.as_ref().or(call.session_id.as_ref()) {
            members.push(("prompt_cache_key", key.as_str().into()));
        }
        let is_known = retention && !openai::takes_breakpoints(model_name(request));
        if is_known && cache.retention == CacheRetention::Long {
            members.push(("prompt_cache_retention", "24h".into()));
        }
    }
    members
}

/// How Anthropic and compatible servers are asked to cache a prompt.
pub(crate) fn cache_control(retention: CacheRetention) -> Value {
    match retention {
        CacheRetention::Long => json!({"type": "ephemeral", "ttl": "1h"}),
        _ => json!({"type": "ephemeral"}),
    }
}

/// What `cache_control` in the metadata of a part or a message becomes: the prompt is cached up to
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheMarks {
    /// Nothing: the server does not support it.
    Nothing,
    /// OpenAI's `prompt_cache_breakpoint`.
    Breakpoints,
    /// The same member of the part.
    CacheControl,
}

impl CacheMarks {
    /// As OpenAI takes them for this model.
    pub(crate) fn of_openai(model: &str) -> Self {
        if openai::takes_breakpoints(model) { Self::Breakpoints } else { Self::Nothing }
    }

    /// Whether anything of a message is marked.
    pub(crate) fn are_in(self, message: &Message) -> bool {
        let is_marked = |part: &Part| match part {
            Part::Text { metadata, .. } | Part::Image { metadata, .. } => {
                metadata.contains_key("cache_control")
            }
            _ => false,
        };
        self != Self::Nothing
            && (message.metadata().contains_key("cache_control")
                || message.parts().iter().any(is_marked))
    }

    /// Marks a part as its metadata says.
    pub(crate) fn put(self, mut part: Value, metadata: &Metadata) -> Value {
        match (self, metadata.get("cache_control")) {
            (Self::Breakpoints, Some(_)) => {
                part["prompt_cache_breakpoint"] = json!({"mode": "explicit"});
            }
            (Self::CacheControl, Some(mark)) => part["cache_control"] = mark.clone(),
            _ => {}
        }
        part
    }

    /// Marks the last part as the message's own metadata says.
    pub(crate) fn put_last(self, mut parts: Vec<Value>, message: &Message) -> Vec<Value> {
        let last = parts.pop().map(|part| self.put(part, message.metadata()));
        parts.extend(last);
        parts
    }
}

/// The address of an image: its own, or one that holds its bytes.
pub(crate) fn image_url(image: &Image) -> Result<String> {
    match &image.source {
        ImageSource::Url(url) => Ok(url.clone()),
        _ => image.to_data_uri(|path| fs::read(path)).map_err(invalid_image),
    }
}

/// The bytes of an image as base64.
pub(crate) fn image_base64(image: &Image) -> Result<String> {
    match &image.source {
        ImageSource::Base64(text) => Ok(text.clone()),
        _ => Ok(STANDARD.encode(image.to_binary(|path| fs::read(path)).map_err(invalid_image)?)),
    }
}

fn invalid_image(why: ImageError) -> Error {
    Error::adapter(AdapterReason::InvalidRequest).with_message(why.to_string())
}

/// The headers that OpenAI knows beside the key's.
pub(crate) fn openai_headers(call: &ModelCall) -> Vec<(Cow<'static, str>, String)> {
    let organization = call.adapter_opts.get("organization").and_then(Value::as_str);
    organization.map(|id| ("openai-organization".into(), id.to_owned())).into_iter().collect()
}

/// The key in a header of its own, or as a bearer.
pub(crate) fn key_header(own: Option<&'static str>, key: &str) -> (&'static str, String) {
    match own {
        Some(name) => (name, key.to_owned()),
        None => ("authorization", format!("Bearer {key}")),
    }
}

/// A request that cannot be written as JSON.
pub(crate) fn unwritable(why: serde_json::Error) -> Error {
    Error::adapter(AdapterReason::InvalidRequest).with_message(format!(
        "adapter error: invalid_request: the request cannot be written: {why}"
    ))
}

/// A request that the format cannot express.
pub(crate) fn unsupported(why: &str) -> Error {
    Error::adapter(AdapterReason::UnsupportedFeature)
        .with_message(format!("adapter error: unsupported_feature: {why}"))
}

/// A form of the answer that the format cannot ask for.
pub(crate) fn unsupported_form(why: &str) -> Error {
    Error::engine(EngineReason::UnsupportedResponseFormat)
        .with_message(format!("engine error: unsupported_response_format: {why}"))
}
