//! Which server is called, through which proxy, and what errors report.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use mynah_adapters::{
    conformance::{Reply, TestServer},
    http::{Http, HttpAdapter, HttpEmbedder},
    keys::Keys,
};
use mynah_data::{AdapterReason, Error, ErrorKind, Event, Request};
use mynah_step::{Adapter, ModelCall, RetryPolicy};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

const ANSWER: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
const SECRET: &str = "s3cr3t-word";

/// As the servers' own tools do it.
#[tokio::test]
async fn the_environment_may_name_a_server_and_the_key_that_it_was_started_with() {
    let server =
        TestServer::start(|_| Reply::json(401, r#"{"error": "who is there?"}"#)).await.unwrap();
    let port = server.url().rsplit(':').next().unwrap().to_owned();
    let set = |variables: &[(&'static str, &str)]| {
        let variables: HashMap<_, _> =
            variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Keys::new().with_environment(move |name| variables.get(name).cloned())
    };
    let told = async |name: &str, variables: &[(&'static str, &str)]| {
        let adapter = HttpAdapter::named(name).unwrap().with_keys(set(variables));
        hear(adapter, ModelCall::default()).await.unwrap_err()
    };
    for host in [":P", "127.0.0.1:P", "http://0.0.0.0:P", "http://127.0.0.1:P", "127.0.0.1:P/api/"]
    {
        let host = host.replace('P', &port);
        let error = told("ollama", &[("OLLAMA_HOST", &host), ("OLLAMA_API_KEY", "k1")]).await;
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::AuthenticationFailed), "{host}");
        assert_eq!(error.message(), "who is there?");
    }
    let azure = [("AZURE_OPENAI_ENDPOINT", server.url()), ("AZURE_OPENAI_API_KEY", "k2")];
    told("azure", &azure).await;
    let asked = server.received();
    assert!(asked[..5].iter().all(|asked| asked.path == "/api/chat"), "{asked:?}");
    assert!(asked[..5].iter().all(|asked| asked.header("authorization") == Some("Bearer k1")));
    assert_eq!(asked[5].path, "/openai/v1/chat/completions");

    let url = |name: &str, variables: &[(&'static str, &str)]| {
        HttpAdapter::named(name).unwrap().with_keys(set(variables)).url("chat")
    };
    assert_eq!(url("ollama", &[("OLLAMA_HOST", "h")]).unwrap(), "http://h:11434/api/chat");
    assert_eq!(url("ollama", &[]).unwrap(), "http://localhost:11434/api/chat");
    let named = [("AZURE_OPENAI_ENDPOINT", "https://r.openai.azure.com")];
    assert_eq!(url("azure", &named).unwrap(), "https://r.openai.azure.com/openai/v1/chat");
    assert!(url("azure", &[]).unwrap_err().to_string().ends_with("or set AZURE_OPENAI_ENDPOINT"));

    let error = told("azure", &azure[1..]).await;
    assert!(error.message().into_owned().ends_with("or set AZURE_OPENAI_ENDPOINT"), "{error}");
    let error = told("azure", &[("AZURE_OPENAI_ENDPOINT", "r"), azure[1]]).await;
    assert!(
        error.message().into_owned().contains("AZURE_OPENAI_ENDPOINT: an address begins with"),
        "{error}"
    );
    let own = HttpAdapter::named("ollama").unwrap().with_base_url(server.url()).unwrap();
    let own = own.with_keys(set(&[("OLLAMA_HOST", "nowhere.invalid")]));
    let error = hear(own.clone(), ModelCall::default()).await.unwrap_err();
    assert_eq!(error.message(), "who is there?; no key was sent: set OLLAMA_API_KEY");
    let own = own.with_header("authorization", "Basic dXNlcjp3b3Jk").unwrap();
    let error = hear(own, ModelCall::default()).await.unwrap_err();
    assert_eq!(error.message(), "who is there?");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_named_and_nothing_else_of_its_address() {
    let server = nobody().await;
    let adapter = vllm(&format!("{server}/{SECRET}?api-key={SECRET}"));
    let error = hear(adapter.clone(), ModelCall::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError));
    assert_eq!(
        (&error.metadata()["server"], error.metadata().get("proxy")),
        (&server.as_str().into(), None)
    );
    assert_eq!(error.metadata()["connected"], false);
    let advice = "check that the server runs and that its address is right";
    let said = format!(", calling {server}; {advice}");
    assert!(error.message().into_owned().ends_with(&said), "{error}");
    let embedder = HttpEmbedder::new(adapter, "m").with_retry(RetryPolicy::never());
    let embedded = embedder.vectors(["a"]).await.unwrap_err();
    assert_eq!(embedded.metadata()["server"], server);
    assert_secret(&format!("{error} {error:?} {error:#?} {} {embedded:?}", error.to_value()));
}

#[tokio::test]
async fn a_failed_connection_has_the_error_of_the_system_among_its_sources() {
    use std::{error::Error as _, io};

    let error = hear(vllm(&nobody().await), ModelCall::default()).await.unwrap_err();
    let mut sources = std::iter::successors(error.source(), |&source| source.source());
    let found = sources.find_map(|source| source.downcast_ref::<io::Error>());
    assert_eq!(found.map(io::Error::kind), Some(io::ErrorKind::ConnectionRefused), "{error:#?}");
    assert!(error.is_unreachable());
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let adapter = vllm(&format!("http://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            asked(&mut client).await;
            answer(&mut client).await;
        }
    });
    for _ in 0..3 {
        hear(adapter.clone(), ModelCall::default()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_connection_that_is_not_used_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let adapter = vllm(&format!("http://{}", listener.local_addr().unwrap()));
    let closed = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        asked(&mut client).await;
        answer(&mut client).await;
        client.read(&mut [0; 1]).await.unwrap()
    });
    hear(adapter.clone(), ModelCall::default()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!closed.is_finished());
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(80)).await;
    assert!(!closed.is_finished());
    tokio::time::sleep(Duration::from_secs(30)).await;
    tokio::time::resume();
    assert_eq!(closed.await.unwrap(), 0);
    drop(adapter);
}

#[tokio::test]
async fn an_answer_that_never_pauses_leaves_others_their_turn() {
    let word = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"on and \"}}]}\n\n";
    let words = format!("{:x}\r\n{word}\r\n", word.len()).repeat(1_000);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let adapter = vllm(&format!("http://{}", listener.local_addr().unwrap()));
    let server = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        asked(&mut client).await;
        client.write_all(format!("{head}\r\n\r\n{words}").as_bytes()).await.unwrap();
        client
    });
    let request = Request::from("hi").with_model("m");
    let stream = Arc::new(adapter).open(request, ModelCall::default()).await.unwrap();
    let _open = server.await.unwrap();
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&turns);
    tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(stream.take(1_000).count().await, 1_000);
    let turns = turns.load(Ordering::Relaxed);
    assert!(turns >= 5, "{turns}");
}

