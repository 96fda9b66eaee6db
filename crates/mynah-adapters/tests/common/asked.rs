//! What requests are made of.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use mynah_adapters::format::Format;
use mynah_data::{
    CacheRetention, Message, Metadata, Part, PromptCache, Request, ToolCall, ToolChoice, ToolSpec,
};
use mynah_step::ModelCall;
use serde_json::{Value, json};

pub fn search() -> ToolSpec {
    ToolSpec::new("search", "finds", json!({"type": "object"}))
}

/// A question with options of the caller's own.
pub fn with_options(options: &Value) -> Request {
    Request::from("hi").with_options(options.as_object().unwrap().clone())
}

/// A conversation in which blank texts stand, and a tool gave this.
pub fn with_blanks(result: &str) -> Request {
    let call = Part::tool_call(ToolCall::new("c1", "search", "{}"));
    Request::new([
        Message::system(" "),
        Message::user_parts([Part::text("\n"), Part::text("hi")]),
        Message::assistant_parts([Part::text("\n\n"), call]),
        Message::tool_result("c1", result),
        Message::assistant(" "),
    ])
}

/// Instructions, a long text with a question, and a tool; all but the question are to be cached so.
pub fn marked(mark: &Value) -> Request {
    let metadata = Metadata::from_iter([("cache_control".to_owned(), mark.clone())]);
    let mut tool = search();
    tool.metadata.clone_from(&metadata);
    let text = Part::Text { text: "a long text".to_owned(), metadata };
    Request::new([
        Message::system("Be brief.").with_metadata("cache_control", mark.clone()),
        Message::user_parts([text, Part::text("and?")]),
    ])
    .with_tools([tool])
}

/// A question whose prompt is cached for so long.
pub fn cached(retention: CacheRetention) -> Request {
    let mut cache = PromptCache::default();
    cache.retention = retention;
    Request::from("hi").with_prompt_cache(cache)
}

/// How OpenAI is asked to cache this, in the session `s1`: its key, and how long.
pub fn cache_members(format: &dyn Format, request: Request) -> [Option<Value>; 2] {
    let mut call = ModelCall::default();
    call.session_id = Some("s1".to_owned());
    let body = format.body(&request.with_model("m"), &call).unwrap();
    ["prompt_cache_key", "prompt_cache_retention"].map(|name| body.get(name).cloned())
}

/// Each choice of a tool has the form that OpenAI gives it; that of one tool is `named`.
pub fn check_choices(body: impl Fn(Request) -> Value, named: Value) {
    let own = Metadata::from_iter([("type".to_owned(), json!("allowed_tools"))]);
    let asked = |choice| Request::from("hi").with_tool_choice(choice);
    for (choice, expected) in [
        (ToolChoice::Auto, json!("auto")),
        (ToolChoice::None, json!("none")),
        (ToolChoice::Required, json!("required")),
        (ToolChoice::Tool("search".to_owned()), named),
        (ToolChoice::Other(own), json!({"type": "allowed_tools"})),
    ] {
        assert_eq!(body(asked(choice).with_tools([search()]))["tool_choice"], expected);
    }
    let without_tools = |choice| body(asked(choice)).get("tool_choice").cloned();
    assert_eq!(without_tools(ToolChoice::Auto), None);
    assert_eq!(without_tools(ToolChoice::None), None);
    assert_eq!(without_tools(ToolChoice::Required), Some(json!("required")));
}
