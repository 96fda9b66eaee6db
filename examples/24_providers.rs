//! Models of providers, by name. Without an argument it calls nothing and shows the error for a key that is missing:
//!
//!     cargo run -p mynah --example 24_providers -- anthropic:claude-sonnet-5 'What is a mynah?'

use std::env;

use mynah::adapters::{http::HttpAdapter, keys::Keys};
use mynah::prelude::*;

#[tokio::main]
async fn main() -> mynah::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [model, question] = arguments.as_slice() {
        // The key comes from the provider's variable. If the call fails, a model of another provider is called.
        let engine = Engine::named(model)?.or("openai:gpt-5.4-mini")?.max_tokens(500);
        println!("{}", engine.generate(question.as_str()).await?.into_text()?);
        return Ok(());
    }

    // Keys from a place of your own: here, one that has none.
    let adapter =
        HttpAdapter::named("anthropic")?.with_keys(Keys::new().with_environment(|_| None));
    let engine = Engine::new(adapter).model("claude-sonnet-5");
    match engine.generate("What is a mynah?").await {
        Ok(response) => println!("{}", response.text()),
        Err(error) => println!("{error}"),
    }
    Ok(())
}
