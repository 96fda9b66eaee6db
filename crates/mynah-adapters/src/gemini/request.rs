//! A request as Gemini wants it.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use mynah_data::{
    Image, ImageSource, Message, Metadata, Part, Request, ResponseFormat, Result, Role, ToolCall,
    ToolChoice, ToolSpec,
};
use serde_json::{Value, json};

use super::{generation, is_third};
use crate::{
    fit::{self, Dialect, Fitted},
    request::{
        add_tools, argument_map, camel_case, check_parallel, dialogue, extend_member, inline_image,
        is_barred, is_error, joined_text, model_id, several, tell_no_detail, turns,
    },
};

/// The calls of the conversation, by id.
type Calls<'r> = HashMap<&'r str, &'r ToolCall>;

/// In the metadata of a call: the provider gave it no id, and is not to get one.
pub(super) const WITHOUT_ID: &str = "without_id";

/// In the metadata of a call: what the provider must get back with it.
pub(super) const SIGNATURE: &str = "thoughtSignature";

/// Marks an answer that stopped before its end, and the request that continues it.
pub(super) const CONTINUATION: &str = "continuationToken";

/// What newer models take for the signature of a call that another model made.
const UNSIGNED: &str = "skip_thought_signature_validator";

/// Options beside `generationConfig`.
const BESIDE: [&str; 7] = [
    "cachedContent",
    CONTINUATION,
    "labels",
    "safetySettings",
    "serviceTier",
    "store",
    "systemInstruction",
];

pub(super) fn body(request: &Request) -> Result<Value> {
    tell_no_detail(request);
    let model = model_id(request)?;
    let mut body = Metadata::new();
    let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
    if let Some(text) = instructions(request) {
        set("systemInstruction", json!({"parts": [{"text": text}]}));
    }
    set("contents", contents(request, is_third(model))?.into());
    if let Some(token) = request.messages.last().and_then(|message| continuation(message)) {
        set(CONTINUATION, token.clone());
    }
    if !request.tools.is_empty() {
        let functions = request.tools.iter().map(declaration);
        let functions = functions.collect::<Result<Vec<Value>>>()?;
        set("tools", json!([{"functionDeclarations": functions}]));
        if let Some(choice) = &request.tool_choice {
            set("toolConfig", json!({"functionCallingConfig": tool_choice(choice)}));
        }
    }
    let mut config = generation_config(request)?;
    for (name, value) in request.options.clone() {
        match (camel_case(&name).as_str(), value) {
            ("tools", _) if is_barred(request) => {}
            ("tools", value) => add_tools(&mut body, value),
            ("generationConfig", Value::Object(own)) => config.extend(own),
            ("toolConfig", Value::Object(own)) => extend_member(&mut body, "toolConfig", own),
            ("parallelToolCalls", value) => check_parallel(&value, request)?,
            ("stop", value) => drop(config.insert("stopSequences".to_owned(), several(value))),
            ("reasoningEffort", value) => {
                extend_member(&mut config, "thinkingConfig", thinking(model, value));
            }
            ("thinkingConfig", Value::Object(own)) => {
                extend_member(&mut config, "thinkingConfig", own);
            }
            ("maxTokens", value) => drop(config.insert("maxOutputTokens".to_owned(), value)),
            (own, value) if BESIDE.contains(&own) => drop(body.insert(own.to_owned(), value)),
            (own, value) => drop(config.insert(own.to_owned(), value)),
        }
    }
    extend_member(&mut body, "generationConfig", config);
    Ok(Value::Object(body))
}

fn generation_config(request: &Request) -> Result<Metadata> {
    let mut config = Metadata::new();
    let mut set = |name: &str, value: Value| drop(config.insert(name.to_owned(), value));
    if let Some(max_tokens) = request.max_tokens {
        set("maxOutputTokens", max_tokens.into());
    }
    if let Some(temperature) = request.temperature {
        set("temperature", temperature.into());
    }
    match &request.response_format {
        Some(ResponseFormat::JsonObject) => set("responseMimeType", "application/json".into()),
        Some(ResponseFormat::JsonSchema { name, schema, strict }) => {
            set("responseMimeType", "application/json".into());
            let fitted = |dialect| fit::answer(name, schema, dialect, *strict);
            let (name, schema) = member(fitted, "responseSchema", "responseJsonSchema")?;
            set(name, schema);
        }
        Some(ResponseFormat::Other(own)) => config.extend(own.clone()),
        _ => {}
    }
    Ok(config)
}

