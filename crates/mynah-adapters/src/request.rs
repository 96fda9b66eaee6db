//! What the formats ask of a request alike.

use std::{borrow::Cow, fs};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use mynah_data::{
    AdapterReason, CacheRetention, EngineReason, Error, Image, ImageError, ImageSource, Message,
    Metadata, Part, Request, Result, ToolCall, ToolSpec,
};
use mynah_step::ModelCall;
use serde_json::Value;

/// The model's id as the provider spells it.
pub(crate) fn model_id(request: &Request) -> Result<&str> {
    let model = request.model.as_ref().ok_or_else(|| Error::engine(EngineReason::MissingModel))?;
    Ok(&model.id)
}

/// The texts of a message as one, each on a line of its own.
pub(crate) fn joined_text(message: &Message) -> String {
    let texts = message.parts().iter().filter_map(|part| match part {
        Part::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The argument text of a call, for servers that read it again: what is not whole JSON becomes `{}`.
pub(crate) fn argument_object(call: &ToolCall) -> &str {
    if call.arguments.is_null() || call.raw_arguments.trim().is_empty() {
        "{}"
    } else {
        &call.raw_arguments
    }
}

/// A tool as OpenAI describes it, and whoever follows.
pub(crate) fn function(tool: &ToolSpec) -> Metadata {
    let mut function = Metadata::new();
    function.insert("name".to_owned(), tool.name.as_str().into());
    function.insert("description".to_owned(), tool.description.as_str().into());
    function.insert("parameters".to_owned(), tool.schema.clone());
    if let Some(strict) = tool.metadata.get("strict") {
        function.insert("strict".to_owned(), strict.clone());
    }
    function
}

/// How OpenAI is told to cache a prompt.
pub(crate) fn prompt_cache(request: &Request, call: &ModelCall, retention: bool) -> Metadata {
    let mut members = Metadata::new();
    if let Some(cache) = &request.prompt_cache {
        if let Some(key) = cache.key.as_ref().or(call.session_id.as_ref()) {
            members.insert("prompt_cache_key".to_owned(), key.as_str().into());
        }
        if retention && cache.retention == CacheRetention::Long {
            members.insert("prompt_cache_retention".to_owned(), "24h".into());
        }
    }
    members
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

pub(crate) fn invalid_image(why: ImageError) -> Error {
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

/// A request that the format cannot express.
pub(crate) fn unsupported(why: &str) -> Error {
    Error::adapter(AdapterReason::UnsupportedFeature)
        .with_message(format!("adapter error: unsupported_feature: {why}"))
}
