//! A model on this machine: Ollama, llama.cpp, LM Studio, vLLM or any other server that speaks a known format. No key is needed.
//!
//!     cargo run -p mynah --example 25_local_server -- llamacpp:default http://localhost:8080

use std::env;

use mynah::RetryPolicy;
use mynah::prelude::*;

#[tokio::main]
async fn main() -> mynah::Result<()> {
    let mut arguments = env::args().skip(1);
    let model = arguments.next().unwrap_or_else(|| "ollama:llama3.2".to_owned());
    // Port 9 answers nothing: without an argument this shows the error.
    let server = arguments.next().unwrap_or_else(|| "http://localhost:9".to_owned());

    let engine = Engine::named(&model)?.base_url(server).retry(RetryPolicy::never());
    match engine.generate("What is a mynah?").await {
        Ok(response) => println!("{}", response.into_text()?),
        Err(error) if error.is_unreachable() => println!("the server is not there: {error}"),
        Err(error) => return Err(error),
    }
    Ok(())
}
