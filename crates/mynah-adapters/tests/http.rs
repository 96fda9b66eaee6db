//! What goes over the wire, and what is kept from it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::StreamExt as _;
use mynah_adapters::{
    conformance::{Received, Reply, TestServer},
    http::{Http, HttpAdapter},
    keys::Keys,
    presets::{PRESETS, Preset},
};
use mynah_data::{
    AdapterReason, EngineReason, Error, ErrorKind, Event, FinishReason, Request, Response,
    ResponseFormat, Result, ToolChoice, ToolSpec,
};
use mynah_step::{Adapter, Fallback, ModelCall, RetryPolicy, SystemWorld, open_model};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CertifiedKey, IsCa, KeyPair,
    generate_simple_self_signed,
};
use rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

const ANSWER: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

#[test]
fn the_version_is_added_once() {
    let url = |name: &str, base: &str| {
        let adapter =
            HttpAdapter::named(name).and_then(|adapter| adapter.with_base_url(base)).unwrap();
        adapter.url("chat/completions").unwrap()
    };
    for base in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"] {
        assert_eq!(url("openai-chat", base), "http://h:1/v1/chat/completions", "{base}");
    }
    assert_eq!(url("openai-chat", "http://h/api"), "http://h/api/v1/chat/completions");
    assert_eq!(url("deepseek", "http://h/v1"), "http://h/v1/chat/completions");
    for base in ["", "/", "/openai", "/openai/", "/openai/v1/"] {
        assert_eq!(
            url("azure", &format!("https://r.openai.azure.com{base}")),
            "https://r.openai.azure.com/openai/v1/chat/completions"
        );
    }
    for base in ["http://api", "http://api/", "http://api/api", "http://api/api/"] {
        assert_eq!(url("ollama", base), "http://api/api/chat/completions", "{base}");
    }
    assert_eq!(url("ollama", "http://h/my-api"), "http://h/my-api/api/chat/completions");
    assert_eq!(
        url("azure", "https://r.openai.azure.com/openai/deployments/d?api-version=2024-10-21"),
        "https://r.openai.azure.com/openai/deployments/d/chat/completions?api-version=2024-10-21"
    );
    for (base, expected) in [
        ("http://v1.h/", "http://v1.h/v1/chat/completions"),
        ("http://h/v1beta/openai/", "http://h/v1beta/openai/chat/completions"),
        (
            "http://h/v1/account/gateway/openai",
            "http://h/v1/account/gateway/openai/chat/completions",
        ),
        (
            "http://h/models?api-version=2024-05-01-preview",
            "http://h/models/chat/completions?api-version=2024-05-01-preview",
        ),
    ] {
        assert_eq!(url("openai-chat", base), expected);
    }
    assert_eq!(
        url("anthropic", "http://h/v1/account/gateway/anthropic"),
        "http://h/v1/account/gateway/anthropic/v1/chat/completions",
        "the first version is the gateway's"
    );
    let whole = HttpAdapter::named("openai-chat").unwrap().with_version("");
    let whole = whole.with_base_url("http://h/inference").unwrap();
    assert_eq!(whole.url("chat/completions").unwrap(), "http://h/inference/chat/completions");
    for (base, expected) in [
        ("http://h", "http://h/v1beta/chat/completions"),
        ("http://h/v1beta", "http://h/v1beta/chat/completions"),
        ("http://h/v1/", "http://h/v1/chat/completions"),
        ("http://h/vertex", "http://h/vertex/v1beta/chat/completions"),
    ] {
        assert_eq!(url("gemini", base), expected);
    }
    let gateway = HttpAdapter::named("gemini").unwrap().with_base_url("http://h/v1?a=b").unwrap();
    assert_eq!(gateway.url("m:generate?alt=sse").unwrap(), "http://h/v1/m:generate?alt=sse&a=b");
    let groq = HttpAdapter::named("groq").unwrap();
    assert_eq!(
        groq.url("chat/completions").unwrap(),
        "https://api.groq.com/openai/v1/chat/completions"
    );
}

