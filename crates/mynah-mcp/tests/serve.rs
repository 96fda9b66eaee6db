//! Mynah's tools as a server, called by Mynah's client and by hand.

use std::time::Duration;

use mynah_data::{Image, Metadata, Part, ToolOutcome};
use mynah_mcp::{Approval, Connection, Protocol, Server, serve};
use mynah_step::{Tool, ToolProgress};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::common::{asked, call, failed, ok, proceed};

fn tools() -> Vec<Tool> {
    let city =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    vec![
        Tool::new("weather", "The weather", city)
            .idempotent(2)
            .handler(async |arguments, _| json!({"city": arguments["city"], "celsius": 21})),
        Tool::new("photo", "A photo", json!({}))
            .handler(async |_, _| vec![Part::image(Image::from_base64("aGk=", "image/png"))]),
        Tool::new("fails", "Fails", json!({})).handler(async |_, _| ToolOutcome::error("no stock")),
        Tool::new("panics", "Panics", json!({}))
            .handler(async |_, _| -> ToolOutcome { panic!("oh") }),
        Tool::new("asks", "Asks", json!({})).handler(async |_, _| ToolOutcome::ask("Which one?")),
        Tool::new("picks", "Asks with choices", json!({})).handler(async |_, _| {
            let choices = Metadata::from_iter([("choices".to_owned(), json!(["red", "blue"]))]);
            ToolOutcome::ask_with("Which colour?", choices)
        }),
        Tool::new("books", "Asks and continues", json!({})).handler(
            async |_, context| match context.continuation() {
                None => {
                    ToolOutcome::ask_and_continue("Seat?", Metadata::new(), json!({"flight": 7}))
                }
                Some(past) => json!({"flight": past.state["flight"], "seat": past.answer}).into(),
            },
        ),
        Tool::new("waits", "Is run again a little later", json!({})).handler(async |_, context| {
            match context.continuation().map(|past| &past.state) {
                None => ToolOutcome::later_with(Duration::from_millis(20), json!(1)),
                Some(past) => json!({"continued": past}).into(),
            }
        }),
        Tool::new("slow", "Reports", json!({})).handler(async |_, context| {
            for step in 0..4 {
                context.progress(ToolProgress::new(f64::from(step)).total(4.0));
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
            "done"
        }),
    ]
}

/// The address of a running server.
async fn served() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    tokio::spawn(serve(tools()).name("shop").http(listener));
    url
}

async fn connected(url: &str, protocol: Protocol) -> Connection {
    let server = Server::http(url).protocol(protocol).approval(Approval::Never).trusted(true);
    server.timeout(Duration::from_secs(2)).connect().await.unwrap()
}

#[tokio::test]
async fn served_tools_work_in_both_eras() {
    let url = served().await;
    for protocol in [Protocol::Stateless, Protocol::Stateful] {
        let tools = connected(&url, protocol).await.tools();
        let tool = |name: &str| tools.iter().find(|tool| tool.name() == name).unwrap();
        assert!(tool("weather").spec().idempotent);
        let outcome = call(tool("weather"), json!({"city": "Oslo"})).await;
        assert_eq!(outcome, ToolOutcome::Ok(json!({"city": "Oslo", "celsius": 21})));
        let image = vec![Part::image(Image::from_base64("aGk=", "image/png"))];
        assert_eq!(call(tool("photo"), json!({})).await, ToolOutcome::Parts(image));
        assert_eq!(call(tool("fails"), json!({})).await, ToolOutcome::error("no stock"));
        let ToolOutcome::Error { error, .. } = call(tool("panics"), json!({})).await else {
            panic!("{protocol:?}")
        };
        assert!(error.as_str().unwrap().contains("oh"), "{error}");
        assert_eq!(
            ok(call(tool("slow"), json!({})).await),
            "done",
            "progress puts the timeout off"
        );

        let waited = call(tool("waits"), json!({})).await;
        assert_eq!(waited, ToolOutcome::Ok(json!({"continued": 1})), "{protocol:?}");

        let (question, answer) = asked(call(tool("asks"), json!({})).await, "the red one");
        assert_eq!(question, "Which one?");
        assert_eq!(ok(proceed(tool("asks"), json!({}), Some(answer)).await), "the red one");
        let ToolOutcome::AskUser { opts, .. } = call(tool("picks"), json!({})).await else {
            panic!("{protocol:?}")
        };
        let form = &opts["schema"]["properties"]["answer"];
        assert_eq!(*form, json!({"type": "string", "enum": ["red", "blue"]}), "{protocol:?}");
        let (_, answer) = asked(call(tool("picks"), json!({})).await, "green");
        let (question, answer) =
            asked(proceed(tool("picks"), json!({}), Some(answer)).await, "red");
        assert!(question.starts_with("Which colour?\n(/answer: "), "{question}");
        assert_eq!(ok(proceed(tool("picks"), json!({}), Some(answer)).await), "red");
        let (_, answer) = asked(call(tool("books"), json!({})).await, "12A");
        let booked = proceed(tool("books"), json!({}), Some(answer)).await;
        assert_eq!(booked, ToolOutcome::Ok(json!({"flight": 7, "seat": "12A"})), "{protocol:?}");
    }
}

