//! A tool that needs a person: the chat stops with a question, and continues when there is an
//! answer, however much later.

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde_json::json;

/// Deletes an account.
#[mynah::tool]
async fn delete_account(name: String) -> ToolOutcome {
    ToolOutcome::ask(format!("Really delete the account {name}?"))
}

#[tokio::main]
async fn main() -> Result<()> {
    let model = Scripted::play([
        Script::new().tool_call("c0", "delete_account", json!({"name": "ada"})).call_tools(),
        Script::new().text("The account is gone.").stop(),
    ]);
    let engine = Engine::new(model).tool(delete_account);

    let (session, _) = engine.start("Please delete my account.").await?;
    if let Some(question) = session.pending_question() {
        println!("{}: {question}", session.status());
    }

    // A program would ask its user here, or store the session and wait.
    let (session, result) = engine.reply(&session, "Yes, really.").await?;
    println!("{}: {}", session.status(), result.into_text()?);
    Ok(())
}
