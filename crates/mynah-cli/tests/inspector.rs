//! The inspector's pages in a real browser, over the real program.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{process::Stdio, sync::Arc};

use mynah::{
    Image, Message, Metadata, Part, Response, ToolCall, ToolOutcome,
    log::{
        About, Effect, Fact, Inside, Log as _, Plan, SessionLink, SqliteLog, conformance::Sample,
    },
};
use serde_json::{Value, json};

use crate::{
    chromium::{self, Browser},
    common::{self, RUNS, Store, mynah},
    hostile_text::HOSTILE,
    served::Served,
};

const VERIFIED: &str = "document.querySelector('.proof-line')?.dataset.status === 'verified'";

#[test]
fn the_list_of_runs_filters_sorts_and_pages_and_keeps_that_in_the_address() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[]));
    browser.wait("document.querySelectorAll('tr[data-run]').length === 5");
    browser.wait("document.querySelectorAll('.spark svg').length === 4");
    browser.run("const s = document.querySelector('.filter-status select'); s.value = 'failed'; s.dispatchEvent(new Event('change'))");
    browser.wait("location.search.includes('status=failed') && document.querySelectorAll('tr[data-run]').length === 1");
    browser.shows("tr[data-run] .chip", "Failed");
    // What is in the address is what is shown.
    browser.open(&served.page(&[("status", "failed")]));
    browser.wait("document.querySelectorAll('tr[data-run]').length === 1");
    browser.open(&served.page(&[("prefix", "nothing")]));
    browser.has(".empty h2", "No run fits");
    browser.open(&served.page(&[("order", "oldest")]));
    browser.wait("document.querySelectorAll('tr[data-run]').length === 5");
    let first =
        |browser: &Browser| browser.wait("document.querySelector('tr[data-run]')?.dataset.run");
    let oldest = first(&browser);
    browser.open(&served.page(&[("sort", "tokens")]));
    browser
        .wait("document.querySelector('th[aria-sort=descending]')?.innerText.startsWith('Tokens')");
    assert_ne!(first(&browser), oldest);
    // Keys.
    browser.press("j");
    browser.wait("document.activeElement.matches('.run-id a')");
    browser.press("\u{e007}");
    browser.wait("location.search.startsWith('?run=') && document.querySelector('.run') !== null");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn filters_keep_the_focus_what_is_written_and_a_bad_value() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[]));
    browser.wait("document.querySelectorAll('tr[data-run]').length === 5");
    browser.click(".more-filters summary");
    // A field that is left takes effect, and the next one has the focus.
    browser.write(".filter-prefix input", "run-1");
    browser.run("window.form = document.querySelector('.filters')");
    browser.click(".filter-model input");
    browser.wait("document.querySelectorAll('tr[data-run]').length === 1 && location.search === '?prefix=run-1'");
    let kept = "return [document.activeElement.closest('label')?.className, document.querySelector('.filters') === window.form, document.querySelector('.more-filters').open]";
    browser.gives(kept, json!(["filter filter-model", true, true]));
    // What is written and not committed is in the address with the next change.
    browser.write(".filter-model input", "none");
    browser.run("const s = document.querySelector('.filter-status select'); s.value = 'failed'; s.dispatchEvent(new Event('change'))");
    browser.wait("location.search === '?status=failed&model=none&prefix=run-1'");
    browser.click(".clear");
    browser
        .wait("location.search === '' && document.querySelectorAll('tr[data-run]').length === 5");
    assert_eq!(browser.run(kept)[2], true, "the filters stay open");
    browser.gives("return document.querySelector('.filter-prefix input').value", "");
    browser.run("history.back()");
    browser.wait("document.querySelector('.filter-prefix input').value === 'run-1'");
    // A value that does not fit is marked, and the form stays.
    browser.open(&served.page(&[("cost", "-5")]));
    browser.has(".filter-cost .error", "0 or more");
    browser.wait("document.querySelector('.filter-cost input[aria-invalid]')?.value === '-5'");
    browser.open(&served.page(&[("status", "odd")]));
    browser.has(".filter-status .error", "give one of running");
    assert!(browser.errors().iter().all(|error| error.contains("/v1/")));
}

