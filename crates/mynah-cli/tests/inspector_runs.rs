//! What the page of a run shows and offers, in a real browser.

use std::process::Stdio;

use mynah::log::{Log as _, SqliteLog, conformance::Sample};
use serde_json::json;

use crate::{
    chromium::Browser,
    common::{self, RUNS, Store, mynah},
    served::Served,
};

/// Starts a run in the page, and returns its id.
fn started(browser: &Browser, served: &Served, input: &str) -> String {
    browser.open(&served.page(&[]));
    browser.click(".page-head .primary");
    browser.write("dialog textarea", input);
    browser.click("dialog .primary");
    let run = browser.wait("document.querySelector('.run') !== null && new URLSearchParams(location.search).get('run')");
    run.as_str().unwrap().to_owned()
}

const REFUNDS: &str = r#"{"engine": {"model": "m"}, "scripts": [
    [{"tool_call": {"id": "c0", "name": "refund", "raw_arguments": "{\"order\": 9007199254740993, \"eur\": 1.0}"}},
     {"tool_call": {"id": "c1", "name": "refund", "raw_arguments": "{\"order\": 2}"}}, {"finish": "tool_calls"}],
    [{"text": "Done."}, {"finish": "stop"}]],
    "tools": [{"name": "refund", "manual": true, "returns": {"ok": "paid back"}}], "ops": []}"#;

