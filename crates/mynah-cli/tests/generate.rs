//! `mynah generate`: one call of a model, over a real socket and from scripts.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::common::{
    Store, feed, file, lines, mynah, run,
    server::{END, PIECES, Server, answer},
};

const KEY: &str = "sk-very-secret-0123456789";

#[test]
fn text_is_told_and_json_is_the_response() {
    let server = Server::new([format!("{PIECES}{END}"), format!("{PIECES}{END}")]);
    let told = server.generate(&["hi"]);
    assert_eq!((told.code, &*told.stdout, &*told.stderr), (Some(0), "Hello\n", ""));
    let told = server.generate(&["hi", "--json"]);
    let [line] = &lines(&told)[..] else { panic!("{}", told.stdout) };
    let response = &line["ok"];
    assert_eq!(response["output_text"], "Hello");
    assert_eq!(response["model"], "m-1");
    assert_eq!(response["finish_reason"], "stop");
    assert_eq!(response["usage"]["input_tokens"], 3);
    assert_eq!(response["metadata"]["provider_request_id"], "req_1");
    assert_eq!(line.as_object().unwrap().len(), 1);
}

#[test]
fn an_answer_goes_into_a_pipe_as_it_is() {
    let said = "\u{200f}\u{5e2}\u{200e}\r\n\u{85}\u{1b}[2J";
    let told = Server::new([answer(said, "stop")]).generate(&["hi"]);
    assert_eq!((told.code, told.stdout), (Some(0), format!("{said}\n")));
}

#[test]
#[cfg(target_os = "linux")]
fn an_answer_comes_to_a_terminal_without_what_that_would_obey() {
    use std::{
        fs::File,
        io::{BufRead as _, BufReader},
        process::Stdio,
    };

    use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};

    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let inside = File::options().write(true).open(name.to_str().unwrap()).unwrap();
    let server = Server::new([answer("a\u{1b}[2J\u{202e}b", "stop")]);
    let mut command = server.command(&["hi"]);
    command.stdin(Stdio::null()).stdout(inside);
    assert!(command.status().unwrap().success());
    let mut shown = String::new();
    BufReader::new(File::from(terminal)).read_line(&mut shown).unwrap();
    assert_eq!(shown, "a\\u{1b}[2J\\u{202e}b\r\n");
}

#[test]
fn a_stream_tells_its_events_before_the_response() {
    let server = Server::new([format!("{PIECES}{END}")]);
    let told = lines(&server.generate(&["hi", "--json", "--stream"]));
    let (last, events) = told.split_last().unwrap();
    let names: Vec<&Value> = events.iter().map(|line| &line["event"]["type"]).collect();
    assert_eq!(names[..3], ["message_started", "text_delta", "text_delta"]);
    assert_eq!(names.last().unwrap(), &"message_completed");
    assert_eq!(last["ok"]["output_text"], "Hello");
}

#[test]
fn a_schema_is_strict_where_providers_take_it_so() {
    let name = json!({"type": "string"});
    let closed = |properties: Value, required: &[&str]| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let person = closed(json!({"name": name}), &["name"]);
    let list = |of: &Value| closed(json!({"of": {"type": "array", "items": of}}), &["of"]);
    let optional = closed(json!({"name": name}), &[]);
    let mut open = person.clone();
    open["additionalProperties"] = true.into();
    for (schema, strict) in [
        (&person, true),
        (&list(&person), true),
        (&optional, false),
        (&open, false),
        (&list(&optional), false),
        (&closed(json!({"name": {"oneOf": [name]}}), &["name"]), false),
        (&json!({"anyOf": [person]}), false),
        (&name, false),
    ] {
        let server = Server::new([format!("{PIECES}{END}")]);
        let file = file("generate_strict.json", schema.to_string());
        server.generate(&["hi", "--schema", &file]);
        let (_, body) = server.heard().pop().unwrap();
        assert_eq!(body["response_format"]["json_schema"]["strict"], strict, "{schema}");
    }
}

