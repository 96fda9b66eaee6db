//! Texts into vectors, over a real socket.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use mynah_adapters::{
    conformance::{Received, Reply, TestServer},
    embed::Embedder,
    http::{HttpAdapter, HttpEmbedder},
    keys::Keys,
};
use mynah_data::{AdapterReason, ErrorKind, Usage};
use mynah_step::RetryPolicy;
use serde_json::{Value, json};

const KEY: &str = "sk-of-the-embedder";

#[tokio::test]
async fn openai_is_asked_in_its_shape_and_its_order_does_not_matter() {
    let server = TestServer::start(|_| {
        let data =
            json!([{"index": 1, "embedding": [3.5, 0]}, {"index": 0, "embedding": [1.0, -2]}]);
        let usage = json!({"prompt_tokens": 5, "total_tokens": 5});
        answer(json!({"object": "list", "data": data, "model": "small-1", "usage": usage}))
    });
    let server = server.await.unwrap();
    let embedder = embedder(&server, "openai-chat").with_dimensions(2).with_param("user", "u");
    let found = Arc::new(embedder).embed(vec!["a".into(), "b".into()]).await.unwrap();
    assert_eq!(found.vectors, [[1.0, -2.0], [3.5, 0.0]]);
    assert_eq!(found.model.as_deref(), Some("small-1"));
    let mut usage = Usage::new(5, None);
    usage.total_tokens = Some(5);
    assert_eq!(found.usage, usage);
    let [asked] = &server.received()[..] else { panic!("one call") };
    assert_eq!(asked.path, "/v1/embeddings");
    assert_eq!(asked.header("authorization"), Some(&*format!("Bearer {KEY}")));
    assert_eq!(
        asked.body,
        json!({"model": "m", "input": ["a", "b"], "encoding_format": "float", "dimensions": 2, "user": "u"})
    );
}

#[tokio::test]
async fn gemini_is_asked_in_its_shape() {
    let server = TestServer::start(|_| {
        let embeddings = json!([{"values": [3.0, 4.0]}]);
        answer(json!({"embeddings": embeddings, "usageMetadata": {"promptTokenCount": 3}}))
    });
    let server = server.await.unwrap();
    let embedder = embedder(&server, "gemini").with_dimensions(2);
    let embedder = embedder.with_param("taskType", "RETRIEVAL_QUERY");
    let found = embedder.vectors(["a"]).await.unwrap();
    assert_eq!(found.vectors, [[0.6, 0.8]], "of length one");
    assert_eq!(found.usage.input_tokens, Some(3));
    let [asked] = &server.received()[..] else { panic!("one call") };
    assert_eq!(asked.path, "/v1beta/models/m:batchEmbedContents");
    assert_eq!(asked.header("x-goog-api-key"), Some(KEY));
    let one = json!({
        "model": "models/m", "content": {"parts": [{"text": "a"}]},
        "outputDimensionality": 2, "taskType": "RETRIEVAL_QUERY",
    });
    assert_eq!(asked.body, json!({"requests": [one]}));
}

#[tokio::test]
async fn the_whole_name_of_a_model_of_gemini_is_its_id() {
    let server = TestServer::start(|_| answer(json!({"embeddings": [{"values": [1.0]}]})));
    let server = server.await.unwrap();
    let keys = Keys::new().with_environment(|_| Some(KEY.to_owned()));
    let adapter = HttpAdapter::named("gemini").unwrap().with_base_url(server.url()).unwrap();
    HttpEmbedder::new(adapter.with_keys(keys), "models/m").vectors(["a"]).await.unwrap();
    let [asked] = &server.received()[..] else { panic!("one call") };
    assert_eq!(asked.path, "/v1beta/models/m:batchEmbedContents");
    assert_eq!(asked.body["requests"][0]["model"], "models/m");
}

#[tokio::test]
async fn mistral_has_its_own_word_for_dimensions() {
    let server = TestServer::start(lengths).await.unwrap();
    embedder(&server, "mistral").with_dimensions(2).vectors(["a"]).await.unwrap();
    let [asked] = &server.received()[..] else { panic!("one call") };
    assert_eq!(
        asked.body,
        json!({"model": "m", "input": ["a"], "encoding_format": "float", "output_dimension": 2})
    );
}

