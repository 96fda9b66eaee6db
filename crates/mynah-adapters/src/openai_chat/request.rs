//! A request as Chat Completions wants it.

use std::{borrow::Cow, mem::take};

use mynah_data::{
    Image, ImageDetail, Message, Part, Request, ResponseFormat, Result, Role, ToolCall, ToolChoice,
};
use mynah_step::ModelCall;
use serde::{
    Serialize, Serializer,
    ser::{SerializeMap as _, SerializeSeq as _},
};
use serde_json::{Value, json};

use super::{ChatDialect, CompletionTokens, JsonSchemas, PromptCaching, ReasoningBack};
use crate::{
    fit::{self, Fitted},
    loose::tells,
    openai,
    request::{
        CacheMarks, Function, argument_object, cache_control, chooses, function, has_tools,
        image_url, joined_text, model_id, prompt_cache, result_text, tell_left_away, turns,
        unsupported, unsupported_form,
    },
};

/// In the metadata of a call: it has text for its input, and no function.
pub(super) const CUSTOM: &str = "custom";

/// The argument that holds such text.
pub(super) const INPUT: &str = "input";

/// A member of the body. It borrows from the request, so that nothing is copied before it is written.
#[derive(Serialize)]
#[serde(untagged)]
enum Member<'r> {
    Messages(Vec<Said<'r>>),
    /// Messages that were joined.
    Joined(Vec<Value>),
    Tools(Tools<'r>),
    Text(&'r str),
    Option(&'r Value),
    Value(Value),
}

impl Member<'_> {
    fn is_false(&self) -> bool {
        let no = Value::Bool(false);
        matches!(self, Self::Option(value) if **value == no)
            || matches!(self, Self::Value(value) if *value == no)
    }
}

/// The body of a request.
pub(super) struct Body<'r>(Vec<(&'r str, Member<'r>)>);

impl<'r> Body<'r> {
    fn set(&mut self, name: &'r str, member: Member<'r>) {
        match self.get_mut(name) {
            Some(known) => *known = member,
            None => self.0.push((name, member)),
        }
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut Member<'r>> {
        self.0.iter_mut().find(|(known, _)| *known == name).map(|(_, member)| member)
    }

    /// Adds the provider's own tools, one or several, after ours.
    fn add_tools(&mut self, own: &'r Value) {
        let own = match own {
            own if !tells(own) => return,
            Value::Array(several) => several.as_slice(),
            only => std::slice::from_ref(only),
        };
        match self.get_mut("tools") {
            Some(Member::Tools(tools)) => tools.own = own,
            _ => self.set("tools", Member::Tools(Tools { ours: Vec::new(), own })),
        }
    }
}

impl Serialize for Body<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, member)| (name, member)))
    }
}

pub(super) fn body<'r>(
    dialect: &ChatDialect,
    request: &'r Request,
    call: &ModelCall,
) -> Result<Body<'r>> {
    let model = model_id(request)?;
    let short_call_ids = dialect.short_call_ids || model.starts_with("mistralai/");
    let reasoning_back = match dialect.reasoning_back {
        ReasoningBack::FieldOfReasoners(name) if reasons(model) => ReasoningBack::Field(name),
        ReasoningBack::FieldOfReasoners(_) => ReasoningBack::Never,
        other => other,
    };
    let dialect = &ChatDialect { short_call_ids, reasoning_back, ..*dialect };
    let mut body = Body(Vec::with_capacity(8));
    body.set("model", Member::Text(model));
    let messages = messages(dialect, request)?;
    body.set(
        "messages",
        if dialect.turns { in_turns(messages)? } else { Member::Messages(messages) },
    );
    if !request.tools.is_empty() {
        let tool =
            |tool| Ok(Described { r#type: "function", function: function(tool, dialect.schemas)? });
        let ours = request.tools.iter().map(tool).collect::<Result<_>>()?;
        body.set("tools", Member::Tools(Tools { ours, own: &[] }));
    }
    let mut set = |name: &'static str, value: Value| body.set(name, Member::Value(value));
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
        (PromptCaching::OpenAi, _) => {
            prompt_cache(request, call, true)
                .into_iter()
                .for_each(|(name, value)| set(name, value));
        }
        // If the whole prompt should be cached, providers that cannot do it are excluded.
        (PromptCaching::CacheControl, Some(cache)) if model.starts_with("anthropic/") => {
            set("cache_control", cache_control(cache.retention));
        }
        _ => {}
    }
    // A name with a maker belongs to a gateway, which knows what its models accept.
    let is_openais = dialect.openai_models && !model.contains('/');
    let is_certain = is_openais && !dialect.deployments;
    for (name, value) in &request.options {
        match name.as_str() {
            "reasoning_effort" if is_certain && openai::reasons(model) == Some(false) => {
                tell_left_away(name, request);
            }
            // Thoughts are not summed up in this format.
            "reasoning_summary" if is_openais => tell_left_away(name, request),
            "tools" => body.add_tools(value),
            name => body.set(name, Member::Option(value)),
        }
    }
    if body.get_mut("stream").is_some_and(|stream| stream.is_false()) {
        body.0.retain(|(name, _)| *name != "stream_options");
    }
    if is_openais && has_tools(request) && openai::reasons_or_calls(model) {
        keep_from_reasoning(model, &mut body)?;
    }
    Ok(body)
}

