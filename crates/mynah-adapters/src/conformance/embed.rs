//! What every embedder must do, on a real socket.
//!
//! ```
//! # mod mynah { pub use {mynah_adapters as adapters, mynah_step::*}; }
//! use std::sync::Arc;
//! use mynah::RetryPolicy;
//! use mynah::adapters::conformance::Received;
//! use mynah::adapters::conformance::embed::{EmbedderSubject, self};
//! use mynah::adapters::embed::Embedder;
//! use mynah::adapters::http::{HttpAdapter, HttpEmbedder};
//! use mynah::adapters::keys::Keys;
//! use serde_json::json;
//!
//! struct Vectors;
//!
//! impl EmbedderSubject for Vectors {
//!     fn embedder(&self, base_url: &str, key: &str) -> Arc<dyn Embedder> {
//!         let key = key.to_owned();
//!         let keys = Keys::new().with_environment(move |_| Some(key.clone()));
//!         let adapter = HttpAdapter::named("together").and_then(|adapter| adapter.with_base_url(base_url));
//!         let embedder = HttpEmbedder::new(adapter.unwrap().with_keys(keys), "intfloat/multilingual-e5-large-instruct");
//!         Arc::new(embedder.with_retry(RetryPolicy::never()))
//!     }
//!
//!     fn texts(&self, asked: &Received) -> Vec<String> {
//!         serde_json::from_value(asked.body["input"].clone()).unwrap()
//!     }
//!
//!     fn answer(&self, vectors: &[Vec<f32>], input_tokens: u64) -> String {
//!         let data: Vec<_> = vectors.iter().map(|vector| json!({"embedding": vector})).collect();
//!         json!({"data": data, "usage": {"prompt_tokens": input_tokens}}).to_string()
//!     }
//!
//!     fn error(&self, message: &str) -> String {
//!         json!({"error": message}).to_string()
//!     }
//!
//!     fn max_batch(&self) -> usize {
//!         2048
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! embed::run(Vectors).await;
//! # }
//! ```

use std::time::Duration;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::future::{Either, select};
use mynah_data::{AdapterReason, Error, ErrorKind};

use super::{
    KEY, REQUEST_ID, Received, Reply, STATUSES, TestServer, serving, waits::assert_leaves,
};
use crate::embed::{Embedder, Embeddings};

/// An embedder, and how its provider writes.
pub trait EmbedderSubject: Send + Sync + 'static {
    /// The embedder, calling this server with this key, without retries.
    fn embedder(&self, base_url: &str, key: &str) -> Arc<dyn Embedder>;

    /// The texts of a call.
    fn texts(&self, asked: &Received) -> Vec<String>;

    /// How the provider writes these vectors, which it counts as so many tokens.
    fn answer(&self, vectors: &[Vec<f32>], input_tokens: u64) -> String;

    /// How it writes an error with this message.
    fn error(&self, message: &str) -> String;

    /// The most texts that it takes in one call.
    fn max_batch(&self) -> usize;
}

/// How many tokens every call has.
const TOKENS: u64 = 5;

/// Runs the whole suite.
///
/// # Panics
/// At the first thing that is not right.
pub async fn run(subject: impl EmbedderSubject) {
    let subject: &Arc<dyn EmbedderSubject> = &(Arc::new(subject) as _);
    no_text_is_no_call(subject).await;
    each_text_has_its_vector(subject, 1).await;
    each_text_has_its_vector(subject, 2 * subject.max_batch() + 1).await;
    a_failure_tells_how_far_it_came(subject).await;
    vectors_that_do_not_fit_are_malformed(subject).await;
    each_status_has_its_reason(subject).await;
    a_key_is_never_repeated(subject).await;
    a_server_that_is_not_there_is_an_error(subject).await;
    a_dropped_call_closes_its_connection(subject).await;
}

async fn no_text_is_no_call(subject: &Arc<dyn EmbedderSubject>) {
    let server = serving(Reply::json(500, "")).await;
    let found = embed(subject, &server, 0).await.expect("nothing is asked");
    assert_eq!((found.vectors.len(), server.received().len()), (0, 0));
}

/// In the order of the texts, in calls that the provider takes, and counted over all of them.
async fn each_text_has_its_vector(subject: &Arc<dyn EmbedderSubject>, count: usize) {
    let server = serving_each(subject, |vectors| vectors).await;
    let found = embed(subject, &server, count).await.expect("vectors");
    assert_eq!(found.vectors.len(), count, "one vector for each text");
    for (number, vector) in found.vectors.iter().enumerate() {
        let expected = vector_of(&number.to_string());
        let same = |(one, other): (&f32, &f32)| (one - other).abs() < 1e-4;
        assert_eq!(vector.len(), expected.len());
        assert!(vector.iter().zip(&expected).all(same), "text {number} has another's vector");
    }
    let asked: Vec<Vec<String>> =
        server.received().iter().map(|asked| subject.texts(asked)).collect();
    let sizes = || asked.iter().map(Vec::len);
    assert!(sizes().all(|size| (1..=subject.max_batch()).contains(&size)), "{:?}", sizes());
    assert_eq!(asked.concat(), texts(count), "each text is asked for once");
    assert_eq!(found.usage.input_tokens, Some(TOKENS * asked.len() as u64));
    assert_eq!(found.usage.output_tokens, None, "there is no output");
    assert_eq!(found.request_ids, vec![REQUEST_ID; asked.len()], "one for each call");
}

