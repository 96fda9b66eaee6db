//! `mynah chat`, `mynah run`, `mynah inspect` and `mynah demo` in a terminal.

#![cfg(target_os = "linux")]

use std::{env, fs, path::PathBuf, thread, time::Duration};

use crate::{
    common::{self, Store, feed, mynah},
    pty::{SHELL, Terminal, agent, says, shell},
};

#[test]
fn an_answer_is_rendered_and_a_question_of_a_tool_is_answered_in_place() {
    let ask = r#"[{"tool_call": {"id": "c0", "name": "ask_user", "arguments": {"question": "How many?"}}}, {"finish": "tool_calls"}]"#;
    let scripts = [says("# Menu\n\n- **soup**\n"), ask.to_owned(), says("Two soups.")];
    let (store, agent) = agent(&scripts.join(","), "[tools]\nask_user = true\n");
    let mut terminal = Terminal::new(&store, &["chat", &agent], 80, &[]);
    terminal.wait("›");
    terminal.send("What is there?\r");
    let screen = terminal.wait_prompt("• soup");
    assert!(screen.contains("Menu") && !screen.contains('#') && !screen.contains("**"), "{screen}");
    assert!(screen.contains("0 + 0 tokens"), "{screen}");
    terminal.send("Soup!\r");
    terminal.wait_after("How many?", "\n?");
    // A command does not go to the model.
    terminal.send("/undo\r");
    terminal.wait_after("commands work between messages", "\n?");
    terminal.send("two\r");
    terminal.wait_prompt("Two soups.");
    terminal.send("\x04");
    let (code, all) = terminal.end();
    assert_eq!(code, Some(0));
    assert!(all.contains("continue with: mynah chat"), "{all}");
}

#[test]
fn calls_are_approved_edited_rejected_with_a_reason_and_approved_for_the_session() {
    let scripts = [
        shell("d0", "rm -rf everything"),
        says("Edited done."),
        shell("c0", "echo one-$((1+1))"),
        says("First done."),
        shell("c1", "echo two"),
        says("Second done."),
        shell("c2", "echo three-$((1+2))"),
        shell("c3", "echo four-$((2+2))"),
        says("All done."),
    ];
    let (store, agent) = agent(&scripts.join(","), SHELL);
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    terminal.send("clean\r");
    terminal.wait("approve?");
    terminal.send("e\r");
    terminal.wait("arguments: {\"command\":\"rm -rf everything\"}");
    terminal.send("\x15{oops\r");
    terminal.wait_after("not JSON", "arguments: {oops");
    terminal.send("\x15{\"command\": \"echo kept-$((4+4))\"}\r");
    let screen = terminal.wait_prompt("Edited done.");
    assert!(screen.contains("│ kept-8\n") && !screen.contains("exit_code"), "{screen}");
    terminal.send("go\r");
    terminal.wait_after("command: echo one", "why not:");
    terminal.send("YES\r");
    let screen = terminal.wait_prompt("First done.");
    assert!(screen.contains("one-2") && screen.contains("✓ shell"), "{screen}");
    terminal.send("again\r");
    terminal.wait_after("command: echo two", "why not:");
    // Arguments are no reason.
    terminal.send("{\"command\": \"echo x\"}\r");
    terminal.wait_after("other arguments, answer e", "why not:");
    terminal.send("not on Sundays\r");
    let screen = terminal.wait_prompt("Second done.");
    assert!(screen.contains("✗ shell rejected: not on Sundays"), "{screen}");
    terminal.send("more\r");
    terminal.wait_after("command: echo three", "why not:");
    terminal.send("a\r");
    let screen = terminal.wait_prompt("All done.");
    assert!(screen.contains("three-3") && screen.contains("four-4"), "{screen}");
    terminal.send("\x04");
    assert_eq!(terminal.end().0, Some(0));
    let runs = store.json(&["runs"]);
    let second = runs[1]["run_id"].as_str().unwrap().to_owned();
    assert!(store.ok(&["show", &second]).contains("not on Sundays"));
}

