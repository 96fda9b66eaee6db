//! Conversations that a later process continues: changed agents, taken back messages, forks.

#![cfg(target_os = "linux")]

use crate::{
    common::{Store, feed, mynah},
    pty::{SHELL, Terminal, agent, says, shell},
};

/// Starts to answer, and never ends.
const HANGS: &str = r#"[{"text": "Well, "}, {"delay_ms": 60000}, {"finish": "stop"}]"#;

fn chat(store: &Store, agent: &str, session: &str) -> Terminal {
    Terminal::new(store, &["chat", agent, "--session", session], 80, &[])
}

/// Ends a chat.
fn leave(mut terminal: Terminal) -> String {
    terminal.send("\x04");
    let (code, all) = terminal.end();
    assert_eq!(code, Some(0), "{all}");
    all
}

/// The first record of the last run.
fn asked(store: &Store) -> String {
    store.json(&["show", "last", "--records"])[0]["fact"]["thread"]["messages"].to_string()
}

fn prompted(prompt: &str) -> String {
    format!("model = 'scripted:script.json'\nsystem = '{prompt}'\n{SHELL}")
}

#[test]
fn a_turn_whose_agent_changed_continues_or_is_taken_back() {
    let scripts = [shell("c0", "echo one-$((1+0))"), says("First."), says("Second.")];
    let (store, agent) = agent(&scripts.join(","), SHELL);
    for (session, answer) in [("a", "c"), ("b", "t")] {
        store.file("agent.toml", &prompted("You are polite."));
        let mut terminal = chat(&store, &agent, session);
        terminal.wait("›");
        terminal.send("work\r");
        terminal.wait("why not:");
        terminal.send("\x04");
        let (code, all) = terminal.end();
        assert_eq!(code, Some(3), "{all}");
        let command = format!("continue with: mynah chat {agent} --session {session} --log");
        assert!(all.contains(&command), "{all}");
        store.file("agent.toml", &prompted("You are terse."));
        // No line of a pipe is an answer.
        let piped =
            feed(mynah(["chat", &agent, "--session", session, "--log", &store.url()]), b"c\ny\n");
        assert!(piped.code == Some(3) && piped.stderr.contains("--approve c0"), "{}", piped.stderr);
        // Who leaves at the question gets a command that works.
        let mut terminal = Terminal::new(&store, &["chat", &agent, "--session", session], 200, &[]);
        terminal.wait("back:");
        terminal.send("\x04");
        let (code, all) = terminal.end();
        assert!(code == Some(3) && all.contains(" --allow-changed-agent --approve c0"), "{all}");
        let mut terminal = chat(&store, &agent, session);
        let screen =
            terminal.wait_after("the agent changed since this turn began: the prompt\n", "back:");
        for prompt in ["recorded  \"You are polite.\"", "produced  \"You are terse.\""] {
            assert!(screen.contains(prompt), "{screen}");
        }
        // Enter alone decides nothing.
        terminal.send("\r");
        terminal.wait_after("back: \n", "back:");
        terminal.send(&format!("{answer}\r"));
        if answer == "c" {
            terminal.wait("why not:");
            terminal.send("y\r");
            let screen = terminal.wait_prompt("First.");
            assert!(screen.contains("one-1"), "{screen}");
            // The conversation has the new prompt already.
            terminal.send("more\r");
            let screen = terminal.wait_prompt("Second.");
            assert!(!screen.contains("the agent's prompt changed"), "{screen}");
        } else {
            terminal.wait_prompt("took the message back");
            terminal.send("/retry\r");
            terminal.wait("First.");
            terminal.wait_after("First.", "\n›");
        }
        let all = leave(terminal);
        assert!(!all.contains("allow_changed_engine") && !all.contains("::"), "{all}");
    }
    assert_eq!(store.run(&["verify"]).code, Some(0));
}