#[test]
fn a_base_url_may_be_the_whole_address_of_a_call() {
    for (name, base, path) in [
        ("openai-chat", "http://h/v1/chat/completions", "chat/completions"),
        ("openai-chat", "http://h/chat/completions", "chat/completions"),
        ("anthropic", "http://h/v1/messages", "messages"),
        ("ollama", "http://h/api/chat", "chat"),
        ("azure", "http://h/openai/responses?api-version=1", "responses"),
    ] {
        let adapter = HttpAdapter::named(name).unwrap().with_base_url(base).unwrap();
        assert_eq!(adapter.url(path).unwrap(), base);
    }
    let gemini = HttpAdapter::named("gemini").unwrap();
    let gemini = gemini.with_base_url("http://h/v1beta/models/m:generate/?a=b").unwrap();
    let asked = gemini.url("models/m:generate?alt=sse").unwrap();
    assert_eq!(asked, "http://h/v1beta/models/m:generate?alt=sse&a=b");
}

#[test]
fn a_base_url_is_an_address_without_secrets() {
    for wrong in ["localhost:80", "ftp://h", "", "http://user:pass@h"] {
        let error = HttpAdapter::named("vllm").unwrap().with_base_url(wrong).unwrap_err();
        assert!(error.is_validation(), "{wrong}: {error}");
        assert!(!error.message().into_owned().contains("pass@"), "{error}");
    }
    for (wrong, why) in [("http://", "empty host"), ("https://h:port", "invalid port number")] {
        let error = HttpAdapter::named("vllm").unwrap().with_base_url(wrong).unwrap_err();
        assert_eq!(error.message(), format!("validation failed: base_url: {why}"));
    }
    assert!(HttpAdapter::named("nobody").unwrap_err().to_string().contains("openrouter"));
}

#[test]
fn presets_have_names_of_their_own() {
    let mut names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), PRESETS.len());
}

#[tokio::test]
async fn o26_headers_and_keys_go_where_each_format_wants_them() {
    let headers = |name: &'static str| async move {
        let server =
            TestServer::start(|_| Reply::stream("text/event-stream", [ANSWER])).await.unwrap();
        let adapter = HttpAdapter::named(name).unwrap().with_base_url(server.url()).unwrap();
        let adapter = adapter.with_header("x-mine", "1").unwrap();
        let opts = json!({"organization": "org-1", "headers": {"x-yours": "2"}});
        let mut call = call();
        call.adapter_opts = opts.as_object().unwrap().clone();
        hear(adapter, call).await.ok();
        server.received().pop().unwrap()
    };
    let sent = headers("openai-chat").await;
    let expected = [
        ("accept-encoding", "identity"),
        ("authorization", "Bearer sk-call"),
        ("content-type", "application/json"),
        ("openai-organization", "org-1"),
        ("x-mine", "1"),
        ("x-yours", "2"),
    ];
    for (name, value) in expected {
        assert_eq!(sent.header(name), Some(value), "{name}");
    }
    assert!(sent.header("user-agent").is_some_and(|agent| agent.starts_with("mynah/")));
    let sent = headers("anthropic").await;
    assert_eq!(sent.path, "/v1/messages");
    assert_eq!(
        (sent.header("x-api-key"), sent.header("anthropic-version")),
        (Some("sk-call"), Some("2023-06-01"))
    );
    assert_eq!(sent.header("authorization"), None);
    assert_eq!(headers("azure").await.header("api-key"), Some("sk-call"));
}