/// Says that the model is not to reason, unless the caller says how.
fn keep_from_reasoning(model: &str, body: &mut Body<'_>) -> Result<()> {
    const EFFORT: &str = "reasoning_effort";
    if body.get_mut(EFFORT).is_some() {
        return Ok(());
    }
    if openai::always_reasons(model) {
        return Err(unsupported(&format!(
            "{model} takes tools by Responses alone: call it with `openai:`, on Azure with `azure-responses:`"
        )));
    }
    body.set(EFFORT, Member::Text("none"));
    Ok(())
}

/// The tools of a request: ours, then the provider's own.
struct Tools<'r> {
    ours: Vec<Described<'r>>,
    own: &'r [Value],
}

impl Serialize for Tools<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.ours.len() + self.own.len()))?;
        self.ours.iter().try_for_each(|tool| list.serialize_element(tool))?;
        self.own.iter().try_for_each(|tool| list.serialize_element(tool))?;
        list.end()
    }
}

#[derive(Serialize)]
struct Described<'r> {
    r#type: &'static str,
    function: Function<'r>,
}

/// Whether an open model is called as one that reasons.
fn reasons(model: &str) -> bool {
    ["gpt-oss", "qwen3", "deepseek-r1"].iter().any(|name| model.contains(name))
}

/// A message.
struct Said<'r> {
    role: &'static str,
    tool_call_id: Option<Cow<'r, str>>,
    content: Content<'r>,
    /// Where reasoning goes back in a member of its own: its name, and what it holds.
    reasoning: Option<(&'static str, Value)>,
    tool_calls: Vec<Call<'r>>,
    name: Option<&'r str>,
}

impl<'r> Said<'r> {
    fn new(role: &'static str, content: Content<'r>) -> Self {
        let (tool_call_id, reasoning, tool_calls, name) = (None, None, Vec::new(), None);
        Self { role, tool_call_id, content, reasoning, tool_calls, name }
    }

    /// Whether the answer is empty. Some servers refuse an empty answer.
    fn is_empty_answer(&self) -> bool {
        let is_empty = matches!(&self.content, Content::Text(text) if text.is_empty());
        self.role == "assistant"
            && is_empty
            && self.reasoning.is_none()
            && self.tool_calls.is_empty()
    }
}

impl Serialize for Said<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_map(None)?;
        members.serialize_entry("role", self.role)?;
        if let Some(id) = &self.tool_call_id {
            members.serialize_entry("tool_call_id", id)?;
        }
        members.serialize_entry("content", &self.content)?;
        if let Some((name, reasoning)) = &self.reasoning {
            members.serialize_entry(name, reasoning)?;
        }
        if !self.tool_calls.is_empty() {
            members.serialize_entry("tool_calls", &self.tool_calls)?;
        }
        if let Some(name) = self.name {
            members.serialize_entry("name", name)?;
        }
        members.end()
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'r> {
    Null,
    Text(Cow<'r, str>),
    Parts(Vec<Value>),
}

/// A call of the model. The type stands after the id.
#[derive(Serialize)]
struct Call<'r> {
    id: Cow<'r, str>,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<Called<'r>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom: Option<Custom<'r>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_content: Option<&'r Value>,
}

#[derive(Serialize)]
struct Called<'r> {
    name: &'r str,
    arguments: &'r str,
}

#[derive(Serialize)]
struct Custom<'r> {
    name: &'r str,
    input: &'r str,
}

