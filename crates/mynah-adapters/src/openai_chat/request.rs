//! A request as Chat Completions wants it.

use std::borrow::Cow;

use mynah_data::{
    Image, ImageDetail, Message, Metadata, Part, Request, ResponseFormat, Result, Role, ToolChoice,
};
use mynah_step::ModelCall;
use serde_json::{Value, json};

use super::{ChatDialect, CompletionTokens, JsonSchemas, PromptCaching, ReasoningBack};
use crate::{
    fit::{self, Fitted},
    openai,
    request::{
        CacheMarks, add_tools, argument_object, cache_control, chooses, function, has_tools,
        image_url, joined_text, model_id, prompt_cache, result_text, tell_left_away, turns,
        unsupported, unsupported_form,
    },
};

/// In the metadata of a call: it has text for its input, and no function.
pub(super) const CUSTOM: &str = "custom";

/// The argument that holds such text.
pub(super) const INPUT: &str = "input";

pub(super) fn body(dialect: &ChatDialect, request: &Request, call: &ModelCall) -> Result<Value> {
    let model = model_id(request)?;
    let short_call_ids = dialect.short_call_ids || model.starts_with("mistralai/");
    let reasoning_back = match dialect.reasoning_back {
        ReasoningBack::FieldOfReasoners(name) if reasons(model) => ReasoningBack::Field(name),
        ReasoningBack::FieldOfReasoners(_) => ReasoningBack::Never,
        other => other,
    };
    let dialect = &ChatDialect { short_call_ids, reasoning_back, ..*dialect };
    let mut body = Metadata::new();
    let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
    set("model", model.into());
    set("messages", messages(dialect, request)?.into());
    if !request.tools.is_empty() {
        let tool =
            |tool| Ok(json!({"type": "function", "function": function(tool, dialect.schemas)?}));
        set("tools", request.tools.iter().map(|spec| tool(spec)).collect::<Result<_>>()?);
    }
    if let Some(choice) = request.tool_choice.as_ref().filter(|_| chooses(request)) {
        set("tool_choice", tool_choice(choice));
    }
    if let Some(temperature) = request.temperature {
        set("temperature", temperature.into());
    }
    if let Some(max_tokens) = request.max_tokens {
        let is_new = match dialect.max_completion_tokens {
            CompletionTokens::Never => false,
            CompletionTokens::NewerModels => openai::is_newer(model),
            CompletionTokens::NotTheOldest => !openai::is_oldest(model),
        };
        set(if is_new { "max_completion_tokens" } else { "max_tokens" }, max_tokens.into());
    }
    if let Some(format) = response_format(dialect, request)? {
        set("response_format", format);
    }
    let streamed = !stands_alone(dialect, request);
    set("stream", streamed.into());
    if dialect.usage_on_request && streamed {
        set("stream_options", json!({"include_usage": true}));
    }
    match (dialect.prompt_cache, &request.prompt_cache) {
        (PromptCaching::OpenAi, _) => body.extend(prompt_cache(request, call, true)),
        // Where the whole prompt is to be cached, no provider is asked that cannot do it.
        (PromptCaching::CacheControl, Some(cache)) if model.starts_with("anthropic/") => {
            set("cache_control", cache_control(cache.retention));
        }
        _ => {}
    }
    // Who names the maker as well is a gateway, which knows by itself what its models take.
    let is_openais = dialect.openai_models && !model.contains('/');
    let is_certain = is_openais && !dialect.deployments;
    for (name, value) in request.options.clone() {
        match name.as_str() {
            "reasoning_effort" if is_certain && openai::reasons(model) == Some(false) => {
                tell_left_away(&name, request);
            }
            // Thoughts are not summed up in this format.
            "reasoning_summary" if is_openais => tell_left_away(&name, request),
            "tools" => add_tools(&mut body, value),
            _ => drop(body.insert(name, value)),
        }
    }
    if body.get("stream") == Some(&Value::Bool(false)) {
        body.shift_remove("stream_options");
    }
    if is_openais && has_tools(request) && openai::reasons_or_calls(model) {
        keep_from_reasoning(model, &mut body)?;
    }
    Ok(Value::Object(body))
}

/// Says that the model is not to reason, unless the caller says how.
fn keep_from_reasoning(model: &str, body: &mut Metadata) -> Result<()> {
    const EFFORT: &str = "reasoning_effort";
    if !body.contains_key(EFFORT) && openai::always_reasons(model) {
        return Err(unsupported(&format!(
            "{model} takes tools by Responses alone: call it with `openai:`, on Azure with `azure-responses:`"
        )));
    }
    body.entry(EFFORT).or_insert("none".into());
    Ok(())
}

