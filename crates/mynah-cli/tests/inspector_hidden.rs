//! What the inspector says of records that are redacted or damaged, in a real browser.

use std::fs;

use crate::{
    chromium::Browser,
    common::{self, Store},
    served::Served,
};

/// Two concurrent calls and an answer. The second call takes longer.
const CALLS: &str = r#"{"engine": {"model": "m"}, "scripts": [
    [{"tool_call": {"id": "c0", "name": "trains", "arguments": {"to": "Vienna"}}},
     {"tool_call": {"id": "c1", "name": "hotels", "arguments": {"in": "Vienna"}}},
     {"usage": {"input_tokens": 50, "output_tokens": 9, "cached_input_tokens": 40, "reasoning_tokens": 5}}, {"finish": "tool_calls"}],
    [{"delay_ms": 100}, {"text": "The train leaves at nine."}, {"usage": {"input_tokens": 60, "output_tokens": 7, "cached_input_tokens": 50}}, {"finish": "stop"}]],
    "tools": [{"name": "trains", "returns": {"ok": "one at nine"}}, {"name": "hotels", "returns": {"ok": "one room", "delay_ms": 60}}],
    "ops": [{"op": "chat", "messages": [{"role": "user", "content": "A trip to Vienna?"}]}]}"#;

/// Opens the newest run as a page, redacted as these arguments say.
fn open(browser: &Browser, store: &Store, arguments: &[&str]) {
    let path = store.beside("run.html");
    store.ok(&[&["export", "last", "--html", "--force", "-o", &path], arguments].concat());
    browser.open(&format!("file://{path}"));
    browser.wait("document.querySelector('.proof-line')?.dataset.status === 'verified'");
}

/// What stands beside the name of each call.
fn states(browser: &Browser) -> String {
    browser.wait("document.querySelector('details.call') !== null");
    let script =
        "return [...document.querySelectorAll('.call-state')].map((one) => one.innerText).join()";
    browser.run(script).as_str().unwrap().to_owned()
}

fn bars(browser: &Browser) -> String {
    browser.click("#tab-timeline");
    browser.wait("document.querySelector('.span-row') !== null");
    let script = "return [...document.querySelectorAll('.bar.span-tool')].map((one) => one.title.split('\\n')[0]).join('; ')";
    browser.run(script).as_str().unwrap().to_owned()
}

#[test]
fn a_call_whose_beginning_is_redacted_ran_if_its_end_is_recorded() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(CALLS);
    open(&browser, &store, &["--redact", "tool_scheduled"]);
    let told = states(&browser);
    assert_eq!(told.matches("done").count(), 2, "{told}");
    let told = bars(&browser);
    assert!(told.contains("trains") && told.contains("hotels"), "{told}");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_call_whose_end_is_redacted_has_no_outcome_and_no_duration() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(CALLS);
    open(&browser, &store, &["--redact", "tool_completed"]);
    assert_eq!(states(&browser), "redacted,redacted");
    assert!(browser.text(".overall").contains("Tools"), "{}", browser.text(".overall"));
    assert_eq!(bars(&browser), "Tool: trains, ?, redacted; Tool: hotels, ?, redacted");
    // Nothing of a call is known.
    open(&browser, &store, &["--redact", "tool_completed", "--redact", "tool_scheduled"]);
    assert_eq!(states(&browser), "redacted,redacted");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn the_calls_of_a_redacted_message_are_not_those_of_the_loop() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(CALLS);
    open(&browser, &store, &["--redact", "3"]);
    let told = states(&browser);
    assert_eq!(told.matches("done").count(), 2, "{told}");
    let told = browser.text(".conversation");
    assert!(told.contains("Calls of a redacted message") && !told.contains("Loop"), "{told}");
    // The seal has the sums of what is redacted. It has none of cached and reasoning tokens.
    let facts = browser.text(".run-facts").replace('\n', " ");
    assert!(
        facts.contains("Input 110 ≥ 50 cached") && facts.contains("Output 16 tokens"),
        "{facts}"
    );
}

#[test]
fn the_calls_around_a_damaged_record_say_no_more_than_is_known() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(CALLS);
    let path = store.beside("run.html");
    store.ok(&["export", "last", "--html", "-o", &path]);
    let page = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("{\"record\":")).collect();
    let records = store.json(&["show", "last", "--records"]);
    for (kind, wanted) in [("tool_scheduled", "done"), ("tool_completed", "record damaged")] {
        let place = records.iter().position(|record| record["kind"] == kind).unwrap();
        let line = lines[place];
        let at = line.find("\"payload\":\"").unwrap() + 31;
        let other = if line.as_bytes()[at] == b'0' { "1" } else { "0" };
        let mut changed = line.to_owned();
        changed.replace_range(at..=at, other);
        let damaged = store.file("damaged.html", &page.replacen(line, &changed, 1));
        browser.open(&format!("file://{damaged}"));
        browser.wait("document.querySelector('.proof-line')?.dataset.status === 'corrupt'");
        let told = states(&browser);
        assert!(told.contains(wanted), "{kind}: {told}");
        assert!(!told.contains("not run") && !told.contains("unknown"), "{kind}: {told}");
        browser.has(".conversation", &format!("Unreadable record: {kind}"));
    }
}

#[test]
fn a_call_is_shown_by_its_end_if_the_server_cannot_read_its_beginning() {
    let Some(browser) = Browser::start() else { return };
    for (kind, wanted) in [("tool_scheduled", "done"), ("tool_completed", "record damaged")] {
        let store = Store::with(CALLS);
        let run = common::text(&store.json(&["runs"])[0], "run_id");
        let records = store.json(&["show", "last", "--records"]);
        let place = records.iter().position(|record| record["kind"] == kind).unwrap();
        store.change_record(&run, place + 1);
        let served = Served::inspect(&store);
        browser.open(&served.page(&[("run", &run)]));
        browser.wait("document.querySelector('.proof-line')?.dataset.status === 'corrupt'");
        let told = states(&browser);
        assert!(told.contains(wanted), "{kind}: {told}");
        assert!(!told.contains("not run") && !told.contains("unknown"), "{kind}: {told}");
    }
}