#[test]
fn ctrl_c_stops_the_answer_and_the_conversation_continues() {
    let slow = r#"[{"text": "One bird. "}, {"delay_ms": 60000}, {"text": "Two birds."}, {"finish": "stop"}]"#;
    let scripts = [slow, &says("Still here."), &shell("c0", "echo never"), &says("Fine.")];
    let (store, agent) = agent(&scripts.join(","), SHELL);
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    terminal.send("Count birds.\r");
    terminal.wait("One bird.");
    terminal.send("\x03");
    terminal.wait_prompt("stopped");
    terminal.send("Are you there?\r");
    terminal.wait_prompt("Still here.");
    // At a question it leaves the turn.
    terminal.send("Work.\r");
    terminal.wait("approve?");
    terminal.send("\x03");
    terminal.wait("as it was before this message");
    terminal.send("Rest.\r");
    let screen = terminal.wait_prompt("Fine.");
    assert!(!screen.contains("✓ shell"), "{screen}");
    // At the prompt it does not leave.
    terminal.send("\x03");
    terminal.wait("Ctrl-D leaves");
    terminal.send("/quit\r");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_conversation_whose_process_was_killed_continues_the_next_day() {
    let scripts = [
        says("Hello."),
        shell("c0", "sleep 60; echo late"),
        says("It is done."),
        says("Welcome back."),
    ];
    let (store, agent) = agent(&scripts.join(","), SHELL);
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "trip"], 80, &[]);
    terminal.wait("›");
    terminal.send("Hi.\r");
    terminal.wait_prompt("Hello.");
    terminal.send("Work.\r");
    terminal.wait("approve?");
    terminal.send("y\r");
    terminal.wait("1 s");
    terminal.child.kill().unwrap();
    drop(terminal);
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "trip"], 80, &[]);
    let screen = terminal.wait("the last turn was interrupted");
    assert!(screen.contains("you: Work.") && !screen.contains("answer:"), "{screen}");
    terminal.wait_after("shell may have run before", "its result:");
    terminal.send("g\r");
    terminal.wait("\nresult:");
    terminal.send("it printed late\r");
    terminal.wait_prompt("It is done.");
    terminal.send("I am back.\r");
    terminal.wait_prompt("Welcome back.");
    terminal.send("\x04");
    assert_eq!(terminal.end().0, Some(0));
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--continue"], 80, &[]);
    let screen = terminal.wait_prompt("answer: Welcome back.");
    assert!(screen.contains("you: I am back."), "{screen}");
    terminal.send("\x04");
    assert_eq!(terminal.end().0, Some(0));
    assert!(store.run(&["verify"]).code == Some(0));
}

#[test]
fn a_narrow_terminal_shows_whole_words_and_no_colours_where_none_are_wanted() {
    let text = "Mynah birds imitate telephones, doors and people with remarkable accuracy.";
    let (store, agent) = agent(&[says(text), says(text)].join(","), "");
    for environment in [[("NO_COLOR", "1"), ("LANG", "C")], [("TERM", "dumb"), ("NO_COLOR", "")]] {
        let mut terminal = Terminal::new(&store, &["chat", &agent], 30, &environment);
        terminal.wait("›");
        terminal.send("Birds?\r");
        terminal.wait_prompt("accuracy.");
        terminal.send("\x04");
        let (code, all) = terminal.end();
        assert_eq!(code, Some(0));
        assert!(!all.contains("\x1b[2m") && !all.contains("\x1b[1m"), "{all:?}");
        if environment[0].0 == "NO_COLOR" {
            assert!(all.contains("Mynah birds imitate\r\n"), "{all:?}");
        } else {
            assert!(!all.contains('\x1b'), "{all:?}");
        }
    }
}