#[test]
fn runs_are_listed_under_the_status_that_they_show_and_their_time_passes() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    store.play(RUNS, false);
    let done = store.json(&["runs", "--status", "completed"]);
    store.ok(&["fork", &common::text(&done[0], "run_id"), "--at", "2"]);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[("status", "running")]));
    browser.has(".empty h2", "No run fits");
    browser.open(&served.page(&[("status", "abandoned")]));
    browser.shows("tr[data-run] .chip", "Not started");
    browser.click("tr[data-run] .run-id a");
    browser.has(".run-head .banner", "Not started");
    // No process has held it, so no time has passed in it.
    browser.click("#tab-timeline");
    let rows = browser.text(".timeline");
    assert!(!rows.contains("No process has it"), "{rows}");
    let sums = browser.run("return document.querySelector('.overall').textContent");
    assert!(!sums.to_string().contains("Between calls"), "{sums}");
    // A run that waits has no end, so its time passes.
    browser.open(&served.page(&[("status", "suspended")]));
    let time = "document.querySelector('tr[data-run] .lasting')?.innerText";
    let before = browser.wait(time);
    browser.wait(&format!("{time} !== {before}"));
    // Both ways, and back to the order of the log.
    browser.open(&served.page(&[]));
    for direction in ["descending", "ascending"] {
        browser.click("th:nth-child(9) button");
        browser.wait(&format!(
            "document.querySelector('th:nth-child(9)')?.ariaSort === '{direction}'"
        ));
    }
    browser.click("th:nth-child(9) button");
    browser.wait("document.querySelector('th:nth-child(5)')?.ariaSort === 'descending' && location.search === ''");
}

#[test]
fn many_runs_are_shown_page_by_page() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    fill(&store, (0..250).map(|n| Sample::new(format!("r-{n:03}"), 1000 * n).sealed()));
    let served = Served::inspect(&store);
    browser.open(&served.page(&[]));
    browser.wait("document.querySelectorAll('tr[data-run]').length === 100");
    for (shown, first) in [(100, "r-149"), (50, "r-049")] {
        browser.click("a[rel=next]");
        browser.wait(&format!("document.querySelectorAll('tr[data-run]').length === {shown} && document.querySelector('tr[data-run]').dataset.run === '{first}'"));
    }
    browser.click("a[rel=prev]");
    browser.wait("document.querySelector('tr[data-run]')?.dataset.run === 'r-149'");
    browser.run("history.back()");
    browser.wait("document.querySelector('tr[data-run]')?.dataset.run === 'r-049'");
}

/// Puts runs into a log.
fn fill(store: &Store, samples: impl IntoIterator<Item = Sample>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let log = SqliteLog::open(&store.path).unwrap();
        for mut sample in samples {
            log.append(sample.batch()).await.unwrap();
        }
    });
}

