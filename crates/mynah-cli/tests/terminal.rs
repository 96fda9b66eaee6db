//! `mynah chat`, `mynah run`, `mynah inspect` and `mynah demo` in a terminal.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a helper may fail the test that calls it")]

mod common;

use std::{
    fs::{File, OpenOptions},
    io::{Read as _, Write as _},
    num::NonZeroU16,
    process::{Child, Command},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use common::{Store, feed, mynah};
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

/// The longest that something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the terminal received: as its screen shows it, and as bytes.
struct Shown {
    parser: vt100::Parser,
    bytes: Vec<u8>,
}

/// The program in a terminal of its own.
struct Terminal {
    child: Child,
    keyboard: File,
    shown: Arc<(Mutex<Shown>, Condvar)>,
}

impl Terminal {
    /// With the log of the store.
    fn new(store: &Store, arguments: &[&str], columns: u16, environment: &[(&str, &str)]) -> Self {
        Self::start(store, &[arguments, &["--log", &store.url()]].concat(), columns, environment)
    }

    fn start(
        store: &Store,
        arguments: &[&str],
        columns: u16,
        environment: &[(&str, &str)],
    ) -> Self {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap();
        let side = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&side, size).unwrap();
        // Makes the terminal the one that Ctrl-C interrupts.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(env!("CARGO_BIN_EXE_mynah")).args(arguments);
        command.env_remove("NO_COLOR").env_remove("SSH_CONNECTION");
        command.env("TERM", "xterm-256color").env("XDG_STATE_HOME", store.beside("state"));
        command.envs(environment.iter().copied());
        command.stdin(side.try_clone().unwrap()).stdout(side.try_clone().unwrap()).stderr(side);
        let child = command.spawn().unwrap();
        drop(command);
        let keyboard = File::from(main);
        let size = |count: u16| NonZeroU16::new(count).unwrap();
        let parser = vt100::Parser::new(size(50), size(columns), 500);
        let shown = Arc::new((Mutex::new(Shown { parser, bytes: Vec::new() }), Condvar::new()));
        let (mut screen, watched) = (keyboard.try_clone().unwrap(), Arc::clone(&shown));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                let mut shown = watched.0.lock().unwrap();
                shown.parser.process(&buffer[..count]);
                shown.bytes.extend(&buffer[..count]);
                watched.1.notify_all();
            }
        });
        Self { child, keyboard, shown }
    }

    fn send(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen shows a text, and returns the screen.
    fn wait(&self, text: &str) -> String {
        let (shown, changed) = &*self.shown;
        let lacks = |shown: &mut Shown| !shown.parser.screen().contents().contains(text);
        let (shown, waited) =
            changed.wait_timeout_while(shown.lock().unwrap(), PATIENCE, lacks).unwrap();
        let screen = shown.parser.screen().contents();
        assert!(!waited.timed_out(), "{text:?} is not on the screen:\n{screen}");
        screen
    }

    /// Waits until the prompt for a message is shown after a text.
    fn wait_prompt(&self, text: &str) -> String {
        self.wait_after(text, "›")
    }

    /// Waits until something is shown after a text. What is typed before a question is shown does not answer it.
    fn wait_after(&self, text: &str, then: &str) -> String {
        let (shown, changed) = &*self.shown;
        let lacks = |shown: &mut Shown| {
            let screen = shown.parser.screen().contents();
            !screen.split_once(text).is_some_and(|(_, after)| after.contains(then))
        };
        let (shown, waited) =
            changed.wait_timeout_while(shown.lock().unwrap(), PATIENCE, lacks).unwrap();
        let screen = shown.parser.screen().contents();
        assert!(!waited.timed_out(), "no {then:?} after {text:?}:\n{screen}");
        screen
    }

    /// Waits for the end. Returns the exit code and all that was written.
    fn end(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        let bytes = self.shown.0.lock().unwrap().bytes.clone();
        (code, String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A test that failed leaves nothing behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A log with an agent beside it whose model answers so.
fn agent(scripts: &str, tools: &str) -> (Store, String) {
    let store = Store::new();
    store.file("script.json", &format!(r#"{{"scripts": [{scripts}]}}"#));
    let agent = store.file("agent.toml", &format!("model = 'scripted:script.json'\n{tools}"));
    (store, agent)
}

/// An answer with this text.
fn says(text: &str) -> String {
    format!(r#"[{{"text": {text:?}}}, {{"finish": "stop"}}]"#)
}

/// An answer that calls the shell.
fn shell(id: &str, command: &str) -> String {
    let call =
        format!(r#"{{"id": "{id}", "name": "shell", "arguments": {{"command": "{command}"}}}}"#);
    format!(r#"[{{"tool_call": {call}}}, {{"finish": "tool_calls"}}]"#)
}

const SHELL: &str = "[tools]\nshell = 'ask'\n";

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
    terminal.wait("not JSON");
    terminal.wait("arguments: {oops");
    terminal.send("\x15{\"command\": \"echo kept-$((4+4))\"}\r");
    let screen = terminal.wait_prompt("Edited done.");
    assert!(screen.contains("kept-8"), "{screen}");
    terminal.send("go\r");
    terminal.wait_after("command: echo one", "why not:");
    terminal.send("y\r");
    let screen = terminal.wait_prompt("First done.");
    assert!(screen.contains("one-2") && screen.contains("✓ shell"), "{screen}");
    terminal.send("again\r");
    terminal.wait_after("command: echo two", "why not:");
    terminal.send("not on Sundays\r");
    terminal.wait_prompt("Second done.");
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
    terminal.wait("the last turn was interrupted");
    terminal.wait_after("shell may have run before", "its result:");
    terminal.send("it printed late\r");
    terminal.wait_prompt("It is done.");
    terminal.send("I am back.\r");
    terminal.wait_prompt("Welcome back.");
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
    terminal.wait_prompt("Two.");
    terminal.send("two \\\rlines\r");
    terminal.wait_prompt("Three.");
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
    let last = run.stderr.lines().last().unwrap();
    assert!(run.stderr.contains("1 turn") && last.contains("mynah show"), "{}", run.stderr);
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