/// Whether an open model is called as one that reasons.
fn reasons(model: &str) -> bool {
    ["gpt-oss", "qwen3", "deepseek-r1"].iter().any(|name| model.contains(name))
}

fn messages(dialect: &ChatDialect, request: &Request) -> Result<Vec<Value>> {
    let marks = match dialect.prompt_cache {
        PromptCaching::Never => CacheMarks::Nothing,
        PromptCaching::OpenAi => CacheMarks::of_openai(model_id(request)?),
        PromptCaching::CacheControl => CacheMarks::CacheControl,
    };
    let mut messages = Vec::with_capacity(request.messages.len());
    // The format has no place for images in a tool's result: they follow the results.
    let mut images = Vec::new();
    for message in request.messages.iter() {
        if message.role() != Role::Tool && !images.is_empty() {
            messages.push(json!({"role": "user", "content": std::mem::take(&mut images)}));
        }
        let mut wire = match message.role() {
            Role::System => json!({"role": "system", "content": content(message, marks)?}),
            Role::User => json!({"role": "user", "content": content(message, marks)?}),
            Role::Assistant => assistant(dialect, message),
            Role::Tool => {
                let id = call_id(dialect, message.tool_call_id().unwrap_or_default());
                images.extend(tool_images(message, &id)?);
                json!({"role": "tool", "tool_call_id": id, "content": result(message, marks)})
            }
        };
        // An answer without anything in it is refused by some.
        if wire == json!({"role": "assistant", "content": ""}) {
            continue;
        }
        if let (Some(name), true) = (message.name(), dialect.names && message.role() != Role::Tool)
        {
            wire["name"] = name.into();
        }
        messages.push(wire);
    }
    if !images.is_empty() {
        messages.push(json!({"role": "user", "content": images}));
    }
    if dialect.turns { in_turns(messages) } else { Ok(messages) }
}

/// Instructions first, then one message for what user or model says in a row. Results stay apart: each has the id of its call.
fn in_turns(messages: Vec<Value>) -> Result<Vec<Value>> {
    let (mut written, said): (Vec<Value>, Vec<Value>) =
        messages.into_iter().partition(|message| message["role"] == "system");
    let sides = said.into_iter().map(|message| Ok((message["role"].clone(), vec![message])));
    for (side, said) in turns(sides)? {
        match side == "tool" {
            true => written.extend(said),
            false => written.extend(said.into_iter().reduce(joined)),
        }
    }
    Ok(written)
}

/// Two messages of one side as one.
fn joined(mut first: Value, mut second: Value) -> Value {
    let parts = |content: Value| match content {
        Value::Array(parts) => parts,
        text => vec![json!({"type": "text", "text": text})],
    };
    first["content"] = match (first["content"].take(), second["content"].take()) {
        (Value::Null, content) | (content, Value::Null) => content,
        (Value::String(first), Value::String(second)) => format!("{first}\n\n{second}").into(),
        (first, second) => [parts(first), parts(second)].concat().into(),
    };
    if let Value::Array(more) = second["tool_calls"].take() {
        match &mut first["tool_calls"] {
            Value::Array(calls) => calls.extend(more),
            calls => *calls = more.into(),
        }
    }
    first
}

fn content(message: &Message, marks: CacheMarks) -> Result<Value> {
    let has_images = message.parts().iter().any(|part| matches!(part, Part::Image { .. }));
    if !has_images && !marks.are_in(message) {
        return Ok(joined_text(message).into());
    }
    let parts = message.parts().iter().filter_map(|part| match part {
        Part::Text { text, metadata } => {
            Some(Ok(marks.put(json!({"type": "text", "text": text}), metadata)))
        }
        Part::Image { image, detail, metadata } => {
            Some(image_part(image, *detail).map(|part| marks.put(part, metadata)))
        }
        _ => None,
    });
    Ok(marks.put_last(parts.collect::<Result<_>>()?, message).into())
}

fn result(message: &Message, marks: CacheMarks) -> Value {
    let text = result_text(message);
    match marks.are_in(message) {
        true => marks.put_last(vec![json!({"type": "text", "text": text})], message).into(),
        false => text.into(),
    }
}

fn image_part(image: &Image, detail: ImageDetail) -> Result<Value> {
    Ok(json!({"type": "image_url", "image_url": {"url": image_url(image)?, "detail": detail}}))
}

