//! A request as Converse wants it.

use std::sync::Arc;

use mynah_data::{
    CacheRetention, Image, ImageSource, Message, Metadata, Part, Request, ResponseFormat, Result,
    Role, ToolChoice, ToolSpec,
};
use mynah_step::ModelCall;
use serde_json::{Value, json};

use super::model::{cache_points, dialect, forced, forms, in_own_words};
use crate::{
    claude, fit,
    request::{
        add_tools, argument_map, called_tools, camel_case, check_parallel, extend_member,
        has_tools, inline_image, is_barred, is_blank, is_error, joined_text, model_id, model_name,
        plain_id, several, tell_no_detail, turns, unsupported,
    },
};

/// Options of Converse itself. Any other is the model's.
const OWN: [&str; 10] = [
    "additionalModelRequestFields",
    "additionalModelResponseFieldPaths",
    "guardrailConfig",
    "inferenceConfig",
    "outputConfig",
    "performanceConfig",
    "promptVariables",
    "requestMetadata",
    "serviceTier",
    "toolConfig",
];

/// In what reasoning keeps: the text that the provider withheld.
pub(super) const WITHHELD: &str = "redactedContent";

pub(super) fn body(request: &Request, call: &ModelCall) -> Result<Value> {
    let model = model_id(request)?;
    forms(model).check(request, thinking(&request.options))?;
    tell_no_detail(request);
    let mut body = Metadata::new();
    let mut set = |name: &str, value: Value| drop(body.insert(name.to_owned(), value));
    let automatic = request.prompt_cache.as_ref().map(|cache| match cache.retention {
        CacheRetention::Long => json!({"ttl": "1h"}),
        _ => json!({}),
    });
    let mut system = system(request);
    let mut messages = messages(request)?;
    if let Some(mark) = &automatic {
        let last = messages.last_mut().and_then(|message| message["content"].as_array_mut());
        let places = [Some(&mut system).filter(|system| !system.is_empty()), last];
        places.into_iter().flatten().for_each(|blocks| blocks.push(cache_point(mark)));
    }
    let contents = messages.iter_mut().filter_map(|message| message["content"].as_array_mut());
    contents.chain([&mut system]).for_each(|blocks| fit_cache_points(blocks, model));
    if !system.is_empty() {
        set("system", system.into());
    }
    set("messages", messages.into());
    if let Some(config) = output_config(request) {
        set("outputConfig", config);
    }
    extend_member(&mut body, "toolConfig", tool_config(request, call)?);
    let mut inference = Metadata::new();
    inference.extend(request.max_tokens.map(|limit| ("maxTokens".to_owned(), limit.into())));
    inference.extend(request.temperature.map(|degree| ("temperature".to_owned(), degree.into())));
    extend_member(&mut body, "inferenceConfig", inference);
    let mut options = request.options.clone();
    if let Some(parallel) = options.shift_remove("parallel_tool_calls") {
        set_parallel(&parallel, request, &mut body)?;
    }
    for option in ["reasoning_effort", "top_k"] {
        let own = options.get(option).and_then(|value| in_own_words(model, option, value));
        if let Some(own) = own {
            options.shift_remove(option);
            pass_on("additionalModelRequestFields", own, &mut body);
        }
    }
    if is_barred(request) {
        options.shift_remove("tools");
    }
    for (name, value) in options {
        pass_on(&name, value, &mut body);
    }
    Ok(Value::Object(body))
}

/// Converse has no word for it, but passes the model's own on. What says the same twice is refused.
fn set_parallel(parallel: &Value, request: &Request, body: &mut Metadata) -> Result<()> {
    if !model_name(request).contains("claude") {
        return check_parallel(parallel, request);
    }
    if parallel == &Value::Bool(false) && !request.tools.is_empty() {
        let mut choice = json!({"disable_parallel_tool_use": true});
        if body.get("toolConfig").is_some_and(|config| config.get("toolChoice").is_none()) {
            choice["type"] = "auto".into();
        }
        let members = Metadata::from_iter([("tool_choice".to_owned(), choice)]);
        extend_member(body, "additionalModelRequestFields", members);
    }
    Ok(())
}

