//! The server's description and its metrics, read by parsers that others wrote (PyPI).

use std::{env, fs, process::Command};

use crate::{
    BUILD, MYNAH, finish,
    interop::{Peer, free_port, python},
    run, without_peers,
};

const AGENT: &str = r#"{"scripts": [[{"text": "Hello."}, {"finish": "stop"}]]}"#;

const CHECK: &str = "\
import json, sys, urllib.request
from openapi_spec_validator import validate
from prometheus_client.parser import text_string_to_metric_families

get = lambda path: urllib.request.urlopen(f'http://127.0.0.1:{sys.argv[1]}{path}').read().decode()
validate(json.loads(get('/v1/openapi.json')))
names = [family.name for family in text_string_to_metric_families(get('/metrics'))]
assert 'mynah_runs_live' in names, names
";

pub(crate) const INSTALL: &str = "pip install --quiet openapi-spec-validator prometheus-client";

/// Validates the OpenAPI document and parses the metrics of a server.
pub(crate) fn all() -> Result<(), String> {
    let Some(folder) = python("api", INSTALL) else { return without_peers() };
    run(BUILD)?;
    for (name, text) in [("check.py", CHECK), ("agent.json", AGENT)] {
        let file = folder.join(name);
        fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    }
    let program = env::current_dir().map_err(|e| e.to_string())?.join(MYNAH);
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let mut server = Command::new(program);
    let server =
        server.args(["serve", "agent.json", "--log", "sqlite:api.db", "--listen", &listen]);
    let _server = Peer::start(server, &folder, port)?;
    let mut check = Command::new(folder.join("bin/python"));
    let check = check.current_dir(&folder).args(["check.py", &port.to_string()]);
    finish(check, "the check of the server's description and metrics")
}