fn tool_images(message: &Message, id: &str) -> Result<Vec<Value>> {
    let images = message.parts().iter().filter_map(|part| match part {
        Part::Image { image, detail, .. } => Some(image_part(image, *detail)),
        _ => None,
    });
    let mut images = images.collect::<Result<Vec<_>>>()?;
    if !images.is_empty() {
        images.insert(0, json!({"type": "text", "text": format!("Images of the result of {id}:")}));
    }
    Ok(images)
}

/// The id of a call as the server takes it. One that does not fit is always written as the same other one.
fn call_id<'i>(dialect: &ChatDialect, id: &'i str) -> Cow<'i, str> {
    const LENGTH: usize = 9;
    const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let fits = id.len() == LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if fits || !dialect.short_call_ids {
        return id.into();
    }
    // FNV-1a: what was sent before must be sent again alike, by every build.
    let mut hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let letters = (0..LENGTH).map(|_| {
        let letter = LETTERS[(hash % 36) as usize];
        hash /= 36;
        char::from(letter)
    });
    letters.collect()
}

fn assistant(dialect: &ChatDialect, message: &Message) -> Value {
    let mut text = message.text().into_owned();
    let (mut reasoning, mut details) = (String::new(), Vec::new());
    for part in message.parts() {
        match part {
            Part::Refusal { text: refusal } => text.push_str(refusal),
            Part::Reasoning { text, data, .. } => {
                reasoning.push_str(text);
                let kept = data.as_ref().and_then(|data| data.get("reasoning_details")?.as_array());
                details.extend(kept.into_iter().flatten().cloned());
            }
            _ => {}
        }
    }
    let calls: Vec<Value> = message
        .tool_calls()
        .map(|call| {
            let id = call_id(dialect, &call.id);
            if call.metadata.contains_key(CUSTOM) {
                let input = call.arguments.get(INPUT).and_then(Value::as_str).unwrap_or_default();
                let custom = json!({"name": call.name, INPUT: input});
                return json!({"id": id, "type": "custom", "custom": custom});
            }
            let function = json!({"name": call.name, "arguments": argument_object(call)});
            let mut wire = json!({"id": id, "type": "function", "function": function});
            if let Some(extra) = call.metadata.get("extra_content") {
                wire["extra_content"] = extra.clone();
            }
            wire
        })
        .collect();
    let content = match text.is_empty() && !calls.is_empty() {
        true => Value::Null,
        false => text.into(),
    };
    let mut wire = json!({"role": "assistant", "content": content});
    match dialect.reasoning_back {
        ReasoningBack::Field(name) if !reasoning.is_empty() => wire[name] = reasoning.into(),
        ReasoningBack::Details if !details.is_empty() => wire["reasoning_details"] = details.into(),
        ReasoningBack::Details if !reasoning.is_empty() => wire["reasoning"] = reasoning.into(),
        ReasoningBack::Thinking if !reasoning.is_empty() => {
            let mut parts = vec![
                json!({"type": "thinking", "thinking": [{"type": "text", "text": reasoning}]}),
            ];
            if let Value::String(text) = wire["content"].take() {
                parts.push(json!({"type": "text", "text": text}));
            }
            wire["content"] = parts.into();
        }
        _ => {}
    }
    if !calls.is_empty() {
        wire["tool_calls"] = calls.into();
    }
    wire
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Tool(name) => json!({"type": "function", "function": {"name": name}}),
        other => json!(other),
    }
}

/// Whether the answer has a form that the server gives it only where it is neither streamed nor calls tools.
pub(super) fn stands_alone(dialect: &ChatDialect, request: &Request) -> bool {
    let has_schema = match &request.response_format {
        Some(ResponseFormat::JsonSchema { .. }) => true,
        Some(ResponseFormat::Other(own)) => {
            own.get("type").is_some_and(|kind| kind == "json_schema")
        }
        _ => false,
    };
    dialect.json_schema == JsonSchemas::Alone && has_schema
}

fn response_format(dialect: &ChatDialect, request: &Request) -> Result<Option<Value>> {
    Ok(match &request.response_format {
        None | Some(ResponseFormat::Text) => None,
        Some(ResponseFormat::JsonSchema { .. }) if dialect.json_schema == JsonSchemas::Never => {
            return Err(unsupported_form(
                "this server takes no JSON schema; ask for a JSON object",
            ));
        }
        Some(ResponseFormat::JsonSchema { name, schema, strict }) => {
            let Fitted { schema, strict, .. } =
                fit::answer(name, schema, dialect.schemas, *strict)?;
            let schema = json!({"name": name, "schema": schema, "strict": strict});
            Some(json!({"type": "json_schema", "json_schema": schema}))
        }
        Some(other) => Some(json!(other)),
    })
}