#[test]
fn commands_are_completed_and_the_history_outlives_the_process() {
    let (store, agent) = agent(&[says("One."), says("Two."), says("Three.")].join(","), "");
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    terminal.send("/he\t\r");
    terminal.wait_prompt("/export");
    terminal.send("first message\r");
    terminal.wait_prompt("One.");
    terminal.send("/undo\r");
    terminal.wait_prompt("took back: first message");
    terminal.send("/model nowhere:x\r");
    terminal.wait_prompt("nowhere");
    terminal.send("/fork other\r");
    terminal.wait_prompt("the conversation other now");
    terminal.send("\x04");
    assert_eq!(terminal.end().0, Some(0));
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    // Up, past the commands, to the message.
    terminal.send("\x1b[A\x1b[A\x1b[A\x1b[A\r");
    terminal.wait_prompt("One.");
    terminal.send("two \\\rlines\r");
    terminal.wait_prompt("Two.");
    terminal.send("/show\r");
    let screen = terminal.wait_prompt("user");
    assert!(screen.contains("lines"), "{screen}");
    terminal.send("\x04");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_run_shows_its_tools_and_can_be_resumed_after_ctrl_c_and_after_a_kill() {
    let scripts = [shell("c0", "seq 1 9"), shell("c1", "sleep 60"), says("Done.")];
    let (store, agent) = agent(&scripts.join(","), "[tools]\nshell = 'allow'\n");
    for is_killed in [false, true] {
        let mut terminal = Terminal::new(&store, &["run", &agent, "Count."], 80, &[]);
        let screen = terminal.wait("sleep 60");
        assert!(screen.contains("✓ shell"), "{screen}");
        terminal.wait("1 s");
        if is_killed {
            terminal.child.kill().unwrap();
            drop(terminal);
        } else {
            terminal.send("\x03");
            let (code, all) = terminal.end();
            assert_eq!(code, Some(130));
            assert!(all.contains("mynah resume"), "{all}");
        }
        let resumed = store.run(&["resume", "last", "--agent", &agent, "--on-uncertain", "fail"]);
        assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
        assert!(resumed.stdout.contains("Done."), "{}", resumed.stdout);
    }
}

#[test]
fn the_progress_of_a_tool_is_shown_while_it_works() {
    let call = r#"[{"tool_call": {"id": "c0", "name": "far_work", "arguments": {}}}, {"finish": "tool_calls"}]"#;
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/../mynah-mcp/tests/hostile.py");
    let far =
        format!("[mcp.far]\ncommand = ['python3', '{server}', 'progress']\npermission = 'allow'\n");
    let (store, agent) = agent(&[call.to_owned(), says("There.")].join(","), &far);
    let terminal = Terminal::new(&store, &["run", &agent, "Go far."], 80, &[]);
    let screen = terminal.wait("50 % mile 4");
    assert!(screen.contains("far_work"), "{screen}");
    let (code, all) = terminal.end();
    assert_eq!(code, Some(0));
    assert!(all.contains("✓") && all.contains("There."), "{all}");
    // Elsewhere it is an event.
    let events = store.run(&["run", &agent, "Go far.", "--json"]).stdout;
    assert!(
        events.contains(r#""type":"tool_execution_progress","id":"c0","name":"far_work""#),
        "{events}"
    );
}

#[test]
fn an_agent_shows_what_it_does_and_its_calls_are_decided_one_by_one() {
    let call = |id: &str, command: &str| {
        format!(
            r#"{{"tool_call": {{"id": "{id}", "name": "shell", "arguments": {{"command": "{command}"}}}}}}"#
        )
    };
    let front = r#"[{"tool_call": {"id": "c0", "name": "helper", "arguments": {"task": "Look."}}}, {"finish": "tool_calls"}]"#;
    let helper = "[agents.helper]\ndescription = 'Helps.'\nmodel = 'scripted:helper.json'\ntools = { shell = 'ask' }\n";
    let (store, agent) = agent(&[front.to_owned(), says("All done.")].join(","), helper);
    let (one, two) = (call("s0", "echo one"), call("s1", "echo two"));
    let slow = r#"[{"text": "The first command printed a word. "}, {"delay_ms": 2000}, {"finish": "stop"}]"#;
    store.file(
        "helper.json",
        &format!(r#"{{"scripts": [[{one}, {two}, {{"finish": "tool_calls"}}], {slow}]}}"#),
    );
    let mut terminal = Terminal::new(&store, &["chat", &agent], 80, &[]);
    terminal.wait("›");
    terminal.send("go\r");
    terminal.wait("helper/shell asks for approval");
    terminal.wait_after("command: echo one", "why not:");
    terminal.send("y\r");
    terminal.wait_after("command: echo two", "why not:");
    terminal.send("not that one\r");
    terminal.wait("│ The first command printed a word.");
    terminal.wait_prompt("All done.");
    terminal.send("\x04");
    assert_eq!(terminal.end().0, Some(0));
    let tree = store.ok(&["show", "last", "--tree"]);
    assert!(tree.contains("not that one"), "{tree}");
}

#[test]
fn a_chat_with_a_model_alone_shortens_what_no_longer_fits() {
    let (store, _) = agent(&says("Hello."), "");
    let (model, url) = (format!("scripted:{}", store.beside("script.json")), store.url());
    let chat = feed(mynah(["chat", "-m", &model, "--log", &url]), b"hi\n");
    assert_eq!(chat.code, Some(0), "{}", chat.stderr);
    let records = store.run(&["show", "last", "--records", "--json"]).stdout;
    assert!(records.contains(r#""context_policy":{"max_tokens":32000"#), "{records}");
}

#[test]
fn a_small_context_is_shown_in_tokens() {
    let used = r#"[{"text": "Hello."}, {"usage": {"input_tokens": 350, "output_tokens": 2}}, {"finish": "stop"}]"#;
    let (store, agent) = agent(used, "[context]\nmax_tokens = 400\n");
    let chat = feed(mynah(["chat", &agent, "--log", &store.url()]), b"hi\n");
    assert!(chat.stderr.contains("context 88% of 400\n"), "{}", chat.stderr);
}

#[test]
fn in_a_pipe_there_is_the_answer_alone_and_a_run_ends_with_what_it_used() {
    let (store, agent) = agent(&[says("**Hello.**"), says("Again.")].join(","), "");
    let url = store.url();
    let chat = feed(mynah(["chat", &agent, "--log", &url]), b"hi\nand again\n");
    assert_eq!(
        (chat.code, chat.stdout.as_str()),
        (Some(0), "**Hello.**\nAgain.\n"),
        "{}",
        chat.stderr
    );
    let run = feed(mynah(["run", &agent, "--log", &url]), b"hi\n");
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), "**Hello.**\n"), "{}", run.stderr);
    for part in ["1 turn", "\n  mynah show ", "\n  mynah fork "] {
        assert!(run.stderr.contains(part), "{}", run.stderr);
    }
    let json = feed(mynah(["run", &agent, "--json", "--log", &url, "hi"]), b"");
    let lines = common::lines(&json);
    assert_eq!(lines[0]["event"]["type"], "message_started", "{}", json.stdout);
    assert!(lines.last().unwrap()["ok"].is_object(), "{}", json.stdout);
}

/// A folder with a program that stands for the browser: it writes the address that it is given into a file.
fn browser(store: &Store) -> (String, String) {
    use std::os::unix::fs::PermissionsExt as _;
    let (program, opened) = (store.beside("bin/xdg-open"), store.beside("opened"));
    std::fs::create_dir_all(store.beside("bin")).unwrap();
    std::fs::write(
        &program,
        format!("#!/bin/sh\necho \"$1\" > {opened}.new && mv {opened}.new {opened}\n"),
    )
    .unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    (format!("{}:{}", store.beside("bin"), path.to_str().unwrap()), opened)
}

/// Waits for the address that the browser was given.
#[expect(clippy::disallowed_methods, reason = "a test waits for a process")]
fn address(opened: &str) -> String {
    for _ in 0..600 {
        if let Ok(address) = std::fs::read_to_string(opened) {
            return address.trim().to_owned();
        }
        thread::sleep(Duration::from_millis(100));
    }
    unreachable!("no browser was opened")
}

const CTRL_C: &str = "\x03";

#[test]
fn inspect_opens_a_browser_on_a_display_unless_it_must_not() {
    let store = Store::with(common::RUNS);
    let (path, opened) = browser(&store);
    let inspect = ["inspect", "--listen", "127.0.0.1:0"];
    let display = [("PATH", &*path), ("DISPLAY", ":0"), ("WAYLAND_DISPLAY", "")];
    let remote = [&display[..], &[("SSH_CONNECTION", "1")]].concat();
    let none = [("PATH", &*path), ("DISPLAY", ""), ("WAYLAND_DISPLAY", "")];
    for (arguments, environment) in [
        (&[&inspect[..], &["--no-open"]].concat(), &display[..]),
        (&inspect.to_vec(), &none),
        (&inspect.to_vec(), &remote),
    ] {
        let mut terminal = Terminal::new(&store, arguments, 80, environment);
        terminal.wait("listening on http://127.0.0.1:");
        terminal.send(CTRL_C);
        assert_eq!(terminal.end().0, Some(0));
        assert!(!std::path::Path::new(&opened).exists(), "{arguments:?} {environment:?}");
    }
    let mut terminal = Terminal::new(&store, &inspect, 80, &display);
    let screen = terminal.wait("listening on http://127.0.0.1:");
    assert!(screen.contains(&address(&opened)), "{screen}");
    terminal.send(CTRL_C);
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn the_demonstration_ends_with_the_inspector_if_that_is_wanted() {
    let store = Store::new();
    let (path, opened) = browser(&store);
    let environment = [("PATH", &*path), ("DISPLAY", ":0")];
    for (answer, folder) in [("n\r", "one"), ("\r", "two")] {
        let folder = store.beside(folder);
        let mut terminal = Terminal::start(&store, &["demo", "--dir", &folder], 80, &environment);
        terminal.wait("See the run in a browser now? [Y/n]");
        terminal.send(answer);
        if answer == "\r" {
            terminal.wait("listening on http://127.0.0.1:");
            assert!(address(&opened).starts_with("http://127.0.0.1:"));
            terminal.send(CTRL_C);
        }
        assert_eq!(terminal.end().0, Some(0));
    }
}

#[test]
fn files_are_completed_and_attached_and_a_long_text_is_pasted_as_one_message() {
    let (store, agent) = agent(&[says("Read."), says("Seen."), says("Pasted.")].join(","), "");
    let notes = store.file("notes-of-today.txt", "The owl sleeps.\n");
    let picture = store.beside("owl.png");
    fs::write(&picture, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR").unwrap();
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    terminal.send(&format!("See @{}\t\r", notes.replace("of-today.txt", "")));
    terminal.wait_prompt("Read.");
    terminal.send(&format!("And @{picture}\r"));
    terminal.wait_prompt("Seen.");
    let lines: Vec<String> = (1..=120).map(|line| format!("line {line} of a long text")).collect();
    terminal.send(&format!("\x1b[200~{}\x1b[201~", lines.join("\n")));
    terminal.wait("line 120 of a long text");
    terminal.send("\r");
    terminal.wait_prompt("Pasted.");
    terminal.send("\x04");
    assert_eq!(terminal.end().0, Some(0));
    let shown = store.json(&["show", "last", "--records"]);
    let all = store.json(&["runs"]).len();
    assert_eq!(all, 3, "a pasted text is one message");
    let pasted = shown[0]["fact"]["thread"]["messages"].to_string();
    assert!(pasted.contains("line 1 of") && pasted.contains("line 120 of"), "{pasted}");
    let runs = store.json(&["runs"]);
    let first = |run: usize| {
        let id = runs[run]["run_id"].as_str().unwrap();
        store.json(&["show", id, "--records"])[0]["fact"]["thread"]["messages"].to_string()
    };
    assert!(first(2).contains("The owl sleeps."), "{}", first(2));
    assert!(first(1).contains("image/png"), "{}", first(1));
    let shown =
        |more: &[&str]| store.ok(&[&["show", runs[1]["run_id"].as_str().unwrap()], more].concat());
    let text = format!("user: And @{picture}\n\n[image: image/png, 16 bytes]\n");
    assert!(shown(&[]).contains(&text), "{}", shown(&[]));
    let entry = r#"{"type":"image","seq":1,"mime_type":"image/png","bytes":16,"source":null}"#;
    assert!(shown(&["--json"]).contains(entry), "{}", shown(&["--json"]));
}

#[test]
fn at_forty_columns_a_call_is_approved_and_its_result_is_folded() {
    let command = "seq -f 'a row that is wider than forty columns %g' 1 9";
    let (store, agent) = agent(&[shell("c0", command), says("Nine.")].join(","), SHELL);
    let mut terminal = Terminal::new(&store, &["chat", &agent], 40, &[]);
    terminal.wait("›");
    terminal.send("Count.\r");
    let screen = terminal.wait_after("asks for approval", "why not:");
    assert!(screen.contains("columns %g'"), "the whole command is shown:\n{screen}");
    // Arguments that were looked at and not changed are those of the model.
    terminal.send("e\r");
    terminal.wait("arguments:");
    terminal.send("\r");
    let screen = terminal.wait_prompt("Nine.");
    assert!(screen.contains("5 more lines") && !screen.contains("exit_code"), "{screen}");
    assert!(!screen.contains("changed"), "{screen}");
    let rows: Vec<&str> = screen.lines().filter(|row| row.contains("│ ")).collect();
    assert!(rows.len() <= 5 && rows.iter().all(|row| row.chars().count() <= 40), "{screen}");
    terminal.send("\x04");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_tool_of_an_mcp_server_of_others_is_approved_in_place() {
    // `cargo xtask mcp` installs the server and sets the variable.
    let Some(peers) = env::var_os("MYNAH_MCP_PEERS").map(PathBuf::from) else {
        println!("skipped: MYNAH_MCP_PEERS does not name a folder with mcp-server-time");
        return;
    };
    let arguments =
        r#"{"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}"#;
    let call = format!(r#"{{"id": "c0", "name": "time_convert_time", "arguments": {arguments}}}"#);
    let call = format!(r#"[{{"tool_call": {call}}}, {{"finish": "tool_calls"}}]"#);
    let python = peers.join("bin/python");
    let server =
        format!("[mcp.time]\ncommand = ['{}', '-m', 'mcp_server_time']\n", python.display());
    let (store, agent) = agent(&[call, says("It is nine in Tokyo.")].join(","), &server);
    let mut terminal = Terminal::new(&store, &["chat", &agent], 80, &[]);
    terminal.wait("›");
    terminal.send("When it is noon in London, what time is it in Tokyo?\r");
    terminal.wait_after("time_convert_time asks for approval", "why not:");
    terminal.send("y\r");
    let screen = terminal.wait_prompt("It is nine in Tokyo.");
    assert!(screen.contains("✓ time_convert_time") && screen.contains("Asia/Tokyo"), "{screen}");
    terminal.send("\x04");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_real_model_is_talked_to_stopped_and_talked_to_again() {
    // `cargo xtask interop` starts llama.cpp with a small model and sets the variable.
    let Some(url) = env::var_os("MYNAH_LLAMA_URL").and_then(|url| url.into_string().ok()) else {
        println!("skipped: MYNAH_LLAMA_URL does not name a server");
        return;
    };
    let store = Store::new();
    let model = format!("model = {{ name = 'llamacpp:default', base_url = '{url}' }}\n");
    let agent = store.file("agent.toml", &format!("{model}[params]\nmax_tokens = 400\n"));
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    terminal.send("Tell me a long story about a mynah bird.\r");
    // The words of a small model differ each time. They are English.
    terminal.wait_after("mynah bird.", "the ");
    terminal.send("\x03");
    terminal.wait_prompt("stopped");
    terminal.send("Say hello.\r");
    terminal.wait_after("Say hello.", "tokens");
    terminal.child.kill().unwrap();
    drop(terminal);
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    terminal.send("/cost\r");
    terminal.wait_prompt("2 turns");
    terminal.send("\x04");
    assert_eq!(terminal.end().0, Some(0));
    let run = feed(mynah(["run", &agent, "Say hello.", "--log", &store.url()]), b"");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(!run.stdout.trim().is_empty() && run.stderr.contains("1 turn"), "{}", run.stderr);
}