#[test]
fn no_call_is_decided_before_a_person_has_chosen() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let agent = store.file("shop.json", REFUNDS);
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    let run = started(&browser, &served, "Refund them.");
    browser.wait("document.querySelectorAll('.waiting .decision').length === 2");
    let chosen = "[...document.querySelectorAll('.decision select')].map((one) => one.value)";
    browser.gives(&format!("return {chosen}"), json!(["", ""]));
    // Neither the keyboard nor the button sends what is not decided.
    for focus in ["select", ".primary"] {
        browser.run(&format!("document.querySelector('.waiting {focus}').focus()"));
        browser.press("\u{e007}");
        browser.press("\u{e00c}");
    }
    browser.click(".waiting .primary");
    browser.gives("return document.querySelector('dialog')", json!(null));
    let choose = |place: usize, value: &str| {
        browser.run(&format!(
            "const one = document.querySelectorAll('.decision select')[{place}]; one.value = '{value}'; one.dispatchEvent(new Event('change'))"
        ));
    };
    choose(0, "edit");
    choose(1, "reject");
    browser.click(".waiting .primary");
    let exact = browser.wait("document.querySelector('dialog .exact')?.textContent");
    assert_eq!(exact, r#"{"order": 9007199254740993, "eur": 1.0}"#);
    // What is rejected is named as exactly as what runs.
    let rejected = browser.run("return document.querySelectorAll('dialog li')[1].innerText");
    assert_eq!(rejected, r#"do not run refund with {"order": 2}"#);
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.conversation').innerText.includes('Done.')");
    // What was edited keeps every digit on its way.
    let recorded = store.ok(&["export", &run, "--records"]);
    assert!(recorded.contains("9007199254740993"), "{recorded}");
    assert!(!recorded.contains("9007199254740992"), "{recorded}");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn numbers_are_shown_as_they_were_written() {
    let Some(browser) = Browser::start() else { return };
    let given = r#"{"id": 9007199254740993, "part": 1.0, "small": 1}"#;
    let result = r#"{"id": 18446744073709551617, "part": 2.50, "most": 1e400}"#;
    let scenario = json!({
        "scripts": [[{"tool_call": {"id": "c", "name": "look", "raw_arguments": given}}, {"finish": "tool_calls"}], [{"text": "Done."}, {"finish": "stop"}]],
        "tools": [{"name": "look", "returns": {"ok": result}}],
        "ops": [{"op": "chat", "messages": [{"role": "user", "content": "Look."}]}],
    });
    let store = Store::with(&scenario.to_string());
    let run = common::text(&store.json(&["runs"])[0], "run_id");
    let page = store.beside("run.html");
    store.ok(&["export", &run, "--html", "-o", &page]);
    let served = Served::inspect(&store);
    for address in [served.page(&[("run", &run)]), format!("file://{page}")] {
        browser.open(&address);
        browser.click(".call summary");
        browser.wait("document.querySelectorAll('.call .json').length === 2");
        let numbers = "return [...document.querySelectorAll('.call .json')].map((tree) => [...tree.querySelectorAll('.number')].map((one) => one.textContent))";
        let written =
            json!([["9007199254740993", "1.0", "1"], ["18446744073709551617", "2.50", "1e400"]]);
        browser.gives(numbers, written);
    }
    // Times are in nanoseconds, which are more than 2^53.
    browser.open(&served.page(&[]));
    let script = format!(
        "return import('/ui/api.js').then(({{ recordsOf }}) => recordsOf('{run}', {{ limit: 1 }})).then((page) => String(page.records[0].ts))"
    );
    let shown = store.json(&["show", &run, "--records"]);
    browser.gives(&script, shown[0]["ts"].to_string());
}

#[test]
fn an_answer_in_flight_is_shown_from_its_beginning_when_a_page_is_opened() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let agent = store.file(
        "slow.json",
        r#"{"scripts": [[{"text": "The first words. "}, {"delay_ms": 60000}, {"text": "The last."}, {"finish": "stop"}]], "ops": []}"#,
    );
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    let run = started(&browser, &served, "Go.");
    let streams = "document.querySelector('.streaming')?.innerText.includes('The first words.')";
    browser.wait(streams);
    browser.open(&served.page(&[("run", &run)]));
    browser.wait("document.querySelector('[data-status=in_progress]') !== null");
    browser.wait(streams);
    // Another view, and back.
    browser.open(&served.page(&[("run", &run), ("view", "records")]));
    browser.wait("document.querySelector('[data-status=in_progress]') !== null");
    browser.click("#tab-conversation");
    browser.wait(streams);
}

#[test]
fn the_page_of_an_agents_run_leads_to_where_its_calls_are_decided() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let calls = json!({"finish": "tool_calls"});
    let task = json!({"tool_call": {"id": "c0", "name": "helper", "arguments": {"task": "Look."}}});
    let shell =
        json!({"tool_call": {"id": "s0", "name": "shell", "arguments": {"command": "echo"}}});
    store.file("front.json", &json!({"scripts": [[task, calls]]}).to_string());
    store.file("helper.json", &json!({"scripts": [[shell, calls]]}).to_string());
    let agent = store.file(
        "agent.toml",
        "model = 'scripted:front.json'\n[agents.helper]\ndescription = 'Helps.'\nmodel = 'scripted:helper.json'\ntools = { shell = 'ask' }\n",
    );
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    let parent = started(&browser, &served, "Look around.");
    browser.wait("document.querySelector('.waiting .decision') !== null");
    browser.shows(".call .call-state", "waits for a person");
    browser.click(".agent-run a");
    browser.has(".banner.wait", "Decide in the run");
    browser.has(".banner.wait", &parent);
    browser.gives("return document.querySelector('.waiting')", json!(null));
    browser.click(".banner.wait a");
    browser.wait("document.querySelector('.waiting .decision') !== null");
    browser.gives("return new URLSearchParams(location.search).get('run')", &*parent);
}

#[test]
fn a_record_begins_with_what_people_look_for() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let served = Served::inspect(&store);
    let runs = store.json(&["runs"]);
    let run = common::text(runs.iter().find(|run| run["status"] == "completed").unwrap(), "run_id");
    browser.open(&served.page(&[("run", &run), ("view", "records"), ("record", "3")]));
    browser.wait("document.querySelector('.proof-line')?.dataset.status === 'verified'");
    let members = "return [...document.querySelectorAll('.record-detail .json > details > .inner > *')].map((one) => [one.querySelector('.key').textContent, one.open ?? null])";
    let members = browser.run(members);
    let members = members.as_array().unwrap();
    assert_eq!(members[0], json!(["\"response\"", true]), "{members:?}");
    assert_eq!(*members.last().unwrap(), json!(["\"cuts\"", false]), "{members:?}");
}