#[test]
fn a_schema_is_called_by_its_title_or_as_its_file() {
    for (title, name) in [("A person", "A_person"), ("", "generate_named"), (" ", "generate_named")]
    {
        let server = Server::new([format!("{PIECES}{END}")]);
        let schema = json!({"type": "object", "title": title});
        let file = file("generate_named.json", schema.to_string());
        server.generate(&["hi", "--schema", &file]);
        let (_, body) = server.heard().pop().unwrap();
        assert_eq!(body["response_format"]["json_schema"]["name"], name);
    }
}

#[test]
fn an_answer_that_does_not_fit_its_schema_is_a_failure() {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]});
    let file = file("generate_person.json", schema.to_string());
    let ask = |text: &str, finish: &str| {
        let server = Server::new([answer(text, finish)]);
        server.generate(&["hi", "--schema", &file, "--json"])
    };
    let fits = ask(r#"{"name": "Ada", "age": 36}"#, "stop");
    assert_eq!(
        (fits.code, &lines(&fits)[0]["ok"]["output_text"]),
        (Some(0), &json!(r#"{"name": "Ada", "age": 36}"#))
    );
    assert_eq!(
        ask("```json\n{\"name\": \"Ada\", \"age\": 36}\n```", "stop").code,
        Some(0),
        "as `answer_as`"
    );
    for (text, why) in [
        ("Ada", "the answer is not JSON: expected value at line 1 column 1"),
        ("{}", "the answer does not fit the schema: /age: missing; /name: missing"),
        (
            r#"{"name": 1, "age": "x"}"#,
            "the answer does not fit the schema: /age: expected integer, got \"x\"; /name: expected string, got 1",
        ),
    ] {
        let told = ask(text, "stop");
        assert_eq!(told.code, Some(1), "{text}: {}", told.stderr);
        let error = &lines(&told)[0]["err"];
        assert_eq!(error["reason"], "malformed_response");
        assert_eq!(error["message"], format!("adapter error: malformed_response: {why}"));
        assert_eq!(error["metadata"]["response"]["output_text"], text);
    }
    assert_eq!(ask("{", "tool_calls").code, Some(0), "the answer comes after the tools");
}

#[test]
fn an_answer_that_was_cut_off_is_held_against_its_schema_too() {
    let file = file("generate_cut_off.json", r#"{"type": "object"}"#);
    let ask = |text: &str, finish: &str| {
        Server::new([answer(text, finish)]).generate(&["hi", "--schema", &file])
    };
    for (finish, how) in
        [("length", "at its token limit"), ("content_filter", "by a content filter")]
    {
        let told = ask("{", finish);
        assert_eq!(told.code, Some(1), "{}", told.stderr);
        let why = format!("the answer was cut off {how} and so is not JSON: EOF");
        assert!(told.stderr.contains(&why), "{}", told.stderr);
        let told = ask("{}", finish);
        let remark = format!("mynah: the answer was cut off {how}\n");
        assert_eq!((told.code, told.stderr), (Some(0), remark), "it was whole by then");
    }
}

#[test]
fn an_answer_that_failed_or_was_filtered_says_so() {
    let ask = |text: &str, finish: &str| {
        let candidate = json!({"content": {"parts": [{"text": text}]}, "finishReason": finish});
        let server = Server::new([format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: {}\n\n",
            json!({"candidates": [candidate]})
        )]);
        let mut command = mynah(["generate", "-m", "gemini:m", "--base-url", &server.url, "hi"]);
        command.env("GEMINI_API_KEY", "k");
        feed(command, b"")
    };
    let filtered = ask("par", "SAFETY");
    assert_eq!(
        (filtered.code, &*filtered.stdout, &*filtered.stderr),
        (Some(0), "par\n", "mynah: the answer was cut off by a content filter\n")
    );
    let failed = ask("", "MALFORMED_FUNCTION_CALL");
    assert_eq!((failed.code, &*failed.stdout), (Some(1), ""));
    assert!(
        failed.stderr.ends_with("the model stopped: MALFORMED_FUNCTION_CALL\n"),
        "{}",
        failed.stderr
    );
}

#[test]
fn options_of_the_providers_own_are_sent_under_any_name() {
    let server = Server::new([format!("{PIECES}{END}")]);
    let told = server.generate(&[
        "hi",
        "--param",
        r#"tools=[{"type":"web_search"}]"#,
        "--param",
        r#"metadata={"user_id":"u"}"#,
    ]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    let (_, body) = server.heard().pop().unwrap();
    assert_eq!(body["tools"], json!([{"type": "web_search"}]));
    assert_eq!(body["metadata"], json!({"user_id": "u"}));
}

#[test]
fn a_version_is_added_to_the_base_url_unless_it_is_exact() {
    let server = Server::new([answer("hi", "stop"), answer("hi", "stop")]);
    let base = server.url.replace("/v1", "/inference");
    for exact in [&[][..], &["--exact-base-url"]] {
        let mut command = mynah(["generate", "-m", "openai-chat:m", "--base-url", &base, "hi"]);
        command.env("OPENAI_API_KEY", "sk-test").args(exact);
        assert_eq!(feed(command, b"").stdout, "hi\n");
    }
    let heads = server.heard().into_iter().map(|(head, _)| head);
    let asked: Vec<String> = heads.filter_map(|head| Some(head.lines().next()?.into())).collect();
    assert_eq!(
        asked,
        [
            "POST /inference/v1/chat/completions HTTP/1.1",
            "POST /inference/chat/completions HTTP/1.1"
        ]
    );
    let alone = feed(mynah(["generate", "-m", "openai-chat:m", "--exact-base-url", "hi"]), b"");
    assert_eq!(alone.code, Some(2));
    assert!(alone.stderr.contains("--base-url <URL>"), "{}", alone.stderr);
}

#[test]
fn everything_that_is_asked_for_is_sent() {
    let server = Server::new([answer("{}", "stop")]);
    let tools = file(
        "generate_tools.json",
        r#"[{"name": "now", "description": "The time", "schema": {"type": "object"}},
            {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}, "strict": true}}]"#,
    );
    let schema = file("generate a form.json", r#"{"type": "object"}"#);
    let image = file("generate_image.bin", b"\x89PNG\r\n");
    let told = server.generate(&[
        "look",
        "--system",
        "Be brief.",
        "--image",
        &image,
        "--image",
        "https://example.com/b.jpg",
        "--tools",
        &tools,
        "--schema",
        &schema,
        "--param",
        "temperature=0.5",
        "--param",
        "reasoning_effort=low",
        "--param",
        "stop=[\"x\"]",
    ]);
    assert_eq!((told.code, &*told.stderr), (Some(0), ""));
    let (head, body) = server.heard().pop().unwrap();
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{head}");
    let form = json!({"name": "generate_a_form", "schema": {"type": "object"}, "strict": false});
    // A schema without properties permits any: nothing can be strict about it.
    let open = json!({"type": "object", "properties": {}, "additionalProperties": true});
    let expected = json!({
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K", "detail": "auto"}},
                {"type": "image_url", "image_url": {"url": "https://example.com/b.jpg", "detail": "auto"}},
            ]},
        ],
        "tools": [
            {"type": "function", "function": {"name": "now", "description": "The time", "parameters": open}},
            {"type": "function", "function": {"name": "add", "description": "", "parameters": open}},
        ],
        "response_format": {"type": "json_schema", "json_schema": form},
        "temperature": 0.5,
        "reasoning_effort": "low",
        "stop": ["x"],
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    assert_eq!(body, expected);
}

