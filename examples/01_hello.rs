//! The smallest program: an engine, a question, an answer.
//!
//! The model in these examples plays a script, so that they run without a key. With a provider's adapter in its place,
//! nothing else changes.

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};

#[tokio::main]
async fn main() -> Result<()> {
    let model = Scripted::play([Script::new().text("A starling that talks.").stop()]);
    let engine = Engine::new(model).model("gpt-4.1-mini");

    let result = engine.chat("What is a mynah?").await?;
    println!("{}", result.into_text()?);
    Ok(())
}
