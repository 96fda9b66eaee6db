//! Ready-made tools: the files of one folder, a calculator and the time. They stay in the folder
//! for any arguments of the model.

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use mynah::{Approval, tools};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("mynah-tools-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("prices.txt"), "soup 4.20\nbread 1.10\n")?;

    let model = Scripted::play([
        Script::new()
            .tool_call("c0", "read_file", json!({"path": "prices.txt"}))
            .tool_call("c1", "read_file", json!({"path": "../../etc/passwd"}))
            .tool_call("c2", "calculator", json!({"expression": "4.20 + 2 * 1.10"}))
            .call_tools(),
        Script::new().text("Soup and two breads are 6.40.").stop(),
    ]);
    let engine = Engine::new(model)
        .tools(tools::files(&folder)?.read_only())
        .tool(tools::calculator())
        .tool(tools::now())
        // Each tool may ask a person first.
        .tool(tools::fetch().tool()?.approval(Approval::Ask));

    let result = engine.chat("What do a soup and two breads cost?").await?;
    for message in result.thread.messages.iter() {
        println!("{message}");
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