#[test]
fn the_prompt_comes_from_a_pipe_too() {
    for arguments in [&["-"][..], &[]] {
        let server = Server::new([format!("{PIECES}{END}")]);
        let told = feed(server.command(arguments), b"one\ntwo\n");
        assert_eq!(told.code, Some(0), "{}", told.stderr);
        let (_, body) = server.heard().pop().unwrap();
        assert_eq!(body["messages"][0]["content"], "one\ntwo");
    }
    for arguments in [&[][..], &["-"], &["Shorten:", "-"]] {
        let told = feed(Server::new([]).command(arguments), b" \t\n");
        assert_eq!(
            (told.code, &*told.stderr),
            (
                Some(2),
                "mynah: standard input is empty; give the text as an argument, or pipe it in\n"
            )
        );
    }
}

#[test]
fn what_is_piped_in_stands_beside_a_prompt_where_it_is_asked_for() {
    for (arguments, sent) in [
        (&["Shorten:", "-"][..], "Shorten:\n\none\ntwo"),
        (&["-", "Shorten that."], "one\ntwo\n\nShorten that."),
        (&["Shorten:"], "Shorten:"),
    ] {
        let server = Server::new([format!("{PIECES}{END}")]);
        let told = feed(server.command(arguments), b"one\ntwo\n");
        assert_eq!(told.code, Some(0), "{}", told.stderr);
        let (_, body) = server.heard().pop().unwrap();
        assert_eq!(body["messages"][0]["content"], sent);
    }
    for arguments in [&["two", "words"][..], &["-", "-"], &["a", "-", "b"]] {
        let told = feed(Server::new([]).command(arguments), b"one");
        assert_eq!(told.code, Some(2), "{arguments:?}");
        assert!(told.stderr.contains("one argument, in quotes"), "{}", told.stderr);
    }
}