#[test]
fn a_failed_run_says_why_at_its_top_and_beside_the_call() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(include_str!("../../../scenarios/tools/failures_halt_on_request.json"));
    let runs = store.json(&["runs"]);
    let failed = runs.iter().find(|run| run["status"] == "failed").unwrap();
    let served = Served::inspect(&store);
    browser.open(&served.page(&[("run", &common::text(failed, "run_id"))]));
    let why = browser.text(".run-head .banner.bad");
    let beside = browser.text(".call-error");
    assert!(why.starts_with("Failed") && why.contains(&beside), "{why}; {beside}");
    browser.click(".run-head .banner.bad button");
    browser.has(".record-detail h2", "tool_failed");
}

#[test]
fn a_failed_run_is_resumed_only_as_that_can_help_and_leads_to_what_continued_it() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let agent = |reason: &str| {
        let script = json!({"scripts": [[{"error": reason, "message": "no"}], [{"text": "Back."}, {"finish": "stop"}]]});
        store.file(&format!("{reason}.json"), &script.to_string())
    };
    let agents = ["rate_limited", "invalid_request"].map(agent);
    let served = Served::start(&mut mynah([
        "serve",
        &agents[0],
        &agents[1],
        "--json",
        "--log",
        &store.url(),
    ]));
    browser.open(&served.page(&[]));
    for (name, class, said) in [
        ("rate_limited", "primary", "is made again, in a new run"),
        ("invalid_request", "", "a reason that does not pass by itself"),
    ] {
        let start = format!(
            "return fetch('/v1/runs?wait=30', {{ method: 'POST', headers: {{ 'mynah-request': '1', 'content-type': 'application/json' }}, body: JSON.stringify({{ agent: '{name}', input: 'Hi', key: '{name}' }}) }}).then((answer) => answer.status)"
        );
        assert_eq!(browser.run(&start), 200);
        browser.open(&served.page(&[("run", name)]));
        let button = "[...document.querySelectorAll('.run-title button')].find((one) => one.innerText === 'Resume')";
        browser.wait(&format!("{button} !== undefined"));
        browser.gives(&format!("return {button}.className"), class);
        press(&browser, "Resume");
        let dialog = browser.text("dialog");
        assert!(dialog.contains(said) && !dialog.contains("outcome is unknown"), "{dialog}");
        browser.click("dialog .primary");
        browser.wait(&format!("new URLSearchParams(location.search).get('run') === '{name}~2'"));
        browser.open(&served.page(&[("run", name)]));
        browser.wait(&format!(
            "document.querySelector('.facts-list')?.innerText.includes('Continued in\\n{name}~2')"
        ));
        browser.gives(&format!("return {button} === undefined"), true);
    }
}

#[test]
fn a_list_that_is_sorted_in_part_says_so() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let log = SqliteLog::open(&store.path).unwrap();
        for n in 0..101 {
            log.append(Sample::new(format!("r-{n:03}"), 1000 * n).sealed().batch()).await.unwrap();
        }
    });
    let served = Served::inspect(&store);
    browser.open(&served.page(&[("sort", "cost")]));
    browser.has(".banner.sorted", "Only the 100 runs of this page");
    // All runs fit: nothing to say.
    browser.open(&served.page(&[("sort", "cost"), ("prefix", "r-00")]));
    browser.wait("document.querySelectorAll('tr[data-run]').length === 10");
    browser.gives("return document.querySelector('.banner.sorted')", json!(null));
}

