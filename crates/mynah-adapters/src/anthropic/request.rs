//! A request as Messages wants it.

use std::sync::Arc;

use mynah_data::{
    Image, ImageSource, Message, Metadata, Part, Request, Result, Role, ToolCall, ToolChoice,
    ToolSpec,
};
use mynah_step::ModelCall;
use serde_json::{Value, json};

use crate::{
    claude,
    fit::{self, Dialect},
    form::Forms,
    request::{
        add_tools, argument_map, cache_control, called_tools, dialogue, extend_member, has_tools,
        inline_image, is_blank, is_error, joined_text, model_id, model_name, plain_id, several,
        tell_no_detail, turns, unsupported,
    },
};

/// The default limit for unknown models: every model accepts it.
const MAX_TOKENS: u64 = 4096;

/// The default limit for unknown Claude models: each has accepted it since 4.5. Newer ones think
/// before they answer, within the limit.
const MAX_TOKENS_OF_CLAUDE: u64 = 64_000;

/// In the metadata of a call: the code that made it.
pub(super) const CALLER: &str = "caller";

/// The type of a stored part that is not a block: the container in which code ran.
pub(super) const CONTAINER: &str = "container";

pub(super) fn body(request: &Request, call: &ModelCall) -> Result<Value> {
    tell_no_detail(request);
    let mut options = request.options.clone();
    let mut body = Metadata::new();
    let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
    let id = model_id(request)?;
    set("model", id.into());
    let known = request.model.as_ref().and_then(|model| model.limits.get("output")?.as_u64());
    let usual = match id.contains("claude-") && !id.contains("claude-3") {
        true => MAX_TOKENS_OF_CLAUDE,
        false => MAX_TOKENS,
    };
    set("max_tokens", request.max_tokens.or(known).unwrap_or(usual).into());
    if let Some(system) = system(request) {
        set("system", system);
    }
    set("messages", messages(request)?.into());
    let parallel = options.shift_remove("parallel_tool_calls").and_then(|flag| flag.as_bool());
    forms(request).check(request, options.get("thinking"))?;
    if let Some(tools) = tools(request, call)? {
        set("tools", tools);
    }
    if let Some(choice) = tool_choice(request, call, parallel)? {
        set("tool_choice", choice);
    }
    if let Some(temperature) = request.temperature {
        set("temperature", temperature.into());
    }
    if let Some(stop) = options.shift_remove("stop") {
        set("stop_sequences", several(stop));
    }
    if let Some(schema) = forms(request).enforced_schema(request) {
        set("output_config", json!({"format": {"type": "json_schema", "schema": schema}}));
    }
    if let Some(cache) = &request.prompt_cache {
        set("cache_control", cache_control(cache.retention));
    }
    if let Some(container) = container(request) {
        set(CONTAINER, container);
    }
    set("stream", true.into());
    if let Some(effort) = options.shift_remove("reasoning_effort") {
        let effort = Metadata::from_iter([("effort".to_owned(), effort)]);
        extend_member(&mut body, "output_config", effort);
    }
    for (name, value) in options {
        match (body.get_mut(&name), value) {
            // `output_config` also holds the effort: the caller's members go beside ours.
            (Some(Value::Object(ours)), Value::Object(theirs)) if name == "output_config" => {
                ours.extend(theirs)
            }
            (_, value) if name == "tools" => add_tools(&mut body, value),
            (Some(Value::String(id)), Value::Object(mut theirs)) if name == CONTAINER => {
                theirs.entry("id").or_insert(id.as_str().into());
                body.insert(name, theirs.into());
            }
            (_, value) => drop(body.insert(name, value)),
        }
    }
    Ok(Value::Object(body))
}

/// The output formats that the model supports.
fn forms(request: &Request) -> Forms {
    let model = model_name(request);
    Forms { enforced: claude::has_native_schemas(model), open: claude::can_be_forced(model) }
}

pub(super) fn form_tool(request: &Request) -> Option<ToolSpec> {
    forms(request).tool(request)
}

fn system(request: &Request) -> Option<Value> {
    let within = claude::takes_instructions_within(model_name(request));
    let messages = request.messages.iter().map(AsRef::as_ref);
    let above = messages.take_while(|message| !within || is_instruction(message));
    let blocks: Vec<Value> = above
        .filter(is_instruction)
        .filter_map(|message| Some(marked(instruction(message)?, cache_mark(message))))
        .collect();
    if blocks.iter().any(|block| block.get("cache_control").is_some()) {
        return Some(blocks.into());
    }
    let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    (!texts.is_empty()).then(|| texts.join("\n\n").into())
}

fn is_instruction(message: &&Message) -> bool {
    message.role() == Role::System
}