#[test]
fn a_run_is_shown_in_three_linked_views_and_verified_in_the_browser() {
    let Some(browser) = Browser::start() else { return };
    let store =
        Store::with(include_str!("../../../scenarios/tools/values_become_text_or_json.json"));
    let served = Served::inspect(&store);
    let run = common::text(&store.json(&["runs"])[0], "run_id");
    browser.open(&served.page(&[("run", &run)]));
    browser.wait(VERIFIED);
    browser.shows(".fingerprint", common::text(&store.json(&["runs"])[0], "hash"));
    browser.click("#tab-timeline");
    browser.click(".span-row:nth-child(3)");
    let shown = browser.text(".record-detail h2");
    let seq = shown.split_whitespace().next().unwrap().trim_start_matches('#').to_owned();
    browser.wait(&format!("new URLSearchParams(location.search).get('record') === '{seq}'"));
    browser.click("#tab-records");
    browser.wait(&format!(
        "document.querySelector('.record-row.selected .number').innerText === '{seq}'"
    ));
    // The bytes are those that the hash is over.
    browser.click(".record-detail .raw summary");
    browser.wait("document.querySelectorAll('.hex').length === 3");
    browser.open(browser.run("return location.href").as_str().unwrap());
    browser.wait(&format!(
        "document.querySelector('.record-row.selected .number')?.innerText === '{seq}'"
    ));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_run_that_is_recorded_elsewhere_appears_and_grows_without_a_reload() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[]));
    browser.wait("document.querySelectorAll('tr[data-run]').length === 5");
    browser.run("window.same = true");
    let scenario = r#"{"scripts": [[{"text": "one"}, {"tool_call": {"id": "c", "name": "slow"}}, {"finish": "tool_calls"}], [{"text": "The end."}, {"finish": "stop"}]],
        "tools": [{"name": "slow", "returns": {"ok": 1, "delay_ms": 4000}}],
        "ops": [{"op": "chat", "messages": [{"role": "user", "content": "Go."}]}]}"#;
    let file = store.file("slow.json", scenario);
    let mut play = mynah(["play", "--log", &store.url(), &file]);
    let mut playing = play.stdout(Stdio::null()).spawn().unwrap();
    browser.wait("document.querySelectorAll('tr[data-run]').length === 6");
    browser.shows("tr[data-run] .chip", "Running");
    browser.click("tr[data-run] .run-id a");
    browser.wait("document.querySelector('.run-status .chip')?.innerText === 'Running'");
    assert!(!browser.text(".conversation").contains("The end."));
    browser.wait("document.querySelector('.conversation').innerText.includes('The end.')");
    browser.wait("document.querySelector('.run-status .chip').innerText === 'Completed'");
    browser.wait(VERIFIED);
    browser.gives("return window.same", true);
    assert!(playing.wait().unwrap().success());
}

const REFUND: &str = r#"{"engine": {"model": "m"}, "scripts": [
    [{"tool_call": {"id": "c0", "name": "refund", "raw_arguments": "{\"eur\":  5.90}"}}, {"finish": "tool_calls"}],
    [{"text": "It is "}, {"delay_ms": 1500}, {"text": "refunded."}, {"finish": "stop"}]],
    "tools": [{"name": "refund", "manual": true, "returns": {"ok": "paid back"}}], "ops": []}"#;

#[test]
fn a_run_is_started_approved_followed_and_forked_in_the_page() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let agent = store.file("shop.json", REFUND);
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    browser.open(&served.page(&[]));
    browser.click(".page-head .primary");
    browser.write("dialog textarea", "Refund it.");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.waiting') !== null");
    // The arguments as the model wrote them, with both spaces.
    assert_eq!(browser.wait("document.querySelector('.exact')?.textContent"), r#"{"eur":  5.90}"#);
    browser.run("const one = document.querySelector('.decision select'); one.value = 'approve'; one.dispatchEvent(new Event('change'))");
    browser.click(".waiting .primary");
    browser.has("dialog", "run refund with");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.streaming')?.innerText.includes('It is')");
    browser.wait("document.querySelector('.conversation').innerText.includes('refunded.') && !document.querySelector('.streaming')");
    browser.wait(VERIFIED);
    browser.has(".conversation", "Approved: refund");
    browser.wait("document.querySelector('.waiting') === null");
    let run = browser.wait("new URLSearchParams(location.search).get('run')");
    browser.click(".seq");
    browser.click(".record-detail .actions button");
    browser.run("document.querySelector('dialog input[type=checkbox]').checked = false");
    browser.click("dialog .primary");
    browser.wait(&format!("new URLSearchParams(location.search).get('run') !== {run} && document.querySelector('.run-facts') !== null"));
    browser.has(".run-facts", "Fork of");
    // The user's message, to be changed.
    browser.open(&served.page(&[("run", run.as_str().unwrap()), ("record", "1")]));
    browser.click(".record-detail .actions button:nth-child(2)");
    assert_eq!(browser.wait("document.querySelector('dialog textarea')?.value"), "Refund it.");
    browser.write("dialog textarea", "Refund all of it.");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.role-user')?.innerText.includes('Refund all of it.')");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_page_offers_no_action_where_none_is_allowed() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let served = Served::inspect(&store);
    let runs = store.json(&["runs"]);
    let waits = runs.iter().find(|run| run["status"] == "suspended").unwrap();
    browser.open(&served.page(&[("run", &common::text(waits, "run_id")), ("record", "2")]));
    browser.has(".banner.wait", "How many?");
    let buttons = browser.run("return [...document.querySelectorAll('.run-head button, .actions button')].map((b) => b.innerText).filter(Boolean)");
    assert_eq!(buttons, json!([]));
}