/// A question over HTTP arrives on the stream of its call.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_side_by_side_ask_in_both_eras() {
    let url = served().await;
    for protocol in [Protocol::Stateless, Protocol::Stateful] {
        let tools = connected(&url, protocol).await.tools();
        let tool = |name: &str| tools.iter().find(|tool| tool.name() == name).unwrap();
        let (asks, books) = (tool("asks"), tool("books"));
        let both = tokio::join!(call(asks, json!({})), call(books, json!({})));
        let (question, red) = asked(both.0, "the red one");
        assert_eq!(question, "Which one?", "{protocol:?}");
        let (question, seat) = asked(both.1, "12A");
        assert_eq!(question, "Seat?", "{protocol:?}");
        let (red, seat) = tokio::join!(
            proceed(asks, json!({}), Some(red)),
            proceed(books, json!({}), Some(seat))
        );
        assert_eq!(ok(red), "the red one");
        assert_eq!(seat, ToolOutcome::Ok(json!({"flight": 7, "seat": "12A"})));
    }
}

/// The status and the body of a request by hand.
async fn post(url: &str, headers: &[(&str, &str)], name: &str, arguments: Value) -> (u16, String) {
    let authority = url.trim_start_matches("http://").trim_end_matches("/mcp");
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"name": name, "arguments": arguments, "_meta": meta});
    let body =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let mut request = format!(
        "POST /mcp HTTP/1.1\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n\
         mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: {name}\r\nconnection: close\r\n\
         content-length: {}\r\n",
        body.len()
    );
    if !headers.iter().any(|(name, _)| *name == "host") {
        request += &format!("host: {authority}\r\n");
    }
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    let mut stream = TcpStream::connect(authority).await.unwrap();
    stream.write_all(format!("{request}\r\n{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, answer)
}

#[tokio::test]
async fn requests_for_other_hosts_and_of_foreign_pages_are_refused() {
    let url = served().await;
    let status = async |headers: &[(&str, &str)]| post(&url, headers, "fails", json!({})).await.0;
    assert_eq!(status(&[]).await, 200);
    assert_eq!(status(&[("origin", "http://localhost:8080")]).await, 200);
    assert_eq!(status(&[("origin", "http://evil.example")]).await, 403);
    assert_eq!(status(&[("origin", "null")]).await, 403);
    assert_eq!(status(&[("host", "evil.example")]).await, 403);
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_an_error_of_the_tool_and_an_unknown_tool_is_not() {
    let url = served().await;
    let (status, answer) = post(&url, &[], "weather", json!({"city": 7})).await;
    assert_eq!(status, 200);
    assert!(answer.contains(r#""isError":true"#) && answer.contains("/city"), "{answer}");
    let (_, answer) = post(&url, &[], "nothing", json!({})).await;
    assert!(answer.contains("-32602") && answer.contains("there are weather"), "{answer}");
    // A client that cannot ask a person gets an error that names the missing capability.
    let (status, answer) = post(&url, &[], "asks", json!({})).await;
    assert_eq!(status, 400);
    assert!(answer.contains("-32021") && answer.contains("elicitation"), "{answer}");
}

#[tokio::test]
async fn a_state_that_was_changed_on_its_way_is_refused() {
    let url = served().await;
    let tools = connected(&url, Protocol::Stateless).await.tools();
    let books = tools.iter().find(|tool| tool.name() == "books").unwrap();
    let (_, mut answer) = asked(call(books, json!({})).await, "12A");
    let state = answer.state["request_state"].as_str().unwrap();
    let changed: String = state.chars().rev().collect();
    answer.state["request_state"] = json!(changed);
    let (kind, message) = failed(proceed(books, json!({}), Some(answer)).await);
    assert_eq!(kind, "refused", "{message}");
}
