//! An answer as a value of a type. The model gets the type's JSON Schema, its answer is checked,
//! and it has one attempt to repair an answer that does not fit.

use mynah::prelude::*;
use mynah::schemars::{self, JsonSchema};
use mynah::testing::{Script, Scripted};
use serde::Deserialize;

#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only shown")]
struct Bird {
    name: String,
    /// Wingspan in centimetres.
    wingspan: u32,
    talks: Option<bool>,
}

#[tokio::main]
async fn main() -> mynah::Result<()> {
    let model = Scripted::play([
        Script::new().text(r#"{"name": "common mynah", "wingspan": "43 cm"}"#).stop(),
        Script::new().text(r#"{"name": "common mynah", "wingspan": 43, "talks": true}"#).stop(),
    ]);
    let engine = Engine::new(model.clone());
    let bird = engine.chat("Tell me about the mynah.").answer_as::<Bird>().repair(1).await?;
    println!("{bird:#?}");

    let repair = &model.requests()[1];
    println!("{}", repair.messages.last().map(|message| message.text()).unwrap_or_default());
    Ok(())
}