async fn a_failure_tells_how_far_it_came(subject: &Arc<dyn EmbedderSubject>) {
    let (calls, subject_of_server) = (AtomicUsize::new(0), Arc::clone(subject));
    let server = TestServer::start(move |asked| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => answer(&*subject_of_server, asked, |vectors| vectors),
        _ => Reply::json(400, subject_of_server.error("not these")),
    });
    let server = server.await.expect("a port");
    let error = embed(subject, &server, subject.max_batch() + 1).await;
    let error = error.expect_err("the second call is refused");
    let completed = subject.texts(&server.received()[0]).len();
    assert_eq!(error.metadata()["completed_chunks"], 1);
    assert_eq!(error.metadata()["completed_inputs"], completed);
}

async fn vectors_that_do_not_fit_are_malformed(subject: &Arc<dyn EmbedderSubject>) {
    type Spoil = fn(Vec<Vec<f32>>) -> Vec<Vec<f32>>;
    let wrong: [(&str, Spoil); 4] = [
        ("one too few", |vectors| vectors[1..].to_vec()),
        ("one too many", |vectors| [&vectors[..], &vectors[..1]].concat()),
        ("of several lengths", |vectors| vec![vectors[0].clone(), vec![1.0]]),
        ("empty", |vectors| vec![Vec::new(); vectors.len()]),
    ];
    for (what, spoil) in wrong {
        let server = serving_each(subject, spoil).await;
        assert_fails(subject, &server, AdapterReason::MalformedResponse, what).await;
    }
    let server = serving(Reply::json(200, "nonsense")).await;
    assert_fails(subject, &server, AdapterReason::MalformedResponse, "nonsense").await;
}

async fn each_status_has_its_reason(subject: &Arc<dyn EmbedderSubject>) {
    for (status, reason) in STATUSES {
        let reply = Reply::json(status, subject.error("not like this"))
            .with_header("x-request-id", REQUEST_ID)
            .with_header("retry-after", "2");
        let server = serving(reply).await;
        let error = assert_fails(subject, &server, reason, &status.to_string()).await;
        assert_eq!(error.message(), "not like this", "the message is the provider's own");
        assert_eq!(error.metadata()["status"], status);
        assert_eq!(error.metadata()["request_id"], REQUEST_ID);
        assert_eq!(error.retry_after(), Some(Duration::from_secs(2)));
    }
}

async fn a_key_is_never_repeated(subject: &Arc<dyn EmbedderSubject>) {
    let refusal = Reply::json(401, subject.error(&format!("no such key: {KEY}")));
    let server = serving(refusal.with_header("x-request-id", KEY)).await;
    let reason = AdapterReason::AuthenticationFailed;
    let error = assert_fails(subject, &server, reason, "a wrong key").await;
    let told = format!("{error} {error:?} {}", error.to_value());
    assert!(!told.contains(KEY), "{told}");
    let asked = server.received().pop().expect("a call");
    let open = format!("{} {}", asked.path, asked.body);
    assert!(!open.contains(KEY), "a key goes in a header");
}

async fn a_server_that_is_not_there_is_an_error(subject: &Arc<dyn EmbedderSubject>) {
    let server = serving(Reply::json(200, "")).await;
    let url = server.url().to_owned();
    drop(server);
    // The port is free again once the server's task has stopped.
    tokio::task::yield_now().await;
    let error = subject.embedder(&url, KEY).embed(texts(1)).await.expect_err("nobody is there");
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError), "{error:?}");
}

async fn a_dropped_call_closes_its_connection(subject: &Arc<dyn EmbedderSubject>) {
    let server = serving(Reply::silence()).await;
    let asked = subject.embedder(server.url(), KEY).embed(texts(1));
    match select(asked, pin!(server.is_asked())).await {
        Either::Left(_) => panic!("vectors of a silent server"),
        Either::Right(_) => {}
    }
    assert_leaves(&server).await;
}

async fn assert_fails(
    subject: &Arc<dyn EmbedderSubject>,
    server: &TestServer,
    reason: AdapterReason,
    what: &str,
) -> Error {
    let Err(error) = embed(subject, server, 2).await else { panic!("{what}: no error") };
    assert_eq!(error.kind(), ErrorKind::Adapter(reason), "{what}: {error:?}");
    assert_eq!(error.metadata()["provider"], subject.embedder(server.url(), KEY).name());
    error
}

async fn embed(
    subject: &Arc<dyn EmbedderSubject>,
    server: &TestServer,
    count: usize,
) -> mynah_data::Result<Embeddings> {
    subject.embedder(server.url(), KEY).embed(texts(count)).await
}

/// A server that answers each call with the vectors of its texts, changed like this.
async fn serving_each(
    subject: &Arc<dyn EmbedderSubject>,
    change: impl Fn(Vec<Vec<f32>>) -> Vec<Vec<f32>> + Send + Sync + 'static,
) -> TestServer {
    let subject = Arc::clone(subject);
    let server = TestServer::start(move |asked| answer(&*subject, asked, &change));
    server.await.expect("a port")
}

fn answer(
    subject: &dyn EmbedderSubject,
    asked: &Received,
    change: impl Fn(Vec<Vec<f32>>) -> Vec<Vec<f32>>,
) -> Reply {
    let vectors = subject.texts(asked).iter().map(|text| vector_of(text)).collect();
    let answer = Reply::json(200, subject.answer(&change(vectors), TOKENS));
    answer.with_header("x-request-id", REQUEST_ID)
}

fn texts(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

/// A vector for this text alone, of length one: some providers' vectors are brought to it.
fn vector_of(text: &str) -> Vec<f32> {
    let angle = text.parse::<f32>().unwrap_or_default() / 1000.0;
    vec![angle.cos(), angle.sin()]
}
