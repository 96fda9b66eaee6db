//! The inspector's search, comparisons and layout in a real browser.

#![allow(clippy::unwrap_used, reason = "tests")]

mod chromium;
mod common;
mod served;

use chromium::Browser;
use common::{RUNS, Store, mynah};
use serde_json::json;
use served::Served;

/// An agent whose model looks for a train, and answers after a pause.
const TRIP: &str = r#"{"engine": {"model": "m"}, "scripts": [
    [{"delay_ms": 400}, {"tool_call": {"id": "c0", "name": "trains", "arguments": {"to": "Vienna"}}}, {"finish": "tool_calls"}],
    [{"delay_ms": 300}, {"text": "The night train "}, {"delay_ms": 200}, {"text": "leaves at nine."}, {"finish": "stop"}]],
    "tools": [{"name": "trains", "idempotent": true, "returns": {"ok": "one at nine"}}],
    "ops": [{"op": "chat", "messages": [{"role": "user", "content": "When is the train to Vienna?"}]}]}"#;

#[test]
fn runs_are_found_by_what_was_said_and_the_search_is_in_the_address() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(TRIP);
    store.ok(&["play", &store.file("runs.json", RUNS)]);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[]));
    browser.wait("document.querySelectorAll('tr[data-run]').length === 6");
    assert!(browser.text(".table-frame").contains("When is the train to Vienna?"));
    browser.press("/");
    browser.press("NIGHT train\u{e007}");
    browser.wait("new URLSearchParams(location.search).get('text') === 'NIGHT train' && document.querySelectorAll('tr[data-run]').length === 1");
    assert_eq!(browser.text(".excerpt mark"), "night train");
    assert!(browser.text(".pager").contains("Searched 6 runs"));
    // The run opens at the record in which it was said.
    browser.click(".run-id a");
    browser.wait(
        "document.querySelector('.record-detail h2')?.innerText.includes('assistant_completed')",
    );
    browser.open(&served.page(&[("text", "never said")]));
    assert!(browser.text(".empty h2").contains("No run fits"));
    browser.open(&served.page(&[("seconds", "0.5")]));
    browser.wait("document.querySelectorAll('tr[data-run]').length === 1");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn the_time_to_the_first_token_is_a_part_of_the_bar_of_a_model_call() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(TRIP);
    let served = Served::inspect(&store);
    let run = common::text(&store.json(&["runs"])[0], "run_id");
    browser.open(&served.page(&[("run", &run), ("view", "timeline")]));
    browser.wait("document.querySelectorAll('.bar .silent').length === 2");
    // Of the second call, which took half a second, about three fifths.
    let part = "const bars = document.querySelectorAll('.bar.span-model'); const one = bars[1]; \
        return one.querySelector('.silent').getBoundingClientRect().width / one.getBoundingClientRect().width";
    let part = browser.run(part).as_f64().unwrap();
    assert!((0.3..0.95).contains(&part), "{part}");
    let title = browser.run("return document.querySelectorAll('.bar.span-model')[1].title");
    assert!(title.as_str().unwrap().contains("first token after 3"), "{title}");
    browser.click("#tab-conversation");
    browser.wait("document.querySelector('.conversation').innerText.includes('first token')");
    assert!(browser.text(".overall").contains("Where the time went"));
}

