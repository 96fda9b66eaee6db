//! `mynah fork` and `mynah diff`: a run and its branches.

use mynah::log::{Append, Chain, Extent, Fact, Log as _, SqliteLog};
use serde_json::{Value, json};

use crate::common::{RUNS, Store, lines, run, text};

/// Resumes with an answer of its own.
const OTHERWISE: &str = r#"{
  "engine": {"price": {"input": 1000, "output": 1000}},
  "scripts": [ [ {"text": "There is no soup today."}, {"finish": "stop"} ] ],
  "tools": [ {"name": "ask"}, {"name": "order"} ]
}"#;

#[test]
fn a_fork_keeps_the_records_up_to_a_place_and_says_how_to_go_on() {
    let store = Store::with(RUNS);
    let forked = store.run(&["fork", "run-1", "--at", "5"]);
    assert_eq!((forked.code, forked.stderr.as_str()), (Some(0), ""));
    let id = text(&store.json(&["runs", "--limit", "1"])[0], "run_id");
    let url = store.url();
    let said = format!(
        "{id}  forked from run-1 at record 5\nresume it with: mynah resume {id} --agent FILE --log {url}\n"
    );
    assert_eq!(forked.stdout, said);
    let verified = &store.json(&["verify", &id])[0];
    assert_eq!((text(verified, "status"), &verified["records"]), ("in_progress".into(), &json!(5)));

    let told = &store.json(&["fork", "run-1", "--at", "3"])[0];
    let parent = &store.json(&["show", "run-1", "--record", "3"])[0];
    let named = json!({"run_id": "run-1", "seq": 3, "hash": parent["hash"]});
    assert_eq!(told["parent"], named);
    let id = text(told, "run_id");
    for flags in [&[] as &[&str], &["--tree"]] {
        let shown = store.run(&[&["show", &id], flags].concat()).stdout;
        let head = format!("run {id}  abandoned\nforked from run-1 at record 3\n");
        assert!(shown.starts_with(&head), "{shown}");
        let shown = &store.json(&[&["show", &id], flags].concat())[0]["run"];
        assert_eq!((&shown["parent"], &shown["abandoned"]), (&named, &json!(true)));
    }
    let listed = store.json(&["runs", "--limit", "3"]);
    assert_eq!(listed[0]["parent"], named);
    assert_eq!((&listed[2]["parent"], &listed[2]["abandoned"]), (&Value::Null, &json!(true)));
    let listed = store.run(&["runs", "--status", "running"]).stdout;
    assert_eq!(listed.matches("  abandoned  ").count(), 3, "{listed}");
}

#[test]
fn runs_that_nobody_goes_on_with_are_listed_page_by_page() {
    let store = Store::with(RUNS);
    let forks = ["3", "5"].map(|at| text(&store.json(&["fork", "run-1", "--at", at])[0], "run_id"));
    let [older, newer] = forks;
    for limit in ["1", "2", "3"] {
        let (mut found, mut next) = (Vec::new(), Some(String::new()));
        while let Some(place) = next {
            let after = ["--after", &place];
            let after = if place.is_empty() { &[][..] } else { &after };
            let page = ["runs", "--status", "abandoned", "--limit", limit];
            let page = store.json(&[&page[..], after].concat());
            found.extend(page.iter().map(|run| text(run, "run_id")));
            next = page.last().and_then(|run| Some(run["next"].as_str()?.to_owned()));
        }
        assert_eq!(found, [&*newer, &older, "run-4"]);
    }
}

#[test]
fn a_fork_of_a_run_that_waits_says_for_what() {
    let store = Store::with(RUNS);
    let waits = store.json(&["show", "run-0"])[0]["run"]["records"].to_string();
    let forked = store.run(&["fork", "run-0", "--at", &waits]).stdout;
    let (id, _) = forked.split_once(' ').unwrap();
    let how = format!("  mynah resume {id} --agent FILE --log {} --answer TEXT\n", store.url());
    assert!(forked.ends_with(&format!("\nit waits for an answer: How many?\n{how}")), "{forked}");
}