/// Puts an option of the caller's where it belongs.
fn pass_on(name: &str, value: Value, body: &mut Metadata) {
    let own = camel_case(name);
    let one = |name: &str, value: Value| Metadata::from_iter([(name.to_owned(), value)]);
    match (own.as_str(), value) {
        ("stop" | "stopSequences", value) => {
            extend_member(body, "inferenceConfig", one("stopSequences", several(value)))
        }
        ("tools", own) => {
            let mut config = match body.shift_remove("toolConfig") {
                Some(Value::Object(config)) => config,
                _ => Metadata::new(),
            };
            add_tools(&mut config, own);
            extend_member(body, "toolConfig", config);
        }
        ("toolConfig", Value::Object(mut config)) if config.contains_key("tools") => {
            pass_on("tools", config.shift_remove("tools").unwrap_or_default(), body);
            extend_member(body, "toolConfig", config);
        }
        ("topP", value) => extend_member(body, "inferenceConfig", one("topP", value)),
        (own, Value::Object(members)) if OWN.contains(&own) => extend_member(body, own, members),
        (own, value) if OWN.contains(&own) => drop(body.insert(own.to_owned(), value)),
        (_, value) => extend_member(body, "additionalModelRequestFields", one(name, value)),
    }
}

fn cache_point(mark: &Value) -> Value {
    let mut point = json!({"type": "default"});
    if let Some(ttl) = mark.get("ttl") {
        point["ttl"] = ttl.clone();
    }
    json!({"cachePoint": point})
}

/// Leaves out cache points that the model would refuse: caching is optional, and must not fail a
/// call.
fn fit_cache_points(blocks: &mut Vec<Value>, model: &str) {
    const OF_TOOLS: [&str; 3] = ["toolSpec", "toolUse", "toolResult"];
    let is_of_tools = |block: &Value| OF_TOOLS.iter().any(|kind| block.get(kind).is_some());
    let has_tools = blocks.iter().any(is_of_tools);
    match cache_points(model).filter(|points| points.beside_tools || !has_tools) {
        None => blocks.retain(|block| block.get("cachePoint").is_none()),
        Some(points) if points.for_an_hour => {}
        Some(_) => {
            let points = blocks.iter_mut().filter_map(|block| block.get_mut("cachePoint"));
            for point in points.filter_map(Value::as_object_mut) {
                point.shift_remove("ttl");
            }
        }
    }
}

fn mark(metadata: &Metadata) -> Option<Value> {
    metadata.get("cache_control").map(cache_point)
}

fn system(request: &Request) -> Vec<Value> {
    let messages = request.messages.iter().filter(|message| message.role() == Role::System);
    let blocks = messages.flat_map(|message| {
        let text = joined_text(message);
        let block = (!is_blank(&text)).then(|| json!({"text": text}));
        block.into_iter().chain(mark(message.metadata()))
    });
    blocks.chain(form_instruction(request)).collect()
}

/// The instruction for a model that cannot be forced into the format of its answer.
fn form_instruction(request: &Request) -> Option<Value> {
    let form = form_tool(request)?.name;
    let is_made = names_tool(forced(model_name(request), &form).as_ref());
    let instruction = || {
        format!(
            "Answer by calling the tool {form}. Its input is the whole answer: say nothing else."
        )
    };
    (!is_made).then(|| json!({"text": instruction()}))
}

