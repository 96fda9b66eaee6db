//! A request as Responses wants it.

use std::{collections::HashMap, sync::Arc};

use mynah_data::{
    Image, ImageDetail, Message, Metadata, Part, Request, ResponseFormat, Result, Role, ToolCall,
    ToolChoice, ToolSpec,
};
use mynah_step::ModelCall;
use serde_json::{Value, json};

use super::ResponsesDialect;
use crate::{
    fit::{self, Fitted},
    openai,
    request::{
        CacheMarks, add_tools, argument_object, chooses, function, image_url, is_error, model_id,
        model_name, prompt_cache, result_text, tell_left_away,
    },
};

/// Options that say how to reason, and have another place in this format.
const EFFORT: &str = "reasoning_effort";
const SUMMARY: &str = "reasoning_summary";

const ENCRYPTED: &str = "reasoning.encrypted_content";

/// The program that made a call, where the model did not do it itself.
const CALLER: &str = "caller";

/// In the metadata of a call: what goes back with it.
pub(super) const KEPT: [&str; 2] = ["namespace", CALLER];

/// In the metadata of a call that is no function's: the item, which goes back as it came.
pub(super) const ITEM: &str = "item";

/// Calls for us to answer that are no function's.
pub(super) const OTHER_CALLS: [&str; 2] = ["custom_tool_call", "apply_patch_call"];

pub(super) fn body(
    dialect: &ResponsesDialect,
    request: &Request,
    call: &ModelCall,
) -> Result<Value> {
    let model = model_id(request)?;
    let (stored, reasons) = (is_stored(&request.options), reasons(dialect, request));
    let mut body = Metadata::new();
    let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
    set("model", model.into());
    set("input", input(request, stored, reasons != Some(false))?.into());
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| tool_spec(tool, dialect.schemas));
        set("tools", tools.collect::<Result<_>>()?);
    }
    if let Some(choice) = request.tool_choice.as_ref().filter(|_| chooses(request)) {
        set("tool_choice", tool_choice(choice));
    }
    if let Some(temperature) = request.temperature {
        set("temperature", temperature.into());
    }
    if let Some(max_tokens) = request.max_tokens {
        set("max_output_tokens", max_tokens.into());
    }
    match &request.response_format {
        None => {}
        Some(ResponseFormat::Text) => drop(set("text", json!({"format": {"type": "text"}}))),
        Some(ResponseFormat::JsonSchema { name, schema, strict }) => {
            let Fitted { schema, strict, .. } =
                fit::answer(name, schema, dialect.schemas, *strict)?;
            let format =
                json!({"type": "json_schema", "name": name, "schema": schema, "strict": strict});
            set("text", json!({"format": format}));
        }
        Some(format) => drop(set("text", json!({"format": format}))),
    }
    if !stored {
        set("store", false.into());
        if dialect.always_encrypted || reasons == Some(true) {
            set("include", json!([ENCRYPTED]));
        }
    }
    set("stream", true.into());
    let cache = prompt_cache(request, call, dialect.cache_retention);
    body.extend(cache.into_iter().map(|(name, value)| (name.to_owned(), value)));
    let mut options = request.options.clone();
    if reasons == Some(false) {
        for name in [EFFORT, SUMMARY] {
            if options.shift_remove(name).is_some() {
                tell_left_away(name, request);
            }
        }
    }
    add_options(&mut body, options);
    Ok(Value::Object(body))
}

/// Whether the provider stores the answer. The caller decides, or continues from a stored one.
fn is_stored(options: &Metadata) -> bool {
    const KEPT: [&str; 3] = ["previous_response_id", "conversation", "background"];
    match options.get("store").and_then(Value::as_bool) {
        Some(store) => store,
        None => KEPT.iter().any(|name| options.get(*name).is_some_and(|value| !value.is_null())),
    }
}

/// Whether this is a reasoning model of OpenAI, by its name or because the caller configures
/// reasoning; none if neither shows it. Other models reject requests for reasoning, and reasoning
/// items.
fn reasons(dialect: &ResponsesDialect, request: &Request) -> Option<bool> {
    let says_how =
        || ["reasoning", EFFORT, SUMMARY].iter().any(|name| request.options.contains_key(*name));
    match openai::reasons(model_name(request)) {
        Some(false) if !dialect.deployments => Some(false),
        Some(false) | None if says_how() => Some(true),
        by_name => by_name,
    }
}

fn add_options(body: &mut Metadata, options: Metadata) {
    for (name, value) in options {
        let (name, value) = match name.as_str() {
            EFFORT => ("reasoning".to_owned(), json!({"effort": value})),
            SUMMARY => ("reasoning".to_owned(), json!({"summary": value})),
            "verbosity" => ("text".to_owned(), json!({"verbosity": value})),
            _ => (name, value),
        };
        match (body.get_mut(&name), value) {
            (_, value) if name == "tools" => add_tools(body, value),
            (Some(Value::Array(ours)), Value::Array(theirs)) if name == "include" => {
                ours.extend(theirs.into_iter().filter(|value| *value != ENCRYPTED));
            }
            (Some(Value::Object(ours)), Value::Object(theirs))
                if matches!(name.as_str(), "text" | "reasoning") =>
            {
                ours.extend(theirs);
            }
            (_, value) => drop(body.insert(name, value)),
        }
    }
}

