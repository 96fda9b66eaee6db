//! The inspector's search, comparisons and layout in a real browser.

use std::process::{Child, Stdio};

use serde_json::json;

use crate::{
    chromium::Browser,
    common::{self, RUNS, Store, mynah},
    served::Served,
};

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
    browser.has(".table-frame", "When is the train to Vienna?");
    browser.press("/");
    browser.press("NIGHT train\u{e007}");
    browser.wait("new URLSearchParams(location.search).get('text') === 'NIGHT train' && document.querySelectorAll('tr[data-run]').length === 1");
    browser.shows(".excerpt mark", "night train");
    browser.has(".pager", "Searched 6 runs");
    // The run opens at the record in which it was said.
    browser.click(".run-id a");
    browser.wait(
        "document.querySelector('.record-detail h2')?.innerText.includes('assistant_completed')",
    );
    browser.open(&served.page(&[("text", "never said")]));
    browser.has(".empty h2", "No run fits");
    browser.open(&served.page(&[("seconds", "0.8"), ("status", "completed")]));
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
    let records = store.json(&["show", &run, "--records"]);
    let answer = records.iter().rfind(|record| record["kind"] == "assistant_completed").unwrap();
    let silent = answer["fact"]["first_token_ms"].as_f64().unwrap();
    let whole = answer["fact"]["duration_ms"].as_f64().unwrap();
    // The bar also has the time until the call was recorded, so it is at least as long as the call.
    let part = "const one = document.querySelectorAll('.bar.span-model')[1]; \
        return one.querySelector('.silent').getBoundingClientRect().width / one.getBoundingClientRect().width";
    let part = browser.run(part).as_f64().unwrap();
    assert!(part > 0.0 && part < silent / whole + 0.05, "{part} of {silent}/{whole}");
    let title = browser.run("return document.querySelectorAll('.bar.span-model')[1].title");
    let told = if silent < 1_000.0 { format!("{silent} ms") } else { String::new() };
    assert!(
        title.as_str().unwrap().contains(&format!("first token after {told}")),
        "{title}: {told}"
    );
    browser.click("#tab-conversation");
    browser.wait("document.querySelector('.conversation').innerText.includes('first token')");
    browser.has(".overall", "Where the time went");
}