#[test]
fn a_killed_and_resumed_run_shows_where_its_process_died() {
    let Some(browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("demo");
    let path = folder.to_str().unwrap();
    assert_eq!(common::run(["demo", "--dir", path]).code, Some(0));
    let log = format!("sqlite:{path}/mynah.db");
    let served = Served::start(&mut mynah(["inspect", "--json", "--log", &log]));
    browser.open(&served.page(&[]));
    browser.click("tr[data-run] .run-id a");
    browser.wait("document.querySelector('.note.tone-bad')?.innerText.includes('process died')");
    browser.click("#tab-timeline");
    browser.wait("document.querySelector('.bar.span-crash') !== null && document.querySelector('.bar.span-tool.state-lost') !== null");
    // The copy of the log in which the demonstration changed a byte.
    let changed = format!("sqlite:{path}/changed.db");
    let served = Served::start(&mut mynah(["inspect", "--json", "--log", &changed]));
    browser.open(&served.page(&[]));
    let run = browser.wait("document.querySelector('tr[data-run]')?.dataset.run");
    browser.open(&served.page(&[("verify", run.as_str().unwrap())]));
    browser.has("[data-status=corrupt]", "Record 5 is damaged");
    browser.wait("document.querySelectorAll('.step.bad').length === 2");
    let others = "records are intact, as this browser computed";
    assert!(browser.text(".steps").contains(others), "{}", browser.text(".steps"));
    // The record is shown in its place, and so are those around it.
    browser.click("[data-status=corrupt] a.button");
    browser.has(".record-row.selected", "unreadable");
    browser.wait("document.querySelectorAll('.record-row.row').length > 8");
    browser.wait("document.querySelector('.proof-line')?.innerText.includes('Damaged: record 5')");
    let told = browser.text(".proof-line");
    for part in ["it is not the record that was written", others] {
        assert!(told.contains(part), "{told}");
    }
    browser.has(".record-detail", "This record is damaged");
    // An export of it is an error, and not a file that ends in the middle.
    browser.wait("document.querySelector('.run-title button[disabled]') !== null");
    let run = run.as_str().unwrap();
    for format in ["bundle", "html"] {
        let script = format!(
            "return fetch('/v1/runs/{run}/export?format={format}').then(async (answer) => [answer.status, (await answer.json()).code])"
        );
        browser.gives(&script, json!([500, "log_error/corrupt"]));
    }
    browser.open(&served.page(&[("verify", "log")]));
    browser.click(".page-head .primary");
    browser.has(".wrong li", "record 5");
    browser.wait("document.querySelector('[data-status=corrupt]') !== null");
    assert!(browser.errors().iter().all(|error| error.contains("/v1/")));
}

#[test]
fn a_run_is_shown_around_a_record_that_is_damaged_wherever_it_is() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let sealed = store.json(&["runs"]).into_iter().find(|run| run["status"] == "completed");
    let run = common::text(&sealed.unwrap(), "run_id");
    store.change_record(&run, 1);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[("run", &run), ("view", "records")]));
    browser.wait("document.querySelector('.proof-line')?.innerText.includes('Damaged: record 1')");
    browser.wait("document.querySelectorAll('.record-row.row').length > 3");
    browser.has(".record-row.damaged", "unreadable");
    browser.has(".proof-line", "records are intact, as this browser computed");
    browser.click("#tab-conversation");
    browser.has(".conversation", "Unreadable record");
    browser.shows(".run-status .chip", "Completed");
    let script = format!(
        "return fetch('/v1/runs/{run}/records').then(async (answer) => (await answer.json()).records.slice(0, 2).map(({{ seq, kind, fact, unreadable }}) => [seq, kind, fact === null, Boolean(unreadable)]))"
    );
    let [first, second] = [json!([1, null, true, true]), json!([2, "turn_started", false, false])];
    browser.gives(&script, json!([first, second]));
}

