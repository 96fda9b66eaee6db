//! A recorded run as a regression test: what a changed prompt or tool would change.

use mynah::{
    Engine, Thread, Tool,
    log::MemoryLog,
    testing::{self, Scripted},
};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> mynah::Result<()> {
    let model = Scripted::new([
        json!([{"tool_call": {"id": "c0", "name": "price"}}, {"finish": "tool_calls"}]),
        json!([{"text": "Two euros."}, {"finish": "stop"}]),
    ])?;
    let engine = Engine::new(model);
    let shop = |euros: u8| {
        let price = Tool::new("price", "what it costs", json!({}));
        price.handler(move |_, _| async move { json!(euros) })
    };

    let log = MemoryLog::new();
    let thread = Thread::new().with_system("Be brief.").with_user("What does it cost?");
    let kept = engine.clone().tool(shop(2)).chat(thread).record(&log).await?;
    let run = kept.run_id.unwrap_or_default();

    // The same engine with the same instructions comes to the same; no model is called.
    let same = engine.clone().tool(shop(2));
    testing::assert_equal(same.replay(&log, &*run).system("Be brief.")).await;

    // A tool that answers otherwise is the first difference, and so are other instructions.
    let changed = engine.clone().tool(shop(3)).replay(&log, &*run).await;
    println!("{}\n", changed.map_or_else(|error| testing::difference(&error), |_| "equal".into()));
    let changed = engine.tool(shop(2)).replay(&log, &*run).system("Be kind.").await;
    println!("{}", changed.map_or_else(|error| testing::difference(&error), |_| "equal".into()));
    Ok(())
}
