//! The server that the conformance suite of MCP tests: the tools that its scenarios call, on the port that is its argument, or on its
//! standard input and output.

use std::{env, time::Duration};

use mynah_data::{Image, Metadata, Part, ToolOutcome};
use mynah_step::{Tool, ToolContext, ToolProgress};
use serde_json::{Value, json};

const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
const SOUND: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let Some(port) = env::args().nth(1).and_then(|port| port.parse::<u16>().ok()) else {
        return mynah_mcp::serve(tools()).name("conformance").stdio().await;
    };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    mynah_mcp::serve(tools()).name("conformance").http(listener).await
}

fn tools() -> Vec<Tool> {
    let tool = |name: &str, about: &str| {
        Tool::new(name, about, json!({"type": "object", "properties": {}}))
    };
    let resource = |uri: &str, mime: &str, text: &str| json!({"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": text}});
    let embedded =
        resource("test://embedded-resource", "text/plain", "This is an embedded resource content.");
    let mixed = resource(
        "test://mixed-content-resource",
        "application/json",
        r#"{"test":"data","value":123}"#,
    );
    let sent = |value: Value| move |_: Value, _: ToolContext| std::future::ready(value.clone());
    vec![
        tool("test_simple_text", "Text")
            .handler(async |_, _| "This is a simple text response for testing."),
        tool("test_image_content", "An image")
            .handler(async |_, _| vec![Part::image(Image::from_base64(PIXEL, "image/png"))]),
        tool("test_audio_content", "A sound").handler(sent(
            json!({"content": [{"type": "audio", "data": SOUND, "mimeType": "audio/wav"}]}),
        )),
        tool("test_embedded_resource", "A resource").handler(sent(json!({"content": [embedded]}))),
        tool("test_multiple_content_types", "Several kinds").handler(sent(json!({"content": [
            {"type": "text", "text": "Multiple content types test:"},
            {"type": "image", "data": PIXEL, "mimeType": "image/png"},
            mixed,
        ]}))),
        tool("test_error_handling", "Fails").handler(async |_, _| {
            ToolOutcome::error("This tool intentionally returns an error for testing")
        }),
        tool("test_tool_with_progress", "Reports its progress").handler(async |_, context| {
            for progress in [0.0, 50.0, 100.0] {
                context.progress(ToolProgress::new(progress).total(100.0));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            "done"
        }),
        tool("test_input_required_result_elicitation", "Asks for a name").handler(
            async |_, context| match answer(&context) {
                None => ask("user_name", "What is your name?", "name", json!("string"), json!(1)),
                Some(given) => {
                    format!("Hello, {}!", given["name"].as_str().unwrap_or_default()).into()
                }
            },
        ),
        tool("test_input_required_result_request_state", "Keeps a state").handler(
            async |_, context| match context.continuation() {
                None => ask("confirm", "Please confirm", "ok", json!("boolean"), json!("kept")),
                Some(past) if past.state == "kept" => "state-ok".into(),
                Some(_) => ToolOutcome::error("another state"),
            },
        ),
        tool("test_input_required_result_multi_round", "Asks twice").handler(async |_, context| {
            match (answer(&context), context.continuation()) {
                (Some(given), Some(past)) if past.state == 1 => {
                    let question = "Step 2: What is your favorite color?";
                    ask("step2", question, "color", json!("string"), json!({"name": given["name"]}))
                }
                (Some(given), Some(past)) => {
                    json!({"name": past.state["name"], "color": given["color"]}).into()
                }
                _ => ask("step1", "Step 1: What is your name?", "name", json!("string"), json!(1)),
            }
        }),
        tool("test_input_required_result_tampered_state", "Signs its state").handler(confirmed),
        tool("test_missing_capability", "Needs a person").handler(confirmed),
        tool("test_streaming_elicitation", "Asks").handler(confirmed),
        tool("test_logging_tool", "Says nothing").handler(async |_, _| "done"),
    ]
}

async fn confirmed(_: Value, context: ToolContext) -> ToolOutcome {
    match context.continuation() {
        None => ask("confirm", "Please confirm", "ok", json!("boolean"), json!("kept")),
        Some(_) => "confirmed".into(),
    }
}

/// The form that a person filled in.
fn answer(context: &ToolContext) -> Option<Value> {
    let given = context.continuation()?.answer.as_deref()?;
    serde_json::from_str(given).ok()
}

fn ask(name: &str, question: &str, member: &str, kind: Value, state: Value) -> ToolOutcome {
    let schema =
        json!({"type": "object", "properties": {member: {"type": kind}}, "required": [member]});
    let opts =
        Metadata::from_iter([("name".to_owned(), json!(name)), ("schema".to_owned(), schema)]);
    ToolOutcome::ask_and_continue(question, opts, state)
}