#[test]
fn runs_are_found_by_the_day_on_which_they_started() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    store.play(RUNS, false);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[("range", "today"), ("status", "failed")]));
    browser.wait("document.querySelectorAll('tr[data-run]').length === 1");
    browser.open(&served.page(&[("range", "yesterday")]));
    browser.has(".empty h2", "No run fits");
    browser.shows(".spark-axis", "0:00\n24:00");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_large_run_says_how_much_of_it_is_here_and_is_verified_on_request() {
    let Some(browser) = Browser::start() else { return };
    let turns = (0..600).map(|n| {
        let call =
            json!({"tool_call": {"id": format!("c{n}"), "name": "look", "arguments": {"n": n}}});
        json!([call, {"finish": "tool_calls"}])
    });
    let scenario = json!({
        "scripts": turns.chain([json!([{"text": "All seen."}, {"finish": "stop"}])]).collect::<Vec<_>>(),
        "tools": [{"name": "look", "returns": {"ok": 1}}],
        "ops": [{"op": "chat", "options": {"max_turns": 700}, "messages": [{"role": "user", "content": "Look."}]}],
    });
    let store = Store::with(&scenario.to_string());
    let served = Served::inspect(&store);
    browser.open(&served.page(&[]));
    browser.wait("document.querySelector('tr[data-run]') !== null");
    // The second portion of records comes late.
    browser.run(
        "const real = window.fetch; window.fetch = (path, ...rest) => String(path).includes('from=1001') ? new Promise((done) => { window.go = () => done(real(path, ...rest)); }) : real(path, ...rest)",
    );
    browser.click("tr[data-run] .run-id a");
    browser.has(".proof-line", "Loading 1,000 of 2,40");
    browser.shows(".run-status .chip", "Completed");
    browser.run("window.go()");
    browser.wait("document.querySelector('.proof-line')?.innerText.includes('Not verified yet')");
    browser.has(".run-title .buttons", "Replay");
    browser.click(".proof-line button.small");
    browser.wait("document.querySelector('.proof-line')?.dataset.status === 'verified'");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_run_that_ended_is_started_again_with_its_agent_and_its_input() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let agent = store.file(
        "talk.json",
        r#"{"scripts": [[{"text": "One."}, {"finish": "stop"}], [{"text": "Two."}, {"finish": "stop"}]], "ops": []}"#,
    );
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    let run = started(&browser, &served, "Count.");
    let button = "[...document.querySelectorAll('.run-title button')].find((one) => one.innerText === 'Run again')";
    browser.wait(&format!("{button} !== undefined"));
    browser.run(&format!("{button}.click()"));
    assert_eq!(browser.wait("document.querySelector('dialog textarea')?.value"), "Count.");
    browser.write("dialog textarea", "Count on.");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.conversation')?.innerText.includes('Count on.')");
    assert_ne!(browser.run("return new URLSearchParams(location.search).get('run')"), *run);
}

#[test]
fn the_answer_to_a_message_is_shown_while_it_streams() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    // Each answer streams its first words, and stays in flight after them.
    let agent = store.file(
        "slow.json",
        r#"{"scripts": [
            [{"text": "One "}, {"delay_ms": 400}, {"text": "two "}, {"delay_ms": 3000}, {"text": "three."}, {"finish": "stop"}],
            [{"text": "Four "}, {"text": "five. "}, {"delay_ms": 60000}, {"text": "Six."}, {"finish": "stop"}]], "ops": []}"#,
    );
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    started(&browser, &served, "Count.");
    let streams = |text: &str| {
        browser
            .wait(&format!("document.querySelector('.streaming')?.innerText.includes({text:?})"));
    };
    streams("One two");
    browser.click(".run-title .buttons button");
    browser.write("dialog textarea", "Go on.");
    browser.click("dialog .primary");
    // It is shown at once, and once.
    browser.wait("document.querySelector('.queued')?.innerText.includes('Go on.')");
    streams("Four five.");
    browser.gives("return document.querySelector('.queued')", json!(null));
    browser.has(".conversation", "Go on.");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

const LOOK: &str = r#"{"engine": {"model": "m-1"}, "scripts": [
    [{"tool_call": {"id": "c0", "name": "look", "arguments": {"at": "sky"}}}, {"finish": "tool_calls"}],
    [{"text": "Blue."}, {"finish": "stop"}]],
    "tools": [{"name": "look", "returns": {"ok": "blue"}}], "ops": []}"#;