fn input(request: &Request, stored: bool, with_reasoning: bool) -> Result<Vec<Value>> {
    let marks = CacheMarks::of_openai(model_id(request)?);
    let mut items = Vec::with_capacity(request.messages.len());
    let mut calls: HashMap<&str, &ToolCall> = HashMap::new();
    for message in request.messages.iter() {
        calls.extend(message.tool_calls().map(|call| (call.id.as_str(), call)));
        match message.role() {
            Role::System => {
                items.push(json!({"role": "system", "content": content(message, marks)?}));
            }
            Role::User => items.push(json!({"role": "user", "content": content(message, marks)?})),
            Role::Assistant => assistant(message, stored, with_reasoning, &mut items),
            Role::Tool => {
                let call = calls.get(message.tool_call_id().unwrap_or_default());
                items.push(call_output(message, call.copied(), marks)?);
            }
        }
    }
    Ok(items)
}

/// The result of a call. A program waits for those that it made.
fn call_output(message: &Message, call: Option<&ToolCall>, marks: CacheMarks) -> Result<Value> {
    let called = call.and_then(|call| call.metadata.get(ITEM)?["type"].as_str());
    let called = called.unwrap_or("function_call");
    let mut item = json!({
        "type": format!("{called}_output"),
        "call_id": message.tool_call_id(),
        "output": content(message, marks)?,
    });
    if called == "apply_patch_call" {
        item["status"] = if is_error(message) { "failed" } else { "completed" }.into();
    }
    if let Some(caller) = call.and_then(|call| call.metadata.get(CALLER)) {
        item[CALLER] = caller.clone();
    }
    Ok(item)
}

fn content(message: &Message, marks: CacheMarks) -> Result<Value> {
    let has_images = message.parts().iter().any(|part| matches!(part, Part::Image { .. }));
    if !has_images && !marks.are_in(message) {
        return Ok(result_text(message).into());
    }
    let failed = is_error(message).then(|| Ok(json!({"type": "input_text", "text": "error:"})));
    let parts = message.parts().iter().filter_map(|part| match part {
        Part::Text { text, metadata } => {
            Some(Ok(marks.put(json!({"type": "input_text", "text": text}), metadata)))
        }
        Part::Image { image, detail, metadata } => {
            Some(image_part(image, *detail).map(|part| marks.put(part, metadata)))
        }
        _ => None,
    });
    let parts = failed.into_iter().chain(parts).collect::<Result<_>>()?;
    Ok(marks.put_last(parts, message).into())
}

fn image_part(image: &Image, detail: ImageDetail) -> Result<Value> {
    Ok(json!({"type": "input_image", "image_url": image_url(image)?, "detail": detail}))
}

/// Each part is an item of its own.
fn assistant(message: &Message, stored: bool, with_reasoning: bool, items: &mut Vec<Value>) {
    let mut phase = None;
    for part in message.parts() {
        match part {
            Part::Text { text, .. } | Part::Refusal { text } if !text.is_empty() => {
                let content = json!([{"type": "output_text", "text": text}]);
                let mut item = json!({"type": "message", "role": "assistant", "content": content});
                if let Some(phase) = phase {
                    item["phase"] = Value::clone(phase);
                }
                items.push(item);
            }
            Part::Reasoning { signature, data: Some(Value::Object(data)), .. } => {
                match data.get("type").and_then(Value::as_str) {
                    Some("message") => phase = data.get("phase"),
                    Some("reasoning") if !with_reasoning => {}
                    Some("reasoning") => items.extend(reasoning(signature.as_ref(), data, stored)),
                    // The provider's own actions and unknown items go back unchanged.
                    Some(_) => items.push(Value::Object(data.clone())),
                    None => {}
                }
            }
            Part::ToolCall(call) => items.push(call_item(call)),
            _ => {}
        }
    }
    // The provider refuses reasoning that nothing came of.
    while items.last().is_some_and(|item| item["type"] == "reasoning") {
        items.pop();
    }
}

fn call_item(call: &ToolCall) -> Value {
    if let Some(item) = call.metadata.get(ITEM) {
        return item.clone();
    }
    let mut item = json!({
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": argument_object(call),
    });
    for name in KEPT {
        if let Some(kept) = call.metadata.get(name) {
            item[name] = kept.clone();
        }
    }
    item
}

/// The provider cannot use reasoning that it neither stored nor returned.
fn reasoning(encrypted: Option<&String>, data: &Metadata, stored: bool) -> Option<Value> {
    let mut item = data.clone();
    if let Some(encrypted) = encrypted {
        item.insert("encrypted_content".to_owned(), encrypted.as_str().into());
    }
    (stored || encrypted.is_some() || item.contains_key("content")).then(|| Value::Object(item))
}

/// The provider treats a schema as strict by default, and would make all members required.
fn tool_spec(tool: &Arc<ToolSpec>, dialect: fit::Dialect) -> Result<Value> {
    let mut spec = json!({"type": "function", "strict": false});
    if let (Value::Object(spec), Value::Object(told)) = (&mut spec, json!(function(tool, dialect)?))
    {
        spec.extend(told);
    }
    Ok(spec)
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Tool(name) => json!({"type": "function", "name": name}),
        other => json!(other),
    }
}
