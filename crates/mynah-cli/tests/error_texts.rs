//! The errors of the command that people meet most often, as text: what failed, where, and what to do.
//!
//! `MYNAH_BLESS=1 cargo test -p mynah-cli --test all error_texts::` writes the file that they are compared with.

use std::{env, fmt::Write as _, fs};

use crate::common::{RUNS, Store, feed, mynah};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/error_texts.txt");

/// `run-0` waits for an answer, `run-1` is complete, `run-4` has no end.
const CASES: &[(&str, &str)] = &[
    ("a log that does not exist", "show last --log sqlite:none.db"),
    ("a log that is not known", "runs --log mysql:runs"),
    ("a run that does not exist", "show run-9 --log sqlite:runs.db"),
    ("a record that does not exist", "show run-1 --record 99 --log sqlite:runs.db"),
    (
        "a run that waits, resumed without an answer",
        "resume run-0 --log sqlite:runs.db --agent agent.json",
    ),
    ("a run that has ended, cancelled", "cancel run-1 --log sqlite:runs.db"),
    ("a resume without an agent", "resume run-4 --log sqlite:runs.db"),
    ("a resume with a changed agent", "resume run-4 --log sqlite:runs.db --agent changed.json"),
    ("a replay with a changed agent", "replay run-1 --log sqlite:runs.db --agent changed.json"),
    (
        "a message to a run that has ended",
        "resume run-1 more --log sqlite:runs.db --agent agent.json",
    ),
    ("a fork after the end", "fork run-1 --at 99 --log sqlite:runs.db"),
    ("a changed bundle", "verify changed.mynah"),
    ("a file that does not exist", "play none.json"),
    ("a misspelt key of a scenario", "play misspelt.json"),
    ("an agent file that does not exist", "run none.toml hi"),
    ("a misspelt key of an agent file", "run misspelt.toml hi"),
    ("an unknown provider", "generate -m antropic:claude-sonnet-5 hi"),
    ("no key", "generate -m anthropic:claude-sonnet-5 hi"),
    (
        "a server that does not answer",
        "generate -m llamacpp:m --base-url http://127.0.0.1:9 --retries 0 hi",
    ),
    ("a misspelt option", "generate -m llamacpp:m --max-tokns 3 hi"),
];

#[test]
fn the_most_frequent_errors_name_what_failed_and_what_to_do() {
    let store = Store::with(RUNS);
    let folder = store.path.parent().unwrap();
    let (agent, _) = RUNS.split_once("\"ops\"").unwrap();
    let agent = agent.trim_end().trim_end_matches(',').to_owned() + "}";
    store.file("agent.json", &agent);
    store.file("changed.json", &agent.replace("\"order\", \"returns\"", "\"orders\", \"returns\""));
    store.file("misspelt.json", r#"{"scripts": [], "tool": [], "ops": []}"#);
    store.file("misspelt.toml", "modle = \"anthropic:claude-sonnet-5\"\n");
    let bundle = store.ok(&["export", "run-1"]);
    store.file("changed.mynah", &bundle.replacen("\"payload\":\"a", "\"payload\":\"b", 1));

    let mut texts = String::new();
    for (when, line) in CASES {
        let mut command = mynah(line.split(' '));
        command.current_dir(folder).env_remove("ANTHROPIC_API_KEY");
        let ran = feed(command, b"");
        let said = ran.stderr.trim_end().replace('\n', "\n    ");
        writeln!(
            texts,
            "{when}\n    $ mynah {line}\n    {said}\n    exit code {:?}\n",
            ran.code.unwrap()
        )
        .unwrap();
    }
    if env::var_os("MYNAH_BLESS").is_some() {
        fs::write(FILE, &texts).unwrap();
    }
    let kept = fs::read_to_string(FILE).unwrap();
    let differs = kept.lines().zip(texts.lines()).find(|(kept, text)| kept != text);
    assert!(kept == texts, "{FILE} differs: {differs:?}\n{texts}");
}