/// Clicks the button with these words.
fn press(browser: &Browser, words: &str) {
    let button = format!(
        "[...document.querySelectorAll('button')].find((one) => one.innerText.trim() === {})",
        json!(words)
    );
    browser.wait(&format!("{button} !== undefined"));
    browser.run(&format!("{button}.click()"));
}

#[test]
fn another_prompt_and_model_are_tried_in_a_new_run_that_is_compared_with_the_first() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let agent = store.file("look.json", LOOK);
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    let run = started(&browser, &served, "Look up.");
    browser.wait("document.querySelector('[data-status=verified]') !== null");
    press(&browser, "Try another prompt");
    browser.has("dialog", "no tool runs");
    browser.has("dialog", "costs money");
    browser.write("dialog textarea", "Be brief.");
    browser.write("dialog input", "m-2");
    browser.click("dialog .primary");
    browser.wait("document.querySelectorAll('.compare-run .chip.status-completed').length === 2");
    browser.has(".compare-heads", "m-1");
    browser.has(".compare-heads", "m-2");
    browser.has(".compare-row.first", "Be brief.");
    assert!(!browser.text(".compare-rows").contains("resumed"));
    let query = "new URLSearchParams(location.search)";
    let ids = browser.run(&format!("return [{query}.get('compare'), {query}.get('with')]"));
    assert_eq!(ids[0], *run);
    // The link between the runs is recorded, and so is that tools did not run.
    let other = ids[1].as_str().unwrap();
    let facts = store.ok(&["export", other, "--records"]);
    assert!(facts.contains(&format!("recorded:{run}")), "{facts}");
    browser.open(&served.page(&[("run", other)]));
    browser.wait("document.querySelector('.run-facts')?.innerText.includes('Fork of')");
    browser.has(".conversation", "Tools did not run");
    browser.open(&served.page(&[]));
    browser.has("tr[data-run] .run-fork", "try of");
    browser.has("tr[data-run]", "m-2");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn an_edited_first_message_makes_a_fork() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let agent = store.file("look.json", LOOK);
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    let run = started(&browser, &served, "Look up.");
    browser.wait("document.querySelector('[data-status=verified]') !== null");
    browser.open(&served.page(&[("run", &run), ("record", "1")]));
    press(&browser, "Edit the message");
    assert_eq!(browser.wait("document.querySelector('dialog textarea')?.value"), "Look up.");
    browser.write("dialog textarea", "Look down.");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.run-facts')?.innerText.includes('Fork of')");
    browser.wait("document.querySelector('[data-status=verified]') !== null");
    let said = browser.text(".conversation");
    assert!(said.contains("Look down.") && !said.contains("Look up."), "{said}");
    let fork = store.json(&["runs"])[0].clone();
    assert_eq!((&fork["parent"]["run_id"], &fork["parent"]["seq"]), (&json!(run), &json!(1)));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

/// Chooses a decision about a call.
fn choose(browser: &Browser, value: &str, text: &str) {
    browser.wait("document.querySelector('.decision select') !== null");
    browser.run(&format!(
        "const one = document.querySelector('.decision select'); one.value = '{value}'; one.dispatchEvent(new Event('change')); \
         const text = document.querySelector('.decision textarea'); text.value = {}; text.dispatchEvent(new Event('input'))",
        json!(text)
    ));
}

const PAY: &str = r#"{"engine": {"model": "m"}, "scripts": [
    [{"tool_call": {"id": "c0", "name": "pay", "raw_arguments": "{\"eur\": 7}"}}, {"finish": "tool_calls"}],
    [{"tool_call": {"id": "c1", "name": "pay", "raw_arguments": "{\"eur\": 8}"}}, {"finish": "tool_calls"}],
    [{"text": "Done."}, {"finish": "stop"}]],
    "tools": [{"name": "pay", "manual": true, "returns": {"ok": "paid"}}], "ops": []}"#;

