//! A scripted server.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::{Arc, Condvar, Mutex},
    thread,
};

use serde_json::{Value, json};

use super::{Ran, feed, mynah};

/// An answer without its end.
pub(crate) const PIECES: &str = concat!(
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: req_1\r\nconnection: close\r\n\r\n",
    r#"data: {"id":"c1","model":"m-1","choices":[{"index":0,"delta":{"content":"Hel"}}]}"#,
    "\n\n",
    r#"data: {"id":"c1","model":"m-1","choices":[{"index":0,"delta":{"content":"lo"}}]}"#,
    "\n\n",
);

/// The end of that answer.
pub(crate) const END: &str = concat!(
    r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
    "\n\ndata: [DONE]\n\n",
);

/// An answer that says this, and why it ends.
pub(crate) fn answer(text: &str, finish: &str) -> String {
    let choice = json!({"index": 0, "delta": {"content": text}, "finish_reason": finish});
    let chunk = json!({"id": "c1", "model": "m-1", "choices": [choice]});
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: {chunk}\n\ndata: [DONE]\n\n"
    )
}

/// The head of a request, and its JSON.
type Request = (String, Value);

/// A server that gives these answers, one a connection, and remembers what it was asked. An empty answer never comes.
pub(crate) struct Server {
    pub(crate) url: String,
    heard: Arc<(Mutex<Vec<Request>>, Condvar)>,
}

impl Server {
    pub(crate) fn new(answers: impl IntoIterator<Item = String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let heard = Arc::<(Mutex<Vec<_>>, Condvar)>::default();
        let answers: Vec<String> = answers.into_iter().collect();
        let told = Arc::clone(&heard);
        thread::spawn(move || {
            let mut silent = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                told.0.lock().unwrap().push(read_request(&stream));
                told.1.notify_all();
                // A client that has seen enough may be gone.
                let _ = stream.write_all(answer.as_bytes());
                silent.extend(answer.is_empty().then_some(stream));
            }
            if !silent.is_empty() {
                thread::park();
            }
        });
        Self { url, heard }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = mynah(["generate", "-m", "openai-chat:m", "--base-url", &self.url]);
        command.env("OPENAI_API_KEY", "sk-test").args(arguments);
        command
    }

    pub(crate) fn generate(&self, arguments: &[&str]) -> Ran {
        feed(self.command(arguments), b"")
    }

    pub(crate) fn heard(&self) -> Vec<Request> {
        self.heard.0.lock().unwrap().clone()
    }

    /// Waits until it was asked something.
    pub(crate) fn listen(&self) {
        let (heard, changed) = &*self.heard;
        drop(changed.wait_while(heard.lock().unwrap(), |heard| heard.is_empty()).unwrap());
    }
}

fn read_request(stream: &TcpStream) -> Request {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "the request broke off: {head}");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    (head, serde_json::from_slice(&body).unwrap())
}
