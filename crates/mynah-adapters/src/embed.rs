//! Texts into vectors.

use std::sync::Arc;

use mynah_data::{Result, Usage};
use mynah_step::BoxFuture;

/// Turns texts into vectors, so that what means the same lies close together.
///
/// ```
/// # mod mynah { pub use {mynah_adapters as adapters, mynah_data::*, mynah_step::*}; }
/// use std::sync::Arc;
/// use mynah::{BoxFuture, Result};
/// use mynah::adapters::embed::{Embedder, Embeddings};
///
/// /// Knows nothing of a text but its length.
/// struct Lengths;
///
/// impl Embedder for Lengths {
///     fn name(&self) -> &str {
///         "lengths"
///     }
///
///     fn embed(self: Arc<Self>, texts: Vec<String>) -> BoxFuture<Result<Embeddings>> {
///         let vectors = texts.iter().map(|text| vec![text.len() as f32]).collect();
///         Box::pin(async { Ok(Embeddings::new(vectors)) })
///     }
/// }
/// ```
pub trait Embedder: Send + Sync + 'static {
    /// The name under which errors and logs know it.
    fn name(&self) -> &str;

    /// One vector for each text, in order. If one of several calls fails, its error reports the
    /// progress: `completed_chunks` calls for `completed_inputs` texts.
    fn embed(self: Arc<Self>, texts: Vec<String>) -> BoxFuture<Result<Embeddings>>;
}

/// Vectors of texts.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Embeddings {
    /// One for each text, in order.
    pub vectors: Vec<Vec<f32>>,
    /// The model that made them, as the provider names it.
    pub model: Option<String>,
    /// Tokens, all calls together.
    pub usage: Usage,
    /// The provider's ids of the calls, in their order, if it sends them.
    pub request_ids: Vec<String>,
}

impl Embeddings {
    /// Vectors without further data.
    pub fn new(vectors: Vec<Vec<f32>>) -> Self {
        Self { vectors, ..Self::default() }
    }
}
