//! A run that is recorded, verified, replayed and exported; and what a changed record looks like.

use std::io::Cursor;

use mynah::log::{bundle, verify_run};
use mynah::prelude::*;
use mynah::testing::{Script, Scripted};

#[tokio::main]
async fn main() -> mynah::Result<()> {
    let engine = Engine::new(Scripted::play([Script::new().text("A starling that talks.").stop()]));
    let log = MemoryLog::new();
    engine.chat("What is a mynah?").record(&log).run_id("bird-1").await?;

    let report = verify_run(&log, "bird-1").await?;
    println!("{}: {} records", report.status, report.records);
    println!("replay: {}", engine.replay(&log, "bird-1").await?.status);

    // A file that anyone can check: `mynah verify run.ndjson`, or tools/verify.py without any of this code.
    let mut file = Vec::new();
    bundle::export(&log, "bird-1", &mut file).await?;
    let text = String::from_utf8_lossy(&file);
    let changed = text.replacen("\"payload\":\"a", "\"payload\":\"b", 1);
    match bundle::import(&MemoryLog::new(), Cursor::new(changed)).await {
        Ok(imported) => println!("imported {}", imported.run_id),
        Err(error) => println!("{error}"),
    }
    Ok(())
}