#[test]
fn the_panel_of_a_tools_bar_has_arguments_and_outcome() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(TRIP);
    let run = common::text(&store.json(&["runs"])[0], "run_id");
    let served = Served::inspect(&store);
    browser.open(&served.page(&[("run", &run), ("view", "timeline")]));
    browser.click(".bar.span-tool");
    let panel = browser.text(".panel .whole-call");
    let records = store.json(&["show", &run, "--records"]);
    let find = |kind: &str| records.iter().find(|record| record["kind"] == kind).unwrap();
    let outcome = find("tool_completed")["fact"]["content"].as_str().unwrap();
    let call = &find("assistant_completed")["fact"]["response"]["message"]["content"][0];
    let (_, value) = call["arguments"].as_object().unwrap().iter().next().unwrap();
    for part in ["Arguments", "Result", outcome, value.as_str().unwrap()] {
        assert!(panel.contains(part), "{part}: {panel}");
    }
    assert_eq!(browser.errors(), Vec::<String>::new());
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
    browser.wait("document.querySelector('.run-status .chip')?.innerText === 'Completed'");
    // The call was made in the other run, and took no time of this one.
    let added = browser.text(".overall").replace('\t', " ");
    assert!(added.contains("trains 1 – –") && !added.contains("Tools <"), "{added}");
    browser.run("[...document.querySelectorAll('.buttons a')].find((one) => one.innerText.includes('Compare')).click()");
    browser.wait("document.querySelector('.compare-row.first') !== null");
    browser.has(".banner.warn", "Not in the rows: record 7 on the right");
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
    browser.has(".field-diff", "manual");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_run_and_the_run_of_its_agent_lead_to_each_other() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    store.file(
        "front.json",
        r#"{"scripts": [[{"tool_call": {"id": "c0", "name": "research", "arguments": {"task": "Can they?"}}}, {"usage": {"input_tokens": 10, "output_tokens": 5}}, {"finish": "tool_calls"}],
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
    let shown = store.json(&["runs"]);
    let ids: Vec<String> = shown.iter().map(|run| common::text(run, "run_id")).collect();
    let parent = ids.iter().find(|id| !id.contains('+')).unwrap();
    let child = ids.iter().find(|id| id.contains('+')).unwrap();
    let at = |run: &str| {
        format!(
            "new URLSearchParams(location.search).get('run') === {} && document.querySelector('.run-facts') !== null",
            json!(run)
        )
    };
    let served = Served::inspect(&store);
    // The list names the run that called an agent. Turns and tokens are those of `mynah runs`.
    browser.open(&served.page(&[]));
    browser.wait("document.querySelectorAll('tr[data-run]').length === 2");
    let cells = |run: &str| {
        let row = format!(
            "[...document.querySelectorAll('tr[data-run]')].find((one) => one.dataset.run === {})",
            json!(run)
        );
        browser
            .run(&format!("return [...{row}.querySelectorAll('td')].map((one) => one.innerText)"))
    };
    let listed = store.ok(&["runs"]);
    let line = listed.lines().find(|line| line.contains(parent) && !line.contains('+')).unwrap();
    let numbers: Vec<&str> = line.split_whitespace().skip(5).take(3).collect();
    let shown = cells(parent);
    assert_eq!(numbers, ["3", "1", "25"], "{listed}");
    assert_eq!([&shown[6], &shown[7], &shown[8]], ["3", "1", "25"], "{shown}");
    assert!(cells(child)[1].as_str().unwrap().contains("agent of"), "{}", cells(child));
    browser.click(".run-caller");
    browser.wait(&at(parent));
    browser.has(".run-facts", "Turns\n3");
    browser.has(".run-facts", "Input\n17");
    browser.wait("document.querySelector('.agent-run a') !== null");
    browser.click(".agent-run a");
    browser.wait(&at(child));
    browser.wait("document.querySelector('.conversation')?.innerText.includes('They can.')");
    browser.run("[...document.querySelectorAll('.run-facts .fact')].find((one) => one.innerText.includes('AGENT OF') || one.innerText.includes('Agent of')).querySelector('a').click()");
    browser.wait(&at(parent));
    let records = store.json(&["show", parent, "--records"]);
    let link =
        records.iter().find(|record| record.to_string().contains("sub_run_started")).unwrap();
    browser.open(&served.page(&[
        ("run", parent),
        ("view", "records"),
        ("record", &link["seq"].to_string()),
    ]));
    browser.wait("document.querySelector('.record-detail .actions a') !== null");
    browser.click(".record-detail .actions a");
    browser.wait(&at(child));
    // The same in a file, which has both runs.
    let file = store.beside("both.ndjson");
    store.ok(&["export", parent, "-o", &file]);
    let served = Served::start(&mut mynah(["inspect", "--json", &file]));
    browser.open(&served.page(&[("run", parent)]));
    browser.click(".agent-run a");
    browser.wait(&at(child));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn the_calls_of_an_agent_are_decided_in_the_page_of_its_parent() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let shell = |id: &str| json!({"tool_call": {"id": id, "name": "shell", "arguments": {"command": format!("echo {id}")}}});
    let calls = json!({"finish": "tool_calls"});
    let says = |text: &str| json!([{"text": text}, {"finish": "stop"}]);
    let task = json!({"tool_call": {"id": "c0", "name": "helper", "arguments": {"task": "Look."}}});
    let front = json!({"scripts": [[task, calls], says("All done.")]});
    let helper = json!({"scripts": [[shell("s0"), shell("s1"), calls], says("Looked.")]});
    store.file("front.json", &front.to_string());
    store.file("helper.json", &helper.to_string());
    let agent = store.file(
        "agent.toml",
        "model = 'scripted:front.json'\n[agents.helper]\ndescription = 'Helps.'\nmodel = 'scripted:helper.json'\ntools = { shell = 'ask' }\n",
    );
    let served = Served::start(&mut mynah(["serve", &agent, "--json", "--log", &store.url()]));
    browser.open(&served.page(&[]));
    browser.click(".page-head .primary");
    browser.write("dialog textarea", "Look around.");
    browser.click("dialog .primary");
    browser.wait("document.querySelectorAll('.waiting .decision').length === 2");
    browser.has(".waiting", "An agent of this run wants to call");
    browser.run("const [first, second] = document.querySelectorAll('.decision select'); first.value = 'approve'; second.value = 'reject'; second.dispatchEvent(new Event('change')); document.querySelectorAll('.decision textarea')[1].value = 'not that one'");
    browser.click(".waiting .primary");
    browser.click("dialog .primary");
    browser.wait("document.querySelector('.conversation')?.innerText.includes('All done.')");
    // The decisions are shown as such, and not as a message of the user.
    let shown = browser.text(".conversation");
    assert!(shown.contains("Approved: shell, a call of an agent"), "{shown}");
    assert!(shown.contains("Rejected: shell, a call of an agent\nnot that one"), "{shown}");
    assert!(!shown.contains("{\"s0\""), "{shown}");
    browser.click("#tab-timeline");
    let rows = browser.wait("[...document.querySelectorAll('.span-row')].map((row) => row.querySelector('.span-words').innerText)");
    let rows: Vec<&str> = rows.as_array().unwrap().iter().filter_map(|row| row.as_str()).collect();
    let call = rows.iter().position(|row| *row == "helper").unwrap();
    assert_eq!(rows[call + 1], "Agent helper", "{rows:?}");
    let tree = store.ok(&["show", "last", "--tree"]);
    assert!(tree.contains("s0\\n") && tree.contains("not that one"), "{tree}");
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
        let text = browser.text("main");
        assert!(!text.contains("[object"), "{page}: {text}");
        assert!(!page.contains("compare=") || text.contains("waits for a person"), "{text}");
    }
    // For any part of the timeline.
    browser.look(320, 900, false);
    browser.open(&served.page(&[("run", &done), ("view", "timeline")]));
    browser.wait("document.querySelector('.tick') !== null");
    for zoom in 0..20 {
        browser.press(if zoom % 5 == 4 { "\u{e014}" } else { "+" });
        let over = browser.run("const right = document.documentElement.clientWidth; return [...document.querySelectorAll('.tick')].filter((tick) => tick.getBoundingClientRect().right > right).length");
        assert_eq!(over, json!(0), "after {zoom} keys");
    }
}

