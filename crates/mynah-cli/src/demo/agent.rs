//! The agent of the demonstration, in a process of its own.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::ValueEnum;
use futures_util::StreamExt as _;
use mynah::{Engine, Event, EventStream, Tool, ToolSpec, log::SqliteLog, testing::Scripted};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{CHARGES, LOG, TICKETS};
use crate::{Failure, ledger::Ledger, runtime, store};

pub(super) const GOAL: &str = "A berth on tonight's train to Vienna for ada@example.org, please.";

const MODEL: &str = "scripted";

/// The task of an agent process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Act {
    /// Begin, and never come to the end of a tool.
    Begin,
    /// Resume the run.
    GoOn,
}

/// Messages of the agent process to its parent, one a line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AgentMessage {
    Event(Box<Event>),
    /// It is inside a tool, and stays there.
    InTheMiddle,
}

impl AgentMessage {
    fn say(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", json!(self))?;
        out.flush()
    }
}

/// Is the agent.
pub(super) fn perform(act: Act, folder: &Path) -> Result<(), Failure> {
    let log = Arc::new(Ledger::new(Arc::new(SqliteLog::open(folder.join(LOG))?)));
    runtime()?.block_on(async {
        let stream = match act {
            Act::Begin => agent(act, folder)?.chat(GOAL).record(&log).stream(),
            Act::GoOn => {
                let (agent, run) = (agent(act, folder)?, store::find(log.as_ref(), "last").await?);
                agent.resume(&log, &*run.run_id).stream().started().await?
            }
        };
        tell(stream).await
    })
}

async fn tell(mut stream: EventStream) -> Result<(), Failure> {
    while let Some(event) = stream.next().await {
        let said = AgentMessage::Event(Box::new(event?)).say();
        said.map_err(|error| Failure::file(format!("standard output: {error}")))?;
    }
    Ok(())
}

fn agent(act: Act, folder: &Path) -> Result<Engine, Failure> {
    // The scripted model's answers are in the records; a new one would have nothing left to play.
    let answers = answers().into_iter().skip(if act == Act::GoOn { 2 } else { 0 });
    Ok(Engine::new(Scripted::new(answers)?)
        .model(MODEL)
        .tool(charge_card(folder.join(CHARGES)))
        .tool(send_ticket(act, folder.join(TICKETS))))
}

/// The same agent as a scenario. Its tools only say that they did something.
pub(super) fn scenario() -> Value {
    let tools = [
        (charge_card(PathBuf::new()), json!({"paid": "89 EUR"})),
        (send_ticket(Act::GoOn, PathBuf::new()), json!({"sent": true})),
    ];
    let tools = tools.map(|(tool, result)| {
        let ToolSpec { name, description, schema, idempotent, .. } = &**tool.spec();
        json!({"name": name, "description": description, "schema": schema, "idempotent": idempotent, "returns": {"ok": result}})
    });
    let goal =
        json!({"op": "chat", "messages": [{"role": "user", "content": GOAL}], "stream": true});
    json!({"engine": {"model": MODEL}, "scripts": answers(), "tools": tools, "ops": [goal]})
}

fn answers() -> [Value; 3] {
    let call = |id: &str, name: &str, arguments: Value| json!({"tool_call": {"id": id, "name": name, "arguments": arguments}});
    let calls = json!({"finish": "tool_calls"});
    let usage = |input: u64| json!({"usage": {"input_tokens": input, "output_tokens": 12}});
    [
        json!([{"text": "I pay for the berth first."}, call("c0", "charge_card", json!({"eur": 89})), usage(61), calls]),
        json!([{"text": "Now the ticket."}, call("c1", "send_ticket", json!({"to": "ada@example.org"})), usage(98), calls]),
        json!([{"text": "Your berth is booked, and the ticket is in your mail."}, usage(131), {"finish": "stop"}]),
    ]
}

/// A tool that must not run twice.
fn charge_card(charges: PathBuf) -> Tool {
    let schema =
        json!({"type": "object", "properties": {"eur": {"type": "integer"}}, "required": ["eur"]});
    Tool::new("charge_card", "Charges the traveller's card", schema).blocking(
        move |arguments, _| {
            let paid = format!("{} EUR", arguments["eur"]);
            append(&charges, &paid).map(|()| json!({"paid": paid}))
        },
    )
}

/// A tool that may run twice, since a second mail does no harm.
fn send_ticket(act: Act, tickets: PathBuf) -> Tool {
    let schema =
        json!({"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]});
    Tool::new("send_ticket", "Sends the ticket by mail", schema).idempotent(1).handler(
        move |arguments, _| {
            let tickets = tickets.clone();
            async move {
                if act == Act::Begin {
                    AgentMessage::InTheMiddle.say()?;
                    std::future::pending::<()>().await;
                }
                append(&tickets, &arguments["to"].to_string())?;
                Ok::<_, io::Error>(json!({"sent": true}))
            }
        },
    )
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    writeln!(OpenOptions::new().create(true).append(true).open(path)?, "{line}")
}