/// A schema and the member that holds it: that of `open_api` if nothing needs to be rewritten for it, since every server knows it; else
/// that of `json`, which takes more and which older servers do not know.
fn member<'n>(
    fitted: impl Fn(Dialect) -> Result<Fitted>,
    open_api: &'n str,
    json: &'n str,
) -> Result<(&'n str, Value)> {
    let Fitted { schema, notes, .. } = fitted(Dialect::GeminiOpenApi)?;
    Ok(match notes.is_empty() {
        true => (open_api, schema),
        false => (json, fitted(Dialect::GeminiJson)?.schema),
    })
}

/// The thinking budget, by the provider's own table for OpenAI's levels. Models before Gemini 3
/// count tokens.
fn thinking(model: &str, effort: Value) -> Metadata {
    /// Models that know the least of the levels. The others refuse it.
    const MINIMAL: [&str; 3] = ["gemini-3-flash", "gemini-3.1-flash", "gemini-3.5-flash"];
    let least = if MINIMAL.iter().any(|name| model.contains(name)) { "minimal" } else { "low" };
    let level = |level: &str| ("thinkingLevel", Value::from(level));
    let budget = |tokens: u32| ("thinkingBudget", Value::from(tokens));
    let by_tokens = generation(model).is_some_and(|number| number < 3);
    let (name, value) = match (effort.as_str(), by_tokens) {
        // It always thinks.
        (Some("none"), true) if model.contains("gemini-2.5-pro") => budget(128),
        (Some("none"), true) => budget(0),
        (Some("minimal" | "low"), true) => budget(1024),
        (Some("medium"), true) => budget(8192),
        (Some("high" | "xhigh" | "max"), true) => budget(24_576),
        (Some("none" | "minimal"), false) => level(least),
        (Some("xhigh" | "max"), false) => level("high"),
        _ => ("thinkingLevel", effort),
    };
    Metadata::from_iter([(name.to_owned(), value)])
}

fn instructions(request: &Request) -> Option<String> {
    let messages = request.messages.iter().filter(|message| message.role() == Role::System);
    let texts: Vec<Cow<'_, str>> =
        messages.map(|message| joined_text(message)).filter(|text| !text.is_empty()).collect();
    (!texts.is_empty()).then(|| texts.join("\n\n"))
}

/// Data that the provider needs to continue this answer.
fn continuation(message: &Message) -> Option<&Value> {
    message.parts().iter().find_map(|part| match part {
        Part::Reasoning { data: Some(data), .. } => data.get(CONTINUATION),
        _ => None,
    })
}

/// The provider needs nothing back to continue an answer: the same request is sent again.
///
/// Results of tools that were called together go back together: the provider counts them. What else they hold comes after.
fn contents(request: &Request, is_third: bool) -> Result<Vec<Value>> {
    let mut calls = Calls::new();
    let mut messages: Vec<&Message> = dialogue(request).collect();
    while messages.pop_if(|message| continuation(message).is_some()).is_some() {}
    let said = messages.into_iter().map(|message| {
        calls.extend(message.tool_calls().map(|call| (call.id.as_str(), call)));
        let parts = match message.role() {
            Role::Assistant => model(message, is_third)?,
            Role::Tool => function_response(message, &calls, is_third)?,
            _ => user(message)?,
        };
        Ok((message.role(), parts))
    });
    let contents = turns(said)?.into_iter().map(|(role, mut parts)| {
        if role == Role::Tool {
            parts.sort_by_key(|part| part.get("functionResponse").is_none());
        }
        let role = if role == Role::Assistant { "model" } else { "user" };
        json!({"role": role, "parts": parts})
    });
    Ok(contents.collect())
}

fn user(message: &Message) -> Result<Vec<Value>> {
    let parts = message.parts().iter().filter_map(|part| match part {
        Part::Text { text, .. } if !text.is_empty() => Some(Ok(json!({"text": text}))),
        Part::Image { image, .. } => Some(image_part(image)),
        _ => None,
    });
    parts.collect()
}

fn image_part(image: &Image) -> Result<Value> {
    if let ImageSource::Url(url) = &image.source {
        let mut file = json!({"fileUri": url});
        if let Some(mime_type) = &image.mime_type {
            file["mimeType"] = mime_type.as_str().into();
        }
        return Ok(json!({"fileData": file}));
    }
    let (mime_type, data) = inline_image(image)?;
    Ok(json!({"inlineData": {"mimeType": mime_type, "data": data}}))
}