fn messages<'r>(dialect: &ChatDialect, request: &'r Request) -> Result<Vec<Said<'r>>> {
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
            messages.push(Said::new("user", Content::Parts(take(&mut images))));
        }
        let mut said = match message.role() {
            Role::System => Said::new("system", content(message, marks)?),
            Role::User => Said::new("user", content(message, marks)?),
            Role::Assistant => assistant(dialect, message),
            Role::Tool => {
                let id = call_id(dialect, message.tool_call_id().unwrap_or_default());
                images.extend(tool_images(message, &id)?);
                Said { tool_call_id: Some(id), ..Said::new("tool", result(message, marks)) }
            }
        };
        if said.is_empty_answer() {
            continue;
        }
        if dialect.names && message.role() != Role::Tool {
            said.name = message.name();
        }
        messages.push(said);
    }
    if !images.is_empty() {
        messages.push(Said::new("user", Content::Parts(images)));
    }
    Ok(messages)
}

/// Instructions first, then one message for what user or model says in a row. Results stay apart: each has the id of its call.
fn in_turns(messages: Vec<Said<'_>>) -> Result<Member<'static>> {
    let messages = messages.iter().map(|said| json!(said));
    let (mut written, said): (Vec<Value>, Vec<Value>) =
        messages.partition(|message| message["role"] == "system");
    let sides = said.into_iter().map(|message| Ok((message["role"].clone(), vec![message])));
    for (side, said) in turns(sides)? {
        match side == "tool" {
            true => written.extend(said),
            false => written.extend(said.into_iter().reduce(joined)),
        }
    }
    Ok(Member::Joined(written))
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

fn content(message: &Message, marks: CacheMarks) -> Result<Content<'_>> {
    let has_images = message.parts().iter().any(|part| matches!(part, Part::Image { .. }));
    if !has_images && !marks.are_in(message) {
        return Ok(Content::Text(joined_text(message)));
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
    Ok(Content::Parts(marks.put_last(parts.collect::<Result<_>>()?, message)))
}

fn result(message: &Message, marks: CacheMarks) -> Content<'_> {
    let text = result_text(message);
    match marks.are_in(message) {
        true => {
            let part = json!({"type": "text", "text": text});
            Content::Parts(marks.put_last(vec![part], message))
        }
        false => Content::Text(text),
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

fn assistant<'r>(dialect: &ChatDialect, message: &'r Message) -> Said<'r> {
    let mut text = message.text();
    let (mut reasoning, mut details) = (String::new(), Vec::new());
    for part in message.parts() {
        match part {
            Part::Refusal { text: refusal } => text.to_mut().push_str(refusal),
            Part::Reasoning { text, data, .. } => {
                reasoning.push_str(text);
                let kept = data.as_ref().and_then(|data| data.get("reasoning_details")?.as_array());
                details.extend(kept.into_iter().flatten().cloned());
            }
            _ => {}
        }
    }
    let mut said = Said::new("assistant", Content::Null);
    said.tool_calls = message.tool_calls().map(|call| called(dialect, call)).collect();
    if !text.is_empty() || said.tool_calls.is_empty() {
        said.content = Content::Text(text);
    }
    match dialect.reasoning_back {
        ReasoningBack::Field(name) if !reasoning.is_empty() => {
            said.reasoning = Some((name, reasoning.into()));
        }
        ReasoningBack::Details if !details.is_empty() => {
            said.reasoning = Some(("reasoning_details", details.into()));
        }
        ReasoningBack::Details if !reasoning.is_empty() => {
            said.reasoning = Some(("reasoning", reasoning.into()));
        }
        ReasoningBack::Thinking if !reasoning.is_empty() => {
            let mut parts = vec![
                json!({"type": "thinking", "thinking": [{"type": "text", "text": reasoning}]}),
            ];
            if let Content::Text(text) = &said.content {
                parts.push(json!({"type": "text", "text": text}));
            }
            said.content = Content::Parts(parts);
        }
        _ => {}
    }
    said
}

fn called<'r>(dialect: &ChatDialect, call: &'r ToolCall) -> Call<'r> {
    let id = call_id(dialect, &call.id);
    if call.metadata.contains_key(CUSTOM) {
        let input = call.arguments.get(INPUT).and_then(Value::as_str).unwrap_or_default();
        let custom = Some(Custom { name: &call.name, input });
        return Call { id, r#type: "custom", function: None, custom, extra_content: None };
    }
    let function = Some(Called { name: &call.name, arguments: argument_object(call) });
    let extra_content = call.metadata.get("extra_content");
    Call { id, r#type: "function", function, custom: None, extra_content }
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Tool(name) => json!({"type": "function", "function": {"name": name}}),
        other => json!(other),
    }
}

/// Whether the server supports the answer's format only without streaming and tools.
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
