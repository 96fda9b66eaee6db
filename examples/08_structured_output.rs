//! An answer in a form that a program can read, from a model that used tools on the way: the conversation comes first,
//! then one more call, without tools, gives the answer its form.
//!
//! The schema is written by hand here, and `into_json` checks the answer against the type. Example 19 derives the schema from the type and
//! checks the answer against it too.

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde::Deserialize;
use serde_json::json;

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only shown")]
struct Bird {
    name: String,
    wingspan_cm: u32,
    talks: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let model = Scripted::play([
        Script::new().tool_call("c0", "look_up", json!({"bird": "mynah"})).call_tools(),
        Script::new().text("The common mynah has a wingspan of 43 cm, and it talks.").stop(),
        Script::new().text(r#"{"name": "common mynah", "wingspan_cm": 43, "talks": true}"#).stop(),
    ]);
    let look_up = Tool::new("look_up", "Finds a bird in the book", json!({"type": "object"}))
        .handler(async |_, _| "Common mynah: 25 cm long, wingspan 43 cm; mimics human speech.");

    let bird = ResponseFormat::json_schema(
        "bird",
        json!({
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "wingspan_cm": {"type": "integer"},
                "talks": {"type": "boolean"}
            },
            "required": ["name", "wingspan_cm", "talks"]
        }),
    );
    let mut events = Engine::new(model)
        .tool(look_up)
        .chat("Tell me about the mynah.")
        .response_format(bird)
        .structured_finalize(true)
        .stream();

    // What the last call says is for the program, and not for the terminal.
    let mut is_for_people = true;
    while let Some(event) = events.next().await {
        match event? {
            Event::MessageStarted { finalizing, .. } => is_for_people = !finalizing,
            Event::TextDelta { delta, .. } if is_for_people => println!("{delta}"),
            Event::ToolExecutionStarted { name, .. } => println!("calls {name}"),
            Event::ChatCompleted { result } => println!("{:#?}", result.into_json::<Bird>()?),
            _ => {}
        }
    }
    Ok(())
}