fn messages(request: &Request) -> Result<Vec<Value>> {
    let numbered = || request.messages.iter().map(AsRef::as_ref).enumerate();
    let instructions =
        numbered().filter(|(_, message): &(_, &Message)| message.role() == Role::System);
    // All instructions stand above: what was thought before the last of them may not be taken back any more.
    let binds = claude::binds_thinking(model_name(request));
    let bound = instructions.last().filter(|_| binds);
    // The tool for the format did not exist when the model thought.
    let is_outdated = binds && form_tool(request).is_some();
    let stands = |place: usize| !is_outdated && bound.is_none_or(|(last, _)| last < place);
    let said = |(place, message): (usize, &Message)| {
        let (role, mut blocks) = match message.role() {
            Role::Assistant => ("assistant", assistant(message, stands(place))),
            Role::Tool => ("user", vec![tool_result(message)?]),
            _ => ("user", user(message)?),
        };
        if !blocks.is_empty() {
            blocks.extend(mark(message.metadata()));
        }
        Ok((role, blocks))
    };
    let dialogue = numbered().filter(|(_, message)| message.role() != Role::System);
    let turns = turns(dialogue.map(said))?;
    let messages =
        turns.into_iter().map(|(role, content)| json!({"role": role, "content": content}));
    Ok(messages.collect())
}

fn user(message: &Message) -> Result<Vec<Value>> {
    let mut blocks = Vec::new();
    for part in message.parts() {
        match part {
            Part::Text { text, metadata } if !is_blank(text) => {
                blocks.push(json!({"text": text}));
                blocks.extend(mark(metadata));
            }
            Part::Image { image, metadata, .. } => {
                blocks.push(image_block(image)?);
                blocks.extend(mark(metadata));
            }
            _ => {}
        }
    }
    Ok(blocks)
}

fn assistant(message: &Message, with_thoughts: bool) -> Vec<Value> {
    let blocks = message.parts().iter().filter_map(|part| match part {
        Part::Reasoning { .. } if !with_thoughts => None,
        Part::Text { text, .. } | Part::Refusal { text } if !is_blank(text) => {
            Some(json!({"text": text}))
        }
        // Reasoning goes back as it came, or not at all: without its signature it is refused.
        Part::Reasoning { text, signature: Some(signature), .. } => {
            let signed = json!({"text": text, "signature": signature});
            Some(json!({"reasoningContent": {"reasoningText": signed}}))
        }
        Part::Reasoning { data: Some(data), .. } => {
            let withheld = data.get(WITHHELD)?;
            Some(json!({"reasoningContent": {WITHHELD: withheld}}))
        }
        Part::ToolCall(call) => {
            let id = plain_id(&call.id);
            let call = json!({"toolUseId": id, "name": call.name, "input": argument_map(call)});
            Some(json!({"toolUse": call}))
        }
        _ => None,
    });
    blocks.collect()
}

fn tool_result(message: &Message) -> Result<Value> {
    let mut content = user(message)?;
    content.retain(|block| block.get("cachePoint").is_none());
    if content.is_empty() {
        // Neither nothing nor blank text is taken.
        content.push(json!({"text": "(empty)"}));
    }
    let id = plain_id(message.tool_call_id().unwrap_or_default());
    let mut result = json!({"toolUseId": id, "content": content});
    if is_error(message) {
        result["status"] = "error".into();
    }
    Ok(json!({"toolResult": result}))
}

fn image_block(image: &Image) -> Result<Value> {
    if let ImageSource::Url(url) = &image.source {
        if !url.starts_with("s3://") {
            return Err(unsupported("this provider fetches images from s3:// alone"));
        }
        let format = image.mime_type.as_deref().or(url.rsplit('.').next()).map(image_format);
        let source = json!({"s3Location": {"uri": url}});
        return Ok(json!({"image": {"format": format, "source": source}}));
    }
    let (media_type, data) = inline_image(image)?;
    Ok(json!({"image": {"format": image_format(media_type), "source": {"bytes": data}}}))
}

/// What the provider calls a media type, or an extension.
fn image_format(kind: &str) -> &str {
    match kind.rsplit('/').next().unwrap_or(kind) {
        "jpg" => "jpeg",
        format => format,
    }
}

/// The caller's options for thinking.
fn thinking(options: &Metadata) -> Option<&Value> {
    let fields = ["additionalModelRequestFields", "additional_model_request_fields"];
    let mut passed_on = fields.iter().filter_map(|name| options.get(*name)?.get("thinking"));
    options.get("thinking").or_else(|| passed_on.next())
}