#[test]
fn tool_calls_are_shown() {
    let told = run(["generate", "-m", "scripted:../../scenarios/chat/tool_turn.json", "hi"]);
    assert_eq!((told.code, &*told.stdout), (Some(0), "  > echo {\"x\":1}  [c0]\n"));
}

#[test]
fn a_refusal_of_the_server_is_told_with_all_that_is_known() {
    let body = json!({"error": {"message": "slow down", "type": "requests", "code": "rate"}});
    let refusal = format!(
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 2\r\nx-request-id: req_9\r\ncontent-length: {}\r\n\r\n{body}",
        body.to_string().len()
    );
    let told = Server::new([refusal]).generate(&["hi", "--json", "--retries", "0"]);
    let said = "mynah: openai-chat: slow down (status 429, rate_limited, request req_9, retry after 2 s)\n";
    assert_eq!((told.code, &*told.stderr), (Some(1), said));
    let [line] = &lines(&told)[..] else { panic!("{}", told.stdout) };
    let expected = json!({"err": {
        "type": "adapter_error",
        "reason": "rate_limited",
        "message": "slow down",
        "metadata": {"code": "rate", "type": "requests", "status": 429, "request_id": "req_9",
            "retry_after_ms": 2000, "provider": "openai-chat"},
    }});
    assert_eq!(line, &expected);
}

#[test]
fn a_page_in_place_of_an_answer_is_told_with_its_server() {
    let page =
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<html></html>";
    let server = Server::new([page.to_owned()]);
    let origin = server.url.trim_end_matches("/v1");
    let told = server.generate(&["hi", "--json", "--retries", "0"]);
    assert_eq!(told.code, Some(1), "{}", told.stderr);
    assert_eq!(lines(&told)[0]["err"]["metadata"]["server"], origin);
    let said = format!("the server sent a page, not an answer (calling {origin})\n");
    assert!(told.stderr.ends_with(&said), "{}", told.stderr);
}

#[test]
fn an_address_that_is_nowhere_is_told_with_the_flag_that_gave_it() {
    let page = "HTTP/1.1 404 Not Found\r\ncontent-length: 7\r\n\r\n<html/>";
    let server = Server::new([page.to_owned()]);
    let said = format!(
        "mynah: openai-chat: HTTP status 404, calling {}/chat/completions; is that the path for --base-url? (not_found)\n",
        server.url
    );
    assert_eq!(server.generate(&["hi"]).stderr, said);
}

#[test]
fn a_failure_that_may_pass_is_tried_again() {
    let refusal = "HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n".to_owned();
    let server = Server::new([refusal, format!("{PIECES}{END}")]);
    let told = server.generate(&["hi", "--retries", "1"]);
    assert_eq!((told.code, &*told.stdout), (Some(0), "Hello\n"));
    assert_eq!(server.heard().len(), 2);
}

