//! The recording of a terminal that the guide shows: a conversation that survives a `kill -9`.
//!
//! `cargo xtask cast` writes it, as a person would type. Without that, the same is played at once and must show the same.

#![cfg(target_os = "linux")]

use std::{env, fs, num::NonZeroU16, path::Path, process::Command, thread, time::Duration};

use serde_json::{Value, json};

use crate::{common::Store, pty::Terminal};

const CAST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/terminal.cast");
const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images/terminal.svg");
const COLUMNS: u16 = 80;
const ROWS: u16 = 24;

const AGENT: &str = "\
model = 'scripted:script.json'
system = 'You analyse birds.csv.'

[tools]
shell = 'ask'
";

const BIRDS: &str = "species,country,count\ncommon myna,India,1200\ncommon myna,Australia,830\nhill myna,India,310\n";

/// What the recording shows, in this order.
const SHOWN: [&str; 8] = [
    "asks for approval",
    "✓ shell",
    "hill myna    310",
    "Killed",
    "the last turn was interrupted; it continues",
    "may have run before",
    "2340 mynas",
    "ok",
];

/// A model's answer in pieces, as fast as a person reads.
fn says(text: &str, pause: u64) -> Value {
    let mut script = Vec::new();
    for piece in text.split_inclusive(' ') {
        script.extend([json!({"delay_ms": pause}), json!({"text": piece})]);
    }
    let usage = json!({"usage": {"input_tokens": 812, "output_tokens": 64}});
    script.into_iter().chain([usage, json!({"finish": "stop"})]).collect()
}

fn calls(id: &str, command: &str, pause: u64) -> Value {
    let call = json!({"id": id, "name": "shell", "arguments": {"command": command}});
    let usage = json!({"usage": {"input_tokens": 640, "output_tokens": 31}});
    json!([{"delay_ms": 10 * pause}, {"tool_call": call}, usage, {"finish": "tool_calls"}])
}

/// A person at the keyboard, who types at once or as people do.
struct Person {
    terminal: Terminal,
    takes_time: bool,
}

impl Person {
    #[expect(clippy::disallowed_methods, reason = "a recording has the pace of a person")]
    fn pause(&self, millis: u64) {
        if self.takes_time {
            thread::sleep(Duration::from_millis(millis));
        }
    }

    fn types(&mut self, text: &str) {
        self.pause(700);
        for c in text.chars() {
            self.terminal.send(&c.to_string());
            self.pause(45);
        }
        self.pause(300);
        self.terminal.send("\r");
    }

    /// Ends the program that the shell runs, as a power cut would.
    fn kills(&mut self) {
        let shell = self.terminal.child.id();
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        let child = children.split_whitespace().next().unwrap().to_owned();
        assert!(Command::new("kill").args(["-9", &child]).status().unwrap().success());
    }
}

/// Plays the conversation. Returns the terminal, and the picture of its first answer.
fn play(store: &Store, takes_time: bool) -> (Terminal, String) {
    let pause = if takes_time { 60 } else { 0 };
    let sum = "awk -F, '/India/ { n[$1] += $3 } END { for (s in n) print s, n[s] }' birds.csv";
    let table = "In **India**:\n\n| species | count |\n|---|---|\n| common myna | 1200 |\n| hill myna | 310 |\n\n```sh\nawk -F, '/India/' birds.csv\n```\n";
    let all = "sleep 3; awk -F, '{ n += $3 } END { print n }' birds.csv";
    let scripts = [
        calls("c0", sum, pause),
        says(table, pause),
        calls("c1", all, pause),
        says("There are **2340 mynas** in the file.", pause),
    ];
    store.file("script.json", &json!({"scripts": scripts}).to_string());
    store.file("agent.toml", AGENT);
    let birds = store.file("birds.csv", BIRDS);
    let program = Path::new(env!("CARGO_BIN_EXE_mynah")).parent().unwrap();
    let mut shell = Terminal::command("bash");
    shell.args(["--norc", "--noprofile", "-i"]).current_dir(Path::new(&birds).parent().unwrap());
    let path = env::var_os("PATH").unwrap();
    let path = [program.to_owned()].into_iter().chain(env::split_paths(&path));
    shell.env("PATH", env::join_paths(path).unwrap());
    shell.env("PS1", "$ ").env("XDG_STATE_HOME", store.beside("state")).env_remove("MYNAH_LOG");
    shell.env_remove("HISTFILE").env_remove("PROMPT_COMMAND");
    let mut person = Person { terminal: Terminal::spawn(shell, COLUMNS, ROWS), takes_time };
    let chat = "mynah chat agent.toml --session birds";
    person.terminal.wait("$ ");
    person.types(chat);
    person.terminal.wait("›");
    person.types("How many mynas are there in India?");
    person.terminal.wait("why not:");
    person.types("y");
    person.terminal.wait_prompt("tokens");
    let picture = svg(person.terminal.shown.0.lock().unwrap().parser.screen());
    person.pause(1500);
    person.types("And in all?");
    person.terminal.wait_after("And in all?", "why not:");
    person.types("y");
    person.terminal.wait("1 s");
    person.kills();
    person.terminal.wait_after("Killed", "$ ");
    person.types(chat);
    person.terminal.wait_after("may have run before", "its result:");
    person.types("r");
    person.terminal.wait_after("2340 mynas", "›");
    person.pause(1000);
    person.types("/verify");
    person.terminal.wait_after("/verify", "›");
    person.pause(1000);
    person.terminal.send("\x04");
    person.terminal.wait_after("continue with", "$ ");
    person.terminal.send("exit\r");
    person.pause(500);
    (person.terminal, picture)
}