#[test]
fn a_call_of_a_tool_that_is_gone_is_skipped_or_gets_a_result() {
    let scripts = [shell("c0", "echo one"), says("First.")];
    let (store, agent) = agent(&scripts.join(","), SHELL);
    for (session, answer) in [("a", "s"), ("b", "g")] {
        store.file("agent.toml", &format!("model = 'scripted:script.json'\n{SHELL}"));
        let mut terminal = chat(&store, &agent, session);
        terminal.wait("›");
        terminal.send("work\r");
        terminal.wait("why not:");
        terminal.send("\x04");
        assert_eq!(terminal.end().0, Some(3));
        store.file("agent.toml", "model = 'scripted:script.json'\n");
        let mut terminal = chat(&store, &agent, session);
        terminal.wait_after("the agent changed since this turn began: the tools\n", "back:");
        terminal.send("c\r");
        let gone = "shell was called, and the agent has no tool that could run it";
        let screen = terminal.wait_after(gone, "its result:");
        assert!(screen.contains("give the agent the tool"), "{screen}");
        assert!(!screen.contains("approve?") && !screen.contains("[r]un"), "{screen}");
        terminal.send(&format!("{answer}\r"));
        if answer == "g" {
            terminal.wait("\nresult:");
            terminal.send("one\r");
        }
        terminal.wait_prompt("First.");
        leave(terminal);
    }
}

#[test]
fn a_call_of_a_tool_that_is_gone_is_left_with_a_command_that_works() {
    let scripts = [shell("c0", "echo one"), says("First.")];
    let (store, agent) = agent(&scripts.join(","), SHELL);
    assert_eq!(store.run(&["run", &agent, "work"]).code, Some(3));
    store.file("agent.toml", "model = 'scripted:script.json'\n");
    let resume = ["resume", "last", "--agent", &agent, "--allow-changed-agent"];
    let mut terminal = Terminal::new(&store, &resume, 200, &[]);
    terminal.wait_after("the agent has no tool that could run it", "its result:");
    terminal.send("\x04");
    let (code, all) = terminal.end();
    assert_eq!(code, Some(3), "{all}");
    let flags = " --allow-changed-agent --tool-result c0=JSON";
    assert!(all.contains(flags) && all.contains("--reject c0=TEXT"), "{all}");
    assert!(!all.contains("--approve"), "{all}");
    let given = store.run(&[&resume[..], &["--tool-result", "c0=1"]].concat());
    assert_eq!((given.code, given.stdout.as_str()), (Some(0), "First.\n"), "{}", given.stderr);
}

#[test]
fn an_interrupted_message_is_shown_and_answered_by_the_changed_agent() {
    let (store, agent) = agent(&[says("Hello."), HANGS.to_owned()].join(","), "");
    let mut terminal = chat(&store, &agent, "s");
    terminal.wait("›");
    terminal.send("hi\r");
    terminal.wait_prompt("Hello.");
    terminal.send("how are you?\r");
    terminal.wait("Well,");
    // Another process cannot take it meanwhile.
    let (code, all) = chat(&store, &agent, "s").end();
    assert!(code == Some(4) && all.contains("another process has this conversation"), "{all}");
    assert!(!all.contains("was interrupted") && !all.contains("leased"), "{all}");
    terminal.child.kill().unwrap();
    drop(terminal);
    store.file(
        "script.json",
        &format!(
            r#"{{"scripts": [{}]}}"#,
            [says("Hello."), says("Fine."), says("Third.")].join(",")
        ),
    );
    store.file("agent.toml", &prompted("You are polite."));
    let mut terminal = chat(&store, &agent, "s");
    let screen = terminal.wait_after("the agent changed since this turn began", "back:");
    assert!(screen.contains("you: how are you?"), "{screen}");
    terminal.send("c\r");
    let screen = terminal.wait_prompt("Fine.");
    assert!(screen.contains("the last turn was interrupted; it continues"), "{screen}");
    terminal.send("and now?\r");
    let screen = terminal.wait_prompt("Third.");
    assert!(!screen.contains("the agent's prompt changed"), "{screen}");
    leave(terminal);
    // The prompt joined the conversation in the turn before.
    for run in store.json(&["runs"]).iter().take(2) {
        let run = run["run_id"].as_str().unwrap();
        let replayed = store.run(&["replay", run, "--agent", &agent]);
        assert_eq!(replayed.code, Some(0), "{}", replayed.stderr);
    }
    let chat = ["chat", &agent, "--session", "s", "--log", &store.url()];
    let shown = feed(mynah(chat), b"/show\n");
    assert!(shown.stdout.contains("-- 5 messages before"), "{}", shown.stdout);
}

