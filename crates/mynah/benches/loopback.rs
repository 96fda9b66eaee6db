//! What a whole `generate` costs over a real socket, beside a plain read of the same bytes in the same run.
//!
//! `cargo xtask bench loopback`. Ratios are what to look at; the times depend on the machine.

#![allow(clippy::expect_used, reason = "a bench that cannot run says why")]
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use mynah::{Engine, adapters::http::HttpAdapter};

const DELTAS: usize = 100_000;
const ROUNDS: usize = 7;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    rustls::crypto::ring::default_provider().install_default().expect("the first provider");
    let title = "100,000 deltas over loopback";
    println!("{title:<46} {:>12} {:>12} {:>8}  goal", "mynah", "reqwest", "ratio");
    compare("each sent by itself, as providers do", Sending::Each, "2x").await;
    compare("sent all at once", Sending::AtOnce, "").await;

    let long = engine(&serve(10 * DELTAS, Sending::AtOnce));
    // From here on the kernel measures a new peak.
    fs::write("/proc/self/clear_refs", "5").expect("a kernel that tells of memory");
    let before = peak_memory();
    generate(&long, 10 * DELTAS).await;
    let grown = peak_memory().saturating_sub(before);
    let text = (10 * DELTAS * WORD.len()) >> 10;
    println!("ten times as long: {grown} KiB more at the peak, for a text of {text} KiB");
}

async fn compare(name: &str, sending: Sending, goal: &str) {
    let url = serve(DELTAS, sending);
    let engine = engine(&url);
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let (mut ours, mut theirs) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        theirs = theirs.min(timed(read(&http, &url)).await);
        ours = ours.min(timed(generate(&engine, DELTAS)).await);
    }
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    let each = ours.saturating_sub(theirs).as_nanos() / DELTAS as u128;
    println!(
        "{name:<46} {ours:>12.1?} {theirs:>12.1?} {ratio:>7.2}x  {goal}  ({each} ns more for each delta)"
    );
}

const WORD: &str = " word";

async fn generate(engine: &Engine, deltas: usize) {
    let response = engine.generate("hi").await.expect("an answer");
    assert_eq!(response.text().len(), deltas * WORD.len());
}

async fn read(http: &reqwest::Client, url: &str) {
    let mut response = http.post(url).body("{}").send().await.expect("an answer");
    while let Some(bytes) = response.chunk().await.expect("bytes") {
        std::hint::black_box(bytes);
    }
}

fn engine(url: &str) -> Engine {
    let adapter = HttpAdapter::named("vllm").and_then(|adapter| adapter.with_base_url(url));
    Engine::new(adapter.expect("an adapter")).model("m")
}

/// How the server sends its answer.
#[derive(Clone, Copy)]
enum Sending {
    /// Each delta as a chunk, in a write of its own.
    Each,
    AtOnce,
}

const HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

const LAST: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

/// A server that answers everything with so many deltas of Chat Completions, on threads of its own.
fn serve(deltas: usize, sending: Sending) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let delta = chunk(&format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{WORD}\"}}}}]}}\n\n"
    ));
    let length = delta.len();
    let body: Arc<str> = (delta.repeat(deltas) + &chunk(LAST) + &chunk("")).into();
    let piece = match sending {
        Sending::Each => length,
        Sending::AtOnce => body.len(),
    };
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let body = Arc::clone(&body);
            thread::spawn(move || answer(connection, body.as_bytes(), piece));
        }
    });
    url
}

fn answer(mut connection: TcpStream, body: &[u8], piece: usize) {
    let mut request = [0; 4096];
    while let Ok(read @ 1..) = connection.read(&mut request) {
        // A request is JSON, and its last byte the last of its body.
        if request[..read].ends_with(b"}") {
            let mut sent = connection.write_all(HEAD.as_bytes());
            for piece in body.chunks(piece) {
                sent = sent.and_then(|()| connection.write_all(piece));
            }
            if sent.is_err() {
                return;
            }
        }
    }
}

async fn timed(work: impl Future<Output = ()>) -> Duration {
    let start = Instant::now();
    work.await;
    start.elapsed()
}

/// The most memory that this process had, in KiB.
fn peak_memory() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}