#[test]
fn the_export_menu_is_within_a_narrow_window() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(TRIP);
    let run = common::text(&store.json(&["runs"])[0], "run_id");
    let served = Served::inspect(&store);
    for width in [320, 480, 1280] {
        browser.look(width, 800, false);
        browser.open(&served.page(&[("run", &run)]));
        browser.click(".menu summary");
        let sides = browser.run(
            "const { left, right } = document.querySelector('.menu-items').getBoundingClientRect(); return [left, right, document.documentElement.clientWidth]",
        );
        let sides: Vec<f64> = serde_json::from_value(sides).unwrap();
        assert!(sides[0] >= 0.0 && sides[1] <= sides[2], "{width}: {sides:?}");
        // Each of its items can be clicked where it is.
        let covered = "return [...document.querySelectorAll('.menu-items a')].filter((item) => { const { left, top, width, height } = item.getBoundingClientRect(); return !item.contains(document.elementFromPoint(left + width - 4, top + height / 2)); }).length";
        browser.gives(covered, json!(0));
    }
}

#[test]
fn what_a_page_shows_as_verified_is_what_was_verified() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[]));
    browser.wait("document.querySelectorAll('tr[data-run]').length === 5");
    // A server that shows other records than it keeps.
    browser.run(
        "const real = window.fetch; window.fetch = async (path, ...rest) => { \
         const answer = await real(path, ...rest); \
         if (!String(path).includes('/records')) return answer; \
         return new Response((await answer.text()).replaceAll('on its way', 'on the moon'), { headers: answer.headers }); }",
    );
    browser.run(
        "[...document.querySelectorAll('tr[data-run]')].find((row) => row.innerText.includes('Soup!')).querySelector('.run-id a').click()",
    );
    browser.wait("document.querySelector('.proof-line')?.dataset.status === 'verified'");
    let shown = browser.text(".conversation");
    assert!(shown.contains("on its way") && !shown.contains("on the moon"), "{shown}");
}

#[test]
fn calls_with_other_ids_and_an_inserted_turn_are_not_differences() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    for (id, name) in [("toolu_1", "left"), ("call_x", "right")] {
        let more = if name == "left" {
            ""
        } else {
            r#"[{"tool_call": {"id": "more", "name": "count", "arguments": {"n": 2}}}, {"finish": "tool_calls"}],"#
        };
        let scenario = format!(
            r#"{{"scripts": [[{{"tool_call": {{"id": "{id}", "name": "count", "arguments": {{"n": 1}}}}}}, {{"finish": "tool_calls"}}], {more}
            [{{"text": "Done."}}, {{"finish": "stop"}}]], "tools": [{{"name": "count", "returns": {{"ok": 1}}}}],
            "ops": [{{"op": "chat", "messages": [{{"role": "user", "content": "Count."}}]}}]}}"#
        );
        let file = store.file("play.json", &scenario);
        assert_eq!(common::run(["play", "--log", &store.url(), &file]).code, Some(0));
    }
    let runs = store.json(&["runs"]);
    let [right, left] = [0, 1].map(|place| common::text(&runs[place], "run_id"));
    let served = Served::inspect(&store);
    browser.open(&served.page(&[("compare", &left), ("with", &right)]));
    browser.wait("document.querySelectorAll('.compare-row').length > 8");
    // The turn that only the right run has: its start, answer, call and result.
    let states = "return Object.entries(Object.groupBy(document.querySelectorAll('.compare-row'), (row) => row.classList[1])).map(([state, rows]) => [state, rows.length]).sort()";
    let found = browser.run(states);
    assert_eq!(found[0], json!(["only-right", 4]), "{found}");
}

