//! The runs of agents, with the verbs that follow the link to them.

use crate::common::{Store, feed, lines, mynah, run};

/// A store with an agent that asks another one, which says this. Returns the agent's file.
fn store(says: &str) -> (Store, String) {
    let store = Store::new();
    let file = write(&store, says);
    (store, file)
}

fn write(store: &Store, says: &str) -> String {
    store.file(
        "front.json",
        r#"{"scripts": [
          [{"tool_call": {"id": "c0", "name": "research", "arguments": {"task": "Can they talk?"}}}, {"usage": {"input_tokens": 10, "output_tokens": 5}}, {"finish": "tool_calls"}],
          [{"text": "Yes."}, {"usage": {"input_tokens": 20, "output_tokens": 5}}, {"finish": "stop"}]
        ]}"#,
    );
    let script = format!(
        r#"{{"scripts": [[{{"text": "{says}"}}, {{"usage": {{"input_tokens": 7, "output_tokens": 3}}}}, {{"finish": "stop"}}]]}}"#
    );
    store.file("research.json", &script);
    store.file("research.toml", "model = 'scripted:research.json'\ndescription = 'Looks up.'\n");
    store.file(
        "agent.toml",
        "model = 'scripted:front.json'\n[agents.research]\nfile = 'research.toml'\n",
    )
}

