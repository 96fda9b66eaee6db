//! Agents that call each other: an editor has a researcher for tasks, and hands the user over to a translator. A tool of the researcher
//! needs approval, which is given at the editor. All runs are recorded and linked.

use mynah::log::verify_run;
use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde_json::json;

/// Looks a word up in the encyclopedia, which costs money.
#[mynah::tool(approval)]
async fn look_up(word: String) -> String {
    format!("{word}: a bird of the starling family that can imitate speech")
}

#[tokio::main]
async fn main() -> mynah::Result<()> {
    let says = |text: &str| Script::new().text(text).usage(100, 20).stop();
    let calls = |id: &str, name: &str, arguments| {
        Script::new().tool_call(id, name, arguments).usage(100, 20).call_tools()
    };

    let researcher = Engine::new(Scripted::play([
        calls("r0", "look_up", json!({"word": "mynah"})),
        says("Mynahs are starlings, and some can talk."),
    ]))
    .system("You look facts up.")
    .tool(look_up);

    let translator = Engine::new(Scripted::play([says("Les mainates peuvent parler.")]))
        .system("You translate the conversation's result into French.");

    let editor = Engine::new(Scripted::play([
        calls("e0", "research", json!({"task": "What is a mynah?"})),
        calls("e1", "translate", json!({"note": "Mynahs are starlings, and some can talk."})),
    ]))
    .system("You write for children.")
    .tool(researcher.as_tool("research", "Looks facts up."))
    .tool(translator.as_handoff("translate", "Answers the user in French."))
    .budget(Budget::new().max_turns(10))
    .max_agent_depth(1);

    // If the process dies, the same call continues the editor and the agent that it waits for.
    let log = MemoryLog::new();
    let chat = editor.chat("What is a mynah? In French, please.").record(&log).run_id("article");
    let mut run = chat.start_or_resume().await?;
    while let Some(Waiting::Question(question)) = run.waiting() {
        println!("question: {question}");
        run = run.answer("yes").await?;
    }
    println!("answer: {}", run.result().text());

    for run in log.runs(Default::default()).await?.runs {
        let report = verify_run(&log, &run.run_id).await?;
        let (status, turns) = (report.status.as_str(), run.totals.turns);
        println!("{} {status}, {turns} model calls", run.run_id);
    }
    println!("replay: {}", editor.replay(&log, "article").await?.status);
    Ok(())
}
