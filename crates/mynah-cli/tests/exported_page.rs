//! The page that `mynah export --html` writes, opened from disk in a real browser.

use std::fs;

use crate::{
    chromium::Browser,
    common::{self, Store},
};

const TOOLS: &str = include_str!("../../../scenarios/tools/values_become_text_or_json.json");

/// The newest run of a log as a page beside it.
fn exported(store: &Store, name: &str, arguments: &[&str]) -> String {
    let path = store.beside(name);
    store.ok(&[&["export", "last", "--html", "-o", &path], arguments].concat());
    path
}

const STATUS: &str = "(document.querySelector('.proof-line')?.dataset.status ?? 'undefined') \
                      !== 'undefined' && document.querySelector('.proof-line').dataset.status";

fn verdict(browser: &Browser) -> String {
    browser.wait("!document.querySelector('.proof-line progress') && !document.querySelector('[data-status=unchecked]')");
    browser.wait(STATUS).as_str().unwrap().to_owned()
}

#[test]
fn an_exported_page_shows_and_verifies_its_run_without_a_network() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(TOOLS);
    let path = exported(&store, "run.html", &[]);
    browser.offline(true);
    browser.requested();
    browser.open(&format!("file://{path}"));
    assert_eq!(verdict(&browser), "verified");
    let hash = common::text(&store.json(&["runs"])[0], "hash");
    browser.shows(".fingerprint", hash);
    for (tab, content) in
        [("conversation", ".message"), ("timeline", ".bar"), ("records", ".record-row.row")]
    {
        browser.click(&format!("#tab-{tab}"));
        browser.wait(&format!("document.querySelectorAll('{content}').length > 1"));
    }
    let only: Vec<_> = browser.requested();
    let own = |url: &String| url.starts_with(&format!("file://{path}")) || url == "about:blank";
    assert!(only.iter().all(own), "{only:?}");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_changed_byte_of_any_record_is_found_and_its_record_named() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(TOOLS);
    let path = exported(&store, "run.html", &[]);
    let page = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("{\"record\":")).collect();
    assert!(lines.len() > 4);
    for (index, line) in lines.iter().enumerate() {
        // A digit in the middle of the payload, and one of the commitment in the envelope.
        for mark in ["\"payload\":\"", "5820"] {
            let at = line.find(mark).unwrap() + mark.len() + 20;
            let other = if line.as_bytes()[at] == b'0' { "1" } else { "0" };
            let mut changed = (*line).to_owned();
            changed.replace_range(at..=at, other);
            let damaged = page.replacen(line, &changed, 1);
            let name = store.file("damaged.html", &damaged);
            browser.open(&format!("file://{name}"));
            assert_eq!(verdict(&browser), "corrupt", "record {} at {mark}", index + 1);
            let told = browser.text(".proof-line strong");
            assert_eq!(told, format!("Damaged: record {}", index + 1), "{mark}");
        }
    }
    browser.click(".proof-line button.small");
    browser.shows(".record-row.damaged .number", lines.len().to_string());
    // What it says is not shown as if it had happened.
    browser.click("#tab-conversation");
    browser.has(".conversation", "Unreadable record");
}

#[test]
fn the_page_judges_every_vector_of_the_format_as_the_library_does() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(TOOLS);
    let page = fs::read_to_string(exported(&store, "run.html", &[])).unwrap();
    let (head, rest) = page.split_once("id=\"bundle\">\n").unwrap();
    let (_, tail) = rest.split_once("</script>").unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../mynah-log/tests/vectors");
    let mut judged = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let vector = entry.unwrap().path();
        let name = vector.file_stem().unwrap().to_str().unwrap().to_owned();
        // The page reads facts from the bytes and never shows those beside them.
        if ["corrupt-fact-that-is-shown", "corrupt-key-twice"].contains(&&*name) {
            continue;
        }
        let bundle = fs::read_to_string(&vector).unwrap().replace('<', "\\u003c");
        let text = format!("{head}id=\"bundle\">\n{bundle}</script>{tail}");
        browser.open(&format!("file://{}", store.file("vector.html", &text)));
        let expected: &[&str] = match name.split('-').next().unwrap() {
            "good" => &["verified", "in_progress"],
            class => &[class],
        };
        browser.wait("document.querySelector('.banner.bad, .proof-line')");
        let is_unreadable =
            browser.run("return document.querySelector('main > .banner.bad') !== null");
        let found = if is_unreadable == true { "corrupt".to_owned() } else { verdict(&browser) };
        assert!(expected.contains(&&*found), "{name}: {found}");
        judged += 1;
    }
    assert!(judged > 40);
}

