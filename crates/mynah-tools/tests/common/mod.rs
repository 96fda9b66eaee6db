//! Calls of tools, and a server that misbehaves on request.
#![allow(dead_code, clippy::expect_used, reason = "each test uses its part, and fails with it")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use mynah_data::{ToolCall, ToolOutcome};
use mynah_step::{HandlerExecutor, SystemWorld, Tool, ToolContext, ToolLimits, run_tool};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// The outcome of a call, as the loop runs it: with its arguments checked.
pub(crate) async fn outcome(tool: &Tool, arguments: Value) -> Result<ToolOutcome, String> {
    let call = ToolCall::from_value("c0", tool.name(), arguments);
    let context = ToolContext::new(call, Arc::new(SystemWorld));
    let limits = ToolLimits::new(Duration::from_secs(60));
    let settled = run_tool(Arc::new(HandlerExecutor), tool.clone(), context, limits).await;
    settled.outcome.map_err(|error| error.to_string())
}

/// The value of a call, or the error that the model reads.
pub(crate) async fn call(tool: &Tool, arguments: Value) -> Result<Value, String> {
    match outcome(tool, arguments).await? {
        ToolOutcome::Ok(value) => Ok(value),
        ToolOutcome::Error { error, .. } => Err(error.as_str().unwrap_or_default().to_owned()),
        other => Err(format!("{other:?}")),
    }
}

pub(crate) fn named(tools: &[Tool], name: &str) -> Tool {
    tools.iter().find(|tool| tool.name() == name).expect("a tool of this name").clone()
}

/// What a server answers.
pub(crate) enum Reply {
    /// This, and then the connection is closed.
    Bytes(Vec<u8>),
    /// The first part, and then the second for ever.
    Endless(Vec<u8>, Vec<u8>),
    /// The first part, and then a byte every 50 ms for ever.
    Drip(Vec<u8>),
    /// Nothing, with the connection open.
    Silence,
}

/// An answer with these headers and this body.
pub(crate) fn page(headers: &str, body: &str) -> Reply {
    let length = body.len();
    Reply::Bytes(
        format!("HTTP/1.1 200 OK\r\n{headers}content-length: {length}\r\n\r\n{body}").into(),
    )
}

pub(crate) fn redirect(to: &str) -> Reply {
    Reply::Bytes(
        format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n").into(),
    )
}

/// Starts a server on loopback that answers by the path of a request.
pub(crate) async fn serve(reply: impl Fn(&str) -> Reply + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let reply = Arc::new(reply);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, Arc::clone(&reply)));
        }
    });
    address
}

async fn answer(mut stream: TcpStream, reply: Arc<impl Fn(&str) -> Reply>) {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        // A client that speaks TLS.
        if head.first() == Some(&0x16) {
            return;
        }
        match stream.read_buf(&mut head).await {
            Ok(1..) => {}
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    match reply(path) {
        Reply::Bytes(bytes) => drop(stream.write_all(&bytes).await),
        Reply::Endless(first, then) => {
            let _ = stream.write_all(&first).await;
            while stream.write_all(&then).await.is_ok() {}
        }
        Reply::Drip(first) => {
            let _ = stream.write_all(&first).await;
            while stream.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Reply::Silence => tokio::time::sleep(Duration::from_secs(60)).await,
    }
    let _ = stream.shutdown().await;
}
