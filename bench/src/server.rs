//! The model: it answers requests in the format of OpenAI's chat completions, from memory.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Result,
    work::{DELTAS, TOOL_CALLS, WORD, WORDS, Work},
};

/// Prints its port, and answers until it is killed.
pub fn serve() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    let answers = Arc::new(Answers::new());
    for connection in listener.incoming() {
        let (connection, answers) = (connection?, Arc::clone(&answers));
        thread::spawn(move || {
            // A client that ends closes its connections.
            let _ = converse(connection, &answers);
        });
    }
    Ok(())
}

/// Whole responses, as they are sent.
struct Answers {
    /// One for each number of tools that have run.
    tools: Vec<Vec<u8>>,
    deltas: Vec<u8>,
}

impl Answers {
    fn new() -> Self {
        let mut tools: Vec<_> = (0..TOOL_CALLS).map(call).collect();
        tools.push(text(WORDS));
        Self { tools, deltas: text(DELTAS) }
    }
}

#[derive(Deserialize)]
struct Request<'a> {
    model: &'a str,
    #[serde(borrow)]
    messages: Vec<Message<'a>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    role: &'a str,
}

fn converse(mut connection: TcpStream, answers: &Answers) -> Result<()> {
    connection.set_nodelay(true)?;
    let mut requests = BufReader::with_capacity(1 << 16, connection.try_clone()?);
    let mut body = Vec::new();
    while read_body(&mut requests, &mut body)? {
        let request: Request<'_> = serde_json::from_slice(&body)?;
        let answer = match request.model.parse()? {
            Work::Deltas => &answers.deltas,
            Work::OneByOne | Work::AtOnce => {
                let ran = request.messages.iter().filter(|message| message.role == "tool").count();
                &answers.tools[ran]
            }
        };
        connection.write_all(answer)?;
    }
    Ok(())
}

/// Reads the body of the next request; false if there is none.
fn read_body(requests: &mut BufReader<TcpStream>, body: &mut Vec<u8>) -> Result<bool> {
    let (mut line, mut length) = (String::new(), 0);
    while {
        line.clear();
        requests.read_line(&mut line)?
    } > 2
    {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    body.resize(length, 0);
    requests.read_exact(body)?;
    Ok(!line.is_empty())
}

/// An answer that calls the tool, in pieces as models write them.
fn call(item: usize) -> Vec<u8> {
    let name = json!({"name": "price", "arguments": ""});
    let first =
        json!({"index": 0, "id": format!("call_{item}"), "type": "function", "function": name});
    let piece = |text: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]});
    response(&[
        chunk(json!({"role": "assistant", "content": null, "tool_calls": [first]}), None),
        chunk(piece("{\"item\":"), None),
        chunk(piece(&format!("{item}}}")), None),
        chunk(json!({}), Some("tool_calls")),
    ])
}

/// An answer of this many words, each a piece.
fn text(words: usize) -> Vec<u8> {
    let mut chunks = vec![chunk(json!({"role": "assistant", "content": ""}), None)];
    chunks.extend(std::iter::repeat_n(chunk(json!({"content": WORD}), None), words));
    chunks.push(chunk(json!({}), Some("stop")));
    response(&chunks)
}

fn chunk(delta: Value, finish: Option<&str>) -> Value {
    let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish});
    json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})
}

/// Server-sent events, each in a chunk of HTTP.
fn response(chunks: &[Value]) -> Vec<u8> {
    let mut usage = chunk(json!({}), None);
    usage["choices"] = json!([]);
    usage["usage"] = json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15});
    let events = chunks.iter().chain([&usage]).map(Value::to_string);
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut sent = head.to_owned();
    for event in events.chain(["[DONE]".to_owned()]) {
        let event = format!("data: {event}\n\n");
        sent += &format!("{:x}\r\n{event}\r\n", event.len());
    }
    (sent + "0\r\n\r\n").into_bytes()
}