#[test]
fn a_failure_tells_after_how_many_tries() {
    let refusal = || "HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n".to_owned();
    let told = Server::new([refusal(), refusal()]).generate(&["hi", "--retries", "1"]);
    assert_eq!(told.code, Some(1));
    assert!(told.stderr.ends_with("(tried 2 times)\n"), "{}", told.stderr);
}

#[test]
fn an_answer_that_broke_off_is_an_error_with_what_was_said() {
    let told = Server::new([PIECES.to_owned()]).generate(&["hi", "--json", "--stream"]);
    assert_eq!(told.code, Some(1), "{}", told.stderr);
    let error = &lines(&told).pop().unwrap()["err"];
    assert_eq!(error["reason"], "network_error");
    assert_eq!(error["metadata"]["request_id"], "req_1");
    assert_eq!(error["metadata"]["partial"]["output_text"], "Hello");
}

#[test]
fn a_server_that_cannot_be_reached_is_exit_code_4() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{address}");
    let arguments = ["generate", "-m", "llamacpp:m", "--base-url", &url, "--retries", "0", "hi"];
    let told = run(arguments.into_iter().chain(["--json"]));
    assert_eq!(told.code, Some(4), "{}", told.stderr);
    assert_eq!(
        lines(&told)[0]["err"]["metadata"],
        json!({"connected": false, "provider": "llamacpp", "server": url})
    );
    let told = told.stderr;
    let is_named = told.contains(&format!(", calling {url};"));
    assert!(told.contains("could not be reached: ") && is_named, "{told}");
}

#[test]
fn a_server_that_is_silent_is_not_waited_for() {
    let server = Server::new(["".to_owned()]);
    let told = server.generate(&["hi", "--json", "--timeout", "0.2", "--retries", "0"]);
    assert_eq!(told.code, Some(1), "{}", told.stderr);
    assert_eq!(lines(&told)[0]["err"]["reason"], "timeout");
    assert!(told.stderr.contains("the call took longer than --timeout"), "{}", told.stderr);
}

