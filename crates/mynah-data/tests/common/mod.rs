//! What the contract tests share.
#![allow(dead_code, reason = "each test file uses its own part of it")]

use std::fmt::Debug;

use mynah_data::{Error, Message, Metadata, Part, ToolCall};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// The value after a trip through JSON, which must not have changed it or its text.
#[track_caller]
pub(crate) fn through_json<T>(value: &T) -> T
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let text = serde_json::to_string(value).expect("every value has a JSON form");
    let back: T = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e} in {text}"));
    assert_eq!(&back, value, "came back different from {text}");
    assert_eq!(serde_json::to_string(&back).unwrap(), text, "has two JSON forms");
    back
}

/// The typed error of JSON that does not fit.
#[track_caller]
pub(crate) fn refused<T: DeserializeOwned + Debug>(text: &str) -> Error {
    match serde_json::from_str::<T>(text) {
        Ok(value) => panic!("{text} was taken for {value:?}"),
        Err(error) => Error::from(error),
    }
}

/// The broken rules of a validation, as `path: code`.
#[track_caller]
pub(crate) fn rules<T: Debug>(result: mynah_data::Result<T>) -> Vec<String> {
    let error = result.expect_err("a rule is broken");
    error.field_errors().iter().map(ToString::to_string).collect()
}

/// A metadata map from `json!({..})`.
#[track_caller]
pub(crate) fn map(value: Value) -> Metadata {
    match value {
        Value::Object(map) => map,
        other => panic!("not an object: {other}"),
    }
}

/// A call of `echo` without arguments.
pub(crate) fn call(id: &str) -> ToolCall {
    ToolCall::new(id, "echo", "{}")
}

/// An assistant message that does nothing but call `echo` under these ids.
pub(crate) fn calling(ids: &[&str]) -> Message {
    Message::assistant_parts(ids.iter().map(|id| Part::tool_call(call(id))))
}