#[tokio::test]
async fn options_under_the_name_of_an_adapter_are_for_that_one_alone() {
    let busy = TestServer::start(|_| Reply::json(529, "{}")).await.unwrap();
    let free = TestServer::start(|_| Reply::stream("text/event-stream", [ANSWER])).await.unwrap();
    let first = HttpAdapter::named("anthropic").unwrap().with_base_url(busy.url()).unwrap();
    let next = HttpAdapter::named("vllm").unwrap().with_base_url(free.url()).unwrap();
    let options = json!({
        "anthropic": {"thinking": {"type": "adaptive"}, "top_p": 0.5}, "vllm": {"min_p": 0.1},
        "openai": {"verbosity": "low"}, "top_p": 0.9, "together": "no map, and so no adapter's",
    });
    let request = Request::from("hi").with_options(options.as_object().unwrap().clone());
    let both = Arc::new(Fallback::new(first).or(next, "small"));
    let _ = both.open(request.with_model("claude"), call()).await.unwrap();
    let sent = |server: &TestServer| {
        let body = server.received().pop().unwrap().body;
        let names = ["anthropic", "vllm", "openai", "thinking", "min_p", "verbosity", "top_p"];
        let sent = names.into_iter().filter_map(|name| Some((name, body.get(name)?.clone())));
        (sent.collect::<Vec<_>>(), body["together"] == options["together"])
    };
    let thinking = ("thinking", json!({"type": "adaptive"}));
    assert_eq!(sent(&busy), (vec![thinking, ("top_p", json!(0.5))], true));
    assert_eq!(sent(&free), (vec![("min_p", json!(0.1)), ("top_p", json!(0.9))], true));
}

#[tokio::test]
async fn k05_a_missing_key_is_told_before_anything_is_sent() {
    let server = TestServer::start(|_| Reply::json(500, "{}")).await.unwrap();
    let adapter = |url: &str| HttpAdapter::named("groq").unwrap().with_base_url(url).unwrap();
    let keys = Keys::new().with_environment(|_| None).with_dotenv("no such file");
    // A server on this machine needs none.
    let here = hear(adapter(server.url()).with_keys(keys.clone()), ModelCall::default()).await;
    assert_eq!(here.unwrap_err().reason(), "provider_unavailable");
    let error =
        hear(adapter("http://192.0.2.1").with_keys(keys), ModelCall::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::MissingKey));
    assert_eq!(
        error.metadata()["checked"],
        json!(["call", "set", "GROQ_API_KEY", "GROQ_API_KEY in no such file"])
    );
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn a_bad_address_is_reported_before_a_missing_key() {
    let groq = || {
        let keys = Keys::new().with_environment(|_| None);
        HttpAdapter::named("groq").unwrap().with_keys(keys)
    };
    for url in ["localhost:8080", "", "not a url", "ftp://x", "http://h:99999"] {
        let mut call = ModelCall::default();
        call.adapter_opts.insert("base_url".into(), url.into());
        let refused = groq().preflight(&Request::from("hi"), &call).unwrap_err();
        assert_eq!(hear(groq(), call).await, Err(refused.clone()), "{url}");
        assert!(refused.message().starts_with("validation failed: base_url: "), "{url}: {refused}");
    }
}

