//! Tools from an MCP server. This program serves its own tools over HTTP, connects to itself as a client would, lets a person approve
//! a call, and replays the run when the server is gone.

use mynah::{
    log::MemoryLog,
    mcp::{self, Server},
    prelude::*,
    testing::{Script, Scripted},
};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The server. On standard input and output it would be `mcp::serve([weather]).stdio().await`.
    let schema =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let weather = Tool::new("weather", "The weather in a city", schema)
        .handler(async |arguments, _| json!({"city": arguments["city"], "celsius": 21}));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    let serving = tokio::spawn(mcp::serve([weather]).name("weather station").http(listener));

    // The client. A server that is a command is `Server::stdio(["python", "-m", "mcp_server_time"])`.
    let server = || Server::http(&url).name("station");
    let station = server().connect().await?;
    for tool in station.tools() {
        println!("{}: {}", tool.name(), tool.spec().description);
    }

    // The server is not trusted, so each call waits for a person.
    let script = || {
        Scripted::play([
            Script::new().tool_call("c0", "station_weather", json!({"city": "Oslo"})).call_tools(),
            Script::new().text("It is 21 degrees in Oslo.").stop(),
        ])
    };
    let engine = Engine::new(script()).tools(station.clone());
    let log = MemoryLog::new();
    let waiting = engine.chat("How warm is it in Oslo?").record(&log).await?;
    for call in waiting.manual_tool_calls() {
        println!("may it call {} with {}?", call.name, call.arguments);
    }
    let run = waiting.run_id.ok_or("the run is recorded")?;
    let done = engine.resume(&log, &*run).approve("c0").await?;
    println!("{}", done.into_text()?);

    // A stored listing is enough to replay the run.
    serving.abort();
    let stored = serde_json::to_string(station.listing())?;
    let gone = server().with_listing(serde_json::from_str(&stored)?)?;
    let replayed = Engine::new(script()).tools(gone).replay(&log, &*run).await?;
    println!("replayed without the server: {}", replayed.status);
    Ok(())
}