#[test]
fn a_damaged_index_or_list_of_seals_is_not_blamed_on_a_record() {
    let Some(browser) = Browser::start() else { return };
    for (change, said) in [
        ("UPDATE seals SET hash = zeroblob(32) WHERE id = 'ID'", "list of seals has another seal"),
        ("UPDATE runs SET model = 'other' WHERE id = 'ID'", "model: the index says"),
    ] {
        let store = Store::with(RUNS);
        let sealed = store.json(&["runs"]).into_iter().find(|run| run["status"] == "completed");
        let run = common::text(&sealed.unwrap(), "run_id");
        let log = rusqlite::Connection::open(&store.path).unwrap();
        log.execute_batch(&change.replace("ID", &run)).unwrap();
        log.close().unwrap();
        let served = Served::inspect(&store);
        browser.open(&served.page(&[("verify", &run)]));
        browser.has("[data-status=corrupt]", "The records are intact");
        browser.has("[data-status=corrupt]", said);
        let states = "return [...document.querySelectorAll('.step')].map((step) => step.classList[1]).join()";
        let is_seal = change.contains("seals");
        browser.gives(states, if is_seal { "bad,ok,bad" } else { "bad,ok,ok" });
        // The log counts its problems as the command does, and shows no root that it does not have.
        let verified = store.run(&["verify"]);
        browser.open(&served.page(&[("verify", "log")]));
        browser.click(".page-head .primary");
        browser.wait("document.querySelector('[data-status=corrupt]') !== null");
        let found = if is_seal { "2 problems found" } else { "1 problem found" };
        assert!(browser.text(".narrow").contains(found), "{}", browser.text(".narrow"));
        let counted = if is_seal { "2 things found corrupt" } else { "1 thing found corrupt" };
        assert!(verified.stderr.contains(counted), "{}", verified.stderr);
        assert_eq!(browser.text(".narrow").contains("Keep it elsewhere"), !is_seal);
        assert!(!browser.text(".narrow").contains("0 seals"));
    }
}

#[test]
fn the_log_and_a_run_are_verified_with_root_fingerprint_and_proof() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let served = Served::inspect(&store);
    let runs = store.json(&["runs"]);
    let sealed = runs.iter().find(|run| run["status"] == "completed").unwrap();
    browser.open(&served.page(&[("verify", &common::text(sealed, "run_id"))]));
    browser.wait("document.querySelectorAll('.step.ok').length === 3");
    browser.has(".card", &common::text(sealed, "hash"));
    browser.has(".card", "proof 1");
    // A fingerprint that was kept elsewhere is compared with the one that was computed.
    let other = "0".repeat(64);
    for (kept, verdict) in
        [(&*common::text(sealed, "hash"), "same"), (&*other, "other"), ("12", "none")]
    {
        browser.write("#kept", kept);
        browser
            .wait(&format!("document.querySelector('[data-kept]')?.dataset.kept === {verdict:?}"));
        // A run that is not the one that was kept is not called verified.
        let told = browser.text("[data-status=verified]");
        assert_eq!(told.contains("Verified."), verdict != "other", "{told}");
    }
    browser.open(&served.page(&[("verify", "log")]));
    browser.click(".page-head .primary");
    browser.wait("document.querySelector('[data-status=verified]') !== null");
    assert!(!browser.text(".narrow").contains("root now"));
    let verified = store.json(&["verify"]);
    let root = verified.last().unwrap()["root"].as_str().unwrap().to_owned();
    browser.has(".notices .card", &root);
    for (kept, verdict) in [(&*root, "same"), (&*other, "other"), ("12", "none")] {
        browser.write("#kept", kept);
        browser.press("\u{e007}");
        browser
            .wait(&format!("document.querySelector('[data-kept]')?.dataset.kept === {verdict:?}"));
        assert!(!browser.text(".narrow").contains("nothing wrong so far"), "{verdict}");
    }
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn two_runs_are_compared_word_by_word_and_field_by_field() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let answer = |text: &str| {
        let response = Box::new(Response::new(Message::assistant(text)));
        Fact::AssistantCompleted {
            response,
            plan: Plan::Nothing,
            cuts: Vec::new(),
            duration_ms: None,
            first_token_ms: None,
        }
    };
    let turn = || Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 0 };
    let run = |id: &str, text: &str| Sample::new(id, 0).with(turn()).with(answer(text)).sealed();
    fill(&store, [run("left", "the quick brown fox"), run("right", "the quick red fox")]);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[("compare", "left"), ("with", "right")]));
    browser.shows(".word-diff del", "brown");
    browser.shows(".word-diff ins", "red");
    browser.has(".field-diff", "response.message.content");
    browser.wait("document.querySelectorAll('.compare-row.same').length === 4");
    browser.wait("document.querySelectorAll('.compare-row.first').length === 1");
    browser.open(&served.page(&[("compare", "left"), ("with", "left")]));
    browser.has(".banner.ok", "No difference");
}