fn instruction(message: &Message) -> Option<Value> {
    let text = joined_text(message);
    (!is_blank(&text)).then(|| json!({"type": "text", "text": text}))
}

/// The conversation in the provider's form. System messages are moved to where the provider accepts
/// them: after the user's messages, before the next answer.
fn conversation(request: &Request) -> Vec<&Message> {
    if !claude::takes_instructions_within(model_name(request)) {
        return dialogue(request).collect();
    }
    let messages = request.messages.iter().map(AsRef::as_ref);
    let (mut said, mut waiting): (Vec<&Message>, Vec<&Message>) = (Vec::new(), Vec::new());
    for message in messages.skip_while(is_instruction) {
        let user_spoke = said.last().is_some_and(|last| last.role() != Role::Assistant);
        match message.role() {
            Role::System => waiting.push(message),
            Role::Assistant if user_spoke => {
                said.append(&mut waiting);
                said.push(message);
            }
            _ => said.push(message),
        }
    }
    said.append(&mut waiting);
    said
}

fn messages(request: &Request) -> Result<Vec<Value>> {
    // The tool for the format did not exist when the model thought, and the provider refuses such
    // thoughts.
    let with_thoughts =
        form_tool(request).is_none() || !claude::binds_thinking(model_name(request));
    let said = |message: &Message| {
        let (role, mut blocks) = match message.role() {
            Role::System => ("system", instruction(message).into_iter().collect()),
            Role::Assistant => ("assistant", assistant(message, with_thoughts)),
            Role::Tool => ("user", vec![tool_result(message)?]),
            _ => ("user", user(message)?),
        };
        if let (Some(last), Some(mark)) = (blocks.last_mut(), cache_mark(message)) {
            last["cache_control"] = mark.clone();
        }
        Ok((role, blocks))
    };
    let plain = |blocks: &[Value]| match blocks {
        [only] if only.as_object().is_some_and(|block| block.len() == 2) => {
            only.get("text").filter(|_| only["type"] == "text").cloned()
        }
        _ => None,
    };
    Ok(turns(conversation(request).into_iter().map(said))?
        .into_iter()
        .map(|(role, blocks)| {
            let content = plain(&blocks).unwrap_or_else(|| blocks.into());
            json!({"role": role, "content": content})
        })
        .collect())
}

fn user(message: &Message) -> Result<Vec<Value>> {
    let blocks = message.parts().iter().filter_map(|part| match part {
        Part::Text { text, metadata } if !is_blank(text) => {
            Some(Ok(marked(json!({"type": "text", "text": text}), metadata.get("cache_control"))))
        }
        Part::Image { image, metadata, .. } => {
            Some(image_block(image).map(|block| marked(block, metadata.get("cache_control"))))
        }
        _ => None,
    });
    blocks.collect()
}

/// The container in which the provider runs the code of a continued turn. It may be gone when the
/// next turn begins.
fn container(request: &Request) -> Option<Value> {
    let last = dialogue(request).filter(|message| message.role() != Role::Tool).last()?;
    last.parts().iter().find_map(|part| match part {
        Part::Reasoning { data: Some(kept), .. } if kept["type"] == CONTAINER => {
            kept[CONTAINER].get("id").cloned()
        }
        _ => None,
    })
}

fn assistant(message: &Message, with_thoughts: bool) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    for part in message.parts() {
        match part {
            Part::Text { text, metadata } if !is_blank(text) => {
                let block = json!({"type": "text", "text": text});
                blocks.push(marked(block, metadata.get("cache_control")));
            }
            Part::Refusal { text } if !is_blank(text) => {
                blocks.push(json!({"type": "text", "text": text}));
            }
            Part::Reasoning { data: Some(kept), .. } if kept["type"] == "text" => {
                if let Some(cited) = blocks.last_mut().filter(|block| block["type"] == "text") {
                    cited["citations"] = citations(kept);
                }
            }
            Part::Reasoning { text, signature, data, .. } => {
                let block = reasoning(text, signature.as_deref(), data.as_ref());
                blocks.extend(block.filter(|block| with_thoughts || !is_thought(block)));
            }
            Part::ToolCall(call) => blocks.push(tool_use(call)),
            _ => {}
        }
    }
    blocks
}

fn is_thought(block: &Value) -> bool {
    block["type"] == "thinking" || block["type"] == "redacted_thinking"
}

fn tool_use(call: &ToolCall) -> Value {
    let mut block = json!({
        "type": "tool_use",
        "id": plain_id(&call.id),
        "name": call.name,
        "input": argument_map(call),
    });
    if let Some(caller) = call.metadata.get(CALLER) {
        block[CALLER] = caller.clone();
    }
    block
}

/// What the text before was taken from, as the provider takes it: it gives one member more.
fn citations(kept: &Value) -> Value {
    let mut citations = kept["citations"].clone();
    for citation in citations.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut)
    {
        citation.shift_remove("file_id");
    }
    citations
}

