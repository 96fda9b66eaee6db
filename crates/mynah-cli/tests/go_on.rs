//! A run of a real model is resumed from the command line.

use std::sync::Arc;

use mynah::{Engine, Tool, adapters::http::HttpAdapter, log::SqliteLog};
use serde_json::json;

use crate::common::{
    self, Ran, Store, feed, lines, mynah,
    server::{END, PIECES, Server, answer},
    text,
};

#[cfg(unix)]
#[test]
fn a_call_that_is_interrupted_says_how_it_goes_on_and_does() {
    let store = Store::new();
    let url = store.url();
    // The first answer never comes.
    let server = Server::new([String::new(), format!("{PIECES}{END}")]);
    let tools = store.file("tools.json", r#"[{"name": "look", "schema": {"type": "object"}}]"#);
    let asked = ["hi", "--tools", &tools, "--retries", "0", "--timeout", "60", "--log", &url];
    let mut command = server.command(&asked);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    server.listen();
    let (code, said) = common::interrupt(child);
    assert_eq!(code, Some(130), "{said}");
    let run = text(&store.json(&["runs"])[0], "run_id");
    let how = format!("mynah resume {run} --base-url {} --log {url}", server.url);
    assert_eq!(said, format!("mynah: interrupted; run {run} can be resumed:\n  {how}\n"));

    let mut again = mynah(how.split(' ').skip(1));
    // A model of the environment is not this run's.
    again.env("OPENAI_API_KEY", "sk-test").env("MYNAH_MODEL", "anthropic:x");
    let resumed = feed(again, b"");
    assert_eq!((resumed.code, &*resumed.stdout, &*resumed.stderr), (Some(0), "Hello\n", ""));
    let heard = server.heard();
    assert_eq!(heard[0].1, heard[1].1, "the same is asked again");
    for verb in ["verify", "replay"] {
        assert_eq!(store.run(&[verb, &run]).code, Some(0));
    }
}

#[cfg(unix)]
#[test]
fn a_scripted_call_goes_on_with_its_file() {
    let store = Store::new();
    let script = r#"{"scripts": [[{"text": "Well,"}, {"delay_ms": 60000}, {"finish": "stop"}]]}"#;
    let (file, url) = (store.file("slow.json", script), store.url());
    let model = format!("scripted:{file}");
    let mut command = mynah(["generate", "-m", &model, "hi", "--log", &url]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 5]).unwrap();
    let (code, said) = common::interrupt(child);
    let run = text(&store.json(&["runs"])[0], "run_id");
    let how = format!("mynah resume {run} --agent {file} --log {url}");
    assert_eq!(
        (code, said),
        (Some(130), format!("mynah: interrupted; run {run} can be resumed:\n  {how}\n"))
    );
}

#[test]
fn a_branch_goes_on_with_the_model_that_answered_or_with_another() {
    let store = Store::new();
    let server = Server::new(["hi", "one", "two"].map(|text| answer(text, "stop")));
    let param = ["hi", "--param", "temperature=0.5", "--log", &store.url()];
    assert_eq!(server.generate(&param).code, Some(0));
    let branch = || {
        let told = store.run(&["fork", "last", "--at", "1"]).stdout;
        let (fork, _) = told.split_once(' ').unwrap();
        let (url, log) = (&server.url, store.url());
        let go_on = format!("\nresume it with: mynah resume {fork} --base-url {url} --log {log}\n");
        assert!(told.ends_with(&go_on), "{told}");
        fork.to_owned()
    };
    let fork = branch();
    let keyless = store.run(&["resume", &fork, "--base-url", "http://192.0.2.1"]);
    assert_eq!(keyless.code, Some(2));
    assert!(keyless.stderr.contains("set OPENAI_API_KEY"), "{}", keyless.stderr);
    let run = store.json(&["show", &fork])[0]["run"].clone();
    assert_eq!(
        (&run["status"], &run["records"]),
        (&json!("running"), &json!(1)),
        "it is as it was"
    );
    assert_eq!(go_on(&store, &server, &fork, "sk-test", &[]).stdout, "one\n");

    let fork = branch();
    let other = ["-m", "openai-chat:other"];
    let refused = go_on(&store, &server, &fork, "sk-test", &other);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("pass --allow-changed-agent"));
    let allowed = [&other[..], &["--allow-changed-agent", "--retries", "0", "--json"]].concat();
    let told = lines(&go_on(&store, &server, &fork, "sk-test", &allowed));
    assert_eq!(told.last().unwrap()["ok"]["output_text"], "two");
    let heard = server.heard().into_iter().map(|(_, body)| body);
    let asked: Vec<_> =
        heard.map(|body| (body["model"].clone(), body["temperature"].clone())).collect();
    assert_eq!(asked, [("m", 0.5), ("m", 0.5), ("other", 0.5)].map(|(m, t)| (json!(m), json!(t))));
    assert_eq!(store.run(&["verify"]).code, Some(0));
}

