//! A provider that Mynah does not know, over HTTP: two mappings make an adapter. The library
//! handles connections, keys, error classes, timeouts, limits and hashes, and its conformance suite
//! tests the mappings.

use std::{
    borrow::Cow,
    error::Error,
    io::{self, Read as _, Write as _},
    net::TcpListener,
    sync::Arc,
    thread,
};

use mynah::adapters::{
    draft::Draft,
    failure,
    format::{Decoder, Format},
    http::HttpAdapter,
    sse::{Frame, Framer, LineFramer},
};
use mynah::{Engine, FinishReason, ModelCall, Request, Result, Usage};
use serde_json::{Value, json};

/// A parrot that answers with a line of JSON for each thing it says.
pub struct Parrot;

impl Format for Parrot {
    fn path(&self, _: &Request) -> Cow<'static, str> {
        "squawk".into()
    }

    fn body(&self, request: &Request, _: &ModelCall) -> Result<Value> {
        let model = request.model.as_ref().map(|model| model.id.as_str());
        Ok(json!({"bird": model, "heard": request.messages, "tools": request.tools}))
    }

    fn framer(&self) -> Box<dyn Framer> {
        Box::new(LineFramer::new())
    }

    fn decoder(&self, _: &Request) -> Box<dyn Decoder> {
        Box::new(Squawk)
    }
}

struct Squawk;

impl Decoder for Squawk {
    fn frame(&mut self, frame: Frame<'_>, draft: &mut Draft) -> Result<()> {
        let said: Value = serde_json::from_str(frame.data).map_err(failure::malformed)?;
        let text = |name: &str| said[name].as_str().unwrap_or_default();
        match text("kind") {
            "egg" => draft.start(Some(text("id")), Some(text("bird"))),
            "word" => draft.text(&None, text("word")),
            "thought" => {
                draft.reasoning(&None, text("word"));
                draft.close_reasoning(&None, Some(text("seal").to_owned()), None);
            }
            "call" => {
                let call = draft.open_call();
                draft.call(call, text("id"), text("name"));
                draft.arguments(call, text("arguments"));
            }
            "trouble" => return Err(failure::in_stream(&said)),
            "end" => {
                draft.usage(Usage::new(said["seeds"].as_u64(), said["words"].as_u64()));
                let why = match text("why") {
                    "cage covered" => FinishReason::Length,
                    _ => FinishReason::Stop,
                };
                draft.finish(why, text("why"));
                draft.end();
            }
            _ => draft.raw(said),
        }
        Ok(())
    }

    fn whole(&mut self, _: &str, _: &mut Draft) -> Result<()> {
        Err(failure::malformed("a parrot never says everything at once"))
    }
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn Error>> {
    let adapter = HttpAdapter::new("parrot", Arc::new(Parrot)).with_base_url(&cage()?)?;
    println!(
        "{}",
        Engine::new(adapter).model("polly").generate("Who is a good bird?").await?.text()
    );
    Ok(())
}

/// A server with one answer.
fn cage() -> io::Result<String> {
    let answer = r#"{"kind": "egg", "id": "1", "bird": "polly"}
{"kind": "word", "word": "Polly "}
{"kind": "word", "word": "is."}
{"kind": "end", "seeds": 5, "words": 2}"#;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        let (mut connection, _) = listener.accept()?;
        connection.read_exact(&mut [0])?;
        let length = answer.len();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ncontent-length:";
        write!(connection, "{head} {length}\r\n\r\n{answer}")?;
        // A server that closes the connection before it has read the request may lose its answer.
        io::copy(&mut connection, &mut io::sink())
    });
    Ok(format!("http://{address}"))
}