#[test]
fn a_run_is_compared_with_its_fork_and_with_its_replay_by_another_agent() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(TRIP);
    let run = common::text(&store.json(&["runs"])[0], "run_id");

    let agent = |name: &str, text: &str, manual: bool| {
        let (head, _) = TRIP.rsplit_once(r#""ops""#).unwrap();
        let head = head.replace("leaves at nine.", text);
        let head = head.replace(
            r#""idempotent": true"#,
            &format!(r#""idempotent": true, "manual": {manual}"#),
        );
        store.file(name, &format!("{head}\"ops\": []}}"))
    };
    let same = agent("same.json", "leaves at nine.", false);
    let other = agent("other.json", "leaves at ten.", false);
    let careful = agent("careful.json", "leaves at nine.", true);
    let served = Served::start(&mut mynah([
        "serve",
        &same,
        &other,
        &careful,
        "--json",
        "--log",
        &store.url(),
    ]));
    // A fork before the last answer, which another agent gives.
    browser.open(&served.page(&[("run", &run), ("record", "6")]));
    browser.click(".record-detail .actions button");
    browser.run("const s = document.querySelector('dialog select'); if (s) { s.value = 'other'; s.dispatchEvent(new Event('change')); } for (const box of document.querySelectorAll('dialog input[type=checkbox]')) box.checked = true");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.run-facts')?.innerText.includes('Fork of')");
    browser.wait("document.querySelector('.run-facts .chip')?.innerText === 'Completed'");
    browser.run("[...document.querySelectorAll('.buttons a')].find((one) => one.innerText.includes('Compare')).click()");
    browser.wait("document.querySelector('.compare-row.first') !== null");
    browser.run("for (const details of document.querySelectorAll('details')) details.open = true");
    let words = browser.run("return [...document.querySelectorAll('.word-diff')].map((one) => one.innerText).join('\\n')");
    assert!(words.as_str().unwrap().contains("The night train leaves at"), "{words}");
    let changed = browser.run("return [...document.querySelectorAll('.word-diff del, .word-diff ins')].map((one) => one.innerText)");
    assert!(
        changed.to_string().contains("nine") && changed.to_string().contains("ten"),
        "{changed}"
    );
    // A replay by an agent that asks before it runs the tool: so begins another run, and its answer leads elsewhere.
    for (agent, differs) in [("same", false), ("careful", true)] {
        browser.open(&served.page(&[("compare", &run), ("replay", agent)]));
        let banner = if differs { "differs" } else { "No difference" };
        browser.wait(&format!(
            "document.querySelector('.banner')?.innerText.includes({})",
            json!(banner)
        ));
        let first = browser.run("return document.querySelectorAll('.compare-row.first').length");
        assert_eq!(first, json!(u8::from(differs)), "{agent}");
    }
    let rows = browser.run("return [...document.querySelectorAll('.compare-row')].map((row) => row.className.split(' ')[1])");
    assert_eq!(
        rows.as_array().unwrap()[..4],
        [json!("differs"), json!("same"), json!("differs"), json!("not-reached")]
    );
    assert!(browser.text(".field-diff").contains("manual"));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn no_page_is_wider_than_its_window() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(TRIP);
    store.ok(&["play", &store.file("runs.json", RUNS)]);
    let agent = store.file("agent.json", RUNS);
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    let runs = store.json(&["runs"]);
    let of = |status: &str| {
        common::text(runs.iter().find(|run| run["status"] == status).unwrap(), "run_id")
    };
    let (done, waits) = (of("completed"), of("suspended"));
    let pages = [
        served.page(&[]),
        served.page(&[("text", "the")]),
        served.page(&[("run", &done)]),
        served.page(&[("run", &done), ("view", "timeline")]),
        served.page(&[("run", &done), ("view", "records"), ("record", "3")]),
        served.page(&[("run", &waits)]),
        served.page(&[("compare", &done), ("with", &waits)]),
        served.page(&[("verify", &done)]),
        served.page(&[("verify", "log")]),
    ];
    for (page, width) in pages.iter().flat_map(|page| [320, 1280, 2560].map(|width| (page, width)))
    {
        browser.look(width, 900, false);
        browser.open(page);
        browser.wait("document.querySelector('main .empty, .proof-line, tr[data-run], .narrow, .compare-row') !== null && !document.querySelector('.skeleton')");
        let over = browser.run("const { scrollWidth, clientWidth } = document.documentElement; return scrollWidth - clientWidth");
        assert_eq!(over, json!(0), "{page} at {width}");
    }
}