#[tokio::test]
async fn what_cannot_be_sent_is_known_before_the_call() {
    let server = TestServer::start(|_| Reply::json(500, "{}")).await.unwrap();
    let request = Request::from("hi").with_model("m");
    let keyless = Keys::new().with_environment(|_| None);
    let groq = || HttpAdapter::named("groq").unwrap().with_base_url(server.url()).unwrap();
    let nowhere = || HttpAdapter::new("acme", Preset::named("groq").unwrap().format());
    let with_headers = |headers: Value| {
        let mut call = call();
        call.adapter_opts.insert("headers".to_owned(), headers);
        call
    };
    assert_eq!(groq().preflight(&request, &call()), Ok(()));
    for (adapter, call, reason) in [
        (
            groq().with_base_url("http://192.0.2.1").unwrap().with_keys(keyless),
            ModelCall::default(),
            "missing_key",
        ),
        (nowhere(), call(), "invalid_options"),
        (groq(), with_headers(json!({"x y": "z"})), "invalid_options"),
        (groq(), call().with_api_key("two\nlines"), "invalid_options"),
    ] {
        let known = adapter.preflight(&request, &call).unwrap_err();
        assert_eq!(known.reason(), reason, "{known}");
        assert_eq!(hear(adapter, call).await.unwrap_err(), known);
    }
    for name in ["messages", "input", "contents"] {
        let mut request = request.clone();
        request.options.insert(name.to_owned(), json!([]));
        let refused = groq().preflight(&request, &call()).unwrap_err();
        assert_eq!(refused.field_errors()[0].to_string(), format!("{name}: replaces_conversation"));
    }
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn a_word_in_the_place_of_a_key_is_no_secret() {
    let said = r#"{"error":{"message":"none of the models takes sk-call"}}"#;
    let server = TestServer::start(move |_| Reply::json(400, said)).await.unwrap();
    let told = async |key: &str| {
        let call = call().with_api_key(key);
        hear(chat(&server), call).await.unwrap_err().message().into_owned()
    };
    assert_eq!(told("none").await, "none of the models takes sk-call");
    assert_eq!(told("sk-call").await, "none of the models takes …");
}

/// Gateways get much information in headers named after them, and answers may repeat it.
#[tokio::test]
async fn only_a_key_is_taken_out_of_an_answer() {
    const WORD: &str = "gpt-4o-mini-2024-07-18";
    let piece = json!({"choices": [{"index": 0, "delta": {"content": format!("I am {WORD}.")}, "finish_reason": "stop"}]});
    let answer = format!("data: {piece}\n\ndata: [DONE]\n\n");
    let told = json!({"error": {"message": format!("no {WORD} here")}}).to_string();
    let server = TestServer::start(move |asked| match asked.header("x-refuse") {
        None => Reply::stream("text/event-stream", [answer.clone()]),
        Some(_) => Reply::json(400, told.clone()),
    });
    let server = server.await.unwrap();
    for (name, is_key) in [
        ("x-portkey-config", false),
        ("x-gateway-model", false),
        ("x-portkey-api-key", true),
        ("proxy-authorization", true),
    ] {
        let adapter =
            chat(&server).with_header(name, &format!("{{\"model\":\"{WORD}\"}}")).unwrap();
        let heard = format!("{:?}", hear(adapter.clone(), call()).await.unwrap());
        assert_eq!(heard.contains(WORD), !is_key, "{name}: {heard}");
        let refusing = adapter.with_header("x-refuse", "1").unwrap();
        let error = hear(refusing, call()).await.unwrap_err();
        assert_eq!(error.message(), "no … here", "{name}");
    }
}

#[tokio::test]
async fn a_server_of_ones_own_needs_no_key_unless_one_is_named() {
    let server = TestServer::start(|_| Reply::stream("text/event-stream", [ANSWER])).await.unwrap();
    let adapter = HttpAdapter::named("llamacpp").unwrap().with_base_url(server.url()).unwrap();
    hear(adapter.clone(), ModelCall::default()).await.unwrap();
    let named = Keys::new().with_environment(|_| None).with_variable("MY_KEY");
    let error = hear(adapter.with_keys(named), ModelCall::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::MissingKey));
    assert_eq!(server.received()[0].header("authorization"), None);
    assert_eq!(
        server.received()[0].body["model"],
        "m",
        "the adapter's name is not part of the model's"
    );
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let other = TestServer::start(|_| Reply::stream("text/event-stream", [ANSWER])).await.unwrap();
    let place = other.url().to_owned();
    let server = TestServer::start(move |_| Reply::json(307, "").with_header("location", &place))
        .await
        .unwrap();
    let error = hear(chat(&server), call()).await.unwrap_err();
    assert_eq!(error.metadata()["status"], 307);
    assert!(other.received().is_empty(), "the key went nowhere");
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = TestServer::start(|_| Reply::stream("text/event-stream", [ANSWER])).await.unwrap();
    let proxy = counting_proxy(server.url().trim_start_matches("http://").to_owned()).await;
    let adapter = HttpAdapter::named("vllm").unwrap().with_base_url(&proxy.0).unwrap();
    for _ in 0..5 {
        hear(adapter.clone(), ModelCall::default()).await.unwrap();
    }
    assert_eq!(*proxy.1.lock().unwrap(), 1);
}