#[test]
fn calls_with_one_id_and_other_tools_or_arguments_differ_in_the_page_and_in_the_command() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    for (tool, n) in [("count", 1), ("count", 2), ("weigh", 1)] {
        let scenario = json!({
            "scripts": [[{"tool_call": {"id": "c0", "name": tool, "arguments": {"n": n}}}, {"finish": "tool_calls"}], [{"text": "Done."}, {"finish": "stop"}]],
            "tools": [{"name": "count", "returns": {"ok": 1}}, {"name": "weigh", "returns": {"ok": 1}}],
            "ops": [{"op": "chat", "messages": [{"role": "user", "content": "Go."}]}],
        });
        let file = store.file("play.json", &scenario.to_string());
        assert_eq!(common::run(["play", "--log", &store.url(), &file]).code, Some(0));
    }
    let runs = store.json(&["runs"]);
    let [third, second, first] = [0, 1, 2].map(|place| common::text(&runs[place], "run_id"));
    let served = Served::inspect(&store);
    for (other, tool) in [(&second, "count"), (&third, "weigh")] {
        browser.open(&served.page(&[("compare", &first), ("with", other)]));
        browser.wait("document.querySelectorAll('.compare-row').length > 8");
        let states = "return [...document.querySelectorAll('.compare-row')].filter((row) => row.querySelector('.kind').innerText.startsWith('tool_')).map((row) => row.classList[1])";
        browser.gives(states, json!(["differs", "differs"]));
        // Where it says that two records are the same, they read the same.
        let unlike = "return [...document.querySelectorAll('.compare-row.same')].map((row) => [...row.querySelectorAll('.says')].map((says) => says.innerText)).filter(([one, two]) => one !== two)";
        browser.gives(unlike, json!([]));
        let told = store.run(&["diff", &first, other, "--json"]);
        let kinds: Vec<_> =
            common::lines(&told)[1..].iter().map(|row| row["left"]["kind"].clone()).collect();
        for kind in ["tool_scheduled", "tool_completed"] {
            assert!(kinds.contains(&json!(kind)), "{kind}: {kinds:?}");
        }
        let told = store.run(&["diff", &first, other]).stdout;
        assert!(told.contains(&format!("tool_scheduled  [{tool}]")), "{told}");
    }
}

#[test]
fn the_order_in_which_calls_end_side_by_side_is_no_difference() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    for (one, two) in [(0, 300), (300, 0)] {
        let scenario = json!({
            "scripts": [[{"tool_call": {"id": "a", "name": "one"}}, {"tool_call": {"id": "b", "name": "two"}}, {"finish": "tool_calls"}], [{"text": "Done."}, {"finish": "stop"}]],
            "tools": [{"name": "one", "returns": {"ok": 1, "delay_ms": one}}, {"name": "two", "returns": {"ok": 2, "delay_ms": two}}],
            "ops": [{"op": "chat", "messages": [{"role": "user", "content": "Go."}]}],
        });
        let file = store.file("play.json", &scenario.to_string());
        assert_eq!(common::run(["play", "--log", &store.url(), &file]).code, Some(0));
    }
    let runs = store.json(&["runs"]);
    let ended = |run: &str| {
        let records = store.json(&["show", run, "--records"]);
        let calls = records.iter().filter(|record| record["kind"] == "tool_completed");
        calls.map(|record| record["fact"]["call_id"].clone()).collect::<Vec<_>>()
    };
    let [right, left] = [0, 1].map(|place| common::text(&runs[place], "run_id"));
    assert_ne!(ended(&left), ended(&right));
    let served = Served::inspect(&store);
    browser.open(&served.page(&[("compare", &left), ("with", &right)]));
    browser.has(".banner.ok", "No difference");
}

