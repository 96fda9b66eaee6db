//! What the inspector says of addresses that name nothing, and other details, in a real browser.

use crate::{
    chromium::Browser,
    common::{self, RUNS, Store},
    served::Served,
};

/// The id of the run that is complete.
fn completed(store: &Store) -> String {
    let runs = store.json(&["runs"]);
    common::text(runs.iter().find(|run| run["status"] == "completed").unwrap(), "run_id")
}

#[test]
fn an_address_that_names_no_record_or_run_says_so() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let run = completed(&store);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[("run", &run), ("record", "999")]));
    browser.wait(
        "document.querySelector('.banner.warn')?.innerText.includes('There is no record 999')",
    );
    assert_eq!(browser.run("return document.querySelectorAll('.selected').length"), 0);
    browser.open(&served.page(&[("run", &run), ("record", "2")]));
    browser.wait("document.querySelector('.record-detail') !== null");
    assert_eq!(browser.run("return document.querySelectorAll('.banner.warn').length"), 0);
    // Every check has an end, and the error is in words for people.
    browser.open(&served.page(&[("verify", "nope")]));
    browser.wait("document.querySelector('.banner.bad') !== null");
    let told = browser.text(".narrow");
    assert!(told.contains("nope") && !told.contains("log error") && !told.contains('…'), "{told}");
    assert_eq!(
        browser.run("return document.querySelectorAll('.step.bad, .step.skipped').length"),
        3
    );
}