/// The output as lines of the format asciicast, version 2. Pieces that come at once are one.
fn cast(pieces: &[(Duration, Vec<u8>)]) -> String {
    let header = json!({"version": 2, "width": COLUMNS, "height": ROWS, "title": "mynah chat", "env": {"TERM": "xterm-256color"}});
    let (mut cast, mut pending, mut since) = (format!("{header}\n"), Vec::new(), Duration::ZERO);
    for (place, (time, bytes)) in pieces.iter().enumerate() {
        if pending.is_empty() {
            since = *time;
        }
        pending.extend(bytes);
        let next = pieces.get(place + 1).map(|(next, _)| *next);
        let is_soon =
            next.is_some_and(|next| next.saturating_sub(since) < Duration::from_millis(40));
        // A character may be cut.
        let Ok(text) = std::str::from_utf8(&pending) else { continue };
        if !is_soon {
            let seconds = since.as_millis() as f64 / 1000.0;
            cast += &format!("{}\n", json!([seconds, "o", text]));
            pending.clear();
        }
    }
    cast
}

/// Everything that a recording shows, with what scrolled away.
fn screen_of(cast: &str) -> String {
    let size = |count: u16| NonZeroU16::new(count).unwrap();
    let mut parser = vt100::Parser::new(size(500), size(COLUMNS), 0);
    for line in cast.lines().skip(1) {
        let event: Value = serde_json::from_str(line).unwrap();
        parser.process(event[2].as_str().unwrap().as_bytes());
    }
    parser.screen().contents()
}

/// A screen as a picture.
fn svg(screen: &vt100::Screen) -> String {
    const COLOURS: [&str; 8] =
        ["#555e6c", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#dcdfe4"];
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");
    let mut rows: Vec<String> = Vec::new();
    for row in 0..ROWS {
        let mut spans: Vec<(String, String)> = Vec::new();
        for column in 0..COLUMNS {
            let Some(cell) = screen.cell(row, column) else { continue };
            let colour = match cell.fgcolor() {
                vt100::Color::Idx(index) => COLOURS[usize::from(index % 8)],
                _ if cell.dim() => "#8a93a3",
                _ => "#dcdfe4",
            };
            let weight = if cell.bold() { " font-weight=\"bold\"" } else { "" };
            let style = format!("fill=\"{colour}\"{weight}");
            let text = if cell.has_contents() { cell.contents() } else { " " };
            match spans.last_mut() {
                Some((last, told)) if *last == style => *told += text,
                _ => spans.push((style, text.to_owned())),
            }
        }
        while spans.pop_if(|(_, text)| text.trim().is_empty()).is_some() {}
        let spans = spans.iter().map(|(style, text)| {
            format!("<tspan {style}>{}</tspan>", escaped(text.trim_end_matches('\0')))
        });
        rows.push(spans.collect());
    }
    while rows.pop_if(|row| row.is_empty()).is_some() {}
    let (width, height) = (u32::from(COLUMNS) * 8 + 32, rows.len() as u32 * 18 + 32);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"13.3\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#21252b\"/>\n"
    );
    for (row, text) in rows.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
        let y = 28 + 18 * row;
        svg += &format!("<text x=\"16\" y=\"{y}\" xml:space=\"preserve\">{text}</text>\n");
    }
    svg + "</svg>\n"
}

fn check(cast: &str, whose: &str) {
    let (mut rest, all) = (screen_of(cast), screen_of(cast));
    for text in SHOWN {
        let Some((_, after)) = rest.split_once(text) else {
            panic!("{whose}: {text:?} is not shown, or not in this order:\n{all}");
        };
        rest = after.to_owned();
    }
}

#[test]
fn the_recording_shows_what_the_terminal_shows_now() {
    let (store, takes_time) = (Store::new(), env::var_os("MYNAH_CAST").is_some());
    let (mut terminal, picture) = play(&store, takes_time);
    terminal.child.wait().unwrap();
    let now = cast(&terminal.shown.0.lock().unwrap().pieces);
    check(&now, "this terminal");
    if takes_time {
        fs::write(CAST, &now).unwrap();
        fs::write(PICTURE, picture).unwrap();
    }
    let kept = fs::read_to_string(CAST).unwrap();
    check(&kept, "docs/terminal.cast: `cargo xtask cast` makes it anew");
    assert!(kept.len() < 64 * 1024, "{} bytes", kept.len());
}