/// The tool whose input becomes the answer.
pub(super) fn form_tool(request: &Request) -> Option<ToolSpec> {
    forms(model_name(request)).tool(request)
}

/// Whether a choice leaves the model no other tool.
fn names_tool(choice: Option<&Value>) -> bool {
    choice.is_some_and(|choice| choice.get("tool").is_some())
}

/// Whether any tool is described to the model.
pub(super) fn describes_tools(request: &Request) -> bool {
    let was_called =
        || request.messages.iter().any(|message| message.tool_calls().next().is_some());
    (has_tools(request) && !is_barred(request)) || was_called() || form_tool(request).is_some()
}

fn tool_config(request: &Request, call: &ModelCall) -> Result<Metadata> {
    let model = model_name(request);
    let form = form_tool(request).map(Arc::new);
    let forced = form.as_ref().and_then(|form| forced(model, &form.name));
    let called = called_tools(request);
    let is_barred = is_barred(request);
    if is_barred && !called.is_empty() && has_tools(request) && !names_tool(forced.as_ref()) {
        return Err(unsupported("this provider cannot keep a model from tools that it has called"));
    }
    let former = &call.former_tools;
    let specs: Vec<&Arc<ToolSpec>> = match !has_tools(request) || is_barred {
        // Thinking demands that tools are described as they were.
        true if !former.is_empty() && claude::binds_thinking(model) => former.iter().collect(),
        // Calls in the conversation demand that their tools are described.
        true => called.iter().collect(),
        false => request.tools.iter().collect(),
    };
    claude::check_choice(request)?;
    let choice = match &request.tool_choice {
        _ if form.is_some() => forced,
        Some(ToolChoice::Required | ToolChoice::Tool(_)) if !has_tools(request) => {
            return Err(unsupported("a tool must be called, and there is none"));
        }
        Some(ToolChoice::Required) => Some(json!({"any": {}})),
        Some(ToolChoice::Tool(name)) => Some(json!({"tool": {"name": name}})),
        Some(ToolChoice::Other(own)) => Some(Value::Object(own.clone())),
        _ => None,
    };
    if specs.is_empty() && !has_tools(request) && form.is_none() {
        return Ok(Metadata::new());
    }
    let mut tools = Vec::new();
    for tool in specs.into_iter().chain(&form) {
        tools.push(tool_spec(tool, model)?);
        tools.extend(mark(&tool.metadata));
    }
    fit_cache_points(&mut tools, model);
    let mut config = Metadata::new();
    add_tools(&mut config, tools.into());
    if let Some(choice) = choice {
        config.insert("toolChoice".to_owned(), choice);
    }
    Ok(config)
}

fn tool_spec(tool: &Arc<ToolSpec>, model: &str) -> Result<Value> {
    let fitted = &fit::tool(tool, dialect(model))?.fitted;
    let strict = fitted.strict_member(tool);
    let fitted = &fitted.schema;
    let own = tool.schema.get("description").filter(|_| fitted.get("description").is_none());
    let described = [Some(tool.description.as_str()), own.and_then(Value::as_str)];
    let described: Vec<&str> =
        described.into_iter().flatten().filter(|text| !text.is_empty()).collect();
    let mut spec = json!({"name": tool.name, "inputSchema": {"json": fitted}});
    if !described.is_empty() {
        spec["description"] = described.join("\n\n").into();
    }
    if let Some(strict) = strict {
        spec["strict"] = strict.into();
    }
    Ok(json!({"toolSpec": spec}))
}

fn output_config(request: &Request) -> Option<Value> {
    match request.response_format.as_ref()? {
        ResponseFormat::JsonSchema { name, .. } => {
            let schema = forms(model_name(request)).enforced_schema(request)?;
            let schema = json!({"name": name, "schema": schema.to_string()});
            let format = json!({"type": "json_schema", "structure": {"jsonSchema": schema}});
            Some(json!({"textFormat": format}))
        }
        ResponseFormat::Other(own) => Some(Value::Object(own.clone())),
        _ => None,
    }
}
