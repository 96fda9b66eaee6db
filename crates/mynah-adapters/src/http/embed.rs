//! Embeddings over HTTP, in the formats of OpenAI and compatible servers, Gemini and Ollama.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use http::Response;
use http_body_util::BodyExt as _;
use mynah_data::{Metadata, Result, Usage};
use mynah_step::{BoxFuture, ModelCall, RetryPolicy, SystemWorld};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{AnswerBody, ErrorContext, HttpAdapter, MAX_SILENCE};
use crate::{
    embed::{Embedder, Embeddings},
    failure,
    format::MAX_BODY,
    loose::tells,
    request::{path_segment, unsupported},
    sse::too_large,
};

/// An embedder for a provider that is called over HTTP. Clones share their connections.
///
/// Texts are sent in batches that the provider accepts, in sequence. Transient failures are
/// retried. Dropping the future ends the call.
///
/// ```
/// # mod mynah { pub use mynah_adapters as adapters; }
/// use mynah::adapters::http::HttpEmbedder;
///
/// let embedder = HttpEmbedder::named("openai:text-embedding-3-small")?.with_dimensions(256);
/// // And then: embedder.vectors(["a bird that talks", "a starling"]).await?
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Clone)]
pub struct HttpEmbedder {
    adapter: HttpAdapter,
    model: String,
    wire: Wire,
    dimensions: Option<u32>,
    params: Metadata,
    batch: Batch,
    retry: RetryPolicy,
}

/// How texts are written and vectors are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    OpenAi,
    Gemini,
    Ollama,
}

/// The limits of one call. Providers count tokens, and a token is at least one byte.
#[derive(Clone, Copy)]
struct Batch {
    texts: usize,
    bytes: usize,
}

/// OpenAI's.
const BATCH: Batch = Batch { texts: 2048, bytes: 300_000 };

/// The limits of providers that accept less.
const BATCHES: [(&str, Batch); 2] =
    [("gemini", Batch { texts: 100, ..BATCH }), ("mistral", Batch { texts: 512, bytes: 16_384 })];

impl HttpEmbedder {
    /// A model of a known server, such as `openai:text-embedding-3-small` or `gemini:gemini-embedding-001`.
    ///
    /// # Errors
    /// A name that [`HttpAdapter::for_model`] refuses, and `unsupported_feature` for a server without embeddings in a form that
    /// is known here.
    pub fn named(name: &str) -> Result<Self> {
        let (adapter, model) = HttpAdapter::for_model(name)?;
        if let name @ ("anthropic" | "bedrock") = &*adapter.name {
            return Err(unsupported(&format!("{name} gives no embeddings in a known form"))
                .with_provider(name));
        }
        Ok(Self::new(adapter, model.id))
    }

    /// A model of the server that this adapter calls: with its address, its keys and its connections. Servers other than
    /// `gemini` and `ollama` are spoken to as OpenAI is.
    pub fn new(adapter: HttpAdapter, model: impl Into<String>) -> Self {
        let wire = match &*adapter.name {
            "gemini" => Wire::Gemini,
            "ollama" => Wire::Ollama,
            _ => Wire::OpenAi,
        };
        let mut model = model.into();
        // The whole name of a model of Gemini, as its list has it.
        if let (Wire::Gemini, Some(id)) = (wire, model.strip_prefix("models/")) {
            model = id.to_owned();
        }
        let own = BATCHES.iter().find(|(name, _)| *name == &*adapter.name);
        let batch = own.map_or(BATCH, |(_, batch)| *batch);
        let retry = RetryPolicy::default();
        let (dimensions, params) = (None, Metadata::new());
        Self { adapter, model, wire, dimensions, params, batch, retry }
    }

    /// Calls another server; see [`HttpAdapter::with_base_url`].
    ///
    /// # Errors
    /// A URL that is none, or that holds a password.
    pub fn with_base_url(mut self, url: &str) -> Result<Self> {
        self.adapter = self.adapter.with_base_url(url)?;
        Ok(self)
    }

    /// Requests vectors of this length, if the model supports it.
    pub fn with_dimensions(mut self, dimensions: u32) -> Self {
        self.dimensions = Some(dimensions);
        self
    }

    /// Sends at most this many texts in one call, and at least one.
    pub fn with_max_batch(mut self, texts: usize) -> Self {
        self.batch.texts = texts;
        self
    }

    /// Sends one more option of the provider's own, such as Gemini's `taskType`.
    pub fn with_param(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.params.insert(name.to_owned(), value.into());
        self
    }

