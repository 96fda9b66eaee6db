//! A session is a conversation that can be put away and picked up: plain JSON in between, in another process if need be.

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};

#[tokio::main]
async fn main() -> Result<()> {
    let stored = first_process().await?;
    println!("stored: {} bytes of JSON", stored.len());
    second_process(&stored).await
}

async fn first_process() -> Result<String> {
    let model = Scripted::play([Script::new().text("Nice to meet you, Ada.").stop()]);
    let session = Session::from("My name is Ada.").with_id("session-1");
    let (session, _) = Engine::new(model).start(session).await?;
    Ok(serde_json::to_string(&session)?)
}

async fn second_process(stored: &str) -> Result<()> {
    let session: Session = serde_json::from_str(stored)?;
    println!("loaded: {}, {}", session.id.as_deref().unwrap_or("nameless"), session.status());

    let model = Scripted::play([Script::new().text("Your name is Ada.").stop()]);
    let (session, _) = Engine::new(model).reply(&session, "What is my name?").await?;
    for message in session.thread.messages.iter() {
        println!("{:>9}: {}", message.role().as_str(), message.text());
    }
    Ok(())
}