#[test]
fn what_is_redacted_on_export_is_not_in_the_page_and_the_page_verifies() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(TOOLS);
    let path = exported(&store, "run.html", &["--redact", "tool_completed", "--redact", "1"]);
    let page = fs::read_to_string(&path).unwrap();
    let kind: String = "tool_completed".bytes().map(|byte| format!("{byte:02x}")).collect();
    let kinds = |text: &str| text.matches(&kind).count();
    let whole = fs::read_to_string(exported(&store, "whole.html", &[])).unwrap();
    // Envelopes name their kind; payloads do too, where they are there.
    assert_eq!(2 * kinds(&page), kinds(&whole));
    browser.open(&format!("file://{path}"));
    assert_eq!(verdict(&browser), "verified");
    browser.wait("document.querySelector('.proof-line').innerText.includes('redacted')");
    browser.click("#tab-records");
    browser.wait("document.querySelector('.record-row.row .says').innerText === 'redacted'");
    // The log still has everything.
    assert!(!store.ok(&["show", "last"]).contains("redacted"));
}

#[test]
fn a_page_that_was_cut_off_says_that_it_is_incomplete() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(TOOLS);
    let path = exported(&store, "run.html", &[]);
    let page = fs::read_to_string(&path).unwrap();
    let after = |text: &str| page.find(text).unwrap() + text.len();
    let last = page.rfind("</script>").unwrap();
    let places = [
        after("</p></main></div>"),
        after("<style>") + 500,
        after("id=\"bundle\">"),
        after("{\"record\":") + 100,
        after("{\"end\":"),
        after("modules = {};"),
        last - 1,
    ];
    let warned = "document.querySelector('.incomplete') !== null && getComputedStyle(document.querySelector('.incomplete')).visibility === 'visible' && document.body.innerText";
    for place in places {
        browser.open(&format!("file://{}", store.file("cut.html", &page[..place])));
        let shown = browser.wait(warned);
        assert!(shown.as_str().unwrap().contains("This file is incomplete"), "{place}: {shown}");
    }
    // A changed script does not run either.
    let changed = page.replacen("Exported run.", "Exporter run.", 1);
    browser.open(&format!("file://{}", store.file("changed.html", &changed)));
    browser.wait(warned);
    browser.open(&format!("file://{path}"));
    assert_eq!(verdict(&browser), "verified");
    browser.gives("return document.querySelector('.incomplete')", serde_json::Value::Null);
}

#[test]
fn the_run_in_a_page_is_verified_and_imported_as_its_bundle_is() {
    let store = Store::with(TOOLS);
    let path = exported(&store, "run.html", &[]);
    let bundle = store.beside("run.ndjson");
    store.ok(&["export", "last", "-o", &bundle]);
    assert_eq!(common::run(["verify", &path]), common::run(["verify", &bundle]));
    let page = fs::read_to_string(&path).unwrap();
    let piped = common::feed(common::mynah(["verify", "-"]), page.as_bytes());
    assert_eq!(piped, common::run(["verify", &bundle]));
    let other = Store::new();
    other.ok(&["import", &path]);
    assert_eq!(other.json(&["runs"])[0]["hash"], store.json(&["runs"])[0]["hash"]);
    // What was changed, and what was cut off.
    let changed = page.replacen("\"payload\":\"a", "\"payload\":\"b", 1);
    assert_ne!(changed, page);
    let cut = &page[..page.find("{\"end\":").unwrap()];
    for (text, what) in [(&*changed, "record 1"), (cut, "ends too early")] {
        let found = common::run(["verify", &store.file("other.html", text)]);
        assert_eq!(found.code, Some(1), "{found:?}");
        assert!(found.stderr.contains(what), "{found:?}");
    }
    let found = common::run(["verify", &store.file("any.html", "<!doctype html>\n<p>Hello</p>\n")]);
    assert_eq!(found.code, Some(2), "{found:?}");
    assert!(found.stderr.contains("not a file that `mynah export` wrote"), "{found:?}");
}

