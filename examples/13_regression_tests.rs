//! A recorded run as a regression test: what a changed prompt or tool would change.
//!
//! Records answer for the model and for the tools. A tool runs again only if the replay asks for it.

use mynah::prelude::*;
use mynah::testing::{self, Scripted};
use serde_json::json;

const PROMPT: &str = "Be brief.";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let log = MemoryLog::new();
    let thread = Thread::new().with_system(PROMPT).with_user("What does it cost?");
    let kept = shop(2)?.chat(thread).record(&log).await?;
    let run = kept.run_id.unwrap_or_default();

    // The same engine with the same instructions has the same result; no model is called.
    testing::assert_equal(shop(2)?.replay(&log, &run).system(PROMPT)).await;

    // A tool that answers otherwise is the first difference, and so are other instructions.
    let changed = shop(3)?.replay(&log, &run).rerun_tool("price").await;
    println!("{}\n", changed.map_or_else(|error| testing::difference(&error), |_| "equal".into()));
    let changed = shop(2)?.replay(&log, &run).system("Be kind.").await;
    println!("{}", changed.map_or_else(|error| testing::difference(&error), |_| "equal".into()));
    Ok(())
}

/// A test as in a program's `tests/`. The run was exported once from the program's log with `mynah
/// export last -o kept/price.ndjson`, and is kept in the repository. A changed prompt or tool fails
/// the test, with the difference.
#[tokio::test]
async fn the_shop_still_does_what_it_did() -> Result<()> {
    let (log, file) = (MemoryLog::new(), include_bytes!("kept/price.ndjson"));
    let run = mynah::log::bundle::import(&log, std::io::Cursor::new(file)).await?.run_id;
    testing::assert_equal(shop(2)?.replay(&log, &run).system(PROMPT)).await;

    let changed = shop(2)?.replay(&log, &run).system("Be kind.").await;
    let difference = changed.map_err(|error| testing::difference(&error));
    assert!(difference.is_err_and(|told| told.contains(r#"produced: "Be kind.""#)));
    Ok(())
}

fn shop(euros: u8) -> Result<Engine> {
    let model = Scripted::new([
        json!([{"tool_call": {"id": "c0", "name": "price"}}, {"finish": "tool_calls"}]),
        json!([{"text": "Two euros."}, {"finish": "stop"}]),
    ])?;
    let price = Tool::new("price", "what it costs", json!({}));
    Ok(Engine::new(model).tool(price.handler(move |_, _| async move { json!(euros) })))
}
