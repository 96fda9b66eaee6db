//! Three ways to stop a chat early: a handle that ends it from elsewhere, a deadline, and dropping the stream. The first
//! two keep what was said; a dropped stream just frees everything.

use std::time::Duration;

use mynah::prelude::*;
use mynah::testing::{Entry, Script, Scripted};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<()> {
    let (engine, model) = endless();
    let cancel = CancelHandle::new();
    let button = cancel.clone();
    tokio::spawn(async move {
        sleep(Duration::from_millis(250)).await;
        button.cancel();
    });
    let result = engine.chat("Talk!").cancel_handle(&cancel).await?;
    println!("{}: {:?}", result.halted_reason, result.text());

    let result = engine.chat("Talk!").deadline(Duration::from_millis(150)).await?;
    println!("{}: {:?}", result.halted_reason, result.text());

    let mut events = engine.chat("Talk!").stream();
    events.next().await;
    println!("open streams while we listen: {}", model.open_streams());
    drop(events);
    println!("open streams after we left: {}", model.open_streams());
    Ok(())
}

/// A model that says a word every tenth of a second, for three calls.
fn endless() -> (Engine, Scripted) {
    let pause = Entry::Delay(Duration::from_millis(100));
    let say = |script: Script, n: u32| script.text(format!("word{n} ")).with(pause.clone());
    let model = Scripted::play([(); 3].map(|()| (1..1000).fold(Script::new(), say)));
    (Engine::new(model.clone()), model)
}
