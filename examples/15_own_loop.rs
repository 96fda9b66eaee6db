//! A loop of one's own: what it asks of the world is recorded, so that it can be cut off, resumed and replayed.

use std::{sync::Arc, time::Duration};

use mynah::prelude::*;
use mynah::{
    log::verify_run,
    step::{Config, Context, ToolResult},
    testing::{Script, Scripted},
};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let log = Arc::new(MemoryLog::new());
    let scripts = [
        Script::new().tool_call("c0", "roll", json!({})).call_tools(),
        Script::new().text("Enough.").stop(),
    ];
    // In each process the model plays the answer that comes next in the conversation.
    let model = Scripted::play(scripts).by_turn();
    let config = || Config::new(&log, "run-1").adapter(model.clone()).tools([roll()]);

    // The process dies after the dice: the context is dropped during the run.
    let context = Context::new(config())?;
    let cut_off = tokio::time::timeout(Duration::from_millis(50), agent(&context, true)).await;
    println!("cut off: {}", cut_off.is_err());
    drop(context);

    // The same loop, from its beginning. What was done answers from the records; the rest is done now.
    let said = agent(&Context::new(config().resume().await?)?, false).await?;
    println!("resumed: {said} {}", verify_run(&log, "run-1").await?.status);

    // A replay runs the tools again, unless they are `.recorded()`; what this one asks of its context is answered from the records.
    let again = agent(&Context::new(config().replay().await?)?, false).await?;
    println!("replayed: {}", again == said);
    Ok(())
}

fn roll() -> Tool {
    Tool::new("roll", "Rolls a die", json!({"type": "object"}))
        .handler(async |_, context| context.random().await.map(|chance| json!(chance % 6 + 1)))
}

async fn agent(context: &Context, dies: bool) -> Result<String> {
    let mut thread = Thread::from("Roll until you are tired.");
    let run = context.run(thread.clone(), async |cx| {
        // Something from outside has a name; the process that continues gets what the first one got.
        let process = async { Ok::<_, mynah::Error>(std::process::id()) };
        let process = cx.side_effect("process", process).await?;
        thread.extend([Message::user(format!("Process {process} watches."))]);
        loop {
            // A model is offered the tools of its request.
            let request = Request::from(thread.clone()).with_tools([roll().spec().clone()]);
            let answer = cx.call_model(request).await?.response;
            thread.extend([answer.message.clone()]);
            let calls: Vec<ToolCall> = answer.tool_calls().cloned().collect();
            if calls.is_empty() {
                return answer.into_text();
            }
            for ToolResult { call_id, outcome, .. } in cx.call_tools(calls).await? {
                // A failure is for the model. If the loop returned an unknown outcome (`OnUncertain::Fail`), each later process would, too.
                thread.extend([match outcome {
                    Ok(ToolOutcome::Ok(value)) => Message::tool_result(call_id, value),
                    Ok(other) => Message::tool_error(call_id, format!("not supported: {other:?}")),
                    Err(error) => Message::tool_error(call_id, json!({"error": error.to_string()})),
                }]);
            }
            if dies {
                std::future::pending::<()>().await;
            }
        }
    });
    run.await
}