/// Reads a request.
async fn asked(client: &mut TcpStream) {
    let mut read = Vec::new();
    while !read.ends_with(b"}") {
        client.read_buf(&mut read).await.unwrap();
    }
}

async fn answer(client: &mut TcpStream) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    let answer = format!("{head}content-length: {}\r\n\r\n{ANSWER}", ANSWER.len());
    client.write_all(answer.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_is_told_from_one_that_is_not_there() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        client.read_u8().await.unwrap();
        client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        copy_bidirectional(&mut client, &mut tokio::io::empty()).await.ok();
    });
    let error = hear(vllm(&url), ModelCall::default()).await.unwrap_err();
    let why = "network_error: the server does not speak TLS; is its address http://?";
    assert_eq!(error.message(), format!("adapter error: {why}, calling {url}"));
}

#[tokio::test]
async fn a_server_whose_answer_is_not_understood_to_its_end_is_named() {
    let server = TestServer::start(|_| Reply::stream("text/event-stream", [ANSWER])).await.unwrap();
    let other = HttpAdapter::named("anthropic").unwrap().with_base_url(server.url()).unwrap();
    let call = ModelCall::default().with_api_key("k");
    let error = hear(other, call).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError));
    assert_eq!(error.metadata()["server"], server.url());
}

#[tokio::test]
async fn a_server_that_is_silent_is_named() {
    let server = TestServer::start(|_| Reply::silence()).await.unwrap();
    let stream_timeout = Some(Duration::from_millis(100));
    let mut call = ModelCall::default();
    call.stream_timeout = stream_timeout;
    let error = hear(vllm(server.url()), call).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::Timeout));
    assert_eq!(error.metadata()["server"], server.url());
}

