//! The client for the conformance suite of MCP: connects to the address in its last argument, calls
//! every tool, and answers elicitations.

use std::{env, sync::Arc};

use mynah_data::{CONTINUE, ToolCall, ToolOutcome};
use mynah_mcp::{Approval, Server};
use mynah_step::{Continuation, SystemWorld, Tool, ToolContext};
use serde_json::{Map, Value, json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::args().next_back().ok_or("an address is missing")?;
    let told = env::var_os("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    let told: Value = serde_json::from_slice(told.as_encoded_bytes()).unwrap_or_default();
    let connection = Server::http(url).approval(Approval::Never).connect().await?;
    for refused in connection.refused() {
        println!("{refused}");
    }
    for tool in connection.tools() {
        let wanted = told["toolCalls"].as_array().into_iter().flatten();
        let mut wanted: Vec<Value> = wanted
            .filter(|call| call["name"] == tool.name())
            .map(|call| call["arguments"].clone())
            .collect();
        if wanted.is_empty() {
            wanted.push(example(&tool.spec().schema));
        }
        for arguments in wanted {
            println!("{}: {:?}", tool.name(), call(&tool, arguments).await);
        }
    }
    Ok(())
}

/// Calls a tool until it has a result.
async fn call(tool: &Tool, arguments: Value) -> ToolOutcome {
    let mut continuation = None;
    loop {
        let call = ToolCall::from_value("c0", tool.name(), arguments.clone());
        let context = ToolContext::new(call, Arc::new(SystemWorld)).continued(continuation);
        // Without the check of the arguments, which the suite breaks on purpose.
        let Some(handler) = tool.get_handler() else { return ToolOutcome::error("no handler") };
        match handler.call(arguments.clone(), context).await {
            ToolOutcome::AskUser { opts, .. } => {
                let answer = Some(example(opts.get("schema").unwrap_or(&Value::Null)).to_string());
                let state = opts.get(CONTINUE).cloned().unwrap_or_default();
                continuation = Some(Arc::new(Continuation::new(state, answer)));
            }
            outcome => return outcome,
        }
    }
}

/// Arguments that fit a simple schema.
fn example(schema: &Value) -> Value {
    let members = schema["properties"].as_object().cloned().unwrap_or_default();
    let value = |member: &Value| match member["type"].as_str() {
        Some("number" | "integer") => json!(5),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("object") => json!({}),
        _ => json!("text"),
    };
    Map::from_iter(members.iter().map(|(name, member)| (name.clone(), value(member)))).into()
}