    /// Sets the retry policy.
    pub fn with_retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// One vector for each text, in order. No texts are no call.
    ///
    /// # Errors
    /// Those of a model call, with `completed_chunks` and `completed_inputs` if earlier calls
    /// succeeded. An answer with another number of vectors than texts is malformed, and so is one
    /// whose vectors are empty or of different lengths.
    pub async fn vectors(
        &self,
        texts: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Embeddings> {
        let texts: Vec<String> = texts.into_iter().map(Into::into).collect();
        let mut all = Embeddings::default();
        for (completed, batch) in batches(&texts, self.batch).enumerate() {
            let length = all.vectors.first().map(Vec::len);
            let part = self.patiently(batch, length).await.map_err(|error| match completed {
                0 => error,
                _ => error
                    .with("completed_chunks", completed)
                    .with("completed_inputs", all.vectors.len()),
            })?;
            all.vectors.extend(part.vectors);
            all.model = part.model.or(all.model);
            all.usage.add(&part.usage);
            all.request_ids.extend(part.request_ids);
        }
        Ok(all)
    }

    async fn patiently(&self, texts: &[String], length: Option<usize>) -> Result<Embeddings> {
        let begun_at = tokio::time::Instant::now();
        let limit = self.retry.max_elapsed_ms.map(Duration::from_millis);
        let mut attempt = 1;
        loop {
            let error = match self.call(texts, length).await {
                Ok(embeddings) => return Ok(embeddings),
                Err(error) => error,
            };
            let Some(delay) = self.retry.delay(attempt, &error, &SystemWorld) else {
                return Err(error);
            };
            if limit.is_some_and(|limit| begun_at.elapsed() + delay > limit) {
                return Err(error);
            }
            tokio::time::sleep(delay).await;
            attempt += 1;
        }
    }

    /// Vectors of this length, where it is known.
    async fn call(&self, texts: &[String], length: Option<usize>) -> Result<Embeddings> {
        let call = ModelCall::default();
        let (key, mut context) = self.adapter.admission(&call)?;
        let (path, body) = (self.path(), self.body(texts).to_string().into_bytes());
        let sent = self.adapter.post(&path, body, &call, key.as_ref(), &mut context).await;
        let read = match sent {
            Ok(response) => {
                let header = super::header_of(response.headers());
                context.called(failure::request_id(header));
                read(response, &context).await.and_then(|body| self.wire.embeddings(&body))
            }
            Err(error) => Err(error),
        };
        match read {
            Ok(found) => match misfit(&found.vectors, texts.len(), length) {
                None => Ok(Embeddings {
                    model: found.model.map(|model| context.secrets.out_of_answer(model)),
                    request_ids: context.request_id.into_iter().collect(),
                    ..found
                }),
                Some(why) => Err(context.complete(failure::malformed(why))),
            },
            Err(error) => Err(context.complete(error)),
        }
    }

    fn path(&self) -> String {
        match self.wire {
            Wire::OpenAi => "embeddings".to_owned(),
            Wire::Gemini => format!("models/{}:batchEmbedContents", path_segment(&self.model)),
            Wire::Ollama => "embed".to_owned(),
        }
    }

    fn body(&self, texts: &[String]) -> Value {
        let with = |mut body: Value, dimensions: &str| {
            if let (Some(length), Value::Object(members)) = (self.dimensions, &mut body) {
                members.insert(dimensions.to_owned(), length.into());
            }
            if let Value::Object(members) = &mut body {
                members.extend(self.params.clone());
            }
            body
        };
        match self.wire {
            Wire::OpenAi => with(
                json!({"model": self.model, "input": texts, "encoding_format": "float"}),
                if &*self.adapter.name == "mistral" { "output_dimension" } else { "dimensions" },
            ),
            Wire::Ollama => with(json!({"model": self.model, "input": texts}), "dimensions"),
            Wire::Gemini => {
                let model = format!("models/{}", self.model);
                let one = |text: &String| {
                    let content = json!({"parts": [{"text": text}]});
                    with(json!({"model": model, "content": content}), "outputDimensionality")
                };
                json!({"requests": texts.iter().map(one).collect::<Vec<_>>()})
            }
        }
    }
}

impl fmt::Debug for HttpEmbedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpEmbedder")
            .field("adapter", &self.adapter)
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

impl Embedder for HttpEmbedder {
    fn name(&self) -> &str {
        &self.adapter.name
    }

