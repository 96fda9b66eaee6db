//! Conversations in a pipe, and what a chat or a run refuses before it begins.

#![cfg(target_os = "linux")]

use std::fs;

use crate::{
    common::{Store, feed, mynah},
    conversation::BREAKS,
    pty::{agent, says, shell},
};

#[test]
fn a_failed_call_in_a_pipe_ends_the_chat_with_its_error() {
    let (store, agent) = agent(&[BREAKS, &says("Never.")].join(","), "");
    let chat = feed(mynah(["chat", &agent, "--log", &store.url()]), b"hi\nagain\n");
    assert_eq!(chat.code, Some(1), "{}", chat.stderr);
    assert!(chat.stderr.contains("too fast") && !chat.stderr.contains("/retry"), "{}", chat.stderr);
    assert!(!chat.stdout.contains("Never."), "{}", chat.stdout);
    assert!(chat.stderr.contains("the lines after this message were not sent"), "{}", chat.stderr);
    // A conversation whose only turn failed begins anew.
    for (answer, code) in [(BREAKS, 1), (&says("Fine."), 0)] {
        store.file("script.json", &format!(r#"{{"scripts": [{answer}]}}"#));
        let arguments = ["chat", &agent, "--session", "s", "--log", &store.url()];
        let chat = feed(mynah(arguments), b"hi\n");
        assert_eq!(chat.code, Some(code), "{}", chat.stderr);
        assert!(!chat.stderr.contains("not sent"), "{}", chat.stderr);
    }
    assert!(store.ok(&["show", "last"]).contains("Fine."));
}

#[test]
fn a_goal_and_what_is_piped_in_are_both_said_and_unread_input_is_reported() {
    let (store, file) = agent(&[says("One."), says("Two.")].join(","), "");
    let both = feed(mynah(["run", &file, "Review this.", "-", "--log", &store.url()]), b"+ line\n");
    assert_eq!(both.code, Some(0), "{}", both.stderr);
    assert!(store.ok(&["show", "last"]).contains("Review this.\n\n+ line\n"));
    let unread = feed(mynah(["run", &file, "Review this.", "--log", &store.url()]), b"+ line\n");
    assert!(unread.stderr.contains("standard input was not read"), "{}", unread.stderr);
}

#[test]
fn flags_that_an_agent_file_does_not_use_are_refused() {
    let (store, file) = agent(&says("Hi."), "");
    for flags in [&["--base-url", "http://127.0.0.1:1"][..], &["--retries", "1"]] {
        let refused = store.run(&[&["chat", &file], flags].concat());
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    }
    let model = format!("scripted:{}", store.beside("script.json"));
    let refused = store.run(&["chat", "-m", &model, "--var", "a=b"]);
    assert!(refused.stderr.contains("--var"), "{}", refused.stderr);
}

#[test]
fn a_chat_with_nothing_to_talk_to_names_both_ways() {
    let refused = Store::new().run(&["chat"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("an agent file") && refused.stderr.contains(" -m "));
}

#[test]
fn a_line_of_a_pipe_approves_no_call_and_answers_no_question() {
    let (store, agent) =
        agent(&[shell("c0", "touch made"), says("Never.")].join(","), "[tools]\nshell = 'ask'\n");
    let chat = feed(mynah(["chat", &agent, "--log", &store.url()]), b"go\ny\nsay z\n");
    assert_eq!(chat.code, Some(3), "{}", chat.stderr);
    assert!(chat.stderr.contains("--approve c0"), "{}", chat.stderr);
    assert!(!fs::exists(store.beside("made")).unwrap());
}

#[test]
fn a_file_that_cannot_be_attached_ends_a_chat_in_a_pipe() {
    let (store, agent) = agent(&says("Never."), "");
    let bytes = store.beside("bin.dat");
    fs::write(&bytes, [0, 0xff, 0xfe]).unwrap();
    let said = format!("see @{bytes}\nmore\n");
    let chat = feed(mynah(["chat", &agent, "--log", &store.url()]), said.as_bytes());
    assert_eq!((chat.code, &*chat.stdout), (Some(2), ""), "{}", chat.stderr);
    assert!(chat.stderr.contains("bin.dat is neither a text nor a PNG"), "{}", chat.stderr);
    assert!(chat.stderr.contains("the lines after this message were not sent"), "{}", chat.stderr);
    let folder = store.beside("");
    let said = format!("see @{folder}\n");
    let chat = feed(mynah(["chat", &agent, "--log", &store.url()]), said.as_bytes());
    assert_eq!(chat.code, Some(4), "{}", chat.stderr);
}