#[test]
fn a_session_is_one_conversation_over_its_runs() {
    let Some(browser) = Browser::start() else { return };
    let scenario = r#"{"scripts": [[{"text": "first answer"}, {"finish": "stop"}], [{"text": "second answer"}, {"finish": "stop"}]],
        "ops": [{"op": "session.start", "id": "s-1", "messages": [{"role": "user", "content": "first question"}]},
                {"op": "session.continue", "message": {"role": "user", "content": "second question"}}]}"#;
    let store = Store::with(scenario);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[("session", "s-1")]));
    browser.wait("document.querySelectorAll('.turn .message').length === 4");
    let said = browser.text(".turns");
    let at = |words: &str| said.find(words).unwrap_or_else(|| panic!("{words} is not in {said}"));
    assert!(
        at("first question") < at("first answer") && at("first answer") < at("second question")
    );
    assert!(at("second question") < at("second answer"));
    // A turn that is recorded now appears in the open page.
    let more = r#"{"scripts": [[{"text": "third answer"}, {"finish": "stop"}]],
        "ops": [{"op": "session.start", "id": "s-1", "messages": [{"role": "user", "content": "third question"}]}]}"#;
    let file = store.file("more.json", more);
    assert_eq!(common::run(["play", "--log", &store.url(), &file]).code, Some(0));
    browser.wait("document.querySelector('.turns').innerText.includes('third answer')");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

/// A run in which every place that a model, a tool or a caller can write to holds these texts.
fn hostile_run(id: &str, texts: &[&str]) -> Sample {
    let about = |text: &str| About {
        model: Some(text.to_owned()),
        adapter: text.to_owned(),
        session: Some(SessionLink { id: Some(text.to_owned()), ..SessionLink::default() }),
        params: Metadata::from_iter([(text.to_owned(), json!(text))]),
        ..About::default()
    };
    let mut sample = Sample::of_session(id, 0, texts[0], None);
    for (place, text) in texts.iter().enumerate() {
        let call = format!("c{place}");
        let message = Message::assistant_parts(vec![
            Part::reasoning(*text),
            Part::text(*text),
            Part::text(format!(
                "[{text}]({text}) ![{text}]({text}) <{text}> `{text}` **{text}**\n\n# {text}\n\n| {text} |\n|---|\n| {text} |\n\n- {text}\n> {text}\n\n```{text}\n{text}\n```"
            )),
            Part::image(Image::from_url(*text)),
            Part::image(Image::from_base64(*text, "image/svg+xml")),
            Part::tool_call(ToolCall::new(&call, *text, json!({*text: text}).to_string())),
        ]);
        let mut response = Response::new(message);
        response.model = Some((*text).to_owned());
        let plan = serde_json::from_value(json!({"tools": {"run": [call], "manual": []}})).unwrap();
        let inside = Some(Inside { call_id: call.clone(), attempt: 1 });
        let effect = Effect::Done(json!(text));
        sample = sample
            .with(Fact::UserMessage { message: Arc::new(Message::user(*text)) })
            .with(Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 0 })
            .with(Fact::AssistantCompleted {
                response: Box::new(response),
                plan,
                cuts: Vec::new(),
                duration_ms: None,
                first_token_ms: None,
            })
            .with(Fact::ToolScheduled { call_id: call.clone(), attempt: 1, call: None })
            .with(Fact::SideEffect { inside, name: (*text).to_owned(), ahead: 0, effect })
            .with(Fact::ToolCompleted {
                call_id: call,
                attempt: 1,
                outcome: ToolOutcome::Ok(json!({*text: text})),
                content: (*text).to_owned(),
                duration_ms: None,
            });
    }
    let seam = json!({"kind": "resumed", "about": about(texts[0])});
    let seam = serde_json::from_value(seam).unwrap();
    sample.with(seam).sealed()
}