    fn embed(self: Arc<Self>, texts: Vec<String>) -> BoxFuture<Result<Embeddings>> {
        Box::pin(async move { self.vectors(texts).await })
    }
}

impl Wire {
    fn embeddings(self, body: &[u8]) -> Result<Embeddings> {
        let parsed = match self {
            Self::OpenAi => serde_json::from_slice(body).map(OpenAi::embeddings),
            Self::Gemini => serde_json::from_slice(body).map(Gemini::embeddings),
            Self::Ollama => serde_json::from_slice(body).map(Ollama::embeddings),
        };
        parsed.map_err(|error| match serde_json::from_slice::<Value>(body) {
            Ok(said) if said.get("error").is_some_and(tells) => failure::in_stream(&said),
            Err(cut) if cut.is_eof() && !body.is_empty() => failure::broke_off(),
            _ => failure::malformed(error),
        })
    }
}

/// What is wrong with the vectors of so many texts, where the length of those before is known.
fn misfit(vectors: &[Vec<f32>], texts: usize, length: Option<usize>) -> Option<String> {
    if vectors.len() != texts {
        return Some(format!("{texts} texts, and {} vectors", vectors.len()));
    }
    let length = length.or(vectors.first().map(Vec::len)).unwrap_or_default();
    let odd = vectors.iter().find(|vector| vector.is_empty() || vector.len() != length)?;
    Some(format!("a vector of {length}, and one of {}", odd.len()))
}

#[derive(Deserialize)]
struct OpenAi {
    data: Vec<OpenAiVector>,
    model: Option<String>,
    usage: Option<OpenAiUsage>,
}

#[derive(Deserialize)]
struct OpenAiVector {
    /// Some servers leave it out, and keep the order.
    index: Option<usize>,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct OpenAiUsage {
    prompt_tokens: Option<u64>,
    total_tokens: Option<u64>,
}

impl OpenAi {
    fn embeddings(mut self) -> Embeddings {
        self.data.sort_by_key(|vector| vector.index);
        let vectors = self.data.into_iter().map(|vector| vector.embedding).collect();
        let (input, total) =
            self.usage.map(|usage| (usage.prompt_tokens, usage.total_tokens)).unwrap_or_default();
        let usage = counted(input, total);
        Embeddings { model: self.model, usage, ..Embeddings::new(vectors) }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Gemini {
    embeddings: Vec<GeminiVector>,
    usage_metadata: Option<GeminiUsage>,
}

#[derive(Deserialize)]
struct GeminiVector {
    values: Vec<f32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiUsage {
    prompt_token_count: Option<u64>,
}

impl Gemini {
    fn embeddings(self) -> Embeddings {
        let vectors = self.embeddings.into_iter().map(|vector| of_length_one(vector.values));
        let input = self.usage_metadata.and_then(|usage| usage.prompt_token_count);
        Embeddings { usage: counted(input, None), ..Embeddings::new(vectors.collect()) }
    }
}

/// Gemini gives vectors of length one in its own number of dimensions alone.
fn of_length_one(mut vector: Vec<f32>) -> Vec<f32> {
    const NORMALIZED: usize = 3072;
    let square: f64 = vector.iter().map(|number| f64::from(*number).powi(2)).sum();
    if vector.len() != NORMALIZED && square > 0.0 {
        let length = square.sqrt();
        vector.iter_mut().for_each(|number| *number = (f64::from(*number) / length) as f32);
    }
    vector
}

#[derive(Deserialize)]
struct Ollama {
    embeddings: Vec<Vec<f32>>,
    model: Option<String>,
    prompt_eval_count: Option<u64>,
}

impl Ollama {
    fn embeddings(self) -> Embeddings {
        let usage = counted(self.prompt_eval_count, None);
        Embeddings { model: self.model, usage, ..Embeddings::new(self.embeddings) }
    }
}

fn counted(input: Option<u64>, total: Option<u64>) -> Usage {
    let mut usage = Usage::new(input, None);
    usage.total_tokens = total;
    usage
}

/// Texts in portions, as large as they may be. One that is too long by itself goes alone.
fn batches(texts: &[String], most: Batch) -> impl Iterator<Item = &[String]> {
    let mut rest = texts;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fit = rest.iter().take(most.texts).take_while(|text| {
            bytes += text.len();
            bytes <= most.bytes
        });
        let count = fit.count().max(1);
        let (batch, after) = rest.split_at_checked(count)?;
        rest = after;
        Some(batch)
    })
}

async fn read(response: Response<AnswerBody>, context: &ErrorContext) -> Result<Vec<u8>> {
    let (mut answer, mut body) = (response.into_body(), Vec::new());
    while let Some(frame) =
        context.unless_silent(MAX_SILENCE, answer.frame().map(Option::transpose)).await?
    {
        let bytes = frame.into_data().unwrap_or_default();
        if (body.len() + bytes.len()) as u64 > MAX_BODY {
            return Err(too_large("the answer", MAX_BODY));
        }
        body.extend_from_slice(&bytes);
    }
    Ok(body)
}
