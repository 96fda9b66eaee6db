//! MCP servers in agent files.

use std::{env, path::PathBuf, process::Command};

use mynah::{Approval, Engine, Options, Tool, log::MemoryLog, testing::Scripted};
use mynah_agent::{Agent, AgentFile, FileError, golden, testing};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// A server with two tools, one of which only reads. Returns its URL.
async fn served() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let tools = [
        Tool::new("weather", "The weather", json!({"type": "object"}))
            .idempotent(2)
            .handler(async |_, _| json!({"celsius": 21})),
        Tool::new("order", "Orders soup", json!({"type": "object"}))
            .handler(async |_, _| "ordered"),
    ];
    tokio::spawn(mynah_mcp::serve(tools).http(listener));
    url
}

/// The agent of a file with this table, whose model makes these calls.
async fn agent(table: &str, calls: &[(&str, Value)]) -> Result<Agent, FileError> {
    let turn = |(place, (name, arguments)): (usize, &(&str, Value))| {
        let call = json!({"id": format!("c{place}"), "name": name, "arguments": arguments});
        json!([{"tool_call": call}, {"finish": "tool_calls"}])
    };
    let mut script: Vec<Value> = calls.iter().enumerate().map(turn).collect();
    script.push(json!([{"text": "Done."}, {"finish": "stop"}]));
    let text = format!("model = \"x:y\"\n{table}");
    let file = AgentFile::parse("agent.toml", text).unwrap();
    file.build_on(Engine::new(Scripted::new(script).unwrap())).await
}

fn tools(agent: &Agent) -> Vec<(String, bool)> {
    let tools = agent.engine.resolve_tools(&Options::new());
    tools.iter().map(|tool| (tool.name().to_owned(), asks(tool))).collect()
}

fn asks(tool: &Tool) -> bool {
    tool.spec().approval == Approval::Ask
}

#[tokio::test]
async fn the_tools_of_a_server_are_the_agents_and_are_asked_for_unless_the_file_allows_them() {
    let url = served().await;
    let table = [
        ("", &[("soup_weather", true), ("soup_order", true)][..]),
        ("permission = 'allow'", &[("soup_weather", false), ("soup_order", false)]),
        ("trusted = true\nprefix = ''", &[("weather", true), ("order", true)]),
        ("include = ['order']", &[("soup_order", true)]),
        ("exclude = ['order']", &[("soup_weather", true)]),
        ("permission = 'deny'", &[]),
        ("[approvals]\nsoup_order = 'deny'\nsoup_weather = 'allow'", &[("soup_weather", false)]),
    ];
    for (keys, expected) in table {
        let agent = agent(&format!("[mcp.soup]\nurl = '{url}'\n{keys}"), &[]).await.unwrap();
        let expected: Vec<_> =
            expected.iter().map(|(name, asks)| ((*name).to_owned(), *asks)).collect();
        assert_eq!(tools(&agent), expected, "{keys}");
    }
}

#[tokio::test]
async fn a_call_of_a_servers_tool_waits_for_approval_and_then_runs() {
    let table = format!("[mcp.soup]\nurl = '{}'\n", served().await);
    let engine = agent(&table, &[("soup_order", json!({}))]).await.unwrap().engine;
    let log = MemoryLog::new();
    let waiting = engine.chat("Soup!").record(&log).await.unwrap();
    let run = waiting.run_id.clone().unwrap();
    let result = engine.resume(&log, run).approve("c0").await.unwrap();
    assert_eq!(result.text(), "Done.");
    let results: Vec<String> =
        result.thread.messages.iter().map(|message| message.text().into_owned()).collect();
    assert!(results.iter().any(|text| text.contains("ordered")), "{results:?}");
}

#[tokio::test]
async fn a_server_that_is_not_there_and_a_tool_that_it_does_not_have_are_errors_with_their_place() {
    let url = served().await;
    let table = [
        (
            format!("[mcp.soup]\nurl = '{url}'\ninclude = ['ordr']"),
            "agent.toml:4: mcp.soup.include: the server has no tool `ordr`; did you mean `order`?",
            false,
        ),
        (
            format!("[mcp.soup]\nurl = '{url}'\nexclude = ['soup_order']"),
            "agent.toml:4: mcp.soup.exclude: the server has no tool `soup_order`; known are weather, order",
            false,
        ),
        (
            "[mcp.soup]\ncommand = ['surely-no-such-command']".to_owned(),
            "agent.toml:2: mcp.soup: ",
            true,
        ),
        (
            format!("[mcp.soup]\nurl = '{url}'\n[approvals]\nsoup_ordr = 'ask'"),
            "agent.toml:5: approvals.soup_ordr: no tool is called `soup_ordr`; did you mean `soup_order`?",
            false,
        ),
    ];
    for (text, expected, is_unreachable) in table {
        let error = agent(&text, &[]).await.unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
        assert_eq!(error.is_unreachable, is_unreachable, "{error}");
    }
}

#[tokio::test]
async fn the_release_agent_reads_the_history_with_a_git_server_of_others() {
    // `cargo xtask test` installs the server and sets the variable.
    let Some(peers) = env::var_os("MYNAH_MCP_PEERS").map(PathBuf::from) else {
        println!("skipped: MYNAH_MCP_PEERS does not name a folder with mcp-server-git");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let name = ["-c", "user.name=A", "-c", "user.email=a@example.com"];
    for words in [&["init", "-q"][..], &["commit", "-q", "--allow-empty", "-m", "Hatch an egg"]] {
        let git = Command::new("git").args(name).args(words).current_dir(&folder).status();
        assert!(git.unwrap().success());
    }
    // The agent of the examples, two folders below the repository.
    let agents = folder.path().join("examples/agents");
    std::fs::create_dir_all(&agents).unwrap();
    let text = include_str!("../../../examples/agents/releases.toml");
    let python = format!("{:?}", peers.join("bin/python"));
    assert!(text.contains("\"python3\""));
    let text = text.replace("\"python3\"", &python);
    let file = AgentFile::parse(agents.join("releases.toml"), text).unwrap();
    let call = json!({"id": "c0", "name": "git_log", "arguments": {"repo_path": "../.."}});
    let script = [
        json!([{"tool_call": call}, {"finish": "tool_calls"}]),
        json!([{"text": "Done."}, {"finish": "stop"}]),
    ];
    let engine = Engine::new(Scripted::new(script).unwrap()).model(file.model());
    let agent = file.build_on(engine).await.unwrap();
    let expected = [("git_diff", false), ("git_log", false), ("git_show", false)];
    let mut offered = tools(&agent);
    offered.sort();
    assert_eq!(offered, expected.map(|(name, asks)| (name.to_owned(), asks)));
    let log = MemoryLog::new();
    let result = agent.engine.chat("What happened?").record(&log).await.unwrap();
    let goldens = folder.path().join("goldens");
    let run = result.run_id.as_ref().unwrap();
    golden::add(&log, run, &goldens, "history", &golden::Rules::default()).await.unwrap();
    testing::check_engine(&agent.engine, &goldens).await;
    let read = result.steps[0].tool_results[0].text().into_owned();
    assert!(read.contains("Hatch an egg"), "{read}");
}