#[test]
fn with_an_agent_a_fork_goes_on_at_once() {
    let store = Store::with(RUNS);
    let agent = store.file("otherwise.json", OTHERWISE);
    let fork = ["fork", "run-1", "--at", "6", "--agent", &agent];
    let went_on = store.run(&fork);
    assert_eq!(went_on.code, Some(0), "{}", went_on.stderr);
    let listed = &store.json(&["runs", "--limit", "1"])[0];
    let id = text(listed, "run_id");
    let said = format!("{id}  forked from run-1 at record 6\nThere is no soup today.\n");
    assert_eq!((went_on.stdout, text(listed, "status")), (said, "completed".into()));

    let told = store.json(&fork);
    assert_eq!(told[0]["parent"]["run_id"], "run-1");
    let last = told.last().unwrap();
    assert_eq!(
        (&last["run_id"], &last["ok"]["halted_reason"]),
        (&told[0]["run_id"], &json!("completed"))
    );

    let runs = store.json(&["runs"]).len();
    let missing = store.run(&["fork", "run-1", "--at", "6", "--agent", "missing.json"]);
    assert_eq!((missing.code, missing.stdout.as_str()), (Some(4), ""), "{}", missing.stderr);
    assert_eq!(store.json(&["runs"]).len(), runs, "nothing was branched");
}

#[test]
fn a_fork_with_a_changed_agent_sends_the_prompt_of_that_agent() {
    let store = Store::new();
    let script = r#"{"scripts": [[{"text": "Soup."}, {"finish": "stop"}]]}"#;
    store.file("script.json", script);
    let file = |prompt: &str| {
        store.file("agent.toml", &format!("model = 'scripted:script.json'\nsystem = '{prompt}'\n"))
    };
    let agent = file("Be brief.");
    assert_eq!(store.run(&["run", &agent, "Menu?"]).code, Some(0));
    file("Be kind.");
    let fork = ["fork", "last", "--at", "1", "--agent", &agent, "--allow-changed-agent"];
    // A refused agent leaves no fork behind.
    let refused = store.run(&fork[..6]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{}", refused.stderr);
    let why = "began with another agent";
    let hint = "pass --allow-changed-agent";
    assert!(refused.stderr.contains(why) && refused.stderr.contains(hint), "{}", refused.stderr);
    assert_eq!(store.json(&["runs"]).len(), 1);
    let told = store.json(&fork);
    let first = &told.last().unwrap()["ok"]["thread"]["messages"][0];
    assert!(first.to_string().contains("Be kind."), "{first}");
    let shown = store.ok(&["show", "last"]);
    let prompt = "-- resumed, changed: params ~system\n\nsystem: Be kind.\n";
    assert!(shown.contains(prompt), "{shown}");
}

#[test]
fn an_answer_that_is_recorded_already_is_printed_where_the_run_goes_on() {
    let store = Store::new();
    let script = store.file("s.json", r#"{"scripts": [[{"text": "Soup."}, {"finish": "stop"}]]}"#);
    let agent = store.file("agent.toml", "model = 'scripted:s.json'\n");
    let model = format!("scripted:{script}");
    for (asked, agent) in
        [(&["run", &agent, "Menu?"][..], &agent), (&["generate", "-m", &model, "Menu?"], &script)]
    {
        let ran = store.run(asked);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "Soup.\n"), "{}", ran.stderr);
        let run = text(&store.json(&["runs", "--limit", "1"])[0], "run_id");
        let records = store.json(&["show", &run, "--records"]);
        let answered = |record: &&Value| record["fact"]["kind"] == "assistant_completed";
        let at = records.iter().find(answered).unwrap()["seq"].to_string();
        let forked = store.run(&["fork", &run, "--at", &at, "--agent", agent]);
        assert_eq!(forked.code, Some(0), "{}", forked.stderr);
        assert!(forked.stdout.ends_with("\nSoup.\n"), "{asked:?}: {}", forked.stdout);
        assert_eq!(store.run(&["fork", &run, "--at", &at]).code, Some(0));
        let resumed = store.run(&["resume", "last", "--agent", agent]);
        assert_eq!((resumed.code, resumed.stdout.as_str()), (Some(0), "Soup.\n"), "{resumed:?}");
    }
}

#[test]
fn a_fork_of_a_loop_of_its_own_names_what_goes_on_with_it() {
    let store = Store::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let log = SqliteLog::open(&store.path).unwrap();
        let (thread, extent) = (mynah::Thread::from("hi"), Extent::Chat);
        let started = Fact::RunStarted { thread, extent, about: None };
        let record = Chain::new("own").append(0, [0; 16], &started).unwrap();
        log.append(Append::new("own", None, vec![record])).await.unwrap();
    });
    let agent = store.file("otherwise.json", OTHERWISE);
    let refused = store.run(&["fork", "own", "--at", "1", "--agent", &agent]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""));
    assert!(refused.stderr.contains("`Config::resume` in Rust"), "{}", refused.stderr);
    assert_eq!(store.json(&["runs"]).len(), 1, "nothing was branched");

    let forked = store.run(&["fork", "own", "--at", "1"]);
    assert_eq!((forked.code, forked.stderr.as_str()), (Some(0), ""));
    let id = text(&store.json(&["runs", "--limit", "1"])[0], "run_id");
    let said = format!(
        "{id}  forked from own at record 1\nresume it with the loop that wrote it: `Config::resume` in Rust\n"
    );
    assert_eq!(forked.stdout, said);
    for runs in [["own", &id], [&id, "own"]] {
        let same = store.run(&["diff", runs[0], runs[1]]);
        assert_eq!((same.code, same.stdout.lines().last()), (Some(0), Some("the same")));
    }
    assert_eq!(store.run(&["fork", &id, "--at", "1"]).stdout.lines().nth(1), said.lines().nth(1));
}