#[test]
fn a_fork_and_a_message_that_was_taken_back_outlive_the_process() {
    let scripts = ["One.", "Two.", "Three.", "Four."].map(says);
    let (store, agent) = agent(&scripts.join(","), "");
    let mut terminal = chat(&store, &agent, "s");
    terminal.wait("›");
    for (message, answer) in [("first", "One."), ("second", "Two."), ("third", "Three.")] {
        terminal.send(&format!("{message}\r"));
        terminal.wait_prompt(answer);
    }
    terminal.send("/UNDO 2\r");
    let screen = terminal.wait_prompt("took back: second");
    assert!(screen.contains("took back: third"), "{screen}");
    leave(terminal);
    let mut terminal = chat(&store, &agent, "s");
    let screen = terminal.wait_prompt("answer: One.");
    assert!(screen.contains("you: first"), "{screen}");
    terminal.send("/fork other\r");
    terminal.wait_prompt("the conversation other now");
    terminal.send("/runs\r");
    terminal.send("/undo 0\r");
    terminal.wait_after("/undo 0", "how many messages?");
    terminal.wait_after("how many messages?", "›");
    terminal.send("/undo x\r");
    // Between two prompts a terminal drops Ctrl-D.
    terminal.wait_prompt("/undo x");
    assert!(leave(terminal).contains("--session other"));
    let mut terminal = chat(&store, &agent, "other");
    terminal.wait_prompt("answer: One.");
    terminal.send("/undo\r");
    terminal.wait_prompt("took back: first");
    leave(terminal);
    // Nothing is left of it, and the one that it came from is as it was.
    let mut terminal = chat(&store, &agent, "other");
    let screen = terminal.wait_prompt("/help lists the commands");
    assert!(!screen.contains("you:"), "{screen}");
    terminal.send("new\r");
    terminal.wait_prompt("tokens");
    leave(terminal);
    assert!(asked(&store).contains("new") && !asked(&store).contains("first"), "{}", asked(&store));
    leave({
        let terminal = chat(&store, &agent, "s");
        terminal.wait_prompt("answer: One.");
        terminal
    });
    assert_eq!(store.run(&["verify"]).code, Some(0));
}

#[test]
fn a_message_that_was_stopped_at_a_question_does_not_come_back() {
    let (store, agent) =
        agent(&[says("Hello."), shell("c0", "true"), says("Bye.")].join(","), SHELL);
    let mut terminal = chat(&store, &agent, "s");
    terminal.wait("›");
    terminal.send("hi\r");
    terminal.wait_prompt("Hello.");
    terminal.send("work\r");
    terminal.wait("why not:");
    terminal.send("\x03");
    terminal.wait_prompt("as it was before this message");
    leave(terminal);
    let terminal = chat(&store, &agent, "s");
    let screen = terminal.wait_prompt("answer: Hello.");
    assert!(screen.contains("you: hi"), "{screen}");
    leave(terminal);
}