#[test]
fn a_form_refuses_what_is_missing_or_no_json_and_the_card_shows_what_ran() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let agent = store.file("shop.json", PAY);
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    let run = started(&browser, &served, "Pay.");
    browser.wait("document.querySelector('.proof-line')?.innerText.includes('4 records checked')");
    let no_dialog = || browser.gives("return document.querySelector('dialog')", json!(null));
    // An empty result is no result.
    choose(&browser, "result", "");
    browser.click(".waiting .primary");
    no_dialog();
    choose(&browser, "edit", "{\"eur\": 5");
    browser.click(".waiting .primary");
    no_dialog();
    browser.has(".waiting .error:not([hidden])", "not JSON");
    choose(&browser, "edit", "{\"eur\": 5}");
    browser.click(".waiting .primary");
    browser.click("dialog .primary");
    browser.wait("document.querySelectorAll('.call').length === 2");
    let card = browser.text(".call summary");
    assert!(card.contains("{\"eur\": 5}") || card.contains("{\"eur\":5}"), "{card}");
    assert!(card.contains("approved with edited arguments · done"), "{card}");
    browser.click(".call summary");
    browser.wait("document.querySelectorAll('.call-body h3').length === 3");
    browser.has(".call-body", "edited by a person");
    browser.has(".call-body", "the model gave");
    // The run waits again, and all of its records are checked.
    browser.wait("document.querySelector('.proof-line')?.innerText.includes('10 records checked')");
    // A fork where it waits is made without a question, and waits too.
    let waits =
        browser.wait("[...document.querySelectorAll('.note.tone-wait')].at(-1)?.dataset.seq");
    browser.open(&served.page(&[("run", &run), ("record", waits.as_str().unwrap())]));
    press(&browser, "Fork here");
    browser.has("dialog", "waits for your decision");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.run-facts')?.innerText.includes('Fork of')");
    choose(&browser, "result", "by hand");
    browser.click(".waiting .primary");
    browser.has("dialog", "by hand");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.conversation')?.innerText.includes('Done.')");
    let note = browser.wait("[...document.querySelectorAll('.note')].find((one) => one.innerText.includes('Result given for pay'))?.innerText");
    assert!(note.as_str().unwrap().contains("by hand"), "{note}");
    assert_eq!(store.json(&["runs"]).len(), 2, "one click makes one fork");
    browser.open(&served.page(&[]));
    browser.wait("document.querySelectorAll('tr[data-run]').length === 2");
    browser.has(".run-fork", "fork of");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn an_approval_of_a_tool_that_changed_says_what_can_be_done() {
    let Some(browser) = Browser::start() else { return };
    let ops = r#""ops": [{"op": "chat", "messages": [{"role": "user", "content": "Pay."}]}]"#;
    let store = Store::with(&PAY.replace(r#""ops": []"#, ops));
    let changed = r#""manual": true, "description": "Pays twice""#;
    let agent = store.file("changed.json", &PAY.replace(r#""manual": true"#, changed));
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    let run = common::text(&store.json(&["runs"])[0], "run_id");
    browser.open(&served.page(&[("run", &run)]));
    choose(&browser, "approve", "");
    browser.click(".waiting .primary");
    browser.click("dialog input[type=checkbox]");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('dialog .error:not([hidden])') !== null");
    let told = browser.text("dialog .error");
    assert!(told.contains("The tool pay changed since the run asked"), "{told}");
    assert!(told.contains("--approve-digest c0=") && !told.contains("Engine::"), "{told}");
}

const ASK: &str = r#"{"engine": {"model": "m"}, "scripts": [
    [{"tool_call": {"id": "q0", "name": "ask", "arguments": {}}}, {"finish": "tool_calls"}],
    [{"text": "Ordered."}, {"finish": "stop"}]],
    "tools": [{"name": "ask", "returns": {"ask_user": "How many?", "opts": {"choices": ["Two.", "Three."]}}}], "ops": []}"#;

#[test]
fn a_call_that_asks_waits_for_a_person_and_its_session_too() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let agent = store.file("ask.json", ASK);
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    browser.open(&served.page(&[]));
    browser.click(".page-head .primary");
    browser.write("dialog textarea", "Order.");
    browser.write("dialog input", "ada");
    browser.click("dialog .primary");
    browser.wait(
        "document.querySelector('.call .call-state')?.innerText.includes('waits for a person')",
    );
    // The session takes no message meanwhile, and shows the question.
    browser.open(&served.page(&[("session", "ada")]));
    press(&browser, "Send a message");
    browser.has("dialog", "The last turn waits");
    browser.has("dialog", "How many?");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.waiting textarea') !== null");
    // What the question offers is answered with a button.
    browser.click(".choices button:nth-child(2)");
    browser.wait("document.querySelector('.waiting textarea').value === 'Three.'");
    browser.press("\u{e00c}");
    browser.wait("document.querySelector('dialog') === null");
    browser.click(".waiting .primary");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.conversation')?.innerText.includes('Ordered.')");
    browser.wait("document.querySelector('.call .call-state').innerText.endsWith('answered')");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

const DEPLOY: &str = r#"{"engine": {"model": "m"}, "scripts": [
    [{"tool_call": {"id": "c0", "name": "deploy", "arguments": {"env": "prod"}}}, {"finish": "tool_calls"}],
    [{"text": "Deployed."}, {"finish": "stop"}]],
    "tools": [{"name": "deploy", "returns": {"ok": "done", "delay_ms": 600000}}],
    "ops": [{"op": "chat", "messages": [{"role": "user", "content": "Go."}]}]}"#;

