//! `fetch`, in normal use.

use std::{
    future::{Ready, ready},
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use mynah_tools::fetch;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivateKeyDer},
};

use crate::common::{Reply, call, page, redirect, serve};

type Answer = Ready<io::Result<Vec<IpAddr>>>;

fn always(address: &str) -> impl Fn(String) -> Answer + use<> {
    let address: IpAddr = address.parse().unwrap();
    move |_| ready(Ok(vec![address]))
}

#[tokio::test]
async fn a_page_is_fetched_through_redirects_and_becomes_text() {
    let server = serve(|path| match path {
        "/" => redirect("/a?b=c"),
        "/a?b=c" => redirect("page#here"),
        _ => page(
            "content-type: text/html; charset=iso-8859-1\r\n",
            "<title>T</title><p>Hello <b>you</b><script>x</script>",
        ),
    })
    .await;
    let tool = fetch().allow_address(server).tool().unwrap();
    let fetched = call(&tool, json!({"url": format!("http://{server}/")})).await.unwrap();
    assert_eq!(fetched["text"], "Hello you");
    assert_eq!(fetched["title"], "T");
    assert_eq!(fetched["url"], format!("http://{server}/page#here"));
    assert_eq!(fetched.get("truncated"), None);
}

#[tokio::test]
async fn text_in_the_encoding_that_the_server_names_is_read() {
    let server = serve(|_| {
        let mut reply =
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=\"ISO-8859-1\"\r\n\r\n".to_vec();
        reply.extend(b"caf\xe9");
        Reply::Bytes(reply)
    })
    .await;
    let tool = fetch().allow_address(server).tool().unwrap();
    let fetched = call(&tool, json!({"url": format!("http://{server}/")})).await.unwrap();
    assert_eq!(fetched["text"], "café");
}

#[tokio::test]
async fn a_long_text_is_truncated_and_can_be_read_on_to_its_end() {
    let server = serve(|_| page("content-type: application/json\r\n", &"äb".repeat(100))).await;
    let tool = fetch().allow_address(server).max_text(100).tool().unwrap();
    let (mut whole, mut offset) = (String::new(), 0);
    loop {
        let arguments = json!({"url": format!("http://{server}/"), "offset": offset});
        let fetched = call(&tool, arguments).await.unwrap();
        let text = fetched["text"].as_str().unwrap();
        assert!(text.len() <= 100);
        (whole, offset) = (whole + text, offset + text.len());
        match fetched["truncated"].as_str() {
            Some(told) => {
                assert!(told.ends_with(&format!("read on with offset {offset}")), "{told}")
            }
            None => break,
        }
    }
    assert_eq!(whole, "äb".repeat(100));
}

#[tokio::test]
async fn a_failure_that_may_pass_is_attempted_twice() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let server = serve(move |_| match counted.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::Bytes(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n".to_vec()),
        _ => page("content-type: text/plain\r\n", "there"),
    })
    .await;
    let tool = fetch().allow_address(server).tool().unwrap();
    let fetched = call(&tool, json!({"url": format!("http://{server}/")})).await.unwrap();
    assert_eq!(fetched["text"], "there");
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn the_system_resolver_is_asked_by_default_and_its_answer_is_checked() {
    let error = call(&fetch().tool().unwrap(), json!({"url": "http://localhost/"})).await;
    assert!(error.unwrap_err().contains("loopback address"));
}

#[tokio::test]
async fn private_addresses_can_be_allowed_as_a_whole_on_the_ports_that_are_allowed() {
    let server = serve(|_| page("content-type: text/plain\r\n", "inside")).await;
    let arguments = json!({"url": format!("http://intranet.test:{}/", server.port())});
    let private = fetch().allow_private(true).lookup(always("127.0.0.1"));
    let refused = call(&private.clone().tool().unwrap(), arguments.clone()).await;
    assert!(refused.unwrap_err().contains("port"));
    let tool = private.ports([server.port()]).tool().unwrap();
    assert_eq!(call(&tool, arguments).await.unwrap()["text"], "inside");
}

/// A server with a certificate of its own making, for this name.
async fn serve_tls(name: &str) -> (SocketAddr, String) {
    let certified = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.read(&mut [0; 4096]).await;
            let reply =
                b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 6\r\n\r\nsecret";
            let _ = stream.write_all(reply).await;
            let _ = stream.shutdown().await;
        }
    });
    (address, certified.cert.pem())
}

#[tokio::test]
async fn https_checks_the_name_of_the_url_and_connects_to_the_checked_address() {
    let (server, certificate) = serve_tls("site.test").await;
    let settings = fetch().allow_address(server).lookup(always("127.0.0.1"));
    let url = |name: &str| json!({"url": format!("https://{name}:{}/", server.port())});

    let trusting = settings.clone().root_certificates(&certificate).tool().unwrap();
    assert_eq!(call(&trusting, url("site.test")).await.unwrap()["text"], "secret");
    let other = call(&trusting, url("other.test")).await.unwrap_err();
    assert!(other.contains("certificate"), "{other}");

    let unknown = call(&settings.tool().unwrap(), url("site.test")).await.unwrap_err();
    assert!(unknown.contains("certificate"), "{unknown}");
}

#[tokio::test]
async fn certificates_that_are_none_are_refused() {
    assert!(fetch().root_certificates("nothing").tool().is_err());
}

/// Runs only inside of the next test, with a proxy in its environment.
#[tokio::test]
async fn inner_fetch_without_a_proxy() {
    let server = serve(|_| page("content-type: text/plain\r\n", "direct")).await;
    let tool = fetch().allow_address(server).lookup(always("127.0.0.1")).tool().unwrap();
    let url = format!("http://site.test:{}/", server.port());
    assert_eq!(call(&tool, json!({"url": url})).await.unwrap()["text"], "direct");
}

#[test]
fn proxies_of_the_environment_are_not_used() {
    let inner = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fetch::inner_fetch_without_a_proxy"])
        .envs([("http_proxy", "http://127.0.0.1:9"), ("HTTP_PROXY", "http://127.0.0.1:9")])
        .envs([("ALL_PROXY", "http://127.0.0.1:9"), ("all_proxy", "http://127.0.0.1:9")])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&inner.stdout);
    assert!(inner.status.success() && told.contains("1 passed"), "{told}");
}

#[test]
fn a_fetch_may_be_repeated_and_a_replay_does_not_contact_the_server() {
    let tool = fetch().tool().unwrap();
    assert!(tool.spec().idempotent && tool.is_recorded());
    assert_eq!(tool.schema_error(), None);
}
