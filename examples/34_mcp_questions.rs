//! A server that asks a person in the middle of a call. The run waits with the question in its record, and another engine, which may be
//! in another process, answers it days later.

use std::error::Error;

use mynah::{
    Approval, Metadata, ToolOutcome,
    log::MemoryLog,
    mcp::{self, Server},
    prelude::*,
    testing::{Script, Scripted},
};
use serde_json::{Value, json};

/// Books a table.
#[mynah::tool]
async fn book(day: String, cx: &ToolContext) -> ToolOutcome {
    let Some(past) = cx.continuation() else {
        let form = json!({"type": "object", "properties": {"guests": {"type": "integer"}}, "required": ["guests"]});
        let hints = Metadata::from_iter([("schema".to_owned(), form)]);
        return ToolOutcome::ask_and_continue("For how many?", hints, json!({"held": "table 4"}));
    };
    let answer = past.answer.as_deref().unwrap_or_default();
    let form: Value = serde_json::from_str(answer).unwrap_or_default();
    json!({"day": day, "table": past.state["held"], "guests": form["guests"]}).into()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    tokio::spawn(mcp::serve([book()]).http(listener));
    let connect = async || Server::http(&url).approval(Approval::Never).connect().await;

    let call = Script::new().tool_call("c0", "book", json!({"day": "Friday"})).call_tools();
    let log = MemoryLog::new();
    let first = Engine::new(Scripted::play([call])).tools(connect().await?);
    let waiting = first.chat("Book a table for Friday.").record(&log).run_id("friday").await?;
    println!("{}", waiting.pending_question.unwrap_or_default());
    drop(first);

    // The answer is the one member of the form. A whole form would be JSON, and `decline` is an answer too.
    let answer = Script::new().text("Table 4 is yours.").stop();
    let second = Engine::new(Scripted::play([answer])).tools(connect().await?);
    let done = second.resume(&log, "friday").answer("3").await?;
    for message in done.thread.messages.iter() {
        println!("{message}");
    }
    Ok(())
}