#[test]
fn an_outcome_that_a_person_gave_is_no_longer_unknown() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let agent = store.file("deploy.json", DEPLOY);
    let mut play = mynah(["play", "--log", &store.url(), &agent]);
    let mut playing = play.stdout(Stdio::null()).spawn().unwrap();
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    browser.open(&served.page(&[]));
    browser.click("tr[data-run] .run-id a");
    browser.wait("document.querySelector('.call.state-running') !== null");
    playing.kill().unwrap();
    playing.wait().unwrap();
    browser.wait("document.querySelector('.call-state')?.innerText.includes('outcome unknown')");
    press(&browser, "Resume");
    browser.has("dialog", "Calls whose outcome is unknown");
    browser.click("dialog .primary");
    browser.wait(
        "document.querySelector('.decision option[value=approve]')?.innerText === 'Run it again'",
    );
    browser.shows(".call .call-state", "outcome unknown");
    choose(&browser, "result", "it is out");
    browser.click(".waiting .primary");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.conversation')?.innerText.includes('Deployed.')");
    browser.shows(".call .call-state", "result given");
    browser.click(".call summary");
    browser.gives(
        "return [...document.querySelectorAll('.call-body h3')].map((one) => one.innerText)",
        json!(["Arguments", "Attempt 1", "Result, given by a person"]),
    );
}

#[test]
fn an_answer_is_sent_to_an_agent_that_did_not_begin_the_run() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let runs = store.json(&["runs"]);
    let waits = runs.iter().find(|run| run["status"] == "suspended").unwrap();
    let run = common::text(waits, "run_id");
    let agent = |name: &str| {
        let text = r#"{"engine": {"model": "other"}, "scripts": [[{"text": "Two it is."}, {"finish": "stop"}]], "tools": [], "ops": []}"#;
        store.file(name, text)
    };
    let (one, two) = (agent("one.json"), agent("two.json"));
    let served = Served::start(&mut mynah(["serve", &one, &two, "--json", "--log", &store.url()]));
    browser.open(&served.page(&[("run", &run)]));
    browser.wait("document.querySelector('.waiting textarea') !== null");
    browser.write(".waiting textarea", "two");
    browser.click(".waiting .primary");
    // The error stands beside the field that is missing.
    browser.click("dialog .primary");
    browser.wait("document.querySelector('dialog .field select + .error')?.innerText.includes('none of this server fits')");
    browser.run("document.querySelector('dialog select').value = 'two'");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('dialog .error')?.innerText.includes('the box “Even if')");
    browser.click("dialog input[type=checkbox]");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.conversation').innerText.includes('Two it is.')");
}
