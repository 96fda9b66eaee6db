//! Decoding JSON that people or other programs wrote, with errors that name the field and the rule.
//!
//! `serde_json::from_value` decodes the same values with less precise errors.

use std::{collections::HashSet, fmt};

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use crate::{
    Error, FieldError, Message, Result, Session, Thread, ValidationReason, session,
    validate::finish,
};

/// Decodes one message.
///
/// # Errors
/// `invalid_message` with `role: unknown`, `content: invalid_type`, `content: invalid_part_type` or
/// `tool_call_id: required`; `invalid_json` for everything else.
pub fn message(value: &Value) -> Result<Message> {
    finish(ValidationReason::InvalidMessage, message_errors(value))?;
    Ok(serde::Deserialize::deserialize(value)?)
}

/// Decodes a list of messages as a thread.
///
/// # Errors
/// `invalid_thread` with the broken rules of every message; `invalid_json` for everything else.
pub fn thread(messages: &[Value]) -> Result<Thread> {
    finish(ValidationReason::InvalidThread, list_errors(messages))?;
    let decode = |value| -> Result<Message> { Ok(serde::Deserialize::deserialize(value)?) };
    messages.iter().map(decode).collect()
}

/// Decodes a stored session.
///
/// # Errors
/// `invalid_session` with the broken rules; `invalid_json` for everything else.
pub fn session(text: &str) -> Result<Session> {
    let value: Value = serde_json::from_str(text)?;
    let messages = value.pointer("/thread/messages").and_then(Value::as_array);
    let broken = messages.map(|list| list_errors(list)).unwrap_or_default().into_iter();
    let mut errors: Vec<FieldError> = broken.map(|error| error.under(["thread".into()])).collect();
    if value.get("status").and_then(Value::as_str).is_some_and(|s| !STATUSES.contains(&s)) {
        errors.insert(0, FieldError::new("status", "unknown"));
    }
    finish(ValidationReason::InvalidSession, errors)?;
    let wire: session::Wire = serde_json::from_value(value).map_err(Error::from)?;
    Session::from_wire(wire)
}

/// Checks that no object in JSON text has a duplicate key. A parser would drop one of the two.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::decode::unique_keys;
/// let error = unique_keys("{\"a\": {\"b\": 1,\n\"b\": 2}}").unwrap_err();
/// assert_eq!(error.to_string(), "the key \"b\" occurs twice at line 2 column 3");
/// assert!(unique_keys(r#"{"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]}"#).is_ok());
/// ```
///
/// # Errors
/// The first duplicate key, and text that is not JSON, with line and column.
#[doc(hidden)]
pub fn unique_keys(text: &str) -> serde_json::Result<()> {
    serde_json::from_str(text).map(|Unique| ())
}

/// A visitor that rejects duplicate keys. It keeps nothing of the value.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

macro_rules! plain {
    ($($visit:ident $type:ty),+) => {
        $(fn $visit<E>(self, _: $type) -> std::result::Result<Self, E> {
            Ok(self)
        })+
    };
}

impl<'de> de::Visitor<'de> for Unique {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    plain!(visit_bool bool, visit_i64 i64, visit_u64 u64, visit_f64 f64, visit_str &str);

    fn visit_unit<E>(self) -> std::result::Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: de::MapAccess<'de>>(
        self,
        mut members: A,
    ) -> std::result::Result<Self, A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = members.next_key::<String>()? {
            if let Some(key) = keys.replace(key) {
                return Err(de::Error::custom(format_args!("the key {key:?} occurs twice")));
            }
            members.next_value::<Self>()?;
        }
        Ok(self)
    }
}

const STATUSES: [&str; 5] = ["idle", "awaiting_user", "awaiting_tools", "completed", "error"];
const PARTS: [&str; 5] = ["text", "image", "reasoning", "tool_call", "refusal"];

fn list_errors(messages: &[Value]) -> Vec<FieldError> {
    let indexed = messages.iter().enumerate();
    indexed
        .flat_map(|(index, value)| {
            message_errors(value)
                .into_iter()
                .map(move |error| error.under(["messages".into(), index.into()]))
        })
        .collect()
}

fn message_errors(value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let role = value.get("role").and_then(Value::as_str);
    if role.is_some_and(|role| !["system", "user", "assistant", "tool"].contains(&role)) {
        errors.push(FieldError::new("role", "unknown"));
    }
    match value.get("content") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            let known = |part: &Value| {
                part.get("type").and_then(Value::as_str).is_some_and(|t| PARTS.contains(&t))
            };
            if !parts.iter().all(known) {
                errors.push(FieldError::new("content", "invalid_part_type"));
            }
        }
        Some(_) => errors.push(FieldError::new("content", "invalid_type")),
    }
    let has_id = value.get("tool_call_id").is_some_and(Value::is_string);
    if role == Some("tool") && !has_id {
        errors.push(FieldError::new("tool_call_id", "required"));
    }
    errors
}