#[tokio::test]
async fn an_answer_needs_no_more_of_its_body_than_the_end_mark() {
    let answer = Reply::stream("text/event-stream", [ANSWER]);
    for reply in [answer.clone().then_hang(), answer.then_break()] {
        let server = TestServer::start(move |_| reply.clone()).await.unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(5), hear(chat(&server), call()));
        let events = heard.await.expect("the end mark ends it").unwrap();
        assert!(matches!(events.last(), Some(Event::MessageCompleted { .. })));
    }
}

#[tokio::test]
async fn an_answer_that_fails_before_its_first_event_is_told_apart_from_a_refusal() {
    let failed = |reply: Reply| async move {
        let server = TestServer::start(move |_| reply.clone()).await.unwrap();
        hear(chat(&server), call()).await.unwrap_err()
    };
    for body in ["", "data: {\"choi", "data: {\"error\":{\"code\":529}}\n\n"] {
        let partial = failed(Reply::stream("text/event-stream", [body])).await;
        let partial = Response::deserialize(&partial.metadata()["partial"]).unwrap();
        assert_eq!(partial.text(), "", "{body}");
        assert_eq!(partial.finish_reason, Some(FinishReason::Error), "{body}");
    }
    let refused = failed(Reply::json(529, "{}")).await;
    assert!(!refused.metadata().contains_key("partial"), "{refused:?}");
}

#[tokio::test]
async fn what_a_prompt_that_is_blocked_cost_is_told() {
    let blocked = r#"{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":4,"totalTokenCount":4}}"#;
    let body = format!("data: {blocked}\n\n");
    let server = TestServer::start(move |_| Reply::stream("text/event-stream", [body.as_str()]))
        .await
        .unwrap();
    let gemini = HttpAdapter::named("gemini").unwrap().with_base_url(server.url()).unwrap();
    let error = hear(gemini, call()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::ContentFilter));
    let partial = Response::deserialize(&error.metadata()["partial"]).unwrap();
    assert_eq!(partial.usage.input_tokens, Some(4));
}

#[tokio::test]
async fn a_model_that_fails_before_its_first_word_is_replaced() {
    let start = r#"{"type":"message_start","message":{"id":"msg-1","model":"claude","usage":{"input_tokens":11}}}"#;
    let failure = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let busy = format!("data: {start}\n\ndata: {{\"type\":\"ping\"}}\n\ndata: {failure}\n\n");
    let busy = TestServer::start(move |_| Reply::stream("text/event-stream", [busy.as_str()]))
        .await
        .unwrap();
    let free = TestServer::start(|_| Reply::stream("text/event-stream", [ANSWER])).await.unwrap();
    let first = HttpAdapter::named("anthropic").unwrap().with_base_url(busy.url()).unwrap();
    let next = HttpAdapter::named("vllm").unwrap().with_base_url(free.url()).unwrap();

    let error = hear(first.clone(), call()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::Overloaded));
    let partial = Response::deserialize(&error.metadata()["partial"]).unwrap();
    assert_eq!((partial.id.as_deref(), partial.model.as_deref()), (Some("msg-1"), Some("claude")));
    assert_eq!(partial.usage.input_tokens, Some(11), "what it cost is known");

    let both = Arc::new(Fallback::new(first).or(next, "small"));
    let stream = both.open(Request::from("hi").with_model("claude"), call()).await.unwrap();
    let events: Vec<Event> = stream.map(Result::unwrap).collect().await;
    let names: Vec<&str> = events.iter().map(Event::type_name).collect();
    assert_eq!(names, ["message_started", "text_delta", "message_completed"]);
    assert_eq!((busy.received().len(), free.received().len()), (2, 1));
}

