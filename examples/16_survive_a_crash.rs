//! A process dies inside a tool. The next one makes the same call under the same run id, and so
//! continues the run from its records in a SQLite file. Completed work is not repeated, and an
//! unknown outcome waits for a decision.
//!
//! The first process is this program too, started with the log's path. Needs `--features sqlite`.

use std::{env, path::Path, process::Command};

use mynah::prelude::*;
use mynah::{
    log::verify_run,
    testing::{Script, Scripted},
};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(path) = env::args().nth(1) {
        return Ok(first_process(Path::new(&path)).await?);
    }
    let path = env::temp_dir().join(format!("mynah-example-{}.db", std::process::id()));
    let ended = Command::new(env::current_exe()?).arg(&path).status()?;
    println!("the first process ended: {ended}");
    second_process(&path).await?;
    Ok(std::fs::remove_file(path)?)
}

/// The run's id: a call with it starts the run, or attaches to it.
const RUN: &str = "transfer-17";
const ORDER: &str = "Send Ada 50.";

async fn first_process(path: &Path) -> Result<()> {
    let log = SqliteLog::open(path)?;
    agent(true).chat(ORDER).record(&log).run_id(RUN).await?;
    Ok(())
}

async fn second_process(path: &Path) -> Result<()> {
    let engine = agent(false);
    let log = SqliteLog::open(path)?;
    let mut run = engine.chat(ORDER).record(&log).run_id(RUN).start_or_resume().await?;

    // A transfer may have been made before the process ended, so it is not repeated without a
    // decision.
    while let Some(waiting) = run.waiting() {
        run = match waiting {
            Waiting::Uncertain(calls) => {
                println!("was it done? {}({})", calls[0].name, calls[0].arguments);
                // The bank confirms the transfer. Otherwise `Approve` would make it now, and
                // `Reject` would give the model a reason.
                run.decide(|_call| Decision::Result(json!({"sent": 50}))).await?
            }
            // Other tools ask a person or need approval.
            Waiting::Question(_) => run.answer("I do not know.").await?,
            _ => run.decide(|_call| Decision::Reject("not now".to_owned())).await?,
        };
    }
    println!("{}", run.into_result().into_text()?);
    println!("the records are {}", verify_run(&log, RUN).await?.status);

    // Again, and neither the model nor the bank is called.
    let again = engine.chat(ORDER).record(&log).run_id(RUN).await?;
    println!("again: {}", again.into_text()?);
    Ok(())
}

/// The agent. Its process may end after the transfer, before the outcome is recorded.
fn agent(dies: bool) -> Engine {
    let arguments = json!({"to": "Ada", "amount": 50});
    let transfers = Script::new().tool_call("c0", "transfer", arguments).call_tools();
    let confirms = Script::new().text("Ada has her 50.").stop();
    // Each process plays the answer that comes next in the conversation.
    Engine::new(Scripted::play([transfers, confirms]).by_turn()).tools(Bank { dies })
}

struct Bank {
    dies: bool,
}

#[mynah::tools]
impl Bank {
    /// Sends money.
    #[tool]
    async fn transfer(&self, to: String, amount: u32, cx: &ToolContext) -> String {
        // A bank that takes a key for each transfer makes it once, however often it is called.
        println!("transfer {}", cx.idempotency_key());
        if self.dies {
            std::process::exit(1);
        }
        format!("sent {amount} to {to}")
    }
}

/// A crash during the transfer waits for a decision; a crash elsewhere repeats nothing.
#[tokio::test]
async fn no_crash_repeats_a_transfer() {
    let report = mynah::testing::crash_everywhere(|| agent(false), ORDER).await;
    assert!(report.uncertain > 0 && report.uncertain < report.crashed);
}
