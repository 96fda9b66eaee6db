//! What requests are made of.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use mynah_data::{Request, ToolSpec};
use serde_json::{Value, json};

pub fn search() -> ToolSpec {
    ToolSpec::new("search", "finds", json!({"type": "object"}))
}

/// A question with options of the caller's own.
pub fn with_options(options: &Value) -> Request {
    Request { options: options.as_object().unwrap().clone(), ..Request::from("hi") }
}
