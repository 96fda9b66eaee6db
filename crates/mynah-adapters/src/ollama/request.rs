//! A request as Ollama wants it.

use std::collections::HashMap;

use mynah_data::{
    ImageSource, Message, Metadata, Part, Request, ResponseFormat, Result, Role, ToolCall,
    ToolChoice,
};
use serde_json::{Value, json};

use crate::{
    fit::{self, Dialect},
    request::{
        add_tools, check_parallel, function, image_base64, is_barred, joined_text, model_id,
        result_text, tell_no_detail, unsupported,
    },
};

pub(super) fn body(request: &Request) -> Result<Value> {
    tell_no_detail(request);
    let model = model_id(request)?;
    let mut body = Metadata::new();
    let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
    set("model", model.into());
    set("messages", messages(request)?.into());
    if let Some(tools) = tools(request)? {
        set("tools", tools);
    }
    if let Some(form) = form(request)? {
        set("format", form);
    }
    set("stream", true.into());
    let mut options = Metadata::new();
    if let Some(temperature) = request.temperature {
        options.insert("temperature".to_owned(), temperature.into());
    }
    if let Some(max_tokens) = request.max_tokens {
        options.insert("num_predict".to_owned(), max_tokens.into());
    }
    for (name, value) in request.options.clone() {
        match (name.as_str(), value) {
            ("tools", _) if is_barred(request) => {}
            ("tools", value) => add_tools(&mut body, value),
            ("parallel_tool_calls", value) => check_parallel(&value, request)?,
            ("reasoning_effort", value) => drop(body.entry("think").or_insert(think(model, value))),
            ("options", Value::Object(own)) => options.extend(own),
            ("stop", Value::String(stop)) => drop(options.insert(name, json!([stop]))),
            (known, value) if is_member(known) => drop(body.insert(name, value)),
            (_, value) => drop(options.insert(name, value)),
        }
    }
    if !options.is_empty() {
        body.insert("options".to_owned(), options.into());
    }
    Ok(Value::Object(body))
}

/// Whether and how much the model thinks, in the server's words for OpenAI's levels. Models without
/// levels refuse them.
fn think(model: &str, effort: Value) -> Value {
    let has_levels = model.to_ascii_lowercase().contains("gpt-oss");
    match effort.as_str() {
        Some("none") => false.into(),
        Some(_) if !has_levels => true.into(),
        Some("minimal") => "low".into(),
        Some("xhigh" | "max") => "high".into(),
        _ => effort,
    }
}

/// Whether an option is a member of the request, and none of the model's.
fn is_member(name: &str) -> bool {
    const MEMBERS: [&str; 9] = [
        "format",
        "keep_alive",
        "logprobs",
        "messages",
        "shift",
        "stream",
        "think",
        "top_logprobs",
        "truncate",
    ];
    MEMBERS.contains(&name)
}

/// Whether the request has an output format.
pub(super) fn has_form(request: &Request) -> bool {
    !matches!(request.response_format, None | Some(ResponseFormat::Text))
}

/// The output format of the request, if it has one.
fn form(request: &Request) -> Result<Option<Value>> {
    Ok(match &request.response_format {
        Some(ResponseFormat::JsonObject) => Some("json".into()),
        Some(ResponseFormat::JsonSchema { name, schema, strict }) => {
            Some(fit::answer(name, schema, Dialect::Plain, *strict)?.schema)
        }
        Some(ResponseFormat::Other(own)) => Some(Value::Object(own.clone())),
        _ => None,
    })
}

fn messages(request: &Request) -> Result<Vec<Value>> {
    let mut tools = HashMap::new();
    let written = request.messages.iter().map(|message| {
        tools.extend(message.tool_calls().map(|call| (call.id.as_str(), call.name.as_str())));
        wire_message(message, &tools)
    });
    written.collect()
}

/// A message, with the tools that were called before it, by the ids of their calls.
fn wire_message(message: &Message, tools: &HashMap<&str, &str>) -> Result<Value> {
    let mut wire = json!({"role": message.role().as_str(), "content": joined_text(message)});
    let images = message.parts().iter().filter_map(|part| match part {
        Part::Image { image, .. } if matches!(image.source, ImageSource::Url(_)) => {
            Some(Err(unsupported("Ollama fetches no images: give their bytes")))
        }
        Part::Image { image, .. } => Some(image_base64(image)),
        _ => None,
    });
    let images = images.collect::<Result<Vec<String>>>()?;
    if !images.is_empty() {
        wire["images"] = images.into();
    }
    match message.role() {
        Role::Assistant => assistant(message, &mut wire),
        Role::Tool => {
            let id = message.tool_call_id().unwrap_or_default();
            wire["content"] = result_text(message).into();
            wire["tool_call_id"] = id.into();
            if let Some(tool) = tools.get(id) {
                wire["tool_name"] = (*tool).into();
            }
        }
        Role::System | Role::User => {}
    }
    Ok(wire)
}

fn assistant(message: &Message, wire: &mut Value) {
    let (mut said, mut thought) = (String::new(), String::new());
    for part in message.parts() {
        match part {
            Part::Text { text, .. } | Part::Refusal { text } => said.push_str(text),
            Part::Reasoning { text, .. } => thought.push_str(text),
            _ => {}
        }
    }
    wire["content"] = said.into();
    if !thought.is_empty() {
        wire["thinking"] = thought.into();
    }
    let calls: Vec<Value> = message.tool_calls().map(tool_call).collect();
    if !calls.is_empty() {
        wire["tool_calls"] = calls.into();
    }
}

fn tool_call(call: &ToolCall) -> Value {
    let arguments = if call.arguments.is_object() { call.arguments.clone() } else { json!({}) };
    json!({"id": call.id, "function": {"name": call.name, "arguments": arguments}})
}

fn tools(request: &Request) -> Result<Option<Value>> {
    match &request.tool_choice {
        Some(ToolChoice::None) => return Ok(None),
        Some(ToolChoice::Required | ToolChoice::Tool(_)) => {
            return Err(unsupported("Ollama cannot force a tool call"));
        }
        _ => {}
    }
    let tool = |tool| Ok(json!({"type": "function", "function": function(tool, Dialect::Plain)?}));
    let tools = request.tools.iter().map(tool).collect::<Result<Value>>()?;
    Ok((!request.tools.is_empty()).then_some(tools))
}
