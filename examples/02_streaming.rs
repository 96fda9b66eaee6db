//! The same call as a stream: text as the model writes it, and the result as the last event.

use std::{io::Write as _, time::Duration};

use mynah::prelude::*;
use mynah::testing::{Entry, Script, Scripted};

#[tokio::main]
async fn main() -> Result<()> {
    let engine = Engine::new(Scripted::play([slowly("A mynah is a starling that talks.")]));

    let mut events = engine.chat("What is a mynah?").stream();
    while let Some(event) = events.next().await {
        match event? {
            Event::TextDelta { delta, .. } => {
                print!("{delta}");
                std::io::stdout().flush().ok();
            }
            Event::ChatCompleted { result } => println!("\n[{}]", result.halted_reason),
            _ => {}
        }
    }
    Ok(())
}

/// A script that pauses after every word.
fn slowly(text: &str) -> Script {
    let pause = Entry::Delay(Duration::from_millis(60));
    let words = text.split_inclusive(' ');
    words.fold(Script::new(), |script, word| script.text(word).with(pause.clone())).stop()
}
