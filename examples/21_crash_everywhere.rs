//! A bug that shows only when a process dies at the wrong moment, and the test of one line that finds it.
//!
//! `transfer` is marked idempotent, so after a crash it runs again if its outcome is unknown. The bank is asked twice then. The fixed agent
//! gives the bank the key of the call, and the bank does the work once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mynah::{
    prelude::*,
    testing::{Script, Scripted, crash_everywhere},
};
use serde_json::json;

/// The bank: it outlives the processes of the agent. Transfers have the key that they came with.
#[derive(Clone, Default)]
struct Bank(Arc<Mutex<Transfers>>);

type Transfers = Vec<(String, u64)>;

impl Bank {
    fn transfers(&self) -> MutexGuard<'_, Transfers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn transfer(&self, key: String, amount: u64) -> u64 {
        let mut transfers = self.transfers();
        if !transfers.iter().any(|(known, _)| *known == key) {
            transfers.push((key, amount));
        }
        transfers.iter().map(|(_, amount)| amount).sum()
    }
}

/// The agent, as its program makes it whenever it starts.
fn agent(bank: &Bank, fixed: bool) -> Engine {
    let bank = bank.clone();
    let transfer = Tool::new("transfer", "Sends money", json!({"type": "object"})).idempotent(3);
    let transfer = transfer.handler(move |arguments, context| {
        let key = match fixed {
            true => context.idempotency_key(),
            false => format!("{}, attempt {}", context.idempotency_key(), context.attempt()),
        };
        let sent = bank.transfer(key, arguments["amount"].as_u64().unwrap_or_default());
        async move { json!({"sent in all": sent}) }
    });
    let call = Script::new().tool_call("c0", "transfer", json!({"to": "Ada", "amount": 50}));
    let done = Script::new().text("Ada has her 50.").stop();
    Engine::new(Scripted::play([call.call_tools(), done])).tool(transfer)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    for fixed in [false, true] {
        let bank = Bank::default();
        let check = crash_everywhere(|| agent(&bank, fixed), "Send Ada 50.")
            .before_each(|| bank.transfers().clear())
            .observe(|| bank.transfers().len());
        let name = if fixed { "fixed" } else { "as it was" };
        match check.check().await {
            Ok(report) => {
                println!("{name}: the process died {} times, no harm done", report.crashed)
            }
            Err(violation) => println!("{name}: {violation}\n"),
        }
    }
}

/// As it stands in a program's `tests/`.
#[tokio::test]
async fn no_crash_does_harm() {
    let bank = Bank::default();
    crash_everywhere(|| agent(&bank, true), "Send Ada 50.").await;
}

#[tokio::test]
async fn the_bug_is_found() {
    let bank = Bank::default();
    let check = crash_everywhere(|| agent(&bank, false), "Send Ada 50.");
    let found = check.before_each(|| bank.transfers().clear()).check().await.unwrap_err();
    assert_eq!(found.tool(), Some("transfer"), "{found}");
}