#[tokio::test]
async fn no_wait_is_begun_that_the_policy_has_no_time_for() {
    let server = TestServer::start(|_| Reply::json(503, "")).await.unwrap();
    let mut policy = RetryPolicy::attempts(4);
    policy.max_elapsed_ms = Some(1);
    let error = embedder(&server, "openai-chat").with_retry(policy).vectors(["a"]).await;
    let unavailable = ErrorKind::Adapter(AdapterReason::ProviderUnavailable);
    assert_eq!(error.unwrap_err().kind(), unavailable);
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn ollama_is_asked_in_its_shape() {
    let server = TestServer::start(|_| {
        answer(json!({"model": "m", "embeddings": [[0.25, 1]], "prompt_eval_count": 4}))
    });
    let server = server.await.unwrap();
    let found = embedder(&server, "ollama").vectors(["a"]).await.unwrap();
    assert_eq!((found.vectors, found.usage.input_tokens), (vec![vec![0.25, 1.0]], Some(4)));
    let [asked] = &server.received()[..] else { panic!("one call") };
    assert_eq!((&*asked.path, &asked.body), ("/api/embed", &json!({"model": "m", "input": ["a"]})));
}

#[tokio::test]
async fn many_texts_go_out_in_batches_and_long_ones_alone() {
    let server = TestServer::start(lengths).await.unwrap();
    let texts: Vec<String> = (0..5000).map(|n| "x".repeat(n % 7)).collect();
    let found = embedder(&server, "openai-chat").vectors(texts.clone()).await.unwrap();
    let expected: Vec<Vec<f32>> = texts.iter().map(|text| vec![text.len() as f32]).collect();
    assert_eq!(found.vectors, expected);
    assert_eq!(sizes(&server), [2048, 2048, 904]);
    assert_eq!(found.usage.input_tokens, Some(3));

    let server = TestServer::start(lengths).await.unwrap();
    let texts = [200_000, 100_000, 1, 400_000, 1].map(|length| "x".repeat(length));
    let found = embedder(&server, "openai-chat").vectors(texts).await.unwrap();
    assert_eq!(found.vectors.len(), 5);
    assert_eq!(sizes(&server), [2, 1, 1, 1]);

    let none = embedder(&server, "openai-chat").vectors([""; 0]).await.unwrap();
    assert_eq!((none.vectors.len(), sizes(&server).len()), (0, 4));
}

#[tokio::test]
async fn q19_q20_each_batch_is_counted_and_named_and_a_failure_tells_how_many_came_before() {
    let calls = AtomicUsize::new(0);
    let server = TestServer::start(move |asked| match calls.fetch_add(1, Ordering::Relaxed) {
        number @ 0..4 => lengths(asked).with_header("x-request-id", &format!("r{number}")),
        _ => Reply::json(400, "{}"),
    });
    let server = server.await.unwrap();
    let embedder = embedder(&server, "openai-chat").with_max_batch(100);
    let found = embedder.vectors(vec!["x"; 250]).await.unwrap();
    assert_eq!((found.vectors.len(), found.usage.input_tokens), (250, Some(3)));
    assert_eq!(found.request_ids, ["r0", "r1", "r2"]);
    let error = embedder.vectors(vec!["x"; 250]).await.unwrap_err();
    assert_eq!(error.metadata()["completed_chunks"], 1);
    assert_eq!(error.metadata()["completed_inputs"], 100);
    let error = embedder.vectors(vec!["x"; 250]).await.unwrap_err();
    assert_eq!(error.metadata().get("completed_chunks"), None);
    assert_eq!(sizes(&server), [100, 100, 50, 100, 100, 100]);
}

#[tokio::test]
async fn a_batch_is_as_large_as_the_provider_takes_it_or_as_it_is_told() {
    let server = TestServer::start(lengths).await.unwrap();
    embedder(&server, "mistral").vectors(vec!["x"; 600]).await.unwrap();
    embedder(&server, "mistral").vectors(vec!["x".repeat(6_000); 3]).await.unwrap();
    assert_eq!(sizes(&server), [512, 88, 2, 1]);

    let server = TestServer::start(lengths).await.unwrap();
    for most in [2, 0] {
        let embedder = embedder(&server, "openai-chat").with_max_batch(most);
        assert_eq!(embedder.vectors(["a"; 5]).await.unwrap().vectors.len(), 5);
    }
    assert_eq!(sizes(&server), [2, 2, 1, 1, 1, 1, 1, 1]);
}

#[tokio::test]
async fn failures_are_typed_and_tried_again_where_they_may_pass() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let server = TestServer::start(move |asked| match counted.fetch_add(1, Ordering::Relaxed) {
        0 => Reply::json(503, ""),
        1 => lengths(asked),
        _ => Reply::json(401, format!(r#"{{"error": {{"message": "no such key: {KEY}"}}}}"#)),
    });
    let server = server.await.unwrap();
    let mut policy = RetryPolicy::attempts(2);
    (policy.base_delay_ms, policy.jitter_ms) = (1, 0);
    let embedder = embedder(&server, "openai-chat").with_retry(policy);
    assert_eq!(embedder.vectors(["abc"]).await.unwrap().vectors, [[3.0]]);
    let error = embedder.vectors(["abc"]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::AuthenticationFailed));
    assert_eq!(error.message(), "no such key: …");
    assert_eq!(error.metadata()["provider"], "openai-chat");
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_malformed() {
    for wrong in [
        "",
        "[]",
        "{}",
        r#"{"data": []}"#,
        r#"{"data": [{"embedding": "x"}]}"#,
        r#"{"data": [{"embedding": [1]}, {"embedding": [1, 2]}]}"#,
        r#"{"data": [{"embedding": []}, {"embedding": []}]}"#,
    ] {
        let server = TestServer::start(move |_| Reply::json(200, wrong)).await.unwrap();
        let error = embedder(&server, "openai-chat").vectors(["a", "b"]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse), "{wrong}");
    }
}

#[tokio::test]
async fn vectors_have_one_length_over_all_batches() {
    let calls = AtomicUsize::new(0);
    let server = TestServer::start(move |_| {
        let length = 1 + calls.fetch_add(1, Ordering::Relaxed);
        answer(json!({"data": [{"embedding": vec![1.0; length]}]}))
    });
    let server = server.await.unwrap();
    let long = || "x".repeat(400_000);
    let error = embedder(&server, "openai-chat").vectors([long(), long()]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse));
    assert!(error.message().into_owned().ends_with("a vector of 1, and one of 2"), "{error}");
}