/// Reasoning goes back as it came, or not at all: another provider's means nothing here.
fn reasoning(text: &str, signature: Option<&str>, data: Option<&Value>) -> Option<Value> {
    match (signature, data) {
        (Some(signature), None) => {
            Some(json!({"type": "thinking", "thinking": text, "signature": signature}))
        }
        (None, Some(Value::String(withheld))) => {
            Some(json!({"type": "redacted_thinking", "data": withheld}))
        }
        (None, Some(block)) => {
            let is_block = block.get("type").is_some_and(|kind| kind != CONTAINER);
            is_block.then(|| block.clone())
        }
        _ => None,
    }
}

fn tool_result(message: &Message) -> Result<Value> {
    let has_images = message.parts().iter().any(|part| matches!(part, Part::Image { .. }));
    let content: Value =
        if has_images { user(message)?.into() } else { joined_text(message).into() };
    let id = plain_id(message.tool_call_id().unwrap_or_default());
    let mut block = json!({"type": "tool_result", "tool_use_id": id, "content": content});
    if is_error(message) {
        block["is_error"] = true.into();
    }
    Ok(block)
}

fn image_block(image: &Image) -> Result<Value> {
    if let ImageSource::Url(url) = &image.source {
        return Ok(json!({"type": "image", "source": {"type": "url", "url": url}}));
    }
    let (media_type, data) = inline_image(image)?;
    Ok(
        json!({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}),
    )
}

fn cache_mark(message: &Message) -> Option<&Value> {
    message.metadata().get("cache_control")
}

fn marked(mut block: Value, mark: Option<&Value>) -> Value {
    if let Some(mark) = mark {
        block["cache_control"] = mark.clone();
    }
    block
}

/// How many tools of a request may be strict.
const MAX_STRICT_TOOLS: usize = 20;

fn tools(request: &Request, call: &ModelCall) -> Result<Option<Value>> {
    let called = match has_tools(request) || !call.former_tools.is_empty() {
        true => Vec::new(),
        false => called_tools(request),
    };
    // Calls in the conversation demand that their tools are described, and thinking that they are described as they were.
    let former = call.former_tools.iter().filter(|_| !has_tools(request));
    let form = form_tool(request).map(Arc::new);
    let all = request.tools.iter().chain(former).chain(&called).chain(&form);
    let mut tools = all.map(tool_spec).collect::<Result<Vec<Value>>>()?;
    // The provider refuses a request with more; the loop checks the arguments of the others.
    let strict = tools.iter_mut().filter(|tool| tool["strict"] == true);
    strict.skip(MAX_STRICT_TOOLS).for_each(|tool| tool["strict"] = false.into());
    Ok((!tools.is_empty()).then(|| tools.into()))
}

fn tool_spec(tool: &Arc<ToolSpec>) -> Result<Value> {
    let fitted = &fit::tool(tool, Dialect::Anthropic)?.fitted;
    let strict = fitted.strict_member(tool);
    let mut spec =
        json!({"name": tool.name, "description": tool.description, "input_schema": fitted.schema});
    if let Some(strict) = strict {
        spec["strict"] = strict.into();
    }
    Ok(marked(spec, tool.metadata.get("cache_control")))
}

fn tool_choice(
    request: &Request,
    call: &ModelCall,
    parallel: Option<bool>,
) -> Result<Option<Value>> {
    if let Some(form) = form_tool(request) {
        return Ok(Some(json!({"type": "tool", "name": form.name})));
    }
    claude::check_choice(request)?;
    let has_tools = has_tools(request);
    let mut choice = match &request.tool_choice {
        Some(ToolChoice::None) => return Ok(has_tools.then(|| json!({"type": "none"}))),
        Some(ToolChoice::Required | ToolChoice::Tool(_)) if !has_tools => {
            return Err(unsupported("a tool must be called, and there is none"));
        }
        Some(ToolChoice::Required) => json!({"type": "any"}),
        Some(ToolChoice::Tool(name)) => json!({"type": "tool", "name": name}),
        Some(ToolChoice::Other(choice)) => Value::Object(choice.clone()),
        _ if !has_tools => {
            // Tools that are listed only because earlier messages refer to them must not be called.
            let was_called =
                request.messages.iter().any(|message| message.tool_calls().next().is_some());
            let stands_there = was_called || !call.former_tools.is_empty();
            return Ok(stands_there.then(|| json!({"type": "none"})));
        }
        _ if parallel == Some(false) => json!({"type": "auto"}),
        _ => return Ok(None),
    };
    if parallel == Some(false) {
        choice["disable_parallel_tool_use"] = true.into();
    }
    Ok(Some(choice))
}
