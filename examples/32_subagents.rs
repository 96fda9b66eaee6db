//! An engine as a tool of another engine. Both runs are recorded in one log, and the parent's record names the run of its agent.

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde_json::json;

#[tokio::main]
async fn main() -> mynah::Result<()> {
    let finding = Script::new().text("Mynahs imitate speech.").usage(10, 5).stop();
    let research = Engine::new(Scripted::play([finding])).system("You look facts up.");

    let task = json!({"task": "Can mynahs talk?"});
    let call = Script::new().tool_call("c0", "research", task).usage(20, 9).call_tools();
    let article = Script::new().text("They can: mynahs imitate speech.").usage(30, 8).stop();
    let editor = Engine::new(Scripted::play([call, article]))
        .system("You write short articles.")
        .tool(research.as_tool("research", "Looks facts up and reports them."));

    let log = MemoryLog::new();
    let result =
        editor.chat("An article about mynahs, please.").record(&log).run_id("article").await?;
    println!("{}", result.into_text()?);

    for run in log.runs(Default::default()).await?.runs {
        println!("{}: {} records", run.run_id, run.records);
    }
    Ok(())
}