#[tokio::test]
async fn a_failure_under_a_status_of_success_is_told_in_the_providers_words() {
    let said = r#"{"error": {"message": "no such model", "code": 404}}"#;
    let server = TestServer::start(move |_| Reply::json(200, said)).await.unwrap();
    let error = embedder(&server, "openai-chat").vectors(["a"]).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.message().into_owned().as_str()),
        (ErrorKind::Adapter(AdapterReason::NotFound), "no such model")
    );
}

#[tokio::test]
async fn vectors_without_a_place_are_in_order() {
    let data = json!([{"index": null, "embedding": [1]}, {"embedding": [2]}]);
    let server = TestServer::start(move |_| answer(json!({"data": data}))).await.unwrap();
    let found = embedder(&server, "openai-chat").vectors(["a", "b"]).await.unwrap();
    assert_eq!(found.vectors, [[1.0], [2.0]]);
}

#[tokio::test]
async fn a_named_embedder_can_call_another_server_and_a_provider_without_embeddings_is_refused() {
    let server = TestServer::start(lengths).await.unwrap();
    let embedder = HttpEmbedder::named("llamacpp:m").unwrap().with_base_url(server.url()).unwrap();
    assert_eq!(embedder.vectors(["abc"]).await.unwrap().vectors, [[3.0]]);
    assert!(HttpEmbedder::named("llamacpp:m").unwrap().with_base_url("nowhere").is_err());
    let error = HttpEmbedder::named("anthropic:claude-sonnet-5").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::UnsupportedFeature));
    assert_eq!(error.metadata()["provider"], "anthropic");
}

/// Answers with the length of each text.
fn lengths(asked: &Received) -> Reply {
    let texts = asked.body["input"].as_array().unwrap().iter().enumerate();
    let data = texts
        .map(|(index, text)| json!({"index": index, "embedding": [text.as_str().unwrap().len()]}));
    answer(json!({"data": data.collect::<Vec<_>>(), "usage": {"prompt_tokens": 1}}))
}

fn sizes(server: &TestServer) -> Vec<usize> {
    let asked = server.received();
    asked.iter().map(|asked| asked.body["input"].as_array().unwrap().len()).collect()
}

fn answer(body: Value) -> Reply {
    Reply::json(200, body.to_string())
}

fn embedder(server: &TestServer, adapter: &str) -> HttpEmbedder {
    let keys = Keys::new().with_environment(|_| Some(KEY.to_owned()));
    let adapter = HttpAdapter::named(adapter).unwrap().with_base_url(server.url()).unwrap();
    HttpEmbedder::new(adapter.with_keys(keys), "m")
}