#[tokio::test]
async fn an_error_without_words_names_the_address_without_its_query() {
    let failed = async |status: u16, body: &'static str| {
        let server = TestServer::start(move |_| Reply::json(status, body)).await.unwrap();
        let adapter = vllm(&format!("{}/api?key={SECRET}", server.url()));
        let error = hear(adapter, ModelCall::default()).await.unwrap_err();
        assert_secret(&format!("{error} {error:?} {}", error.to_value()));
        (server.url().to_owned(), error)
    };
    for (status, body, said) in [
        (404, "<html>no</html>", "HTTP status 404"),
        (404, r#"{"detail": "Not Found"}"#, "Not Found"),
        (404, "404 page not found", "404 page not found"),
        (502, "", "HTTP status 502"),
    ] {
        let (server, error) = failed(status, body).await;
        let told = format!("{said}, calling {server}/api/v1/chat/completions");
        assert_eq!(
            (error.message().into_owned(), &error.metadata()["server"]),
            (told, &server.into())
        );
    }
    let (_, error) = failed(404, r#"{"error": {"message": "no model m"}}"#).await;
    assert_eq!(
        (error.message().into_owned().as_str(), error.metadata().get("server")),
        ("no model m", None)
    );
}

#[tokio::test]
async fn the_proxy_that_was_asked_is_named_without_its_password() {
    let proxy = nobody().await;
    let address = proxy.strip_prefix("http://").unwrap();
    let builder = Http::builder().proxy(format!("http://user:@{SECRET}@{address}"));
    let http = builder.clone().build().unwrap();
    let adapter = vllm("http://models.invalid").with_http(http.clone());
    let shown = format!("{builder:?} {http:?} {adapter:?}");
    let error = hear(adapter, ModelCall::default()).await.unwrap_err();
    assert_eq!(error.metadata()["server"], "http://models.invalid");
    assert_eq!(error.metadata()["proxy"], proxy);
    let told = format!(", calling http://models.invalid through the proxy {proxy}");
    assert!(error.message().contains(&told), "{error}");
    assert_secret(&format!("{shown} {error} {error:?} {}", error.to_value()));
}

#[tokio::test]
async fn calls_go_through_a_socks_proxy() {
    let server = TestServer::start(|_| Reply::stream("text/event-stream", [ANSWER])).await.unwrap();
    let proxy = socks(server.url().strip_prefix("http://").unwrap().to_owned()).await;
    let http = Http::builder().proxy(proxy).build().unwrap();
    hear(vllm("http://models.invalid").with_http(http), ModelCall::default()).await.unwrap();
    assert_eq!(server.received().len(), 1);
}

#[test]
fn a_proxy_that_is_none_is_refused_when_the_client_is_made() {
    for wrong in ["no url", "ht!tp://user:x@", "ftp://proxy:21", "http://", "", "http://p:99999"] {
        let error = Http::builder().proxy(wrong).build().unwrap_err();
        assert!(error.is_validation(), "{wrong}");
    }
    for right in ["proxy.example:3128", "user:x@proxy.example:3128", "socks5h://proxy.example:1080"]
    {
        assert!(Http::builder().proxy(right).build().is_ok(), "{right}");
    }
}

#[test]
fn a_key_in_the_query_of_an_address_is_not_shown() {
    let adapter = vllm(&format!("http://models.invalid/v1?api-key={SECRET}"));
    assert!(format!("{adapter:?}").contains("http://models.invalid/v1"));
    assert_secret(&format!("{adapter:?} {:?}", HttpEmbedder::new(adapter.clone(), "m")));
}

fn assert_secret(told: &str) {
    assert!(!told.contains(SECRET), "{told}");
}

/// An address without a server.
async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// A SOCKS5 proxy that always calls the same server.
async fn socks(server: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("socks5h://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut greeting = [0; 2];
        client.read_exact(&mut greeting).await.unwrap();
        client.read_exact(&mut vec![0; usize::from(greeting[1])]).await.unwrap();
        client.write_all(&[5, 0]).await.unwrap();
        // A name, and how long it is.
        let mut asked = [0; 5];
        client.read_exact(&mut asked).await.unwrap();
        assert_eq!(asked[3], 3, "the proxy looks the name up");
        client.read_exact(&mut vec![0; usize::from(asked[4])]).await.unwrap();
        assert_eq!(client.read_u16().await.unwrap(), 80, "the port of HTTP");
        client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
        let mut server = TcpStream::connect(server).await.unwrap();
        copy_bidirectional(&mut client, &mut server).await.ok();
    });
    url
}

fn vllm(base_url: &str) -> HttpAdapter {
    HttpAdapter::named("vllm").unwrap().with_base_url(base_url).unwrap()
}

async fn hear(adapter: HttpAdapter, call: ModelCall) -> Result<Vec<Event>, Error> {
    let request = Request::from("hi").with_model("m");
    let stream = Arc::new(adapter).open(request, call).await?;
    stream.collect::<Vec<_>>().await.into_iter().collect()
}
