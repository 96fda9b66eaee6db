//! Conversations in a terminal: commands, questions, files, and what is drawn.

#![cfg(target_os = "linux")]

use std::{fs, os::unix::fs::PermissionsExt as _, thread, time::Duration};

use crate::{
    common::{self, Store, feed, mynah},
    pty::{SHELL, Terminal, agent, says, shell},
};

/// An answer that calls `ask_user` with choices.
const ASKS: &str = r#"[{"tool_call": {"id": "q0", "name": "ask_user", "arguments": {"question": "Which soup?", "choices": ["tomato", "onion"]}}}, {"finish": "tool_calls"}]"#;

/// An answer that breaks off.
pub(crate) const BREAKS: &str =
    r#"[{"text": "Well"}, {"error": "rate_limited", "message": "too fast"}]"#;

/// The ids of the conversations of a log, that of the newest run first.
fn sessions(store: &Store) -> Vec<String> {
    let runs = store.json(&["runs"]);
    runs.iter().filter_map(|run| run["session_id"].as_str().map(str::to_owned)).collect()
}

/// Ends a chat.
fn leave(mut terminal: Terminal) -> String {
    terminal.send("\x04");
    let (code, all) = terminal.end();
    assert_eq!(code, Some(0), "{all}");
    all
}

#[test]
fn wide_characters_leave_one_row_of_a_call() {
    let command = format!("sleep 1.5; : {}", "鳥".repeat(60));
    let (store, agent) =
        agent(&[shell("c0", &command), says("Flown.")].join(","), "[tools]\nshell = 'allow'\n");
    let terminal = Terminal::new(&store, &["run", &agent, "Fly."], 40, &[]);
    let screen = terminal.wait("Flown.");
    assert_eq!(screen.matches("sleep").count(), 1, "{screen}");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_long_paragraph_is_not_drawn_with_each_of_its_pieces() {
    let piece = r#"{"text": "seventeen letters "}"#;
    let pieces =
        format!(r#"[{}, {{"text": "END"}}, {{"finish": "stop"}}]"#, [piece; 4000].join(","));
    let (store, agent) = agent(&pieces, "");
    let (code, all) = Terminal::new(&store, &["run", &agent, "Write."], 80, &[]).end();
    assert_eq!(code, Some(0));
    let drawn = all.matches("\x1b[J").count();
    assert!(all.contains("END") && drawn < 2000, "{drawn} times");
}

#[test]
fn choices_are_numbered_and_a_number_chooses() {
    let (store, agent) =
        agent(&[ASKS, &says("Good choice.")].join(","), "[tools]\nask_user = true\n");
    let waits = store.run(&["run", &agent, "Soup!"]);
    assert_eq!(waits.code, Some(3));
    let said = "waits for an answer: Which soup? (choices: tomato, onion)\n";
    assert!(waits.stderr.contains(said), "{}", waits.stderr);
    let mut terminal = Terminal::new(&store, &["chat", &agent], 80, &[]);
    terminal.wait("›");
    terminal.send("Soup!\r");
    let screen = terminal.wait_after("2  onion", "1-2, or an answer:");
    assert!(screen.contains("Which soup?") && screen.contains("1  tomato"), "{screen}");
    // Enter alone is no answer.
    terminal.send("\r");
    terminal.wait_after("or an answer: \n", "or an answer:");
    terminal.send("7\r");
    terminal.wait_after("there is no choice 7", "or an answer:");
    terminal.send("2\r");
    terminal.wait_prompt("Good choice.");
    leave(terminal);
    assert!(store.ok(&["show", "last"]).contains("onion\n"), "{}", store.ok(&["show", "last"]));
}

#[test]
fn a_question_of_an_agent_says_which_agent_asks() {
    let front = r#"[{"tool_call": {"id": "c0", "name": "waiter", "arguments": {"task": "Order."}}}, {"finish": "tool_calls"}]"#;
    let waiter = "[agents.waiter]\ndescription = 'Serves.'\nmodel = 'scripted:waiter.json'\ntools = { ask_user = true }\n";
    let (store, agent) = agent(&[front, &says("Served.")].join(","), waiter);
    let script = [ASKS, &says("Onion soup.")].join(",");
    store.file("waiter.json", &format!(r#"{{"scripts": [{script}]}}"#));
    let waits = store.run(&["run", &agent, "Soup!"]);
    let said = "waits for an answer to waiter: Which soup? (choices: tomato, onion)\n";
    assert!(waits.stderr.contains(said), "{}", waits.stderr);
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    terminal.send("Soup!\r");
    terminal.wait_after("waiter asks: Which soup?", "or an answer:");
    terminal.send("onion\r");
    terminal.wait_prompt("Served.");
    leave(terminal);
}

#[test]
fn a_run_that_was_left_at_a_question_is_resumed_in_place() {
    let calls = shell("c0", "echo one-$((1+0))").replace(
        r#", {"finish""#,
        r#", {"tool_call": {"id": "c1", "name": "shell", "arguments": {"command": "echo two"}}}, {"finish""#,
    );
    let scripts = [calls, shell("c2", "echo three-$((1+2))"), says("# Done")];
    let (store, agent) = agent(&scripts.join(","), SHELL);
    let mut terminal = Terminal::new(&store, &["run", &agent, "Count."], 80, &[]);
    terminal.wait("why not:");
    terminal.send("\x03");
    let (code, all) = terminal.end();
    assert!(code == Some(130) && all.contains("mynah resume"), "{all}");
    // Without a terminal one command approves all.
    let waits = store.run(&["resume", "last", "--agent", &agent]);
    assert_eq!(waits.code, Some(3));
    let said = "waits for approval of shell {\"command\":\"echo one-$((1+0))\"} [c0], shell";
    assert!(waits.stderr.contains(said), "{}", waits.stderr);
    assert!(waits.stderr.contains(" --approve c0 --approve c1\n"), "{}", waits.stderr);
    let mut terminal = Terminal::new(&store, &["resume", "last", "--agent", &agent], 80, &[]);
    terminal.wait_after("command: echo one", "why not:");
    // Only the question that was shown is answered.
    terminal.send("y\ry\r");
    terminal.wait_after("command: echo two", "why not:");
    terminal.send("no\r");
    terminal.wait_after("command: echo three", "why not:");
    terminal.send("y\r");
    let (code, all) = terminal.end();
    assert_eq!(code, Some(0), "{all}");
    for part in ["one-1", "✓", "three-3", "Done", "3 turns"] {
        assert!(all.contains(part), "{part} in {all}");
    }
    assert!(!all.contains("# Done"), "the answer is rendered: {all}");
    assert!(store.ok(&["show", "last"]).contains("[c1] rejected"));
}

#[test]
fn a_decision_on_the_command_line_is_followed_by_questions_in_place() {
    let scripts = [shell("c0", "echo one"), shell("c1", "echo two"), says("Done.")];
    let (store, agent) = agent(&scripts.join(","), SHELL);
    assert_eq!(store.run(&["run", &agent, "Count."]).code, Some(3));
    let resume = ["resume", "last", "--agent", &agent, "--approve", "c0"];
    let mut terminal = Terminal::new(&store, &resume, 80, &[]);
    terminal.wait_after("command: echo two", "why not:");
    // Leaving says how to continue.
    terminal.send("\x04");
    let (code, all) = terminal.end();
    assert!(code == Some(3) && all.contains("--approve c1"), "{all}");
}

#[test]
fn taking_back_stays_in_the_forked_conversation() {
    let scripts = ["One.", "Two.", "Three."].map(says);
    let (store, agent) = agent(&scripts.join(","), "");
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "old"], 80, &[]);
    terminal.wait("›");
    terminal.send("first\r");
    terminal.wait_prompt("One.");
    terminal.send("second\r");
    terminal.wait_prompt("Two.");
    terminal.send("/fork old\r");
    terminal.wait_prompt("there is a conversation old already");
    terminal.send("/fork new\r");
    terminal.wait_prompt("the conversation new now");
    terminal.send("/undo 9\r");
    terminal.wait_prompt("the conversation has 2 messages; nothing was taken back");
    terminal.send("/undo\r");
    terminal.wait_prompt("took back: second");
    terminal.send("third\r");
    terminal.wait_prompt("Three.");
    terminal.send("/runs\r");
    terminal.wait_prompt("1 turn,");
    leave(terminal);
    assert_eq!(sessions(&store), ["new", "new", "new", "old", "old"]);
    let shown = store.ok(&["show", "last"]);
    assert!(shown.contains("-- 2 messages before") && shown.contains("third"), "{shown}");
}

#[test]
fn an_approval_for_the_session_does_not_hold_in_another_one() {
    let turn = |id: &str| [shell(id, &format!("echo {id}")), says(&format!("Did {id}."))].join(",");
    let scripts = ["c0", "c1", "c2", "c3"].map(turn);
    let (store, agent) = agent(&scripts.join(","), SHELL);
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    terminal.send("go\r");
    terminal.wait_after("command: echo c0", "why not:");
    terminal.send("a\r");
    terminal.wait_prompt("Did c0.");
    terminal.send("/undo\r");
    terminal.wait_prompt("took back: go");
    terminal.send("go\r");
    terminal.wait_prompt("Did c1.");
    terminal.send("/fork other\r");
    terminal.wait_prompt("the conversation other now");
    terminal.send("go\r");
    terminal.wait_after("command: echo c2", "why not:");
    terminal.send("a\r");
    terminal.wait_prompt("Did c2.");
    terminal.send("/clear\r");
    terminal.wait_prompt("a new conversation begins");
    terminal.send("go\r");
    terminal.wait_after("command: echo c3", "why not:");
    terminal.send("n\r");
    terminal.wait_prompt("Did c3.");
    leave(terminal);
}

#[test]
fn a_failed_message_is_sent_again_and_is_not_what_undo_takes_back() {
    let scripts = [&says("One."), BREAKS, &says("Two."), BREAKS, &says("Three.")];
    let (store, agent) = agent(&scripts.join(","), "");
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    terminal.send("first\r");
    terminal.wait_prompt("One.");
    terminal.send("second\r");
    terminal.wait_prompt("/retry sends it again");
    terminal.send("/retry\r");
    let screen = terminal.wait_prompt("Two.");
    assert!(!screen.contains("took back"), "{screen}");
    terminal.send("third\r");
    terminal.wait_after("third", "/retry sends it again");
    terminal.wait_after("third", "\n›");
    terminal.send("/undo 9\r");
    terminal.wait_prompt("the conversation has 2 messages; nothing was taken back");
    terminal.send("/undo\r");
    terminal.wait_prompt("took back: second");
    terminal.send("fourth\r");
    terminal.wait_prompt("Three.");
    leave(terminal);
    let shown = store.ok(&["show", "last"]);
    assert!(shown.contains("-- 2 messages before"), "{shown}");
}

#[test]
fn files_are_attached_by_quoted_and_escaped_names_and_others_are_named() {
    let (store, agent) = agent(&[says("Read."), says("Hm.")].join(","), "");
    let notes = store.file("my notes.md", "The owl sleeps.\n```\ncode\n```\n");
    let escaped = notes.replace(' ', "\\ ");
    let mut terminal = Terminal::new(&store, &["chat", &agent], 200, &[("HOME", "/nowhere")]);
    terminal.wait("›");
    // The completion escapes the space.
    terminal.send(&format!("See @{}\t, please\r", escaped.replace("\\ notes.md", "")));
    terminal.wait_prompt("Read.");
    terminal.send(&format!("And @\"{notes}\", @~/gone.png and @alice\r"));
    let screen = terminal.wait_prompt("Hm.");
    assert_eq!(screen.matches(&format!("attached {notes}")).count(), 2, "{screen}");
    assert!(screen.contains("there is no file ~/gone.png; the message is sent"), "{screen}");
    assert!(!screen.contains("no file alice"), "{screen}");
    leave(terminal);
    let shown = store.ok(&["show", "last"]);
    assert!(shown.contains("````\nThe owl sleeps.\n```\ncode\n```\n````"), "{shown}");
}

#[test]
fn messages_that_requests_leave_out_are_counted() {
    let long = "word ".repeat(60);
    let scripts: Vec<String> =
        (1..=6).map(|turn| says(&format!("Answer {turn}. {long}"))).collect();
    let (store, agent) =
        agent(&scripts.join(","), "context = { max_tokens = 400, keep_turns = 1 }\n");
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    for turn in 1..=6 {
        terminal.send(&format!("Question {turn}. {long}\r"));
        terminal.wait_prompt(&format!("Answer {turn}."));
        terminal.wait_after(&format!("Answer {turn}."), "tokens");
    }
    let screen = terminal.wait("left out of requests");
    assert!(screen.contains(" older messages left out"), "{screen}");
    leave(terminal);
    let shown = store.ok(&["show", "last"]);
    assert!(shown.contains("older messages left out of requests\n"), "{shown}");
    let told = store.json(&["show", "last"]);
    assert!(told.iter().any(|told| told["type"] == "left_out"), "{told:?}");
}

#[test]
fn commands_show_export_clear_and_change_the_model() {
    let scripts = [shell("c0", "seq 1 9"), says("Nine."), says("Again.")];
    let (store, agent) = agent(&scripts.join(","), "[tools]\nshell = 'allow'\n");
    store.file("other.json", r#"{"scripts": [[{"text": "Other."}, {"finish": "stop"}]]}"#);
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    terminal.send("/result\r");
    terminal.wait_prompt("no tool has returned a result yet");
    terminal.send("Count.\r");
    terminal.wait_prompt("Nine.");
    terminal.send("/result\r");
    terminal.wait_after("Nine.", "  9\n");
    terminal.send(&format!("/export {} --html\r", store.beside("out.html")));
    terminal.wait_after("/export", "\n›");
    // What is typed after a line is the next one.
    terminal.send(&format!("/export {}\r/cost\r", store.beside("out.jsonl")));
    terminal.wait_after("/cost", "2 turns");
    terminal.send("/retry\r");
    terminal.wait_prompt("Again.");
    terminal.send("/clear\r");
    terminal.wait_prompt("a new conversation begins");
    terminal.send("/model scripted:other.json\r");
    terminal.wait_after("/model", "model: ");
    terminal.send("Who?\r");
    terminal.wait_prompt("Other.");
    leave(terminal);
    assert_eq!(common::run(["verify", &store.beside("out.jsonl")]).code, Some(0));
    assert!(fs::read_to_string(store.beside("out.html")).unwrap().contains("<html"));
    let sessions = sessions(&store);
    assert!(sessions[0].starts_with("chat-") && sessions[1..] == ["s", "s"], "{sessions:?}");
    let shown = store.ok(&["show", "last"]);
    assert!(!shown.contains("before") && shown.contains("Who?"), "{shown}");
    assert_eq!(store.run(&["verify"]).code, Some(0));
}

#[test]
fn a_model_whose_key_is_missing_is_named_when_it_is_chosen() {
    let (store, agent) = agent(&says("One."), "");
    let url = store.url();
    for who in [&["chat", &agent][..], &["chat", "-m", "openai:gpt-5.4-mini"]] {
        let mut chat = mynah(who.iter().copied().chain(["--log", &url]));
        chat.env_remove("ANTHROPIC_API_KEY").env_remove("OPENAI_API_KEY");
        let chat = feed(chat, b"/model anthropic:claude-sonnet-5\n");
        assert_eq!(chat.code, Some(0), "{}", chat.stderr);
        assert!(chat.stderr.contains("ANTHROPIC_API_KEY"), "{who:?}: {}", chat.stderr);
        assert!(chat.stderr.contains("model: anthropic:claude-sonnet-5\n"), "{}", chat.stderr);
    }
}

#[test]
fn the_list_of_commands_is_wrapped_beside_their_names() {
    let (store, agent) = agent(&says("One."), "");
    let mut terminal = Terminal::new(&store, &["chat", &agent], 60, &[]);
    terminal.wait("›");
    terminal.send("/help\r");
    let screen = terminal.wait_prompt("Ctrl-D does too");
    let wrapped =
        "/undo     take the last message and its answer back, or\n            more: /undo [N]\n";
    assert!(screen.contains(wrapped), "{screen}");
    leave(terminal);
}

#[test]
fn another_model_of_the_same_provider_is_called_at_the_same_server() {
    use crate::common::server::{Server, answer};
    let (store, server) =
        (Store::new(), Server::new([answer("One", "stop"), answer("Two", "stop")]));
    let chat =
        ["chat", "-m", "openai-chat:a", "--base-url", &server.url, "--api-key-env", "MY_KEY"];
    let mut terminal = Terminal::new(&store, &chat, 80, &[("MY_KEY", "sk-mine")]);
    terminal.wait("›");
    terminal.send("hi\r");
    terminal.wait_prompt("One");
    terminal.send("/model openai-chat:b\r");
    terminal.wait_prompt("model: openai-chat:b");
    terminal.send("hi\r");
    terminal.wait_prompt("Two");
    let all = leave(terminal);
    assert!(all.contains(&format!("--base-url {}", server.url)), "{all}");
    let (head, body) = &server.heard()[1];
    assert!(head.contains("sk-mine") && body["model"] == "b", "{head}{body}");
}

#[test]
fn arguments_of_several_lines_are_edited_in_the_editor() {
    let call = r#"[{"tool_call": {"id": "c0", "name": "write_file", "arguments": {"path": "a.txt", "content": "one\ntwo\n"}}}, {"finish": "tool_calls"}]"#;
    let (store, agent) = agent(
        &[call, &says("Written.")].join(","),
        "[tools]\nfiles = { root = '.', write = 'ask' }\n",
    );
    let editor = store.file("editor", "#!/bin/sh\nsed -i s/two/three/ \"$2\"\n");
    fs::set_permissions(&editor, fs::Permissions::from_mode(0o755)).unwrap();
    let command = format!("{editor} --wait");
    let environment = [("VISUAL", ""), ("EDITOR", &*command)];
    let mut terminal = Terminal::new(&store, &["chat", &agent], 80, &environment);
    terminal.wait("›");
    terminal.send("Write.\r");
    terminal.wait("why not:");
    terminal.send("e\r");
    terminal.wait("arguments: {\"path\":\"a.txt\"}");
    terminal.send("\r");
    terminal.wait_prompt("Written.");
    leave(terminal);
    assert_eq!(fs::read_to_string(store.beside("a.txt")).unwrap(), "one\nthree\n");
}

#[test]
fn the_newest_conversation_is_that_of_the_same_agent() {
    let (store, agent) = agent(&says("One."), "");
    let other = store.file("other.toml", "model = 'scripted:script.json'\n");
    for (agent, session) in [(&agent, "mine"), (&other, "theirs")] {
        let url = store.url();
        let chat = feed(mynah(["chat", agent, "--session", session, "--log", &url]), b"hi\n");
        assert_eq!(chat.code, Some(0), "{}", chat.stderr);
    }
    let terminal = Terminal::new(&store, &["chat", &agent, "--continue"], 80, &[]);
    terminal.wait_prompt("answer: One.");
    assert!(leave(terminal).contains("--session mine"));
    let model = format!("scripted:{}", store.beside("script.json"));
    let none = store.run(&["chat", "-m", &model, "--continue"]);
    assert_eq!(none.code, Some(2));
    assert!(none.stderr.contains("no conversation of this agent"), "{}", none.stderr);
}

#[test]
fn a_conversation_that_another_process_continued_is_loaded() {
    let (store, file) = agent(&[says("One."), says("Two."), says("Three.")].join(","), "");
    let chat = ["chat", &file, "--session", "s"];
    let mut terminals = [(); 2].map(|()| Terminal::new(&store, &chat, 80, &[]));
    terminals.iter().for_each(|terminal| drop(terminal.wait("›")));
    let [one, two] = &mut terminals;
    one.send("first\r");
    one.wait_prompt("One.");
    two.send("second\r");
    two.wait_prompt("another process continued this conversation");
    two.send("/retry\r");
    two.wait_prompt("One.");
    one.send("third\r");
    one.wait_prompt("another process continued this conversation");
    terminals.into_iter().for_each(|terminal| drop(leave(terminal)));
    let shown = store.ok(&["show", "last"]);
    assert!(shown.contains("-- 2 messages before") && shown.contains("second"), "{shown}");
}

#[test]
fn a_decided_question_is_no_answer_of_the_conversation() {
    let front = r#"[{"tool_call": {"id": "c0", "name": "helper", "arguments": {"task": "Look."}}}, {"finish": "tool_calls"}]"#;
    let helper = "[agents.helper]\ndescription = 'Helps.'\nmodel = 'scripted:helper.json'\ntools = { shell = 'ask' }\n";
    let (store, agent) = agent(&[front, &says("Done.")].join(","), helper);
    let script = [shell("s0", "sleep 60"), says("Slept.")].join(",");
    store.file("helper.json", &format!(r#"{{"scripts": [{script}]}}"#));
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    terminal.send("go\r");
    terminal.wait("why not:");
    terminal.send("y\r");
    terminal.wait("1 s");
    terminal.child.kill().unwrap();
    drop(terminal);
    let terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    let screen = terminal.wait("the last turn was interrupted");
    assert!(screen.contains("you: go") && !screen.contains("answer:"), "{screen}");
}

#[test]
fn arguments_that_do_not_fit_are_asked_for_again() {
    let (store, agent) = agent(&[shell("c0", "echo one"), says("Done.")].join(","), SHELL);
    let mut terminal = Terminal::new(&store, &["chat", &agent], 80, &[]);
    terminal.wait("›");
    terminal.send("go\r");
    terminal.wait("why not:");
    terminal.send("e\r");
    terminal.wait("arguments:");
    terminal.send("\x15{\"cmd\": 1}\r");
    terminal.wait_after("\"cmd\": 1}", "arguments: {\"cmd\":1}");
    terminal.send("\x15{\"command\": \"echo one\"}\r");
    let screen = terminal.wait_prompt("Done.");
    assert!(screen.contains("│ one"), "{screen}");
    leave(terminal);
}

#[test]
fn an_answer_that_is_cut_off_and_a_spent_budget_are_reported() {
    let cut = r#"[{"text": "Too mu"}, {"finish": "length"}]"#;
    let (store, file) = agent(cut, "");
    let run = store.run(&["run", &file, "hi"]);
    assert!(run.stderr.contains("the answer was cut off at its token limit"), "{}", run.stderr);
    let spends = "budget = { turns = 1 }\n[tools]\nshell = 'allow'\n";
    let (store, file) = agent(&[shell("c0", "echo one"), says("Never.")].join(","), spends);
    let chat = feed(mynah(["chat", &file, "--log", &store.url()]), b"hi\n");
    assert_eq!(chat.code, Some(1), "{}", chat.stderr);
    assert!(chat.stderr.contains("budget_exceeded: turns"), "{}", chat.stderr);
    let mut terminal = Terminal::new(&store, &["chat", &file, "--session", "s"], 80, &[]);
    terminal.wait("›");
    terminal.send("hi\r");
    terminal.wait_prompt("budget_exceeded: turns");
    leave(terminal);
}

#[test]
fn the_form_of_a_servers_question_is_shown() {
    let call = r#"[{"tool_call": {"id": "c0", "name": "far_work", "arguments": {}}}, {"finish": "tool_calls"}]"#;
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/../mynah-mcp/tests/hostile.py");
    let far =
        format!("[mcp.far]\ncommand = ['python3', '{server}', 'asks']\npermission = 'allow'\n");
    let (store, file) = agent(&[call, &says("Met.")].join(","), &far);
    let mut terminal = Terminal::new(&store, &["chat", &file], 80, &[]);
    terminal.wait("›");
    terminal.send("Go far.\r");
    let form = "answer with the value of \"count\": integer, or decline";
    let screen = terminal.wait_after(form, "\n?");
    assert!(screen.contains("far_work asks: How many?"), "{screen}");
    terminal.send("2\r");
    terminal.wait_after("\"name\": string", "\n?");
    terminal.send("Ada\r");
    terminal.wait_prompt("Met.");
    leave(terminal);
}

#[test]
fn a_stopped_tool_is_not_shown_with_later_answers() {
    let (store, agent) = agent(
        &[
            shell("c0", "sleep 60"),
            r#"[{"text": "Sli"}, {"delay_ms": 1500}, {"text": "de."}, {"finish": "stop"}]"#
                .to_owned(),
        ]
        .join(","),
        "[tools]\nshell = 'allow'\n",
    );
    let mut terminal = Terminal::new(&store, &["chat", &agent], 80, &[]);
    terminal.wait("›");
    terminal.send("work\r");
    terminal.wait("1 s");
    terminal.send("\x03");
    let screen = terminal.wait_prompt("✗ shell sleep 60 stopped after");
    assert!(screen.contains("its tokens are not counted"), "{screen}");
    terminal.send("again\r");
    let screen = terminal.wait("Sli");
    assert_eq!(screen.matches("sleep 60").count(), 1, "{screen}");
    terminal.wait_prompt("Slide.");
    leave(terminal);
}

#[test]
fn a_call_that_a_question_displaces_is_named() {
    let calls = ASKS.replace(
        r#", {"finish""#,
        r#", {"tool_call": {"id": "c0", "name": "shell", "arguments": {"command": "echo never"}}}, {"finish""#,
    );
    let tools = "[tools]\nask_user = true\nshell = 'ask'\n";
    let (store, agent) = agent(&[calls, says("Soup.")].join(","), tools);
    let told = r#"not run, because a question comes first: shell {"command":"echo never"}"#;
    let run = store.run(&["run", &agent, "Soup!"]);
    assert!(run.code == Some(3) && run.stderr.contains(told), "{}", run.stderr);
    let mut terminal = Terminal::new(&store, &["chat", &agent], 120, &[]);
    terminal.wait("›");
    terminal.send("Soup!\r");
    terminal.wait_after(told, "or an answer:");
    terminal.send("1\r");
    terminal.wait_prompt("Soup.");
    leave(terminal);
}

#[test]
fn enter_alone_neither_rejects_nor_skips_a_call() {
    let (store, agent) = agent(&[shell("c0", "sleep 60"), says("Done.")].join(","), SHELL);
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("›");
    terminal.send("go\r");
    terminal.wait("why not:");
    terminal.send("\r");
    terminal.wait_after("why not: \n", "why not:");
    terminal.send("y\r");
    terminal.wait("1 s");
    terminal.child.kill().unwrap();
    drop(terminal);
    let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", "s"], 80, &[]);
    terminal.wait("its result:");
    terminal.send("\r");
    terminal.wait_after("its result: \n", "its result:");
    // Nor does any other text become its result.
    terminal.send("no\r");
    terminal.wait_after("its result: no\n", "its result:");
    terminal.send("g\r");
    terminal.wait("\nresult:");
    terminal.send("it slept\r");
    terminal.wait_prompt("Done.");
    leave(terminal);
    let shown = store.ok(&["show", "last"]);
    assert!(shown.contains("it slept"), "{shown}");
}

#[test]
fn the_context_that_the_agent_sets_is_what_is_used_up_and_a_summary_is_shown() {
    let answer = r#"[{"text": "Line one.\nLine two."}, {"usage": {"input_tokens": 900, "output_tokens": 100}}, {"finish": "stop"}]"#;
    let context = "context = { max_tokens = 4000, keep_turns = 1, older = 'summarise' }\n";
    let (store, agent) = agent(&[answer; 12].join(","), context);
    let long = "word ".repeat(1500);
    let said = format!("{long}\n").repeat(4);
    let chat = feed(mynah(["chat", &agent, "--log", &store.url()]), said.as_bytes());
    assert_eq!(chat.code, Some(0), "{}", chat.stderr);
    assert!(chat.stderr.contains("context 25% of 4k"), "{}", chat.stderr);
    assert!(!chat.stderr.contains("too long"), "{}", chat.stderr);
    let shown = store.ok(&["show", "last"]);
    assert!(shown.contains(" summarised\n   Line one.\n   Line two.\n"), "{shown}");
    let said = format!("{}\n", long.repeat(3));
    let chat = feed(mynah(["chat", &agent, "--log", &store.url()]), said.as_bytes());
    let warning = "this message may be too long for the model: about 5k tokens, of at most 4k";
    assert!(chat.stderr.contains(warning), "{}", chat.stderr);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test waits like a person")]
fn commands_and_attachments_that_cannot_be_used_are_named() {
    let call = r#"[{"tool_call": {"id": "c0", "name": "calculator", "raw_arguments": "{2 +"}}, {"finish": "tool_calls"}]"#;
    let (store, agent) = agent(
        &[says("Read."), call.to_owned(), says("Hm.")].join(","),
        "[tools]\ncalculator = true\n",
    );
    let (notes, bytes) = (store.file("notes.txt", "The owl sleeps.\n"), store.beside("bin.dat"));
    fs::write(&bytes, [0, 0xff, 0xfe]).unwrap();
    let mut terminal = Terminal::new(&store, &["chat", &agent], 200, &[]);
    let screen = terminal.wait_prompt("/help lists");
    assert!(screen.contains("scripted ·"), "{screen}");
    terminal.send("/show\r");
    terminal.wait_prompt("nothing was said yet");
    terminal.send("/Undo-all\r");
    terminal.wait_prompt("no command is called /Undo-all");
    terminal.send(&format!("see @{bytes}\r"));
    terminal.wait_prompt("bin.dat is neither a text nor a PNG");
    // Esc is no beginning of the next key.
    terminal.send("x\x1b");
    thread::sleep(Duration::from_millis(500));
    terminal.send("\x03");
    terminal.wait_prompt("Ctrl-D leaves");
    terminal.send(&format!("read (@{notes})\r"));
    let screen = terminal.wait_prompt("Read.");
    assert!(screen.contains(&format!("attached {notes}")), "{screen}");
    terminal.send("compute\r");
    let screen = terminal.wait_prompt("Hm.");
    assert!(screen.contains("calculator {2 +"), "{screen}");
    leave(terminal);
}

#[test]
fn a_call_of_an_agent_of_an_agent_has_the_whole_path() {
    let asks = |name: &str| {
        format!(
            r#"[{{"tool_call": {{"id": "c0", "name": "{name}", "arguments": {{"task": "Look."}}}}}}, {{"finish": "tool_calls"}}]"#
        )
    };
    let deep = "[agents.deep]\ndescription = 'Helps.'\nfile = 'deep.toml'\n";
    let (store, agent) = agent(&[asks("deep"), says("Done.")].join(","), deep);
    for (name, first, rest) in [
        ("deep", asks("deeper"), "[agents.deeper]\ndescription = 'Digs.'\nfile = 'deeper.toml'\n"),
        ("deeper", shell("s0", "echo dug"), SHELL),
    ] {
        let script = [first, says("Below.")].join(",");
        store.file(&format!("{name}.json"), &format!(r#"{{"scripts": [{script}]}}"#));
        store.file(&format!("{name}.toml"), &format!("model = 'scripted:{name}.json'\n{rest}"));
    }
    let mut terminal = Terminal::new(&store, &["chat", &agent], 80, &[]);
    terminal.wait("›");
    terminal.send("go\r");
    terminal.wait_after("deep/deeper/shell asks for approval", "why not:");
    terminal.send("y\r");
    terminal.wait_prompt("Done.");
    leave(terminal);
}
