//! A whole agent: three tools, one of which needs approval, streaming, a SQLite log, a budget, a fallback and a replay test.
//!
//! The program starts itself as a child process, kills it (SIGKILL) during a payment, and makes the
//! same call: the run continues. Needs `--features sqlite`.

use std::io::{BufRead as _, BufReader};
use std::{env, process, time::Duration};

use mynah::testing::{Script, Scripted};
use mynah::{AdapterReason, Fallback, prelude::*};
use serde_json::json;

/// The invoice with this number.
#[mynah::tool(idempotent)]
async fn invoice(number: u32) -> String {
    format!("invoice {number}: 50 to Ada")
}

/// Pays an invoice.
#[mynah::tool(approval)]
async fn pay(number: u32, amount: u32, cx: &ToolContext) -> String {
    // A bank that takes a key for each payment makes it once, however often it is called.
    println!("[paying {amount} for {number}, key {}]", cx.idempotency_key());
    tokio::time::sleep(Duration::from_secs(if child().is_some() { 60 } else { 0 })).await;
    format!("paid {amount} for invoice {number}")
}

/// Sends a message.
#[mynah::tool]
async fn notify(person: String, text: String) -> String {
    format!("told {person}: {text}")
}

/// The answers of the model, in each process from where the conversation is.
fn answers() -> Scripted {
    let calls = [
        ("invoice", json!({"number": 17})),
        ("pay", json!({"number": 17, "amount": 50})),
        ("notify", json!({"person": "Ada", "text": "Your 50 are on the way."})),
    ];
    let call = |(name, arguments)| Script::new().tool_call(name, name, arguments).call_tools();
    let end = Script::new().text("Invoice 17 is paid, ").text("and Ada knows.").stop();
    Scripted::play(calls.map(call).into_iter().chain([end])).by_turn()
}

/// The agent. With real models: `Engine::named("anthropic:claude-sonnet-5")?.or("openai:gpt-5.4-mini")?`.
fn agent() -> Engine {
    let down = Script::new().fail(Error::adapter(AdapterReason::Overloaded));
    let large = Scripted::play(vec![down; 4]);
    Engine::new(Fallback::new(large).or(answers(), "small"))
        .model("large")
        .system("You pay invoices and tell people.")
        .budget(Budget::new().max_total_tokens(10_000).max_tool_calls(5))
        .tools([invoice(), pay(), notify()])
}

/// One process: starts the run, or continues it where the last process died.
async fn work(log: &(impl Log + Clone)) -> mynah::Result<String> {
    let chat = agent().chat("Pay invoice 17.").record(log).run_id("invoice-17").on_event(print);
    let mut run = chat.start_or_resume().await?;
    while let Some(waiting) = run.waiting() {
        // A person decides here: first whether to pay, and after the crash whether to pay again.
        waiting.calls().iter().for_each(|call| println!("[{} {}? yes]", call.name, call.arguments));
        run = match waiting {
            Waiting::Question(_) => run.answer("Yes.").await?,
            _ => run.decide(|_call| Decision::Approve).await?,
        };
    }
    run.into_result().into_text()
}

fn print(event: &Event) {
    if let Event::TextDelta { delta, .. } = event {
        print!("{delta}");
    }
}

/// The log's path, in the child process.
fn child() -> Option<String> {
    env::args().nth(1).filter(|argument| argument.ends_with(".db"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(path) = child() {
        return Ok(work(&SqliteLog::open(path)?).await.map(drop)?);
    }
    let path = env::temp_dir().join(format!("mynah-agent-{}.db", process::id()));
    let mut command = process::Command::new(env::current_exe()?);
    let mut child = command.arg(&path).stdout(process::Stdio::piped()).spawn()?;
    let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    for line in lines.map_while(Result::ok).take_while(|line| !line.starts_with("[paying")) {
        println!("child: {line}");
    }
    child.kill()?;
    println!("child: {}", child.wait()?);
    let log = SqliteLog::open(&path)?;
    work(&log).await?;
    println!("\nreplay: {:?}", agent().replay(&log, "invoice-17").await?);
    Ok(std::fs::remove_file(path)?)
}

#[tokio::test]
async fn the_agent_replays_and_survives_every_crash() -> mynah::Result<()> {
    let log = MemoryLog::new();
    assert_eq!(work(&log).await?, "Invoice 17 is paid, and Ada knows.");
    mynah::testing::assert_replays(&agent(), &log, "invoice-17").await;
    mynah::testing::crash_everywhere(agent, "Pay invoice 17.").approve_all().await;
    Ok(())
}