#[test]
fn the_keys_move_through_all_views_and_a_link_leads_to_a_record() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(TOOLS);
    let path = exported(&store, "run.html", &[]);
    browser.open(&format!("file://{path}#view=records&record=2"));
    assert_eq!(verdict(&browser), "verified");
    browser.wait("document.querySelector('.record-detail h2').innerText.startsWith('#2')");
    browser.press("j");
    browser.wait("document.querySelector('.record-detail h2').innerText.startsWith('#3')");
    browser.press("k");
    browser.wait("document.querySelector('.record-detail h2').innerText.startsWith('#2')");
    browser.press("1");
    browser.wait("document.querySelector('#tab-conversation').ariaSelected === 'true'");
    browser
        .wait("location.hash.includes('record=2') && location.hash.includes('view=conversation')");
    browser.press("/");
    browser.wait("document.activeElement.type === 'search'");
    browser.press("tool_scheduled\u{e007}");
    browser
        .wait("document.querySelector('.record-detail h2').innerText.includes('tool_scheduled')");
    browser.press("\u{e00c}");
    browser.press("?");
    browser.wait("document.querySelector('dialog[open]') !== null");
}

#[test]
fn the_runs_of_agents_are_in_the_page_and_each_is_verified() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    store.file(
        "front.json",
        r#"{"scripts": [[{"tool_call": {"id": "c0", "name": "research", "arguments": {"task": "Can they?"}}}, {"finish": "tool_calls"}],
            [{"text": "Yes."}, {"finish": "stop"}]]}"#,
    );
    store.file(
        "back.json",
        r#"{"scripts": [[{"text": "They can."}, {"usage": {"input_tokens": 7, "output_tokens": 3}}, {"finish": "stop"}]]}"#,
    );
    let agent = store.file(
        "agent.toml",
        "model = 'scripted:front.json'\n[agents.research]\ndescription = 'Looks up.'\nmodel = 'scripted:back.json'\n",
    );
    assert_eq!(store.run(&["run", &agent, "Mynahs?"]).code, Some(0));
    let path = exported(&store, "run.html", &[]);
    browser.open(&format!("file://{path}"));
    let states = "[...document.querySelectorAll('.file-run')].map((one) => one.innerText).join()";
    browser.wait(&format!("{states} === 'verified,verified'"));
    let facts = browser.text(".run-facts");
    assert!(facts.contains("Turns\n3") && facts.contains("Input\n7"), "{facts}");
    browser.click(".agent-run a");
    browser.wait("document.querySelector('.conversation')?.innerText.includes('They can.')");
    assert_eq!(verdict(&browser), "verified");
    browser.run("history.back()");
    browser.wait("document.querySelector('.conversation')?.innerText.includes('Mynahs?')");
    let verified = store.run(&["verify", &path]);
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    assert_eq!(verified.stdout.matches("verified").count(), 2, "{}", verified.stdout);
    assert_eq!(browser.errors(), Vec::<String>::new());

    // A changed byte in the run of the agent is found there, and not in the other.
    let page = fs::read_to_string(&path).unwrap();
    let (head, tail) = page.rsplit_once("{\"bundle\":").unwrap();
    let place = tail.find("\"payload\":\"").unwrap() + 30;
    let mut tail = tail.to_owned();
    let other = if &tail[place..=place] == "0" { "1" } else { "0" };
    tail.replace_range(place..=place, other);
    let changed = store.file("changed.html", &format!("{head}{{\"bundle\":{tail}"));
    browser.open(&format!("file://{changed}"));
    browser.wait(&format!("{states} === 'verified,damaged: record 1'"));
    // The run that relies on it does not look sound.
    browser.wait("document.querySelector('[data-status=agent_damaged]') !== null");
    browser.has(".proof-line", "The run of an agent is damaged");
    browser.has(".agent-run", "damaged");
}
