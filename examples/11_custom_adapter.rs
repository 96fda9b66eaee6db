//! Your own adapter, for a model that Mynah does not know. It turns a request into a stream of
//! events. Retries, tools, sessions and results are the engine's part.

use std::sync::Arc;

use futures_util::stream;
use mynah::prelude::*;
use mynah::{Adapter, AdapterReason, BoxFuture, FinishReason, ModelCall, ModelStream};

/// A therapist of the old school.
struct Eliza;

impl Adapter for Eliza {
    fn name(&self) -> &str {
        "eliza"
    }

    fn open(self: Arc<Self>, request: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
        Box::pin(async move {
            let said = request.messages.last().map(|message| message.text().to_lowercase());
            let said = said.unwrap_or_default();
            let Some((_, how)) = said.split_once("i feel ") else { return Err(no_feelings()) };
            let answer = format!("Why do you feel {}?", how.trim_end_matches('.'));

            let mut events = vec![Event::message_started()];
            events.extend(answer.split_inclusive(' ').map(Event::text_delta));
            events.push(Event::message_completed(Some(FinishReason::Stop)));
            Ok(Box::pin(stream::iter(events.into_iter().map(Ok))) as ModelStream)
        })
    }
}

fn no_feelings() -> Error {
    Error::adapter(AdapterReason::InvalidRequest)
        .with_provider("eliza")
        .with_message("eliza only talks about feelings")
}

#[tokio::main]
async fn main() -> Result<()> {
    let engine = Engine::new(Eliza);
    println!("{}", engine.chat("I feel watched by a bird.").await?.into_text()?);
    if let Err(error) = engine.chat("What is 2 + 2?").await {
        println!("{error} ({})", error.kind());
    }
    Ok(())
}

#[tokio::test]
async fn the_events_are_in_order() -> Result<()> {
    let request = Request::from("I feel watched.");
    let mut events = Arc::new(Eliza).open(request, ModelCall::default()).await?;
    let mut order = mynah::EventOrder::new();
    while let Some(event) = futures_util::StreamExt::next(&mut events).await {
        order.check(&event?)?;
    }
    Ok(())
}
