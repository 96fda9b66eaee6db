//! How providers of embeddings write the answers of the suite.

use std::sync::Arc;

use mynah_adapters::{
    conformance::{Received, embed::EmbedderSubject},
    embed::Embedder,
    http::{HttpAdapter, HttpEmbedder},
    keys::Keys,
};
use mynah_step::RetryPolicy;
use serde_json::{Value, json};

fn embedder(name: &str, base_url: &str, key: &str) -> Arc<dyn Embedder> {
    let key = key.to_owned();
    let keys = Keys::new().with_environment(move |_| Some(key.clone()));
    let adapter = HttpAdapter::named(name).and_then(|adapter| adapter.with_base_url(base_url));
    let embedder = HttpEmbedder::new(adapter.unwrap().with_keys(keys), "model-1");
    Arc::new(embedder.with_retry(RetryPolicy::never()))
}

fn texts<'b>(texts: impl IntoIterator<Item = &'b Value>) -> Vec<String> {
    texts.into_iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The adapter, and how many texts it takes.
pub(crate) struct OpenAiVectors(pub &'static str, pub usize);

impl EmbedderSubject for OpenAiVectors {
    fn embedder(&self, base_url: &str, key: &str) -> Arc<dyn Embedder> {
        embedder(self.0, base_url, key)
    }

    fn texts(&self, asked: &Received) -> Vec<String> {
        texts(asked.body["input"].as_array().unwrap())
    }

    fn answer(&self, vectors: &[Vec<f32>], input_tokens: u64) -> String {
        let data = vectors.iter().enumerate().map(
            |(index, vector)| json!({"object": "embedding", "index": index, "embedding": vector}),
        );
        let usage = json!({"prompt_tokens": input_tokens, "total_tokens": input_tokens});
        let data: Vec<Value> = data.collect();
        json!({"object": "list", "data": data, "model": "model-1", "usage": usage}).to_string()
    }

    fn error(&self, message: &str) -> String {
        json!({"error": {"message": message, "type": "invalid_request_error"}}).to_string()
    }

    fn max_batch(&self) -> usize {
        self.1
    }
}

pub(crate) struct GeminiVectors;

impl EmbedderSubject for GeminiVectors {
    fn embedder(&self, base_url: &str, key: &str) -> Arc<dyn Embedder> {
        embedder("gemini", base_url, key)
    }

    fn texts(&self, asked: &Received) -> Vec<String> {
        let requests = asked.body["requests"].as_array().unwrap();
        texts(requests.iter().map(|request| &request["content"]["parts"][0]["text"]))
    }

    fn answer(&self, vectors: &[Vec<f32>], input_tokens: u64) -> String {
        let embeddings: Vec<Value> =
            vectors.iter().map(|vector| json!({"values": vector})).collect();
        let usage = json!({"promptTokenCount": input_tokens});
        json!({"embeddings": embeddings, "usageMetadata": usage}).to_string()
    }

    fn error(&self, message: &str) -> String {
        let error = json!({"code": 400, "message": message, "status": "INVALID_ARGUMENT"});
        json!({"error": error}).to_string()
    }

    fn max_batch(&self) -> usize {
        100
    }
}