#[test]
fn a_check_follows_the_files_of_agents() {
    let (store, file) = store("They can.");
    let checked = run(["agent", "check", &file]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(
        checked.stdout.contains("  tools  research\n  agent  research (scripted:research.json)\n"),
        "{}",
        checked.stdout
    );
    let line = &lines(&run(["agent", "check", &file, "--json"]))[0];
    assert_eq!(line["ok"]["agents"][0]["name"], "research");
    assert_eq!(line["ok"]["agents"][0]["model"], "scripted:research.json");
    let inherits = store.file(
        "inherits.toml",
        "model = 'scripted:front.json'\n[agents.research]\ndescription = 'Looks up.'\n",
    );
    let checked = run(["agent", "check", &inherits]);
    assert!(checked.stdout.contains("research (scripted:front.json)\n"), "{}", checked.stdout);
    let circle = "model = 'openai:x'\ndescription = 'x'\n[agents.front]\nfile = 'agent.toml'\n";
    store.file("research.toml", circle);
    let refused = run(["agent", "check", &file]);
    assert_eq!(refused.code, Some(2), "{}", refused.stdout);
    let circle = "research.toml:4: agents.front.file: these agents have each other: agent.toml, research.toml, agent.toml";
    assert!(refused.stderr.contains(circle), "{}", refused.stderr);
}

#[test]
fn the_answer_after_a_handoff_is_that_of_the_second_agent() {
    let (store, _) = store("They can talk.");
    let script = r#"{"scripts": [[{"tool_call": {"id": "c0", "name": "research", "arguments": {"note": "Talk."}}}, {"finish": "tool_calls"}]]}"#;
    store.file("hand.json", script);
    let file = store.file(
        "hand.toml",
        "model = 'scripted:hand.json'\n[agents.research]\nfile = 'research.toml'\nhandoff = true\n",
    );
    let done = store.run(&["run", &file, "Can they talk?"]);
    assert_eq!((done.code, &*done.stdout), (Some(0), "They can talk.\n"), "{}", done.stderr);
    assert!(!done.stderr.contains("the answer is empty"), "{}", done.stderr);
    let shown = store.run(&["show", "last"]).stdout;
    let end = "  < [c0] took over\n\nassistant: They can talk.\n\n-- completed\n";
    assert!(shown.ends_with(end), "{shown}");
}

#[test]
fn the_tree_of_a_run_has_the_runs_of_its_agents_and_last_is_not_one_of_them() {
    let (store, file) = store("They can.");
    let ran = store.run(&["run", &file, "Mynahs?"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("Yes."), "{}", ran.stdout);
    let shown = store.run(&["show", "last"]);
    assert!(
        shown.stdout.contains("Mynahs?") && shown.stdout.contains("+research-"),
        "{}",
        shown.stdout
    );
    let tree = store.run(&["show", "last", "--tree"]).stdout;
    let place = |text: &str| tree.find(text).unwrap_or_else(|| panic!("{text} in {tree}"));
    assert!(place("sub_run_started") < place("run_started  Can they talk?"), "{tree}");
    assert!(place("answer  They can.") < place("answer  Yes."), "{tree}");
    assert_eq!(tree.matches("answer  They can.").count(), 1, "{tree}");
    let verified = store.run(&["verify", "last"]).stdout;
    assert_eq!(verified.lines().count(), 2, "{verified}");
}

#[test]
fn two_runs_are_compared_with_the_runs_of_their_agents() {
    let (store, file) = store("They can.");
    let run = |file: &str| {
        let ran = store.run(&["run", file, "Mynahs?", "--json"]);
        lines(&ran).last().unwrap()["run_id"].as_str().unwrap().to_owned()
    };
    let (first, same) = (run(&file), run(&file));
    let equal = store.run(&["diff", &first, &same]);
    assert_eq!(equal.code, Some(0), "{}{}", equal.stdout, equal.stderr);
    assert_eq!(equal.stdout.matches("the same").count(), 2, "{}", equal.stdout);
    // The same words of the same length: only the agent's run differs before its result does.
    write(&store, "They could.");
    let other = run(&file);
    let differ = store.run(&["diff", &first, &other, "--json"]);
    assert_eq!(differ.code, Some(1), "{}", differ.stdout);
    let told = lines(&differ);
    let summaries: Vec<_> = told.iter().filter(|line| line["status"].is_string()).collect();
    assert_eq!(summaries.len(), 2, "{}", differ.stdout);
    assert!(summaries.iter().all(|line| line["status"] == "different"), "{}", differ.stdout);
}

#[test]
fn a_run_is_exported_and_imported_with_the_runs_of_its_agents() {
    let (store, file) = store("They can.");
    store.run(&["run", &file, "Mynahs?"]);
    let bundle = store.beside("run.ndjson");
    let exported = store.run(&["export", "last", "-o", &bundle]);
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    assert!(exported.stdout.contains("with 1 run of agents"), "{}", exported.stdout);
    let verified = store.run(&["verify", &bundle]);
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    assert_eq!(verified.stdout.matches("verified").count(), 2, "{}", verified.stdout);
    let elsewhere = Store::new();
    let imported = elsewhere.run(&["import", &bundle]);
    assert_eq!(imported.code, Some(0), "{}", imported.stderr);
    assert_eq!(imported.stdout.matches("added").count(), 2, "{}", imported.stdout);
    assert_eq!(elsewhere.run(&["verify", "last"]).stdout, store.run(&["verify", "last"]).stdout);
    // Nothing of a file is taken in if one of its runs was changed.
    let text = std::fs::read_to_string(&bundle).unwrap();
    let (before, last) = text.trim_end().rsplit_once('\n').unwrap();
    let changed = format!("{before}\n{}\n", last.replacen("\"records\":", "\"records\":1", 1));
    std::fs::write(&bundle, changed).unwrap();
    let empty = Store::new();
    assert_eq!(empty.run(&["import", &bundle]).code, Some(2));
    assert_eq!(empty.run(&["verify", &bundle]).code, Some(1));
    assert_ne!(empty.run(&["show", "last"]).code, Some(0));
}

#[test]
fn cancelling_a_run_ends_the_agents_that_it_waits_for() {
    let (store, file) = store("They can.");
    store.file(
        "research.toml",
        "model = 'scripted:ask.json'\ndescription = 'Looks up.'\ntools = { ask_user = true }\n",
    );
    store.file(
        "ask.json",
        r#"{"scripts": [[{"tool_call": {"id": "q0", "name": "ask_user", "arguments": {"question": "Which?"}}}, {"finish": "tool_calls"}]]}"#,
    );
    let waits = store.run(&["run", &file, "Mynahs?"]);
    assert_eq!(waits.code, Some(3), "{}", waits.stderr);
    assert!(waits.stderr.contains("Which?"), "{}", waits.stderr);
    assert_eq!(store.run(&["cancel", "last"]).code, Some(0));
    let runs = lines(&store.run(&["runs", "--json"]));
    assert_eq!(runs.iter().filter(|run| run["status"] == "cancelled").count(), 2, "{runs:?}");
}

#[test]
fn a_run_ends_with_what_it_and_its_agents_used() {
    let (store, file) = store("They can.");
    let ran = store.run(&["run", &file, "Mynahs?"]);
    assert!(ran.stderr.contains("3 turns, 1 tool call, 37 + 13 tokens"), "{}", ran.stderr);
    let url = store.url();
    let chat = feed(mynah(["chat", &file, "--log", &url]), b"Mynahs?\n/cost\n");
    let used = chat.stderr.matches("37 + 13 tokens").count();
    assert_eq!(used, 2, "after the answer, and by the command: {}", chat.stderr);
    let shown = store.run(&["show", "last"]).stdout;
    assert!(shown.contains("3 turns, 1 tool call, 37 + 13 tokens"), "{shown}");
    let runs = store.run(&["runs"]).stdout;
    let of = |is_agent: bool| {
        let row = runs.lines().skip(1).find(|row| row.contains('+') == is_agent).unwrap();
        row.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let (all, own) = (of(false), of(true));
    // TURNS, TOOLS and TOKENS stand after the id, two words of time, the status and the model.
    assert_eq!(all[5..8], ["3", "1", "50"], "{runs}");
    assert_eq!(own[5..8], ["1", "0", "10"], "{runs}");
    // A fork has what it copied, with the runs of the agents in it. JSON has both sums.
    let fork = &lines(&store.run(&["fork", &all[0], "--at", "8", "--json"]))[0]["run_id"];
    let listed = lines(&store.run(&["runs", "--json"]));
    for id in [&*all[0], fork.as_str().unwrap()] {
        let run = listed.iter().find(|run| run["run_id"] == id).unwrap();
        assert_eq!(run["agents"]["input_tokens"], 7, "{run}");
    }
}

#[test]
fn the_calls_of_an_agent_are_decided_with_resume() {
    let (store, file) = store("They can.");
    let call = |id: &str| {
        format!(
            r#"{{"tool_call": {{"id": "{id}", "name": "shell", "arguments": {{"command": "echo {id}"}}}}}}"#
        )
    };
    store.file(
        "shell.json",
        &format!(
            r#"{{"scripts": [[{}, {}, {{"finish": "tool_calls"}}], [{{"text": "They can."}}, {{"finish": "stop"}}]]}}"#,
            call("s0"),
            call("s1")
        ),
    );
    store.file(
        "research.toml",
        "model = 'scripted:shell.json'\ndescription = 'Looks up.'\ntools = { shell = 'ask' }\n",
    );
    let waits = store.run(&["run", &file, "Mynahs?"]);
    assert_eq!(waits.code, Some(3), "{}", waits.stderr);
    assert!(waits.stderr.contains("\n1. shell {\"command\":\"echo s0\"}"), "{}", waits.stderr);
    let decide = ["resume", "last", "--agent", &file, "--answer"];
    let open = store.run(&[&decide[..], &["1 yes"]].concat());
    assert_eq!(open.code, Some(3), "{}", open.stdout);
    assert!(open.stderr.contains("Call 2 has no decision."), "{}", open.stderr);
    // Another process continues the script of the agent.
    let done = store.run(&[&decide[..], &["1 yes; 2 no, not that one"]].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stderr.contains("They can.") && done.stdout == "Yes.\n", "{done:?}");
    let tree = store.run(&["show", "last", "--tree"]).stdout;
    assert!(tree.contains("not that one") && tree.contains("s0\\n"), "{tree}");
}