#[tokio::test]
async fn a_server_may_be_silent_for_five_minutes() {
    let keep_alive = ANSWER.split_inclusive("\n\n").next().unwrap().to_owned() + ": still here\n\n";
    let server = TestServer::start(move |_| {
        Reply::stream("text/event-stream", [keep_alive.as_str()]).then_hang()
    });
    let server = server.await.unwrap();
    let request = Request::from("hi").with_model("m");
    let mut stream = Arc::new(chat(&server)).open(request, call()).await.unwrap();
    for expected in ["message_started", "text_delta"] {
        assert_eq!(stream.next().await.unwrap().unwrap().type_name(), expected);
    }
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    let error = stream.next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::Timeout), "{error:?}");
    assert_eq!(began.elapsed().as_secs(), 300);
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn keep_alives_are_not_listened_to_for_ever() {
    let error = after_keep_alives(call()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::Timeout), "{error:?}");
    assert!(error.message().into_owned().contains("nothing but keep-alives for 1800 s"), "{error}");
    // A call that says how long the server may be silent is not held to that.
    let mut patient = call();
    patient.stream_timeout = Some(Duration::from_secs(7200));
    assert_eq!(after_keep_alives(patient).await.unwrap().type_name(), "message_started");
}

/// The first event of an answer that comes after 40 minutes of keep-alives.
async fn after_keep_alives(call: ModelCall) -> Result<Event> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut client = listener.accept().await.unwrap().0;
        let _asked = client.read(&mut [0; 4096]).await;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        let mut said = client.write_all(head.as_bytes()).await;
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            said = said.and(client.write_all(b": still here\n\n").await);
        }
        said.and(
            client.write_all(b"data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n").await,
        )
    });
    let adapter = HttpAdapter::named("openai-chat").unwrap().with_base_url(&url).unwrap();
    let request = Request::from("hi").with_model("m");
    let mut stream = Arc::new(adapter).open(request, call).await.unwrap();
    tokio::time::pause();
    let first = stream.next().await.unwrap();
    tokio::time::resume();
    first
}

#[tokio::test]
async fn a_server_that_answers_nothing_or_half_an_error_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let patience = || {
        let mut call = call();
        call.stream_timeout = Some(Duration::from_millis(200));
        call
    };
    let mute = HttpAdapter::named("openai-chat").unwrap().with_base_url(&url).unwrap();
    let error = hear(mute, patience()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::Timeout), "{error:?}");
    let server = TestServer::start(|_| Reply::json(500, "{\"error\":").then_hang()).await.unwrap();
    let adapter = chat(&server);
    let error = hear(adapter.clone(), patience()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::ProviderUnavailable), "{error:?}");
    // Nor does the limit of an attempt hide the status.
    let request = Request::from("hi").with_model("m");
    let (adapter, retry) = (Arc::new(adapter), Arc::new(RetryPolicy::never()));
    let limit = Duration::from_secs(4);
    let (mut silent, mut slow) = (call(), call());
    (silent.stream_timeout, slow.request_timeout) = (Some(limit), Some(limit));
    for limited in [silent, slow] {
        let (adapter, retry, world) = (adapter.clone(), retry.clone(), Arc::new(SystemWorld));
        let tried = open_model(adapter, request.clone(), limited, retry, world);
        let tried = tokio::time::timeout(limit, tried).await.unwrap();
        assert_eq!(tried.err().unwrap().metadata()["status"], 500);
    }
}