#[test]
fn nothing_that_a_model_or_a_tool_says_is_executed_or_fetched() {
    let Some(browser) = Browser::start() else { return };
    assert!(HOSTILE.len() >= 40);
    let store = Store::new();
    let whole = hostile_run("all", HOSTILE);
    // Ids too: those of runs, sessions and models stand in lists and links.
    let short = HOSTILE.iter().filter(|text| text.len() <= 255 && !text.is_empty());
    let named = short.map(|text| hostile_run(text, &[text]));
    fill(&store, std::iter::once(whole).chain(named));
    let served = Served::inspect(&store);
    let exported = store.beside("hostile.html");
    store.ok(&["export", "all", "--html", "-o", &exported]);
    let ids: Vec<String> = store
        .json(&["runs", "--limit", "1000"])
        .iter()
        .map(|run| common::text(run, "run_id"))
        .collect();
    let mut pages =
        vec![served.page(&[]), format!("file://{exported}"), served.page(&[("verify", "log")])];
    for view in ["conversation", "timeline", "records"] {
        pages.push(served.page(&[("run", "all"), ("view", view), ("record", "4")]));
    }
    // The list has all of the ids. Pages of their own show them in the same places each.
    for id in ids.iter().step_by(4) {
        pages.push(served.page(&[("run", id), ("record", "4")]));
    }
    for text in HOSTILE.iter().take(4) {
        pages.push(served.page(&[("session", text)]));
        pages.push(served.page(&[("compare", "all"), ("with", text)]));
        pages.push(served.page(&[("verify", text)]));
        pages.push(served.page(&[("prefix", text), ("model", text)]));
        let found: String = text.chars().take(200).collect();
        pages.push(served.page(&[("text", &found)]));
    }
    browser.requested();
    for page in &pages {
        browser.open(page);
        browser.wait("document.querySelector('main .empty, .proof-line, table.runs, .narrow, .turn, .compare-row, .turns') !== null");
        // Everything is opened, and the whole of it is scrolled through.
        // What is made when it is opened is opened as well.
        browser.run(OPEN_ALL);
        browser.run(OPEN_ALL);
        let found = browser.run(LOOK);
        assert_eq!(found, json!([]), "{page}");
    }
    let allowed = |url: &String| {
        url.starts_with(&served.address)
            || url.starts_with("file://")
            || url == "about:blank"
            || url.starts_with("blob:")
    };
    let requested = browser.requested();
    assert!(requested.len() > pages.len());
    let other: Vec<_> = requested.iter().filter(|url| !allowed(url)).collect();
    assert!(other.is_empty(), "{other:?}");
}

const OPEN_ALL: &str = "for (const details of document.querySelectorAll('details')) details.open = true; \
    for (const button of document.querySelectorAll('button.more')) button.click(); scrollTo(0, document.body.scrollHeight)";

/// What must not be in a page: a trace of executed script, elements that load or run something, attributes that do.
const LOOK: &str = "const bad = []; \
    if (window.pwned !== undefined) bad.push('executed'); \
    if (document.querySelectorAll('iframe, object, embed, base, form[action], video, audio, link[rel=import], animate, set, foreignObject').length) bad.push('element'); \
    const scripts = document.querySelectorAll('script').length; if (scripts > 2) bad.push('script'); \
    for (const element of document.querySelectorAll('*')) { \
      for (const { name, value } of element.attributes) { \
        if (name.startsWith('on') || name === 'srcdoc' || name === 'style' && /url|expression/i.test(value)) bad.push(name + '=' + value); \
        if (name === 'src' && !/^data:image.(png|jpeg|gif|webp);base64,|^.ui.app.js$/.test(value)) bad.push(name + '=' + value); \
        if (name === 'href' && !/^(https?:|mailto:|[/]|#|blob:|data:,$)/.test(value)) bad.push(name + '=' + value); \
      } } \
    return bad";