#[test]
fn a_fork_that_goes_on_differently_differs_from_there() {
    let store = Store::with(RUNS);
    let fork = text(&store.json(&["fork", "run-1", "--at", "6"])[0], "run_id");
    let same_so_far = store.run(&["diff", "run-1", &fork]);
    assert_eq!(same_so_far.code, Some(1));
    assert!(same_so_far.stdout.contains("the same up to record 6\n"), "{}", same_so_far.stdout);
    assert_eq!(
        same_so_far.stderr,
        "mynah: the runs differ from record 7 of the left one on: the right one has nothing like it\n"
    );

    let agent = store.file("otherwise.json", OTHERWISE);
    let resumed = store.run(&["resume", &fork, "--agent", &agent]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert_eq!(resumed.stdout, "There is no soup today.\n");
    let differs = store.run(&["diff", "run-1", &fork]);
    let expected = format!(
        "left   run-1  9 records
right  {fork}  10 records
the same up to record 6

   7  assistant_completed  It is on its way.             |    8  assistant_completed  There is no soup today.
  response.message.content
    left  \"It is on its way.\"
    right  \"There is no soup today.\"
"
    );
    assert!(differs.stdout.starts_with(&expected), "{}", differs.stdout);
    assert_eq!(differs.stderr, "mynah: the runs differ from records 7 and 8 on\n");

    let told = store.run(&["diff", "run-1", &fork, "--json"]);
    assert_eq!(told.code, Some(1));
    let told = lines(&told);
    let summary = json!({
        "status": "different",
        "left": {"run_id": "run-1", "records": 9},
        "right": {"run_id": fork, "records": 10},
        "shared": 6,
        "differences": 1,
        "redacted": 0,
    });
    assert_eq!(told[0], summary);
    let places: Vec<(Value, Value)> = told[1..]
        .iter()
        .map(|row| (row["left"]["seq"].clone(), row["right"]["seq"].clone()))
        .collect();
    assert_eq!(places, [(json!(7), json!(8))]);
    let first = json!({"path": "response.message.content", "left": "It is on its way.", "right": "There is no soup today."});
    assert_eq!(told[1]["diff"][0], first);
}

#[test]
fn another_agent_that_goes_on_is_a_difference_though_it_does_the_same() {
    let store = Store::with(RUNS);
    let other = RUNS.replacen("{\"price\"", "{\"model\": \"another:m\", \"price\"", 1);
    let (same, other) = (store.file("same.json", RUNS), store.file("other.json", &other));
    let mut forks = Vec::new();
    for (agent, differs) in [(&same, false), (&other, true)] {
        let fork = text(&store.json(&["fork", "run-1", "--at", "6"])[0], "run_id");
        forks.push(fork.clone());
        let resumed = store.run(&["resume", &fork, "--agent", agent, "--allow-changed-agent"]);
        assert_eq!((resumed.code, resumed.stdout.as_str()), (Some(0), "It is on its way.\n"));
        let found = store.run(&["diff", "run-1", &fork]);
        if !differs {
            assert_eq!((found.code, found.stderr.as_str()), (Some(0), ""));
            assert!(found.stdout.ends_with("\nthe same\n"), "{}", found.stdout);
            continue;
        }
        let first = format!(
            "the same up to record 6\n\n{:57}>    7  resumed  (model scripted -> another:m)\n^ the first difference\n\n   7  assistant_completed",
            ""
        );
        assert!(found.stdout.contains(&first), "{}", found.stdout);
        let said = "mynah: the runs differ from record 7 of the right one on: the left one has nothing like it\n";
        assert_eq!((found.code, found.stderr.as_str()), (Some(1), said));
        let told = lines(&store.run(&["diff", "run-1", &fork, "--json"]));
        assert_eq!((told.len(), &told[0]["differences"]), (2, &json!(1)));
        assert_eq!(
            (&told[1]["left"], &told[1]["right"]["kind"]),
            (&json!(null), &json!("resumed"))
        );
        assert_eq!(told[1]["right"]["fact"]["about"]["model"], "another:m");
    }
    // Both have a record 7, and one of these is passed over.
    let found = store.run(&["diff", &forks[1], &forks[0]]);
    let said = "mynah: the runs differ from record 7 of the left one on: the right one has nothing like it\n";
    assert_eq!((found.code, found.stderr.as_str()), (Some(1), said));
}

#[test]
fn a_fork_goes_on_with_something_else_that_is_said_to_it() {
    let store = Store::with(RUNS);
    let agent = store.file("otherwise.json", OTHERWISE);
    for at in ["2", "7"] {
        let fork = text(&store.json(&["fork", "run-1", "--at", at])[0], "run_id");
        let resumed = store.run(&["resume", &fork, "Bread, then!", "--agent", &agent]);
        assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
        assert_eq!(resumed.stdout, "There is no soup today.\n");
        let shown = store.run(&["show", &fork]).stdout;
        let said = "-- resumed\n\nuser: Bread, then!\n\nassistant: There is no soup today.\n";
        assert!(shown.contains(said), "{shown}");
        for verb in [&["verify", &fork][..], &["replay", &fork]] {
            assert_eq!(store.run(verb).code, Some(0), "{verb:?}");
        }
        assert!(store.run(&["show", &fork, "--tree"]).stdout.contains("Bread, then!"));
    }
}

#[test]
fn a_run_is_the_same_as_itself_and_as_one_that_does_the_same() {
    let store = Store::with(RUNS);
    let same = store.run(&["diff", "run-1", "run-1"]);
    assert_eq!((same.code, same.stderr.as_str()), (Some(0), ""));
    assert_eq!(same.stdout, "left   run-1  9 records\nright  run-1  9 records\nthe same\n");

    let store = Store::new();
    store.play(RUNS, false);
    store.play(RUNS, false);
    let runs: Vec<String> = store.json(&["runs"]).iter().map(|run| text(run, "run_id")).collect();
    for index in 0..5 {
        let told = store.json(&["diff", &runs[index], &runs[index + 5]]);
        assert_eq!((told.len(), &told[0]["status"]), (1, &json!("equal")), "{told:?}");
    }
}

#[test]
fn the_fields_of_the_first_difference_are_told() {
    let store = Store::with(RUNS);
    let differs = store.run(&["diff", "run-2", "run-3"]);
    assert_eq!(differs.code, Some(1));
    assert!(differs.stdout.contains("the same up to record "), "{}", differs.stdout);
    let apart = store.run(&["diff", "run-0", "run-1"]);
    let expected = "nothing is the same\n\n   1  run_started  Soup?                                 |    1  run_started  Soup!\n  thread.messages.0.role\n    left  \"user\"\n    right  \"system\"\n";
    assert!(apart.stdout.contains(expected), "{}", apart.stdout);
    assert_eq!(apart.stderr, "mynah: the runs differ from record 1 on\n");
}

#[test]
fn what_cannot_be_branched_or_compared_is_refused() {
    let store = Store::with(RUNS);
    let agent = store.file("agent.json", RUNS);
    let cases: [(&[&str], &str); 9] = [
        (
            &["fork", "run-1", "--at", "0"],
            "at: run run-1 can be branched at its records 1 to 8: it has no record 0",
        ),
        (
            &["fork", "run-1", "--at", "8", "--agent", &agent],
            "--at 8: run run-1 ends there; choose one of its records 1 to 7",
        ),
        (
            &["fork", "run-1", "--at", "99", "--agent", &agent],
            "--at 99: run run-1 has no such record; choose one of its records 1 to 7",
        ),
        (&["fork", "run-1", "--at", "soon"], "invalid value 'soon'"),
        (&["fork", "run-1"], "--at <SEQ>"),
        (&["fork", "ruin", "--at", "1"], "no run has an id"),
        (&["fork", "run-", "--at", "1"], "more than one run"),
        (&["diff", "run-1", "ruin"], "no run has an id"),
        (&["diff", "run-1"], "<RIGHT>"),
    ];
    for (arguments, said) in cases {
        let refused = store.run(arguments);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(refused.stderr.contains(said), "{arguments:?}: {}", refused.stderr);
    }
    assert_eq!(store.json(&["runs"]).len(), 5, "nothing was made");
    assert_eq!(store.run(&["fork", "run-1", "--at", "8"]).code, Some(0), "a copy of all of it");
    assert_eq!(run(["fork", "last", "--at", "1", "--log", "memory:"]).code, Some(2));

    store.tamper(b"It is on its way.", b"It is in its way.");
    for arguments in [&["fork", "run-1", "--at", "3"] as &[_], &["diff", "run-0", "run-1"]] {
        let found = store.run(arguments);
        assert_eq!(found.code, Some(1), "{arguments:?}");
        assert!(found.stderr.contains("corrupt: run run-1, record 7"), "{}", found.stderr);
    }
}