/// The model's parts. A signature without text of its own comes before the text that it came with,
/// or at the end.
fn model(message: &Message, needs_signatures: bool) -> Result<Vec<Value>> {
    let mut parts = Vec::new();
    let mut signature: Option<&str> = None;
    let alone = |signature: &str| json!({"text": "", SIGNATURE: signature});
    let signed = |mut part: Value, signature: Option<&str>| {
        if let Some(signature) = signature {
            part[SIGNATURE] = signature.into();
        }
        part
    };
    for part in message.parts() {
        let wire = match part {
            Part::Text { text, .. } | Part::Refusal { text } if !text.is_empty() => {
                parts.push(signed(json!({"text": text}), signature.take()));
                continue;
            }
            Part::Image { image, .. } => image_part(image)?,
            // What other providers keep of their reasoning means nothing here.
            Part::Reasoning { data: Some(data), .. } => match data.get("part") {
                Some(part) => part.clone(),
                None => continue,
            },
            Part::Reasoning { text, signature: Some(own), .. } if text.is_empty() => {
                parts.extend(signature.replace(own).map(alone));
                continue;
            }
            Part::Reasoning { text, signature, .. } if !text.is_empty() => {
                signed(json!({"text": text, "thought": true}), signature.as_deref())
            }
            Part::ToolCall(call) => {
                let own = call.metadata.get(SIGNATURE).and_then(Value::as_str);
                let is_first = !parts.iter().any(|part| part.get("functionCall").is_some());
                signed(
                    function_call(call),
                    own.or((needs_signatures && is_first).then_some(UNSIGNED)),
                )
            }
            _ => continue,
        };
        parts.extend(signature.take().map(alone));
        parts.push(wire);
    }
    parts.extend(signature.map(alone));
    Ok(parts)
}

fn function_call(call: &ToolCall) -> Value {
    with_id(json!({"functionCall": {"name": call.name, "args": argument_map(call)}}), call)
}

fn with_id(mut part: Value, call: &ToolCall) -> Value {
    if !call.metadata.contains_key(WITHOUT_ID)
        && let Some(inner) = part.as_object_mut().and_then(|part| part.values_mut().next())
    {
        inner["id"] = call.id.as_str().into();
    }
    part
}

/// The result of a call. The provider expects an object, and identifies the function by its name.
/// Images go inside it as bytes if the model accepts them there; all others follow.
fn function_response(
    message: &Message,
    calls: &Calls<'_>,
    takes_images: bool,
) -> Result<Vec<Value>> {
    let call = calls.get(message.tool_call_id().unwrap_or_default());
    let name = message.name().or(call.map(|call| call.name.as_str())).unwrap_or_default();
    let text = joined_text(message);
    let object = serde_json::from_str::<Metadata>(&text).ok();
    let response = match object {
        _ if is_error(message) => json!({"error": text}),
        Some(object) => Value::Object(object),
        None => json!({"output": text}),
    };
    let mut inner = json!({"name": name, "response": response});
    let images = message.parts().iter().filter_map(|part| match part {
        Part::Image { image, .. } => Some(image_part(image)),
        _ => None,
    });
    let images = images.collect::<Result<Vec<_>>>()?;
    let (within, after): (Vec<Value>, Vec<Value>) =
        images.into_iter().partition(|image| takes_images && image.get("inlineData").is_some());
    if !within.is_empty() {
        inner["parts"] = within.into();
    }
    let part = json!({"functionResponse": inner});
    let mut parts = vec![match call {
        Some(call) => with_id(part, call),
        None => part,
    }];
    if !after.is_empty() {
        parts.push(json!({"text": format!("Images of the result of {name}:")}));
        parts.extend(after);
    }
    Ok(parts)
}

fn declaration(tool: &Arc<ToolSpec>) -> Result<Value> {
    let mut function = json!({"name": tool.name, "description": tool.description});
    let fitted = |dialect| fit::tool(tool, dialect).map(|tool| tool.fitted.clone());
    let (name, schema) = member(fitted, "parameters", "parametersJsonSchema")?;
    let properties = schema.get("properties").and_then(Value::as_object);
    // An object without properties is refused.
    if properties.is_some_and(|map| !map.is_empty())
        || schema.get("additionalProperties").is_some_and(|more| *more != false)
    {
        function[name] = schema;
    }
    Ok(function)
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::None => json!({"mode": "NONE"}),
        ToolChoice::Required => json!({"mode": "ANY"}),
        ToolChoice::Tool(name) => json!({"mode": "ANY", "allowedFunctionNames": [name]}),
        ToolChoice::Other(own) => Value::Object(own.clone()),
        _ => json!({"mode": "AUTO"}),
    }
}