#[test]
fn a_run_of_10000_records_stays_small_while_it_is_scrolled() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let long = (0..2000).fold(Sample::new("long", 0), |sample, _| sample.tool_turn()).sealed();
    fill(&store, [long]);
    let served = Served::inspect(&store);
    for view in ["conversation", "timeline", "records"] {
        browser.open(&served.page(&[("run", "long"), ("view", view)]));
        browser.wait("document.querySelector('.run-facts')?.innerText.includes('10,003')");
        // How long it takes is measured in `benches/inspector.rs`.
        let scrolled = "const frame = () => new Promise((ok) => requestAnimationFrame(ok)); \
            const box = document.querySelector('.rows') ?? document.scrollingElement; let most = 0; \
            for (let step = 0; step < 40; step += 1) { most = Math.max(most, document.querySelectorAll('*').length); box.scrollTop += box.scrollHeight / 41; await frame(); await frame(); } \
            return most";
        let most = browser.run(&format!("return (async () => {{ {scrolled} }})()"));
        assert!(most.as_u64().unwrap() < 6000, "{view}: {most} elements");
    }
    browser.open(&served.page(&[("run", "long"), ("view", "records"), ("record", "9000")]));
    browser.shows(".record-row.selected .number", "9000");
}

#[test]
fn no_page_has_a_violation_of_accessibility() {
    let Some(browser) = Browser::start() else { return };
    let Some(axe) = chromium::axe() else { return };
    let store = Store::with(RUNS);
    let agent = store.file("runs.json", RUNS);
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    let runs = store.json(&["runs"]);
    let id = |status: &str| {
        common::text(runs.iter().find(|run| run["status"] == status).unwrap(), "run_id")
    };
    let (done, failed) = (id("completed"), id("failed"));
    let exported = store.beside("run.html");
    store.ok(&["export", &done, "--html", "-o", &exported]);
    let pages = [
        served.page(&[]),
        served.page(&[("prefix", "nothing")]),
        served.page(&[("text", "the")]),
        served.page(&[("compare", &done), ("replay", "-")]),
        served.page(&[("run", &done), ("record", "3")]),
        served.page(&[("run", &id("suspended"))]),
        served.page(&[("run", &failed), ("view", "timeline"), ("record", "2")]),
        served.page(&[("run", &done), ("view", "records"), ("record", "2")]),
        served.page(&[("compare", &done), ("with", &failed)]),
        served.page(&[("verify", &done)]),
        served.page(&[("verify", "log")]),
        served.page(&[("run", "missing")]),
        format!("file://{exported}"),
    ];
    for (page, dark) in pages.iter().flat_map(|page| [(page, false), (page, true)]) {
        browser.look(1280, 900, dark);
        browser.open(page);
        browser.wait("document.querySelector('main .empty, .proof-line, table.runs tr[data-run], .narrow, .compare-row') !== null && !document.querySelector('.skeleton')");
        browser
            .run("for (const details of document.querySelectorAll('details')) details.open = true");
        // Out of the page's own world, which its policy does not let in.
        let context =
            browser.protocol("Page.getFrameTree", &json!({}))["frameTree"]["frame"]["id"].clone();
        let world = browser.protocol("Page.createIsolatedWorld", &json!({"frameId": context}))["executionContextId"].clone();
        let evaluate = |script: &str| {
            let asked = json!({"expression": script, "contextId": world, "awaitPromise": true, "returnByValue": true});
            browser.protocol("Runtime.evaluate", &asked)
        };
        evaluate(&axe);
        // A dark page has the same elements in other colours.
        let rules = if dark { "runOnly: ['color-contrast'], " } else { "" };
        let found = evaluate(&format!(
            "axe.run(document, {{{rules}resultTypes: ['violations']}}).then((r) => r.violations.map((v) => v.id + ': ' + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + ' ' + (n.any[0]?.message ?? n.all[0]?.message ?? n.none[0]?.message ?? '')).join(' | ')))",
        ));
        let violations: Vec<Value> =
            found["result"]["value"].as_array().cloned().unwrap_or_else(|| panic!("{found}"));
        assert!(violations.is_empty(), "{page} (dark: {dark}): {violations:#?}");
    }
}