#[tokio::test]
async fn what_is_packed_is_named_and_not_told_as_text() {
    let failed = |status: u16| async move {
        let packed = Reply::json(status, "\u{1f}\u{8b}").with_header("content-encoding", "gzip");
        let server = TestServer::start(move |_| packed.clone()).await.unwrap();
        hear(chat(&server), call()).await.unwrap_err()
    };
    let refused = failed(401).await;
    assert_eq!(refused.kind(), ErrorKind::Adapter(AdapterReason::AuthenticationFailed));
    let told = refused.message().into_owned();
    assert!(told.starts_with("HTTP status 401, calling http://"), "{told}");
    assert!(told.ends_with("; its body is compressed (content-encoding: gzip)"), "{told}");
    let packed = failed(200).await;
    assert_eq!(packed.kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse));
    assert!(packed.to_string().contains("content-encoding: gzip"), "{packed}");
}

#[tokio::test]
async fn calls_go_through_a_proxy() {
    let proxy = TestServer::start(|_| Reply::stream("text/event-stream", [ANSWER])).await.unwrap();
    let http = Http::builder().proxy(proxy.url()).build().unwrap();
    let adapter =
        HttpAdapter::named("vllm").unwrap().with_base_url("http://models.invalid").unwrap();
    hear(adapter.with_http(http), ModelCall::default()).await.unwrap();
    let asked: Vec<String> =
        proxy.received().into_iter().map(|Received { path, .. }| path).collect();
    assert_eq!(asked, ["http://models.invalid/v1/chat/completions"]);
    assert!(Http::builder().proxy("no url").build().unwrap_err().is_validation());
}

#[tokio::test]
async fn a_proxy_gets_its_password_and_a_server_with_tls_a_tunnel() {
    const AUTH: &str = "Basic dXNlcjpAaG9tZQ==";
    let with_password = |url: &str| {
        let url = url.replacen("http://", "http://user:%40home@", 1);
        Http::builder().proxy(url)
    };
    let proxy = TestServer::start(|_| Reply::stream("text/event-stream", [ANSWER])).await.unwrap();
    let http = with_password(proxy.url()).build().unwrap();
    let adapter =
        HttpAdapter::named("vllm").unwrap().with_base_url("http://models.invalid").unwrap();
    hear(adapter.with_http(http), ModelCall::default()).await.unwrap();
    let sent = ("proxy-authorization".to_owned(), AUTH.to_owned());
    assert!(proxy.received()[0].headers.contains(&sent));

    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["models.invalid".to_owned()]).unwrap();
    let server = tls_server(cert.der().to_vec(), signing_key.serialize_der()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let http = with_password(&format!("http://{}", listener.local_addr().unwrap()));
    let http = http.root_certificates(cert.pem()).build().unwrap();
    let to = server.replacen("https://localhost", "127.0.0.1", 1);
    let tunnel = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let mut server = TcpStream::connect(to).await.unwrap();
        copy_bidirectional(&mut client, &mut server).await.ok();
        String::from_utf8(head).unwrap()
    });
    let adapter =
        HttpAdapter::named("vllm").unwrap().with_base_url("https://models.invalid").unwrap();
    let adapter = adapter.with_header("x-mine", "for the server alone").unwrap();
    hear(adapter.with_http(http), ModelCall::default()).await.unwrap();
    let head = tunnel.await.unwrap();
    assert!(head.starts_with("CONNECT models.invalid:443 HTTP/1.1\r\n"), "{head}");
    assert!(head.contains(AUTH) && !head.contains("x-mine"), "{head}");
}