#[test]
fn an_answer_to_a_question_is_no_message_of_its_own() {
    let ask = r#"[{"tool_call": {"id": "q0", "name": "ask_user", "arguments": {"question": "Which?"}}}, {"finish": "tool_calls"}]"#;
    let scripts = [ask.to_owned(), says("Fine."), says("Again.")];
    let (store, agent) = agent(&scripts.join(","), "[tools]\nask_user = true\n");
    let piped = |lines: &[u8]| {
        feed(mynah(["chat", &agent, "--session", "s", "--log", &store.url()]), lines)
    };
    assert_eq!(piped(b"one\n").code, Some(3));
    let resumed = store.run(&["resume", "last", "--agent", &agent, "--answer", "green"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    let told = piped(b"/undo 2\n").stderr;
    assert!(told.contains("the conversation has 1 message; nothing was taken back"), "{told}");
    let terminal = chat(&store, &agent, "s");
    let screen = terminal.wait_prompt("answer: Fine.");
    assert!(screen.contains("you: one") && !screen.contains("green"), "{screen}");
    leave(terminal);
    let retried = piped(b"/retry\n");
    assert!(retried.stderr.contains("took back: one\n"), "{}", retried.stderr);
    assert!(asked(&store).contains("one") && !asked(&store).contains("green"), "{}", asked(&store));
}

#[test]
fn a_turn_that_continues_at_an_approval_shows_what_the_model_wrote_before_the_call() {
    let calls = shell("c0", "echo one").replacen('[', r#"[{"text": "I will count."}, "#, 1);
    let (store, agent) = agent(&[calls, says("Done.")].join(","), SHELL);
    let mut terminal = chat(&store, &agent, "s");
    terminal.wait("›");
    terminal.send("count\r");
    terminal.wait("why not:");
    terminal.child.kill().unwrap();
    drop(terminal);
    let mut terminal = chat(&store, &agent, "s");
    let screen = terminal.wait("why not:");
    assert!(screen.contains("I will count.\n"), "{screen}");
    terminal.send("y\r");
    terminal.wait_prompt("Done.");
    leave(terminal);
}

#[test]
fn a_model_without_a_key_or_an_address_does_not_end_a_chat_that_does_not_ask_it() {
    let (store, agent) = agent(&["One.", "Two."].map(says).join(","), "");
    let chat = |lines: &[u8]| {
        let mut chat = mynah(["chat", &agent, "--session", "s", "--log", &store.url()]);
        chat.env_remove("ANTHROPIC_API_KEY").env_remove("AZURE_OPENAI_ENDPOINT");
        feed(chat, lines)
    };
    let done =
        chat(b"one\ntwo\n/model anthropic:claude-sonnet-5\n/undo\n/model azure:x\n/fork other\n");
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stderr.contains("this is the conversation other now"), "{}", done.stderr);
    // What was taken back is recorded.
    assert!(chat(b"/undo\n").stderr.contains("took back: one\n"));
}

#[test]
fn the_prompt_of_the_agent_is_sent_also_in_a_continued_conversation() {
    let scripts = ["One.", "Two.", "Three.", "Four."].map(says);
    let (store, agent) = agent(&scripts.join(","), "");
    let says_so = "the agent's prompt changed";
    for (prompt, is_told) in
        [("You are polite.", false), ("You are terse.", true), ("You are terse.", false)]
    {
        store.file("agent.toml", &prompted(prompt));
        let url = store.url();
        let chat = feed(mynah(["chat", &agent, "--session", "s", "--log", &url]), b"hi\n");
        assert_eq!(chat.code, Some(0), "{}", chat.stderr);
        assert_eq!(chat.stderr.contains(says_so), is_told, "{}", chat.stderr);
        let request = recorded(&store);
        assert!(request.contains(prompt), "{request}");
        assert!(prompt == "You are polite." || !request.contains("polite"), "{request}");
    }
    let model = format!("scripted:{}", store.beside("script.json"));
    let chat =
        feed(mynah(["chat", "-m", &model, "--session", "s", "--log", &store.url()]), b"hi\n");
    assert!(chat.stderr.contains("this agent has no prompt"), "{}", chat.stderr);
    assert!(!recorded(&store).contains("You are"), "{}", recorded(&store));
    for run in store.json(&["runs"]) {
        let replayed = store.run(&["replay", run["run_id"].as_str().unwrap()]);
        assert_eq!(replayed.code, Some(0), "{}", replayed.stderr);
    }
}

/// The conversation of the last run.
fn recorded(store: &Store) -> String {
    let last = store.json(&["show", "last", "--records"]);
    let link = &last[0]["fact"]["about"]["session"]["previous"];
    let own = last[0]["fact"]["thread"]["messages"].to_string();
    match (link["messages"].as_u64(), link["run_id"].as_str()) {
        (Some(1..), Some(run)) => own + &store.run(&["show", run, "--records", "--json"]).stdout,
        _ => own,
    }
}