#[test]
fn what_is_missing_or_wrong_is_exit_code_2_and_says_what_to_do() {
    let list = file("generate_wrong_tools.json", r#"[{"name": "a"}, {"nam": "b"}]"#);
    let tools = file(
        "generate_tools.json",
        r#"[{"name": "a", "description": "", "schema": {"type": "object"}}]"#,
    );
    let empty = file("generate_empty.json", "");
    let no_json = file("generate_wrong_schema.json", "{");
    let no_schema = file("generate_no_schema.json", r#"{"type": "novelty"}"#);
    let no_image = file("generate_wrong_image", "text");
    let empty_image = file("generate_empty.png", "");
    let script = "scripted:../../scenarios/chat/tool_turn.json";
    let table = [
        (&["hi"][..], "no model: give --model ADAPTER:MODEL"),
        (&["-m", script, ""], "the prompt is empty"),
        (&["-m", script, " \n"], "the prompt is empty"),
        (&["-m", "claude", "hi"], "give ADAPTER:MODEL"),
        (&["-m", "gpt-4.1-mini", "hi"], "; did you mean openai:gpt-4.1-mini?\n"),
        (
            &["-m", "anthropic.claude-opus-4-5-20251101-v1:0", "hi"],
            "; did you mean bedrock:anthropic.claude-opus-4-5-20251101-v1:0?\n",
        ),
        (&["-m", "google:gemini-2.5-pro", "hi"], "; did you mean gemini:gemini-2.5-pro?\n"),
        (&["-m", "nobody:x", "hi"], "no adapter is named \"nobody\"; known are "),
        (
            &["-m", "anthropic:x", "hi"],
            "no API key for anthropic; set ANTHROPIC_API_KEY (looked at ANTHROPIC_API_KEY); --api-key-env VAR names another variable, --dotenv=FILE a file with it\n",
        ),
        (
            &["-m", "anthropic:x", "--api-key-env", "MINE", "hi"],
            "(looked at MINE); --api-key-env VAR",
        ),
        (&["-m", "anthropic:x", "--dotenv=none.env", "hi"], "ANTHROPIC_API_KEY in none.env"),
        (
            &["-m", script, "--dotenv", "my.env", "hi"],
            "my.env would be said to the model; as a file of keys it is --dotenv=my.env\n",
        ),
        (
            &["-m", "bedrock:x", "hi"],
            "AWS_ACCESS_KEY_ID); the profile AWS_PROFILE of ~/.aws is read",
        ),
        (
            &["-m", "llamacpp:x", "--base-url", "ftp://a", "hi"],
            "base_url: an address begins with http:// or https://",
        ),
        (
            &["-m", "azure:x", "--api-key-env", "KEY_OF_TEST", "hi"],
            "no address of its own: give a base_url (--base-url)",
        ),
        (&["-m", script, "--tools", &list, "hi"], "generate_wrong_tools.json: 1: unknown field"),
        (&["-m", script, "--schema", &no_json, "hi"], "generate_wrong_schema.json: EOF"),
        (&["-m", script, "--schema", &empty, "hi"], "generate_empty.json: it is empty"),
        (
            &["-m", script, "--schema", &no_schema, "hi"],
            "generate_no_schema.json: not JSON Schema: ",
        ),
        (&["-m", script, "--image", &no_image, "hi"], "not a PNG, JPEG, GIF or WebP image"),
        (&["-m", script, "--image", &empty_image, "hi"], "generate_empty.png: it is empty"),
        (&["-m", script, "--param", "model=other", "hi"], "-m names the model"),
        (
            &["-m", script, "--param", "temperature=9", "hi"],
            "temperature: out_of_range; temperature must be a number from 0 to 2",
        ),
        (
            &["-m", script, "--param", "temperature=abc", "hi"],
            "expected a number; temperature must be a number from 0 to 2",
        ),
        (
            &["-m", script, "--param", "max_tokens=\"5\"", "hi"],
            "expected a positive whole number; max_tokens must be a whole number from 1 up",
        ),
        (
            &["-m", "perplexity:sonar", "--tools", &tools, "--api-key-env", "KEY_OF_TEST", "hi"],
            "tools_disabled; the model is known not to call tools (see `mynah models`); choose another model",
        ),
        (&["-m", script, "--param", "x", "hi"], "give a name, =, and JSON"),
        (&["-m", script, "--timeout", "0", "hi"], "give seconds"),
    ];
    for (arguments, why) in table {
        let mut command = mynah(["generate"].iter().chain(arguments).copied());
        command.env_remove("ANTHROPIC_API_KEY").env_remove("MYNAH_MODEL").env("KEY_OF_TEST", KEY);
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_BEARER_TOKEN_BEDROCK");
        command.env_remove("AZURE_OPENAI_ENDPOINT");
        command.env("AWS_SHARED_CREDENTIALS_FILE", "none").env("AWS_CONFIG_FILE", "none");
        let told = feed(command, b"");
        assert_eq!(told.code, Some(2), "{arguments:?}: {}", told.stderr);
        assert!(told.stderr.contains(why), "{arguments:?}: {}", told.stderr);
    }
    let gone = run(["generate", "-m", script, "--image", "no/such.png", "hi"]);
    assert_eq!(gone.code, Some(4), "{}", gone.stderr);
}

#[test]
fn a_server_on_this_machine_is_called_without_the_environments_proxy() {
    let server = Server::new([format!("{PIECES}{END}")]);
    let mut command = server.command(&["hi"]);
    // Nothing listens there.
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        command.env(name, "http://127.0.0.1:9");
    }
    let told = feed(command, b"");
    assert_eq!(told.code, Some(0), "{}", told.stderr);
}

#[test]
fn a_call_is_kept_only_where_a_log_is_named() {
    let store = Store::new();
    let scripted = ["generate", "-m", "scripted:../../scenarios/chat/tool_turn.json", "hi"];
    let mut silent = mynah(scripted);
    silent.env("MYNAH_LOG", store.url());
    assert_eq!(feed(silent, b"").code, Some(0));
    assert!(!store.path.exists());
    let line = store.json(&scripted).pop().unwrap();
    let runs = store.json(&["runs"]);
    assert_eq!(runs.len(), 1);
    assert_eq!(line["run_id"], runs[0]["run_id"]);
    assert_eq!(store.run(&["verify"]).code, Some(0));
}

#[test]
fn a_key_is_sent_in_its_header_and_is_nowhere_else() {
    let from_file = &["--api-key-env", "MY_KEY", "--dotenv=keys.env"][..];
    let header = format!("adapter_opts={}", json!({"headers": {"x-gateway-key": KEY}}));
    let in_header = &["--param", &header][..];
    let ways = [(from_file, "authorization: Bearer"), (in_header, "x-gateway-key:")];
    for (given, header) in ways {
        let echo =
            json!({"error": {"message": format!("bad key {KEY}"), "code": KEY, "type": KEY}});
        let refusal = format!(
            "HTTP/1.1 401 Unauthorized\r\nx-request-id: {KEY}\r\ncontent-length: {}\r\n\r\n{echo}",
            echo.to_string().len()
        );
        let store = Store::new();
        store.file("keys.env", &format!("MY_KEY={KEY}\n"));
        let repeated =
            PIECES.replace("req_1", KEY).replace("c1", KEY).replace("lo\"", &format!("{KEY}\""));
        let answers = [format!("{repeated}{END}"), refusal.clone(), PIECES.to_owned(), refusal];
        let server = Server::new(answers);
        let url = store.url();
        let mut printed = String::new();
        for (arguments, code) in [
            (&["hi", "--json", "--stream"][..], 0),
            (&["hi", "--json"], 1),
            (&["hi", "--json", "--stream"], 1),
            (&["hi"], 1),
        ] {
            let mut command = server.command(&["--log", &url]);
            command.args(given).args(arguments).current_dir(store.path.parent().unwrap());
            let told = feed(command, b"");
            assert_eq!(told.code, Some(code), "{}", told.stderr);
            printed += &(told.stdout + &told.stderr);
        }
        for (head, body) in server.heard() {
            assert!(head.contains(&format!("{header} {KEY}\r\n")), "{head}");
            assert_eq!(head.matches(KEY).count(), 1, "{head}");
            assert!(!body.to_string().contains(KEY));
        }
        for arguments in [&["runs"][..], &["show", "last", "--records"], &["export", "last"]] {
            printed += &store.run(arguments).stdout;
        }
        assert!(!printed.contains(KEY), "{printed}");
        for folder_entry in std::fs::read_dir(store.path.parent().unwrap()).unwrap() {
            let path = folder_entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            let found = bytes.windows(KEY.len()).any(|window| window == KEY.as_bytes());
            assert_eq!(found, path.ends_with("keys.env"), "{}", path.display());
        }
    }
}

#[test]
fn a_misspelt_option_is_warned_of_and_still_sent() {
    let server = Server::new([format!("{PIECES}{END}"), format!("{PIECES}{END}")]);
    let told = server.generate(&["hi", "--param", "temprature=0.5", "--param", "top_p=1"]);
    let warning =
        "warning: --param: temprature goes to the provider as it is; did you mean temperature?\n";
    assert_eq!((told.code, &*told.stdout, &*told.stderr), (Some(0), "Hello\n", warning));
    let told = server.generate(&["hi", "--param", "temperature=0.5"]);
    assert_eq!((told.code, &*told.stderr), (Some(0), ""));
}

#[test]
fn a_misspelt_option_of_a_scenario_is_warned_of_on_stderr_alone() {
    let scenario = |name: &str| {
        json!({
            "engine": {"params": {"max_token": 5}},
            "scripts": [[{"text": "hello"}, {"finish": "stop"}]],
            "ops": [{"op": "chat", "messages": [{"role": "user", "content": "hi"}], "options": {name: 4}}],
        })
    };
    let play = |name| feed(mynah(["play", "--stable", "-"]), scenario(name).to_string().as_bytes());
    let told = play("max_turn");
    let warnings = "warning: engine.params: max_token goes to the provider as it is; did you mean max_tokens?\n\
         warning: ops.0.options: max_turn goes to the provider as it is; did you mean max_turns?\n";
    assert_eq!((told.code, &*told.stderr), (Some(0), warnings));
    assert_eq!(told.stdout, play("max_turns").stdout);
}
