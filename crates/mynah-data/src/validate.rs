//! Rules that types alone cannot enforce, reported all at once with paths and codes.

use std::{collections::HashSet, sync::Arc};

use crate::{
    Error, FieldError, Messages, Request, ResponseFormat, Result, Thread, ToolChoice, ToolSpec,
    ValidationReason,
};

/// Checks a request before it is sent.
///
/// # Errors
/// `invalid_request` with every broken rule, in the order of the rules.
pub fn request(request: &Request) -> Result<()> {
    let (mut errors, mut why) = (Vec::new(), Vec::new());
    if request.messages.is_empty() {
        errors.push(FieldError::new("messages", "empty"));
    }
    errors.extend(request.messages.pairing_error());
    tools(&request.tools, &mut errors, &mut why);
    if let Some(ToolChoice::Tool(name)) = &request.tool_choice
        && !request.tools.iter().any(|tool| tool.name == *name)
    {
        errors.push(FieldError::new("tool_choice", "unknown_tool"));
        let names = request.tools.iter().map(|tool| format!("{:?}", tool.name));
        let names = names.collect::<Vec<_>>().join(", ");
        let known = if names.is_empty() {
            "there are no tools".to_owned()
        } else {
            format!("the tools are {names}")
        };
        why.push(format!("tool_choice names {name:?}, and {known}"));
    }
    // A provider's own tools are among the options.
    if request.tool_choice == Some(ToolChoice::Required)
        && request.tools.is_empty()
        && !request.options.contains_key("tools")
    {
        errors.push(FieldError::new("tool_choice", "no_tools"));
        why.push("tool_choice requires a tool call, and there are no tools".to_owned());
    }
    if let Some(ResponseFormat::JsonSchema { name, schema, .. }) = &request.response_format {
        let mut refuse = |field: &str, code: &str| {
            errors.push(FieldError::new(field, code).under(["response_format".into()]));
        };
        if !is_name(name) {
            refuse("name", if name.is_empty() { "empty" } else { "invalid_format" });
            why.push(format!("{name:?} is not a name of 1 to 64 of A-Z, a-z, 0-9, _ and -"));
        }
        if !schema.is_object() {
            refuse("schema", "not_a_map");
        }
    }
    if request.temperature.is_some_and(|t| !(0.0..=2.0).contains(&t)) {
        errors.push(FieldError::new("temperature", "out_of_range"));
    }
    if request.max_tokens == Some(0) {
        errors.push(FieldError::new("max_tokens", "must_be_positive"));
    }
    if request.structured_finalize
        && !matches!(request.response_format, Some(ResponseFormat::JsonSchema { .. }))
    {
        errors.push(FieldError::new("structured_finalize", "requires_json_schema"));
    }
    let pricing = request.model.as_ref().and_then(|model| model.pricing);
    let broken = pricing.iter().flat_map(|pricing| pricing.errors());
    errors.extend(broken.map(|error| error.under(["model".into(), "pricing".into()])));
    finish(ValidationReason::InvalidRequest, errors).map_err(|error| error.because(&why))
}

fn tools(tools: &[Arc<ToolSpec>], errors: &mut Vec<FieldError>, why: &mut Vec<String>) {
    let (mut names, mut duplicates) = (HashSet::new(), HashSet::new());
    for (index, spec) in tools.iter().enumerate() {
        let broken = tool_errors(spec, why).into_iter();
        errors.extend(broken.map(|error| error.under(["tools".into(), index.into()])));
        if !names.insert(&spec.name) && duplicates.insert(&spec.name) {
            why.push(format!("more than one tool is named {:?}", spec.name));
        }
    }
    if !duplicates.is_empty() {
        errors.push(FieldError::new("tools", "duplicate_name"));
    }
}

/// Checks a tool's description.
///
/// # Errors
/// `invalid_tool` with every broken rule.
pub fn tool(spec: &ToolSpec) -> Result<()> {
    let mut why = Vec::new();
    let errors = tool_errors(spec, &mut why);
    finish(ValidationReason::InvalidTool, errors).map_err(|error| error.because(&why))
}

fn tool_errors(spec: &ToolSpec, why: &mut Vec<String>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match spec.name.as_str() {
        "" => errors.push(FieldError::new("name", "empty")),
        name @ ("auto" | "none" | "required") => {
            errors.push(FieldError::new("name", "reserved_tool_name"));
            why.push(format!("{name:?} is a tool_choice, and no tool's name"));
        }
        name if !is_name(name) => {
            errors.push(FieldError::new("name", "invalid_format"));
            why.push(format!("{name:?} is not a name of 1 to 64 of A-Z, a-z, 0-9, _ and -"));
        }
        _ => {}
    }
    if !spec.schema.is_object() {
        errors.push(FieldError::new("schema", "not_a_map"));
        why.push(format!("the schema of tool {:?} must be a JSON object", spec.name));
    }
    if spec.timeout_ms == Some(0) {
        errors.push(FieldError::new("timeout_ms", "must_be_positive"));
        why.push(format!("the timeout of tool {:?} is zero, so no call could succeed", spec.name));
    }
    errors
}

/// Whether providers accept this name of a tool or schema.
fn is_name(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=64).contains(&name.len()) && name.chars().all(legal)
}

/// Checks that every tool call of a thread has a result before the conversation continues. Costs
/// nothing: the list tracks unanswered calls as it grows.
///
/// # Errors
/// `invalid_thread`, naming the first unanswered call.
pub fn thread(thread: &Thread) -> Result<()> {
    messages(&thread.messages)
}

fn messages(messages: &Messages) -> Result<()> {
    let broken: Vec<FieldError> = messages.pairing_error().into_iter().collect();
    let of_message = broken.iter().any(|error| error.code == "image_in_system_message");
    let reason =
        if of_message { ValidationReason::InvalidMessage } else { ValidationReason::InvalidThread };
    finish(reason, broken)
}

pub(crate) fn finish(reason: ValidationReason, errors: Vec<FieldError>) -> Result<()> {
    if errors.is_empty() { Ok(()) } else { Err(Error::validation(reason, errors)) }
}