#[test]
fn the_time_of_a_cancelled_model_call_is_that_of_models_and_its_bar_says_so() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::new();
    let agent = store.file(
        "agent.json",
        r#"{"scripts": [[{"text": "Well "}, {"delay_ms": 60000}, {"finish": "stop"}]]}"#,
    );
    let served = Served::start(&mut mynah(["serve", "--json", &agent, "--log", &store.url()]));
    browser.open(&served.page(&[]));
    let post = |path: &str, body: &str| {
        browser.run(&format!("return fetch('/v1/runs{path}', {{ method: 'POST', headers: {{ 'mynah-request': '1', 'content-type': 'application/json' }}, body: JSON.stringify({body}) }}).then((answer) => answer.status)"))
    };
    assert_eq!(
        post("", "{ input: 'The file a.__x is not b.__y, but __this__ is.', key: 'slow' }"),
        202
    );
    browser.run("window.begun = Date.now()");
    browser.wait("Date.now() - window.begun > 1200");
    assert_eq!(post("/slow/signals?wait=30", "{ cancel: true }"), 200);
    browser.open(&served.page(&[("run", "slow")]));
    let shares = "[...document.querySelectorAll('.overall tr')].map((row) => row.innerText.split('\t')[0].trim())";
    browser.wait(&format!("{shares}.includes('Models')"));
    let models = browser.run("return document.querySelector('.overall tr').innerText");
    assert!(models.as_str().unwrap().contains("Models"), "{models}");
    // The heading says what was asked. Underscores within words are no marks.
    browser.has(".run-name h1", "a.__x is not b.__y");
    let bold =
        "return [...document.querySelectorAll('.role-user strong')].map((one) => one.innerText)";
    browser.gives(bold, json!(["this"]));
    browser.click("#tab-timeline");
    let note = browser.wait("document.querySelector('.bar-note') && (({ width, height }) => [width, height])(document.querySelector('.bar-note').getBoundingClientRect())");
    assert!(note[0].as_f64() > note[1].as_f64().map(|height| 2.0 * height), "{note}");
}

/// A process that runs a tool for longer than a test.
fn in_a_tool(store: &Store) -> Child {
    let scenario = r#"{"scripts": [[{"tool_call": {"id": "c", "name": "slow"}}, {"finish": "tool_calls"}]],
        "tools": [{"name": "slow", "returns": {"ok": 1, "delay_ms": 600000}}],
        "ops": [{"op": "chat", "messages": [{"role": "user", "content": "Go."}]}]}"#;
    let file = store.file("slow.json", scenario);
    mynah(["play", "--log", &store.url(), &file]).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_killed_process_and_a_lost_server_show_in_open_pages() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let mut playing = in_a_tool(&store);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[]));
    browser.wait("document.querySelector('tr[data-run] .chip')?.innerText === 'Running'");
    playing.kill().unwrap();
    playing.wait().unwrap();
    browser.wait("document.querySelector('tr[data-run] .chip').innerText === 'Abandoned'");
    browser.click("tr[data-run] .run-id a");
    browser.wait("document.querySelector('.call-state')?.innerText.includes('outcome unknown')");
    browser.run("history.back()");
    browser.wait("document.querySelector('tr[data-run]') !== null");
    drop(served);
    browser.wait(
        "document.querySelector('.connection:not([hidden])')?.innerText.includes('Not connected')",
    );
}

#[test]
fn long_texts_of_nothing_but_marks_do_not_stop_a_page() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[]));
    for mark in ["[", "**a ", "![", "_a ", "`` ` ", "<https://", "> "] {
        let script = format!(
            "return import('/ui/markdown.js').then(({{ markdown }}) => markdown({}.repeat(250000 / {})).textContent.length)",
            json!(mark),
            mark.len()
        );
        assert!(browser.run(&script).as_u64().unwrap() > 0, "{mark}");
    }
}

#[test]
fn time_passes_and_progress_is_shown_while_a_tool_runs() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let mut playing = in_a_tool(&store);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[]));
    browser.click("tr[data-run] .run-id a");
    browser.wait("document.querySelector('.call.state-running') !== null");
    // Time passes in the header while no record is written.
    let duration = "[...document.querySelectorAll('.fact')].find((fact) => fact.innerText.startsWith('Duration')).innerText";
    let before = browser.run(&format!("return {duration}"));
    browser.wait(&format!("{duration} !== {before}"));
    playing.kill().unwrap();
    playing.wait().unwrap();
    let script = "return import('/ui/conversation.js').then(({ Conversation }) => { \
        const call = { id: 'c', name: 't', part: {}, attempts: [{ state: 'running', effects: [] }] }; \
        const item = { type: 'message', seq: 1, ts: 0, role: 'assistant', message: { content: [] }, calls: [call] }; \
        const view = new Conversation({ items: [item], first: { ts: 0 }, hidden: () => null }, { select: () => {} }); \
        view.progress('c', '40 % of it'); return view.element.querySelector('.doing').textContent; })";
    browser.gives(script, "40 % of it");
}