#[test]
fn a_run_is_not_sent_to_another_server_unless_that_is_said() {
    let store = Store::new();
    let (log, server) = (store.url(), Server::new(["hi", "one"].map(|text| answer(text, "stop"))));
    let param = ["hi", "--param", r#"adapter_opts={"organization":"o"}"#, "--log", &log];
    assert_eq!(server.generate(&param).code, Some(0));
    let forked = store.run(&["fork", "last", "--at", "1"]).stdout;
    let (fork, _) = forked.split_once(' ').unwrap();
    for said in ["", " --model openai-chat:other"] {
        let refused = keyed(format!("resume {fork}{said} --log {log}").split(' '));
        let how = format!("mynah resume {fork} --base-url {}{said} --log {}", server.url, log);
        let why = "was not called at the server of its provider; say which one goes on with it:";
        assert_eq!(refused.stderr, format!("mynah: run {fork} {why}\n  {how}\n"));
        assert_eq!(refused.code, Some(2));
    }
    assert_eq!(store.json(&["show", fork])[0]["run"]["records"], 1, "it is as it was");

    // Another one is kept in its place, beside what else the adapter was told, and without what may be a key.
    let other = format!("{}?key=k", server.url);
    let resumed = keyed(["resume", fork, "--base-url", &other, "--exact-base-url", "--log", &log]);
    assert_eq!((&*resumed.stdout, &*resumed.stderr), ("one\n", ""));
    let records = store.json(&["show", fork, "--records"]);
    let resumed = records.iter().find(|record| record["kind"] == "resumed").unwrap();
    let url = format!("{}?...", server.url);
    let kept = json!({"base_url": url, "exact_base_url": true, "organization": "o"});
    assert_eq!(resumed["fact"]["about"]["options"]["adapter_opts"], kept);
    let forked = store.run(&["fork", fork, "--at", "2"]).stdout;
    assert!(forked.contains(&format!(" --base-url '{url}' --exact-base-url ")), "{forked}");
    assert!(keyed(["resume", fork, "--log", &log]).stderr.contains("has ended"));

    // A scripted call has no server.
    let script = store.file("s.json", r#"{"scripts": [[{"text": "hi"}, {"finish": "stop"}]]}"#);
    let model = format!("scripted:{script}");
    let scripted = ["generate", "-m", &model, "hi", "--base-url", "http://u:p@h", "--log", &log];
    assert_eq!(keyed(scripted).code, Some(0));
    assert!(!keyed(["show", "last", "--records", "--json", "--log", &log]).stdout.contains("u:p"));
}

#[test]
fn a_server_that_the_environment_names_is_kept_and_goes_on_with_the_run() {
    let store = Store::new();
    let (log, server) = (store.url(), Server::new(["hi", "one"].map(|text| answer(text, "stop"))));
    let run = |arguments: &str, endpoint: Option<&str>| {
        let mut command = mynah(arguments.split(' '));
        command.env("AZURE_OPENAI_API_KEY", "k");
        if let Some(url) = endpoint {
            command.env("AZURE_OPENAI_ENDPOINT", url);
        }
        feed(command, b"")
    };
    let begun = run(&format!("generate -m azure:m hi --log {log}"), Some(&server.url));
    assert_eq!((&*begun.stdout, begun.code), ("hi\n", Some(0)), "{}", begun.stderr);
    let forked = store.run(&["fork", "last", "--at", "1"]).stdout;
    let (fork, _) = forked.split_once(' ').unwrap();
    let resume = format!("resume {fork} --log {log}");
    for elsewhere in [None, Some("http://127.0.0.1:1")] {
        let refused = run(&resume, elsewhere);
        let how = format!("mynah resume {fork} --base-url {} --log {log}\n", server.url);
        assert!(refused.stderr.ends_with(&how), "{}", refused.stderr);
        assert_eq!(refused.code, Some(2));
    }
    let resumed = run(&resume, Some(&server.url));
    assert_eq!((&*resumed.stdout, &*resumed.stderr), ("one\n", ""));
}

#[test]
fn a_server_that_a_flag_named_is_the_same_where_the_environment_names_it() {
    for (flags, is_same) in [("", true), (" --exact-base-url", false)] {
        let store = Store::new();
        let texts = ["hi", "one"].map(|text| answer(text, "stop"));
        let (log, server) = (store.url(), Server::new(texts));
        let run = |arguments: &str| {
            let mut command = mynah(arguments.split(' '));
            command.env("AZURE_OPENAI_API_KEY", "k");
            command.env("AZURE_OPENAI_ENDPOINT", &server.url);
            feed(command, b"")
        };
        let base = &server.url;
        run(&format!("generate -m azure:m hi --base-url {base}{flags} --log {log}"));
        let forked = store.run(&["fork", "last", "--at", "1"]).stdout;
        let (fork, _) = forked.split_once(' ').unwrap();
        let resumed = run(&format!("resume {fork} --log {log}"));
        let expected = if is_same { Some(0) } else { Some(2) };
        assert_eq!(resumed.code, expected, "{flags}: {}", resumed.stderr);
    }
}

#[test]
fn a_run_goes_on_in_the_region_that_the_environment_named_when_it_began() {
    let said = |text: &str| {
        let message = json!({"content": [{"text": text}]});
        let body = json!({"output": {"message": message}, "stopReason": "end_turn"});
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{body}"
        )
    };
    let (store, server) = (Store::new(), Server::new(["hi", "one"].map(said)));
    let run = |arguments: &str, region: &str| {
        let mut command = mynah(arguments.split(' '));
        command.args(["--base-url", &server.url, "--log", &store.url()]);
        command.env_remove("AWS_BEARER_TOKEN_BEDROCK").env("AWS_REGION", region);
        command.env("AWS_ACCESS_KEY_ID", "AKID").env("AWS_SECRET_ACCESS_KEY", "s");
        feed(command, b"")
    };
    let begun = run("generate -m bedrock:m hi", "eu-west-1");
    assert_eq!((&*begun.stdout, begun.code), ("hi\n", Some(0)), "{}", begun.stderr);
    let forked = store.run(&["fork", "last", "--at", "1"]).stdout;
    let (fork, _) = forked.split_once(' ').unwrap();
    let resumed = run(&format!("resume {fork}"), "us-east-1");
    assert_eq!((&*resumed.stdout, &*resumed.stderr), ("one\n", ""));
    for (head, _) in server.heard() {
        assert!(head.contains("/eu-west-1/bedrock/aws4_request"), "{head}");
    }
}

#[test]
fn a_call_that_fails_or_spends_its_budget_says_how_to_resume_it() {
    let refused = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let answers = [answer("hi", "stop"), refused.to_owned(), answer("one", "stop")];
    let again = [answer("two", "stop"), answer("three", "stop")];
    let (store, server) = (Store::new(), Server::new(answers.into_iter().chain(again)));
    assert_eq!(server.generate(&["hi", "--log", &store.url()]).code, Some(0));
    let nobody = "http://127.0.0.1:1";
    let (asks, more) = ("to call the model again", "with a larger budget");
    let poor = ["--budget", "max_input_tokens=0"];
    for (url, flags, code, what, done) in [
        (&*server.url, &[][..], 1, asks, "one\n"),
        (nobody, &["--retries", "0"], 4, asks, "two\n"),
        (&server.url, &poor, 1, more, "three\n"),
    ] {
        let forked = store.run(&["fork", "last", "--at", "1"]).stdout;
        let (fork, _) = forked.split_once(' ').unwrap();
        let resume = ["resume", fork, "--base-url", url, "--log", &store.url()];
        let failed = keyed(resume.iter().chain(flags).copied());
        assert_eq!(failed.code, Some(code), "{}", failed.stderr);
        let how = format!("; resume it {what}:\n  mynah ");
        let (_, command) = failed.stderr.split_once(&how).unwrap();
        let command = command.replace("=N", "=99").replace(nobody, &server.url);
        let resumed = keyed(command.trim_end().split(' '));
        let linked = format!("run {fork} has ended; run {fork}~2 continues it\n");
        assert_eq!((&*resumed.stdout, resumed.stderr), (done, linked));
        assert_eq!(store.run(&["verify", fork]).code, Some(0), "the failed run is as it was");
        let ended = keyed(resume);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        let twice = format!("run {fork} was continued by run {fork}~2, which has ended; fork it");
        assert!(ended.stderr.contains(&twice), "{}", ended.stderr);
    }
}

#[test]
fn a_call_that_goes_on_tells_what_it_would_have_told() {
    let store = Store::new();
    let calls =
        json!([{"index": 0, "id": "c1", "function": {"name": "look", "arguments": "{\"at\":1}"}}]);
    let called = answer("Well", "tool_calls")
        .replace(r#""content":"Well""#, &format!(r#""tool_calls":{calls}"#));
    let answers = [called, answer("Too mu", "length")];
    let server = Server::new(answers.clone().into_iter().chain(answers));
    let tools = store.file("tools.json", r#"[{"name": "look", "schema": {"type": "object"}}]"#);
    let asked = ["hi", "--tools", &tools, "--log", &store.url()];
    let told = [server.generate(&asked), server.generate(&asked)];
    assert_eq!((&*told[0].stdout, &*told[0].stderr), ("  > look {\"at\":1}  [c1]\n", ""));
    let cut_off = "mynah: the answer was cut off at its token limit\n";
    assert_eq!((&*told[1].stdout, &*told[1].stderr), ("Too mu\n", cut_off));
    for told in told {
        assert_eq!(store.run(&["fork", "last", "--at", "1"]).code, Some(0));
        assert_eq!(go_on(&store, &server, "last", "sk-test", &[]), told);
    }
}

#[test]
fn the_model_that_answered_is_named_where_it_is_another_than_was_asked() {
    let snapshot = |model: &str| format!("{PIECES}{END}").replace("m-1", model);
    for (model, other) in [
        ("m", None),
        ("openai-chat:m", None),
        ("m-2026-11-16", None),
        ("m-20261116", None),
        ("m-mini", Some("m-mini")),
        ("n", Some("n")),
    ] {
        let (store, server) = (Store::new(), Server::new([snapshot(model)]));
        assert_eq!(server.generate(&["hi", "--log", &store.url()]).code, Some(0));
        let shown = store.ok(&["show", "last"]);
        let line = other.map(|other| format!("-- answered by {other}\n\nassistant: Hello\n"));
        assert_eq!(shown.contains("answered by"), line.is_some(), "{model}: {shown}");
        assert!(shown.contains(&line.unwrap_or_default()), "{shown}");
        let told = store.json(&["show", "last"]);
        let by = told.iter().find(|told| told["type"] == "answered_by");
        assert_eq!(by.and_then(|by| by["model"].as_str()), other);
        let tree = store.ok(&["show", "last", "--tree"]);
        let by = other.map(|other| format!("answer  (by {other}) Hello\n"));
        assert!(tree.contains(&by.unwrap_or("answer  Hello\n".into())), "{tree}");
    }
}

#[test]
fn tools_that_are_code_are_named() {
    let store = Store::new();
    let server = Server::new([answer("hi", "stop"), answer("ho", "stop")]);
    let adapter = HttpAdapter::named("llamacpp").unwrap().with_base_url(&server.url).unwrap();
    let look = Tool::new("look", "looks", json!({})).handler(async |_, _| "seen");
    let log = Arc::new(SqliteLog::open(&store.path).unwrap());
    let engine = Engine::new(adapter).model("m").tool(look);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { engine.chat("hi").record(&log).await }).unwrap();
    drop(log);
    let ended = store.run(&["resume", "last"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("has ended; fork it to continue"), "{}", ended.stderr);
    let told = store.run(&["fork", "last", "--at", "1"]).stdout;
    let (fork, _) = told.split_once(' ').unwrap();
    let how = format!("\nresume it with: mynah resume {fork} --agent FILE --log {}\n", store.url());
    assert!(told.ends_with(&how), "{told}");
    let refused = go_on(&store, &server, fork, "", &[]);
    let why =
        "only the program that began it has its tools: look; name the agent with --agent FILE";
    assert_eq!((refused.code, refused.stderr), (Some(2), format!("mynah: run {fork}: {why}\n")));
    assert_eq!(go_on(&store, &server, fork, "", &["--allow-changed-agent"]).stdout, "ho\n");
}

/// Resumes a run, at this server.
fn go_on(store: &Store, server: &Server, run: &str, key: &str, flags: &[&str]) -> Ran {
    let url = store.url();
    let mut command = mynah(["resume", run, "--base-url", &server.url, "--log", &url]);
    command.env("OPENAI_API_KEY", key).args(flags);
    feed(command, b"")
}

/// Runs the program with a key.
fn keyed<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Ran {
    let mut command = mynah(arguments);
    command.env("OPENAI_API_KEY", "sk-test");
    feed(command, b"")
}
