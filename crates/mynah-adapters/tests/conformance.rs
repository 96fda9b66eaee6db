//! Every adapter passes the one suite.

use mynah_adapters::conformance;

use crate::{subjects::*, vectors::*};

#[tokio::test]
async fn chat_completions_do_what_every_adapter_must() {
    conformance::run(&Chat("openai-chat", http())).await;
}

#[tokio::test]
async fn openrouter_does_what_every_adapter_must() {
    conformance::run(&Chat("openrouter", http())).await;
}

#[tokio::test]
async fn messages_do_what_every_adapter_must() {
    conformance::run(&Messages(http())).await;
}

#[tokio::test]
async fn gemini_does_what_every_adapter_must() {
    conformance::run(&Partials(http())).await;
}

#[cfg(feature = "bedrock")]
#[tokio::test]
async fn bedrock_does_what_every_adapter_must() {
    conformance::run(&Converse(http())).await;
}

#[tokio::test]
async fn responses_do_what_every_adapter_must() {
    conformance::run(&Responses("openai", http())).await;
    conformance::run(&Responses("xai", http())).await;
}

#[tokio::test]
async fn ollama_does_what_every_adapter_must() {
    conformance::run(&Lines(http())).await;
}

#[tokio::test]
async fn embedders_of_openais_shape_do_what_every_embedder_must() {
    conformance::embed::run(OpenAiVectors("openai", 2048)).await;
    conformance::embed::run(OpenAiVectors("mistral", 512)).await;
}

#[tokio::test]
async fn embedders_of_gemini_do_what_every_embedder_must() {
    conformance::embed::run(GeminiVectors).await;
}