#[tokio::test]
async fn tools_and_a_form_that_a_model_cannot_have_in_one_call_are_refused_before_it() {
    let schema = ResponseFormat::json_schema("x", json!({"type": "object"}));
    let both = Request::from("hi")
        .with_tools([ToolSpec::new("search", "finds", json!({"type": "object"}))])
        .with_response_format(schema);
    let open = async |name: &str, request: &Request| {
        let adapter =
            HttpAdapter::named(name).unwrap().with_base_url("http://127.0.0.1:1").unwrap();
        assert_eq!(adapter.needs_structured_finalize(request), request.tool_choice.is_none());
        Arc::new(adapter).open(request.clone(), call()).await.err().unwrap()
    };
    for (name, model) in [
        ("gemini", "gemini:gemini-2.5-flash"),
        ("anthropic", "claude-3-5-haiku-20241022"),
        ("ollama", "qwen3:4b"),
        ("groq", "openai/gpt-oss-120b"),
    ] {
        let request = both.clone().with_model(model);
        let error = open(name, &request).await;
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::UnsupportedFeature), "{name}");
        assert_eq!(error.metadata()["provider"], name);
    }
    for (name, model) in [("anthropic", "claude-3-5-haiku-20241022"), ("ollama", "qwen3:4b")] {
        let barred = both.clone().with_tool_choice(ToolChoice::None);
        let error = open(name, &barred.with_model(model)).await;
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError), "{name}: sent");
    }
}

#[tokio::test]
async fn certificates_of_ones_own_are_trusted_when_they_are_named() {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let url = tls_server(cert.der().to_vec(), signing_key.serialize_der()).await;
    let adapter = HttpAdapter::named("vllm").unwrap().with_base_url(&url).unwrap();
    let error = hear(adapter.clone(), ModelCall::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError));
    assert!(error.message().into_owned().contains("certificate"), "{error}");
    let http = Http::builder().root_certificates(cert.pem()).build().unwrap();
    let events = hear(adapter.with_http(http), ModelCall::default()).await.unwrap();
    assert!(matches!(events.last(), Some(Event::MessageCompleted { .. })));
    assert!(
        Http::builder().root_certificates("no certificate").build().unwrap_err().is_validation()
    );
}

#[tokio::test]
async fn a_server_is_trusted_if_the_authority_is_named_that_signed_its_certificate() {
    let authority = || {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (signer, other) = (authority(), authority());
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &signer).unwrap();
    let url = tls_server(leaf.der().to_vec(), key.serialize_der()).await;
    let heard = async |roots: String| {
        let http = Http::builder().root_certificates(roots).build().unwrap();
        let adapter = HttpAdapter::named("vllm").unwrap().with_base_url(&url).unwrap();
        hear(adapter.with_http(http), ModelCall::default()).await
    };
    let error = heard(other.pem()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError));
    assert!(error.message().into_owned().contains("certificate"), "{error}");
    for roots in [signer.pem(), other.pem() + &signer.pem()] {
        let events = heard(roots).await.unwrap();
        assert!(matches!(events.last(), Some(Event::MessageCompleted { .. })));
    }
}

/// Plays the same answer to everybody, over TLS.
async fn tls_server(certificate: Vec<u8>, key: Vec<u8>) -> String {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.into()], PrivateKeyDer::Pkcs8(key.into()))
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let Ok(mut connection) = acceptor.accept(connection).await else { continue };
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n",
                ANSWER.len()
            );
            if connection.read(&mut [0; 4096]).await.is_err() {
                continue;
            }
            connection.write_all((head + ANSWER).as_bytes()).await.ok();
            connection.flush().await.ok();
        }
    });
    url
}

/// Passes connections on, and counts them.
async fn counting_proxy(to: String) -> (String, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            *counted.lock().unwrap() += 1;
            let mut server = TcpStream::connect(&to).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await.ok() });
        }
    });
    (url, count)
}

fn chat(server: &TestServer) -> HttpAdapter {
    HttpAdapter::named("openai-chat").unwrap().with_base_url(server.url()).unwrap()
}

fn call() -> ModelCall {
    ModelCall::default().with_api_key("sk-call")
}

async fn hear(adapter: HttpAdapter, call: ModelCall) -> Result<Vec<Event>, Error> {
    let request = Request::from("hi").with_model(format!("{}:m", adapter.name()));
    let stream = Arc::new(adapter).open(request, call).await?;
    stream.collect::<Vec<_>>().await.into_iter().collect()
}
